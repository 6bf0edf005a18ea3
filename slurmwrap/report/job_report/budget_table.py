"""The retry ledger of one job for people: used and remaining retries per root cause, and failures that do not count.

Pure. The rules are those of policy/retry_budget.py, applied to all ended runs, not only to those before a given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurmwrap.config.load_config import Retry
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.job_run import JobRun, LedgerReset
from slurmwrap.policy.retry_budget import (
    count_allowed_retries,
    failed,
    find_last_progress_time,
    forgiven,
    make_ledger,
    runs_before,
)
from slurmwrap.policy.strikes import find_blamed_node
from slurmwrap.report.fold_rows import group_alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Retries of one root cause, used and left, and its failures that do not count, each with the reason."""

    category: str
    failures: int
    used: int
    limit: int
    # Retries that are still allowed.
    left: int
    not_counted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetReport:
    """The retry budgets of one job (one array task). Progress does not reset the two totals; 0 means no limit."""

    budgets: tuple[Budget, ...] = ()
    failures: int = 0
    max_failures: int = 0
    lost_gpu_hours: float = 0.0
    max_lost_gpu_hours: float = 0.0
    resets: tuple[LedgerReset, ...] = ()


def make_budget_report(
    runs: Sequence[JobRun], settings: Retry, resets: Iterable[LedgerReset] = ()
) -> RetryBudgetReport:
    """Return the report. `runs`: of one raw job id, in any order; runs of an older job with the same id are ignored."""
    ordered = sorted(runs, key=lambda run: run.attempt.submit_time)
    if not ordered:
        return RetryBudgetReport()
    newest = ordered[-1]
    resets = tuple(reset for reset in resets if reset.cluster == newest.attempt.cluster)
    mine = (*runs_before(ordered, newest), newest)
    since = max((reset.at for reset in resets), default=None)
    lost = [run for run in mine if failed(run)]
    progressed = find_last_progress_time(mine)
    counted = [run for run in lost if not forgiven(run, since)]
    return RetryBudgetReport(
        budgets=tuple(_make_budget(group, progressed, since, settings) for group in group_alike(lost, _get_category)),
        failures=len(counted),
        max_failures=settings.max_restarts,
        lost_gpu_hours=make_ledger(ordered, newest, resets).lost_gpu_hours,
        max_lost_gpu_hours=settings.max_lost_gpu_hours,
        resets=resets,
    )


def _get_category(run: JobRun) -> str:
    return run.diagnosis.category if run.diagnosis is not None else ""


def _make_budget(group: Sequence[JobRun], progressed: int | None, since: float | None, settings: Retry) -> Budget:
    newest = group[-1]
    assert newest.diagnosis is not None
    limit = count_allowed_retries(newest.diagnosis, bool(find_blamed_node(newest.diagnosis, newest)), settings)
    reasons = [_explain_free_failure(run, progressed, since) for run in group]
    counted = sum(not reason for reason in reasons)
    return Budget(
        category=_get_category(newest),
        failures=len(group),
        used=min(counted, limit),
        limit=limit,
        left=max(0, limit - counted),
        not_counted=tuple(f"{len(same)} {same[0]}" for same in group_alike([r for r in reasons if r], str)),
    )


def _explain_free_failure(run: JobRun, progressed: int | None, since: float | None) -> str:
    """Return why a failure does not use a retry of its root cause; "" if it does."""
    if forgiven(run, since):
        return "before the ledger was cleared"
    if run.incident:
        return "part of an incident"
    if progressed is not None and run.attempt.submit_time < progressed:
        return "before the job made progress"
    return ""
