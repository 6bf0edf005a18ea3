"""Takes a lab down: no process, mount, cgroup or file of it is left, whatever state it was in."""

from __future__ import annotations

import os
import shutil

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, lab_cgroups
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_state import locked, read_state


def down(layout: LabDirectories) -> int:
    """Ends every process of the lab (running jobs too) and removes its directory; returns how many processes ended.
    LabError when there is no lab here, or it is another account's."""
    state = read_state(layout)
    if state is None:
        raise LabError(f"there is no lab in {layout.root}", hint="--dir names the directory given to `lab up`")
    if layout.state_file.stat().st_uid != os.geteuid() != 0:
        raise LabError(f"the lab in {layout.root} belongs to another account", hint="use the one that started it")
    with locked(layout):
        return sweep(layout)


def sweep(layout: LabDirectories, *, keep_root: bool = False) -> int:
    """Ends and removes everything of this lab. The directory must be known to be a lab."""
    ended = daemons.kill_all(layout)
    try:
        lab_cgroups.remove(layout.cgroup_name)
        for entry in list(layout.root.iterdir()):
            if entry != layout.state_file:  # last: without it the rest could no longer be told from foreign files
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        layout.state_file.unlink(missing_ok=True)
        if not keep_root:
            layout.root.rmdir()
    except OSError as error:
        raise LabError(
            f"cannot remove {error.filename}: {error.strerror}", hint="remove the cause, then again"
        ) from error
    return ended
