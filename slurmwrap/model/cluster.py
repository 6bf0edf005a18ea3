"""The cluster at one moment: Node, Partition, Reservation, Snapshot. Records only; MiB, Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.limits import Quotas
from slurmwrap.model.topology import Topology

_OUT = frozenset({"DRAIN", "MAINTENANCE", "NOT_RESPONDING", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One line of `scontrol show node -d -o`."""

    name: str
    # Base state, e.g. "IDLE", "MIXED", "ALLOCATED", "DOWN".
    state: str
    # "DRAIN", "MAINTENANCE", "NOT_RESPONDING", ... without decoration
    flags: frozenset[str] = frozenset()
    cpus: int = 0
    cpus_alloc: int = 0
    mem_mib: int = 0
    mem_alloc_mib: int = 0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    sockets: int = 1
    # Socket of each GPU by index, where gres.conf says; () unknown.
    gpu_sockets: tuple[int, ...] = ()
    # Indexes of the GPUs that are held, where Slurm says; () unknown or none.
    gpus_used_at: tuple[int, ...] = ()
    weight: int = 1
    address: str = ""  # NodeAddr
    # Free text: never parse it.
    reason: str = ""

    @property
    def usable(self) -> bool:
        """True when Slurm would start a job here: up, not draining, not reserved for maintenance."""
        return self.state in {"IDLE", "MIXED", "ALLOCATED"} and (not self.flags or self.flags.isdisjoint(_OUT))

    @property
    def prolog_failed(self) -> bool:
        """slurmctld drained it for a Prolog's exit code; who and when follow in brackets (22.05)."""
        return "DRAIN" in self.flags and self.reason.partition(" [")[0] == "Prolog error"

    @property
    def gpus_free(self) -> int:
        """GPUs no job holds."""
        # Not max(): these three are asked of every node of 10,000, several times.
        free = self.gpus - self.gpus_used
        return free if free > 0 else 0

    @property
    def cpus_free(self) -> int:
        """CPUs no job holds."""
        free = self.cpus - self.cpus_alloc
        return free if free > 0 else 0

    @property
    def mem_free_mib(self) -> int:
        """Memory no job holds, in MiB."""
        free = self.mem_mib - self.mem_alloc_mib
        return free if free > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One line of `scontrol show partition -o`: the limits that a tuned request must keep. None: no limit."""

    name: str
    default: bool = False
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_mem_mib_per_node: int | None = None
    max_mem_mib_per_cpu: int | None = None
    max_time_s: int | None = None
    min_nodes: int = 1
    exclusive: bool = False  # OverSubscribe=EXCLUSIVE: whole nodes only
    qos: str = ""
    state: str = "UP"  # or "DOWN", "DRAIN", "INACTIVE"
    total_nodes: int | None = None  # those that a user is not shown too; None: not said
    topology: str = ""  # 25.05 and newer: a topology of its own (topology.yaml); "": the cluster's


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One line of `scontrol show reservation -o`."""

    name: str
    start: int
    end: int
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()  # "MAINT", "IGNORE_JOBS", ...
    # Of all its nodes together, so less than they have where it takes only some cores; 0: not said.
    cpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What is known of the jobs that run on one node, all together; published, so no one's job is named."""

    node: str
    # Cores that the jobs with a profile keep busy.
    cpus_busy: float = 0.0
    mem_mib: int = 0  # their measured peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one placement decision may know."""

    taken_at: float
    nodes: tuple[Node, ...]
    topology: Topology = field(default_factory=Topology)
    default_partition: str = ""
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)  # of the user who asks; empty: unknown, or nothing is enforced
    max_switch_wait_s: int = 300  # SchedulerParameters=max_switch_wait: Slurm clamps --switches=N@t to it
    release: tuple[int, int] | None = None  # (24, 11): which options its sbatch has; None: unknown
    preempts: bool = False  # PreemptType: a job that waits may end others to get what it asks for
    kept: bool = False  # its nodes were read for an earlier call of this user, some seconds ago
    quotas_kept: bool = False  # the same of its quotas: what they leave may be taken or changed since

    @property
    def reservation_begins(self) -> Mapping[str, int]:
        """When each reservation begins, in Unix seconds."""
        return {one.name: one.start for one in self.reservations}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What is published about one node: is it suspect or a lemon, since when and why."""

    node: str
    # "suspect" | "lemon" | "drained"
    status: str
    since: float
    reason: str
