"""The rungs of one job: what it may be given, from its floor upwards, each worth its price. Pure.

The floor is the cheapest point that is as fast as the proportional share and as what the user asked, whichever is the
faster. Above it stand only points on the upper hull of log(speed) over price: each rung gains more for its price than
the next one, so that climbing rung by rung, the greatest gain first, is the best use of what there is. The logarithm
makes it proportional fairness (Kelly 1997): the sum of log(speed) is greatest where no other division raises some jobs'
speeds by more per cent, in sum, than it lowers others'.

Nothing is interpolated here: a job is given only points that someone measured or derived (throughput.py), its share,
or what it asked.
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
    """CPUs and MiB per GPU; `speed` relative to the proportional share, None where no one knows."""

    cpus: float
    mem_mib: int
    price: float = 0.0
    speed: float | None = None
    # Of log(speed) per price, from the rung below.
    gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of one CPU and one MiB."""

    cpu: float
    mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one GPU of a job gets of the servers where it may run, at least, and the most that fits all of them."""

    cpus: float
    mem_mib: int
    most_cpus: float
    most_mem_mib: int
    # It owns all GPUs of a node.
    whole: bool


def share_of(demand: JobDemand, servers: Sequence[Server]) -> Share | None:
    """None where it could run nowhere. Whole CPUs per node, as Slurm gives them."""
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
    """The one rung of a job of which no one knows how fast it would be elsewhere."""
    return AllocationOption(
        cpus=demand.cpus, mem_mib=demand.mem_mib, price=demand.cpus * prices.cpu + demand.mem_mib * prices.mib
    )


def list_allocation_options(demand: JobDemand, share: Share | None, prices: Prices) -> tuple[AllocationOption, ...]:
    """The floor first. One rung, as asked, where nothing is known or nothing allowed is as fast."""
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
    """Every point that is known, the share, and what the user asked: within all limits but the last, their own word."""
    known = [(float(point.cpus), point.mem_mib) for point in speeds]
    wanted = {(max(c, least.cpus), max(m, least.mem_mib)) for c, m in [*known, (share.cpus, share.mem_mib)]}
    within = {p for p in wanted if p[0] <= share.most_cpus + _SAME and p[1] <= share.most_mem_mib}
    if asked.cpus >= least.cpus and asked.mem_mib >= least.mem_mib:
        within.add((asked.cpus, asked.mem_mib))
    return [AllocationPoint(cpus=cpus, mem_mib=mem) for cpus, mem in sorted(within)]


def compute_price(point: AllocationPoint, prices: Prices) -> float:
    """Of a GPU's part. As graded.py prices it, a share's CPUs cost 1 and its memory Settings.memory_weight."""
    return point.cpus * prices.cpu + point.mem_mib * prices.mib


def _is_no_less(point: AllocationPoint, asked: AllocationPoint, share: Share) -> bool:
    """Where the speed at the share and as asked is unknown, only what is no less than either can be no slower."""
    return point.cpus >= max(share.cpus, asked.cpus) and point.mem_mib >= max(share.mem_mib, asked.mem_mib)


def _select_hull(points: Sequence[AllocationOption]) -> tuple[AllocationOption, ...]:
    """From the cheapest, always to the point with the greatest gain, ever dearer and ever faster."""
    if points[0].speed is None:  # nothing to compare
        return (min(points, key=lambda p: p.price),)
    steps = [min(points, key=lambda p: (p.price, -(p.speed or 0.0), p.cpus))]
    while True:
        here = steps[-1]
        above = [(_compute_gain(here, p), p) for p in points if _is_beyond(here, p)]
        if not above:
            return tuple(steps)
        gain, best = max(above, key=lambda item: (item[0], -item[1].price, item[1].cpus))
        steps.append(
            AllocationOption(cpus=best.cpus, mem_mib=best.mem_mib, price=best.price, speed=best.speed, gain=gain)
        )


def _is_beyond(here: AllocationOption, there: AllocationOption) -> bool:
    return there.price > here.price and (there.speed or 0.0) > (here.speed or 0.0) * (1 + _SAME)


def _compute_gain(here: AllocationOption, there: AllocationOption) -> float:
    return log((there.speed or 1.0) / (here.speed or 1.0)) / (there.price - here.price)
