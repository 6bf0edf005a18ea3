"""Runs from Slurm's job records, combined with what is already stored of them."""

from __future__ import annotations

from dataclasses import replace

from fakes import START, job

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import is_submission_of_run, record_of, remembered, run_from_hooks, submitted_id


def test_a_running_job_has_no_end_and_no_exit_code() -> None:
    found = record_of(job(81, state="RUNNING", end_time=START + 9999), "lab")
    assert (found.state, found.exit_code, found.end_time) == ("", None, None)


def test_during_a_requeue_restart_count_and_start_are_not_taken_from_slurm() -> None:
    running = record_of(job(81, state="RUNNING", end_time=None), "lab")
    for end in (None, START + 3600):  # without a time limit, and with one
        requeueing = job(81, state="COMPLETING", end_time=end, restarts=1, start_time=START)
        assert record_of(requeueing, "lab", running).start_time == START - 90
        assert record_of(requeueing, "lab", running).restarts == 0
        assert (record_of(requeueing, "lab").restarts, record_of(requeueing, "lab").start_time) == (0, None)


def test_an_ending_run_keeps_its_own_restart_count() -> None:
    ending = job(81, state="COMPLETING", restarts=1)
    assert (record_of(ending, "lab").restarts, record_of(ending, "lab").start_time) == (1, START - 90)
    at_limit = job(81, state="COMPLETING", restarts=1, start_time=START - 3600, end_time=START, reason="TimeLimit")
    assert (record_of(at_limit, "lab").restarts, record_of(at_limit, "lab").start_time) == (1, START - 3600)


def test_nodes_that_slurm_no_longer_shows_are_kept() -> None:
    whole = record_of(job(81, nodes=("n1", "n2")), "lab")
    assert record_of(job(81, nodes=("n1",)), "lab", whole).nodes == ("n1", "n2")


def test_a_user_whose_name_vanished_keeps_the_name_that_the_run_had() -> None:
    before = record_of(job(81, state="RUNNING"), "lab")
    assert record_of(job(81, user="1001"), "lab", before).user == "alice"
    assert record_of(job(81, user="1001"), "lab").user == "1001"


def test_a_past_run_becomes_a_job_record_with_the_request_of_the_next_run() -> None:
    first = job(81)
    again = replace(first, state="PENDING", submit_time=START, restarts=1, nodes=(), start_time=None)
    found = remembered(record_of(first, "lab"), again)
    assert (found.submit_time, found.nodes, found.mem_mib_per_node) == (first.submit_time, ("n1",), 4000)


def hook(context: Context, at: float, node: str = "", **facts: object) -> Observation:
    return Observation(nonce=str(at), cluster="lab", job_id=81, context=context, at=at, node=node, facts=facts)


def test_a_run_known_only_from_hooks_has_its_first_observation_as_key() -> None:
    found = run_from_hooks(
        "lab",
        81,
        [
            hook(Context.PROLOG, 100.5, "n1", uid=1001, restarts=0, gpus="0-1,3"),
            hook(Context.EPILOG, 160.0, "n1", uid=1001, restarts=0, gpus="0-1,3", started_at=100.5),
            hook(Context.EPILOG_SLURMCTLD, 160.1, user="alice", name="t", array_job_id=80, array_task_id=2),
        ],
    )
    assert found == JobRun(
        attempt=RunKey(cluster="lab", job_id=81, submit_time=100),
        address="80_2",
        name="t",
        user="alice",
        uid=1001,
        nodes=("n1",),
        gpus=3,
        start_time=100,
    )
    assert submitted_id(found) == 80


def test_a_submission_matches_only_its_own_job() -> None:
    record = record_of(job(81), "lab")
    mine = Submission(cluster="lab", job_id=81, uid=1001, user="alice", at=START - 101.0)
    assert is_submission_of_run(mine, record)
    assert not is_submission_of_run(replace(mine, uid=1002), record)
    assert not is_submission_of_run(replace(mine, cluster="other"), record)
    assert not is_submission_of_run(replace(mine, at=START - 9e6), record)  # an older job with the same id
    assert is_submission_of_run(replace(mine, at=START - 9e6), replace(record, restarts=1))
    assert is_submission_of_run(replace(mine, at=START + 200.0), record)  # the submitter's clock is ahead
    assert not is_submission_of_run(
        replace(mine, at=START + 9e3), replace(record, restarts=1)
    )  # a newer job with the same id


def test_the_observed_start_is_kept_while_slurm_requeues_after_a_lost_node() -> None:
    running = record_of(job(81, state="RUNNING", end_time=None), "lab")
    requeueing = job(81, state="COMPLETING", end_time=START + 2, restarts=1, start_time=START + 3)
    assert record_of(requeueing, "lab", running).start_time == START - 90
