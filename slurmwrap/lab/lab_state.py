"""Read, write, lock, show and remove the state of a lab: D/lab.json, its daemons and its nodes (adapter)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, lab_cgroups, machine
from slurmwrap.lab.daemons import Daemon, alive
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import ACCOUNT, LabSpec, gpu_bus_id
from slurmwrap.lab.render_slurm_conf import PRERUN_PARTITION, Means, enforcement

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabState:
    """The state of a lab: its specification, the machine's means, the daemons started, and notes for users."""

    spec: LabSpec
    means: Means
    daemons: tuple[Daemon, ...] = ()
    notes: tuple[str, ...] = ()
    # All nodes were idle at the end of `lab up`.
    ready: bool = False

    @property
    def running(self) -> bool:
        """Whether slurmctld runs; other daemons may have ended."""
        return any(daemon.name == "slurmctld" and alive(daemon) for daemon in self.daemons)


def read_state(layout: LabDirectories) -> LabState | None:
    """Return the lab of this directory; None when the directory is missing or empty.

    Raise LabError when it contains something else, which is never changed.
    """
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
    """Replace D/lab.json atomically."""
    data = {"version": VERSION, **asdict(state), "spec": {**asdict(state.spec), "directory": str(state.spec.directory)}}
    aside = layout.state_file.with_suffix(".tmp")
    aside.write_text(json.dumps(data, indent=1), encoding="utf-8")
    aside.replace(layout.state_file)


def with_daemon(layout: LabDirectories, state: LabState, daemon: Daemon) -> LabState:
    """Return `state` with one more daemon, after writing it to D/lab.json."""
    state = replace(state, daemons=(*state.daemons, daemon))
    write_state(layout, state)
    return state


@contextlib.contextmanager
def locked(layout: LabDirectories) -> Iterator[None]:
    """Lock the lab's directory, which must exist. Raise LabError when another command is changing the lab."""
    try:
        handle = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"{layout.root}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LabError(f"another lab command is changing {layout.root}", hint="wait until it has ended") from None
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
        spec=LabSpec(
            **{
                **data["spec"],
                "directory": Path(data["spec"]["directory"]),
                "act": tuple(data["spec"].get("act", ())),
            }
        ),
        means=Means(**means),
        daemons=tuple(Daemon(**daemon) for daemon in data["daemons"]),
        notes=tuple(data["notes"]),
        ready=data["ready"],
    )


def down(layout: LabDirectories) -> int:
    """End every process of the lab, running jobs included, and remove its directory. Return the number of processes.

    No process, mount, cgroup or file of the lab remains, whatever its state was. Raise LabError when the directory is
    not a lab or belongs to another account.
    """
    state = read_state(layout)
    if state is None:
        raise LabError(f"there is no lab in {layout.root}", hint="--dir names the directory given to `lab up`")
    if layout.state_file.stat().st_uid != os.geteuid() != 0:
        raise LabError(f"the lab in {layout.root} belongs to another account", hint="use the one that started it")
    with locked(layout):
        return sweep(layout)


def sweep(layout: LabDirectories, *, keep_root: bool = False) -> int:
    """End all processes and remove all files of this lab. The caller must have checked that the directory is a lab."""
    ended = daemons.kill_all(layout)
    try:
        lab_cgroups.remove(layout.cgroup_name)
        for entry in list(layout.root.iterdir()):
            # This file is removed last: without it, the directory would no longer count as a lab.
            if entry != layout.state_file:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        layout.state_file.unlink(missing_ok=True)
        if not keep_root:
            layout.root.rmdir()
    except OSError as error:
        raise LabError(
            f"cannot remove {error.filename}: {error.strerror}", hint="remove the cause, then try again"
        ) from error
    return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """The present status of a lab. `states`: Slurm's state per node ("idle", "drained"); {} without a controller."""

    state: LabState
    states: dict[str, str]
    # Daemons that were started and have ended.
    dead: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        """Return the status as a JSON object."""
        spec, layout = self.state.spec, LabDirectories(self.state.spec.directory)
        return {
            "directory": str(spec.directory),
            "running": self.state.running and self.state.ready,
            "slurm": "{}.{:02}".format(*self.state.means.release),
            "cluster": spec.cluster,
            "slurm_user": spec.slurm_user,
            "ports": {
                "slurmctld": spec.controller_port,
                "slurmd": list(spec.node_ports),
                **({"slurmdbd": spec.accounting_port} if spec.accounting else {}),
            },
            "partitions": ["gpu", PRERUN_PARTITION],
            "nodes": [{"name": name, "state": self.states.get(name, "unknown")} for name in spec.node_names],
            "node": {"gpus": spec.gpus, "gpu_type": spec.gpu_type, "cpus": spec.cpus, "mem_mib": spec.mem_mib},
            "gpu_bus_ids": [gpu_bus_id(index) for index in range(spec.gpus)],
            "switches": {switch: list(members) for switch, members in spec.leaves},
            "daemons": [
                {"name": d.name, "pid": d.pid, "alive": d.name not in self.dead, "log": str(layout.log(d.name))}
                for d in self.state.daemons
            ],
            "enforced": enforcement(self.state.means),
            "notes": list(self.state.notes),
            "environment": exports(layout),
        }


