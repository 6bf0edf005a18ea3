"""Run `slurmwrap` with a clock that a file shifts: shifted_reconciler.py FILE ARGUMENTS...

FILE has the seconds by which this process's time.time() differs from the machine's clock. It may change at any moment.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def shift_clock(path: Path) -> None:
    """Replace time.time() and time.time_ns(). A file that cannot be read shifts by nothing."""
    read = time.time

    def shifted() -> float:
        try:
            return read() + float(path.read_text())
        except (OSError, ValueError):
            return read()

    time.time = shifted
    time.time_ns = lambda: int(shifted() * 1e9)


if __name__ == "__main__":
    shift_clock(Path(sys.argv.pop(1)))
    from slurmwrap.cli.slurmwrap import main

    main()
