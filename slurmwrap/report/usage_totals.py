"""Sums over all runs: the headline, rows per user and account, run times, and resources held without use. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum
from statistics import median

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.retry_budget import counted_steps
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
    """Of the period."""
    return _headline(figures.cells, sum(figures.repeats.values()), figures.gsub_jobs)


def before(figures: Figures) -> Headline | None:
    """Of the period before; gsub's share of it is not asked for."""
    if figures.cells_before is None:
        return None
    return _headline(figures.cells_before, figures.repeats_before, 0)


def _headline(cells: Sequence[RunGroup], repeats: int, gsub_jobs: int) -> Headline:
    runs = {"": 0, "completed": 0, "completed_with_error": 0, "failed": 0, "cancelled": 0}
    # Whole seconds: their sums are exact.
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
    """One row per user, who held most GPU-hours first."""
    return _shares(figures, lambda user, account: user, figures.tried)


def accounts(figures: Figures) -> tuple[ShareRow, ...]:
    """One row per account; none where Slurm has none. Whose account a pre-run was on is not kept."""
    rows = _shares(figures, lambda user, account: account, {})
    return rows if any(row.name for row in rows) else ()


def _shares(
    figures: Figures, who: Callable[[str, str], str], tried: Mapping[str, tuple[int, int]]
) -> tuple[ShareRow, ...]:
    groups: dict[str, list[RunGroup]] = {name: [] for name in tried}
    for cell in figures.cells:
        groups.setdefault(who(cell.user, cell.account), []).append(cell)
    repeats: dict[str, int] = {}
    for (user, account), count in figures.repeats.items():
        name = who(user, account)
        repeats[name] = repeats.get(name, 0) + count
    rows = [_share(name, cells, repeats.get(name, 0), *tried.get(name, (0, 0))) for name, cells in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.name)))


def _share(name: str, cells: Sequence[RunGroup], repeats: int, preruns: int, stopped: int) -> ShareRow:
    head = _headline(cells, repeats, 0)
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
    """Runs by how long they lasted and how they ended; from the first bin that holds one to the last."""
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


# Turns runs that count their steps (gsub --count-steps) into ETTR: productive time over available time.
#
# As Kokolis et al. 2024 define it: waiting since it could run, starting up and work that is lost count against it.
# Productive is what the steps that stand took at the measured speed. Of a job that ended well all its steps stand, else
# those up to its newest checkpoint. All of it is the user's own claim; it is shown and decides nothing.
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


# What we got wrong, each next to how often we spoke.
_TOLD = ("", "cancelled", "job_preempted", "completed_with_error")
# A failure within so many times the pre-run's own length could have shown in it.
_REACH, _LEAST_S = 2.0, 120.0
# Domains whose failures one GPU can show.
_PROGRAMS = ("U", "AE")


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


# Mean use below which all the time that a run held its GPUs counts as idle, less that use.
LOW = 0.1
# A shorter run has hardly begun.
LEAST_S = 600
ROWS = 50
_JOBS = 10
# CPU-hours, GiB-hours unused below which a row says nothing.
_WORTH = (20.0, 80.0)


def list_idle_rows(figures: Figures) -> tuple[IdleRow, ...]:
    """By user and job name, most idle GPU-hours first."""
    groups = group_by(figures.idle, lambda one: (one.user, one.name, has_no_process(one)))
    dearest = sorted(groups.values(), key=lambda group: (-_sum_idle_hours(group), group[0].user, group[0].name))[:ROWS]
    shown = [sorted(group, key=compute_idle_gpu_s, reverse=True)[:_JOBS] for group in dearest]
    known = figures.details([one.key for group in shown for one in group])
    return tuple(_make_idle_row(group, runs, known) for group, runs in zip(dearest, shown, strict=True))


def has_no_process(one: Idle) -> bool:
    """Nothing ever opened any of its GPUs."""
    return one.unused >= one.gpus


def compute_idle_gpu_s(one: Idle) -> float:
    """GPU-seconds: of all its GPUs where they are hardly used, else of those that nothing ever opened."""
    if has_no_process(one):
        return float(one.gpus * one.run_s)
    if one.use is not None and one.use < LOW:
        return one.gpus * one.run_s * (1.0 - one.use)
    return float(one.unused * one.run_s)


def _sum_idle_hours(group: Sequence[Idle]) -> float:
    return fsum(map(compute_idle_gpu_s, group)) / 3600


def _make_idle_row(group: Sequence[Idle], shown: Sequence[Idle], known: Mapping[Key, Detail]) -> IdleRow:
    told = [(one.use, one.gpus * one.run_s) for one in group if one.use is not None]
    held = fsum(weight for _, weight in told)
    return IdleRow(
        user=group[0].user,
        name=group[0].name,
        runs=len(group),
        jobs=tuple(known[one.key].address if one.key in known else str(one.key[1]) for one in shown),
        gpus=max(one.gpus for one in group),
        gpu_hours_idle=_sum_idle_hours(group),
        gpu_util=fsum(use * weight for use, weight in told) / held if held else None,
        no_process=has_no_process(group[0]),
    )


def list_over_requests(asked: Sequence[RequestedAndUsed]) -> tuple[RequestRow, ...]:
    """What is worth a word, most unused CPU-hours first."""
    worth = [one for one in asked if one.cpu_hours_unused >= _WORTH[0] or one.gib_hours_unused >= _WORTH[1]]
    rows = sorted(worth, key=lambda one: (-one.cpu_hours_unused, -one.gib_hours_unused, one.user, one.name))
    return tuple(RequestRow(**one._asdict()) for one in rows[:ROWS])
