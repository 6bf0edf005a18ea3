"""What `hooks uninstall` asks of Slurm and of the nodes before a file goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurmwrap.errors import SlurmError, SlurmwrapError
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install.compose_hooks import PROGRAMS
from slurmwrap.install.copy_to_nodes import STILL_NAMED, NodePayload, NodeResult, send
from slurmwrap.install.uninstall import NODE_KINDS
from slurmwrap.install.workflow import ALL, NONE, InstallContext, all_nodes, settled_nodes
from slurmwrap.model import hostlist


def refuse_in_force(where: InstallContext) -> None:
    """SlurmwrapError while slurmctld still names hooks of slurmwrap's: a node whose hook's file is gone is drained."""
    if where.manifest is None or not where.system.alive:
        return
    try:
        told = where.slurm.config()
    except SlurmError:
        return  # without slurmctld no hook is started, and when it starts it reads slurm.conf
    ours = f"{where.manifest.settings['directory']}/"
    named = [f"{key}={value}" for key, value in told.items() if key in PROGRAMS and ours in value]
    if named:
        raise SlurmwrapError(
            f"slurmctld still has {', '.join(named)} in force: no file was removed",
            hint="Run `scontrol reconfigure`, then this again.",
        )


def refuse_named(sent: Iterable[NodeResult]) -> None:
    """SlurmwrapError while a node's own slurm.conf names hooks of ours: it may share this disk, and lose them."""
    names = [one.node for one in sent if one.reason == STILL_NAMED]
    if names:
        raise SlurmwrapError(
            f"{hostlist.fold(names)}: a slurm.conf of its own names the hooks: nothing was removed on this machine",
            hint="Bring the restored slurm.conf there, run `scontrol reconfigure`, then this again.",
        )


def left_behind(where: InstallContext) -> str:
    """What files do that stay on a node."""
    copies = [one.path for one in where.manifest.files if one.kind == "copy"] if where.manifest else []
    if copies:  # the site's own pattern in slurm.conf still names them
        return f"Slurm still runs {', '.join(copies)} there, which records and exits 0"
    return "Nothing runs them any more"


def take_from_nodes(where: InstallContext, asked: str, patience_s: float) -> tuple[NodeResult, ...]:
    """Removes the nodes' files, by the same kind of job: none as long as one node's slurm.conf names them, since nodes
    may share a disk."""
    manifest = where.manifest
    if manifest is None or asked == NONE or not where.system.alive:
        return ()
    names = hostlist.expand(asked) if asked not in ("", ALL) else tuple(manifest.nodes)
    kinds = [one for one in manifest.files if one.kind in NODE_KINDS]
    files = tuple((Path(one.path), 0o644, b"") for one in kinds)
    if not names or not files:
        return ()
    shipment = NodePayload(files=files, python=str(manifest.settings["python"]))
    nodes = settled_nodes(where, names) or all_nodes(where)
    clock = SystemClock()
    asked_first = send(names, nodes, shipment, where.slurm, clock, action="free", patience_s=patience_s)
    free = [one.node for one in asked_first if not one.reason]
    if any(one.reason == STILL_NAMED for one in asked_first):
        return asked_first
    sent = send(free, nodes, shipment, where.slurm, clock, action="take", patience_s=patience_s)
    return (*sent, *(one for one in asked_first if one.reason))
