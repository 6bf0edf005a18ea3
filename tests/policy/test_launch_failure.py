"""A job that Slurm holds after a launch failure: released once with consent, always after a Prolog gate refusal."""

from __future__ import annotations

from dataclasses import replace

from fakes import START, job
from test_retry_decision import ACT, AGAIN, CONSENT, diagnosis, make_context, steps

from slurmwrap.policy.retry_budget import Entry, Ledger
from slurmwrap.policy.retry_decision import decide
from slurmwrap.policy.run_from_slurm import make_previous_run, record_of

HELD = replace(AGAIN, reason="launch failed requeued held")
FAILED = diagnosis("node_failure", "retry_elsewhere")
ON_N1 = record_of(job(81, nodes=("n1",)), "lab")


def test_with_consent_the_job_is_released_once_without_the_failed_node() -> None:
    found = decide(make_context(FAILED, record=ON_N1, job=HELD), ACT)
    assert found.decision == "retry_elsewhere"
    assert steps(found) == ["update job ExcNodeList=n1", "release", "update job StartTime=now+3"]
    assert found.reason == "it could not be launched on n1, and Slurm holds it; released once, to start elsewhere"


def test_a_second_launch_failure_leads_to_stop() -> None:
    once = Ledger(entries=(Entry(category="node_failure", entity="", node="n0"),))
    found = decide(make_context(FAILED, record=ON_N1, job=HELD, ledger=once), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert found.reason.endswith("failed 2 times of node_failure; the limit is 1 retries")


def test_without_consent_the_reason_names_scontrol_release() -> None:
    found = decide(make_context(FAILED, record=ON_N1, job=HELD, submission=None), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert found.reason.endswith("it was not submitted by gsub ('scontrol release 81' lets it start again)")


def test_a_job_refused_by_the_prolog_gate_is_always_released() -> None:
    spent = Ledger(entries=(Entry(category="node_failure", entity="", node="n0"),) * 5)
    for submission in (None, CONSENT, replace(CONSENT, retry=False)):
        found = decide(
            make_context(FAILED, record=ON_N1, job=HELD, submission=submission, ledger=spent, gate="gpu_lost"), ACT
        )
        assert found.decision == "retry_elsewhere"
        assert steps(found) == [
            "drain =slurmwrap: gate: gpu_lost, before job 81",
            "update job ExcNodeList=n1",
            "release",
            "update job StartTime=now+3",
        ]
        assert {ruled.rule for ruled in found.actions} == {"gate"}


def test_a_job_held_for_another_reason_is_not_released() -> None:
    held = replace(HELD, reason="job requeued in held state")
    assert decide(make_context(FAILED, record=ON_N1, job=held), ACT).actions == ()


def test_the_unobserved_run_precedes_the_held_run() -> None:
    record = make_previous_run(replace(HELD, restarts=2, submit_time=START), "lab")
    assert (record.attempt.submit_time, record.restarts, record.nodes, record.state) == (START - 1, 1, (), "")


def test_the_comment_names_the_cause_and_never_replaces_a_users_comment() -> None:
    for before, kept in (("", False), ("slurmwrap: nccl_error (slurmwrap why 81)", False), ("mine", True)):
        found = decide(make_context(FAILED, record=ON_N1, job=replace(HELD, comment=before)), ACT)
        values = [r.action.value for r in found.actions if r.action.key == "Comment"]
        assert values == ([] if kept else ["slurmwrap: node_failure (slurmwrap why 81)"])
