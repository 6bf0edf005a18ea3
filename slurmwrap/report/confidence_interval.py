"""95 % confidence intervals of means, medians and sums. Pure: the same cases give the same interval.

Means use Student's t with critical values for uneven cases. GPU-hours are skewed: with 20 such cases, plain t contains
the true value in 55 to 90 of 100 reports, and bootstrapped t in 75 to 95 (`python bench/interval_coverage`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import exp, floor, fsum, hypot, log, sqrt
from statistics import NormalDist

# How far the true value may be from the mean of a few uneven cases, in standard errors of that mean.
#
# GPU-hours are skewed: the mean of a few cases misses the rare large case, and so does its standard error. The
# intervals of Student's t, and of the bootstrap, then end well below the true value (docs/report.md has figures). The
# distribution of t for log-normal cases was simulated. It depends on the number of cases and on the standard deviation
# of their logarithms.
SIGMAS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
# Number of cases -> for each of SIGMAS, the standard errors below and above the mean that together contain 95 %.
# Written by `python bench/interval_coverage --table`; see bench/interval_coverage/table.py.
TABLE = {
    5: ((3.21, 4.59), (1.61, 35.23), (1.21, 254.40), (1.06, 484.86), (0.99, 593.19), (0.96, 554.70), (0.96, 453.45)),
    10: ((2.31, 2.66), (1.62, 5.62), (1.31, 19.78), (1.14, 87.99), (1.03, 206.07), (0.98, 238.35), (0.96, 206.80)),
    20: ((2.08, 2.26), (1.65, 3.40), (1.38, 6.80), (1.21, 17.23), (1.09, 53.95), (1.00, 115.36), (0.97, 118.18)),
    30: ((2.02, 2.18), (1.67, 2.96), (1.42, 5.05), (1.25, 10.46), (1.12, 27.06), (1.02, 70.32), (0.97, 87.76)),
    50: ((1.99, 2.08), (1.71, 2.64), (1.47, 3.94), (1.29, 6.96), (1.15, 14.36), (1.03, 35.33), (0.97, 61.77)),
    100: ((1.96, 2.03), (1.75, 2.38), (1.54, 3.20), (1.35, 4.94), (1.20, 8.65), (1.07, 17.56), (0.98, 37.46)),
    200: ((1.96, 2.00), (1.81, 2.23), (1.60, 2.78), (1.41, 3.95), (1.23, 6.23), (1.10, 11.09), (0.99, 22.79)),
    500: ((1.95, 1.98), (1.85, 2.12), (1.69, 2.47), (1.49, 3.19), (1.30, 4.68), (1.14, 7.46), (1.02, 13.41)),
    1000: ((1.95, 1.96), (1.87, 2.06), (1.74, 2.31), (1.56, 2.86), (1.35, 4.03), (1.18, 6.08), (1.04, 10.15)),
    3000: ((1.93, 1.96), (1.89, 2.01), (1.83, 2.13), (1.65, 2.54), (1.43, 3.35), (1.22, 4.84), (1.08, 7.58)),
}
_CASES = tuple(TABLE)
# (towards smaller values, towards larger values), in standard errors.
Reach = tuple[float, float]


def reach(sizes: Sequence[float]) -> Reach:
    """Return the reach for the mean of cases of these sizes (> 0). A single case gets the largest sigma."""
    sigma = _compute_deviation([log(size) for size in sizes]) if len(sizes) > 1 else SIGMAS[-1]
    fewer, more, share = _find_neighbours([log(cases) for cases in _CASES], log(max(1, len(sizes))))
    return _interpolate_reach(
        _interpolate_row(TABLE[_CASES[fewer]], sigma), _interpolate_row(TABLE[_CASES[more]], sigma), share
    )


def _compute_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation. statistics.stdev is ten times slower, and a year has 150,000 retries."""
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _interpolate_row(row: Sequence[Reach], sigma: float) -> Reach:
    low, high, share = _find_neighbours(SIGMAS, sigma)
    return _interpolate_reach(row[low], row[high], share)


def _find_neighbours(known: Sequence[float], value: float) -> tuple[int, int, float]:
    """Return the indices of the neighbours of `value` and its position between them (0..1); beyond an end, that end."""
    high = min(max(bisect_right(known, value), 1), len(known) - 1)
    share = (value - known[high - 1]) / (known[high] - known[high - 1])
    return high - 1, high, min(1.0, max(0.0, share))


def _interpolate_reach(one: Reach, other: Reach, share: float) -> Reach:
    """Interpolate by logarithms, because the values grow like powers."""
    down, up = (exp((1 - share) * log(a) + share * log(b)) for a, b in zip(one, other, strict=True))
    return down, up


_Z = NormalDist().inv_cdf(0.975)
# (low, high).
Interval = tuple[float, float]


def compute_interval_of_mean(values: Sequence[float]) -> Interval:
    """Return the interval of the mean of at least two values."""
    n = len(values)
    mean = fsum(values) / n
    return compute_interval_around(mean, sqrt(fsum((value - mean) ** 2 for value in values) / (n - 1) / n), values)


def compute_interval_around(value: float, error: float, cases: Sequence[float]) -> Interval:
    """Return the interval of a mean or ratio of these cases with this standard error. Cases of 0 are ignored.

    A large case that did not occur might have been a gain or a loss; the cases that occurred show in which proportion.
    If no case is negative, the interval does not go below 0, and likewise above.
    """
    if not error:
        return value, value
    down, up = reach([abs(case) for case in cases if case])
    gained, lost = (fsum(case * case for case in cases if sign * case > 0) for sign in (1, -1))
    gains, losses = (error * sqrt(part / (gained + lost)) for part in (gained, lost))
    low, high = value - hypot(down * gains, up * losses), value + hypot(up * gains, down * losses)
    return low if lost else max(0.0, low), high if gained else min(0.0, high)


def compute_interval_of_median(ordered: Sequence[float]) -> Interval:
    """Return the interval of the median of sorted values of any distribution: two of them, by their binomial ranks."""
    n = len(ordered)
    below = max(0, floor((n - _Z * sqrt(n)) / 2) - 1)
    return ordered[below], ordered[n - 1 - below]


def combine_intervals(value: float, parts: Iterable[tuple[float, Interval]]) -> Interval:
    """Return the interval of a sum of independent addends with these intervals (MOVER: Zou and Donner 2008)."""
    known = list(parts)
    low = sqrt(fsum((own - bounds[0]) ** 2 for own, bounds in known))
    high = sqrt(fsum((bounds[1] - own) ** 2 for own, bounds in known))
    return value - low, value + high


def scale_interval(bounds: Interval, by: float) -> Interval:
    """Return the interval of a value multiplied by `by`, which may be negative."""
    low, high = bounds[0] * by, bounds[1] * by
    return (low, high) if by >= 0 else (high, low)
