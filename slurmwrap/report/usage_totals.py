"""Sums over all runs: the headline, rows per user and account, run times, ETTR, retries, and unused resources. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum
from statistics import median

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.retry_budget import list_counted_steps
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import (
    Bin,
    Counted,
    Headline,
    IdleRow,
    LargeJob,
    RequestRow,
    Retries,
    ShareRow,
    Wrong,
)
from slurmwrap.report.report_inputs import (
    BIN_EDGES_S,
    Detail,
    Figures,
    Idle,
    Key,
    Passed,
    RequestedAndUsed,
    RetriedRun,
    RunGroup,
)


def headline(figures: Figures) -> Headline:
    """Return the headline of the period."""
    return _sum_headline(figures.cells, sum(figures.repeats.values()), figures.gsub_jobs)


def before(figures: Figures) -> Headline | None:
    """Return the headline of the preceding period, without the number of gsub calls; None if nothing is known of it."""
    if figures.cells_before is None:
        return None
    return _sum_headline(figures.cells_before, figures.repeats_before, 0)


def _sum_headline(cells: Sequence[RunGroup], repeats: int, gsub_jobs: int) -> Headline:
    runs = {"": 0, "completed": 0, "completed_with_error": 0, "failed": 0, "cancelled": 0}
    # The addends are whole seconds, so the sums are exact.
    gpu_s = dict.fromkeys(runs, 0.0)
    for cell in cells:
        outcome = cell.outcome
        runs[outcome] += cell.runs
        gpu_s[outcome] += cell.gpu_s
    attempts = sum(runs.values())
    return Headline(
        jobs=attempts - repeats,
        attempts=attempts,
        users=len({cell.user for cell in cells}),
        gpu_hours=sum(gpu_s.values()) / 3600,
        failed_attempts=runs["failed"],
        failed_gpu_hours=gpu_s["failed"] / 3600,
        cancelled_attempts=runs["cancelled"],
        unjudged_attempts=runs[""],
        completed_with_error_attempts=runs["completed_with_error"],
        completed_with_error_gpu_hours=gpu_s["completed_with_error"] / 3600,
        gsub_jobs=gsub_jobs,
    )


def users(figures: Figures) -> tuple[ShareRow, ...]:
    """Return one row per user, most GPU-hours first."""
    return _make_share_rows(figures, lambda user, account: user, figures.tried)


def accounts(figures: Figures) -> tuple[ShareRow, ...]:
    """Return one row per account; () if Slurm has no accounts. The accounts of pre-runs are not stored."""
    rows = _make_share_rows(figures, lambda user, account: account, {})
    return rows if any(row.name for row in rows) else ()


def _make_share_rows(
    figures: Figures, who: Callable[[str, str], str], tried: Mapping[str, tuple[int, int]]
) -> tuple[ShareRow, ...]:
    groups: dict[str, list[RunGroup]] = {name: [] for name in tried}
    for cell in figures.cells:
        groups.setdefault(who(cell.user, cell.account), []).append(cell)
    repeats: dict[str, int] = {}
    for (user, account), count in figures.repeats.items():
        name = who(user, account)
        repeats[name] = repeats.get(name, 0) + count
    rows = [
        _make_share_row(name, cells, repeats.get(name, 0), *tried.get(name, (0, 0))) for name, cells in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.name)))


def _make_share_row(name: str, cells: Sequence[RunGroup], repeats: int, preruns: int, stopped: int) -> ShareRow:
    head = _sum_headline(cells, repeats, 0)
    lost: dict[str, float] = {}
    for cell in cells:
        if cell.outcome == "failed":
            lost[cell.category] = lost.get(cell.category, 0.0) + cell.gpu_s
    return ShareRow(
        name=name,
        jobs=head.jobs,
        attempts=head.attempts,
        gpu_hours=head.gpu_hours,
        failed_attempts=head.failed_attempts,
        failed_gpu_hours=head.failed_gpu_hours,
        cancelled_attempts=head.cancelled_attempts,
        preruns=preruns,
        stopped_jobs=stopped,
        top_category=min(lost, key=lambda category: (-lost[category], category), default=""),
    )


def runtimes(cells: Iterable[RunGroup]) -> tuple[Bin, ...]:
    """Return the bins of run time, by how runs ended, from the first bin with a run to the last."""
    counts: dict[tuple[int, str], int] = {}
    for cell in cells:
        counts[cell.bin, cell.outcome] = counts.get((cell.bin, cell.outcome), 0) + cell.runs
    used = [number for number, outcome in counts if outcome]
    edges = list(pairwise((*BIN_EDGES_S, BIN_EDGES_S[-1] * 2)))
    return (
        tuple(
            Bin(
                low_s=float(edges[number][0]),
                high_s=float(edges[number][1]),
                failed=counts.get((number, "failed"), 0),
                completed=counts.get((number, "completed"), 0) + counts.get((number, "completed_with_error"), 0),
                cancelled=counts.get((number, "cancelled"), 0),
            )
            for number in range(min(used), max(used) + 1)
        )
        if used
        else ()
    )


# ETTR (productive time over available time) of jobs that count their steps (gsub --count-steps).
#
# Definition by Kokolis et al. 2024: waiting since the job could run, starting up and lost work count against it.
# Productive is the time that the kept steps took at the measured speed. All steps of a job that ended well are kept;
# otherwise those up to its newest checkpoint. The step counts are the user's own claim: they are shown, but nothing is
# decided by them.
def compute_ettr(runs: Iterable[JobRun], *, since: float, until: float) -> Counted:
    """Return the ETTR of jobs whose newest run ended in [since, until) and whose runs all counted, by GPU-hours."""
    found = []
    for ordered in _group_jobs(runs):
        end = ordered[-1].end_time
        if end is not None and since <= end < until and (times := _compute_job_times(ordered)) is not None:
            found.append((max(1, ordered[-1].gpus), *times))
    held = fsum(gpus * available for gpus, _, available in found)
    used = fsum(gpus * productive for gpus, productive, _ in found)
    return Counted(jobs=len(found), ettr=used / held if held else None)


def list_large_jobs(runs: Iterable[JobRun]) -> tuple[LargeJob, ...]:
    """Return one row per job, most GPU-hours first.

    If its steps were not counted, completed runs are productive and all others are lost, since it is not known what a
    failed run saved.
    """
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
    """Return (productive, available) seconds of one job; None if a run did not count steps, or it never began."""
    first, last = runs[0], runs[-1]
    rates = [run.measurement.steps_per_s for run in runs if run.measurement and run.measurement.steps_per_s]
    reached = list_counted_steps(runs)
    began = first.eligible_time if first.eligible_time is not None else first.start_time
    if not rates or None in reached or began is None or last.end_time is None or last.end_time <= began:
        return None
    saved = [run.diagnosis.checkpoint_step or 0 for run in runs if run.diagnosis is not None]
    well = last.diagnosis is not None and last.diagnosis.category == "success"
    kept_steps = max(step or 0 for step in reached)
    kept_steps = kept_steps if well else min(kept_steps, max(saved, default=0))
    ran = fsum(run.run_s for run in runs)
    return min(kept_steps / median(rates), ran), float(last.end_time - began)


# How often slurmwrap was wrong, next to the number of cases.
#
# Categories that do not show whether a retry was right.
_INDECISIVE = ("", "cancelled", "job_preempted", "completed_with_error")
# A failure within this multiple of the pre-run's duration, or within _LEAST_S seconds, could have shown in it.
_REACH, _LEAST_S = 2.0, 120.0
# Domains whose failures one GPU can show.
_PROGRAMS = ("U", "AE")


def count_false_decisions(figures: Figures) -> Wrong:
    """Count retries that failed alike, passed pre-runs of jobs that fail early, and refusals of good jobs."""
    decisive = [one for one in figures.again if one.category not in _INDECISIVE]
    return Wrong(
        retries=len(decisive),
        retries_failed_again=sum(one.category == one.before for one in decisive),
        preruns_passed=len(figures.passed),
        preruns_missed=sum(is_missed(one) for one in figures.passed),
        refusals=figures.refused,
        false_refusals=figures.refused_falsely,
    )


def is_missed(one: Passed) -> bool:
    """Whether the job failed because of its program, early enough that the passed pre-run could have found it."""
    category = CATEGORIES.get(one.category)
    if category is None or category.domain not in _PROGRAMS or one.category == "gpu_oom":
        return False
    return one.run_s <= max(_LEAST_S, _REACH * one.prerun_s)


def count_retries(again: Sequence[RetriedRun]) -> Retries:
    """Count how the runs that followed slurmwrap's requeues ended."""
    ends = [one.category for one in again]
    return Retries(
        jobs=len(ends),
        completed=ends.count("success"),
        cancelled=ends.count("cancelled"),
        unfinished=ends.count(""),
        failed_again=sum(end not in ("success", "cancelled", "completed_with_error", "") for end in ends),
    )


