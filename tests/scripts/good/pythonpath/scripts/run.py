import argparse

from mlp.engine import Engine
from mlp.nets import build_mlp


def cli():
    parser = argparse.ArgumentParser()
    sub = parser.add_subparsers(dest="command", required=True)
    fit = sub.add_parser("fit")
    fit.add_argument("--model.hidden", dest="hidden", type=int, default=16)
    fit.add_argument("--model.depth", dest="depth", type=int, default=2)
    fit.add_argument("--trainer.max-steps", dest="max_steps", type=int, default=100)
    sub.add_parser("validate")
    return parser.parse_args()


if __name__ == "__main__":
    args = cli()
    engine = Engine(build_mlp(4, args.hidden, args.depth, 1))
    getattr(engine, args.command)(args.max_steps)
