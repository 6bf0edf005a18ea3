"""Turns what worker.py tells of nodes and partitions into the records that the commands give. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmwrap.model.node import Node, Partition
from slurmwrap.slurm.scontrol_parser import parse_gres, parse_gres_used, parse_state

Told = Mapping[str, Any]


def node_from_worker(told: Told) -> Node:
    """One node. KeyError or TypeError where it is not what PySlurm 22.5 tells."""
    cpus, busy = told["effective_cpus"] or told["total_cpus"], told["allocated_cpus"]
    state, flags = parse_state(told["state"])
    if state in ("IDLE", "ALLOCATED") and 0 < busy < cpus:
        state = "MIXED"  # as scontrol says it; PySlurm asks without SHOW_MIXED
    gpus, gpu_type, gpu_sockets = parse_gres(told["gres"])
    gpus_used, gpus_used_at = parse_gres_used(told["gres_used"])
    return Node(
        name=told["name"],
        state=state,
        flags=flags,
        cpus=cpus,
        cpus_alloc=busy,
        mem_mib=(told["real_memory"] or 0) - (told["memory_reserved_for_system"] or 0),
        mem_alloc_mib=told["allocated_memory"] or 0,
        gpus=gpus,
        gpus_used=gpus_used,
        gpu_type=gpu_type,
        partitions=tuple(told["partitions"]),
        features=tuple(told["active_features"]),
        sockets=told["sockets"] or 1,
        gpu_sockets=gpu_sockets,
        gpus_used_at=gpus_used_at,
        weight=1 if told["weight"] is None else told["weight"],
        address=told["address"] or "",
        reason=_format_reason(told),
    )


def _format_reason(told: Told) -> str:
    """With who set it and when, as scontrol adds it."""
    if not told["reason"]:
        return ""
    return f"{told['reason']} [{told['reason_user']}@{told['reason_time']}]" if told["reason_time"] else told["reason"]


def partition_from_worker(told: Told) -> Partition:
    """One partition of a release before 25.05, from when on it may name a topology that PySlurm does not tell."""
    return Partition(
        name=told["name"],
        default=told["is_default"],
        max_nodes=_limit(told["max_nodes"]),
        max_cpus_per_node=_limit(told["max_cpus_per_node"]),
        max_mem_mib_per_node=_limit(told["max_memory_per_node"]),
        max_mem_mib_per_cpu=_limit(told["max_memory_per_cpu"]),
        max_time_s=None if (minutes := _limit(told["max_time"])) is None else minutes * 60,
        min_nodes=max(1, _limit(told["min_nodes"]) or 0),
        exclusive=told["oversubscribe"] == "EXCLUSIVE",
        qos=told["qos"] or "",
        state=told["state"] or "UP",
        total_nodes=_limit(told.get("total_nodes")),
    )


def _limit(value: Any) -> int | None:
    """None for "UNLIMITED", for nothing said, and for 0 as scontrol's reader takes it."""
    return value if isinstance(value, int) and value else None
