"""Create, list and remove the lab's cgroups below the v1 controllers with which Slurm constrains jobs (adapter)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

# freezer is used by proctrack/cgroup, memory and devices by task/cgroup. A lab constrains nothing else.
CONTROLLERS = ("freezer", "memory", "devices")


def mountpoints(mounts_text: str) -> dict[str, Path]:
    """Return controller -> mount point from the text of /proc/mounts; v1 only."""
    found: dict[str, Path] = {}
    for line in mounts_text.splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] == "cgroup":
            for controller in set(fields[3].split(",")) & set(CONTROLLERS):
                found.setdefault(controller, Path(fields[1]))
    return found


def lab_groups(name: str) -> dict[Path, Path]:
    """Return mount point -> the lab's directory in it (which may not exist), for every mounted controller."""
    mounts = mountpoints(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
    return {mount: mount / name for mount in sorted(set(mounts.values()))}


def why_not(name: str) -> str:
    """Create and remove the lab's groups as a test. Return the reason when that fails, else ""."""
    mounts = mountpoints(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
    missing = [controller for controller in CONTROLLERS if controller not in mounts]
    if missing:
        return f"cgroup v1 controller '{missing[0]}' is not mounted (the lab does not use cgroup v2)"
    try:
        create(name)
        remove(name)
    except OSError as error:
        return f"cannot create a cgroup: {error.strerror or error}: {error.filename}"
    return ""


def create(name: str) -> None:
    """Create the lab's group in each controller."""
    for group in lab_groups(name).values():
        group.mkdir(exist_ok=True)


def members(name: str) -> Iterator[int]:
    """Yield the processes in the lab's groups and all groups below. Thaw them, so that they receive signals."""
    for group in lab_groups(name).values():
        for directory in _tree(group):
            with contextlib.suppress(OSError):
                (directory / "freezer.state").write_text("THAWED", encoding="ascii")
            with contextlib.suppress(OSError):
                yield from map(int, (directory / "cgroup.procs").read_text(encoding="ascii").split())


def remove(name: str, patience_s: float = 3.0) -> None:
    """Remove the lab's groups, which must have no processes.

    Raise OSError when one is still busy after `patience_s`.
    """
    for group in lab_groups(name).values():
        deadline = time.monotonic() + patience_s
        while True:
            try:
                for directory in _tree(group):
                    directory.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                # EBUSY: the kernel has not removed the last process yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _tree(group: Path) -> list[Path]:
    """Return the group and all groups below it, deepest first."""
    if not group.is_dir():
        return []
    below = [child for entry in group.iterdir() if entry.is_dir() for child in _tree(entry)]
    return [*below, group]
