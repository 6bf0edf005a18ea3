"""The policy `proportional`: every job as it asks, in order, where it fits first. What plain Slurm does. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.free_capacity import choose, list_eligible, list_free_capacity, rank_fullest


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
