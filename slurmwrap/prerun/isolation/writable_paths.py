"""Decide whether a trial may write to a path. Pure except for resolving links of directories.

Standard library only and nothing of slurmwrap, because touch_shim.py imports this before every rm and cp of a trial.
The guard inside Python has the same rule in inject/slurmwrap_shadow.py, in Python 3.6 syntax.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_free(path: str, free: Sequence[str], held: Sequence[str]) -> bool:
    """Return whether a trial may write to `path` (absolute, links resolved).

    The longest entry of both lists that contains the path decides. The path is held if the entries are equally long or
    if no entry contains it.
    """
    longest = [max((len(f) for f in folders if _is_below(path, f)), default=-1) for folders in (free, held)]
    return longest[0] > longest[1]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_directories(path: str) -> str:
    """Return `path` with the links of its directories resolved, but not the last component, as rm and mv do."""
    if path.startswith(("/dev/", "/proc/")):
        return path
    folder, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(folder), name)
