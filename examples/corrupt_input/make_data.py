"""Writes two data files into a directory: good.pt, and truncated.pt as an interrupted copy leaves it."""

import argparse
from pathlib import Path

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=Path())
    args = parser.parse_args()

    args.directory.mkdir(parents=True, exist_ok=True)
    good, truncated = args.directory / "good.pt", args.directory / "truncated.pt"
    features = torch.randn(4096, 64)
    torch.save({"features": features, "labels": (features.sum(1) > 0).long()}, good)
    truncated.write_bytes(good.read_bytes()[: good.stat().st_size * 2 // 3])
    print(good, truncated)


if __name__ == "__main__":
    main()
