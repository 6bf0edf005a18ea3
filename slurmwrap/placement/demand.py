"""Records for the allocation of CPUs and memory: server, job demand, allocation. Pure.

`make_job_demand` computes the demand of one job from its request and its resource profile.
"""

from __future__ import annotations

from slurmwrap.config.load_config import Tuning
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.cluster import Node
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.resource_profile import SpeedPoint as SpeedPoint
from slurmwrap.placement.throughput import list_speed_points
from slurmwrap.placement.tuning_bounds import (
    compute_asked_cpus_per_gpu,
    compute_asked_mem_mib_per_gpu,
    compute_least_cpus,
    compute_least_mem_mib,
)
from slurmwrap.sbatch.job_request import MemUnit, ResourceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A node as the allocation sees it: its total resources and those that no running job holds."""

    name: str
    gpus: int
    cpus: int
    mem_mib: int
    gpus_free: int
    cpus_free: int
    mem_free_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    """The demand of one job in the queue: what its user asked for, its bounds, and its speed by CPUs and memory.

    `cpus` and `mem_mib` are what the user asked for, not what an earlier update changed it to. Otherwise every pass
    would start from the result of the pass before.
    """

    # The job's address, or any id that the caller chooses.
    job: str
    gpus_per_node: int
    nodes: int = 1
    # Per GPU; the GPU-proportional share if the user named no number.
    cpus: float
    mem_mib: int  # per GPU
    least_cpus: float = 1.0  # per GPU; lower bound
    most_cpus: float | None = None  # per GPU; upper bound from partition, QOS, association and node
    least_mem_mib: int = 0
    most_mem_mib: int | None = None
    # Empty if unknown; then the job keeps what it asks for.
    speeds: tuple[SpeedPoint, ...] = ()
    servers: frozenset[str] | None = None  # where the job may run; None: on every server
    run_s: float | None = None  # expected run time at its proportional share; None: unknown
    # For how many seconds the job could already have started at its share, as the caller observed.
    startable_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs on all nodes together."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one job should ask for.

    `servers` names the servers on which the job would start now, one name per node; () if it must wait.
    """

    job: str
    # Per GPU; `cpus` times `gpus_per_node` is a whole number.
    cpus: float
    mem_mib: int  # per GPU
    servers: tuple[str, ...] = ()
    # Speed relative to the speed at the job's proportional share; None if that is not known.
    speed: float | None = None
    cpu_reason: str = ""
    mem_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSettings:
    """Settings of the policy `graded`, the same for every cluster. Chosen on generated queues (docs/placement.md).

    The simulator's mode *rounds* (sim/mechanism/lease_rounds.py) divides all servers anew each time and uses only
    `memory_weight` and `lead`.
    """

    # What a queue that no longer fills the GPUs may ask for, as a fraction of what the servers have.
    drain: float = 1.1
    # Fraction of its share that is kept for each idle GPU that no job waits for, because another job may arrive.
    reserve: float = 0.5
    memory_weight: float = 0.25  # price of one share of memory; one share of CPUs costs 1
    # Run time to assume if none is known: the mean of Philly's jobs (Jeon et al., ATC 2019).
    assumed_run_s: float = 13_000.0
    # Only in rounds: the speed of the job at the head of the queue counts e^lead times as much as that of a job one
    # cluster (as many GPUs as the cluster has) behind it.
    lead: float = 1.0


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
    """Return the demand of a job of `shape` on nodes like `node` (tuning_bounds.make_least_node).

    The upper bounds include the whole node. None if the job's speed is unknown or in doubt, or if the shape does not
    fix CPUs and GPUs. With --mem-per-cpu a change of the CPUs would change the memory too, so the result is None as
    well. Memory that the user did not name, or that is all of the node, is not divided: the proportional share is used
    instead.
    """
    gpus, cpus = shape.gpus_per_node, compute_asked_cpus_per_gpu(shape)
    if profile is None or not gpus or not node.gpus or cpus is None or shape.exclusive or _is_in_doubt(profile):
        return None
    if shape.mem_unit is MemUnit.PER_CPU:
        return None
    asked = compute_asked_mem_mib_per_gpu(shape)
    least = node.mem_mib // node.gpus if asked is None else compute_least_mem_mib(shape, profile, node, tuning)
    # A faster job that is killed for memory has gained nothing, so memory is never below the least it needs.
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


def limit_to_share(demand: JobDemand, node: Node) -> JobDemand:
    """Return `demand` with upper bounds at the proportional share (or at the request, if that is greater).

    For callers that cannot take resources back later: the rest of the node belongs to other jobs.
    """
    share, memory = node.cpus / node.gpus, node.mem_mib // node.gpus
    return replace(
        demand,
        most_cpus=min(demand.most_cpus or share, max(demand.cpus, share)),
        most_mem_mib=min(demand.most_mem_mib or memory, max(demand.mem_mib, memory)),
    )


def limit_to_request(demand: JobDemand) -> JobDemand:
    """Return `demand` with upper bounds at the request, so that nothing is raised."""
    return replace(demand, most_cpus=demand.cpus, most_mem_mib=demand.mem_mib)


def make_empty_server(node: Node) -> Server:
    """Return `node` as a server without running jobs."""
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
    """Return whether newer runs contradict the CPU curve, or another variant of the job measured it."""
    other = profile.variant and profile.curve_variant and profile.variant != profile.curve_variant
    return bool(profile.curve_doubts or other)
