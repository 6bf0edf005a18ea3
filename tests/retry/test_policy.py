"""Every decision of the policy, from records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job, node

from slurmwrap.cluster.job import JobRecord
from slurmwrap.config import RULES, Config, Retry
from slurmwrap.diagnosis.evidence import Citation, Diagnosis
from slurmwrap.job.measurement import Measurement
from slurmwrap.retry.attempt import Submission
from slurmwrap.retry.decision import BlockedInput, RetryDecision, Strike
from slurmwrap.retry.ledger import Entry, Ledger
from slurmwrap.retry.policy import Case, decide
from slurmwrap.retry.record import record_of
from slurmwrap.retry.strikes import Fleet

ACT = Config(rules=dict.fromkeys(RULES, "act"))
CONSENT = Submission(
    cluster="lab", job_id=81, uid=1001, user="alice", at=START - 100.0, retry=True, output_appends=True
)
FLEET = Fleet(nodes=tuple(node(f"n{i}") for i in range(8)))
KERNEL = (Citation(source="kernel:n1", line=1, text="NVRM: Xid (PCI:0000:05:00): 79"),)


def diagnosis(category: str, decision: str, **changes: object) -> Diagnosis:
    plain = Diagnosis(category=category, domain="IF", decision=decision, confidence=0.9, signature="some.id")
    return replace(plain, **changes)  # type: ignore[arg-type]


def case(found: Diagnosis, run: JobRecord | None = None, **changes: object) -> Case:
    run = run or job(81)
    plain = Case(diagnosis=found, record=record_of(run, "lab"), job=run, submission=CONSENT, fleet=FLEET, now=START)
    return replace(plain, **changes)  # type: ignore[arg-type]


def steps(decision: RetryDecision) -> list[str]:
    return [f"{r.action.verb.value} {r.action.key}={r.action.value}".rstrip(" =") for r in decision.actions]


NCCL = diagnosis("nccl_error", "retry")
HARDWARE = diagnosis("gpu_hardware", "retry_elsewhere", node="n1", conclusive=True, evidence=KERNEL)
OOM = diagnosis("cpu_oom", "resize")
INPUT = diagnosis("incorrect_inputs", "blacklist_input", input_path="/data/x")


def test_success_asks_for_nothing() -> None:
    assert decide(case(diagnosis("success", "none")), ACT) == RetryDecision(decision="none", reason="nothing failed")


def test_a_deterministic_failure_stops_with_its_advice() -> None:
    found = diagnosis("import_error", "stop", advice="install numpy")
    assert decide(case(found), ACT) == RetryDecision(decision="stop", reason="install numpy")


def test_a_transient_failure_is_retried_with_back_off() -> None:
    found = decide(case(NCCL), ACT)
    assert found.decision == "retry"
    assert found.reason == "nccl_error, retry 1 of 3; after 60 s"
    assert steps(found) == ["requeuehold", "release", "update job StartTime=now+60"]


def test_the_retry_after_three_failures_of_one_root_cause_is_refused() -> None:
    spent = Ledger(entries=(Entry(category="nccl_error", entity="", node=""),) * 3)
    found = decide(case(NCCL, ledger=spent), ACT)
    assert (found.decision, found.reason) == ("stop", "failed 4 times of nccl_error; the limit is 3 retries")


def test_failures_of_another_root_cause_do_not_count() -> None:
    spent = Ledger(entries=(Entry(category="network_error", entity="", node=""),) * 3)
    assert decide(case(NCCL, ledger=spent), ACT).decision == "retry"


def test_what_nobody_recognises_is_retried_once() -> None:
    unknown = diagnosis("no_signature", "retry")
    once = Ledger(entries=(Entry(category="no_signature", entity="", node=""),))
    assert decide(case(unknown), ACT).decision == "retry"
    assert decide(case(unknown, ledger=once), ACT).decision == "stop"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"submission": None}, "it was not submitted by gsub"),
        ({"submission": replace(CONSENT, retry=False)}, "it was submitted without --retry"),
        ({"job": None}, "Slurm has forgotten it"),
        ({"job": job(81, requeue=False)}, "it is not requeueable (Requeue=0)"),
        ({"job": job(81, state="RUNNING")}, "Slurm says it is RUNNING"),
        ({"record": record_of(job(81, state="PREEMPTED"), "lab")}, "Slurm preempted it for good (PreemptMode)"),
        ({"record": record_of(job(81, state="COMPLETED"), "lab")}, "Slurm counts it as COMPLETED"),
    ],
)
def test_without_consent_a_transient_failure_stops(changes: dict[str, object], why: str) -> None:
    found = decide(case(NCCL, **changes), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert why in found.reason


def test_a_cancelled_job_is_not_retried_whatever_its_log_says() -> None:
    cancelled = job(81, state="CANCELLED")
    for found in (NCCL, HARDWARE, OOM):
        assert [r for r in decide(case(found, cancelled), ACT).actions if r.rule != "drain"] == []


def test_what_slurm_requeued_itself_gets_no_action() -> None:
    ended = job(81)
    again = replace(ended, state="PENDING", restarts=1, submit_time=START)
    found = decide(case(NCCL, ended, job=again), ACT)
    assert (found.decision, found.actions) == ("retry", ())


def test_a_conclusive_fault_strikes_and_drains_and_the_job_goes_elsewhere() -> None:
    found = decide(case(HARDWARE), ACT)
    assert steps(found) == [
        "drain =slurmwrap: gpu_hardware (some.id), seen by job 81",
        "requeuehold",
        "update job ExcNodeList=n1",
        "release",
        "update job StartTime=now",
    ]
    assert found.strikes == (
        Strike(node="n1", cause="gpu_hardware", conclusive=True, text="NVRM: Xid (PCI:0000:05:00): 79"),
    )


def test_a_node_the_job_never_had_is_neither_struck_nor_drained() -> None:
    found = decide(case(replace(HARDWARE, node="n7")), ACT)
    assert found.strikes == () and "drain" not in {r.rule for r in found.actions}


def test_a_node_named_by_the_log_alone_is_not_struck() -> None:
    log = (Citation(source="slurm-81.out", line=3, text="node n1 is broken"),)
    found = decide(case(diagnosis("cuda_init_failed", "retry_elsewhere", node="n1", evidence=log)), ACT)
    assert found.strikes == ()
    assert "update job ExcNodeList=n1" in steps(found)  # it was the only node of this job


def test_a_node_that_only_the_log_blames_is_confirmed_once() -> None:
    lost = diagnosis("cuda_init_failed", "retry_elsewhere")
    once = Ledger(entries=(Entry(category="cuda_init_failed", entity="", node="n1"),))
    assert decide(case(lost), ACT).decision == "retry_elsewhere"
    assert decide(case(lost, job(81, nodes=("n2",)), ledger=once), ACT).decision == "stop"


def test_no_more_nodes_are_excluded_than_the_cap_allows() -> None:
    earlier = Ledger(entries=(Entry(category="gpu_hardware", entity="", node="n3"),))
    found = decide(case(HARDWARE, ledger=earlier), ACT)
    assert found.decision == "retry_elsewhere"
    assert not any(step.startswith("update job ExcNodeList") for step in steps(found))


def test_memory_is_raised_from_the_peak_within_the_nodes() -> None:
    peak = record_of(job(81), "lab")
    measured = replace(peak, measurement=Measurement(mem_peak_mib=6000))
    assert "update job MinMemoryNode=6000" in steps(decide(case(OOM), ACT))
    assert "update job MinMemoryNode=9000" in steps(decide(case(OOM, record=measured), ACT))


def test_memory_that_no_node_has_is_not_asked_for() -> None:
    full = job(81, mem_mib_per_node=256_000)
    found = decide(case(OOM, full), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert "no node of its partition has more" in found.reason


def test_time_is_not_given_without_a_sign_of_resuming() -> None:
    found = decide(case(diagnosis("time_limit", "resize", advice="ask for more time")), ACT)
    assert found == RetryDecision(decision="stop", reason="ask for more time")


def test_an_input_is_confirmed_once_elsewhere() -> None:
    found = decide(case(INPUT, digest="d"), ACT)
    assert (found.decision, found.blocked) == ("retry_elsewhere", ())
    assert "update job ExcNodeList=n1" in steps(found)


def test_a_confirmed_input_is_blocked_for_its_owner_alone() -> None:
    once = Ledger(entries=(Entry(category="incorrect_inputs", entity="/data/x", node="n1"),))
    found = decide(case(INPUT, digest="d", ledger=once), ACT)
    assert found.decision == "blacklist_input"
    assert found.blocked == (
        BlockedInput(digest="d", path="/data/x", uid=1001, reason="the log blames /data/x", at=START, job_id=81),
    )


def test_an_input_of_a_job_that_may_not_be_retried_is_blocked_at_once() -> None:
    found = decide(case(INPUT, digest="d", submission=None), ACT)
    assert [blocked.uid for blocked in found.blocked] == [1001]


def test_an_input_that_could_not_be_read_or_may_not_be_blocked_is_only_told() -> None:
    unread = decide(case(INPUT, submission=None), ACT)
    advised = decide(case(INPUT, submission=None, digest="d"), Config())
    assert (unread.decision, unread.blocked) == ("blacklist_input", ())
    assert (advised.decision, advised.blocked) == ("blacklist_input", ())


def test_the_budgets_come_from_the_configuration() -> None:
    strict = Config(rules=ACT.rules, retry=Retry(per_root_cause=1, backoff_s=5))
    spent = Ledger(entries=(Entry(category="nccl_error", entity="", node=""),))
    assert "update job StartTime=now+5" in steps(decide(case(NCCL), strict))
    assert decide(case(NCCL, ledger=spent), strict).decision == "stop"