def status(layout: LabDirectories) -> LabStatus:
    """Return the present status. Raise LabError when there is no lab in the directory."""
    state = read_state(layout)
    if state is None:
        raise LabError(
            f"there is no lab in {layout.root}", hint="`slurmwrap lab up` starts one; --dir names another directory"
        )
    dead = tuple(daemon.name for daemon in state.daemons if not alive(daemon))
    return LabStatus(state=state, states=_node_states(layout) if state.running else {}, dead=dead)


def text(status: LabStatus) -> str:
    """Return the status as text."""
    plain = status.to_plain()
    spec = status.state.spec
    names = spec.node_names
    lines = [
        f"Lab in {spec.directory}: {'running' if plain['running'] else 'NOT running'}, Slurm {plain['slurm']}",
        f"  nodes     {_count_states(status)}: {names[0]} to {names[-1]}, leaf switches: {len(spec.leaves)}",
        f"  each      {spec.gpus} {spec.gpu_type} GPUs, {spec.cpus} CPUs, {spec.mem_mib} MiB",
        f"  cluster   {spec.cluster}",
        f"  accounts  slurmctld runs as {spec.slurm_user}; ports {spec.base_port}-{spec.ports[-1]}",
        *([f"  limits    enforced (slurmdbd); all users are in the account '{ACCOUNT}'"] if spec.accounting else []),
        *(f"  enforced  {what}: {how}" for what, how in plain["enforced"].items()),
        *(f"  note      {note}" for note in status.state.notes),
        *(f"  DEAD      {name}; its log was {LabDirectories(spec.directory).log(name)}" for name in status.dead),
    ]
    return "\n".join(lines)


def environment_lines(layout: LabDirectories, path: str) -> list[str]:
    """Return `export ...` lines for a POSIX shell. PATH is set only if gsub is not in `path`, the caller's PATH."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports(layout).items()]
    programs = Path(sys.executable).parent
    if shutil.which("gsub", path=path) is None and (programs / "gsub").exists():
        lines.append(f'export PATH={shlex.quote(str(programs))}:"$PATH"')
    return lines


def append_kernel_line(layout: LabDirectories, node: str, line: str) -> None:
    """Add a line to the node's simulated kernel log. Raise LabError for an unknown node or more than one line."""
    state = read_state(layout)
    if state is None:
        raise LabError(f"there is no lab in {layout.root}", hint="`slurmwrap lab up` starts one")
    if node not in state.spec.node_names:
        raise LabError(f"the lab has no node '{node}'", hint=f"its nodes are {', '.join(state.spec.node_names)}")
    if "\n" in line or "\0" in line:
        raise LabError("a kernel log line is one line")
    try:
        handle = os.open(layout.kernel_log(node), os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        raise LabError(
            f"{layout.kernel_log(node)}: {error.strerror}", hint="use the account that started it"
        ) from error
    with os.fdopen(handle, "ab") as log:
        log.write(line.encode("utf-8", "surrogateescape") + b"\n")


def _count_states(status: LabStatus) -> str:
    states = [status.states.get(name, "unknown") for name in status.state.spec.node_names]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


def _node_states(layout: LabDirectories) -> dict[str, str]:
    argv = [machine.program("sinfo"), "-h", "-N", "-p", "gpu", "-o", "%N %T"]
    rows = machine.output(argv, environ=exports(layout)).splitlines()
    return {row.split()[0]: row.split()[1] for row in rows if len(row.split()) == 2}
