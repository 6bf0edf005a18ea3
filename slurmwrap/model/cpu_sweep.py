"""The CPU curve: choose the next point to measure, decide when it is settled, find the least CPUs that suffice. Pure.

The rules come from measurements on a busy machine. A single measurement of a point is unreliable, so each point is the
median of two rounds that are taken in opposite order, or of three when the two differ by more than AGREE. One noisy dip
above the answer must not move it; SURE serves for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import median

from slurmwrap.model.resource_profile import CurvePoint

# Share of the best rate at which a point is good enough.
GOOD = 0.95
# Share of the best rate that every larger point must reach as well.
SURE = 0.93
# Relative difference up to which two rounds of a point agree.
AGREE = 0.03
ROUNDS, MOST_ROUNDS = 2, 7
# Largest ratio between two neighbouring measured points. With wider gaps on real profiles, the speed predicted between
# them was up to 10 % wrong.
WIDE = 4
# A size is measured too if its speed, as bounded by the points around it, is uncertain by more than this share.
UNSURE = 0.05
# Least relative standard deviation of a round: two equal rounds do not prove that there is no noise.
LEAST_NOISE = 0.003

# CPUs -> steps per second, one per round.
Rounds = Mapping[int, Sequence[float]]


def curve_of(rounds: Rounds) -> tuple[CurvePoint, ...]:
    """Return the curve, ascending by CPUs; points without a round are left out."""
    return tuple(_point(cpus, rounds[cpus]) for cpus in sorted(rounds) if rounds[cpus])


def _point(cpus: int, rates: Sequence[float]) -> CurvePoint:
    middle = median(rates)
    spread = (max(rates) - min(rates)) / 2 / middle if middle else 0.0
    return CurvePoint(cpus=cpus, steps_per_s=middle, spread=round(spread, 4), rounds=len(rates))


def pool_rates(curve: Sequence[CurvePoint]) -> list[tuple[float, int, list[CurvePoint]]]:
    """Return (mean rate, rounds, points) of each level of the closest non-decreasing curve, ascending.

    Closest by least squares, weighted by rounds (pool adjacent violators).
    """
    blocks: list[tuple[float, int, list[CurvePoint]]] = []
    for point in sorted(curve, key=lambda point: point.cpus):
        mean, rounds, members = point.steps_per_s, point.rounds, [point]
        while blocks and blocks[-1][0] >= mean:
            other, more, before = blocks.pop()
            mean, rounds = (mean * rounds + other * more) / (rounds + more), rounds + more
            members = before + members
        blocks.append((mean, rounds, members))
    return blocks


def best_rate(curve: Sequence[CurvePoint]) -> float:
    """Return the speed on the flat top of a curve, from the non-decreasing curve that fits the points by least squares.

    The largest of many noisy points would be too large: of seven equal ones with 4 % noise, by 5 % on average.
    """
    blocks = pool_rates(curve)
    return blocks[-1][0] if blocks else 0.0


def least_cpus(curve: Sequence[CurvePoint]) -> int | None:
    """Return the fewest measured CPUs whose rate is within 5 % of the best, with no rate below SURE from there on.

    Where fewer CPUs are faster than more, return the most CPUs among the good points, as the cautious answer to an
    irregular curve. None if no point has a rate above 0.
    """
    best = best_rate(curve)
    falling = sorted(curve, key=lambda point: -point.cpus)
    good = [point.cpus for point in falling if 0 < GOOD * best <= point.steps_per_s]
    low = max((point.cpus for point in falling if point.steps_per_s < SURE * best), default=0)
    return next((cpus for cpus in reversed(good) if cpus > low), good[0] if good else None)


def choose_next_cpus(curve: Sequence[CurvePoint], sizes: Sequence[int]) -> int | None:
    """Return the next of `sizes` (ascending) to measure; None: the answer is as precise as `sizes` allow.

    The search halves from the top, then goes on between the last good and the first bad size.
    """
    measured = {point.cpus for point in curve}
    if not sizes or sizes[-1] not in measured:
        return sizes[-1] if sizes else None
    enough = least_cpus(curve)
    # The program makes no steps with any number of CPUs.
    if enough is None:
        return None
    # A point between SURE and GOOD may still be good, so the search continues below it.
    too_slow = {point.cpus for point in curve if point.steps_per_s < SURE * best_rate(curve)}
    bad = max((size for size in sizes if size < enough and size in too_slow), default=0)
    below = [size for size in sizes if bad < size < enough and size not in measured]
    if not bad:
        lowest = min(measured)
        halved = [size for size in below if size <= lowest / 2] or [size for size in below if size < lowest]
        return halved[-1] if halved else None
    return min(below, key=lambda size: abs(size - (bad + enough) / 2)) if below else None


def bound_rate(curve: Sequence[CurvePoint], cpus: float) -> tuple[float, float]:
    """Return the least and the highest speed that `cpus` CPUs, fewer than the most measured ones, can have.

    A job whose speed its CPUs limit gains less from each further CPU. So between two points its speed is above their
    chord (from no CPUs and no speed, below the first point), and below the chords on both sides, prolonged.
    """
    levels = [(point.cpus, mean) for mean, _, members in pool_rates(curve) for point in members]
    at = next(number for number, (size, _) in enumerate(levels) if size > cpus)
    before: list[tuple[int, float]] = [(0, 0.0), *levels[:at]]
    (left, left_rate), (right, right_rate) = before[-1], levels[at]
    least = left_rate + (right_rate - left_rate) * (cpus - left) / (right - left)
    most = right_rate
    if len(before) > 1:
        far, far_rate = before[-2]
        most = min(most, left_rate + (left_rate - far_rate) / (left - far) * (cpus - left))
    if at + 1 < len(levels):
        far, far_rate = levels[at + 1]
        most = min(most, right_rate - (far_rate - right_rate) / (far - right) * (right - cpus))
    return least, max(least, most)


def choose_uncertain_cpus(curve: Sequence[CurvePoint], sizes: Sequence[int], *, unsure: float = UNSURE) -> int | None:
    """Return a size below the answer whose speed the measured points leave open; None: there is none.

    These are the size that is uncertain by the largest share, if more than `unsure`, then sizes in a gap where measured
    points are more than a factor WIDE apart.
    """
    measured = {point.cpus for point in curve}
    enough = least_cpus(curve)
    if enough is None:
        return None
    below = [size for size in sizes if size <= enough]
    bounds = {size: bound_rate(curve, size) for size in below if size not in measured}
    widths = {size: (most - least) / (most + least) for size, (least, most) in bounds.items() if least > 0}
    widest = max(widths, key=widths.__getitem__, default=None)
    if widest is not None and widths[widest] > unsure:
        return widest
    if below[0] not in measured and min(measured) > 2 * below[0]:
        return below[0]
    known = [size for size in below if size in measured]
    for low, high in sorted(pairwise(known), key=lambda ends: -ends[1] / ends[0]):
        inside = [size for size in below if low < size < high]
        if inside and high > WIDE * low:
            return min(inside, key=lambda size: abs(log(size * size / low / high)))
    return None


def list_unsettled_points(rounds: Rounds, *, near_limit: bool = True) -> tuple[int, ...]:
    """Return the points that need another round, most CPUs first.

    These are points with fewer than two rounds, with two rounds that differ, or on which the answer depends doubtfully.
    When there are none of these and with `near_limit`, they are the answer and the next smaller point if noise may have
    moved one of them over the limit, and the point with most CPUs, on which the limit rests.
    """
    curve = curve_of(rounds)
    enough, dips = GOOD * best_rate(curve), _dips(curve)
    found = [k for k in sorted(rounds, reverse=True) if _wants_more(rounds[k], enough, dip=k in dips)]
    return tuple(found or (_list_near_limit(rounds, curve) if near_limit else ()))


def _list_near_limit(rounds: Rounds, curve: Sequence[CurvePoint]) -> list[int]:
    """Return the points near the limit that are within one standard error of it, with the noise seen in all rounds."""
    answer, levels = least_cpus(curve), pool_rates(curve)
    if answer is None:
        return []
    best, tops, _ = levels[-1]
    means = {cpus: sum(rates) / len(rates) for cpus, rates in rounds.items() if sum(rates) > 0}
    squares = sum((rate / means[cpus] - 1) ** 2 for cpus in means for rate in rounds[cpus])
    noise = max(LEAST_NOISE, sqrt(squares / max(1, sum(len(rounds[cpus]) - 1 for cpus in means))))
    below = max((cpus for cpus in means if cpus < answer), default=answer)
    near = {
        cpus
        for cpus in (answer, below)
        if len(rounds[cpus]) < MOST_ROUNDS
        and abs(means[cpus] / (GOOD * best) - 1) < noise * sqrt(1 / len(rounds[cpus]) + 1 / tops)
    }
    if near and len(rounds[max(rounds)]) <= ROUNDS:
        near.add(max(rounds))
    return sorted(near, reverse=True)


def _dips(curve: Sequence[CurvePoint]) -> set[int]:
    """Return the points that look too slow: slower than one with fewer CPUs, or far slower than the next.

    A jump to the next point is implausible when the speed per CPU rises by more than AGREE.
    """
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
    # The count includes the median itself.
    alike = sum(abs(rate - middle) <= AGREE * middle for rate in rates)
    doubtful = min(rates) < enough <= max(rates) and alike < 2
    return (dip or doubtful) and len(rates) < MOST_ROUNDS
