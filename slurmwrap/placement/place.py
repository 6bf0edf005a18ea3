"""Turns a request, a profile and a snapshot into a PlacementPlan: what to ask Slurm for, with a reason each. Pure.

Only soft wishes: nodes to avoid, a switch to wait for, CPUs and memory. No wish contradicts what the user set, and none
takes away a node without which the job could not run at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurmwrap.cluster.action import DRAIN_PREFIX
from slurmwrap.cluster.hostlist import expand, fold
from slurmwrap.cluster.node import Node, NodeHealth, Partition, Snapshot
from slurmwrap.config import Config
from slurmwrap.job.request import CpuUnit, JobRequest, MemUnit, ResourceShape, Wish
from slurmwrap.placement.allocate import Allocation, allocate, tasks_per_node
from slurmwrap.placement.locality import Choice, choose, largest_leaf, leaf_names
from slurmwrap.placement.plan import Level, PlacementPlan
from slurmwrap.profiling.profile import ResourceProfile

_SIMPLE_FEATURE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# With one of these we cannot tell which nodes may run the job.
_OPAQUE = ("nodelist", "nodefile", "reservation", "contiguous", "cluster-constraint", "batch")
# With one of these a task's CPUs are not what --cpus-per-task alone says.
_CPU_OPAQUE = (
    *("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "mincpus", "overcommit", "hint", "extra-node-info"),
    *("sockets-per-node", "cores-per-socket", "threads-per-core", "core-spec", "thread-spec", "gres-flags"),
)
_RANK = {"lemon": 0, "suspect": 1}  # the order in which the cap is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """The nodes that matter to one request."""

    members: tuple[Node, ...]  # of its partitions
    able: tuple[Node, ...]  # of these, whose size and features allow it; whatever runs there now
    leaf_of: Mapping[str, str]
    count: int  # nodes needed at least
    gpus: int  # on each, at least


def plan(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    health: Sequence[NodeHealth],
    config: Config,
) -> PlacementPlan:
    """What to change about `request`, for cluster and node history as they are. Never raises for a strange request."""
    if request.hetjob or not request.shape.gpus:
        return PlacementPlan()
    field = _field(request, snapshot)
    lines: list[Wish] = []
    avoided: frozenset[str] = frozenset()
    if config.placement.enabled and request.own.place:
        wish, avoided = _exclude(request, field, health, config)
        lines += [wish] if wish else []
        wish = _switches(request, field, avoided, config)
        lines += [wish] if wish else []
    given = Allocation()
    if config.tuning.enabled and request.own.tune and field.able:
        node = _smallest(field, request, snapshot)
        given = allocate(request.shape, profile, node, config)
        if any(request.setting(option) for option in _CPU_OPAQUE):
            given = replace(given, cpus_per_gpu=None)
        lines += _tuned(request.shape, given, node)
    now = _choice_now(request.shape, field, avoided)
    return PlacementPlan(
        lines=tuple(lines),
        node_count=field.count,
        gpus_per_node=request.shape.gpus_per_node,
        candidates=now.nodes,
        switch=now.switch,
        locality="any" if not now.nodes else "spread" if field.count > 1 and not now.switch else "consolidated",
        levels=_levels(lines, config),
        cpus_per_gpu=None if given.cpus_per_gpu is None else ceil(given.cpus_per_gpu),
        mem_mib_per_gpu=given.mem_mib_per_gpu,
        profile_key=profile.key if profile else "",
    )


# ------------------------------------------------------------------------------------------- which nodes


def _field(request: JobRequest, snapshot: Snapshot) -> _Field:
    shape = request.shape
    wanted = set((request.value("partition") or snapshot.default_partition).split(",")) - {""}
    members = tuple(n for n in snapshot.nodes if not wanted or not wanted.isdisjoint(n.partitions))
    biggest = max((node.gpus for node in members), default=0)
    count = shape.nodes or _least_nodes(shape, biggest)
    gpus = shape.gpus_per_node or ceil(shape.gpus / count)
    feature = "" if _complex_feature(request) else request.value("constraint") or ""
    able = tuple(
        node
        for node in members
        if node.gpus >= (shape.gpus_per_node or 1)
        and (not shape.gpu_type or shape.gpu_type in node.gpu_type.split(","))
        and (not feature or feature in node.features)
    )
    return _Field(members=members, able=able, leaf_of=leaf_names(snapshot.topology), count=count, gpus=gpus)


def _least_nodes(shape: ResourceShape, biggest: int) -> int:
    per_node = shape.gpus_per_node or biggest or shape.gpus
    return max(1, ceil(shape.gpus / per_node))


def _choice_now(shape: ResourceShape, field: _Field, avoided: frozenset[str]) -> Choice:
    """Where it would go at this moment, for people: Slurm decides."""
    cpus = (tasks_per_node(shape) or 1) * (shape.cpus or 1) if shape.cpu_unit is not CpuUnit.PER_GPU else 1
    if shape.cpu_unit is CpuUnit.PER_GPU:
        cpus = (shape.cpus or 1) * field.gpus
    memory = (shape.mem_mib or 0) if shape.mem_unit is MemUnit.PER_NODE else 0
    free = [
        node
        for node in field.able
        if node.gpus_free >= field.gpus
        and node.cpus_free >= cpus
        and node.mem_free_mib >= memory
        and node.name not in avoided
        and node.usable
    ]
    return choose(free, field.leaf_of, field.count)


# ------------------------------------------------------------------------------------------- nodes to avoid


def _exclude(
    request: JobRequest, field: _Field, health: Sequence[NodeHealth], config: Config
) -> tuple[Wish | None, frozenset[str]]:
    """The wish and all nodes that are avoided then, the user's own too."""
    own = request.value("exclude") or ""
    if _opaque(request):
        return None, frozenset()
    try:
        if "/" in own:
            raise ValueError("it names a file")
        theirs = frozenset(expand(own))
    except ValueError as error:
        return Wish(option="exclude", value=None, reason=f"your list of nodes is kept as it is: {error}"), frozenset()
    doubtful = _doubtful(field, health, theirs)
    if not doubtful:
        return None, theirs
    chosen = doubtful[: _allowed(field, config)]
    able = {node.name for node in field.able} - theirs
    while chosen and not _enough(request.shape, field, able - {entry.node for entry in chosen}):
        chosen = chosen[:-1]
    if not chosen:
        reason = f"{doubtful[0].node} is {doubtful[0].status}, but placement.exclude_cap or the job's size forbids it"
        return Wish(option="exclude", value=None, reason=reason), theirs
    names = [node.name for node in field.members if node.name in {entry.node for entry in chosen}]
    value = ",".join(part for part in (own.strip(","), fold(names)) if part)
    reasons = "; ".join(f"{entry.node} is {entry.status}: {entry.reason}" for entry in chosen[:3])
    more = f"; and {len(chosen) - 3} more" if len(chosen) > 3 else ""
    return Wish(option="exclude", value=value, reason=reasons + more), theirs | frozenset(names)


