"""The policy `graded` where leases end: each round divides all servers anew among the chosen jobs. Pure.

Nothing is kept from round to round and no one need be kept room for, so what counts is how much work a round does:

    max  sum over jobs of  weight x GPUs x speed     each at a point of its profile, no slower than its share,
                                                     on servers whose GPUs, CPUs and memory it does not exceed

1. Menu (lease_assignment.py). Each job has a floor, the cheapest point within its share that is as fast, and steps
   above it.
2. Weight. A GPU's speed counts e^lead times as much at the head of the queue as one whole cluster behind it
   (Settings.lead): who is first ends first and makes room for others; the order is all that is known of run times.
3. Targets, seats (lease_assignment.py). The pool of all servers is divided by water-filling; jobs of most GPUs, then
   the hungriest, are seated first, so that hungry ones lie next to light ones. Everybody's floor is kept free for them,
   so that anyone who fits with their share has a place.
4. Exchange (lease_rebalance.py). Servers are divided one by one, and jobs change servers in pairs while that raises
   the sum.
5. Never less than Synergy-Tune. Where that (allocate.py) seats more GPUs, or more speed by weight, its grants hold.

Synergy-Tune knows two points of a job, its best and its share, and takes everything back from whom it meets first. Its
optimum, an integer program on one pool of all servers (OSDI'22), is what the sum here is to come near to.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from slurmwrap.placement.allocate import tune
from slurmwrap.placement.allocation_options import Prices, Share, share_of
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.free_capacity import list_eligible, list_free_capacity
from slurmwrap.sim.mechanism.lease_assignment import Job, Menu, assign_capacity, make_assignment_job, make_menu
from slurmwrap.sim.mechanism.lease_rebalance import exchange_between_servers


def allocate_lease_rounds(
    queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings
) -> tuple[Allocation, ...]:
    """One grant per claim, in the order of the queue (first: highest priority). `servers`: as the round finds them."""
    jobs = _list_jobs(queue, servers, settings)
    rooms = list_free_capacity(sorted(servers, key=lambda server: server.name))
    assign_capacity(jobs, rooms)
    exchange_between_servers(jobs, rooms)
    ours, theirs = tuple(map(_make_allocation, jobs)), tune(queue, servers)
    return ours if _compute_worth(ours, jobs) >= _compute_worth(theirs, jobs) else theirs


def _list_jobs(queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings) -> list[Job]:
    menus = _list_menus(queue, servers, settings)
    gpus, ahead, jobs = max(1, sum(server.gpus for server in servers)), 0, []
    for number, (claim, menu) in enumerate(zip(queue, menus, strict=True)):
        jobs.append(make_assignment_job(number, claim, menu, exp(-settings.lead * ahead / gpus)))
        ahead += claim.gpus
    return jobs


def _list_menus(queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings) -> list[Menu]:
    """The price of a GPU's CPUs is 1, that of its memory Settings.memory_weight."""
    gpus = sum(server.gpus for server in servers)
    prices = Prices(
        cpu=gpus / max(1, sum(server.cpus for server in servers)),
        mib=settings.memory_weight * gpus / max(1, sum(server.mem_mib for server in servers)),
    )
    rooms, shares = list_free_capacity(servers), dict[tuple[object, ...], Share | None]()
    menus, found = dict[tuple[object, ...], Menu](), []
    for claim in queue:
        where = (claim.servers, claim.gpus_per_node, claim.most_cpus, claim.most_mem_mib)
        if where not in shares:
            shares[where] = share_of(claim, [room.server for room in list_eligible(claim, rooms)])
        alike = (*where, id(claim.speeds), claim.cpus, claim.mem_mib, claim.least_cpus, claim.least_mem_mib)
        if alike not in menus:
            menus[alike] = make_menu(claim, shares[where], prices)
        found.append(menus[alike])
    return found


def _compute_worth(grants: Sequence[Allocation], jobs: Sequence[Job]) -> tuple[int, float]:
    """GPUs that have a place; the sum that is to be great, to nine places."""
    seated = [(job, grant) for job, grant in zip(jobs, grants, strict=True) if grant.servers]
    sums = (job.weight * job.claim.gpus * (1.0 if grant.speed is None else grant.speed) for job, grant in seated)
    return sum(job.claim.gpus for job, _ in seated), round(sum(sums), 9)


def _make_allocation(job: Job) -> Allocation:
    claim, given = job.claim, job.given
    told = "" if given.speed is None else f": runs at {given.speed:.3g} times the speed of its share"
    return Allocation(
        job=claim.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(room.server.name for room in job.rooms),
        speed=given.speed,
        cpu_reason=f"{given.cpus:.3g} CPUs per GPU instead of {claim.cpus:.3g}{told}"
        if given.cpus != claim.cpus
        else "",
        mem_reason=f"{given.mem_mib} MiB per GPU instead of {claim.mem_mib}{told}"
        if given.mem_mib != claim.mem_mib
        else "",
    )
