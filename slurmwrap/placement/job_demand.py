"""The Claim of one job, out of what it asks and what its profile knows: the same for gsub and the reconciler. Pure.

tuning_bounds.py says what it must keep, throughput.py how fast it is; this module combines them. Nothing is said for
a job whose speed no one knows: then tuning_bounds.py alone decides.
"""

from __future__ import annotations

from slurmwrap.config import Tuning
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.node import Node
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import JobDemand, Server
from slurmwrap.placement.throughput import list_speed_points
from slurmwrap.placement.tuning_bounds import (
    compute_asked_cpus_per_gpu,
    compute_asked_mem_mib_per_gpu,
    compute_least_cpus,
    compute_least_mem_mib,
)
from slurmwrap.sbatch.request import MemUnit, ResourceShape


def make_job_demand(
    shape: ResourceShape,
    profile: ResourceProfile | None,
    node: Node,
    tuning: Tuning,
    *,
    job: str = "",
    nodes: int = 1,
    servers: frozenset[str] | None = None,
) -> JobDemand | None:
    """What a job of `shape` may be given on nodes like `node` (bounds.least_node), all of one included.

    None where its speed is unknown or in doubt, or where its shape does not fix CPUs and GPUs. With --mem-per-cpu a
    change of the CPUs would change the memory too. Memory that was not named, or is all of the node, is not divided:
    the share stands for it.
    """
    gpus, cpus = shape.gpus_per_node, compute_asked_cpus_per_gpu(shape)
    if profile is None or not gpus or not node.gpus or cpus is None or shape.exclusive or _is_in_doubt(profile):
        return None
    if shape.mem_unit is MemUnit.PER_CPU:
        return None
    asked = compute_asked_mem_mib_per_gpu(shape)
    least = node.mem_mib // node.gpus if asked is None else compute_least_mem_mib(shape, profile, node, tuning)
    # Who is killed for memory has gained nothing by its speed.
    memory = least if asked is None else max(asked, least)
    speeds = list_speed_points(profile, memory, gpus=gpus)
    if not speeds:
        return None
    return JobDemand(
        job=job,
        gpus_per_node=gpus,
        nodes=nodes,
        cpus=cpus,
        mem_mib=memory,
        least_cpus=compute_least_cpus(shape, profile, node),
        most_cpus=node.cpus / gpus,
        least_mem_mib=least,
        most_mem_mib=memory if asked is None else max(memory, node.mem_mib // gpus),
        speeds=speeds,
        servers=servers,
    )


def limit_to_share(claim: JobDemand, node: Node) -> JobDemand:
    """For who cannot take anything back later: raised at most to the share, for the rest of the node is others'."""
    share, memory = node.cpus / node.gpus, node.mem_mib // node.gpus
    return replace(
        claim,
        most_cpus=min(claim.most_cpus or share, max(claim.cpus, share)),
        most_mem_mib=min(claim.most_mem_mib or memory, max(claim.mem_mib, memory)),
    )


def limit_to_request(claim: JobDemand) -> JobDemand:
    """Nothing is raised."""
    return replace(claim, most_cpus=claim.cpus, most_mem_mib=claim.mem_mib)


def make_empty_server(node: Node) -> Server:
    """`node` without anybody on it."""
    return Server(
        name=node.name,
        gpus=node.gpus,
        cpus=node.cpus,
        mem_mib=node.mem_mib,
        gpus_free=node.gpus,
        cpus_free=node.cpus,
        mem_free_mib=node.mem_mib,
    )


def _is_in_doubt(profile: ResourceProfile) -> bool:
    """Whether newer runs contradict the curve, or another variant of the job left it."""
    other = profile.variant and profile.curve_variant and profile.variant != profile.curve_variant
    return bool(profile.curve_doubts or other)
