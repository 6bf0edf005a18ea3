"""Fill the upper layer of an overlay with what the kernel cannot copy there from a group's directory (adapter: files).

In a user namespace, overlayfs refuses to copy up a file whose owner or group has no mapping (EOVERFLOW, measured on
Linux 6.18), and only the user's primary group can be mapped. That is every file of a project directory that belongs to
a secondary group. So the directories, and the small files that the user may change, are copied to the upper layer
before the overlay is mounted. overlayfs merges a directory that is in both layers. A larger file can be read, replaced
and removed, but not changed.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.prerun.isolation.overlay_enter import is_below

# Limits of the copies of one trial. What exceeds them stays uncopied, so a write to it fails in the trial.
MAX_ENTRIES = 20_000
MAX_SECONDS = 5.0
MAX_FILE_BYTES = 4 << 20
MAX_BYTES = 256 << 20


def fill_upper_layer(root: str, upper: str, places: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
    """Copy the directories and small files at and below `places` from `root` to `upper`, as far as the limits allow.

    `places`: directories below `root`, the most important first. Directories on the way to a place are made as well.
    """
    ends_at = clock() + MAX_SECONDS
    files: list[tuple[int, int, str]] = []
    for count, (depth, entry) in enumerate(_walk_breadth_first(root, upper, places)):
        if count >= MAX_ENTRIES or clock() >= ends_at:
            break
        with suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and not _is_mapped(found) and os.access(entry.path, os.R_OK | os.W_OK):
                files.append((depth, found.st_size, entry.path))
    copied = 0
    for _, size, path in sorted(files):
        if size > MAX_FILE_BYTES or copied + size > MAX_BYTES or clock() >= ends_at:
            continue
        copied += size
        with suppress(OSError):
            shutil.copy2(path, _locate_in_upper(path, root, upper), follow_symlinks=False)


def _walk_breadth_first(root: str, upper: str, places: Sequence[str]) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """Yield (depth, entry) of all entries below `places`; make each directory in the upper layer before its entries."""
    for place in places:
        _make_parents(root, upper, place)
    pending, seen = deque((0, place) for place in places), set(places)
    while pending:
        depth, folder = pending.popleft()
        if not _make_directory(folder, _locate_in_upper(folder, root, upper)):
            continue
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield depth, entry
                if entry.is_dir(follow_symlinks=False) and entry.path not in seen and not os.path.ismount(entry.path):
                    seen.add(entry.path)
                    pending.append((depth + 1, entry.path))


def _make_parents(root: str, upper: str, place: str) -> None:
    for folder in reversed([place, *map(str, Path(place).parents)]):
        if is_below(folder, root):
            _make_directory(folder, _locate_in_upper(folder, root, upper))


def _make_directory(folder: str, copy: str) -> bool:
    """Make the copy of a directory with the access that the user has to it, and return whether it exists."""
    try:
        found = Path(folder).stat()
        Path(copy).mkdir(mode=0o700, exist_ok=True)
        own = sum(bit for right, bit in ((os.R_OK, 4), (os.W_OK, 2), (os.X_OK, 1)) if os.access(folder, right))
        Path(copy).chmod((found.st_mode & 0o077) | own << 6)
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    except OSError:
        return False
    return True


def _locate_in_upper(path: str, root: str, upper: str) -> str:
    return os.path.normpath(f"{upper}/{path[len(root) :]}")


def _is_mapped(found: os.stat_result) -> bool:
    return (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
