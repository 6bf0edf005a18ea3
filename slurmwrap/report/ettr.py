"""Turns runs that count their steps (gsub --count-steps) into ETTR: productive time over available time. Pure.

As Kokolis et al. 2024 define it: waiting since it could run, starting up and work that is lost count against it.
Productive is what the steps that stand took at the measured speed. Of a job that ended well all its steps stand, else
those up to its newest checkpoint. All of it is the user's own claim; it is shown and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import median

from slurmwrap.model.run import JobRun
from slurmwrap.policy.retry_budget import counted_steps
from slurmwrap.report.night_report import Counted, LargeJob


def compute_ettr(runs: Iterable[JobRun], *, since: float, until: float) -> Counted:
    """Over the jobs whose newest run ended in [since, until) and all of whose ended runs counted; by GPU-hours."""
    found = []
    for ordered in _group_jobs(runs):
        end = ordered[-1].end_time
        if end is not None and since <= end < until and (times := _compute_job_times(ordered)) is not None:
            found.append((max(1, ordered[-1].gpus), *times))
    held = fsum(gpus * available for gpus, _, available in found)
    used = fsum(gpus * productive for gpus, productive, _ in found)
    return Counted(jobs=len(found), ettr=used / held if held else None)


def list_large_jobs(runs: Iterable[JobRun]) -> tuple[LargeJob, ...]:
    """One row per job, most GPU-hours first. Where its steps were not counted, runs that completed are productive and
    all others lost: what a failed run saved is not known then."""
    rows = [row for ordered in _group_jobs(runs) if (row := _make_large_job(ordered)) is not None]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.address)))


def _make_large_job(runs: Sequence[JobRun]) -> LargeJob | None:
    counted_times = _compute_job_times(runs)
    times = counted_times or _sum_whole_runs(runs)
    if times is None:
        return None
    last = runs[-1]
    return LargeJob(
        address=last.address or str(last.attempt.job_id),
        user=last.user,
        name=last.name,
        gpus=last.gpus,
        runs=len(runs),
        gpu_hours=fsum(run.gpu_hours for run in runs),
        ettr=min(1.0, times[0] / times[1]),
        counted=counted_times is not None,
    )


def _sum_whole_runs(runs: Sequence[JobRun]) -> tuple[float, float] | None:
    first, last = runs[0], runs[-1]
    began = first.eligible_time if first.eligible_time is not None else first.start_time
    if began is None or last.end_time is None or last.end_time <= began:
        return None
    well = fsum(run.run_s for run in runs if run.diagnosis is not None and run.diagnosis.category == "success")
    return well, float(last.end_time - began)


def _group_jobs(runs: Iterable[JobRun]) -> Iterable[list[JobRun]]:
    jobs: dict[tuple[str, int, int], list[JobRun]] = {}
    for run in runs:
        jobs.setdefault((run.attempt.cluster, run.attempt.job_id, run.uid), []).append(run)
    return (sorted(same, key=lambda run: run.attempt.submit_time) for same in jobs.values())


def _compute_job_times(runs: Sequence[JobRun]) -> tuple[float, float] | None:
    """(productive, available) seconds of one job; None where its runs did not all count, or never began."""
    first, last = runs[0], runs[-1]
    rates = [run.measurement.steps_per_s for run in runs if run.measurement and run.measurement.steps_per_s]
    reached = counted_steps(runs)
    began = first.eligible_time if first.eligible_time is not None else first.start_time
    if not rates or None in reached or began is None or last.end_time is None or last.end_time <= began:
        return None
    saved = [run.diagnosis.checkpoint_step or 0 for run in runs if run.diagnosis is not None]
    well = last.diagnosis is not None and last.diagnosis.category == "success"
    stands = max(step or 0 for step in reached)
    stands = stands if well else min(stands, max(saved, default=0))
    ran = fsum(run.run_s for run in runs)
    return min(stands / median(rates), ran), float(last.end_time - began)
