"""Predict the speed on numbers of CPUs that were not measured, from a measured CPU curve. Pure.

The time of a step has two parts: the time of the device and of sequential code, which does not depend on the CPUs, and
the work that is divided among the CPUs. The slower part determines the step. If both take about the same time, they
delay each other, so the corner between them is round: T(k) = (t_device**p + (t_cpu / k)**p) ** (1 / p). p = 1 is
Amdahl's law, a large p a roofline; p is fitted, too. The residuals of the fit at the measured points are interpolated
between them, so that a measured point is returned unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cpu_sweep import bound_rate, least_cpus
from slurmwrap.model.resource_profile import CurvePoint

__all__ = ["StepTimeFit", "fit", "least_cpus", "predict"]

# Values of p that the fit tries.
SHARPNESS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 24.0)
# The usual p of data loaders with workers. It is assumed if there are only two points, which cannot determine p.
DEFAULT_SHARPNESS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """Parameters of T(k): `device_s` and `cpu_s` in seconds, not negative; `sharpness` is p."""

    device_s: float
    cpu_s: float
    sharpness: float

    def rate(self, cpus: float) -> float:
        """Return the steps per second on `cpus` CPUs."""
        terms = (self.device_s, self.cpu_s / cpus)
        # Divided by the larger term, so that the powers stay in the range of a float.
        most = max(terms)
        total: float = sum((term / most) ** self.sharpness for term in terms)
        return 1 / (most * math.pow(total, 1 / self.sharpness))


def predict(curve: Sequence[CurvePoint], cpus: float) -> float | None:
    """Return the steps per second on `cpus` CPUs; None without a curve.

    Below the first measured point the fit is followed. Above the last point the speed stays constant, because it was
    not measured that more CPUs help.
    """
    points = sorted((point for point in curve if point.steps_per_s > 0), key=lambda point: point.cpus)
    if not points or cpus <= 0:
        return None
    if cpus >= points[-1].cpus:
        return points[-1].steps_per_s
    fitted = fit(points)
    at = bisect_left([point.cpus for point in points], cpus)
    right, left = points[at], points[max(0, at - 1)]
    rate = fitted.rate(cpus) * math.exp(_interpolate_residual(fitted, left, right, cpus))
    # Each further CPU gains less (bound_rate), which also keeps the result in the range of the neighbouring points.
    least, most = bound_rate(points, cpus)
    return min(max(rate, least), most)


def _interpolate_residual(fitted: StepTimeFit, left: CurvePoint, right: CurvePoint, cpus: float) -> float:
    """Return the logarithm of measured speed over fitted speed, interpolated between two points over log(CPUs)."""
    ends = [math.log(point.steps_per_s / fitted.rate(point.cpus)) for point in (left, right)]
    if left.cpus == right.cpus:
        return ends[0]
    share = (math.log(cpus) - math.log(left.cpus)) / (math.log(right.cpus) - math.log(left.cpus))
    return ends[0] + share * (ends[1] - ends[0])


def fit(points: Sequence[CurvePoint]) -> StepTimeFit:
    """Fit T(k) to `points` (at least one, all with a rate above 0) by least squares of the relative errors."""
    candidates = SHARPNESS if len(points) > 2 else (DEFAULT_SHARPNESS,)
    # Among equally good fits the p closest to the default is taken: only points near the corner determine p.
    fits = sorted(
        (_solve_fit(points, p) for p in candidates), key=lambda one: abs(math.log(one.sharpness / DEFAULT_SHARPNESS))
    )
    return min(fits, key=lambda one: round(_compute_residual(points, one), 5))


def _compute_residual(points: Sequence[CurvePoint], fitted: StepTimeFit) -> float:
    return sum(math.log(point.steps_per_s / fitted.rate(point.cpus)) ** 2 for point in points)


def _solve_fit(points: Sequence[CurvePoint], p: float) -> StepTimeFit:
    """Return the best fit for a fixed p.

    T**p = a + b * k**-p is linear in a and b, so the normal equations give both. If one is negative, it is set to 0 and
    the other is fitted alone.
    """
    scale = max(point.steps_per_s for point in points)
    # Scaled to at least 1, so that the powers stay in the range of a float.
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
