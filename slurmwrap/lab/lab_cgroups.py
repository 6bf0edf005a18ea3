"""Edge: the lab's own groups below the cgroup v1 controllers that Slurm constrains jobs with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

# freezer: proctrack/cgroup; memory and devices: task/cgroup. Others are not constrained in a lab.
CONTROLLERS = ("freezer", "memory", "devices")


def mountpoints(mounts_text: str) -> dict[str, Path]:
    """Controller -> where it is mounted, from the text of /proc/mounts; v1 only."""
    found: dict[str, Path] = {}
    for line in mounts_text.splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] == "cgroup":
            for controller in set(fields[3].split(",")) & set(CONTROLLERS):
                found.setdefault(controller, Path(fields[1]))
    return found


def lab_groups(name: str) -> dict[Path, Path]:
    """Mount point -> the lab's directory in it (which need not exist), of every controller mounted."""
    mounts = mountpoints(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
    return {mount: mount / name for mount in sorted(set(mounts.values()))}


def why_not(name: str) -> str:
    """Tries to make and remove the lab's groups; the reason when that fails, else ""."""
    mounts = mountpoints(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
    missing = [controller for controller in CONTROLLERS if controller not in mounts]
    if missing:
        return f"cgroup v1 controller '{missing[0]}' is not mounted (the lab does not use cgroup v2)"
    try:
        create(name)
        remove(name)
    except OSError as error:
        return f"cannot make a cgroup: {error.strerror or error}: {error.filename}"
    return ""


def create(name: str) -> None:
    """Makes the lab's group in each controller."""
    for group in lab_groups(name).values():
        group.mkdir(exist_ok=True)


def members(name: str) -> Iterator[int]:
    """Processes anywhere below the lab's groups. Thaws them, so that a signal reaches them."""
    for group in lab_groups(name).values():
        for directory in _tree(group):
            with contextlib.suppress(OSError):
                (directory / "freezer.state").write_text("THAWED", encoding="ascii")
            with contextlib.suppress(OSError):
                yield from map(int, (directory / "cgroup.procs").read_text(encoding="ascii").split())


def remove(name: str, patience_s: float = 3.0) -> None:
    """Removes the lab's groups, which must be empty of processes. OSError when one stays busy."""
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
                # EBUSY: the kernel still buries the last member.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _tree(group: Path) -> list[Path]:
    """The group and all groups below, deepest first."""
    if not group.is_dir():
        return []
    below = [child for entry in group.iterdir() if entry.is_dir() for child in _tree(entry)]
    return [*below, group]
