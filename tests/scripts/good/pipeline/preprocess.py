import argparse
import json
from pathlib import Path

import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--vocab", required=True, type=Path)
    args = parser.parse_args()
    words = [w for f in args.files for w in f.read_text().split()]
    vocab = {w: i for i, w in enumerate(sorted(set(words)))}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    np.save(args.output, np.array([vocab[w] for w in words], dtype=np.int64))
    args.vocab.write_text(json.dumps(vocab))
    print(f"{len(words)} tokens, {len(vocab)} types")


if __name__ == "__main__":
    main()
