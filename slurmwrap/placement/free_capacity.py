"""Free capacity of servers while jobs are given CPUs and memory: the only mutable record of the allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.demand import JobDemand, Server

ROUNDING = 1e-6  # tolerance for sums of fractional CPUs


@dataclass(slots=True, kw_only=True)
class FreeCapacity:
    """What is free on one server."""

    server: Server
    gpus: int
    cpus: float
    mem_mib: float

    def holds(self, gpus: int, cpus: float, mem_mib: float) -> bool:
        """Return whether `gpus` GPUs fit, with so many CPUs and MiB per GPU."""
        return self.gpus >= gpus and self.cpus + ROUNDING >= cpus * gpus and self.mem_mib + ROUNDING >= mem_mib * gpus

    def take(self, gpus: int, cpus: float, mem_mib: float) -> None:
        """Take `gpus` GPUs with so many CPUs and MiB per GPU; a negative number of GPUs gives them back."""
        self.gpus -= gpus
        self.cpus -= cpus * gpus
        self.mem_mib -= mem_mib * gpus


Order = Callable[[FreeCapacity], tuple[float | str, ...]]


def list_free_capacity(servers: Iterable[Server]) -> tuple[FreeCapacity, ...]:
    """Return the free capacity of each server."""
    return tuple(FreeCapacity(server=s, gpus=s.gpus_free, cpus=s.cpus_free, mem_mib=s.mem_free_mib) for s in servers)


def list_eligible(demand: JobDemand, capacities: Sequence[FreeCapacity]) -> Sequence[FreeCapacity]:
    """Return the servers on which the job may run, whatever runs there now."""
    if demand.servers is None:
        return [capacity for capacity in capacities if capacity.server.gpus >= demand.gpus_per_node]
    names = demand.servers
    return [
        capacity
        for capacity in capacities
        if capacity.server.gpus >= demand.gpus_per_node and capacity.server.name in names
    ]


def rank_fullest(capacity: FreeCapacity) -> tuple[float | str, ...]:
    """Order servers as Synergy's code does (its simulator, commit 1bb2bed6): fewest free GPUs first."""
    return (capacity.gpus, capacity.server.name)


def choose(
    demand: JobDemand, cpus: float, mem_mib: float, capacities: Iterable[FreeCapacity], order: Order
) -> tuple[FreeCapacity, ...]:
    """Return the best servers by `order`, one per node of the job; () if it does not fit now."""
    fitting = [capacity for capacity in capacities if capacity.holds(demand.gpus_per_node, cpus, mem_mib)]
    if len(fitting) < demand.nodes:
        return ()
    if demand.nodes == 1:
        return (min(fitting, key=order),)
    return tuple(sorted(fitting, key=order)[: demand.nodes])
