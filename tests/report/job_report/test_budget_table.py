"""The table of retry budgets: which failures count, which do not and why, in agreement with policy/retry_budget.py."""

from __future__ import annotations

from dataclasses import replace

from slurmwrap.config.load_config import Retry
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, LedgerReset
from slurmwrap.policy.retry_budget import make_ledger
from slurmwrap.report.job_report.budget_table import Budget, RetryBudgetReport, make_budget_report

NODE = Citation(source="kernel:n1", line=0, text="NVRM: Xid 79")


def make_run(number: int, category: str = "nccl_error", decision: str = "retry", step: int | None = None) -> JobRun:
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=81, submit_time=1000 * number),
        uid=7,
        restarts=number,
        state="FAILED",
        nodes=("n1",),
        gpus=4,
        start_time=1000 * number,
        end_time=1000 * number + 900,
        diagnosis=Diagnosis(category=category, domain="AE", decision=decision, confidence=1, signature="", step=step),
        decision=decision,
    )


def test_each_root_cause_has_a_separate_budget() -> None:
    runs = [
        make_run(0),
        make_run(1, "cpu_oom", "resize"),
        make_run(2),
        make_run(3, "no_signature"),
        make_run(4, "gpu_oom", "stop"),
    ]
    assert make_budget_report(runs, Retry(), ()) == RetryBudgetReport(
        budgets=(
            Budget(category="nccl_error", failures=2, used=2, limit=3, left=1),
            Budget(category="cpu_oom", failures=1, used=1, limit=3, left=2),
            Budget(category="no_signature", failures=1, used=1, limit=1, left=0),
            Budget(category="gpu_oom", failures=1, used=0, limit=0, left=0),
        ),
        failures=5,
        max_failures=20,
        lost_gpu_hours=5.0,
        max_lost_gpu_hours=1000.0,
    )


def test_a_node_named_only_by_the_log_allows_one_retry() -> None:
    named = make_run(0, "gpu_hardware", "retry_elsewhere")
    assert named.diagnosis is not None
    confirmed = replace(named, diagnosis=replace(named.diagnosis, node="n1", evidence=(NODE,)))
    assert [make_budget_report([one], Retry(), ()).budgets[0].limit for one in (named, confirmed)] == [1, 3]


def test_failures_that_do_not_count_have_a_reason_and_match_the_ledger() -> None:
    runs = [
        make_run(0, step=10),
        replace(make_run(1, step=10), incident="i1"),
        make_run(2, step=50),
        make_run(3, step=50),
        make_run(4, step=50),
    ]
    (budget,) = make_budget_report(runs, Retry(), ()).budgets
    assert budget.not_counted == ("1 before the job made progress", "1 part of an incident")
    assert budget.used == make_ledger(runs, make_run(5, step=50)).spent("nccl_error") == 3
    reset = LedgerReset(cluster="lab", job_id=81, at=3950.0, who="root")
    (cleared,) = make_budget_report(runs, Retry(), (reset,)).budgets
    assert (cleared.not_counted, cleared.used) == (("4 before the ledger was cleared",), 1)
    assert make_ledger(runs, make_run(5, step=50), (reset,)).spent("nccl_error") == 1


def test_an_older_job_with_the_same_id_is_left_out() -> None:
    older = [replace(make_run(n), restarts=n + 5) for n in range(3)]
    mine = [replace(make_run(n + 10), restarts=n) for n in range(2)]
    assert make_budget_report([*older, *mine], Retry(), ()).budgets == (
        Budget(category="nccl_error", failures=2, used=2, limit=3, left=1),
    )


def test_without_runs_the_report_is_empty() -> None:
    assert make_budget_report([], Retry(), ()) == RetryBudgetReport()
