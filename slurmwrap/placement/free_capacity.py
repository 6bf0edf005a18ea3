"""What is left on servers while jobs are being given CPUs and memory: the one mutable thing of the allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.demand import JobDemand, Server

ROUNDING = 1e-6  # sums of fractional CPUs


@dataclass(slots=True, kw_only=True)
class FreeCapacity:
    """What is free on one server."""

    server: Server
    gpus: int
    cpus: float
    mem_mib: float

    def holds(self, gpus: int, cpus: float, mem_mib: float) -> bool:
        """With so many CPUs and MiB per GPU."""
        return self.gpus >= gpus and self.cpus + ROUNDING >= cpus * gpus and self.mem_mib + ROUNDING >= mem_mib * gpus

    def take(self, gpus: int, cpus: float, mem_mib: float) -> None:
        """Negative numbers of GPUs give back."""
        self.gpus -= gpus
        self.cpus -= cpus * gpus
        self.mem_mib -= mem_mib * gpus


Order = Callable[[FreeCapacity], tuple[float | str, ...]]


def list_free_capacity(servers: Iterable[Server]) -> tuple[FreeCapacity, ...]:
    return tuple(FreeCapacity(server=s, gpus=s.gpus_free, cpus=s.cpus_free, mem_mib=s.mem_free_mib) for s in servers)


def list_eligible(demand: JobDemand, rooms: Sequence[FreeCapacity]) -> Sequence[FreeCapacity]:
    """Where the job may run, whatever runs there now."""
    if demand.servers is None:
        return [room for room in rooms if room.server.gpus >= demand.gpus_per_node]
    names = demand.servers
    return [room for room in rooms if room.server.gpus >= demand.gpus_per_node and room.server.name in names]


def rank_fullest(room: FreeCapacity) -> tuple[float | str, ...]:
    """The order of Synergy's code (its simulator, commit 1bb2bed6): the server with fewest free GPUs first."""
    return (room.gpus, room.server.name)


def choose(
    demand: JobDemand, cpus: float, mem_mib: float, rooms: Iterable[FreeCapacity], order: Order
) -> tuple[FreeCapacity, ...]:
    """The best rooms by `order`, one per node; () where it does not fit now."""
    fitting = [room for room in rooms if room.holds(demand.gpus_per_node, cpus, mem_mib)]
    if len(fitting) < demand.nodes:
        return ()
    if demand.nodes == 1:
        return (min(fitting, key=order),)
    return tuple(sorted(fitting, key=order)[: demand.nodes])
