"""The mechanism `greedy` of Synergy's authors: the best for each job in order, and who then has no room is passed.

So GPUs stay idle because CPUs or memory are gone: the paper's case against packing (Mohan et al., OSDI 2022; in
msr-fiddle/synergy 1bb2bed6 it is what a policy does with neither "+fair" nor "+tune"). Their simulator tries everybody
in the queue, not only the first whose GPUs add up to the cluster's.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.free_capacity import list_free_capacity
from slurmwrap.sim.mechanism.reference_demand import best_of
from slurmwrap.sim.mechanism.reference_seats import Seats, assign_gpus, make_allocation


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