def _doubtful(field: _Field, health: Sequence[NodeHealth], settled: frozenset[str]) -> list[NodeHealth]:
    """Worst first, then newest. A drained node needs no wish; what the user named himself is his."""
    able = {node.name for node in field.able}
    found = [h for h in health if h.status in _RANK and h.node in able and h.node not in settled]
    return sorted(found, key=lambda entry: (_RANK[entry.status], -entry.since, entry.node))


def _allowed(field: _Field, config: Config) -> int:
    """The cap counts what we drained already. A small partition may lose one node, never its only one."""
    cap = config.placement.exclude_cap
    total = len(field.members)
    ours = sum("DRAIN" in node.flags and node.reason.startswith(DRAIN_PREFIX) for node in field.members)
    return max(0, max(int(cap * total), 1 if cap > 0 and total > 1 else 0) - ours)


def _enough(shape: ResourceShape, field: _Field, names: set[str]) -> bool:
    """The job could still run, with every node up."""
    return len(names) >= field.count and sum(n.gpus for n in field.able if n.name in names) >= shape.gpus


def _opaque(request: JobRequest) -> bool:
    return any(request.setting(option) for option in _OPAQUE) or _complex_feature(request)


def _complex_feature(request: JobRequest) -> bool:
    feature = request.value("constraint")
    return bool(feature) and not _SIMPLE_FEATURE.fullmatch(feature or "")


# ------------------------------------------------------------------------------------------- one switch


