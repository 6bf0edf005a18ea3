"""Failure study: what failures cost, and what pre-run, adaptive retry and node exclusion save, in GPU-hours with
intervals.

`run_failure_study(jobs, servers=…, settings=FailureSettings(), seeds=range(10), config=Config())` draws failures at
published rates (published_rates.py), simulates them in each arm (study_arms.py) and returns a FailureStudy.
`study_of_dump` uses the failures that a site's own dump records. `inject_failures` only returns which jobs fail, of
what cause and when. study_output.py formats the table, the text and the figures for a plot.
"""

from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import FailingJob, inject_failures
from slurmwrap.sim.failures.failure_study import MOST_JOBS, run_failure_study, study_of_dump
from slurmwrap.sim.failures.study_result import ArmResult, FailureStudy, Interval

__all__ = [
    "MOST_JOBS",
    "ArmResult",
    "FailingJob",
    "FailureSettings",
    "FailureStudy",
    "Interval",
    "inject_failures",
    "run_failure_study",
    "study_of_dump",
]