# Below this mean use, the whole time that a run held its GPUs counts as idle, except the used part.
LOW = 0.1
# Shorter runs (seconds) are not reported, because they have hardly begun.
LEAST_S = 600
ROWS = 50
_JOBS = 10
# Least unused CPU-hours, and GiB-hours, for which a row is shown.
_LEAST_UNUSED = (20.0, 80.0)


def list_idle_rows(figures: Figures) -> tuple[IdleRow, ...]:
    """Return rows by user and job name, most idle GPU-hours first."""
    groups = group_by(figures.idle, lambda one: (one.user, one.name, has_no_process(one)))
    dearest = sorted(groups.values(), key=lambda group: (-_sum_idle_hours(group), group[0].user, group[0].name))[:ROWS]
    shown = [sorted(group, key=compute_idle_gpu_s, reverse=True)[:_JOBS] for group in dearest]
    known = figures.details([one.key for group in shown for one in group])
    return tuple(_make_idle_row(group, runs, known) for group, runs in zip(dearest, shown, strict=True))


def has_no_process(one: Idle) -> bool:
    """Whether no process ever opened any of its GPUs."""
    return one.unused >= one.gpus


def compute_idle_gpu_s(one: Idle) -> float:
    """Return GPU-seconds: of all its GPUs if they are hardly used, else of those that no process ever opened."""
    if has_no_process(one):
        return float(one.gpus * one.run_s)
    if one.use is not None and one.use < LOW:
        return one.gpus * one.run_s * (1.0 - one.use)
    return float(one.unused * one.run_s)


