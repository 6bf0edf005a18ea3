"""The cluster at one moment: Node, Switch, Topology, Snapshot. Records only; memory in MiB, times in Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One line of `scontrol show node -d -o`."""

    name: str
    state: str  # base state, e.g. "IDLE", "MIXED", "ALLOCATED", "DOWN"
    flags: frozenset[str] = frozenset()  # "DRAIN", "MAINTENANCE", "NOT_RESPONDING", ... without decoration
    cpus: int = 0
    cpus_alloc: int = 0
    mem_mib: int = 0
    mem_alloc_mib: int = 0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    address: str = ""  # NodeAddr
    reason: str = ""  # free text: never parse it

    @property
    def usable(self) -> bool:
        """True when Slurm would start a job here: up, not draining, not reserved for maintenance."""
        bad = {"DRAIN", "MAINTENANCE", "NOT_RESPONDING", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT"}
        return self.state in {"IDLE", "MIXED", "ALLOCATED"} and not self.flags & bad

    @property
    def prolog_failed(self) -> bool:
        """slurmctld drained it for a Prolog's exit code; who and when follow in brackets (22.05)."""
        return "DRAIN" in self.flags and self.reason.partition(" [")[0] == "Prolog error"

    @property
    def gpus_free(self) -> int:
        """GPUs no job holds."""
        return max(0, self.gpus - self.gpus_used)

    @property
    def cpus_free(self) -> int:
        """CPUs no job holds."""
        return max(0, self.cpus - self.cpus_alloc)

    @property
    def mem_free_mib(self) -> int:
        """Memory no job holds, in MiB."""
        return max(0, self.mem_mib - self.mem_alloc_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One line of `scontrol show topology` (topology/tree). Leaves have level 0 and nodes."""

    name: str
    level: int
    nodes: tuple[str, ...]  # everything below it
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The switch tree; empty when Slurm knows none."""

    switches: tuple[Switch, ...] = ()

    @property
    def leaves(self) -> tuple[Switch, ...]:
        """The leaf switches, in Slurm's order."""
        return tuple(s for s in self.switches if s.level == 0)

    def leaf_of(self, node: str) -> str | None:
        """Name of the leaf switch that `node` hangs on."""
        return next((s.name for s in self.leaves if node in s.nodes), None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one placement decision may know."""

    taken_at: float
    nodes: tuple[Node, ...]
    topology: Topology = field(default_factory=Topology)
    default_partition: str = ""
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What is published about one node: is it suspect or a lemon, since when and why."""

    node: str
    status: str  # "suspect" | "lemon" | "drained"
    since: float
    reason: str
