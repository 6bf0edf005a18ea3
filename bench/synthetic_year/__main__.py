"""`python bench/synthetic_year --out FILE.db [--days 365] [--jobs-per-day 10000]`: write it, print its size."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from synthetic_year import fill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--jobs-per-day", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", type=float, default=time.time(), help="Unix seconds of its end; now")
    parser.add_argument("--out", type=Path, required=True, help="a file that is not there yet")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} is there already")
    began = time.monotonic()
    say = (lambda text: None) if given.quiet else print
    counts = fill(
        given.out, days=given.days, jobs_per_day=given.jobs_per_day, seed=given.seed, until=given.until, say=say
    )
    size = given.out.stat().st_size
    print(", ".join(f"{count:,} {table}" for table, count in counts.items()))
    print(f"{given.out}: {size / 1e6:,.1f} MB, made in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
