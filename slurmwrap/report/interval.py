"""95 % intervals of means, medians and what is put together of them. Pure; the seed is fixed: one report, one interval.

Means by the studentized bootstrap: GPUs and hours are skewed, and percentile intervals of 20 skewed values hold the
truth in 78 to 90 of 100 cases, studentized ones in 87 to 95 (tests/report/test_interval.py measures them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, fsum, sqrt
from random import Random
from statistics import NormalDist

DRAWS = 999
MOST = 400  # values; the mean of more is normal to a good approximation
_SEED = 20260101
FEW, OF_FEW = 50, "78 to 95"  # below so many cases an interval holds the truth so often: measured, docs/report.md
_Z = NormalDist().inv_cdf(0.975)
Interval = tuple[float, float]  # (low, high)


def of_mean(values: Sequence[float], salt: str = "") -> Interval:
    """Of the mean of at least two values."""
    n = len(values)
    mean = fsum(values) / n
    error = sqrt(fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    if n > MOST or not error:
        return mean - _Z * error, mean + _Z * error
    found = sorted(_studentized(values, mean, Random(f"{_SEED} {salt}")))
    if len(found) < DRAWS / 2:  # nearly all values are equal
        return mean - _Z * error, mean + _Z * error
    tail = floor(0.025 * (len(found) + 1)) - 1
    return mean - found[-1 - tail] * error, mean - found[tail] * error


def _studentized(values: Sequence[float], mean: float, dice: Random) -> Iterable[float]:
    """(mean - true mean) / error of DRAWS resamples; those of equal values say nothing."""
    n = len(values)
    for _ in range(DRAWS):
        drawn = dice.choices(values, k=n)
        its_mean = fsum(drawn) / n
        variance = fsum([value * value for value in drawn]) / n - its_mean * its_mean
        if variance > 1e-12 * its_mean * its_mean:
            yield (its_mean - mean) / sqrt(variance / (n - 1))


def of_median(ordered: Sequence[float]) -> Interval:
    """Of the median of sorted values, whatever they are distributed like: two of them, by their binomial ranks."""
    n = len(ordered)
    below = max(0, floor((n - _Z * sqrt(n)) / 2) - 1)
    return ordered[below], ordered[n - 1 - below]


def put_together(value: float, parts: Iterable[tuple[float, Interval]]) -> Interval:
    """Of a sum whose independent addends have these values and intervals (MOVER: Zou and Donner 2008)."""
    known = list(parts)
    low = sqrt(fsum((own - bounds[0]) ** 2 for own, bounds in known))
    high = sqrt(fsum((bounds[1] - own) ** 2 for own, bounds in known))
    return value - low, value + high


def scaled(bounds: Interval, by: float) -> Interval:
    """The interval of so many times as much; negative: of what is taken away."""
    low, high = bounds[0] * by, bounds[1] * by
    return (low, high) if by >= 0 else (high, low)
