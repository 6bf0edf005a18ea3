"""Jobs whose pre-run was left out by lot, next to those that had theirs: what pre-runs save, by experiment. Pure.

Submissions of one sweep share one draw and fail alike: the draw is the case, not the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from typing import NamedTuple

from slurmwrap.fast_dataclasses import replace
from slurmwrap.report.confidence_interval import Interval, compute_interval_around, put_together, scale_interval
from slurmwrap.report.formulas import NEEDED
from slurmwrap.report.night_report import Holdout
from slurmwrap.report.report_inputs import Drawn, Figures


def compute_holdout(figures: Figures) -> Holdout:
    """holdout-1. Wastes are shown as soon as there is a job; the difference from NEEDED draws with a failure on, in
    each group: draws without one say nothing of how much a failure costs."""
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
    groups = _group_by_lot(held), _group_by_lot(control)
    (out, its), (other, theirs) = (_compute_per_job(group) for group in groups)
    low, high = put_together(out - other, [(out, its), (-other, scale_interval(theirs, -1.0))])
    return replace(found, difference=out - other, low=low, high=high)


def _compute_waste(drawn: Sequence[Drawn]) -> float | None:
    """GPU-hours per job."""
    return fsum(_compute_cost(one) for one in drawn) / len(drawn) if drawn else None


def _count_failing(drawn: Sequence[Drawn]) -> int:
    return len({one.lot for one in drawn if one.waste_gpu_s})


def _compute_cost(one: Drawn) -> float:
    return (one.waste_gpu_s + one.prerun_gpu_s) / 3600


class _Lot(NamedTuple):
    jobs: int
    cost: float  # GPU-hours
    waste_gpu_s: float


def _group_by_lot(drawn: Sequence[Drawn]) -> list[_Lot]:
    found: dict[str, _Lot] = {}
    for one in drawn:
        jobs, cost, waste = found.get(one.lot, (0, 0.0, 0.0))
        found[one.lot] = _Lot(jobs + 1, cost + _compute_cost(one), waste + one.waste_gpu_s)
    return list(found.values())


def _compute_per_job(lots: Sequence[_Lot]) -> tuple[float, Interval]:
    """(GPU-hours per job, its interval): a ratio, with the error of what each draw adds to it (Cochran 1977, 6.4)."""
    n, jobs = len(lots), sum(lot.jobs for lot in lots)
    ratio = fsum(lot.cost for lot in lots) / jobs
    spread = fsum((lot.cost - ratio * lot.jobs) ** 2 for lot in lots)
    return ratio, compute_interval_around(
        ratio, sqrt(spread * n / (n - 1)) / jobs, [lot.waste_gpu_s for lot in lots if lot.waste_gpu_s]
    )
