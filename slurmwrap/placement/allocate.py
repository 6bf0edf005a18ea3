"""Divides CPUs and memory among the jobs of a queue: one pure function for gsub, the reconciler and the simulator.

Policies: `proportional` (as asked), `tune` (Synergy-Tune, for rounds in which everything is released) and `graded`
(slurmwrap's own, for a Slurm that takes nothing back; sim/mechanism/lease_rounds.py is its form for rounds). What
holds for all of them: the sum of what starts on a server is at most what is free there; for the latter two: no job is
slower than at its share, by its profile, and none gets more than its limits or a server's size.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.allocation_options import (
    AllocationOption,
    Prices,
    list_allocation_options,
    make_requested_option,
    share_of,
)
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.free_capacity import FreeCapacity, choose, list_eligible, list_free_capacity, rank_fullest
from slurmwrap.placement.graded import allocate_graded


# The policy `proportional`: every job as it asks, in order, where it fits first. What plain Slurm does.
def allocate_proportional(queue: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """One grant per claim, in order; fewest free GPUs first."""
    rooms = list_free_capacity(servers)
    grants = []
    for claim in queue:
        found = choose(claim, claim.cpus, claim.mem_mib, list_eligible(claim, rooms), rank_fullest)
        for room in found:
            room.take(claim.gpus_per_node, claim.cpus, claim.mem_mib)
        names = tuple(room.server.name for room in found)
        grants.append(Allocation(job=claim.job, cpus=claim.cpus, mem_mib=claim.mem_mib, servers=names))
    return tuple(grants)


# The policy `tune`: Synergy-Tune (Mohan et al., OSDI 2022) for one round in which everything was released.
#
# Each job, in order: its best demand; where that fits nowhere, its proportional share; where even that fits nowhere,
# jobs on a server with enough free GPUs give back what they have above their share, one after the other (those on
# fewest servers first, then most CPUs, then most memory per GPU), until it does. So no job is slower than at its
# share, and with empty servers and jobs whose GPUs fit, every job gets a place.
#
# Unlike in the authors' simulator (msr-fiddle/synergy, 1bb2bed6), whose test never skips one, a victim that has nothing
# above its share is left alone, and no demand exceeds what a server has.
# CPUs first; memory only where CPUs are equal.
_EVEN = Prices(cpu=1.0, mib=1e-9)


@dataclass(slots=True, kw_only=True)
class _Seat:
    """One job of the round: what it wants, what it may always have, what it has now."""

    claim: JobDemand
    best: AllocationOption
    share: AllocationOption
    given: AllocationOption
    rooms: tuple[FreeCapacity, ...] = ()

    @property
    def excess(self) -> tuple[float, float]:
        """CPUs and MiB per GPU above its share; a job below it in one of the two keeps that."""
        return max(0.0, self.given.cpus - self.share.cpus), max(0.0, self.given.mem_mib - self.share.mem_mib)


def tune(queue: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """One grant per claim, in order. `queue`: the jobs chosen for this round; `servers`: as the round finds them."""
    rooms = list_free_capacity(servers)
    seats: list[_Seat] = []
    for claim in queue:
        seat = _make_seat(claim, list_eligible(claim, rooms))
        _place(seat, seat.best, rooms)
        if not seat.rooms and any(_is_above_share(seat.best, seat.share)):
            _place(seat, seat.share, rooms)
        if not seat.rooms:
            _give_back(seat, seats, rooms)
            _place(seat, seat.given, rooms)
        seats.append(seat)
    return tuple(_make_allocation(seat) for seat in seats)


def _make_seat(demand: JobDemand, rooms: Sequence[FreeCapacity]) -> _Seat:
    share = share_of(demand, [room.server for room in rooms])
    steps = list_allocation_options(demand, share, _EVEN)
    if share is None or steps[-1].speed is None:
        asked = make_requested_option(demand, _EVEN)
        return _Seat(claim=demand, best=asked, share=asked, given=asked)
    plain = AllocationOption(
        cpus=max(share.cpus, demand.least_cpus), mem_mib=max(share.mem_mib, demand.least_mem_mib), speed=1.0
    )
    # The share itself is not allowed.
    if plain.cpus > share.most_cpus or plain.mem_mib > share.most_mem_mib:
        plain = steps[0]
    return _Seat(claim=demand, best=steps[-1], share=plain, given=steps[-1])


def _is_above_share(demand: AllocationOption, share: AllocationOption) -> tuple[bool, bool]:
    return demand.cpus > share.cpus, demand.mem_mib > share.mem_mib


def _place(seat: _Seat, demand: AllocationOption, rooms: Sequence[FreeCapacity]) -> None:
    claim = seat.claim
    seat.given = demand
    seat.rooms = choose(claim, demand.cpus, demand.mem_mib, list_eligible(claim, rooms), rank_fullest)
    for room in seat.rooms:
        room.take(claim.gpus_per_node, demand.cpus, demand.mem_mib)


def _give_back(seat: _Seat, seated: Sequence[_Seat], rooms: Sequence[FreeCapacity]) -> None:
    """Makes room for seat.given on the servers with fewest free GPUs that have enough of them."""
    gpus = seat.claim.gpus_per_node
    able = sorted((room for room in list_eligible(seat.claim, rooms) if room.gpus >= gpus), key=rank_fullest)
    if len(able) < seat.claim.nodes:
        return
    for room in able[: seat.claim.nodes]:
        victims = [victim for victim in seated if any(victim.excess) and room in victim.rooms]
        for victim in sorted(victims, key=_rank_victims):
            if room.holds(gpus, seat.given.cpus, seat.given.mem_mib):
                break
            _revert(victim)


def _rank_victims(victim: _Seat) -> tuple[float, ...]:
    return (len(victim.rooms), -victim.given.cpus, -victim.given.mem_mib)


def _revert(victim: _Seat) -> None:
    """To its share in all of it, on the servers where it is."""
    for room in victim.rooms:
        room.take(-victim.claim.gpus_per_node, victim.given.cpus, victim.given.mem_mib)
        room.take(victim.claim.gpus_per_node, victim.share.cpus, victim.share.mem_mib)
    victim.given = victim.share


def _make_allocation(seat: _Seat) -> Allocation:
    given = seat.given
    return Allocation(
        job=seat.claim.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(room.server.name for room in seat.rooms),
        speed=given.speed,
        cpu_reason=f"Synergy-Tune: {given.cpus:.3g} CPUs per GPU" if given.cpus != seat.claim.cpus else "",
        mem_reason=f"Synergy-Tune: {given.mem_mib} MiB per GPU" if given.mem_mib != seat.claim.mem_mib else "",
    )


def allocate(
    queue: Sequence[JobDemand], servers: Sequence[Server], policy: str, settings: GradedSettings | None = None
) -> tuple[Allocation, ...]:
    """One grant per claim, in the order of `queue` (first: highest priority). ValueError for an unknown policy.

    `tune` is for rounds: pass the chosen jobs and empty servers. `graded` and `proportional` take the waiting jobs and
    the servers as they are now. What is granted to a job that does not fit yet (no `servers`) is what it should
    ask for.
    """
    if policy == "graded":
        return allocate_graded(queue, servers, settings or GradedSettings())
    if policy == "tune":
        return tune(queue, servers)
    if policy == "proportional":
        return allocate_proportional(queue, servers)
    raise ValueError(f"there is no policy '{policy}': graded, tune or proportional")
