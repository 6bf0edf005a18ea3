"""Turns what the database remembers into a NightReport. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import TypeVar

from slurmwrap.prerun.verdict import Outcome
from slurmwrap.report.actions import retries, rule_rows, to_do
from slurmwrap.report.agreement import agreement
from slurmwrap.report.ettr import counted
from slurmwrap.report.record import (
    Blocked,
    CategoryRow,
    CaughtRow,
    Estimate,
    Headline,
    IncidentRow,
    NightReport,
    Preruns,
    Repeated,
    SuspectNodes,
)
from slurmwrap.report.story import never_ran, stopped_jobs
from slurmwrap.report.waiting import queueing
from slurmwrap.report.words import in_order
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord, PrerunRecord, QueueDelay, StrikeRecord
from slurmwrap.retry.blocked import BlockedInput
from slurmwrap.retry.incident import Incident
from slurmwrap.retry.submission import Submission

T = TypeVar("T")
K = TypeVar("K")

MIN_CASES = 20  # below it nothing is estimated
SAVED = (
    "sum over stopped jobs of GPUs x median runtime to failure of the pre-run's category here "
    "(of all failures where the category has fewer than 20), minus the pre-runs' own GPU time"
)
_NOT_FAILED = frozenset({"success", "cancelled"})


@dataclass(frozen=True, slots=True)
class _Window:
    """What ended in it. `attempts` are runs of real jobs, `failed` those among them that failed, `alone` those of them
    that belong to no incident of the page."""

    attempts: tuple[AttemptRecord, ...]
    failed: tuple[AttemptRecord, ...]
    alone: tuple[AttemptRecord, ...]
    preruns: tuple[PrerunRecord, ...]


def build(
    attempts: Sequence[AttemptRecord],
    preruns: Sequence[PrerunRecord],
    submissions: Sequence[Submission],
    actions: Sequence[ActionRecord],
    strikes: Sequence[StrikeRecord],
    blocked: Sequence[BlockedInput],
    *,
    incidents: Sequence[Incident] = (),
    delays: Sequence[QueueDelay] = (),
    since: float,
    until: float,
) -> NightReport:
    """What ended, was decided or was struck within [since, until); blocked inputs as they stand."""
    trials = {(p.cluster, p.prerun_job_id) for p in preruns}
    trials |= {(s.cluster, s.prerun_job_id) for s in submissions if s.prerun_job_id is not None}
    stopped = stopped_jobs(preruns)
    real = [a for a in attempts if (a.attempt.cluster, a.attempt.job_id) not in trials and not never_ran(a, stopped)]
    ended = tuple(a for a in real if a.end_time is not None and since <= a.end_time < until)
    struck = [i for i in incidents if i.began < until and (i.over_at is None or i.over_at >= since)]
    ids = {incident.incident_id for incident in struck}
    window = _Window(
        attempts=ended,
        failed=tuple(a for a in ended if _failed(a)),
        alone=tuple(a for a in ended if _failed(a) and a.incident not in ids),
        preruns=tuple(p for p in preruns if since <= p.at < until),
    )
    decided = [action for action in actions if since <= action.intended_at < until]
    blaming = [strike for strike in strikes if not strike.incident]
    names = {a.uid: a.user for a in attempts if a.user} | {s.uid: s.user for s in submissions if s.user}
    return NightReport(
        since=since,
        until=until,
        clusters=tuple(sorted({a.attempt.cluster for a in ended} | {p.cluster for p in window.preruns})),
        headline=_headline(window, submissions),
        preruns=_preruns(window),
        caught=_caught(window.preruns),
        categories=_categories(window),
        incidents=tuple(_incident_row(one, window) for one in sorted(struck, key=lambda one: one.began)),
        repeated=_repeated(window.alone),
        rules=rule_rows(decided),
        retries=retries(decided, real),
        agreement=agreement(real, decided, blaming, submissions),
        suspects=_suspects([strike for strike in blaming if since <= strike.at < until]),
        blocked=tuple(Blocked(input=b, user=names.get(b.uid, ""), new=since <= b.at < until) for b in blocked),
        to_do=to_do(decided),
        counted=counted(real, since=since, until=until),
        queueing=queueing(delays, since=since, until=until),
    )


def _failed(record: AttemptRecord) -> bool:
    return record.diagnosis is not None and record.diagnosis.category not in _NOT_FAILED


def _category(record: AttemptRecord) -> str:
    return record.diagnosis.category if record.diagnosis else ""


def _job(record: AttemptRecord) -> tuple[str, int]:
    return record.attempt.cluster, record.attempt.job_id


def _headline(window: _Window, submissions: Sequence[Submission]) -> Headline:
    jobs = {_job(a) for a in window.attempts}
    return Headline(
        jobs=len(jobs),
        attempts=len(window.attempts),
        users=len({a.user for a in window.attempts}),
        gpu_hours=_gpu_hours(window.attempts),
        failed_attempts=len(window.failed),
        failed_gpu_hours=_gpu_hours(window.failed),
        cancelled_attempts=sum(_category(a) == "cancelled" for a in window.attempts),
        unjudged_attempts=sum(a.diagnosis is None for a in window.attempts),
        gsub_jobs=len(jobs & {(s.cluster, s.job_id) for s in submissions}),
    )


def _gpu_hours(records: Iterable[AttemptRecord]) -> float:
    return fsum(record.gpu_hours for record in records)


def _preruns(window: _Window) -> Preruns:
    outcomes = [p.verdict.outcome for p in window.preruns]
    stopped = [p for p in window.preruns if p.verdict.outcome is Outcome.FAIL and p.job_id is not None]
    used = fsum(p.verdict.seconds for p in window.preruns) / 3600
    return Preruns(
        passed=outcomes.count(Outcome.PASS),
        failed=outcomes.count(Outcome.FAIL),
        inconclusive=outcomes.count(Outcome.INCONCLUSIVE),
        stopped_jobs=len(stopped),
        gpus_never_started=sum(p.gpus for p in stopped),
        gpu_hours=used,
        saved=_saved(stopped, window.failed, used),
    )


def _saved(stopped: Sequence[PrerunRecord], failed: Sequence[AttemptRecord], used: float) -> Estimate:
    """Nothing is invented: too few stopped jobs, or too few failures to know how long one runs, give no number."""
    cases = min(len(stopped), len(failed))
    if cases < MIN_CASES:
        return Estimate(gpu_hours=None, n=cases, needed=MIN_CASES, formula=SAVED)
    by_category = _grouped(failed, _category)
    known = {c: median(a.run_s for a in rows) for c, rows in by_category.items() if len(rows) >= MIN_CASES}
    otherwise = median(a.run_s for a in failed)
    wasted = fsum(p.gpus * known.get(p.verdict.category, otherwise) for p in stopped) / 3600
    return Estimate(gpu_hours=wasted - used, n=cases, needed=MIN_CASES, formula=SAVED)


def _caught(preruns: Sequence[PrerunRecord]) -> tuple[CaughtRow, ...]:
    """What one GPU showed before the cluster paid for it; most GPUs first."""
    failed = [p for p in preruns if p.verdict.outcome is Outcome.FAIL]
    rows = [_caught_row(name, found) for name, found in _grouped(failed, lambda p: p.verdict.category).items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpus_never_started, -row.preruns, row.category)))


def _caught_row(category: str, preruns: Sequence[PrerunRecord]) -> CaughtRow:
    stopped = [p for p in preruns if p.job_id is not None]
    return CaughtRow(
        category=category or "no_signature",
        preruns=len(preruns),
        stopped_jobs=len(stopped),
        users=len({p.uid for p in preruns}),
        gpus_never_started=sum(p.gpus for p in stopped),
        reason=max(preruns, key=lambda p: p.at).verdict.reason,
    )


def _categories(window: _Window) -> tuple[CategoryRow, ...]:
    """Dearest first."""
    total = _gpu_hours(window.attempts)
    rows = [_category_row(name, records, total) for name, records in _grouped(window.alone, _category).items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, -row.attempts, row.category)))


def _incident_row(one: Incident, window: _Window) -> IncidentRow:
    return IncidentRow(
        incident_id=one.incident_id,
        category=one.category,
        scope=one.scope,
        began=one.began,
        over_at=one.over_at,
        jobs=len(one.jobs),
        users=one.users,
        gpu_hours=_gpu_hours(a for a in window.failed if a.incident == one.incident_id),
    )


def _category_row(name: str, records: Sequence[AttemptRecord], total: float) -> CategoryRow:
    diagnosis = records[0].diagnosis
    hours = _gpu_hours(records)
    return CategoryRow(
        category=name,
        domain=diagnosis.domain if diagnosis else "",
        attempts=len(records),
        jobs=len({_job(record) for record in records}),
        users=len({record.user for record in records}),
        median_run_s=median(record.run_s for record in records),
        gpu_hours=hours,
        share=hours / total if total else 0.0,
    )


def _repeated(failed: Sequence[AttemptRecord]) -> tuple[Repeated, ...]:
    groups = _grouped(failed, lambda a: (a.user, a.name, _category(a)))
    rows = [_repeated_row(user, name, category, records) for (user, name, category), records in groups.items()]
    often = [row for row in rows if row.attempts >= 2]
    return tuple(sorted(often, key=lambda row: (-row.attempts, -row.gpu_hours, row.user, row.name)))


def _repeated_row(user: str, name: str, category: str, records: Sequence[AttemptRecord]) -> Repeated:
    newest = records[-1].diagnosis
    return Repeated(
        user=user,
        name=name,
        category=category,
        attempts=len(records),
        jobs=tuple(dict.fromkeys(record.address or str(record.attempt.job_id) for record in records)),
        gpu_hours=_gpu_hours(records),
        advice=newest.advice if newest else "",
    )


def _suspects(strikes: Sequence[StrikeRecord]) -> tuple[SuspectNodes, ...]:
    """Nodes struck alike share a row: one bad switch must not fill a page."""
    rows = [_suspect(node, found) for node, found in _grouped(strikes, lambda strike: strike.node).items()]
    alike = _grouped(rows, lambda row: (row.strikes, row.conclusive, row.causes, row.jobs, row.users, row.text))
    merged = [_merged(group) for group in alike.values()]
    return tuple(sorted(merged, key=lambda row: (not row.conclusive, -row.strikes, row.nodes)))


def _suspect(node: str, strikes: Sequence[StrikeRecord]) -> SuspectNodes:
    newest = max(strikes, key=lambda strike: strike.at)
    return SuspectNodes(
        nodes=(node,),
        strikes=len(strikes),
        conclusive=any(strike.conclusive for strike in strikes),
        causes=tuple(sorted({strike.cause for strike in strikes})),
        jobs=len({strike.job_id for strike in strikes}),
        users=len({strike.uid for strike in strikes}),
        last_at=newest.at,
        text=newest.text,
    )


def _merged(rows: Sequence[SuspectNodes]) -> SuspectNodes:
    first = rows[0]
    return SuspectNodes(
        nodes=in_order(node for row in rows for node in row.nodes),
        strikes=first.strikes,
        conclusive=first.conclusive,
        causes=first.causes,
        jobs=first.jobs,
        users=first.users,
        last_at=max(row.last_at for row in rows),
        text=first.text,
    )


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
