"""How long a run of each cause lasts until it fails: quantiles out of table 7's percentiles. Pure.

Between the published percentiles the logarithm is interpolated. Two ends are not published. Below the median the curve
mirrors the one above it (down to the shortest time of the table). Beyond p95 it ends where the cause's share of all
run times to failure comes out as the table says: for that, the sum of all run times must be known, which it is not;
taken is the sum that comes out if each curve goes on beyond p95 as steeply as it came. Where that end would lie below
p95 or beyond the trace's 75 days it is kept there, and the share is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp, log

import numpy as np

from slurmwrap.sim.failures.published_rates import LEAST_MIN, LONGEST_MIN, MINUTE_S, PHILLY, PublishedCause

_AT = (0.0, 0.5, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Log-minutes at the shares _AT of the runs."""

    knots: tuple[float, ...]

    def seconds(self, share: float) -> float:
        """The run time that `share` of the runs do not exceed."""
        return exp(float(np.interp(share, _AT, self.knots))) * MINUTE_S

    def mean_min(self) -> float:
        """Exact: each piece is an exponential."""
        pieces = zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False)
        return sum((b - a) * _compute_mean(low, high) for a, b, low, high in pieces)

    def density(self, seconds: float) -> float:
        """Of the logarithm of the run time; small, not 0, outside of the curve."""
        at = log(max(seconds, 1.0) / MINUTE_S)
        for a, b, low, high in zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False):
            if low <= at < high:
                return (b - a) / (high - low)
        return 1e-6


def curve_of(cause: PublishedCause) -> Curve:
    """The curve of one row of table 7."""
    return _fit_curves()[cause.reason]


@cache
def _fit_curves() -> dict[str, Curve]:
    """By the reasons' names."""
    plain = [_steep_on(cause) for cause in PHILLY]
    total = sum(cause.trials * curve.mean_min() for cause, curve in zip(PHILLY, plain, strict=True))
    return {cause.reason: _fit_curve(cause, curve, total) for cause, curve in zip(PHILLY, plain, strict=True)}


def _steep_on(cause: PublishedCause) -> Curve:
    least = min(cause.p50_min, max(LEAST_MIN, cause.p50_min**2 / cause.p90_min))
    most = min(LONGEST_MIN, cause.p95_min**2 / cause.p90_min)
    return Curve(knots=tuple(map(log, (least, cause.p50_min, cause.p90_min, cause.p95_min, max(most, cause.p95_min)))))


def _fit_curve(cause: PublishedCause, curve: Curve, total_min: float) -> Curve:
    """Its end moved to where the share comes out; bisection, since the mean grows with the end."""
    wanted = cause.share / 100 * total_min / cause.trials
    if not cause.share:
        return curve
    low, high = log(cause.p95_min), log(LONGEST_MIN)
    for _ in range(60):
        middle = (low + high) / 2
        moved = Curve(knots=(*curve.knots[:-1], middle))
        low, high = (middle, high) if moved.mean_min() < wanted else (low, middle)
    return Curve(knots=(*curve.knots[:-1], low))


def _compute_mean(low: float, high: float) -> float:
    """Of exp over an interval of its argument."""
    return exp(low) if high - low < 1e-9 else (exp(high) - exp(low)) / (high - low)
