"""The distributions from which cases are drawn, and the true value that an interval must contain.

GPUs as in Synergy's mix for Philly, and additional large jobs (assumed); hours per GPU are log-normal. For sums, the
true value takes the GPUs of the cases as known, except in "GPU counts alone".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

GPUS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
SHARES = np.array([0.69, 0.10, 0.14, 0.05, 0.012, 0.005, 0.002, 0.001, 0.0005, 0.0002])
SHARES = SHARES / SHARES.sum()
COUNTS = np.array([1] * 40 + [2] * 10 + [4] * 10 + [8] * 25 + [16] * 8 + [32] * 4 + [64] * 2 + [128])

Dice = np.random.Generator
Cases = tuple[np.ndarray, float]  # values, and the true mean


@dataclass(frozen=True)
class World:
    name: str
    draw: Callable[[Dice, int], Cases]


def gpus(dice: Dice, n: int) -> np.ndarray:
    return np.asarray(dice.choice(GPUS, n, p=SHARES), dtype=float)


def _lognormal(sigma: float) -> World:
    return World(f"log-normal, σ = {sigma:g}", lambda dice, n: (dice.lognormal(0, sigma, n), exp(sigma**2 / 2)))


def _of_gpus(name: str, sigma: float, power: float) -> World:
    def draw(dice: Dice, n: int) -> Cases:
        asked = gpus(dice, n)
        true = asked ** (1 + power) * exp(sigma**2 / 2)
        return asked ** (1 + power) * dice.lognormal(0, sigma, n), float(true.mean())

    return World(name, draw)


def _retries(dice: Dice, n: int) -> Cases:
    """Draw retried runs: seven in ten complete; those that fail again are shorter."""
    asked, sigma = gpus(dice, n), 1.5
    well = dice.random(n) < 0.7
    hours = np.where(well, dice.lognormal(1, sigma, n), -dice.lognormal(0, sigma, n))
    mean = 0.7 * exp(1 + sigma**2 / 2) - 0.3 * exp(sigma**2 / 2)
    return asked * hours, float(asked.mean()) * mean


SUMS = (
    World("normal", lambda dice, n: (dice.normal(5, 1, n), 5.0)),
    World("exponential", lambda dice, n: (dice.exponential(1, n), 1.0)),
    *map(_lognormal, (1.0, 1.5, 2.0)),
    World("GPU counts alone, 1 to 128", lambda dice, n: (dice.choice(COUNTS, n).astype(float), float(COUNTS.mean()))),
    _of_gpus("GPUs × hours, σ = 1.5", 1.5, 0.0),
    _of_gpus("GPUs × hours, σ = 2", 2.0, 0.0),
    _of_gpus("the same, σ = 1.5, larger jobs longer", 1.5, 0.3),
    World("retries: gains and losses, σ = 1.5", _retries),
)
