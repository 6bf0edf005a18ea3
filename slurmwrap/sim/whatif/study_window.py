"""Which jobs of a dump count, and how those that were in the system before it begins enter the replay. Pure.

A dump of a month holds every job that was there at some time in the month. Of those submitted before, it shows only the
ones that were still there: a selection of long and late jobs, whose delays must not count. They do hold nodes, so they
are replayed: a job that ran when the window began starts when it really did, one that waited enters at the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual, Load

_TOO_FEW = 0.5  # of the jobs: a window that leaves out more is none


def begin_of(load: Load) -> float:
    """When the dump seems to begin, on its own clock: no job in it ended before, so the first end is hardly later.

    Where that leaves out half of the jobs the dump is not cut at its beginning, and all of them count.
    """
    ends = [one.end_s for one in (*load.actual, *load.cpu_actual) if one.end_s is not None]
    first = min((job.submit_s for job in load.jobs), default=0.0)
    guess = min(ends, default=first)
    before = sum(job.submit_s < guess for job in load.jobs)
    return guess if before < _TOO_FEW * len(load.jobs) else first


def end_of(load: Load) -> float:
    """The last moment that the dump tells of."""
    known = [moment for one in load.actual for moment in (one.submit_s, one.start_s, one.end_s) if moment is not None]
    return max(known, default=0.0)


def select_entering_jobs(load: Load, since: float) -> tuple[tuple[SimJob, ...], tuple[Actual, ...]]:
    """The jobs as they enter a replay that begins before `since`, renumbered in that order, and what became of them."""
    timed = [
        (job if job.submit_s >= since else replace(job, submit_s=_compute_entry(job, actual, since)), actual)
        for job, actual in zip(load.jobs, load.actual, strict=True)
    ]
    timed.sort(key=lambda pair: (pair[0].submit_s, pair[0].number))
    jobs = tuple(replace(job, number=number) for number, (job, _) in enumerate(timed))
    return jobs, tuple(actual for _, actual in timed)


def _compute_entry(job: SimJob, actual: Actual, since: float) -> float:
    return actual.start_s if actual.start_s < since else max(job.submit_s, since)


def select_counted_jobs(jobs: Sequence[SimJob], actual: Sequence[Actual], window: tuple[float, float]) -> list[SimJob]:
    """Those that could first run in the window, and whose end is known."""
    since, until = window
    return [
        job
        for job, what in zip(jobs, actual, strict=True)
        if since <= job.submit_s <= until and what.end_s is not None and _eligible_within(job, what, since)
    ]


def _eligible_within(job: SimJob, what: Actual, since: float) -> bool:
    """Not one of those whose entry was moved to the window's beginning."""
    return job.submit_s > since or what.submit_s >= since
