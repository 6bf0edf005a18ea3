"""Mean and 95 % interval over seeds, by Student's t and by resampling of days. Pure.

The seeds are independent draws and few: with ten of them the intervals of a bootstrap are too narrow. Differences
between arms are computed seed by seed before, so that what both arms share cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np
from numpy.typing import NDArray

from slurmwrap.sim.failures.study_result import Interval

# 97.5 % quantile of Student's t for 1, 2, … degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = NormalDist().inv_cdf(0.975)
# Least number of days for resampling: fewer show too little of how much days differ.
LEAST_DAYS = 7
_RESAMPLES, _SEED = 4000, 20261104


def quantile_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t: by table up to 30 degrees of freedom, then by a series.

    The series is Abramowitz and Stegun (1964), 26.7.5; above 30 degrees its first terms are exact to 1e-6.
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def compute_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % interval. ValueError if there are no values."""
    if not values:
        raise ValueError("no seed, no interval")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean=mean)
    degrees = len(values) - 1
    half = quantile_t(degrees) * stdev(values) / sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def compute_ratio(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """Return the ratio of the sums, with the interval of the residuals (linearised); 0 if the whole is 0.

    In a mean of single ratios the seed with the smallest whole would dominate.
    """
    whole = fmean(wholes)
    if not whole:
        return Interval(mean=0.0)
    share = fmean(parts) / whole
    spread = compute_interval([(part - share * one) / whole for part, one in zip(parts, wholes, strict=True)])
    if spread.low is None or spread.high is None:
        return Interval(mean=share)
    return Interval(mean=share, low=share + spread.low, high=share + spread.high)


def compute_forecast(values: Sequence[float], least: float = -inf) -> Interval:
    """Return the interval in which one more draw would lie. ValueError if there are no values.

    This is not the interval of the mean, which more seeds would shrink to nothing: for a dump each seed is one possible
    account of what was wrong with its jobs.
    """
    known = compute_interval(values)
    if known.low is None or known.high is None:
        return known
    half = (known.high - known.mean) * sqrt(len(values) + 1)
    return Interval(mean=known.mean, low=max(least, known.mean - half), high=known.mean + half)


def compute_by_resampling(by_day: NDArray[np.float64], wholes: NDArray[np.float64]) -> tuple[Interval, Interval]:
    """Return the sum over the days, and its share of the sum of `wholes`; both arguments are (seeds, days).

    One seed and as many days as there are, drawn with repetition, 4,000 times: the interval covers what is unknown of
    the causes and how much one month differs from the next.
    """
    seeds, days = by_day.shape
    sums, whole = by_day.sum(axis=1), wholes.sum(axis=1)
    if days < LEAST_DAYS:
        return compute_forecast(sums.tolist()), compute_ratio(sums.tolist(), whole.tolist())
    random = np.random.default_rng(_SEED)
    rows, drawn = random.integers(seeds, size=_RESAMPLES), random.integers(days, size=(_RESAMPLES, days))
    found, of = (values[rows[:, None], drawn].sum(axis=1) for values in (by_day, wholes))
    shares = np.divide(found, of, out=np.zeros_like(found), where=of > 0)
    share = sums.mean() / whole.mean() if whole.mean() else 0.0
    return _compute_percentiles(sums.mean(), found), _compute_percentiles(share, shares)


def _compute_percentiles(mean: float, drawn: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(mean=float(mean), low=float(low), high=float(high))


def compute_paired(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Return the interval of `baseline` − `values`, seed by seed."""
    return compute_interval([before - after for after, before in zip(values, baseline, strict=True)])
