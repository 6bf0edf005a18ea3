"""What we got wrong, each next to how often we spoke. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.report.night_report import Retries, Wrong
from slurmwrap.report.report_inputs import Figures, Passed, RetriedRun

_TOLD = ("", "cancelled", "job_preempted", "completed_with_error")
_REACH, _LEAST_S = 2.0, 120.0  # a failure within so many times the pre-run's own length could have shown in it
_PROGRAMS = ("U", "AE")  # domains whose failures one GPU can show


def count_false_decisions(figures: Figures) -> Wrong:
    """Retries that failed of the same, pre-runs that passed what fails at once, refusals of what runs well."""
    told = [one for one in figures.again if one.category not in _TOLD]
    return Wrong(
        retries=len(told),
        retries_failed_again=sum(one.category == one.before for one in told),
        preruns_passed=len(figures.passed),
        preruns_missed=sum(is_missed(one) for one in figures.passed),
        refusals=figures.refused,
        false_refusals=figures.refused_falsely,
    )


def is_missed(one: Passed) -> bool:
    """Whether the job failed of its program, within the reach of the pre-run that passed it."""
    category = CATEGORIES.get(one.category)
    if category is None or category.domain not in _PROGRAMS or one.category == "gpu_oom":
        return False
    return one.run_s <= max(_LEAST_S, _REACH * one.prerun_s)


def count_retries(again: Sequence[RetriedRun]) -> Retries:
    """What became of the runs that followed our requeues."""
    ends = [one.category for one in again]
    return Retries(
        jobs=len(ends),
        completed=ends.count("success"),
        cancelled=ends.count("cancelled"),
        unfinished=ends.count(""),
        failed_again=sum(end not in ("success", "cancelled", "completed_with_error", "") for end in ends),
    )
