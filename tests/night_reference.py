"""Reference implementation of the night report's sums in plain Python; slow, and independent of the queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from statistics import median
from typing import Any

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.job_run import ActionRecord, Incident, JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.report.night_report import (
    Bin,
    CategoryRow,
    Headline,
    Repeated,
    RepeatedInput,
    RepeatedUser,
    Retries,
    ShareRow,
)

Given = dict[str, Any]


def category(run: JobRun) -> str:
    return run.diagnosis.category if run.diagnosis else ""


def failed(run: JobRun) -> bool:
    return category(run) not in ("", "success", "cancelled")


def job(run: JobRun) -> tuple[str, int]:
    return run.attempt.cluster, run.attempt.job_id


def real(given: Given) -> list[JobRun]:
    """Runs of real jobs that ended."""
    preruns: Sequence[PrerunRecord] = given["preruns"]
    submissions: Sequence[Submission] = given["submissions"]
    trials = {(p.cluster, p.prerun_job_id) for p in preruns}
    trials |= {(s.cluster, s.prerun_job_id) for s in submissions if s.prerun_job_id is not None}
    stopped = {(p.cluster, p.job_id) for p in preruns if p.verdict.outcome is Outcome.FAIL}
    return [
        run
        for run in given["attempts"]
        if run.end_time is not None and job(run) not in trials and not (not run.nodes and job(run) in stopped)
    ]


def ended(given: Given, since: float, until: float) -> list[JobRun]:
    return [run for run in real(given) if since <= run.end_time < until]  # type: ignore[operator]


def alone(given: Given, since: float, until: float) -> list[JobRun]:
    incidents: Sequence[Incident] = given["incidents"]
    page = {one.incident_id for one in incidents if one.over_at is None or one.over_at >= since if one.began < until}
    return [run for run in ended(given, since, until) if failed(run) and run.incident not in page]


def hours(runs: Iterable[JobRun]) -> float:
    return sum(run.gpu_hours for run in runs)


def headline(given: Given, since: float, until: float, *, gsub: bool = True) -> Headline:
    runs = ended(given, since, until)
    wrong = [run for run in runs if failed(run)]
    asked = [s for s in given["submissions"] if gsub and since <= s.at < until]
    return Headline(
        jobs=len({job(run) for run in runs}),
        attempts=len(runs),
        users=len({run.user for run in runs}),
        gpu_hours=hours(runs),
        failed_attempts=len(wrong),
        failed_gpu_hours=hours(wrong),
        cancelled_attempts=sum(category(run) == "cancelled" for run in runs),
        unjudged_attempts=sum(run.diagnosis is None for run in runs),
        gsub_jobs=len(asked),
    )


def _by(runs: Iterable[JobRun], key: Callable[[JobRun], Any]) -> dict[Any, list[JobRun]]:
    found = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return found


def _rank(lasted: list[float], share: float) -> float:
    return lasted[ceil(share * len(lasted)) - 1]


def categories(given: Given, since: float, until: float) -> dict[str, CategoryRow]:
    total = hours(ended(given, since, until))
    before = _by(alone(given, 2 * since - until, since), category)
    rows = {}
    for name, runs in _by(alone(given, since, until), category).items():
        lasted = sorted(run.run_s for run in runs)
        gpus = [run.gpus for run in runs]
        rows[name] = CategoryRow(
            category=name,
            domain=CATEGORIES[name].domain,
            attempts=len(runs),
            jobs=len({job(run) for run in runs}),
            users=len({run.user for run in runs}),
            median_run_s=median(lasted),
            p90_run_s=_rank(lasted, 0.9),
            p95_run_s=_rank(lasted, 0.95),
            gpu_hours=hours(runs),
            share=hours(runs) / total if total else 0.0,
            demand=(
                sum(n <= 1 for n in gpus),
                sum(2 <= n <= 4 for n in gpus),
                sum(5 <= n <= 8 for n in gpus),
                sum(n > 8 for n in gpus),
            ),
            attempts_before=len(before.get(name, ())),
            gpu_hours_before=hours(before.get(name, ())),
        )
    return rows


def shares(given: Given, since: float, until: float, who: str) -> dict[str, ShareRow]:
    rows = {}
    for name, runs in _by(ended(given, since, until), lambda run: getattr(run, who)).items():
        wrong = [run for run in runs if failed(run)]
        lost = {cause: hours(of) for cause, of in _by(wrong, category).items()}
        rows[name] = ShareRow(
            name=name,
            jobs=len({job(run) for run in runs}),
            attempts=len(runs),
            gpu_hours=hours(runs),
            failed_attempts=len(wrong),
            failed_gpu_hours=hours(wrong),
            cancelled_attempts=sum(category(run) == "cancelled" for run in runs),
            top_category=min(lost, key=lambda cause: (-lost[cause], cause), default=""),
        )
    return rows


def runtimes(given: Given, since: float, until: float, edges: Sequence[float]) -> list[Bin]:
    rows = []
    for low, high in zip(edges, (*edges[1:], float("inf")), strict=True):
        inside = [category(run) for run in ended(given, since, until) if low <= run.run_s < high]
        wrong = sum(one not in ("", "success", "cancelled") for one in inside)
        last = high if high < float("inf") else low * 2
        rows.append(
            Bin(
                low_s=low,
                high_s=last,
                failed=wrong,
                completed=inside.count("success"),
                cancelled=inside.count("cancelled"),
            )
        )
    while rows and not (rows[-1].failed or rows[-1].completed or rows[-1].cancelled):
        rows.pop()
    while rows and not (rows[0].failed or rows[0].completed or rows[0].cancelled):
        rows.pop(0)
    return rows


def held(given: Given, since: float, until: float, low: float, high: float) -> tuple[float, float, float]:
    """GPU-hours of (completed, failed, cancelled) runs within [low, high)."""
    sums = {"success": 0.0, "failed": 0.0, "cancelled": 0.0}
    for run in ended(given, since, until):
        if run.start_time is not None and run.end_time is not None and category(run):
            overlap = max(0.0, min(run.end_time, high) - max(run.start_time, low)) if run.run_s else 0.0
            sums["failed" if failed(run) else category(run)] += run.gpus * overlap / 3600
    return sums["success"], sums["failed"], sums["cancelled"]


def repeated(given: Given, since: float, until: float) -> dict[tuple[str, str, str], Repeated]:
    groups = _by(alone(given, since, until), lambda run: (run.user, run.name, category(run)))
    return {
        key: Repeated(
            user=key[0],
            name=key[1],
            category=key[2],
            attempts=len(runs),
            jobs=tuple(sorted({run.address for run in runs})),
            gpu_hours=hours(runs),
            advice="",
        )
        for key, runs in groups.items()
        if len(runs) > 1
    }


def repeated_users(given: Given, since: float, until: float) -> dict[tuple[str, str], RepeatedUser]:
    groups = _by(alone(given, since, until), lambda run: (run.user, category(run)))
    return {
        key: RepeatedUser(
            user=key[0],
            category=key[1],
            attempts=len(runs),
            jobs=len({job(run) for run in runs}),
            gpu_hours=hours(runs),
        )
        for key, runs in groups.items()
        if len(runs) > 1
    }


def repeated_inputs(given: Given, since: float, until: float) -> dict[str, RepeatedInput]:
    runs = [
        run
        for run in given["attempts"]
        if run.end_time is not None and since <= run.end_time < until and failed(run) and run.diagnosis.input_path
    ]
    return {
        path: RepeatedInput(
            path=path,
            attempts=len(of),
            users=len({run.user for run in of}),
            categories=tuple(sorted({category(run) for run in of})),
            gpu_hours=hours(of),
            blocked=False,
        )
        for path, of in _by(runs, lambda run: run.diagnosis.input_path).items()  # type: ignore[union-attr]
        if len(of) > 1
    }


def retries(given: Given, since: float, until: float) -> Retries:
    actions: Sequence[ActionRecord] = given["actions"]
    requeued = {
        a.attempt
        for a in actions
        if a.verb in ("requeue", "requeuehold")
        and (a.mode, a.error) == ("act", "")
        and a.done_at is not None
        and since <= a.intended_at < until
    }
    ends = []
    for attempt in requeued:
        same = [run for run in given["attempts"] if job(run) == (attempt.cluster, attempt.job_id)]  # type: ignore[union-attr]
        later = [run for run in same if run.attempt.submit_time > attempt.submit_time]  # type: ignore[union-attr]
        ends.append(category(min(later, key=lambda run: run.attempt.submit_time)) if later else "")
    return Retries(
        jobs=len(ends),
        completed=ends.count("success"),
        cancelled=ends.count("cancelled"),
        unfinished=ends.count(""),
        failed_again=sum(end not in ("", "success", "cancelled") for end in ends),
    )
