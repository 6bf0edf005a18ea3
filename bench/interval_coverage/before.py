"""Other methods for the interval of a mean, for comparison. `values` are arrays; the caller seeds."""

from __future__ import annotations

from math import erf, exp, floor, log, sqrt
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float]
DRAWS, MANY = 999, 400
_Z = NormalDist().inv_cdf(0.975)


def student(values: np.ndarray, dice: np.random.Generator) -> Interval:
    mean, error = _mean(values)
    free, z = len(values) - 1, _Z
    by = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)  # Cornish and Fisher: to 0.001
    return mean - by * error, mean + by * error


def studentized(values: np.ndarray, dice: np.random.Generator) -> Interval:
    """The report's former method: bootstrap-t, and for many cases the normal distribution."""
    mean, error = _mean(values)
    if len(values) > MANY or not error:
        return mean - _Z * error, mean + _Z * error
    drawn = _drawn(values, dice)
    means = drawn.mean(1)
    variance = (drawn * drawn).mean(1) - means * means
    told = variance > 1e-12 * means * means
    found = np.sort((means[told] - mean) / np.sqrt(variance[told] / (len(values) - 1)))
    if len(found) < DRAWS / 2:
        return mean - _Z * error, mean + _Z * error
    tail = floor(0.025 * (len(found) + 1)) - 1
    return mean - float(found[-1 - tail]) * error, mean - float(found[tail]) * error


def bca(values: np.ndarray, dice: np.random.Generator) -> Interval:
    """The bias-corrected and accelerated bootstrap (Efron 1987)."""
    mean, error = _mean(values)
    if not error:
        return mean, mean
    means, away = np.sort(_drawn(values, dice).mean(1)), values - mean
    bias = NormalDist().inv_cdf(float(np.clip(np.mean(means < mean) + np.mean(means == mean) / 2, 0.001, 0.999)))
    bent = float((away**3).sum() / 6 / (away**2).sum() ** 1.5)
    low, high = (bias + (bias + z) / (1 - bent * (bias + z)) for z in (-_Z, _Z))
    return tuple(float(np.quantile(means, (1 + erf(z / sqrt(2))) / 2)) for z in (low, high))  # type: ignore[return-value]


def lognormal(values: np.ndarray, dice: np.random.Generator) -> Interval | None:
    """The interval of a log-normal mean (Zou, Huo and Taleban 2009); None when a value is not above 0."""
    if not (values > 0).all():
        return None
    n, logs = len(values), np.log(values)
    middle, variance = float(logs.mean()), float(logs.var(ddof=1))
    within = _Z**2 * variance / n
    less, more = (1 / _chi_squared_over_free(z, n - 1) - 1 for z in (_Z, -_Z))
    mean = middle + variance / 2
    low, high = (sqrt(within + (variance / 2 * by) ** 2) for by in (less, more))
    return exp(mean - low), exp(min(mean + high, log(1e300)))


def _chi_squared_over_free(z: float, free: int) -> float:
    """The approximation of Wilson and Hilferty 1931, accurate to 0.003 from 19 on."""
    return (1 - 2 / (9 * free) + z * sqrt(2 / (9 * free))) ** 3


def _mean(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) / sqrt(len(values))


def _drawn(values: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    return np.asarray(values[dice.integers(0, len(values), (DRAWS, len(values)))])
