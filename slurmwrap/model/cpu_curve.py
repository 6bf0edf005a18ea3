"""The CPU curve: which point to measure next, when a point is settled, and the least CPUs that are enough. Pure.

Rules (measured on a busy machine): single points deceive, so each is the median of two rounds taken in opposite order,
of three when they disagree by more than AGREE; one noisy dip above the answer must not move it, hence SURE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import median

from slurmwrap.model.resource_profile import CurvePoint

GOOD = 0.95  # of the best rate: enough
SURE = 0.93  # of the best rate: what every larger point must reach as well
AGREE = 0.03  # rounds of a point that differ by no more are believed
ROUNDS, MOST_ROUNDS = 2, 7
# Points farther apart: on real profiles, what lies between was then predicted up to 10 % wrong.
WIDE = 4

# CPUs -> steps per second, one per round.
Rounds = Mapping[int, Sequence[float]]


def curve_of(rounds: Rounds) -> tuple[CurvePoint, ...]:
    """The curve by CPUs, ascending; points without a round are left out."""
    return tuple(_point(cpus, rounds[cpus]) for cpus in sorted(rounds) if rounds[cpus])


def _point(cpus: int, rates: Sequence[float]) -> CurvePoint:
    middle = median(rates)
    spread = (max(rates) - min(rates)) / 2 / middle if middle else 0.0
    return CurvePoint(cpus=cpus, steps_per_s=middle, spread=round(spread, 4), rounds=len(rates))


def best_rate(curve: Sequence[CurvePoint]) -> float:
    """The speed on the flat top of a curve: the end of the non-decreasing curve next to the points (least squares).

    The largest of many noisy points would be too large: of seven equal ones with 4 % noise, by 5 % in the mean.
    """
    # (mean, rounds), ascending: pool adjacent violators
    blocks: list[tuple[float, int]] = []
    for point in sorted(curve, key=lambda point: point.cpus):
        mean, rounds = point.steps_per_s, point.rounds
        while blocks and blocks[-1][0] >= mean:
            other, more = blocks.pop()
            mean, rounds = (mean * rounds + other * more) / (rounds + more), rounds + more
        blocks.append((mean, rounds))
    return blocks[-1][0] if blocks else 0.0


def least_cpus(curve: Sequence[CurvePoint]) -> int | None:
    """The fewest CPUs measured whose rate is within 5 % of the best, with no rate below SURE from there on.

    Where fewer CPUs are faster than more, the most CPUs among the good ones: the careful answer to a strange curve.
    """
    best = best_rate(curve)
    falling = sorted(curve, key=lambda point: -point.cpus)
    good = [point.cpus for point in falling if 0 < GOOD * best <= point.steps_per_s]
    low = max((point.cpus for point in falling if point.steps_per_s < SURE * best), default=0)
    return next((cpus for cpus in reversed(good) if cpus > low), good[0] if good else None)


def next_cpus(curve: Sequence[CurvePoint], sizes: Sequence[int]) -> int | None:
    """The next of `sizes` (ascending) to measure: halving from the top, then between the last good and first bad.

    None: the answer is as sharp as `sizes` allow.
    """
    measured = {point.cpus for point in curve}
    if not sizes or sizes[-1] not in measured:
        return sizes[-1] if sizes else None
    enough = least_cpus(curve)
    # It does not move at all.
    if enough is None:
        return None
    # What lies between SURE and GOOD may be good: the search goes on below it.
    too_slow = {point.cpus for point in curve if point.steps_per_s < SURE * best_rate(curve)}
    bad = max((size for size in sizes if size < enough and size in too_slow), default=0)
    below = [size for size in sizes if bad < size < enough and size not in measured]
    if not bad:
        lowest = min(measured)
        halved = [size for size in below if size <= lowest / 2] or [size for size in below if size < lowest]
        return halved[-1] if halved else None
    return min(below, key=lambda size: abs(size - (bad + enough) / 2)) if below else None


def gap(curve: Sequence[CurvePoint], sizes: Sequence[int]) -> int | None:
    """A size below the answer whose speed would be a guess: where measured points lie more than WIDE times apart."""
    measured = {point.cpus for point in curve}
    enough = least_cpus(curve)
    if enough is None:
        return None
    below = [size for size in sizes if size <= enough]
    if below[0] not in measured and min(measured) > 2 * below[0]:
        return below[0]
    known = [size for size in below if size in measured]
    for low, high in sorted(pairwise(known), key=lambda ends: -ends[1] / ends[0]):
        inside = [size for size in below if low < size < high]
        if inside and high > WIDE * low:
            return min(inside, key=lambda size: abs(log(size * size / low / high)))
    return None


def unsettled(rounds: Rounds) -> tuple[int, ...]:
    """Points that need another round, most CPUs first: fewer than two, two that differ, or a doubtful answer."""
    curve = curve_of(rounds)
    enough, dips = GOOD * best_rate(curve), _dips(curve)
    return tuple(k for k in sorted(rounds, reverse=True) if _wants_more(rounds[k], enough, dip=k in dips))


def _dips(curve: Sequence[CurvePoint]) -> set[int]:
    """Points that are too slow although fewer CPUs are not, or next to the next one: 3 % more CPUs give no 10 %."""
    enough = GOOD * best_rate(curve)
    least_good = min((point.cpus for point in curve if point.steps_per_s >= enough), default=0)
    low = {point.cpus for point in curve if point.steps_per_s < enough and point.cpus > least_good > 0}
    jumps = pairwise(sorted(curve, key=lambda point: point.cpus))
    return low | {a.cpus for a, b in jumps if b.steps_per_s * a.cpus > (1 + AGREE) * a.steps_per_s * b.cpus}


def _wants_more(rates: Sequence[float], enough: float, *, dip: bool) -> bool:
    if len(rates) < ROUNDS:
        return True
    middle = median(rates)
    if len(rates) == ROUNDS and max(rates) - min(rates) > AGREE * middle:
        return True
    # The median itself is one.
    alike = sum(abs(rate - middle) <= AGREE * middle for rate in rates)
    doubtful = min(rates) < enough <= max(rates) and alike < 2
    return (dip or doubtful) and len(rates) < MOST_ROUNDS
