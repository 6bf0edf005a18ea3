"""Which earlier failures count."""

from __future__ import annotations

from dataclasses import replace

from fakes import START, job

from slurmwrap.diagnosis.evidence import Diagnosis
from slurmwrap.retry.attempt import AttemptRecord
from slurmwrap.retry.ledger import Entry, Ledger, ledger_of
from slurmwrap.retry.record import record_of


def run(restarts: int, category: str = "nccl_error", *, uid: int = 1001, decision: str = "retry") -> AttemptRecord:
    plain = record_of(job(81, restarts=restarts, submit_time=START + restarts, uid=uid), "lab")
    found = Diagnosis(
        category=category,
        domain="AE",
        decision="none" if category == "success" else "retry",
        confidence=1,
        signature="",
    )
    return replace(plain, diagnosis=found, decision=decision)


NOW = replace(run(3), diagnosis=None)


def test_earlier_failures_of_the_same_job_count() -> None:
    found = ledger_of([run(0), run(1, "network_error"), run(2), run(3)], NOW)
    assert (found.spent("nccl_error"), found.spent("network_error"), found.spent("cpu_oom")) == (2, 1, 0)


def test_successes_other_users_and_unjudged_runs_do_not_count() -> None:
    found = ledger_of([run(0, "success"), run(1, uid=1002), replace(run(2), diagnosis=None)], NOW)
    assert found == Ledger()


def test_an_older_job_with_the_same_id_does_not_count() -> None:
    first = replace(NOW, restarts=0)
    assert ledger_of([run(0), run(1)], first) == Ledger()


def test_failures_before_progress_are_forgiven() -> None:
    found = ledger_of([run(0), run(1), run(2)], NOW, progressed_at=START + 2)
    assert found.spent("nccl_error") == 1


def test_the_only_node_of_a_run_that_was_moved_away_counts_as_blamed() -> None:
    found = ledger_of([run(0, decision="retry_elsewhere"), run(1)], NOW)
    assert found.entries == (
        Entry(category="nccl_error", entity="", node="n1"),
        Entry(category="nccl_error", entity="", node=""),
    )
    assert found.nodes == {"n1"}
