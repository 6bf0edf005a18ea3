"""Clopper-Pearson intervals of a share (Biometrika 1934), with the standard library."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, log

_HALVINGS = 60


def compute_upper_bound(hits: int, number: int, level: float = 0.95) -> float:
    """Return the one-sided upper bound of the share: with it or a larger one, so few hits have at most 1 - level."""
    if number == 0 or hits == number:
        return 1.0
    return _find_share(lambda share: compute_tail(hits, number, share) > 1 - level)


def compute_interval(hits: int, number: int, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of the share; (0, 1) without trials."""
    side = (1 + level) / 2
    return 1 - compute_upper_bound(number - hits, number, side), compute_upper_bound(hits, number, side)


def compute_tail(hits: int, number: int, share: float) -> float:
    """Return the probability of at most `hits` in `number` trials, each of which succeeds with probability `share`."""
    if share <= 0 or hits >= number:
        return 1.0
    if share >= 1:
        return 0.0
    terms = (
        lgamma(number + 1) - lgamma(k + 1) - lgamma(number - k + 1) + k * log(share) + (number - k) * log(1 - share)
        for k in range(hits + 1)
    )
    return min(1.0, sum(exp(term) for term in terms))


def _find_share(is_below: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high
