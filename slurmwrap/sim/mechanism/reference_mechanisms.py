"""The allocation mechanisms as Synergy's own simulator has them, to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from slurmwrap.placement.demand import Allocation, JobDemand, Server, SpeedPoint
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity, list_free_capacity
from slurmwrap.placement.throughput import find_speed

# Where a job's GPUs are in Synergy's simulator, and what each then takes of its server's CPUs and memory.
#
# Two ways (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py). Plain: one GPU after the other, each on the
# first server that has room for it, on however many servers that is. Consolidated (their "+place"): of the servers that
# have room for all of it the one with fewest free GPUs; without one, spread over those with fewest free GPUs first.
# Moving and spreading cost no speed there.
# Servers with how many of the job's GPUs; (): no place.
Seats = tuple[tuple[FreeCapacity, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """CPUs and MiB per GPU, and the speed that they give, relative to the share; None: no one knows."""

    cpus: float
    mem_mib: float
    speed: float | None = None


def share_of(server: Server, speed: float | None = 1.0) -> Amount:
    """What falls to each GPU of a server."""
    return Amount(cpus=server.cpus / server.gpus, mem_mib=server.mem_mib / server.gpus, speed=speed)


def assign_gpus(demand: JobDemand, amount: Amount, rooms: Sequence[FreeCapacity], *, consolidate: bool) -> Seats:
    """Takes the room for all GPUs of the job, or none."""
    seats = _assign_consolidated(demand.gpus, amount, rooms) if consolidate else _in_order(demand.gpus, amount, rooms)
    take_resources(seats, amount)
    return seats


def take_resources(seats: Seats, amount: Amount, sign: int = 1) -> None:
    """`sign` -1 gives back."""
    for room, gpus in seats:
        room.take(sign * gpus, amount.cpus, amount.mem_mib)


def make_allocation(demand: JobDemand, amount: Amount, seats: Seats) -> Allocation:
    """`Grant.servers`: one name per GPU."""
    return Allocation(
        job=demand.job,
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


# What a job wants in Synergy's simulator: its best point, cut to what one server has.
#
# Of the points of its profile their simulator knows two only (msr-fiddle/synergy 1bb2bed6, simulator/jobs/workload.py):
# the best, the fewest CPUs and then the least memory of those that are fastest, and the share, at which everybody has
# speed 1. What of the best is more than one server has is cut to that, and the speed is then a straight line over CPUs
# between the share and the best, whatever was cut. A job of more GPUs than a server has never gets beyond its share.
def best_of(demand: JobDemand, server: Server) -> Amount:
    """Per GPU. `server`: like all of them. Its share for a job without a profile, or one that says nothing of that."""
    return _best_of(demand.speeds, demand.gpus, server)


@lru_cache(maxsize=4096)
def _best_of(speeds: tuple[SpeedPoint, ...], gpus: int, server: Server) -> Amount:
    share = share_of(server)
    at_share = find_speed(speeds, share.cpus, share.mem_mib)
    if at_share <= 0:
        return share_of(server, None)
    best = min(speeds, key=lambda point: (-point.speed, point.cpus, point.mem_mib))
    wanted = Amount(cpus=best.cpus, mem_mib=best.mem_mib, speed=best.speed / at_share)
    return _beyond_one(wanted, share, gpus, server) if gpus > server.gpus else _cut_demand(wanted, share, gpus, server)


def _cut_demand(wanted: Amount, share: Amount, gpus: int, server: Server) -> Amount:
    cpus, mem_mib = min(wanted.cpus, server.cpus / gpus), min(wanted.mem_mib, server.mem_mib / gpus)
    if (cpus, mem_mib) == (wanted.cpus, wanted.mem_mib):
        return wanted
    along = (cpus - share.cpus) / (wanted.cpus - share.cpus) if wanted.cpus != share.cpus else 0.0
    return Amount(cpus=cpus, mem_mib=mem_mib, speed=1.0 + ((wanted.speed or 1.0) - 1.0) * along)


def _beyond_one(wanted: Amount, share: Amount, gpus: int, server: Server) -> Amount:
    return Amount(
        cpus=wanted.cpus if wanted.cpus * gpus <= server.cpus else share.cpus,
        mem_mib=wanted.mem_mib if wanted.mem_mib * gpus <= server.mem_mib else share.mem_mib,
        speed=1.0,
    )


# The mechanism `proportional` as Synergy's authors play it ("+fair"): each GPU comes with its part of the server.
def reference_proportional(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """One grant per claim, in order, all with speed 1. `servers`: equal and empty."""
    rooms, share = list_free_capacity(servers), share_of(servers[0])
    return tuple(
        make_allocation(claim, share, assign_gpus(claim, share, rooms, consolidate=consolidate)) for claim in claims
    )


# The mechanism `greedy` of Synergy's authors: the best for each job in order, and who then has no room is passed.
#
# So GPUs stay idle because CPUs or memory are gone: the paper's case against packing (Mohan et al., OSDI 2022; in
# msr-fiddle/synergy 1bb2bed6 it is what a policy does with neither "+fair" nor "+tune"). Their simulator tries
# everybody in the queue, not only the first whose GPUs add up to the cluster's.
def reference_greedy(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """One grant per claim, in order. `claims`: the whole queue; `servers`: equal and empty."""
    rooms = list_free_capacity(servers)
    free = sum(room.gpus for room in rooms)
    grants = []
    for claim in claims:
        best, seats = best_of(claim, servers[0]), Seats()
        if claim.gpus <= free:
            seats = assign_gpus(claim, best, rooms, consolidate=consolidate)
            free -= sum(gpus for _, gpus in seats)
        grants.append(make_allocation(claim, best, seats))
    return tuple(grants)


# The mechanism `tune` as Synergy's authors play it, quirks included. Production's cleaned one: placement/synergy_tune.
#
# Each job in order (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py): its best demand; where that has no
# room, its share; where even that has none, jobs on one server go back to their share until it has. What is odd in it:
#
# - There is nothing between the best and the share, and the speed is known at these two only (reference_mechanisms.py).
# - The test that ought to pass a job whose return would free nothing that is missing compares five resources of which
# one
#   is never missing: so it passes none, and some lose their speed for nothing.
# - A return is all or nothing, in CPUs and memory alike, and upwards too where the job had less than its share of one.
# - A server with enough free GPUs is the first such one for several GPUs, and the one with fewest free for one.
# - `largest_first`, only with their LAS: the chosen jobs are sorted by GPUs, most first.
@dataclass(slots=True, kw_only=True)
class _Seated:
    """One job of the round."""

    claim: JobDemand
    given: Amount
    seats: Seats = ()

    def on(self, room: FreeCapacity) -> int:
        """How many of its GPUs are there."""
        return next((gpus for other, gpus in self.seats if other is room), 0)


def reference_tune(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False, largest_first: bool = False
) -> tuple[Allocation, ...]:
    """One grant per claim, in order. `claims`: those whose GPUs fit; `servers`: equal and empty."""
    rooms, share = list_free_capacity(servers), share_of(servers[0])
    jobs = [_Seated(claim=claim, given=best_of(claim, servers[0])) for claim in claims]
    seated: list[_Seated] = []
    for job in sorted(jobs, key=lambda job: -job.claim.gpus) if largest_first else jobs:
        job.seats = assign_gpus(job.claim, job.given, rooms, consolidate=consolidate)
        if not job.seats and _is_above_share(job.given, share):
            job.given = share
            job.seats = assign_gpus(job.claim, share, rooms, consolidate=consolidate)
        if not job.seats:
            _give_back(job, seated, rooms, share)
            job.seats = assign_gpus(job.claim, job.given, rooms, consolidate=consolidate)
        seated.append(job)
    return tuple(make_allocation(job.claim, job.given, job.seats) for job in jobs)


def _is_above_share(given: Amount, share: Amount) -> bool:
    return given.cpus > share.cpus + ROUNDING or given.mem_mib > share.mem_mib + ROUNDING


def _give_back(job: _Seated, seated: Sequence[_Seated], rooms: Sequence[FreeCapacity], share: Amount) -> None:
    """Makes room for what the job is given now."""
    for room, gpus in _find_servers(job.claim.gpus, rooms):
        missing = (job.given.cpus * gpus - room.cpus, job.given.mem_mib * gpus - room.mem_mib)
        for victim in sorted((other for other in seated if other.on(room)), key=_first_to_give):
            if max(missing) <= ROUNDING:
                break
            here = victim.on(room)
            missing = (
                missing[0] - here * max(0.0, victim.given.cpus - share.cpus),
                missing[1] - here * max(0.0, victim.given.mem_mib - share.mem_mib),
            )
            _revert_to_share(victim, share)


def _find_servers(gpus: int, rooms: Sequence[FreeCapacity]) -> Seats:
    """The servers that are to have room, with how many GPUs on each."""
    whole = next((room for room in rooms if room.gpus >= gpus), None) if gpus > 1 else None
    if whole is not None:
        return ((whole, gpus),)
    found, left = [], gpus
    for room in emptiest_last(rooms):
        here = min(left, room.gpus)
        if here:
            found.append((room, here))
        left -= here
    return tuple(found)


def _first_to_give(victim: _Seated) -> tuple[float, ...]:
    return (len(victim.seats), -victim.given.cpus, -victim.given.mem_mib)


def _revert_to_share(victim: _Seated, share: Amount) -> None:
    if _is_above_share(victim.given, share):
        take_resources(victim.seats, victim.given, -1)
        if not all(room.holds(gpus, share.cpus, share.mem_mib) for room, gpus in victim.seats):  # there they abort
            share = Amount(
                cpus=min(share.cpus, victim.given.cpus), mem_mib=min(share.mem_mib, victim.given.mem_mib), speed=1.0
            )
        take_resources(victim.seats, share)
        victim.given = share
