"""Speed on numbers of CPUs that were not measured, from those that were. Pure.

A step takes as long as the slower of two: what the device and the sequential part take, whatever the CPUs, and the work
that CPUs share. Where both take about as long they get in each other's way, so the corner is round:
T(k) = (t_device**p + (t_cpu / k)**p) ** (1 / p). p = 1 is Amdahl's law, a large p a roofline; it is fitted as well.
What the fit leaves over at the measured points is spread over those between, so that a measured point is given back.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cpu_curve import least_cpus
from slurmwrap.model.resource_profile import CurvePoint

__all__ = ["StepTimeFit", "fit", "least_cpus", "predict"]

SHARPNESS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 24.0)
# Of loaders with workers; what two points cannot show.
USUAL = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """Seconds per step as above. `device_s` and `cpu_s` are not negative."""

    device_s: float
    cpu_s: float
    sharpness: float

    def rate(self, cpus: float) -> float:
        """Steps per second."""
        terms = (self.device_s, self.cpu_s / cpus)
        most = max(terms)
        together: float = sum((term / most) ** self.sharpness for term in terms)
        return 1 / (most * math.pow(together, 1 / self.sharpness))


def predict(curve: Sequence[CurvePoint], cpus: float) -> float | None:
    """Steps per second on so many CPUs; None without a curve.

    Below the first point it goes on as the fit does. Above the last it stays: that more CPUs help was not measured.
    """
    points = sorted((point for point in curve if point.steps_per_s > 0), key=lambda point: point.cpus)
    if not points or cpus <= 0:
        return None
    if cpus >= points[-1].cpus:
        return points[-1].steps_per_s
    found = fit(points)
    at = bisect_left([point.cpus for point in points], cpus)
    right, left = points[at], points[max(0, at - 1)]
    rate = found.rate(cpus) * math.exp(_interpolate_residual(found, left, right, cpus))
    if at == 0:
        return min(rate, right.steps_per_s)
    low, high = sorted((left.steps_per_s, right.steps_per_s))
    return min(max(rate, low), high)


def _interpolate_residual(found: StepTimeFit, left: CurvePoint, right: CurvePoint, cpus: float) -> float:
    """The logarithm of what the fit misses, between two measured points."""
    ends = [math.log(point.steps_per_s / found.rate(point.cpus)) for point in (left, right)]
    if left.cpus == right.cpus:
        return ends[0]
    share = (math.log(cpus) - math.log(left.cpus)) / (math.log(right.cpus) - math.log(left.cpus))
    return ends[0] + share * (ends[1] - ends[0])


def fit(points: Sequence[CurvePoint]) -> StepTimeFit:
    """The curve through `points` (one at least, all with a rate above 0) by least squares of relative errors."""
    chosen = SHARPNESS if len(points) > 2 else (USUAL,)
    # Of equally good ones the usual: the sharpness shows only where points lie about the corner.
    tried = sorted((_solve_fit(points, p) for p in chosen), key=lambda one: abs(math.log(one.sharpness / USUAL)))
    return min(tried, key=lambda one: round(_compute_residual(points, one), 5))


def _compute_residual(points: Sequence[CurvePoint], found: StepTimeFit) -> float:
    return sum(math.log(point.steps_per_s / found.rate(point.cpus)) ** 2 for point in points)


def _solve_fit(points: Sequence[CurvePoint], p: float) -> StepTimeFit:
    """T**p = a + b * k**-p, linear in a and b; both at least 0."""
    scale = max(point.steps_per_s for point in points)
    # At least 1, so that powers stay in range.
    times = [scale / point.steps_per_s for point in points]
    rows = [(time**-p, (point.cpus * time) ** -p) for point, time in zip(points, times, strict=True)]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, ya, yb = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    det = aa * bb - ab * ab
    a, b = ((ya * bb - yb * ab) / det, (yb * aa - ya * ab) / det) if det > 1e-12 * aa * bb else (ya / aa, 0.0)
    if b < 0:
        a, b = ya / aa, 0.0
    if a < 0:
        a, b = 0.0, yb / bb
    return StepTimeFit(device_s=a ** (1 / p) / scale, cpu_s=b ** (1 / p) / scale, sharpness=p)