def _sum_idle_hours(group: Sequence[Idle]) -> float:
    return fsum(map(compute_idle_gpu_s, group)) / 3600


def _make_idle_row(group: Sequence[Idle], shown: Sequence[Idle], known: Mapping[Key, Detail]) -> IdleRow:
    weighted = [(one.use, one.gpus * one.run_s) for one in group if one.use is not None]
    held = fsum(weight for _, weight in weighted)
    return IdleRow(
        user=group[0].user,
        name=group[0].name,
        runs=len(group),
        jobs=tuple(known[one.key].address if one.key in known else str(one.key[1]) for one in shown),
        gpus=max(one.gpus for one in group),
        gpu_hours_idle=_sum_idle_hours(group),
        gpu_util=fsum(use * weight for use, weight in weighted) / held if held else None,
        no_process=has_no_process(group[0]),
    )


def list_over_requests(asked: Sequence[RequestedAndUsed]) -> tuple[RequestRow, ...]:
    """Return the requests that exceed use enough to be shown, most unused CPU-hours first."""
    worth = [
        one for one in asked if one.cpu_hours_unused >= _LEAST_UNUSED[0] or one.gib_hours_unused >= _LEAST_UNUSED[1]
    ]
    rows = sorted(worth, key=lambda one: (-one.cpu_hours_unused, -one.gib_hours_unused, one.user, one.name))
    return tuple(RequestRow(**one._asdict()) for one in rows[:ROWS])
