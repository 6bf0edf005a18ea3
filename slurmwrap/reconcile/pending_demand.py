"""What waiting jobs claim of the nodes, for the joint allocation: Claim per job, Server per node. Pure.

Only jobs whose CPUs and memory may be changed while they wait get speeds: gsub's own with tuning on, asked for with -c
and --mem and GPUs per node (the updates of other units kill every later srun: placement/retune.py). All others, other
people's too, claim what they ask for as it is, so that nothing is given away that they are about to take.
"""

from __future__ import annotations

from slurmwrap.config import Tuning
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.node import Partition, Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import JobDemand, Server
from slurmwrap.placement.job_demand import limit_to_request, make_job_demand
from slurmwrap.placement.retune import count_fixed_tasks, is_proven_shape
from slurmwrap.placement.tuning_bounds import make_least_node
from slurmwrap.sbatch.request import MemUnit, ResourceShape


def list_servers(snapshot: Snapshot) -> tuple[Server, ...]:
    """Nodes with GPUs that Slurm would start a job on; none that a reservation holds now: few jobs may go there, and
    what is free there must not look like a place that the others would have."""
    return tuple(
        Server(
            name=node.name,
            gpus=node.gpus,
            cpus=node.cpus,
            mem_mib=node.mem_mib,
            gpus_free=node.gpus_free,
            cpus_free=node.cpus_free,
            mem_free_mib=node.mem_free_mib,
        )
        for node in snapshot.nodes
        if node.usable and node.gpus and "RESERVED" not in node.flags
    )


def count_tasks_per_node(shape: ResourceShape) -> int | None:
    """Tasks on each node where the CPUs and memory of a waiting job may be updated; None where they may not."""
    plain = is_proven_shape(shape) and shape.mem_unit is MemUnit.PER_NODE
    told = shape.gpus_per_node and shape.mem_mib and shape.cpus
    tasks = count_fixed_tasks(shape) if plain and told else None
    return tasks if tasks and tasks > 0 else None  # the shape is its user's claim


def make_fixed_demand(record: JobRecord, snapshot: Snapshot) -> JobDemand | None:
    """A waiting job as it asks; None for one without GPUs or with numbers that are not known."""
    nodes = max(1, record.num_nodes)
    gpus = record.gpus // nodes
    if not gpus:
        return None
    memory = record.mem_mib_per_node or (record.mem_mib_per_cpu or 0) * record.cpus // nodes
    return JobDemand(
        job=record.waiting_address,
        gpus_per_node=gpus,
        nodes=nodes,
        cpus=record.cpus / nodes / gpus,
        mem_mib=memory // gpus,
        servers=find_allowed_nodes(record, snapshot),
    )


def make_tuned_demand(
    record: JobRecord,
    shape: ResourceShape,
    profile: ResourceProfile,
    snapshot: Snapshot,
    tuning: Tuning,
) -> JobDemand | None:
    """A job whose CPUs and memory may be divided anew; None where its shape forbids that or its speed is unknown.

    Never below what tuning_bounds.py says. Raising ends where every node that may run it ends, and is none where Slurm
    preempts: no one's job shall be ended for a raise.
    """
    tasks, gpus = count_tasks_per_node(shape), shape.gpus_per_node
    if (shape.gpus_per_node or 0) * max(1, record.num_nodes) != record.gpus or (shape.nodes or 1) != record.num_nodes:
        return None  # its user changed it since, or told us of another one
    names = find_allowed_nodes(record, snapshot, shape.gpu_type or "")
    nodes = [node for node in snapshot.nodes if node.name in names and node.gpus]
    if (
        not tasks
        or not nodes
        or not gpus
        or not shape.cpus
        or not shape.mem_mib
        or not _is_plain_feature(record.features)
    ):
        return None
    claim = make_job_demand(
        shape,
        profile,
        make_least_node(nodes, _list_partitions(record, snapshot)),
        tuning,
        job=record.waiting_address,
        nodes=shape.nodes or 1,
        servers=names,
    )
    return limit_to_request(claim) if claim is not None and snapshot.preempts else claim


def find_allowed_nodes(record: JobRecord, snapshot: Snapshot, gpu_type: str = "") -> frozenset[str]:
    """Nodes that may run it: of its partitions, of its list where it has one, not excluded, with GPU type and feature.

    An expression of several features is not understood: then all of them are taken to have it.
    """
    wanted, feature = set(record.partition.split(",")), record.features if _is_plain_feature(record.features) else ""
    names = {
        node.name
        for node in snapshot.nodes
        if not wanted.isdisjoint(node.partitions)
        and (not feature or feature in node.features)
        and (not gpu_type or gpu_type in node.gpu_type.split(","))
    }
    listed = frozenset(names_in(record.req_nodes))
    return frozenset((names & listed if listed else names) - frozenset(names_in(record.exc_nodes)))


def count_waiting_tasks(record: JobRecord) -> int:
    """How many jobs a pending record stands for: "2-5,9" of an array are five."""
    count = 0
    for part in record.array_tasks.split(","):
        ends, _, step = part.partition(":")
        low, _, high = ends.partition("-")
        if low.isdecimal() and (high or low).isdecimal():
            count += (int(high or low) - int(low)) // max(1, int(step) if step.isdecimal() else 1) + 1
    return max(1, count)


def _is_plain_feature(feature: str) -> bool:
    return not feature or feature.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _list_partitions(record: JobRecord, snapshot: Snapshot) -> list[Partition]:
    wanted = set(record.partition.split(","))
    return [partition for partition in snapshot.partitions if partition.name in wanted]
