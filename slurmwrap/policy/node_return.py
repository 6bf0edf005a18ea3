"""What speaks for the return of a drained node, and which nodes NVML wants rebooted. Pure; times in Unix seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurmwrap.diagnosis.xid import RECOVERY_ACTION_CHANGED, get_action, parse_xids
from slurmwrap.model.cluster import Node, Reservation
from slurmwrap.model.hostlist import fold
from slurmwrap.policy.node_history import NodeCheck, NodeHistory, Removal
from slurmwrap.policy.strikes import is_drained_by_slurmwrap

# Beginning of the name of the reservation in which a node is checked.
CHECK_RESERVATION = "slurmwrap_check_"
# How diagnosis.node_facts describes a GPU that needs a reboot by NVML.
_NVML_REBOOT = re.compile(r"asks? for recovery action (?:node_reboot|system_reboot)\b")


def list_nodes_in_check(reservations: Iterable[Reservation]) -> frozenset[str]:
    """Return the nodes that are being checked. Their drain may be lifted for the time of the check."""
    own = (one for one in reservations if one.name.startswith(CHECK_RESERVATION))
    return frozenset(node for one in own for node in one.nodes)


def get_newest_checks(checks: Iterable[NodeCheck]) -> dict[str, NodeCheck]:
    """Return the newest check of each node."""
    return {check.node: check for check in sorted(checks, key=lambda check: check.at)}


def list_rebooted_drains(
    nodes: Iterable[Node],
    removals: Iterable[Removal],
    boot_times: Mapping[str, float],
    checks: Mapping[str, NodeCheck],
) -> tuple[str, ...]:
    """Return the nodes with a drain of slurmwrap's that were rebooted since, and not checked after that.

    `removals`: those that have not ended. `boot_times`: node -> when it was booted, as its slurmd reports. A node whose
    drain was first seen after the reboot is left out.
    """
    began = {one.node: one.began for one in removals if one.ours and one.ended is None}
    return tuple(
        node.name
        for node in nodes
        if is_drained_by_slurmwrap(node)
        and node.name in began
        and boot_times.get(node.name, 0.0) > began[node.name]
        and (node.name not in checks or checks[node.name].at < boot_times[node.name])
    )


def list_reboots_due(
    history: NodeHistory, checks: Mapping[str, NodeCheck], boot_times: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the nodes of which NVML said that they must be rebooted, and that were not rebooted or repaired since."""
    said: dict[str, float] = {}
    for node, at, text in (
        *((s.node, s.at, s.text) for s in history.strikes if s.cleared_at is None),
        *((fault.node, fault.at, fault.text) for fault in history.gpu_faults),
    ):
        if _says_reboot(text):
            said[node] = max(at, said.get(node, 0.0))
    said |= {node: check.at for node, check in checks.items() if check.reboot}
    over = {repair.node: repair.at for repair in sorted(history.repairs, key=lambda one: one.at)}
    passed = {node: check.at for node, check in checks.items() if check.passed}
    return tuple(
        sorted(
            node
            for node, at in said.items()
            if at > max(over.get(node, 0.0), passed.get(node, 0.0), boot_times.get(node, 0.0))
        )
    )


def _says_reboot(text: str) -> bool:
    """Return whether NVML's recovery action, or Xid 154 which repeats it, is a reboot of the node."""
    changes = (event for event in parse_xids([text]) if event.code == RECOVERY_ACTION_CHANGED)
    return bool(_NVML_REBOOT.search(text)) or any(get_action(event) == "REBOOT" for event in changes)


def format_advice(rebooted: Iterable[str], reboots: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each kind of advice, with the command to run."""
    lines = []
    if names := fold(sorted(rebooted)):
        lines.append(f"{names}: rebooted since slurmwrap's drain; next: slurmwrap nodes repaired '{names}' --resume")
    if names := fold(sorted(reboots)):
        command = f"scontrol reboot ASAP nextstate=RESUME reason=\"slurmwrap: NVML asks for a reboot\" '{names}'"
        lines.append(f"{names}: NVML asks for a reboot; next: {command}")
    return tuple(lines)
