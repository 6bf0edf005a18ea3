"""What the allocation of CPUs and memory works on, and the demand of one job from its request and profile. Pure."""

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
    """A node as the allocation sees it: what it has, and what no running job holds."""

    name: str
    gpus: int
    cpus: int
    mem_mib: int
    gpus_free: int
    cpus_free: int
    mem_free_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    """One job of the queue. What its user asked, what it may be given at least and at most, and what it makes of it.

    `cpus` and `mem_mib` are what the user asked, not what it was changed to since: else every pass would start from the
    one before.
    """

    # Address, or any id of the caller's.
    job: str
    gpus_per_node: int
    nodes: int = 1
    cpus: float  # per GPU; the proportional share where no one said anything
    mem_mib: int  # per GPU
    least_cpus: float = 1.0  # per GPU: never below
    most_cpus: float | None = None  # per GPU: partition, QOS, association, node
    least_mem_mib: int = 0
    most_mem_mib: int | None = None
    speeds: tuple[SpeedPoint, ...] = ()  # (): no one knows, it keeps what it asks
    servers: frozenset[str] | None = None  # where it may run; None: anywhere
    run_s: float | None = None  # expected at its proportional share; None: unknown
    startable_s: float = 0.0  # for how long it could have started at its share, as the caller saw

    @property
    def gpus(self) -> int:
        """Of all its nodes."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one job is to ask for. `servers`: where it would start now, one name per node; () when it must wait."""

    job: str
    # Per GPU; times gpus_per_node it is whole.
    cpus: float
    mem_mib: int  # per GPU
    servers: tuple[str, ...] = ()
    # Relative to its proportional share, where that is known.
    speed: float | None = None
    cpu_reason: str = ""
    mem_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSettings:
    """Settings of `graded`, chosen on generated queues (docs/placement.md): one setting for all.

    The simulator's mode *rounds* (sim/mechanism/lease_rounds.py) divides all servers anew each time and uses only
    `memory_weight` and `lead`.
    """

    drain: float = 1.1  # a queue that no longer fills the GPUs asks for so much, in parts of what the servers have
    reserve: float = 0.5  # of its share is kept for each idle GPU that no one waits for: someone may come
    memory_weight: float = 0.25  # price of a share of memory, that of a share of CPUs being 1
    assumed_run_s: float = 13_000.0  # where no one knows: the mean of Philly's jobs (Jeon et al., ATC 2019)
    lead: float = 1.0  # only in rounds: speed at the queue's head counts e^lead times as much as one cluster behind it


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


def limit_to_share(demand: JobDemand, node: Node) -> JobDemand:
    """For who cannot take anything back later: raised at most to the share, for the rest of the node is others'."""
    share, memory = node.cpus / node.gpus, node.mem_mib // node.gpus
    return replace(
        demand,
        most_cpus=min(demand.most_cpus or share, max(demand.cpus, share)),
        most_mem_mib=min(demand.most_mem_mib or memory, max(demand.mem_mib, memory)),
    )


def limit_to_request(demand: JobDemand) -> JobDemand:
    """Nothing is raised."""
    return replace(demand, most_cpus=demand.cpus, most_mem_mib=demand.mem_mib)


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
