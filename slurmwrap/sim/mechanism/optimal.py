"""The mechanisms `opt` and `opt-placed`: the division of CPUs and memory with the greatest sum of speeds in a round.

Synergy-Opt's first program (Mohan et al., OSDI 2022; msr-fiddle/synergy 1bb2bed6, simulator/opt_algo), by HiGHS:

    max   sum over jobs of speed[job, point]          one point of its profile for each job, never slower than at its
    s.t.  sum of GPUs[job] x CPUs[point] <= CPUs      proportional share
          sum of GPUs[job] x MiB[point] <= MiB        of all servers together

It is an upper bound of that sum in each round, but not of the outcome for a queue: it does not consider which job gains
most from speed. The servers are one pool: a job may hold GPUs of one and CPUs of another, so a real cluster may not
reach it.

`opt-placed` adds their second program, which spreads the jobs over the servers in fractions, and the rounding:

    find  part[server, job] >= 0 with sum over servers of part[server, job] = 1
    s.t.  on each server, sums over jobs of part x GPUs, CPUs and MiB <= what the server has

Between equal servers an equal part of each job on each of them satisfies it. A vertex has at most three times as many
divided jobs as there are servers. Whole jobs get what the first program gave them; divided ones then get no more than
their share, on one server if possible, else GPU by GPU. This runs on a real cluster.

Jobs with the same options are one group, whose counts per point are integers: exact, and it takes milliseconds however
many jobs there are. The program does not determine which jobs of a group get the faster points. Here those of lower
priority get them: so the figures of the authors' code, with HiGHS as its solver, are reproduced (makespan 10.58 h;
otherwise 10.50 h).

    allocations = allocate_optimal(demands, servers)         # a Mechanism; the same jobs are solved only once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import highspy

from slurmwrap.fast_dataclasses import replace
from slurmwrap.placement.demand import Allocation, JobDemand, Server, SpeedPoint
from slurmwrap.placement.free_capacity import FreeCapacity, list_free_capacity
from slurmwrap.placement.throughput import find_speed
from slurmwrap.sim.mechanism.reference_mechanisms import Amount, GpuAssignment, assign_gpus, take_resources

_SAME = 1e-9
# A job whose part on a server is at most so much below 1 is whole.
_WHOLE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GroupAllocation:
    """What each job of a group may be given: CPUs and MiB per GPU."""

    # Speed relative to the proportional share.
    speed: float
    cpus: float
    mem_mib: int
    gpus: int  # GPUs of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class AllServers:
    """The resources of all servers together."""

    gpus: int
    cpus: int
    mem_mib: int

    @property
    def share(self) -> tuple[float, int]:
        """CPUs and MiB per GPU."""
        return self.cpus / self.gpus, self.mem_mib // self.gpus


Options = tuple[GroupAllocation, ...]
# The options of each job of the group, and the number of jobs.
Group = tuple[Options, int]


def allocate_optimal(demands: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order. `servers` count as a whole, whatever is free on them.

    Jobs are admitted in order while the pool has their GPUs and what they get at their shares or, without a profile,
    ask for; the others get no server. `Allocation.servers`: one name per GPU, filled in order; CPUs and memory are the
    pool's.
    """
    pool = AllServers(
        gpus=sum(server.gpus for server in servers),
        cpus=sum(server.cpus for server in servers),
        mem_mib=sum(server.mem_mib for server in servers),
    )
    given = find_optimum(_select_admitted(demands, pool), pool)
    server_names = iter([server.name for server in servers for _ in range(server.gpus)])
    return tuple(_make_allocation(demand, given.get(number), server_names) for number, demand in enumerate(demands))


