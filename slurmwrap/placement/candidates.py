"""Find the candidate nodes of a request: nodes that can run it, nodes free now, and their network domains. Pure.

Linear in the number of nodes: one look at each node of the job's partitions, one at each node of each network domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node, Partition, Reservation, Snapshot
    from slurmwrap.model.topology import Topology
    from slurmwrap.placement.resource_units import ResourceUnits
    from slurmwrap.sbatch.job_request import JobRequest

_SIMPLE_FEATURE = r"(?a)[A-Za-z0-9._-]+"
# With one of these options the set of nodes that may run the job is not known here.
_OPAQUE = ("nodelist", "nodefile", "reservation", "contiguous", "cluster-constraint", "batch", "spread-job")
# With one of these options it is unknown which nodes are free when the job may start.
LATER = ("begin", "dependency", "hold")
_UNFIT = frozenset({"DRAIN", "NOT_RESPONDING", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT"})
_OPEN = frozenset({"UP", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlot:
    """A node on which `units` of the job fit now."""

    node: Node
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNodes:
    """The candidate nodes of one request.

    `capacity`: number of units that an able node holds when it is empty. `certain`: the same in whichever of the job's
    partitions it runs.
    """

    need: ResourceUnits
    members: tuple[Node, ...]  # all nodes of the job's partitions
    # Those of `members` whose size, GPU type and features allow the job, whatever runs there now.
    able: tuple[Node, ...]
    capacity: Mapping[str, int]
    certain: Mapping[str, int]
    # CPUs of one node that the job may use in the most restrictive of its partitions.
    cpu_cap: int | None
    # Able nodes that are up and not reserved for others while the job would run.
    ready: frozenset[str]
    partitions: tuple[Partition, ...]  # partitions that the job names and the snapshot contains
    # Nodes with free capacity now, per partition: a job never spans two partitions.
    free: tuple[tuple[NodeSlot, ...], ...]
    # Able and free nodes that the job cannot have because a reservation begins before it would end.
    reserved: tuple[str, ...]
    levels: tuple[Mapping[str, str], ...]  # node -> network domain, the closest level first
    fewest: int  # least number of nodes, if the able ones were empty

    def holds_on(self, nodes: Iterable[Node], count: int) -> bool:
        """Return whether the best `count` of `nodes` can hold the job, in each of its partitions."""
        for name in [partition.name for partition in self.partitions] or [""]:
            matching = [n for n in nodes if n.name in self.ready and (not name or name in n.partitions)]
            best = sorted((self.certain.get(node.name, 0) for node in matching), reverse=True)[:count]
            tasks = sorted((_count_tasks(self.need, node, self.cpu_cap) for node in matching), reverse=True)[:count]
            if len(best) < count or sum(best) < self.need.units or sum(tasks) < self.need.tasks:
                return False
        return True

    def holds(self, nodes: Iterable[Node], count: int) -> bool:
        """Return whether the job certainly fits on at least `count` ready nodes among `nodes`, if they were empty."""
        need = self.need
        count = max(count, need.tasks) if need.blurred else count
        many = need.tasks > 1
        found = units = tasks = 0
        for node in nodes:
            if node.name in self.ready:
                found += 1
                units += self.certain.get(node.name, 0)
                tasks += _count_tasks(need, node, self.cpu_cap) if many else 1
                if found >= count and units >= need.units and tasks >= need.tasks:
                    return True
        return False


def find_candidate_nodes(
    request: JobRequest, units: ResourceUnits, snapshot: Snapshot, like: CandidateNodes | None = None
) -> CandidateNodes:
    """Return the candidate nodes of `request`, which takes `units`.

    `like`: a result for the same partitions and the same snapshot, from which the unchanged parts are reused.
    """
    names = list_wanted_partitions(request, snapshot)
    members = like.members if like else _list_members(names, snapshot)
    partitions = tuple(p for p in snapshot.partitions if p.name in names)
    tightest, loosest = _compute_caps(partitions)
    certain = _compute_capacity(members, units, request, tightest, strict=True)
    alike = units.sure and tightest == loosest
    capacity = certain if alike else _compute_capacity(members, units, request, loosest, strict=units.sure)
    able = tuple(node for node in members if node.name in capacity)
    held = _count_reserved_cpus(request, snapshot, able, partitions)
    ready = _select_ready_nodes(able, request)
    free, reserved = _find_free_slots(ready, units, partitions, held)
    return CandidateNodes(
        need=units,
        members=members,
        able=able,
        capacity=capacity,
        certain=certain,
        cpu_cap=tightest[0],
        ready=frozenset(node.name for node in ready if held.get(node.name, 0) < node.cpus),
        partitions=partitions,
        free=free,
        reserved=reserved,
        levels=like.levels if like else build_domain_tables(snapshot.topology),
        fewest=_count_fewest_nodes(capacity.values(), units),
    )


def _list_members(names: frozenset[str], snapshot: Snapshot) -> tuple[Node, ...]:
    return tuple(node for node in snapshot.nodes if not names or not names.isdisjoint(node.partitions))


def list_wanted_partitions(request: JobRequest, snapshot: Snapshot) -> frozenset[str]:
    """Return the partitions in which the job may run; empty if it names none and Slurm has no default."""
    return frozenset((request.value("partition") or snapshot.default_partition).split(",")) - {""}


def has_opaque_node_choice(request: JobRequest) -> bool:
    """Return whether the request selects nodes in a way that slurmwrap does not evaluate."""
    return any(request.setting(option) for option in _OPAQUE) or _is_complex_feature(request)


def build_domain_tables(topology: Topology) -> tuple[Mapping[str, str], ...]:
    """Return one table per level: node name -> domain. Searching the domains for each node would be quadratic."""
    levels: dict[int, dict[str, str]] = {}
    for domain in topology.domains:
        levels.setdefault(domain.level, {}).update(dict.fromkeys(domain.nodes, domain.name))
    return tuple(levels[level] for level in sorted(levels))


def _is_complex_feature(request: JobRequest) -> bool:
    feature = request.value("constraint")
    return bool(feature) and not re.fullmatch(_SIMPLE_FEATURE, feature or "")


# CPUs and MiB that a job may use on one node; None: no limit.
Caps = tuple[int | None, int | None]


def _compute_caps(partitions: Sequence[Partition]) -> tuple[Caps, Caps]:
    """Return the most restrictive and the least restrictive limits of these partitions."""
    cpus = [partition.max_cpus_per_node for partition in partitions]
    memory = [partition.max_mem_mib_per_node for partition in partitions]
    return (_find_least_cap(cpus), _find_least_cap(memory)), (_find_greatest_cap(cpus), _find_greatest_cap(memory))


def _find_least_cap(caps: Sequence[int | None]) -> int | None:
    return min((cap for cap in caps if cap), default=None)


def _find_greatest_cap(caps: Sequence[int | None]) -> int | None:
    return max((cap for cap in caps if cap), default=None) if all(caps) else None


def _compute_capacity(
    members: Sequence[Node], need: ResourceUnits, request: JobRequest, caps: Caps, *, strict: bool
) -> Mapping[str, int]:
    """Return the units that each able node holds when empty.

    If not `strict`, only GPUs are counted: CPUs and memory that are not known must not exclude a node.
    """
    kind = request.shape.gpu_type
    feature = "" if _is_complex_feature(request) else request.value("constraint") or ""
    by_size: dict[tuple[int, int, int], int] = {}
    found = {}
    for node in members:
        size = (node.gpus, node.cpus, node.mem_mib)
        if size not in by_size:
            cpus, memory = (own if cap is None else min(own, cap) for own, cap in zip(size[1:], caps, strict=True))
            by_size[size] = need.fitting(node.gpus, cpus, memory) if strict else _count_by_gpus(need, node)
        units = by_size[size]
        if units and (not kind or kind in node.gpu_type.split(",")) and (not feature or feature in node.features):
            found[node.name] = units
    return found


def _count_tasks(units: ResourceUnits, node: Node, cap: int | None) -> int:
    cpus = node.cpus if cap is None else min(cap, node.cpus)
    if units.gpus_bring_cpus:
        cpus = min(cpus, int(_count_by_gpus(units, node) * units.cpus))
    room = cpus // units.task_cpus
    return min(room, node.mem_mib // units.task_mem_mib) if units.task_mem_mib else room


def _count_by_gpus(units: ResourceUnits, node: Node) -> int:
    return min(units.units, node.gpus // units.gpus, units.per_node or units.units)


def _count_fewest_nodes(capacities: Iterable[int], need: ResourceUnits) -> int:
    """Return the least number of nodes that hold all units; the request's own minimum if even all nodes do not."""
    units = count = 0
    for capacity in sorted(capacities, reverse=True):
        if units >= need.units:
            break
        units += capacity
        count += 1
    return max(count, need.least_nodes) if units >= need.units else need.least_nodes


