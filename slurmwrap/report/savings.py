"""Estimate what pre-runs, retries, placement and tuning saved, by the formulas of formulas.py. Pure.

With fewer than NEEDED cases an estimate is None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum, sqrt
from statistics import median
from typing import NamedTuple

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.report.confidence_interval import (
    Interval,
    combine_intervals,
    compute_interval_around,
    compute_interval_of_mean,
    compute_interval_of_median,
    scale_interval,
)
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.formulas import NEEDED
from slurmwrap.report.night_report import Holdout, LocalityRow, Saving
from slurmwrap.report.report_inputs import Caught, Drawn, Figures, MultiNodeRun, RetriedRun, StepCountedRun, TunedRun

ONE, SEVERAL, UNKNOWN = "one switch", "several switches", "not known"


def make_locality_rows(runs: Sequence[MultiNodeRun], switch_of: Mapping[str, str]) -> tuple[LocalityRow, ...]:
    """Return rows by the present network; runs on a node that is no longer in it are "not known"."""
    groups = group_by(runs, lambda run: find_locality(run.nodes, switch_of))
    return tuple(_make_locality_row(name, groups[name]) for name in (ONE, SEVERAL, UNKNOWN) if name in groups)


def find_locality(nodes: Sequence[str], switch_of: Mapping[str, str]) -> str:
    """Return ONE, SEVERAL or UNKNOWN."""
    switches = {switch_of.get(node) for node in nodes}
    if None in switches or not switches:
        return UNKNOWN
    return ONE if len(switches) == 1 else SEVERAL


def _make_locality_row(name: str, runs: Sequence[MultiNodeRun]) -> LocalityRow:
    return LocalityRow(
        where=name,
        runs=len(runs),
        gpu_hours=fsum(run.gpu_s for run in runs) / 3600,
        failed=sum(run.failed for run in runs),
    )


# Runs that gsub placed, each paired with a run of the same work on more distant nodes: what closeness gained.
#
# The same work: one user's script with the same batch size, model and whatever else changes the cost of a step, on the
# same number of GPUs. Speed is the program's own steps per second (gsub --count-steps).
_UNKNOWN = -1


class Pair(NamedTuple):
    """Two runs of the same work."""

    close: StepCountedRun
    apart: StepCountedRun

    @property
    def gpu_hours(self) -> float:
        """Return how many GPU-hours more the close run would have held at the other's speed; < 0: it was slower."""
        return self.close.gpu_s * (self.close.steps_per_s / self.apart.steps_per_s - 1) / 3600


def find_pairs(runs: Sequence[StepCountedRun], switch_of: Mapping[str, str]) -> list[Pair]:
    """Return pairs of runs of the same work.

    Each placed run of the closest level is paired with the more distant run that ended nearest to it in time. No run is
    in two pairs.
    """
    return [
        pair for same in group_by(runs, lambda run: run.work).values() for pair in _pair_runs_of_work(same, switch_of)
    ]


def _pair_runs_of_work(runs: Sequence[StepCountedRun], switch_of: Mapping[str, str]) -> Iterable[Pair]:
    levels = group_by(runs, lambda run: _get_level(run.nodes, switch_of))
    levels.pop(_UNKNOWN, None)
    closest = min(levels, default=_UNKNOWN)
    apart = sorted((run for level in levels if level != closest for run in levels[level]), key=_make_order_key)
    ends = [run.ended for run in apart]
    for close in sorted((run for run in levels.get(closest, ()) if run.placed), key=_make_order_key):
        if not apart:
            break
        at = bisect_left(ends, close.ended)
        if at == len(ends) or (at and close.ended - ends[at - 1] < ends[at] - close.ended):
            at -= 1
        del ends[at]
        yield Pair(close, apart.pop(at))


def _make_order_key(run: StepCountedRun) -> tuple[float, tuple[str, ...]]:
    return run.ended, run.nodes


def _get_level(nodes: Sequence[str], switch_of: Mapping[str, str]) -> int:
    """Return 0 for one node, 1 for one switch, 2 for several; _UNKNOWN if the network does not show it."""
    if len(nodes) == 1:
        return 0
    found = find_locality(nodes, switch_of)
    return _UNKNOWN if found == UNKNOWN else 1 if found == ONE else 2


# Categories that do not show whether a retry helped.
_INDECISIVE = ("", "cancelled", "job_preempted", "completed_with_error")


def list_savings(figures: Figures) -> tuple[Saving, ...]:
    """Return one row per means, in the order in which they apply to a job."""
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
    """Estimate by formula prerun-1. `runtimes`: seconds to failure by category, of failures on this site."""
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
        # Categories without enough run times of their own share one median.
        asked[one.category if one.category in of else ""] += one.gpus
    medians = [
        (gpus * median(seconds) / 3600, scale_interval(compute_interval_of_median(seconds), gpus / 3600))
        for name, gpus in asked.items()
        for seconds in [of.get(name, everything)]
    ]
    value = fsum(wasted)
    # Only the medians are uncertain: the stopped jobs and their GPUs are known.
    low, high = combine_intervals(value, medians)
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
    """Estimate by formula retry-1, in another unit than the rest, because the GPU time was spent."""
    decisive = [one for one in again if one.category not in _INDECISIVE]
    kept = [one.gpu_s / 3600 if one.category == "success" else -one.gpu_s / 3600 for one in decisive]
    note = "completed less failed: work done without its user, not GPU time spared"
    return replace(_sum_values(kept, what="retry", formula="retry-1", note=note), spared=False)