def allocate_optimal_placed(demands: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order: what the first program gives, as far as equal servers hold it.

    A job for which no server is left gets none. `servers`: equal and empty.
    """
    pool_of_all = allocate_optimal(demands, servers)
    admitted = [number for number, one in enumerate(pool_of_all) if one.servers]
    capacities = list_free_capacity(servers)
    whole = _find_whole_jobs([pool_of_all[number] for number in admitted], capacities) if admitted else {}
    seats: dict[int, tuple[Allocation, GpuAssignment]] = {}
    for place, server in whole.items():
        number, capacity = admitted[place], capacities[server]
        assignment: GpuAssignment = ((capacity, demands[number].gpus),)
        take_resources(assignment, _amount_of(pool_of_all[number]))
        seats[number] = pool_of_all[number], assignment
    for number in admitted:
        if number not in seats:
            given = _limit_to_share(pool_of_all[number], demands[number], servers[0])
            assignment = assign_gpus(demands[number], _amount_of(given), capacities, consolidate=True)
            seats[number] = given, assignment
    return tuple(_make_placed(one, seats.get(number)) for number, one in enumerate(pool_of_all))


def _find_whole_jobs(given: Sequence[Allocation], capacities: Sequence[FreeCapacity]) -> dict[int, int]:
    """Return job -> server, by position, of the jobs that a vertex of the second program puts on one server."""
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("solver", "simplex")):
        model.setOptionValue(name, value)
    parts = [[model.addVariable(lb=0, ub=1) for _ in given] for _ in capacities]
    for job in range(len(given)):
        model.addConstr(model.qsum(row[job] for row in parts) == 1)
    for row, capacity in zip(parts, capacities, strict=True):
        jobs = [(part, len(one.servers), one) for part, one in zip(row, given, strict=True)]
        model.addConstr(model.qsum(part * gpus for part, gpus, _ in jobs) <= capacity.gpus)
        model.addConstr(model.qsum(part * (gpus * one.cpus) for part, gpus, one in jobs) <= capacity.cpus + _SAME)
        model.addConstr(model.qsum(part * (gpus * one.mem_mib) for part, gpus, one in jobs) <= capacity.mem_mib + _SAME)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return {}
    return {
        job: server
        for server, row in enumerate(parts)
        for job, part in enumerate(row)
        if model.val(part) >= 1 - _WHOLE and len(given[job].servers) <= capacities[server].gpus
    }


def _limit_to_share(one: Allocation, demand: JobDemand, server: Server) -> Allocation:
    """Return the allocation with no more than the proportional share, and the speed there."""
    share_cpus, share_mib = server.cpus / server.gpus, server.mem_mib // server.gpus
    cpus, mem_mib = min(one.cpus, share_cpus), min(one.mem_mib, share_mib)
    if one.speed is None:
        return replace(one, cpus=cpus, mem_mib=mem_mib)
    at_share = find_speed(demand.speeds, share_cpus, share_mib)
    return replace(one, cpus=cpus, mem_mib=mem_mib, speed=find_speed(demand.speeds, cpus, mem_mib) / at_share)


def _amount_of(one: Allocation) -> Amount:
    return Amount(cpus=one.cpus, mem_mib=one.mem_mib, speed=one.speed)


def _make_placed(one: Allocation, found: tuple[Allocation, GpuAssignment] | None) -> Allocation:
    given, assignment = found or (one, ())
    names = tuple(capacity.server.name for capacity, gpus in assignment for _ in range(gpus))
    return replace(given, servers=names, speed=given.speed if names else None)


def find_optimum(menus: Sequence[tuple[int, Options]], pool: AllServers) -> dict[int, GroupAllocation]:
    """Return the job's number → what it is given. `menus`: the options of each job, highest priority first."""
    groups: dict[Options, list[int]] = {}
    for number, menu in menus:
        groups.setdefault(menu, []).append(number)
    # Sorted, so that the order of the jobs does not lead to a different problem.
    alike = sorted(groups)
    counts = compute_best_counts(tuple((menu, len(groups[menu])) for menu in alike), pool)
    given: dict[int, GroupAllocation] = {}
    for menu, of_menu in zip(alike, counts, strict=True):
        slowest_first = sorted(zip(menu, of_menu, strict=True))
        options = [option for option, count in slowest_first for _ in range(count)]
        given.update(zip(groups[menu], options, strict=True))
    return given


@lru_cache(maxsize=65_536)
def compute_best_counts(groups: tuple[Group, ...], pool: AllServers) -> tuple[tuple[int, ...], ...]:
    """Return how many jobs of each group get each of its options. ValueError if the pool cannot hold them at all."""
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0)):
        model.setOptionValue(name, value)
    counts = [[model.addIntegral(lb=0, ub=many) for _ in menu] for menu, many in groups]
    terms = [term for row, (menu, _) in zip(counts, groups, strict=True) for term in zip(row, menu, strict=True)]
    if not terms:
        return ()
    for row, (_, many) in zip(counts, groups, strict=True):
        model.addConstr(model.qsum(row) == many)
    model.addConstr(model.qsum(count * (option.cpus * option.gpus) for count, option in terms) <= pool.cpus)
    model.addConstr(model.qsum(count * (option.mem_mib * option.gpus) for count, option in terms) <= pool.mem_mib)
    model.maximize(model.qsum(count * option.speed for count, option in terms))
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ValueError(f"{pool.cpus} CPUs and {pool.mem_mib} MiB do not hold these jobs")
    return tuple(tuple(round(model.val(count)) for count in row) for row in counts)


