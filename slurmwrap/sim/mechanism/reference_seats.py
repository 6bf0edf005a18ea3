"""Where a job's GPUs are in Synergy's simulator, and what each then takes of its server's CPUs and memory.

Two ways (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py). Plain: one GPU after the other, each on the
first server that has room for it, on however many servers that is. Consolidated (their "+place"): of the servers that
have room for all of it the one with fewest free GPUs; without one, spread over those with fewest free GPUs first.
Moving and spreading cost no speed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity

Seats = tuple[tuple[FreeCapacity, int], ...]  # servers with how many of the job's GPUs; (): no place


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """CPUs and MiB per GPU, and the speed that they give, relative to the share; None: no one knows."""

    cpus: float
    mem_mib: float
    speed: float | None = None


def share_of(server: Server, speed: float | None = 1.0) -> Amount:
    """What falls to each GPU of a server."""
    return Amount(cpus=server.cpus / server.gpus, mem_mib=server.mem_mib / server.gpus, speed=speed)


def assign_gpus(claim: JobDemand, amount: Amount, rooms: Sequence[FreeCapacity], *, consolidate: bool) -> Seats:
    """Takes the room for all GPUs of the job, or none."""
    seats = _assign_consolidated(claim.gpus, amount, rooms) if consolidate else _in_order(claim.gpus, amount, rooms)
    take_resources(seats, amount)
    return seats


def take_resources(seats: Seats, amount: Amount, sign: int = 1) -> None:
    """`sign` -1 gives back."""
    for room, gpus in seats:
        room.take(sign * gpus, amount.cpus, amount.mem_mib)


def make_allocation(claim: JobDemand, amount: Amount, seats: Seats) -> Allocation:
    """`Grant.servers`: one name per GPU."""
    return Allocation(
        job=claim.job,
        cpus=amount.cpus,
        mem_mib=int(amount.mem_mib),
        servers=tuple(room.server.name for room, gpus in seats for _ in range(gpus)),
        speed=amount.speed if seats else None,
    )


def emptiest_last(rooms: Iterable[FreeCapacity]) -> list[FreeCapacity]:
    """Fewest free GPUs first, of those that have any; equals in the order of the servers."""
    return sorted((room for room in rooms if room.gpus > 0), key=lambda room: room.gpus)


def _assign_consolidated(gpus: int, amount: Amount, rooms: Sequence[FreeCapacity]) -> Seats:
    if gpus > 1:
        holding = [room for room in rooms if room.holds(gpus, amount.cpus, amount.mem_mib)]
        if holding:
            return ((min(holding, key=lambda room: room.gpus), gpus),)
    return _in_order(gpus, amount, emptiest_last(rooms))


def _in_order(gpus: int, amount: Amount, rooms: Iterable[FreeCapacity]) -> Seats:
    seats, left = [], gpus
    for room in rooms:
        if room.gpus <= 0 or not room.holds(1, amount.cpus, amount.mem_mib):
            continue
        here = left if left == 1 else min(left, _count_most(room, amount))
        seats.append((room, here))
        left -= here
        if not left:
            return tuple(seats)
    return ()


def _count_most(room: FreeCapacity, amount: Amount) -> int:
    """How many GPUs with that much each the server has room for."""
    by_cpus = (room.cpus + ROUNDING) // amount.cpus if amount.cpus > 0 else room.gpus
    by_memory = (room.mem_mib + ROUNDING) // amount.mem_mib if amount.mem_mib > 0 else room.gpus
    return int(min(room.gpus, by_cpus, by_memory))