def _switches(request: JobRequest, field: _Field, avoided: frozenset[str], config: Config) -> Wish | None:
    """Soft: Slurm waits this long for one leaf switch, at most max_switch_wait, then takes any nodes."""
    most = max(field.count, request.shape.max_nodes or 0)
    wait = config.placement.switch_wait_s
    if most < 2 or wait <= 0 or request.setting("switches") or _opaque(request):
        return None
    within, leaves = largest_leaf([n for n in field.able if n.name not in avoided], field.leaf_of)
    if leaves < 2 or within < most:
        return None
    return Wish(
        option="switches",
        value=f"1@{wait // 60}:{wait % 60:02d}",
        reason=f"{most} nodes fit under one switch; Slurm waits up to {wait} s for that",
    )


def _levels(lines: Sequence[Wish], config: Config) -> tuple[Level, ...]:
    if not any(wish.option == "switches" and wish.value for wish in lines):
        return (Level(name="any", wait_s=0),)
    wait = config.placement.switch_wait_s
    return (Level(name="fewest nodes, one switch", wait_s=wait), Level(name="any", wait_s=0))


# ------------------------------------------------------------------------------------------- CPUs and memory


def _smallest(field: _Field, request: JobRequest, snapshot: Snapshot) -> Node:
    """What each node that could run the job has, at least: a tuned request must not shut one of them out."""
    wanted = set((request.value("partition") or snapshot.default_partition).split(","))
    limits = [partition for partition in snapshot.partitions if partition.name in wanted]
    cpus = min(node.cpus for node in field.able)
    memory = min(node.mem_mib for node in field.able)
    return replace(
        field.able[0],
        cpus=min([cpus, *(p.max_cpus_per_node for p in limits if p.max_cpus_per_node)]),
        mem_mib=min([memory, *_memory_limits(limits, cpus)]),
        gpus=max(node.gpus for node in field.able),
    )


def _memory_limits(limits: Sequence[Partition], cpus: int) -> list[int]:
    per_node = [partition.max_mem_mib_per_node for partition in limits if partition.max_mem_mib_per_node]
    return per_node + [partition.max_mem_mib_per_cpu * cpus for partition in limits if partition.max_mem_mib_per_cpu]


def _tuned(shape: ResourceShape, given: Allocation, node: Node) -> list[Wish]:
    """In the user's own unit: Slurm's units for one resource exclude each other."""
    wishes = []
    if given.cpus_per_gpu is not None and (cpus := _in_cpu_unit(shape, given.cpus_per_gpu, node.cpus / node.gpus)):
        wishes.append(Wish(option=cpus[0], value=cpus[1], reason=given.cpu_reason))
    if given.mem_mib_per_gpu is not None and (memory := _in_mem_unit(shape, given.mem_mib_per_gpu)):
        wishes.append(Wish(option=memory[0], value=memory[1], reason=given.mem_reason))
    return wishes


def _in_cpu_unit(shape: ResourceShape, per_gpu: float, share: float) -> tuple[str, str] | None:
    """Rounded up to whole CPUs, unless a raise would pass the node's share by that."""
    tasks, gpus = tasks_per_node(shape), shape.gpus_per_node
    if shape.cpu_unit is CpuUnit.PER_GPU:
        tasks = gpus = 1
    if not tasks or not gpus:
        return None
    asked, exact = shape.cpus or 1, per_gpu * gpus / tasks
    value = ceil(exact)
    if value > asked and value * tasks > share * gpus:
        value = int(exact)
    option = "cpus-per-gpu" if shape.cpu_unit is CpuUnit.PER_GPU else "cpus-per-task"
    # rounding may eat the change, never turn it round
    return (option, str(value)) if value >= 1 and (value - asked) * (exact - asked) > 0 else None


def _in_mem_unit(shape: ResourceShape, per_gpu: int) -> tuple[str, str] | None:
    gpus = shape.gpus_per_node or 1
    if shape.mem_unit is MemUnit.PER_GPU:
        return "mem-per-gpu", f"{per_gpu}M"
    if shape.mem_unit is MemUnit.PER_CPU:
        cpus = (tasks_per_node(shape) or 0) * (shape.cpus or 1)
        if shape.cpu_unit is CpuUnit.PER_GPU:
            cpus = (shape.cpus or 1) * gpus
        return ("mem-per-cpu", f"{ceil(per_gpu * gpus / cpus)}M") if cpus else None
    return "mem", f"{per_gpu * gpus}M"
