"""The nearest name to one that does not exist: turns names and paths into "did you mean". Reads directories only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# Of a directory that are looked at.
_ENTRIES = 2000


def find_nearest(name: str, among: Iterable[str], cutoff: float = 0.6) -> str:
    """The one of `among` that is most like `name`, "" when none is."""
    return next(iter(find_nearest_few(name, among, 1, cutoff)), "")


def find_nearest_few(name: str, among: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """The `count` of `among` that are most like `name`, the best first. `cutoff`: difflib's ratio, 1 is equal."""
    # Imported here: gsub needs it only on the way to an error.
    from difflib import get_close_matches

    return get_close_matches(name, list(among), n=count, cutoff=cutoff)


def is_slip(one: str, other: str) -> bool:
    """Two neighbours swapped, or one letter left out, added or changed; digits distinguish files on purpose."""
    if one == other or re.sub(r"[a-zA-Z]", "", one) != re.sub(r"[a-zA-Z]", "", other) or abs(len(one) - len(other)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    return a[1:] == b or a == b[1:] or (a[1:] == b[1:] and len(one) > 5) or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def suggest_path(path: str) -> str:
    """`; did you mean ...?` when a file of nearly this name is in the same directory or one next to it."""
    from pathlib import Path

    wanted, parent = Path(path), Path(path).parent
    try:
        beside = [p for p in (parent, parent.parent) if p.is_dir()]
        with os.scandir(beside[0]) if beside[:1] == [parent] else _nothing() as entries:
            here = [entry.name for _, entry in zip(range(_ENTRIES), entries, strict=False)]
        below = [str(p) for folder in beside for p in sorted(folder.glob(f"*/{_escape_glob(wanted.name)}"))[:3]]
    except (OSError, ValueError):
        return ""
    name = find_nearest(wanted.name, here)
    found = below[0] if below else str(parent / name) if name else ""
    return f"; did you mean {found}?" if found else ""


def _escape_glob(name: str) -> str:
    import glob

    return glob.escape(name)


class _nothing:
    """A directory without entries."""

    def __enter__(self) -> Iterable[os.DirEntry[str]]:
        return ()

    def __exit__(self, *_: object) -> None:
        return None
