"""Measure when a training stopped to improve, by the definition of Philly. Pure.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019, section
4.2: the share of a run until its loss came within 0.1 % of the lowest one, and the share of its epochs until the lowest
one. The loss is smoothed before, because the lowest of many noisy values would come late by chance alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import LossPoint

# "Within 0.1 % of the lowest loss."
NEAR = 0.001
FEWEST_VALUES = 5
# Half widths of the windows, as shares of the run.
_HALF_WINDOWS = (0.002, 0.004, 0.007, 0.012, 0.02, 0.03, 0.04)
# Those around the lowest value, by which its level is known.
_WIDE_WINDOWS = (0.06, 0.09, 0.13)
_FEWEST_IN_WINDOW = 3
# Two fits agree if their intervals of so many standard errors overlap.
_AGREE = 4.0
_FEWEST_FOR_NOISE = 20
_MOST_TIMES = 512
# A value that is so many standard deviations from its neighbours is a spike and does not count.
_SPIKE = 6.0
_NEIGHBOURS = 7
# Standard deviation from the median absolute value of normally distributed numbers.
_MAD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """When one run stopped to improve. Shares: 0 to 1."""

    lowest: float  # lowest smoothed loss
    time_share: float  # of the run's time, until the loss came within 0.1 % of `lowest`
    epoch_share: float | None  # of the run's epochs or steps, until the lowest loss; None: it shows neither


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """The values of one loss, in the order of time."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    done: tuple[float, ...]  # steps or epochs that were done at each value; () if the output shows neither
    total: float  # and at the end of the run


def measure_convergence(points: Sequence[LossPoint], run_s: float) -> Convergence | None:
    """Return when the loss of a run came near its lowest value; None for fewer than five values.

    The loss is that of training, or of validation where the output shows too few of training. `run_s`: how long the run
    lasted, in seconds.
    """
    curve = next(
        (
            found
            for found in (_select_values(points, "loss"), _select_values(points, "validation_loss"))
            if len(found.values) >= FEWEST_VALUES
        ),
        None,
    )
    if curve is None or run_s <= 0:
        return None
    at = _choose_times(curve.times)
    smooth, lowest = smooth_values(curve.times, _drop_spikes(curve.values), at)
    reached = list(accumulate(smooth, min))
    limit = lowest + NEAR * abs(lowest)
    first = next((i for i, value in enumerate(reached) if value <= limit), len(reached) - 1)
    low = bisect_left(curve.times, at[smooth.index(reached[-1])])
    return Convergence(
        lowest=lowest,
        time_share=min(1.0, _interpolate_crossing(at, reached, first, limit) / run_s),
        epoch_share=curve.done[low] / curve.total if curve.total > 0 else None,
    )


