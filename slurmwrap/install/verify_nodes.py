"""Which nodes read a slurm.conf that names the hooks: one with a copy of its own may not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurmwrap.console import Console
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install.check_installation import FAIL, OK, WARN, InstallationCheck
from slurmwrap.install.compose_hooks import select_node_lines
from slurmwrap.install.copy_to_nodes import NOT_SEEN, NodePayload, NodeResult, group_by_reason, send
from slurmwrap.install.manifest import Manifest
from slurmwrap.install.plan_installation import InstallationPlan
from slurmwrap.install.workflow import ALL, NONE, InstallContext, all_nodes, settled_nodes
from slurmwrap.model import hostlist

LOOK_S = 60.0
TO_NODES = "Bring slurm.conf there, run `scontrol reconfigure`, then: slurmwrap hooks check --nodes all"


def look_at_nodes(
    where: InstallContext, manifest: Manifest, names: Sequence[str], patience_s: float
) -> tuple[NodeResult, ...]:
    """Asks each node whether the slurm.conf that its slurmd reads names the hooks; a copy of its own may not."""
    lines = select_node_lines(one.edit for one in manifest.edits)
    if not names or not lines or not where.system.alive:
        return ()
    shipment = NodePayload(files=(), python=str(manifest.settings["python"]), named=lines)
    nodes = settled_nodes(where)
    return send(names, nodes, shipment, where.slurm, SystemClock(), action="look", patience_s=patience_s)


def to_look_at(plan: InstallationPlan, manifest: Manifest, names: Sequence[str]) -> tuple[str, ...]:
    """After an installation: who got files now; where slurm.conf was edited, all who have them."""
    edited = any(one.before != one.after for one in plan.changes)
    return tuple(manifest.nodes) if edited else tuple(name for name in names if name in manifest.nodes)


def nodes_held(where: InstallContext, asked: str, patience_s: float) -> tuple[InstallationCheck, ...]:
    """For `hooks check --nodes`."""
    manifest = where.manifest
    if manifest is None or asked in ("", NONE) or not where.system.alive:
        return ()
    names = tuple(node.name for node in all_nodes(where)) if asked == ALL else hostlist.expand(asked)
    looked = look_at_nodes(where, manifest, names, patience_s)
    found = [_node_held(reason, nodes) for reason, nodes in group_by_reason(looked)]
    seen = [one.node for one in looked if not one.reason]
    return (
        *([InstallationCheck(what="nodes", state=OK, text=f"{hostlist.fold(seen)}: read our lines")] if seen else []),
        *found,
    )


def _node_held(reason: str, names: Sequence[str]) -> InstallationCheck:
    text = f"{hostlist.fold(names)}: {reason}"
    if reason in NOT_SEEN:
        return InstallationCheck(what="nodes", state=FAIL, text=text, hint=TO_NODES)
    return InstallationCheck(what="nodes", state=WARN, text=f"not known of {text}")


def tell_looked(looked: Collection[NodeResult], voice: Console) -> None:
    """One line per reason, with what is to be done."""
    seen = len([one for one in looked if not one.reason])
    if seen:
        voice.say(f"{seen} nodes read the new lines")
    for reason, names in group_by_reason(looked):
        if reason in NOT_SEEN:
            voice.say(f"no hook of ours runs on {hostlist.fold(names)}: {reason}. {TO_NODES}")
        else:
            voice.say(f"not known of {hostlist.fold(names)}: {reason}")
