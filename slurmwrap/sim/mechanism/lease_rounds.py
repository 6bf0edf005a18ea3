"""The policy `graded` for leases that end: each round divides all servers anew among the chosen jobs. Pure.

Nothing is kept from round to round and no capacity is reserved, so what counts is how much work a round does:

    max  sum over jobs of  weight x GPUs x speed     each at a point of its profile, no slower than its share,
                                                     on servers whose GPUs, CPUs and memory are not exceeded

1. Menu (lease_assignment.py). Each job has a base option, the cheapest point within its share that is as fast, and
   steps above it.
2. Weight. A GPU's speed counts e^lead times as much at the head of the queue as one whole cluster behind it
   (GradedSettings.lead): the first jobs end first and make room for others. The order of the queue is all that is known
   of run times.
3. Targets and assignment (lease_assignment.py). The pool of all servers is divided by water-filling. Jobs with most
   GPUs are assigned first, then those that need most CPUs, so that these lie next to light ones. Every job's base
   option is kept free for it, so that every job that fits with its share is assigned.
4. Exchange (lease_rebalance.py). Servers are divided one by one, and jobs change servers in pairs while that raises
   the sum.
5. Never less than Synergy-Tune. If that (placement/allocate.py) assigns more GPUs, or more weighted speed, its
   allocations are used.

Synergy-Tune knows two points of a job, its best and its share, and takes everything back from the first jobs it finds.
The sum should come close to Synergy's optimum, an integer program on one pool of all servers (OSDI'22).
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
    """Return one allocation per demand, in the order of the queue (highest priority first).

    `servers`: their state at the start of the round.
    """
    jobs = _list_jobs(queue, servers, settings)
    capacities = list_free_capacity(sorted(servers, key=lambda server: server.name))
    assign_capacity(jobs, capacities)
    exchange_between_servers(jobs, capacities)
    graded, synergy = tuple(map(_make_allocation, jobs)), tune(queue, servers)
    return graded if _compute_worth(graded, jobs) >= _compute_worth(synergy, jobs) else synergy


def _list_jobs(queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings) -> list[Job]:
    menus = _list_menus(queue, servers, settings)
    gpus, ahead, jobs = max(1, sum(server.gpus for server in servers)), 0, []
    for number, (demand, menu) in enumerate(zip(queue, menus, strict=True)):
        jobs.append(make_assignment_job(number, demand, menu, exp(-settings.lead * ahead / gpus)))
        ahead += demand.gpus
    return jobs


def _list_menus(queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings) -> list[Menu]:
    """Return each job's options. The price of a GPU's CPUs is 1, that of its memory GradedSettings.memory_weight."""
    gpus = sum(server.gpus for server in servers)
    prices = Prices(
        cpu=gpus / max(1, sum(server.cpus for server in servers)),
        mib=settings.memory_weight * gpus / max(1, sum(server.mem_mib for server in servers)),
    )
    capacities, shares = list_free_capacity(servers), dict[tuple[object, ...], Share | None]()
    menus, found = dict[tuple[object, ...], Menu](), []
    for demand in queue:
        where = (demand.servers, demand.gpus_per_node, demand.most_cpus, demand.most_mem_mib)
        if where not in shares:
            shares[where] = share_of(demand, [capacity.server for capacity in list_eligible(demand, capacities)])
        alike = (*where, id(demand.speeds), demand.cpus, demand.mem_mib, demand.least_cpus, demand.least_mem_mib)
        if alike not in menus:
            menus[alike] = make_menu(demand, shares[where], prices)
        found.append(menus[alike])
    return found


def _compute_worth(allocations: Sequence[Allocation], jobs: Sequence[Job]) -> tuple[int, float]:
    """Return the number of assigned GPUs and the weighted sum of speeds, rounded to nine places."""
    assigned = [(job, allocation) for job, allocation in zip(jobs, allocations, strict=True) if allocation.servers]
    sums = (
        job.weight * job.claim.gpus * (1.0 if allocation.speed is None else allocation.speed)
        for job, allocation in assigned
    )
    return sum(job.claim.gpus for job, _ in assigned), round(sum(sums), 9)


def _make_allocation(job: Job) -> Allocation:
    demand, given = job.claim, job.given
    speed_text = "" if given.speed is None else f": runs at {given.speed:.3g} times the speed of its share"
    return Allocation(
        job=demand.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(capacity.server.name for capacity in job.rooms),
        speed=given.speed,
        cpu_reason=f"{given.cpus:.3g} CPUs per GPU instead of {demand.cpus:.3g}{speed_text}"
        if given.cpus != demand.cpus
        else "",
        mem_reason=f"{given.mem_mib} MiB per GPU instead of {demand.mem_mib}{speed_text}"
        if given.mem_mib != demand.mem_mib
        else "",
    )