# ------------------------------------------------------------------------------------------- free now


def _select_ready_nodes(able: Sequence[Node], request: JobRequest) -> list[Node]:
    """Return the nodes that are up. Maintenance does not exclude a node if the job names a reservation."""
    if request.setting("reservation") is None:
        return [node for node in able if node.usable]
    up = ("IDLE", "MIXED", "ALLOCATED")
    return [node for node in able if node.state in up and not node.flags & _UNFIT]


def _find_free_slots(
    ready: Sequence[Node], need: ResourceUnits, partitions: Sequence[Partition], held: Mapping[str, int]
) -> tuple[tuple[tuple[NodeSlot, ...], ...], tuple[str, ...]]:
    """Return (nodes with free capacity per partition, nodes that only a reservation makes unavailable)."""
    slots: list[NodeSlot] = []
    reserved: list[str] = []
    alone = need.whole or (bool(partitions) and all(p.exclusive for p in partitions))
    for node in ready:
        if node.gpus_used >= node.gpus or (alone and node.cpus_alloc) or (need.all_memory and node.mem_alloc_mib):
            continue
        units = need.fitting(node.gpus_free, node.cpus_free, node.mem_free_mib)
        if units and node.name in held:
            units = need.fitting(node.gpus_free, node.cpus_free - held[node.name], node.mem_free_mib)
            if not units:
                reserved.append(node.name)
        if units:
            slots.append(NodeSlot(node=node, units=units))
    if len(partitions) <= 1:
        return (tuple(slots) if _are_open(partitions) else (),), tuple(reserved)
    groups = (tuple(s for s in slots if one.name in s.node.partitions) for one in partitions if _are_open((one,)))
    return tuple(groups), tuple(reserved)