def estimate_placement_saving(paced: Sequence[StepCountedRun], switch_of: Mapping[str, str]) -> Saving:
    """Estimate by formula placement-2."""
    gained = [pair.gpu_hours for pair in find_pairs(paced, switch_of)]
    note = (
        "" if len(gained) >= NEEDED else "needs jobs that count their steps (gsub --count-steps) and ran near and far"
    )
    return _sum_values(gained, what="placement", formula="placement-2", note=note)


def estimate_tuning_saving(tuned: Sequence[TunedRun]) -> Saving:
    """Estimate by formula tuning-1."""
    gained = [gain for one in tuned if (gain := _compute_gain(one)) is not None]
    note = "" if len(gained) >= NEEDED else "needs jobs whose CPU curve was measured (gsub --prerun=profile)"
    return _sum_values(gained, what="tuning", formula="tuning-1", note=note)


def _sum_values(values: Sequence[float], *, what: str, formula: str, note: str) -> Saving:
    n = len(values)
    if n < NEEDED:
        return Saving(what=what, formula=formula, gpu_hours=None, n=n, needed=NEEDED, note=note)
    low, high = scale_interval(compute_interval_of_mean(values), n)
    return Saving(what=what, formula=formula, gpu_hours=fsum(values), low=low, high=high, n=n, needed=NEEDED, note=note)


def _compute_gain(one: TunedRun) -> float | None:
    """Return the GPU-hours that the run would have taken longer as requested; None outside the measured range."""
    got, asked = interpolate_speed(one.curve, one.got), interpolate_speed(one.curve, one.asked)
    return None if got is None or not asked else one.gpu_s * (got / asked - 1) / 3600


def interpolate_speed(curve: Sequence[CurvePoint], cpus: float) -> float | None:
    """Return steps per second with `cpus` CPUs, interpolated linearly; None beyond the measured points."""
    points = sorted(curve, key=lambda point: point.cpus)
    for low, high in pairwise(points):
        if low.cpus <= cpus <= high.cpus:
            share = (cpus - low.cpus) / (high.cpus - low.cpus) if high.cpus > low.cpus else 0.0
            return low.steps_per_s + share * (high.steps_per_s - low.steps_per_s)
    return points[0].steps_per_s if len(points) == 1 and points[0].cpus == cpus else None


# Jobs whose pre-run was omitted at random, compared with those that had one: what pre-runs save, by experiment.
#
# Submissions of one sweep share one draw and fail alike, so a case is a draw and not a job.
def compute_holdout(figures: Figures) -> Holdout:
    """Estimate by formula holdout-1.

    Wastes are given as soon as there is a job. The difference needs NEEDED draws with a failure in each group, because
    draws without a failure do not show how much a failure costs.
    """
    held = [one for one in figures.drawn if one.held_out]
    control = [one for one in figures.drawn if not one.held_out]
    found = Holdout(
        share=figures.holdout,
        held_out=len(held),
        control=len(control),
        held_out_waste=_compute_waste(held),
        control_waste=_compute_waste(control),
        needed=NEEDED,
    )
    if min(_count_failing(held), _count_failing(control)) < NEEDED:
        return found
    groups = _group_by_holdout(held), _group_by_holdout(control)
    (held_out_cost, held_out_interval), (control_cost, control_interval) = (_compute_per_job(group) for group in groups)
    low, high = combine_intervals(
        held_out_cost - control_cost,
        [(held_out_cost, held_out_interval), (-control_cost, scale_interval(control_interval, -1.0))],
    )
    return replace(found, difference=held_out_cost - control_cost, low=low, high=high)


def _compute_waste(drawn: Sequence[Drawn]) -> float | None:
    """Return GPU-hours per job."""
    return fsum(_compute_cost(one) for one in drawn) / len(drawn) if drawn else None


def _count_failing(drawn: Sequence[Drawn]) -> int:
    return len({one.holdout_group for one in drawn if one.waste_gpu_s})


def _compute_cost(one: Drawn) -> float:
    return (one.waste_gpu_s + one.prerun_gpu_s) / 3600


class _HoldoutGroup(NamedTuple):
    jobs: int
    cost: float  # GPU-hours
    waste_gpu_s: float


def _group_by_holdout(drawn: Sequence[Drawn]) -> list[_HoldoutGroup]:
    found: dict[str, _HoldoutGroup] = {}
    for one in drawn:
        jobs, cost, waste = found.get(one.holdout_group, (0, 0.0, 0.0))
        found[one.holdout_group] = _HoldoutGroup(jobs + 1, cost + _compute_cost(one), waste + one.waste_gpu_s)
    return list(found.values())


def _compute_per_job(groups: Sequence[_HoldoutGroup]) -> tuple[float, Interval]:
    """Return (GPU-hours per job, its interval): a ratio with the error of what each draw adds (Cochran 1977, 6.4)."""
    n, jobs = len(groups), sum(group.jobs for group in groups)
    ratio = fsum(group.cost for group in groups) / jobs
    spread = fsum((group.cost - ratio * group.jobs) ** 2 for group in groups)
    return ratio, compute_interval_around(
        ratio,
        sqrt(spread * n / (n - 1)) / jobs,
        [group.waste_gpu_s for group in groups if group.waste_gpu_s],
    )