def _choose_times(times: Sequence[float]) -> Sequence[float]:
    """Return at most 512 of the times, evenly spaced, with both ends."""
    if len(times) <= _MOST_TIMES:
        return times
    return tuple(times[(len(times) - 1) * i // (_MOST_TIMES - 1)] for i in range(_MOST_TIMES))


def _select_values(points: Sequence[LossPoint], name: str) -> _Curve:
    """Return the values of one loss. Steps whose loss was not a number have no value, but they were done."""
    done = _count_done([point.step for point in points]) or _count_done([point.epoch for point in points])
    kept = [i for i, point in enumerate(points) if getattr(point, name) is not None]
    return _Curve(
        times=tuple(points[i].at_s for i in kept),
        values=tuple(getattr(points[i], name) for i in kept),
        done=tuple(done[i] for i in kept) if done else (),
        total=done[-1] if done else 0.0,
    )


def _count_done(counted: Sequence[float | None]) -> list[float]:
    """Return the steps that this run has done at each point; [] if most points show none.

    A counter that begins late belongs to a resumed run, and one that jumps back to a checkpoint counts again.
    """
    known = [value for value in counted if value is not None]
    if 2 * len(known) <= len(counted) or len(known) < 2:
        return []
    gaps = sorted(after - before for before, after in pairwise(known) if after > before)
    if not gaps:
        return []
    usual = gaps[len(gaps) // 2]
    done: list[float] = []
    total, before = 0.0, None
    for value in counted:
        if value is not None:
            if before is None:
                # Epochs that count from 0 are shown at their end.
                total = value if 0 < value <= 2 * usual else usual
            else:
                total += value - before if value >= before else usual
            before = value
        done.append(total)
    return done


def _drop_spikes(values: Sequence[float]) -> list[float]:
    """Return the values with those far from their neighbours replaced by the median of these."""
    if len(values) < 2 * _NEIGHBOURS:
        return list(values)
    half = _NEIGHBOURS // 2
    medians = [_find_median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    spread = _MAD * _find_median([abs(value - median) for value, median in zip(values, medians, strict=True)])
    return [
        median if abs(value - median) > _SPIKE * spread > 0 else value
        for value, median in zip(values, medians, strict=True)
    ]


def smooth_values(times: Sequence[float], values: Sequence[float], at: Sequence[float]) -> tuple[list[float], float]:
    """Return the smoothed values at the times `at`, ascending as `times` are.

    Straight lines are fitted to windows that grow as long as their results agree within the noise: the rule of the
    intersection of confidence intervals (Goldenshluger and Nemirovski 1997). So a drop of the loss stays sharp and a
    slow decline is averaged over much of the run. Without noise the values themselves are returned.
    """
    noise = _estimate_noise(values)
    if noise <= 0:
        smooth = [values[min(bisect_left(times, time), len(values) - 1)] for time in at]
        return smooth, min(smooth)
    length = (times[-1] - times[0]) or 1.0
    sums = _Sums(times, values)
    smooth = [_smooth_at(sums, time, length, noise, _HALF_WINDOWS) for time in at]
    level = _smooth_at(sums, at[smooth.index(min(smooth))], length, noise, (*_HALF_WINDOWS, *_WIDE_WINDOWS))
    return smooth, level


class _Sums:
    """Running sums with which a straight line is fitted to any window in constant time."""

    def __init__(self, times: Sequence[float], values: Sequence[float]) -> None:
        self.times = times
        self.values = values
        self._x = [0.0, *accumulate(times)]
        self._xx = [0.0, *accumulate(time * time for time in times)]
        self._y = [0.0, *accumulate(values)]
        self._xy = [0.0, *accumulate(time * value for time, value in zip(times, values, strict=True))]

    def fit(self, centre: float, half: float) -> tuple[float, float] | None:
        """Return the line's value at `centre`, and its variance for noise of variance 1; None for too few values."""
        low, high = bisect_left(self.times, centre - half), bisect_right(self.times, centre + half)
        n = high - low
        if n < _FEWEST_IN_WINDOW:
            return None
        x, xx = self._x[high] - self._x[low], self._xx[high] - self._xx[low]
        y, xy = self._y[high] - self._y[low], self._xy[high] - self._xy[low]
        x1, x2 = x - n * centre, xx - 2 * centre * x + n * centre * centre
        y1 = xy - centre * y
        determinant = n * x2 - x1 * x1
        if determinant <= 1e-9 * n * x2:
            return None
        return (x2 * y - x1 * y1) / determinant, x2 / determinant


def _smooth_at(sums: _Sums, time: float, length: float, noise: float, halves: Sequence[float]) -> float:
    best = sums.values[min(bisect_left(sums.times, time), len(sums.values) - 1)]
    scale = noise * abs(best)
    low, high = best - _AGREE * scale, best + _AGREE * scale
    for share in halves:
        fitted = sums.fit(time, share * length)
        if fitted is None:
            continue
        value, variance = fitted
        reach = _AGREE * scale * math.sqrt(variance)
        low, high = max(low, value - reach), min(high, value + reach)
        if low > high:
            break
        best = value
    return best


def _estimate_noise(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise as a share of the values, from their second differences.

    A few values without noise, such as the means of epochs, also have second differences: those of their curve.
    """
    if len(values) < _FEWEST_FOR_NOISE:
        return 0.0
    second = [abs(a - 2 * b + c) / (abs(b) or 1.0) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return _MAD * _find_median(second) / math.sqrt(6)


def _interpolate_crossing(times: Sequence[float], reached: Sequence[float], at: int, limit: float) -> float:
    if at == 0 or reached[at - 1] <= reached[at]:
        return times[at]
    share = (reached[at - 1] - limit) / (reached[at - 1] - reached[at])
    return times[at - 1] + min(1.0, max(0.0, share)) * (times[at] - times[at - 1])


def _find_median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
