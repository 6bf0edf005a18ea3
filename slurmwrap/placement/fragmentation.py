"""Decide whether a pending job lacks GPUs, or whether enough GPUs are free but scattered. Pure.

Philly (Jeon et al., ATC 2019) splits queueing delay in this way. Fair share: priority, limits or the mere number of
free GPUs delay a job. Fragmentation: enough GPUs are free, but not in the shape or on the nodes that the job needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.sbatch.job_request import GpuUnit, ResourceShape

_PER_NODE = frozenset((GpuUnit.GRES, GpuUnit.PER_NODE, GpuUnit.PER_SOCKET))


def is_scattered(record: JobRecord, shape: ResourceShape, snapshot: Snapshot, *, one_domain: bool = False) -> bool:
    """Return whether enough GPUs are free on usable nodes of the job's partitions, but the job does not fit on them.

    False if it fits: then Slurm has only not scheduled it yet. `one_domain`: the job insists on one switch.
    """
    partitions = set(record.partition.split(","))
    usable = [
        node
        for node in snapshot.nodes
        if node.usable
        and not partitions.isdisjoint(node.partitions)
        and (not shape.gpu_type or shape.gpu_type in node.gpu_type.split(","))
    ]
    if not record.gpus or sum(node.gpus_free for node in usable) < record.gpus:
        return False
    allowed = make_node_filter(record)
    free = [node for node in usable if allowed(node) and _has_capacity(node, record)]
    if not one_domain:
        return not _fits_on_nodes(free, record, shape)
    closest = [frozenset(domain.nodes) for domain in snapshot.topology.domains if domain.level == 0]
    return not any(_fits_on_nodes([node for node in free if node.name in names], record, shape) for names in closest)


def make_node_filter(record: JobRecord) -> Callable[[Node], bool]:
    """Return a filter by the job's node lists and features. A feature expression that is not evaluated excludes no
    node.
    """
    listed, out = frozenset(names_in(record.req_nodes)), frozenset(names_in(record.exc_nodes))
    wanted = record.features if record.features.replace("_", "").replace("-", "").isalnum() else ""
    # A list with fewer nodes than the job needs only requires that some of the job's nodes are in it.
    narrow = len(listed) >= record.num_nodes
    return lambda node: (
        node.name not in out
        and (not listed or not narrow or node.name in listed)
        and (not wanted or wanted in node.features)
    )


def _has_capacity(node: Node, record: JobRecord) -> bool:
    memory = record.mem_mib_per_node or (record.mem_mib_per_cpu or 0) * record.min_cpus
    return node.gpus_free > 0 and node.cpus_free >= record.min_cpus and node.mem_free_mib >= memory


def _fits_on_nodes(nodes: Sequence[Node], record: JobRecord, shape: ResourceShape) -> bool:
    least = max(1, record.num_nodes)
    if shape.gpu_unit in _PER_NODE:
        share = ceil(record.gpus / least)
        return sum(node.gpus_free >= share for node in nodes) >= least
    free = sorted((node.gpus_free for node in nodes), reverse=True)
    return len(free) >= least and sum(free[: record.max_nodes or None]) >= record.gpus
