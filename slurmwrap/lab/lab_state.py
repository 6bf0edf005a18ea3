"""Edge: D/lab.json, by which a directory is known as a lab, and the lock that lets one command at a time change it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, lab_cgroups
from slurmwrap.lab.daemons import Daemon, alive
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import LabSpec
from slurmwrap.lab.render_slurm_conf import Means

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabState:
    """What was asked, what the machine gave, what was started, and what people should know."""

    spec: LabSpec
    means: Means
    daemons: tuple[Daemon, ...] = ()
    notes: tuple[str, ...] = ()
    # `up` saw every node idle
    ready: bool = False

    @property
    def running(self) -> bool:
        """Whether its controller lives: then the lab is up, however damaged."""
        return any(daemon.name == "slurmctld" and alive(daemon) for daemon in self.daemons)


def read_state(layout: LabDirectories) -> LabState | None:
    """The lab of this directory; None when there is none (no directory, or an empty one). LabError when it holds
    something else: it is never touched."""
    try:
        text = layout.state_file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        _refuse_foreign(layout)
        return None
    except OSError as error:
        raise LabError(f"{layout.state_file}: {error.strerror}", hint="use the account that started the lab") from error
    try:
        return _from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{layout.state_file} is not a lab's state: {error}", hint="choose another --dir, or look and remove it"
        ) from error


def write_state(layout: LabDirectories, state: LabState) -> None:
    """Replaces D/lab.json in one step."""
    data = {"version": VERSION, **asdict(state), "spec": {**asdict(state.spec), "directory": str(state.spec.directory)}}
    aside = layout.state_file.with_suffix(".tmp")
    aside.write_text(json.dumps(data, indent=1), encoding="utf-8")
    aside.replace(layout.state_file)


def with_daemon(layout: LabDirectories, state: LabState, daemon: Daemon) -> LabState:
    """`state` with one more daemon, written down."""
    state = replace(state, daemons=(*state.daemons, daemon))
    write_state(layout, state)
    return state


@contextlib.contextmanager
def locked(layout: LabDirectories) -> Iterator[None]:
    """Holds the lab's directory, which must exist. LabError when another command is changing it."""
    try:
        handle = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"{layout.root}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LabError(f"another lab command is at work on {layout.root}", hint="wait for it") from None
    finally:
        os.close(handle)


def _refuse_foreign(layout: LabDirectories) -> None:
    try:
        foreign = sorted(os.listdir(layout.root))  # noqa: PTH208
    except FileNotFoundError:
        return
    except OSError as error:
        raise LabError(f"{layout.root}: {error.strerror}", hint="choose another --dir") from error
    foreign = [name for name in foreign if name != layout.state_file.with_suffix(".tmp").name]
    if foreign:
        raise LabError(
            f"{layout.root} is not a lab and not empty: it holds '{foreign[0]}'", hint="choose another --dir"
        )


def _from_json(data: dict[str, Any]) -> LabState:
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']}")
    means = {**data["means"], "release": tuple(data["means"]["release"])}
    return LabState(
        spec=LabSpec(**{**data["spec"], "directory": Path(data["spec"]["directory"])}),
        means=Means(**means),
        daemons=tuple(Daemon(**daemon) for daemon in data["daemons"]),
        notes=tuple(data["notes"]),
        ready=data["ready"],
    )


# Takes a lab down: no process, mount, cgroup or file of it is left, whatever state it was in.
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
            # Last: without it the rest would look like foreign files.
            if entry != layout.state_file:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        layout.state_file.unlink(missing_ok=True)
        if not keep_root:
            layout.root.rmdir()
    except OSError as error:
        raise LabError(
            f"cannot remove {error.filename}: {error.strerror}", hint="remove the cause, then again"
        ) from error
    return ended
