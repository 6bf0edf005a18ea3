"""Which places a trial may write to. Pure but for the links of directories.

Standard library only and nothing of slurmwrap: also loaded in front of every rm and cp of a trial (touch_shim.py). The
guard inside Python has the same rule in inject/slurmwrap_shadow.py, in Python 3.6 syntax.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_free(path: str, free: Sequence[str], held: Sequence[str]) -> bool:
    """True when a trial may write to `path` (absolute, links resolved).

    The longest entry of both lists that holds it decides; a tie, and what no list names, is held.
    """
    longest = [max((len(f) for f in folders if _is_below(path, f)), default=-1) for folders in (free, held)]
    return longest[0] > longest[1]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_directories(path: str) -> str:
    """`path` with the links of its directories resolved, itself not: what rm, mv and open would act on."""
    if path.startswith(("/dev/", "/proc/")):
        return path
    folder, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(folder), name)
