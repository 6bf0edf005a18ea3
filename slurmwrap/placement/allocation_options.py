"""The allocation options of one job: pairs of CPUs and memory, from the base option upwards. Pure.

The base option is the cheapest point that is as fast as the proportional share and as what the user asked for,
whichever is faster. Above it come only points on the upper hull of log(speed) over price. Each option gains more for
its price than the next one, so choosing the greatest gain first is the best use of what is free. The logarithm makes it
proportional fairness (Kelly 1997): the sum of log(speed) is greatest where no other division raises some jobs' speeds
by more per cent, in sum, than it lowers others'.

Nothing is interpolated here. A job is given only points that were measured or derived (throughput.py), its share, or
what it asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import floor, log

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.demand import JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed

_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationOption:
    """CPUs and MiB per GPU; `speed` is relative to the proportional share, None if unknown."""

    cpus: float
    mem_mib: int
    price: float = 0.0
    speed: float | None = None
    # Increase of log(speed) per price, from the next cheaper option.
    gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Price of one CPU and of one MiB."""

    cpu: float
    mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one GPU of a job gets at least on every server where it may run, and the most that fits all of them."""

    cpus: float
    mem_mib: int
    most_cpus: float
    most_mem_mib: int
    # Whether the job owns all GPUs of a node.
    whole: bool


def share_of(demand: JobDemand, servers: Sequence[Server]) -> Share | None:
    """Return the job's proportional share of `servers`; None if the job can run on none of them.

    CPUs per node are whole numbers, as Slurm allocates them.
    """
    if not servers or demand.gpus_per_node < 1:
        return None
    gpus = demand.gpus_per_node
    most_cpus, most_mem = min(s.cpus for s in servers) / gpus, min(s.mem_mib for s in servers) // gpus
    return Share(
        cpus=min(floor(s.cpus * gpus / s.gpus) for s in servers) / gpus,
        mem_mib=min(s.mem_mib // s.gpus for s in servers),
        most_cpus=most_cpus if demand.most_cpus is None else min(most_cpus, demand.most_cpus),
        most_mem_mib=most_mem if demand.most_mem_mib is None else min(most_mem, demand.most_mem_mib),
        whole=any(s.gpus == gpus for s in servers),
    )


def make_requested_option(demand: JobDemand, prices: Prices) -> AllocationOption:
    """Return what the job asked for as its only option: its speed elsewhere is unknown."""
    return AllocationOption(
        cpus=demand.cpus, mem_mib=demand.mem_mib, price=demand.cpus * prices.cpu + demand.mem_mib * prices.mib
    )


def list_allocation_options(demand: JobDemand, share: Share | None, prices: Prices) -> tuple[AllocationOption, ...]:
    """Return the options of a job, the base option first.

    Only the request itself if no speed is known, or if no allowed point is as fast as the base.
    """
    if share is None or not demand.speeds:
        return (make_requested_option(demand, prices),)
    least = AllocationPoint(
        cpus=max(demand.least_cpus, share.cpus if share.whole else 0.0),
        mem_mib=max(demand.least_mem_mib, share.mem_mib if share.whole else 0),
    )
    asked = AllocationPoint(cpus=demand.cpus, mem_mib=demand.mem_mib)
    return _build_options(demand.speeds, asked, least, share, prices) or (make_requested_option(demand, prices),)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPoint:
    """CPUs and MiB per GPU."""

    cpus: float
    mem_mib: int


@lru_cache(maxsize=4096)
def _build_options(
    speeds: tuple[SpeedPoint, ...], asked: AllocationPoint, least: AllocationPoint, share: Share, prices: Prices
) -> tuple[AllocationOption, ...]:
    at_share = find_speed(speeds, share.cpus, share.mem_mib)
    base = max(at_share, find_speed(speeds, asked.cpus, asked.mem_mib))
    points = []
    for point in list_allowed_points(speeds, asked, least, share):
        speed = find_speed(speeds, point.cpus, point.mem_mib)
        price = compute_price(point, prices)
        if speed >= base * (1 - _SAME) if base else _is_no_less(point, asked, share):
            relative = speed / at_share if at_share else None
            points.append(AllocationOption(cpus=point.cpus, mem_mib=point.mem_mib, price=price, speed=relative))
    return _select_hull(points) if points else ()


def list_allowed_points(
    speeds: Sequence[SpeedPoint], asked: AllocationPoint, least: AllocationPoint, share: Share
) -> list[AllocationPoint]:
    """Return the measured points, the share and the request that lie within all bounds.

    Upper bounds do not apply to the request itself, because the user chose it.
    """
    known = [(float(point.cpus), point.mem_mib) for point in speeds]
    wanted = {(max(c, least.cpus), max(m, least.mem_mib)) for c, m in [*known, (share.cpus, share.mem_mib)]}
    within = {p for p in wanted if p[0] <= share.most_cpus + _SAME and p[1] <= share.most_mem_mib}
    if asked.cpus >= least.cpus and asked.mem_mib >= least.mem_mib:
        within.add((asked.cpus, asked.mem_mib))
    return [AllocationPoint(cpus=cpus, mem_mib=mem) for cpus, mem in sorted(within)]


def compute_price(point: AllocationPoint, prices: Prices) -> float:
    """Return the price of what one GPU gets.

    With the prices of graded.py a share's CPUs cost 1 and its memory `GradedSettings.memory_weight`.
    """
    return point.cpus * prices.cpu + point.mem_mib * prices.mib


def _is_no_less(point: AllocationPoint, asked: AllocationPoint, share: Share) -> bool:
    """Return whether `point` is no less than both the share and the request.

    For a job whose speed at these two is unknown: only such a point can be no slower.
    """
    return point.cpus >= max(share.cpus, asked.cpus) and point.mem_mib >= max(share.mem_mib, asked.mem_mib)


def _select_hull(points: Sequence[AllocationOption]) -> tuple[AllocationOption, ...]:
    """Return the points on the upper hull: from the cheapest point, always go to the one with the greatest gain."""
    if points[0].speed is None:  # nothing to compare
        return (min(points, key=lambda p: p.price),)
    steps = [min(points, key=lambda p: (p.price, -(p.speed or 0.0), p.cpus))]
    while True:
        current = steps[-1]
        above = [(_compute_gain(current, p), p) for p in points if _is_beyond(current, p)]
        if not above:
            return tuple(steps)
        gain, best = max(above, key=lambda item: (item[0], -item[1].price, item[1].cpus))
        steps.append(
            AllocationOption(cpus=best.cpus, mem_mib=best.mem_mib, price=best.price, speed=best.speed, gain=gain)
        )


def _is_beyond(current: AllocationOption, candidate: AllocationOption) -> bool:
    return candidate.price > current.price and (candidate.speed or 0.0) > (current.speed or 0.0) * (1 + _SAME)


def _compute_gain(current: AllocationOption, candidate: AllocationOption) -> float:
    return log((candidate.speed or 1.0) / (current.speed or 1.0)) / (candidate.price - current.price)
