"""The cluster on which a dump is replayed: from scontrol's list of nodes, or guessed from what jobs held. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

from slurmwrap.model.cluster import Node
from slurmwrap.model.hostlist import names_in
from slurmwrap.placement.demand import Server
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual, Load
from slurmwrap.sim.whatif.whatif_study import NodeClass, Shape

_STEM = re.compile(r"\d+")
_ROUNDING = 1e-6
_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """Empty servers, the servers of each partition, and the source of this knowledge."""

    servers: tuple[Server, ...]
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # others: all servers
    source: str  # see Shape.source

    @property
    def shape(self) -> Shape:
        kinds = Counter((server.gpus, server.cpus, server.mem_mib) for server in self.servers)
        return Shape(
            kinds=tuple(
                NodeClass(nodes=count, gpus=gpus, cpus=cpus, mem_mib=mem)
                for (gpus, cpus, mem), count in sorted(kinds.items(), reverse=True)
            ),
            source=self.source,
        )


def cluster_shape_from_nodes(nodes: Iterable[Node]) -> ClusterShape:
    """Return all nodes with GPUs, also those that are down today, because the dump is of another day."""
    with_gpus = [node for node in nodes if node.gpus]
    members: dict[str, set[str]] = defaultdict(set)
    for node in with_gpus:
        for partition in node.partitions:
            members[partition].add(node.name)
    return ClusterShape(
        servers=tuple(make_server(node.name, node.gpus, node.cpus, node.mem_mib) for node in with_gpus),
        partitions={name: frozenset(names) for name, names in members.items()},
        source="nodes",
    )


def cluster_shape_from_dump(load: Load) -> ClusterShape:
    """Return the nodes on which jobs with GPUs ran, each with the most that was ever held on it at once.

    A node that was never full looks smaller than it is. So nodes whose names differ in numbers only are assumed to have
    as many GPUs as most of them have, and as many CPUs and as much memory as any of them. ValueError if the dump names
    no nodes.
    """
    held = _compute_most_held(load)
    if not held:
        raise ValueError("no job with GPUs names the nodes that it ran on")
    alike: dict[str, list[str]] = defaultdict(list)
    for name in held:
        alike[_STEM.sub("#", name)].append(name)
    servers = {
        name: make_server(name, *_level_amounts(held[name], [held[other] for other in names]))
        for names in alike.values()
        for name in names
    }
    return ClusterShape(
        servers=tuple(servers[name] for name in sorted(servers, key=_make_numeric_key)),
        partitions=_find_partitions(load, servers),
        source="dump",
    )


def make_server(name: str, gpus: int, cpus: int, mem_mib: int) -> Server:
    """Return an empty server."""
    return Server(
        name=name, gpus=gpus, cpus=cpus, mem_mib=mem_mib, gpus_free=gpus, cpus_free=cpus, mem_free_mib=mem_mib
    )


Held = tuple[int, int, int]  # GPUs, CPUs, MiB


def _level_amounts(own: Held, alike: Sequence[Held]) -> Held:
    most_common = Counter(gpus for gpus, _, _ in alike).most_common(1)[0][0]
    return (
        max(own[0], most_common),
        max(cpus for _, cpus, _ in alike),
        max(mem for _, _, mem in alike),
    )


def _compute_most_held(load: Load) -> dict[str, Held]:
    """Return the most that was held at once, per node of the jobs with GPUs. O(n log n) in runs and nodes."""
    changes: dict[str, list[tuple[float, int, float, float, float]]] = defaultdict(list)
    for job, actual in zip(load.jobs, load.actual, strict=True):
        for name in _parse_names(actual.node_list):
            changes[name] += _list_changes(job, actual)
    for job, actual in zip(load.cpu_jobs, load.cpu_actual, strict=True):
        for name in _parse_names(actual.node_list):
            if name in changes:
                changes[name] += _list_changes(job, actual)
    return {name: _find_peak(of_node) for name, of_node in changes.items()}


def _list_changes(job: SimJob, actual: Actual) -> list[tuple[float, int, float, float, float]]:
    """Return the changes at start and end of a run; sorted, an end comes before a start of the same second.

    A job's parts on its nodes are assumed to be equal.
    """
    nodes = max(1, len(_parse_names(actual.node_list)))
    part = (job.gpus / nodes, (job.cpus or 0) / nodes, (job.mem_mib or 0) / nodes)
    until = float("inf") if actual.end_s is None else actual.end_s
    if until <= actual.start_s:
        return []
    return [(actual.start_s, 1, *part), (until, 0, -part[0], -part[1], -part[2])]


def _find_peak(changes: list[tuple[float, int, float, float, float]]) -> Held:
    gpus = cpus = mem = 0.0
    most = (0.0, 0.0, 0.0)
    for _, _, more_gpus, more_cpus, more_mem in sorted(changes):
        gpus, cpus, mem = gpus + more_gpus, cpus + more_cpus, mem + more_mem
        most = (max(most[0], gpus), max(most[1], cpus), max(most[2], mem))
    whole = [max(1, ceil(value - _ROUNDING)) for value in most]
    return whole[0], whole[1], ceil(whole[2] / _GIB) * _GIB


def _find_partitions(load: Load, servers: Mapping[str, Server]) -> dict[str, frozenset[str]]:
    """Return the nodes on which each partition's jobs ran."""
    seen: dict[str, set[str]] = defaultdict(set)
    for job, actual in zip(load.jobs, load.actual, strict=True):
        seen[job.partition].update(name for name in _parse_names(actual.node_list) if name in servers)
    return {name: frozenset(nodes) for name, nodes in seen.items() if name and nodes}


@lru_cache(maxsize=65536)
def _parse_names(node_list: str) -> tuple[str, ...]:
    return names_in(node_list)


def _make_numeric_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key by which n2 comes before n10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