def _select_admitted(demands: Sequence[JobDemand], pool: AllServers) -> list[tuple[int, Options]]:
    """Return the jobs that the pool certainly holds: each at its share, or at its only option."""
    taken = []
    gpus, cpus, mem_mib = pool.gpus, float(pool.cpus), pool.mem_mib
    for number, demand in enumerate(demands):
        menu = list_group_options(demand, pool.share)
        per_gpu = pool.share if len(menu) > 1 else (menu[0].cpus, menu[0].mem_mib)
        own_cpus, own_mib = per_gpu[0] * demand.gpus, per_gpu[1] * demand.gpus
        if demand.gpus <= gpus and own_cpus <= cpus + _SAME and own_mib <= mem_mib:
            taken.append((number, menu))
            gpus, cpus, mem_mib = gpus - demand.gpus, cpus - own_cpus, mem_mib - own_mib
    return taken


def list_group_options(demand: JobDemand, share: tuple[float, int]) -> Options:
    """Return the points of the job's profile, and its share, that are useful.

    Useful: no slower than the share, and no other point is as fast with no more of either. `share`: CPUs and MiB per
    GPU. What the job asks for if the profile does not cover the share. Does not use sim/mechanism/lease_assignment.py
    on purpose: the reference for `graded` shares no code with it.
    """
    at_share = find_speed(demand.speeds, *share)
    if at_share <= 0:
        return (GroupAllocation(cpus=demand.cpus, mem_mib=demand.mem_mib, speed=1.0, gpus=demand.gpus),)
    return _list_options(demand.speeds, share, demand.gpus)


@lru_cache(maxsize=4096)
def _list_options(speeds: tuple[SpeedPoint, ...], share: tuple[float, int], gpus: int) -> Options:
    at_share = find_speed(speeds, *share)
    points = [(float(point.cpus), point.mem_mib, point.speed) for point in speeds if point.speed >= at_share]
    points.append((*share, at_share))
    useful = {one for one in points if not any(_is_better(other, one) for other in points)}
    return tuple(
        GroupAllocation(cpus=cpus, mem_mib=mem_mib, speed=speed / at_share, gpus=gpus)
        for cpus, mem_mib, speed in sorted(useful)
    )


def _is_better(other: tuple[float, int, float], one: tuple[float, int, float]) -> bool:
    """Return whether `other` is as fast with no more of either, and not the same."""
    return other != one and other[0] <= one[0] and other[1] <= one[1] and other[2] >= one[2]


def _make_allocation(demand: JobDemand, given: GroupAllocation | None, server_names: Iterator[str]) -> Allocation:
    if given is None:
        return Allocation(job=demand.job, cpus=demand.cpus, mem_mib=demand.mem_mib)
    return Allocation(
        job=demand.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(islice(server_names, demand.gpus)),
        speed=given.speed if demand.speeds else None,
    )