def _are_open(partitions: Sequence[Partition]) -> bool:
    return all(partition.state in _OPEN for partition in partitions)


def _count_reserved_cpus(
    request: JobRequest, snapshot: Snapshot, able: Sequence[Node], partitions: Sequence[Partition]
) -> Mapping[str, int]:
    """Return the CPUs per node that the job cannot have, because a reservation begins before the job would end.

    All CPUs of the node, unless the reservation takes only some cores.
    """
    if not snapshot.reservations:
        return {}
    end = snapshot.taken_at + _find_longest_end(request, partitions)
    own = frozenset((request.value("reservation") or "").split(","))
    cpus = {node.name: node.cpus for node in able}
    held: dict[str, int] = {}
    for one in snapshot.reservations:
        if one.name not in own and one.start < end and one.end > snapshot.taken_at:
            for name, share in _list_shares(one, cpus):
                held[name] = held.get(name, 0) + share
    outside = set(cpus) - _list_reserved_nodes(own, snapshot.reservations) if own - {""} else set()
    return {**held, **{name: cpus[name] for name in outside}}


def _list_shares(one: Reservation, cpus: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    matching = [name for name in one.nodes if name in cpus]
    partial = (
        one.cpus and one.nodes and len(matching) == len(one.nodes) and one.cpus < sum(cpus[name] for name in matching)
    )
    share = ceil(one.cpus / len(one.nodes)) if partial else None
    return ((name, cpus[name] if share is None else share) for name in matching)


def _list_reserved_nodes(names: frozenset[str], reservations: Sequence[Reservation]) -> set[str]:
    return {node for one in reservations if one.name in names for node in one.nodes}


def _find_longest_end(request: JobRequest, partitions: Sequence[Partition]) -> float:
    """Return after how many seconds from now the job has ended at the latest.

    This is its time limit, else the longest that its partitions allow; infinite if it is unknown when the job begins.
    """
    if any(request.setting(option) for option in LATER):
        return float("inf")
    if request.shape.time_limit_s is not None:
        return request.shape.time_limit_s
    limits = [partition.max_time_s for partition in partitions]
    return max((limit for limit in limits if limit), default=float("inf")) if limits and all(limits) else float("inf")
