"""Estimate the size of the data that a trial began to read, from the files that it opened (adapter: the file system).

A trial sees a small part of an epoch. So files count that are not open yet but evidently belong to the data: names that
differ from an opened one by their digits only, and files with the same ending in directories that the program listed,
beside or equal to the directory of an opened one (a directory per class). Sizes of many files are those of a sample.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.inputs.opened_files import OpenedFiles

_MIB = 1 << 20
# Files whose size is read of each group; the mean of these stands for the others.
SAMPLED = 256
# Names and seconds after which the search is given up: then the size is not known.
MOST_NAMES, MOST_S = 3_000_000, 2.0
# Weights and states, which are read once.
_NO_DATA = (".safetensors", ".ckpt", ".pth", ".onnx", ".gguf", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".md")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFiles:
    """`mib`: size of all files of the data, None if there are too many; `largest`: one of the largest group of them."""

    mib: float | None
    largest: str


def measure_dataset_files(opened: OpenedFiles, clock: Callable[[], float]) -> DatasetFiles | None:
    """Return the estimate; None if the trial opened no data. Files that cannot be read do not count."""
    until, names = clock() + MOST_S, 0
    groups: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path in opened.files:
        if not path.endswith(_NO_DATA):
            groups[os.path.dirname(path), os.path.splitext(path)[1]].add(os.path.basename(path))  # noqa: PTH119, PTH120, PTH122
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for folder in opened.directories:
        listed[os.path.dirname(folder)].add(folder)  # noqa: PTH120
    found: dict[tuple[str, str], set[str]] = {}
    for (folder, ending), known in groups.items():
        patterns = {_DIGITS.sub("#", name) for name in known if _DIGITS.search(name)}
        siblings = listed.get(os.path.dirname(folder), set())  # noqa: PTH120
        for each in {folder, *(siblings if folder in siblings else ())}:
            if (each, ending) in found and each != folder:
                continue
            whole = each in siblings
            here = [name for name in _list_names(each) if name.endswith(ending)]
            names += len(here)
            if names > MOST_NAMES or clock() > until:
                return DatasetFiles(mib=None, largest=next(iter(opened.files)))
            wanted = {name for name in here if whole or _DIGITS.sub("#", name) in patterns}
            found.setdefault((each, ending), set()).update(wanted, known if each == folder else ())
    sizes: dict[str, float] = {}
    for (folder, _), members in found.items():
        mean = _measure_mean(f"{folder}/{name}" for name in sorted(members)[:: max(1, len(members) // SAMPLED)])
        if clock() > until:
            return DatasetFiles(mib=None, largest=next(iter(opened.files)))
        if members:
            sizes[f"{folder}/{min(members)}"] = mean * len(members)
    total = sum(sizes.values())
    return DatasetFiles(mib=round(total / _MIB, 3), largest=max(sizes, key=sizes.__getitem__)) if total else None


def _list_names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208
    return []


def _measure_mean(paths: Iterable[str]) -> float:
    sizes = []
    for path in paths:
        with suppress(OSError):
            state = os.stat(path)  # noqa: PTH116
            sizes += [state.st_size] if stat.S_ISREG(state.st_mode) else []
    return sum(sizes) / len(sizes) if sizes else 0.0


def find_mount(path: str) -> str:
    """Return the mount point of an absolute path that was read; "/" if it is on the root file system."""
    while path != "/" and not os.path.ismount(path):
        path = os.path.dirname(path)  # noqa: PTH120
    return path


# File systems without a block device that are still the node's own.
_LOCAL_TYPES = (b"tmpfs", b"ramfs", b"overlay", b"zfs")


def is_local_mount(mount: str) -> bool:
    """Return whether a mount point is of a block device or of memory, by /proc/self/mounts (fstab(5))."""
    with suppress(OSError):
        for line in reversed(Path("/proc/self/mounts").read_bytes().splitlines()):
            device, point, kind = (*line.split(b" "), b"", b"")[:3]
            if point == os.fsencode(mount):
                return device.startswith(b"/dev/") or kind in _LOCAL_TYPES
    return False
