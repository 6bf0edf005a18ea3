"""The mechanism `opt`: no division of all CPUs and memory gives the jobs of a round more speed, in sum over jobs.

Synergy-Opt's first program (Mohan et al., OSDI 2022; msr-fiddle/synergy 1bb2bed6, simulator/opt_algo), by HiGHS:

    max   sum over jobs of speed[job, point]          one point of its profile for each job, never slower than at its
    s.t.  sum of GPUs[job] x CPUs[point] <= CPUs      proportional share
          sum of GPUs[job] x MiB[point] <= MiB        of all servers together

An upper bound of that sum in each round, not of what becomes of a queue: whom speed helps most it does not ask. The
servers are one pool: a job may hold GPUs of one and CPUs of another, so a real cluster need not reach it. Their
second program, which spreads the jobs over the servers in fractions, is not solved: between equal servers, an equal
part of each job on each of them always satisfies it, and nothing that it finds changes a speed.

Jobs that may be given the same are one group, whose counts per point are integers: exact, and a matter of milliseconds
however many jobs there are. Who of a group gets the faster points the program does not say. Here it is those of lower
priority: so the figures of the authors' code, with HiGHS as its solver, are met (makespan 10.58 h; else 10.50 h).

    grants = opt(claims, servers)         # a Mechanism like the others; the same jobs are solved only once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import highspy

from slurmwrap.placement.demand import Allocation, JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed

_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GroupAllocation:
    """What each job of a group may be given: CPUs and MiB per GPU."""

    # Relative to the proportional share.
    speed: float
    cpus: float
    mem_mib: int
    gpus: int  # of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class AllServers:
    """All servers together."""

    gpus: int
    cpus: int
    mem_mib: int

    @property
    def share(self) -> tuple[float, int]:
        """CPUs and MiB of one GPU."""
        return self.cpus / self.gpus, self.mem_mib // self.gpus


Options = tuple[GroupAllocation, ...]
# What each job may be given, how many they are.
Group = tuple[Options, int]


def allocate_optimal(claims: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """One grant per claim, in order. `servers` count as a whole, whatever is free on them.

    Jobs are taken in order while there are GPUs for them and what they have at their shares or, without a profile, ask
    for; the others get no server. `Grant.servers`: one name per GPU, filled in order; CPUs and memory are the pool's.
    """
    pool = AllServers(
        gpus=sum(server.gpus for server in servers),
        cpus=sum(server.cpus for server in servers),
        mem_mib=sum(server.mem_mib for server in servers),
    )
    given = find_optimum(_select_admitted(claims, pool), pool)
    seats = iter([server.name for server in servers for _ in range(server.gpus)])
    return tuple(_make_allocation(claim, given.get(number), seats) for number, claim in enumerate(claims))


def find_optimum(menus: Sequence[tuple[int, Options]], pool: AllServers) -> dict[int, GroupAllocation]:
    """Number of a job → what it is given. `menus`: of each job, highest priority first, what it may be given."""
    groups: dict[Options, list[int]] = {}
    for number, menu in menus:
        groups.setdefault(menu, []).append(number)
    # So that the order of the jobs does not make another problem of it.
    alike = sorted(groups)
    counts = best_counts(tuple((menu, len(groups[menu])) for menu in alike), pool)
    given: dict[int, GroupAllocation] = {}
    for menu, of_menu in zip(alike, counts, strict=True):
        slowest_first = sorted(zip(menu, of_menu, strict=True))
        options = [option for option, count in slowest_first for _ in range(count)]
        given.update(zip(groups[menu], options, strict=True))
    return given


@lru_cache(maxsize=65_536)
def best_counts(groups: tuple[Group, ...], pool: AllServers) -> tuple[tuple[int, ...], ...]:
    """How many of each group are given each of its options. ValueError where the pool does not hold them at all."""
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


def _select_admitted(claims: Sequence[JobDemand], pool: AllServers) -> list[tuple[int, Options]]:
    """Those that the pool holds for certain: each at its share, or at the one thing that it may be given."""
    taken = []
    gpus, cpus, mem_mib = pool.gpus, float(pool.cpus), pool.mem_mib
    for number, claim in enumerate(claims):
        menu = options_of(claim, pool.share)
        per_gpu = pool.share if len(menu) > 1 else (menu[0].cpus, menu[0].mem_mib)
        own_cpus, own_mib = per_gpu[0] * claim.gpus, per_gpu[1] * claim.gpus
        if claim.gpus <= gpus and own_cpus <= cpus + _SAME and own_mib <= mem_mib:
            taken.append((number, menu))
            gpus, cpus, mem_mib = gpus - claim.gpus, cpus - own_cpus, mem_mib - own_mib
    return taken


def options_of(demand: JobDemand, share: tuple[float, int]) -> Options:
    """What is no slower than the share and dearer than nothing as fast, of its profile's points and its share.

    `share`: CPUs and MiB per GPU. As it asks where the profile says nothing of the share. On purpose not
    sim/mechanism/lease_assignment.py: a yardstick for `graded` shares no code with it.
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
    """As fast with no more of either, and not the same."""
    return other != one and other[0] <= one[0] and other[1] <= one[1] and other[2] >= one[2]


def _make_allocation(demand: JobDemand, given: GroupAllocation | None, seats: Iterator[str]) -> Allocation:
    if given is None:
        return Allocation(job=demand.job, cpus=demand.cpus, mem_mib=demand.mem_mib)
    return Allocation(
        job=demand.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(islice(seats, demand.gpus)),
        speed=given.speed if demand.speeds else None,
    )
