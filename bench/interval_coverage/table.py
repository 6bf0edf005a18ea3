"""Compute the critical values of slurmwrap/report/confidence_interval.py by simulation.

`python bench/interval_coverage --table`. For log-normal cases, the distribution of Student's t depends only on their
number and on sigma. Sigma is not known either. So every sigma from 0 to MOST is drawn with equal probability, and a
cell has t's quantiles over those samples whose own standard deviation of the logarithms is that of the cell. A sample
without values from the tail has both a small mean and a small standard deviation; in this way, the quantile includes
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

CASES = (5, 10, 20, 30, 50, 100, 200, 500, 1000, 3000)
SIGMAS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
MOST, NEAR = 3.6, 0.1  # largest sigma; largest difference between a sample's sigma and the cell's
DRAWS, AT_ONCE = 150_000_000, 2_000_000  # random numbers per cell, and per batch


def rows(seed: int = 20260101) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Return (cases, the two critical values for each of SIGMAS)."""
    dice = np.random.default_rng(seed)
    for cases in CASES:
        yield cases, [cell(cases, sigma, dice) for sigma in SIGMAS]


def cell(cases: int, sigma: float, dice: np.random.Generator, draws: int = DRAWS) -> tuple[float, float]:
    """Return the critical values (below the mean, above it), in standard errors."""
    reach = NEAR + 5 * max(sigma, 0.2) / sqrt(2 * cases)  # no true sigma beyond it gives samples of this cell
    lowest, highest = max(0.01, sigma - reach), min(MOST, sigma + (reach if cases > 30 else MOST))
    samples = max(200_000 // cases, min(2_000_000, draws // cases))
    found = [_statistics(cases, sigma, (lowest, highest), dice, size) for size in _batches(samples, cases)]
    low, high = np.quantile(np.concatenate(found), (0.025, 0.975))
    return float(high), float(-low)


def _batches(samples: int, cases: int) -> list[int]:
    size = max(1, AT_ONCE // cases)
    return [size] * -(-samples // size)


def _statistics(
    cases: int, sigma: float, sigmas: tuple[float, float], dice: np.random.Generator, samples: int
) -> np.ndarray:
    true = dice.uniform(*sigmas, samples)
    logs = dice.standard_normal((samples, cases)) * true[:, None]
    kept = np.abs(logs.std(1, ddof=1) - sigma) < NEAR
    values, true = np.exp(logs[kept]), true[kept]
    errors = values.std(1, ddof=1) / sqrt(cases)
    return np.asarray((values.mean(1) - np.exp(true * true / 2)) / errors)


def text() -> str:
    """Return the table in the form of confidence_interval.py."""
    lines = []
    for cases, cells in rows():
        pairs = ", ".join(f"({down:.2f}, {up:.2f})" for down, up in cells)
        lines.append(f"    {cases}: ({pairs}),")
    return "\n".join(lines)
