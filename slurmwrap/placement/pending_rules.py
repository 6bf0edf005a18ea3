"""Rules for the jobs of a queue whose CPUs and memory are divided together while they wait. Pure.

The same for the site's reconciler (reconcile/tune_pending.py) and the simulator (sim/engines).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from slurmwrap.fast_dataclasses import replace
from slurmwrap.placement.allocation_options import share_of
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.throughput import find_speed

MATTERS = 0.05  # a change of speed below this is not worth an update of a job that cannot start yet


def limit_to_share_of_servers(claim: JobDemand, servers: Sequence[Server]) -> JobDemand:
    """It may be given less than it asks, but no more than its share: of what lies above others would be short."""
    names = claim.servers
    may_run = [s for s in servers if s.gpus >= claim.gpus_per_node and (names is None or s.name in names)]
    share = share_of(claim, may_run)
    if share is None or not claim.speeds:
        return claim
    return replace(
        claim,
        most_cpus=min(share.most_cpus, max(share.cpus, claim.cpus)),
        most_mem_mib=min(share.most_mem_mib, max(share.mem_mib, claim.mem_mib)),
    )


def list_hurried_jobs(queue: Iterable[tuple[str, Set[str], bool]]) -> frozenset[str]:
    """Tuned jobs with a job behind them that wants the same servers and is not tuned: nobody gets more than his share,
    nor waits for it, in front of such a job, which gains nothing by it. (job, servers where it may run, whether it is
    tuned), the lowest priority first."""
    found, wanted = set[str](), set[str]()
    for job, servers, tuned in queue:
        if not tuned:
            wanted |= servers
        elif not wanted.isdisjoint(servers):
            found.add(job)
    return frozenset(found)


def is_worth_an_update(claim: JobDemand, grant: Allocation, cpus: float, mem_mib: float) -> bool:
    """Whether a job that asks for `cpus` and `mem_mib` per GPU now should ask for its grant instead: always where it
    could start now. Else only a gain in speed, or something given back, is worth an update."""
    if grant.servers:
        return True
    now, then = find_speed(claim.speeds, cpus, mem_mib), find_speed(claim.speeds, grant.cpus, grant.mem_mib)
    if abs(then - now) > MATTERS * now:
        return True
    return cpus - grant.cpus >= 1 or mem_mib > grant.mem_mib * (1 + MATTERS)
