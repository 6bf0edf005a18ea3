"""Records of the cluster at one moment: Node, Partition, Reservation, Snapshot. MiB and Unix seconds."""

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
    state: str  # base state, e.g. "IDLE", "MIXED", "ALLOCATED", "DOWN"
    flags: frozenset[str] = frozenset()  # "DRAIN", "MAINTENANCE", "NOT_RESPONDING", ... without Slurm's punctuation
    cpus: int = 0
    cpus_alloc: int = 0
    mem_mib: int = 0
    mem_alloc_mib: int = 0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    shards: int = 0  # of all its GPUs together (gres/shard)
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    sockets: int = 1
    # Socket of each GPU, by GPU index, where gres.conf gives it; () if unknown.
    gpu_sockets: tuple[int, ...] = ()
    # Indexes of the allocated GPUs, where Slurm reports them; () if unknown or none.
    gpus_used_at: tuple[int, ...] = ()
    weight: int = 1
    address: str = ""  # NodeAddr
    # Free text of the administrator or of slurmctld; it must not be parsed.
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Return True when Slurm would start a job here: up, not draining, not reserved for maintenance."""
        return self.state in {"IDLE", "MIXED", "ALLOCATED"} and (not self.flags or self.flags.isdisjoint(_OUT))

    @property
    def prolog_failed(self) -> bool:
        """Return True when slurmctld drained the node because its Prolog failed.

        Slurm 22.05 appends user and time to the Reason, in brackets.
        """
        return "DRAIN" in self.flags and self.reason.partition(" [")[0] == "Prolog error"

    @property
    def gpus_free(self) -> int:
        """Return the number of GPUs that no job holds."""
        # A comparison is faster than max(). These three properties are read several times for each of 10,000 nodes.
        free = self.gpus - self.gpus_used
        return free if free > 0 else 0

    @property
    def cpus_free(self) -> int:
        """Return the number of CPUs that no job holds."""
        free = self.cpus - self.cpus_alloc
        return free if free > 0 else 0

    @property
    def mem_free_mib(self) -> int:
        """Return the memory in MiB that no job holds."""
        free = self.mem_mib - self.mem_alloc_mib
        return free if free > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One line of `scontrol show partition -o`: the limits that a tuned request must respect. None: no limit."""

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
    # Includes the nodes that are hidden from this user; None if Slurm does not report it.
    total_nodes: int | None = None
    # Topology of this partition (topology.yaml, Slurm 25.05 and newer); "": the cluster's topology.
    topology: str = ""
    priority_tier: int = 1
    preempt_mode: str = "OFF"  # what happens to its jobs when those of a higher tier need their nodes
    # Who may use it; (): everyone. Slurm has either the allowed or the denied accounts and QOS.
    allow_groups: tuple[str, ...] = ()
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    hidden: bool = False
    root_only: bool = False
    needs_reservation: bool = False  # ReqResv
    default_time_s: int | None = None  # time limit of a job without --time; None: max_time_s
    # TRESBillingWeights, names in lower case: (("cpu", 1.0), ("gres/gpu", 2.0)); (): CPUs are billed.
    billing_weights: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """How Slurm itself preempts jobs (PreemptType)."""

    by: str = ""  # "partition_prio", "qos" or another plugin; "": it does not
    # With "qos": the QOS whose jobs others may preempt. None: not known.
    preempted_qos: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One line of `scontrol show reservation -o`."""

    name: str
    start: int
    end: int
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()  # "MAINT", "IGNORE_JOBS", ...
    # CPUs of all its nodes together. Fewer than the nodes have if it reserves only some cores; 0: not reported.
    cpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """Sum of what the jobs on one node use. It is published, so it names no job and no user."""

    node: str
    cpus_busy: float = 0.0  # mean number of busy cores, over the jobs with a profile
    mem_mib: int = 0  # sum of their measured peaks
    pcie: float = 0.0  # sum over their GPUs of the share of PCIe in use


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionWeights:
    """What the site's own runs prove about the speed that sensitive jobs lose next to others (profiling/contention.py).

    ln(speed) lost for each unit of own part x others' part of the node's CPUs, memory or PCIe.
    """

    cpus: float = 1.0
    memory: float = 1.0
    pcie: float = 0.0
    pairs: int = 0  # runs alone and next to others that were compared; 0: nothing is proved


NO_EVIDENCE = ContentionWeights()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the cluster on which one placement decision is based."""

    taken_at: float
    nodes: tuple[Node, ...]
    topology: Topology = field(default_factory=Topology)
    default_partition: str = ""
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)  # of the calling user; empty: unknown, or nothing is enforced
    max_switch_wait_s: int = 300  # SchedulerParameters=max_switch_wait: Slurm clamps --switches=N@t to it
    release: tuple[int, int] | None = None  # e.g. (24, 11): decides which options sbatch has; None: unknown
    preempts: bool = False  # PreemptType is set: a pending job may preempt others to get what it requests
    max_array_size: int = 0  # MaxArraySize: indices of an array must be below it; 0: unknown
    private_jobs: bool = False  # PrivateData=jobs: users do not see each other's jobs
    kept: bool = False  # its nodes were read a few seconds ago, for an earlier call of this user
    quotas_kept: bool = False  # the same for its quotas: what they leave may have changed since

    @property
    def reservation_begins(self) -> Mapping[str, int]:
        """Return the start of each reservation by name, in Unix seconds."""
        return {one.name: one.start for one in self.reservations}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """Published health of one node: whether it is suspect, a lemon or drained, since when and why."""

    node: str
    status: str  # "suspect" | "lemon" | "drained"
    since: float
    reason: str
