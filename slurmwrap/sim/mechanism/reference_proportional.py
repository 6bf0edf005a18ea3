"""The mechanism `proportional` as Synergy's authors play it ("+fair"): each GPU comes with its part of the server."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.free_capacity import list_free_capacity
from slurmwrap.sim.mechanism.reference_seats import assign_gpus, make_allocation, share_of


def reference_proportional(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """One grant per claim, in order, all with speed 1. `servers`: equal and empty."""
    rooms, share = list_free_capacity(servers), share_of(servers[0])
    return tuple(
        make_allocation(claim, share, assign_gpus(claim, share, rooms, consolidate=consolidate)) for claim in claims
    )
