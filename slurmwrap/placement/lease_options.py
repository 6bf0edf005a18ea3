"""What one job may be given where leases end: from its floor upwards, by the speed that each price buys. Pure.

As in allocation_options.py only points that someone measured or derived count, no slower than the proportional share
and within all limits. Two things differ. The floor lies within the share, so that everybody's floor fits wherever
everybody's share does. And a step's gain is of speed, not of its logarithm: what is given now can be given to another
in the next round, so what counts is how much work is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.placement.allocation_options import (
    AllocationOption,
    AllocationPoint,
    Prices,
    Share,
    compute_price,
    list_allowed_points,
    make_requested_option,
)
from slurmwrap.placement.demand import JobDemand, SpeedPoint
from slurmwrap.placement.throughput import find_speed

_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """`steps`: the floor, then the upper hull of speed over price. `options`: all that is worth its price."""

    steps: tuple[AllocationOption, ...]
    options: tuple[AllocationOption, ...]

    @property
    def floor(self) -> AllocationOption:
        """The least that it is given."""
        return self.steps[0]


def make_menu(claim: JobDemand, share: Share | None, prices: Prices) -> Menu:
    """Only what it asks where its speed is unknown, or nothing allowed is as fast as its share."""
    if share is not None and claim.speeds:
        least = AllocationPoint(
            cpus=max(claim.least_cpus, share.cpus if share.whole else 0.0),
            mem_mib=max(claim.least_mem_mib, share.mem_mib if share.whole else 0),
        )
        found = _build_menu(claim.speeds, AllocationPoint(cpus=claim.cpus, mem_mib=claim.mem_mib), least, share, prices)
        if found is not None:
            return found
    asked = make_requested_option(claim, prices)
    return Menu(steps=(asked,), options=(asked,))


@lru_cache(maxsize=4096)
def _build_menu(
    speeds: tuple[SpeedPoint, ...], asked: AllocationPoint, least: AllocationPoint, share: Share, prices: Prices
) -> Menu | None:
    at_share = find_speed(speeds, share.cpus, share.mem_mib)
    if not at_share:
        return None
    options = _select_useful(
        AllocationOption(
            cpus=point.cpus,
            mem_mib=point.mem_mib,
            price=compute_price(point, prices),
            speed=find_speed(speeds, point.cpus, point.mem_mib) / at_share,
        )
        for point in list_allowed_points(speeds, asked, least, share)
    )
    if not options:
        return None
    within = [one for one in options if _is_within(one, max(share.cpus, least.cpus), max(share.mem_mib, least.mem_mib))]
    return Menu(steps=_select_hull((within or options)[0], options), options=options)


def _select_useful(rungs: Iterable[AllocationOption]) -> tuple[AllocationOption, ...]:
    """As fast as the share, and nothing that needs no more of either is as fast; the cheapest first."""
    fast = sorted((one for one in rungs if (one.speed or 0.0) >= 1 - _SAME), key=lambda one: (one.price, one.cpus))
    return tuple(one for one in fast if not any(_is_better(other, one) for other in fast))


def _is_better(other: AllocationOption, one: AllocationOption) -> bool:
    if other is one or not _is_within(other, one.cpus, one.mem_mib):
        return False
    return (other.speed or 0.0) >= (one.speed or 0.0)


def _is_within(rung: AllocationOption, cpus: float, mem_mib: float) -> bool:
    return rung.cpus <= cpus + _SAME and rung.mem_mib <= mem_mib


def _select_hull(floor: AllocationOption, options: Sequence[AllocationOption]) -> tuple[AllocationOption, ...]:
    """From the floor, always to the option with the greatest gain."""
    steps = [floor]
    while above := [one for one in options if one.price > steps[-1].price and _get_speed(one) > _get_speed(steps[-1])]:
        best = max(above, key=lambda one: (_compute_gain(steps[-1], one), -one.price, one.cpus))
        steps.append(replace(best, gain=_compute_gain(steps[-1], best)))
    return tuple(steps)


def _get_speed(rung: AllocationOption) -> float:
    return rung.speed or 0.0


def _compute_gain(here: AllocationOption, there: AllocationOption) -> float:
    return (_get_speed(there) - _get_speed(here)) / (there.price - here.price)
