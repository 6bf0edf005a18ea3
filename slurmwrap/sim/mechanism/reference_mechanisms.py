"""The allocation mechanisms of Synergy's own simulator, for comparison: proportional, greedy and tune; and tetris."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from slurmwrap.placement.demand import Allocation, JobDemand, Server, SpeedPoint
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity, list_free_capacity
from slurmwrap.placement.throughput import find_speed

# The assignment of GPUs in Synergy's simulator, and what each GPU then takes of its server's CPUs and memory.
#
# There are two ways (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py). Plain: one GPU after the other, each
# on the first server with enough free capacity, on however many servers that is. Consolidated (their "+place"): of the
# servers with enough free capacity for the whole job the one with fewest free GPUs; if there is none, spread over those
# with fewest free GPUs first. Migration and spreading cost no speed there.
#
# GpuAssignment: servers with the number of the job's GPUs on each; (): not assigned.
GpuAssignment = tuple[tuple[FreeCapacity, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """CPUs and MiB per GPU, and the speed that they give, relative to the share; None: unknown."""

    cpus: float
    mem_mib: float
    speed: float | None = None


def share_of(server: Server, speed: float | None = 1.0) -> Amount:
    """Return the proportional share of one GPU of a server."""
    return Amount(cpus=server.cpus / server.gpus, mem_mib=server.mem_mib / server.gpus, speed=speed)


def assign_gpus(
    demand: JobDemand, amount: Amount, capacities: Sequence[FreeCapacity], *, consolidate: bool
) -> GpuAssignment:
    """Take the capacity for all GPUs of the job, or none; return the servers."""
    assignment = (
        _assign_consolidated(demand.gpus, amount, capacities)
        if consolidate
        else _assign_in_order(demand.gpus, amount, capacities)
    )
    take_resources(assignment, amount)
    return assignment


def take_resources(assignment: GpuAssignment, amount: Amount, sign: int = 1) -> None:
    """Take `amount` on each server of the assignment; `sign` -1 gives it back."""
    for capacity, gpus in assignment:
        capacity.take(sign * gpus, amount.cpus, amount.mem_mib)


def make_allocation(demand: JobDemand, amount: Amount, assignment: GpuAssignment) -> Allocation:
    """Return the allocation. `Allocation.servers` has one name per GPU."""
    return Allocation(
        job=demand.job,
        cpus=amount.cpus,
        mem_mib=int(amount.mem_mib),
        servers=tuple(capacity.server.name for capacity, gpus in assignment for _ in range(gpus)),
        speed=amount.speed if assignment else None,
    )


def sort_fullest_first(capacities: Iterable[FreeCapacity]) -> list[FreeCapacity]:
    """Return the servers with free GPUs, fewest free GPUs first; equals in the order of the servers."""
    return sorted((capacity for capacity in capacities if capacity.gpus > 0), key=lambda capacity: capacity.gpus)


def _assign_consolidated(gpus: int, amount: Amount, capacities: Sequence[FreeCapacity]) -> GpuAssignment:
    if gpus > 1:
        holding = [capacity for capacity in capacities if capacity.holds(gpus, amount.cpus, amount.mem_mib)]
        if holding:
            return ((min(holding, key=lambda capacity: capacity.gpus), gpus),)
    return _assign_in_order(gpus, amount, sort_fullest_first(capacities))


def _assign_in_order(gpus: int, amount: Amount, capacities: Iterable[FreeCapacity]) -> GpuAssignment:
    assignment, left = [], gpus
    for capacity in capacities:
        if capacity.gpus <= 0 or not capacity.holds(1, amount.cpus, amount.mem_mib):
            continue
        here = left if left == 1 else min(left, _count_most(capacity, amount))
        assignment.append((capacity, here))
        left -= here
        if not left:
            return tuple(assignment)
    return ()


def _count_most(capacity: FreeCapacity, amount: Amount) -> int:
    """Return how many GPUs with so much each fit on the server."""
    by_cpus = (capacity.cpus + ROUNDING) // amount.cpus if amount.cpus > 0 else capacity.gpus
    by_memory = (capacity.mem_mib + ROUNDING) // amount.mem_mib if amount.mem_mib > 0 else capacity.gpus
    return int(min(capacity.gpus, by_cpus, by_memory))


# The best point of a job in Synergy's simulator, cut to what one server has.
#
# Their simulator knows only two points of a profile (msr-fiddle/synergy 1bb2bed6, simulator/jobs/workload.py): the best
# (the fewest CPUs and then the least memory of the fastest points), and the share, at which every job has speed 1. If
# the best exceeds one server it is cut to that, and the speed is then a straight line over CPUs between the share and
# the best, whatever was cut. A job with more GPUs than a server never gets more than its share.
def compute_best_amount(demand: JobDemand, server: Server) -> Amount:
    """Return the best amount per GPU. `server`: like all servers.

    The share for a job without a profile, or with one that does not cover the share.
    """
    return _best_of(demand.speeds, demand.gpus, server)


@lru_cache(maxsize=4096)
def _best_of(speeds: tuple[SpeedPoint, ...], gpus: int, server: Server) -> Amount:
    share = share_of(server)
    at_share = find_speed(speeds, share.cpus, share.mem_mib)
    if at_share <= 0:
        return share_of(server, None)
    best = min(speeds, key=lambda point: (-point.speed, point.cpus, point.mem_mib))
    wanted = Amount(cpus=best.cpus, mem_mib=best.mem_mib, speed=best.speed / at_share)
    return (
        _limit_to_share(wanted, share, gpus, server) if gpus > server.gpus else _cut_demand(wanted, share, gpus, server)
    )


def _cut_demand(wanted: Amount, share: Amount, gpus: int, server: Server) -> Amount:
    cpus, mem_mib = min(wanted.cpus, server.cpus / gpus), min(wanted.mem_mib, server.mem_mib / gpus)
    if (cpus, mem_mib) == (wanted.cpus, wanted.mem_mib):
        return wanted
    along = (cpus - share.cpus) / (wanted.cpus - share.cpus) if wanted.cpus != share.cpus else 0.0
    return Amount(cpus=cpus, mem_mib=mem_mib, speed=1.0 + ((wanted.speed or 1.0) - 1.0) * along)


def _limit_to_share(wanted: Amount, share: Amount, gpus: int, server: Server) -> Amount:
    return Amount(
        cpus=wanted.cpus if wanted.cpus * gpus <= server.cpus else share.cpus,
        mem_mib=wanted.mem_mib if wanted.mem_mib * gpus <= server.mem_mib else share.mem_mib,
        speed=1.0,
    )


# The mechanism `proportional` as in Synergy's simulator ("+fair"): each GPU comes with its share of the server.
def reference_proportional(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order, all with speed 1. `servers`: equal and empty."""
    capacities, share = list_free_capacity(servers), share_of(servers[0])
    return tuple(
        make_allocation(demand, share, assign_gpus(demand, share, capacities, consolidate=consolidate))
        for demand in claims
    )


