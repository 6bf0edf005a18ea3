"""What the allocation of CPUs and memory works on: Claim, Server, Grant, Settings. Records; CPUs and MiB per GPU."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.resource_profile import SpeedPoint as SpeedPoint


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
