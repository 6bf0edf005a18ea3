"""What pre-runs, retries, placement and tuning saved: formulas.py in numbers. Pure.

Below NEEDED cases a figure is None: nothing is invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from statistics import median

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.measurement import CurvePoint
from slurmwrap.report.confidence_interval import (
    Interval,
    compute_interval_of_mean,
    compute_interval_of_median,
    put_together,
    scale_interval,
)
from slurmwrap.report.formulas import NEEDED
from slurmwrap.report.locality_pairs import find_pairs
from slurmwrap.report.night_report import Saving
from slurmwrap.report.report_inputs import Caught, Figures, Paced, RetriedRun, TunedRun

_NO_END = ("", "cancelled", "job_preempted", "completed_with_error")  # such a run says nothing of the retry


def list_savings(figures: Figures) -> tuple[Saving, ...]:
    """One row per means, in the order of a job's way."""
    stopped = [one for one in figures.caught if one.job_id is not None]
    return (
        estimate_prerun_saving(stopped, figures.runtimes, figures.prerun_gpu_s),
        estimate_placement_saving(figures.paced, figures.switch_of),
        estimate_tuning_saving(figures.tuned),
        retry(figures.again),
    )


def estimate_prerun_saving(
    stopped: Sequence[Caught], runtimes: Mapping[str, Sequence[float]], trials_gpu_s: float
) -> Saving:
    """prerun-1. `runtimes`: seconds to failure by category, of failures here."""
    everything = sorted(second for seconds in runtimes.values() for second in seconds)
    n = min(len(stopped), len(everything))
    empty = Saving(what="prerun", formula="prerun-1", gpu_hours=None, n=n, needed=NEEDED)
    if n < NEEDED:
        return empty
    of = {name: sorted(seconds) for name, seconds in runtimes.items() if len(seconds) >= NEEDED}
    lasts = {one.category: of.get(one.category, everything) for one in stopped}
    middle = {name: median(seconds) for name, seconds in lasts.items()}
    wasted = [one.gpus * middle[one.category] / 3600 for one in stopped]
    cost = trials_gpu_s / 3600
    asked: Counter[str] = Counter()
    for one in stopped:
        asked[one.category if one.category in of else ""] += one.gpus  # those without own runtimes share one median
    medians = [
        (gpus * median(seconds) / 3600, scale_interval(compute_interval_of_median(seconds), gpus / 3600))
        for name, gpus in asked.items()
        for seconds in [of.get(name, everything)]
    ]
    value = fsum(wasted)
    low, high = put_together(value, medians)  # which jobs were stopped and how many GPUs they wanted is known
    return Saving(
        what="prerun",
        formula="prerun-1",
        gpu_hours=value - cost,
        low=low - cost,
        high=high - cost,
        n=n,
        needed=NEEDED,
    )


def retry(again: Sequence[RetriedRun]) -> Saving:
    """retry-1: another unit than the rest, since the GPU time was spent."""
    told = [one for one in again if one.category not in _NO_END]
    kept = [one.gpu_s / 3600 if one.category == "success" else -one.gpu_s / 3600 for one in told]
    note = "completed less failed: work done without its user, not GPU time spared"
    return replace(_sum_of(kept, what="retry", formula="retry-1", note=note), spared=False)


def estimate_placement_saving(paced: Sequence[Paced], switch_of: Mapping[str, str]) -> Saving:
    """placement-2."""
    gained = [pair.gpu_hours for pair in find_pairs(paced, switch_of)]
    note = (
        "" if len(gained) >= NEEDED else "needs jobs that count their steps (gsub --count-steps) and ran near and far"
    )
    return _sum_of(gained, what="placement", formula="placement-2", note=note)


def estimate_tuning_saving(tuned: Sequence[TunedRun]) -> Saving:
    """tuning-1."""
    gained = [gain for one in tuned if (gain := _compute_gain(one)) is not None]
    note = "" if len(gained) >= NEEDED else "needs jobs whose CPU curve was measured (gsub --prerun=profile)"
    return _sum_of(gained, what="tuning", formula="tuning-1", note=note)


def _sum_of(values: Sequence[float], *, what: str, formula: str, note: str) -> Saving:
    n = len(values)
    if n < NEEDED:
        return Saving(what=what, formula=formula, gpu_hours=None, n=n, needed=NEEDED, note=note)
    low, high = scale_interval(compute_interval_of_mean(values), n)
    return Saving(what=what, formula=formula, gpu_hours=fsum(values), low=low, high=high, n=n, needed=NEEDED, note=note)


def _compute_gain(one: TunedRun) -> float | None:
    """GPU-hours that the run would have taken more as asked; None outside what was measured."""
    got, asked = interpolate_speed(one.curve, one.got), interpolate_speed(one.curve, one.asked)
    return None if got is None or not asked else one.gpu_s * (got / asked - 1) / 3600


def interpolate_speed(curve: Sequence[CurvePoint], cpus: float) -> float | None:
    """Steps per second with so many CPUs, straight between the points; None beyond them."""
    points = sorted(curve, key=lambda point: point.cpus)
    for low, high in pairwise(points):
        if low.cpus <= cpus <= high.cpus:
            share = (cpus - low.cpus) / (high.cpus - low.cpus) if high.cpus > low.cpus else 0.0
            return low.steps_per_s + share * (high.steps_per_s - low.steps_per_s)
    return points[0].steps_per_s if len(points) == 1 and points[0].cpus == cpus else None


__all__ = [
    "Interval",
    "estimate_placement_saving",
    "estimate_prerun_saving",
    "estimate_tuning_saving",
    "interpolate_speed",
    "list_savings",
    "retry",
]
