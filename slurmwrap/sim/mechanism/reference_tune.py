"""The mechanism `tune` as Synergy's authors play it, quirks included. Production's cleaned one: placement/synergy_tune.

Each job in order (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py): its best demand; where that has no
room, its share; where even that has none, jobs on one server go back to their share until it has. What is odd in it:

- There is nothing between the best and the share, and the speed is known at these two only (reference_demand.py).
- The test that ought to pass a job whose return would free nothing that is missing compares five resources of which one
  is never missing: so it passes none, and some lose their speed for nothing.
- A return is all or nothing, in CPUs and memory alike, and upwards too where the job had less than its share of one.
- A server with enough free GPUs is the first such one for several GPUs, and the one with fewest free for one.
- `largest_first`, only with their LAS: the chosen jobs are sorted by GPUs, most first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity, list_free_capacity
from slurmwrap.sim.mechanism.reference_demand import best_of
from slurmwrap.sim.mechanism.reference_seats import (
    Amount,
    Seats,
    assign_gpus,
    emptiest_last,
    make_allocation,
    share_of,
    take_resources,
)


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
