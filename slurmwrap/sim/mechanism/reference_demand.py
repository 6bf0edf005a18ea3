"""What a job wants in Synergy's simulator: its best point, cut to what one server has. Pure.

Of the points of its profile their simulator knows two only (msr-fiddle/synergy 1bb2bed6, simulator/jobs/workload.py):
the best, the fewest CPUs and then the least memory of those that are fastest, and the share, at which everybody has
speed 1. What of the best is more than one server has is cut to that, and the speed is then a straight line over CPUs
between the share and the best, whatever was cut. A job of more GPUs than a server has never gets beyond its share.
"""

from __future__ import annotations

from functools import lru_cache

from slurmwrap.placement.demand import JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed
from slurmwrap.sim.mechanism.reference_seats import Amount, share_of


def best_of(claim: JobDemand, server: Server) -> Amount:
    """Per GPU. `server`: like all of them. Its share for a job without a profile, or one that says nothing of that."""
    return _best_of(claim.speeds, claim.gpus, server)


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
