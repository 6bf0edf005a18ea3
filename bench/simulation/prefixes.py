"""Write prefixes of a trace to files."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path


def lines_of(trace: Path) -> list[str]:
    """Return heading and rows of a CSV or CSV.gz."""
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rt", encoding="utf-8") as stream:
        return stream.readlines()


def write(lines: Sequence[str], jobs: int, place: Path) -> Path:
    """Write the first `jobs` jobs to a file in `place` and return its path."""
    path = place / f"first{jobs}.csv"
    path.write_text("".join(lines[: jobs + 1]), encoding="utf-8")
    return path
