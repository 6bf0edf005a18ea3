"""Find the existing name or path most similar to a wrong one, for "did you mean" hints. Only reads directories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# Maximum number of directory entries that are compared.
_MAX_ENTRIES = 2000


def find_nearest(name: str, among: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the one of `among` that is most similar to `name`, or "" when none is similar enough."""
    return next(iter(find_nearest_few(name, among, 1, cutoff)), "")


def find_nearest_few(name: str, among: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """Return the `count` of `among` most similar to `name`, best first. `cutoff` is a difflib ratio; 1 is equal."""
    # Imported here because gsub needs it only for error messages.
    from difflib import get_close_matches

    return get_close_matches(name, list(among), n=count, cutoff=cutoff)


def is_typo(one: str, other: str) -> bool:
    """Return whether two names differ by one typo: two letters swapped, or one left out, added or changed.

    A difference in digits or punctuation is no typo: it distinguishes files on purpose.
    """
    if one == other or re.sub(r"[a-zA-Z]", "", one) != re.sub(r"[a-zA-Z]", "", other) or abs(len(one) - len(other)) > 1:
        return False
    # Skip the common prefix, then check the rest for each kind of typo: an added, omitted, changed or swapped letter.
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    return a[1:] == b or a == b[1:] or (a[1:] == b[1:] and len(one) > 5) or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def suggest_path(path: str) -> str:
    """Return `; did you mean ...?` if a file of similar name is in the same directory or in one next to it."""
    from pathlib import Path

    wrong_path, parent = Path(path), Path(path).parent
    try:
        searched = [p for p in (parent, parent.parent) if p.is_dir()]
        with os.scandir(searched[0]) if searched[:1] == [parent] else _EmptyScan() as entries:
            sibling_names = [entry.name for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False)]
        below = [str(p) for folder in searched for p in sorted(folder.glob(f"*/{_escape_glob(wrong_path.name)}"))[:3]]
    except (OSError, ValueError):
        return ""
    name = find_nearest(wrong_path.name, sibling_names)
    found = below[0] if below else str(parent / name) if name else ""
    return f"; did you mean {found}?" if found else ""


def _escape_glob(name: str) -> str:
    import glob

    return glob.escape(name)


class _EmptyScan:
    """A context manager like os.scandir for a directory without entries."""

    def __enter__(self) -> Iterable[os.DirEntry[str]]:
        return ()

    def __exit__(self, *_: object) -> None:
        return None