# The mechanism `greedy` as in Synergy's simulator: the best for each job in order; a job that does not fit is passed.
#
# So GPUs stay idle because CPUs or memory are used up: the paper's argument against packing (Mohan et al., OSDI 2022;
# in msr-fiddle/synergy 1bb2bed6 it is what a policy does with neither "+fair" nor "+tune"). Their simulator tries the
# whole queue, not only the first jobs whose GPUs add up to the cluster's.
def reference_greedy(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order. `claims`: the whole queue; `servers`: equal and empty."""
    capacities = list_free_capacity(servers)
    free = sum(capacity.gpus for capacity in capacities)
    allocations = []
    for demand in claims:
        best, assignment = compute_best_amount(demand, servers[0]), GpuAssignment()
        if demand.gpus <= free:
            assignment = assign_gpus(demand, best, capacities, consolidate=consolidate)
            free -= sum(gpus for _, gpus in assignment)
        allocations.append(make_allocation(demand, best, assignment))
    return tuple(allocations)


# The mechanism `tetris`: multi-resource packing (Grandl et al., SIGCOMM 2014), as a baseline of Synergy's paper.
#
# As with `greedy` each job gets its best or nothing. The next job is the one with the highest sum of two scores: how
# well its demand fits what is free (the dot product of both, as shares of a server; over the highest one), and its
# place in the policy's order (1 for the first, 0 after the last). Tetris weighs alignment and remaining work so that
# both count alike on average, with SRTF as the order. It scores one machine at a time, and this all servers together,
# because a job may need several.
def reference_tetris(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order. `claims`: the whole queue; `servers`: equal and empty."""
    capacities, like = list_free_capacity(servers), servers[0]
    best = [compute_best_amount(demand, like) for demand in claims]
    assigned = [GpuAssignment() for _ in claims]
    left = list(range(len(claims)))
    while left:
        free = (
            sum(capacity.gpus for capacity in capacities),
            sum(capacity.cpus for capacity in capacities) / like.cpus * like.gpus,
            sum(capacity.mem_mib for capacity in capacities) / like.mem_mib * like.gpus,
        )
        scores = {number: _align(claims[number], best[number], free, like) for number in left}
        highest = max(scores.values()) or 1.0
        chosen = max(left, key=lambda number: (scores[number] / highest + 1 - number / len(claims), -number))
        left.remove(chosen)
        if claims[chosen].gpus <= free[0]:
            assigned[chosen] = assign_gpus(claims[chosen], best[chosen], capacities, consolidate=consolidate)
        if not free[0]:
            break
    return tuple(make_allocation(*each) for each in zip(claims, best, assigned, strict=True))


def _align(demand: JobDemand, amount: Amount, free: tuple[float, float, float], like: Server) -> float:
    """Return the dot product of what the job wants and what is free; both in GPUs, or what goes with as many GPUs."""
    gpus = demand.gpus
    wanted = (gpus, gpus * amount.cpus / like.cpus * like.gpus, gpus * amount.mem_mib / like.mem_mib * like.gpus)
    return sum(one * other for one, other in zip(wanted, free, strict=True))


# The mechanism `tune` as in Synergy's simulator, quirks included. Production's clean variant: placement/allocate.py.
#
# Each job in order (msr-fiddle/synergy 1bb2bed6, simulator/resources/cluster.py) gets its best demand. If that does not
# fit, it gets its share. If even that does not fit, jobs on one server go back to their share until it does. Its
# quirks:
#
# - There is nothing between the best and the share, and the speed is known at these two only (see above).
# - The test that should skip a victim whose return would free nothing that is missing compares five resources of which
#   one is never missing. So it skips none, and some jobs lose their speed for nothing.
# - A return is all or nothing, for CPUs and memory alike, and also upwards if the job had less than its share of one.
# - The server with enough free GPUs is the first one for several GPUs, and the one with fewest free for one GPU.
# - `largest_first`, only with their LAS: the chosen jobs are sorted by GPUs, most first.
@dataclass(slots=True, kw_only=True)
class _AssignedJob:
    """One job of the round."""

    claim: JobDemand
    given: Amount
    seats: GpuAssignment = ()

    def on(self, capacity: FreeCapacity) -> int:
        """Return how many of its GPUs are on this server."""
        return next((gpus for other, gpus in self.seats if other is capacity), 0)


def reference_tune(
    claims: Sequence[JobDemand], servers: Sequence[Server], *, consolidate: bool = False, largest_first: bool = False
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order. `claims`: those whose GPUs fit; `servers`: equal and empty."""
    capacities, share = list_free_capacity(servers), share_of(servers[0])
    jobs = [_AssignedJob(claim=demand, given=compute_best_amount(demand, servers[0])) for demand in claims]
    others: list[_AssignedJob] = []
    for job in sorted(jobs, key=lambda job: -job.claim.gpus) if largest_first else jobs:
        job.seats = assign_gpus(job.claim, job.given, capacities, consolidate=consolidate)
        if not job.seats and _is_above_share(job.given, share):
            job.given = share
            job.seats = assign_gpus(job.claim, share, capacities, consolidate=consolidate)
        if not job.seats:
            _take_back_excess(job, others, capacities, share)
            job.seats = assign_gpus(job.claim, job.given, capacities, consolidate=consolidate)
        others.append(job)
    return tuple(make_allocation(job.claim, job.given, job.seats) for job in jobs)


def _is_above_share(given: Amount, share: Amount) -> bool:
    return given.cpus > share.cpus + ROUNDING or given.mem_mib > share.mem_mib + ROUNDING


def _take_back_excess(
    job: _AssignedJob, others: Sequence[_AssignedJob], capacities: Sequence[FreeCapacity], share: Amount
) -> None:
    """Free capacity for what the job should get, by reducing other jobs to their share."""
    for capacity, gpus in _find_servers(job.claim.gpus, capacities):
        missing = (job.given.cpus * gpus - capacity.cpus, job.given.mem_mib * gpus - capacity.mem_mib)
        for victim in sorted((other for other in others if other.on(capacity)), key=_first_to_give):
            if max(missing) <= ROUNDING:
                break
            here = victim.on(capacity)
            missing = (
                missing[0] - here * max(0.0, victim.given.cpus - share.cpus),
                missing[1] - here * max(0.0, victim.given.mem_mib - share.mem_mib),
            )
            _revert_to_share(victim, share)


def _find_servers(gpus: int, capacities: Sequence[FreeCapacity]) -> GpuAssignment:
    """Return the servers on which capacity should be freed, with the number of GPUs on each."""
    whole = next((capacity for capacity in capacities if capacity.gpus >= gpus), None) if gpus > 1 else None
    if whole is not None:
        return ((whole, gpus),)
    found, left = [], gpus
    for capacity in sort_fullest_first(capacities):
        here = min(left, capacity.gpus)
        if here:
            found.append((capacity, here))
        left -= here
    return tuple(found)


def _first_to_give(victim: _AssignedJob) -> tuple[float, ...]:
    return (len(victim.seats), -victim.given.cpus, -victim.given.mem_mib)


def _revert_to_share(victim: _AssignedJob, share: Amount) -> None:
    if _is_above_share(victim.given, share):
        take_resources(victim.seats, victim.given, -1)
        if not all(
            capacity.holds(gpus, share.cpus, share.mem_mib) for capacity, gpus in victim.seats
        ):  # their simulator aborts in this case
            share = Amount(
                cpus=min(share.cpus, victim.given.cpus), mem_mib=min(share.mem_mib, victim.given.mem_mib), speed=1.0
            )
        take_resources(victim.seats, share)
        victim.given = share
