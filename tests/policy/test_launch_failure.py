"""A job that Slurm holds since it could not be launched: let go once with consent, and always when our gate did it."""

from __future__ import annotations

from dataclasses import replace

from fakes import START, job
from test_retry_decision import ACT, AGAIN, CONSENT, case, diagnosis, steps

from slurmwrap.policy.retry_budget import Entry, Ledger
from slurmwrap.policy.retry_decision import decide
from slurmwrap.policy.run_from_slurm import make_previous_run, record_of

HELD = replace(AGAIN, reason="launch failed requeued held")
FAILED = diagnosis("node_failure", "retry_elsewhere")
ON_N1 = record_of(job(81, nodes=("n1",)), "lab")


def test_with_consent_it_is_released_once_and_away_from_the_node() -> None:
    found = decide(case(FAILED, record=ON_N1, job=HELD), ACT)
    assert found.decision == "retry_elsewhere"
    assert steps(found) == ["update job ExcNodeList=n1", "release", "update job StartTime=now+3"]
    assert found.reason == "it could not be launched on n1, and Slurm holds it; released once, to start elsewhere"


def test_a_second_failure_to_launch_is_left_to_a_person() -> None:
    once = Ledger(entries=(Entry(category="node_failure", entity="", node="n0"),))
    found = decide(case(FAILED, record=ON_N1, job=HELD, ledger=once), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert found.reason.endswith("failed 2 times of node_failure; the limit is 1 retries")


def test_without_consent_the_way_out_is_told() -> None:
    found = decide(case(FAILED, record=ON_N1, job=HELD, submission=None), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert found.reason.endswith("it was not submitted by gsub ('scontrol release 81' lets it start again)")


def test_what_our_own_gate_refused_is_always_released_and_the_drain_becomes_ours() -> None:
    spent = Ledger(entries=(Entry(category="node_failure", entity="", node="n0"),) * 5)
    for submission in (None, CONSENT, replace(CONSENT, retry=False)):
        found = decide(case(FAILED, record=ON_N1, job=HELD, submission=submission, ledger=spent, gate="gpu_lost"), ACT)
        assert found.decision == "retry_elsewhere"
        assert steps(found) == [
            "drain =slurmwrap: gate: gpu_lost, before job 81",
            "update job ExcNodeList=n1",
            "release",
            "update job StartTime=now+3",
        ]
        assert {ruled.rule for ruled in found.actions} == {"gate"}


def test_another_reason_for_being_held_is_somebody_elses() -> None:
    held = replace(HELD, reason="job requeued in held state")
    assert decide(case(FAILED, record=ON_N1, job=held), ACT).actions == ()


def test_the_run_that_nothing_told_of_comes_before_the_one_that_is_held() -> None:
    record = make_previous_run(replace(HELD, restarts=2, submit_time=START), "lab")
    assert (record.attempt.submit_time, record.restarts, record.nodes, record.state) == (START - 1, 1, (), "")


def test_the_comment_says_why_it_waits_to_everybody_and_a_users_own_is_kept() -> None:
    for before, kept in (("", False), ("slurmwrap: nccl_error (slurmwrap why 81)", False), ("mine", True)):
        found = decide(case(FAILED, record=ON_N1, job=replace(HELD, comment=before)), ACT)
        values = [r.action.value for r in found.actions if r.action.key == "Comment"]
        assert values == ([] if kept else ["slurmwrap: node_failure (slurmwrap why 81)"])
