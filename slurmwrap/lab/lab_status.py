"""Reads what a lab is doing now: D/lab.json, /proc and one sinfo -> LabStatus."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmwrap.errors import LabError
from slurmwrap.lab import machine
from slurmwrap.lab.daemons import alive
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import ACCOUNT, gpu_bus_id
from slurmwrap.lab.lab_state import LabState, read_state
from slurmwrap.lab.render_slurm_conf import PRERUN_PARTITION, enforcement


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """A lab at one moment. `states`: Slurm's record per node ("idle", "drained", ...; none without a controller)."""

    state: LabState
    states: dict[str, str]
    # Daemons that were started and are gone.
    dead: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        """For --json."""
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
    """LabError when there is no lab in the directory."""
    state = read_state(layout)
    if state is None:
        raise LabError(
            f"there is no lab in {layout.root}", hint="`slurmwrap lab up` starts one; --dir names another place"
        )
    dead = tuple(daemon.name for daemon in state.daemons if not alive(daemon))
    return LabStatus(state=state, states=_node_states(layout) if state.running else {}, dead=dead)


def text(status: LabStatus) -> str:
    """For people."""
    plain = status.to_plain()
    spec = status.state.spec
    names = spec.node_names
    lines = [
        f"Lab in {spec.directory}: {'running' if plain['running'] else 'NOT running'}, Slurm {plain['slurm']}",
        f"  nodes     {_counted(status)}: {names[0]} to {names[-1]}, leaf switches: {len(spec.leaves)}",
        f"  each      {spec.gpus} {spec.gpu_type} GPUs, {spec.cpus} CPUs, {spec.mem_mib} MiB",
        f"  cluster   {spec.cluster}",
        f"  accounts  slurmctld runs as {spec.slurm_user}; ports {spec.base_port}-{spec.ports[-1]}",
        *([f"  limits    enforced (slurmdbd); everybody is in the account '{ACCOUNT}'"] if spec.accounting else []),
        *(f"  enforced  {what}: {how}" for what, how in plain["enforced"].items()),
        *(f"  note      {note}" for note in status.state.notes),
        *(f"  DEAD      {name}; its log was {LabDirectories(spec.directory).log(name)}" for name in status.dead),
    ]
    return "\n".join(lines)


def environment_lines(layout: LabDirectories, path: str) -> list[str]:
    """`export ...` lines for a POSIX shell; PATH only where `path` (the caller's PATH) does not lead to gsub."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports(layout).items()]
    programs = Path(sys.executable).parent
    if shutil.which("gsub", path=path) is None and (programs / "gsub").exists():
        lines.append(f'export PATH={shlex.quote(str(programs))}:"$PATH"')
    return lines


def append_kernel_line(layout: LabDirectories, node: str, line: str) -> None:
    """Adds a line to the node's simulated kernel log. LabError for an unknown node or more than one line."""
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


def _counted(status: LabStatus) -> str:
    words = [status.states.get(name, "unknown") for name in status.state.spec.node_names]
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


def _node_states(layout: LabDirectories) -> dict[str, str]:
    argv = [machine.program("sinfo"), "-h", "-N", "-p", "gpu", "-o", "%N %T"]
    rows = machine.output(argv, environ=exports(layout)).splitlines()
    return {row.split()[0]: row.split()[1] for row in rows if len(row.split()) == 2}
