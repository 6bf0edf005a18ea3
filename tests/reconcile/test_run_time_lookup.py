"""The reconciler stores the run times of ended runs and finds the expected ones of pending and running jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, job
from test_reconcile_pass import World, hooks, submission, submission_observation

from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import FROM_RUNS, FROM_USER, RunTimeEstimate
from slurmwrap.profiling.published_run_times import find_published_run_time
from slurmwrap.profiling.run_time import RunTimeQuery
from slurmwrap.reconcile import publish_run_times
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, SlurmJobs
from slurmwrap.reconcile.reconcile_pass import reconcile_once
from slurmwrap.reconcile.run_time_lookup import find_run_time
from slurmwrap.reconcile.tune_pending import _estimate_run_s

KEY = "train-a100x2-0"


def completed(job_id: int, run_s: int = 3600, **changes: object) -> JobRecord:
    """A job that waited for ten minutes and completed after `run_s`."""
    times = {"submit_time": START - 100, "start_time": START + 500, "end_time": START + 500 + run_s}
    return job(job_id, **{"state": "COMPLETED", "reason": "None", "exit_code": 0, **times, **changes})


def pending(job_id: int, **changes: object) -> JobRecord:
    return job(
        job_id,
        **{"state": "PENDING", "reason": "Priority", "start_time": None, "end_time": None, "nodes": (), **changes},
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run_pass(world: World, book: ReconcilerState) -> None:
    world.clock.sleep(100_000)
    assert reconcile_once(world.services(), book).errors == []


def begin_pass(world: World, book: ReconcilerState) -> ReconcilePass:
    jobs = SlurmJobs(ask=lambda: world.slurm.jobs())
    return ReconcilePass(services=world.services(), book=book, words=jobs, summary=PassSummary(), now=world.clock.now())


def look(world: World, book: ReconcilerState, record: JobRecord) -> RunTimeEstimate | None:
    """Look the run time up as a step of the next pass would."""
    return find_run_time(record, begin_pass(world, book))


def submit(world: World, *job_ids: int) -> None:
    calls = [submission(job_id, profile_key=KEY, length=(("epochs", "9"),)) for job_id in job_ids]
    world.spool_observations(*map(submission_observation, calls))


def test_ended_runs_predict_a_pending_job_of_the_same_key(world: World) -> None:
    book = ReconcilerState()
    ended = [completed(81 + n) for n in range(5)]
    world.add(*ended, pending(90), pending(91))
    submit(world, *range(81, 86), 90)
    world.spool_observations(*(one for record in ended for one in hooks(record)))
    run_pass(world, book)
    mine, other = look(world, book, pending(90)), look(world, book, pending(91))
    assert mine is not None and other is not None
    assert (mine.source, mine.n, round(mine.p50_s)) == (FROM_RUNS, 5, 3600)
    # Submitted without gsub: only the user's jobs with as many GPUs are known.
    assert (other.source, other.n) == (FROM_USER, 5)


def test_a_run_that_ends_later_changes_the_estimate_and_survives_a_restart(world: World) -> None:
    book = ReconcilerState()
    world.add(completed(81), pending(90))
    submit(world, 81, 90)
    run_pass(world, book)
    first = look(world, book, pending(90))
    assert first is not None and first.n == 1
    world.add(completed(82, 7200))
    submit(world, 82)
    run_pass(world, book)
    second = look(world, book, pending(90))
    assert second is not None and second.n == 2 and second.p50_s > first.p50_s
    assert look(world, ReconcilerState(cluster="lab"), pending(90)) == second


def test_jobs_outside_gsub_count_for_their_user(world: World) -> None:
    book = ReconcilerState()
    world.add(completed(81), completed(82), pending(90))
    run_pass(world, book)
    found = look(world, book, pending(90))
    assert found is not None and (found.source, found.n) == (FROM_USER, 2)


def test_failures_and_other_users_keys_are_no_evidence_for_a_key(world: World) -> None:
    book = ReconcilerState()
    world.add(job(81), completed(82, user="bob", uid=1002), pending(90))
    submit(world, 81, 90)
    claim = submission(82, profile_key=KEY, uid=1002, user="bob", length=(("epochs", "9"),))
    world.spool_observations(submission_observation(claim, uid=1002))
    run_pass(world, book)
    assert world.store.run_times("lab", ("key", "1002", KEY))
    assert not world.store.run_times("lab", ("key", "1001", KEY))
    found = look(world, book, pending(90))
    assert found is not None and not found.specific


def test_a_submission_that_arrives_after_its_job_is_used(world: World) -> None:
    book = ReconcilerState()
    world.add(completed(81), pending(90))
    submit(world, 81)
    run_pass(world, book)
    before = look(world, book, pending(90))
    assert before is not None and before.source == FROM_USER
    submit(world, 90)
    run_pass(world, book)
    after = look(world, book, pending(90))
    assert after is not None and after.source == FROM_RUNS


@pytest.mark.parametrize(
    ("assumed_s", "limit_s", "expected_s"), [(13_000.0, 7200, 3600), (13_000.0, 1800, 1800), (0.0, 7200, 0)]
)
def test_tuning_expects_the_median_within_the_limit_unless_no_job_may_wait(
    world: World, assumed_s: float, limit_s: int, expected_s: float
) -> None:
    book = ReconcilerState()
    world.config = replace(world.config, tuning=replace(world.config.tuning, assumed_run_s=assumed_s))
    world.add(*(completed(81 + n) for n in range(5)))
    submit(world, *range(81, 86), 90)
    world.add(pending(90))
    run_pass(world, book)
    waiting = pending(90, time_limit_s=limit_s)
    assert _estimate_run_s(waiting, begin_pass(world, book)) == pytest.approx(expected_s)


def test_jobs_that_left_the_queue_are_forgotten(world: World) -> None:
    book = ReconcilerState()
    world.add(pending(90))
    run_pass(world, book)
    look(world, book, pending(90))
    assert len(book.run_time_queries) == 1
    world.add(replace(pending(90), state="CANCELLED", end_time=START))
    run_pass(world, book)
    assert book.run_time_queries == {}


# --- what is published -----------------------------------------------------------------------------------------------

JOB = RunTimeQuery(user="1001", key=KEY, length=(("epochs", "9"),), gpus=2, partition="gpu")


def find_published(world: World, job: RunTimeQuery = JOB) -> RunTimeEstimate | None:
    assert world.publisher.published is not None
    return find_published_run_time(world.publisher.published.run_times, "lab", job)


def test_the_expected_run_times_are_published_and_made_anew_after_a_run(world: World) -> None:
    book = ReconcilerState()
    world.add(completed(81))
    submit(world, 81)
    run_pass(world, book)
    first = find_published(world)
    assert first is not None and (first.source, first.n) == (FROM_RUNS, 1)
    world.add(completed(82, 7200))
    submit(world, 82)
    run_pass(world, book)
    second = find_published(world)
    assert second is not None and second.n == 2 and second.p50_s > first.p50_s
    wide = find_published(world, replace(JOB, key=""))
    assert wide is not None and (wide.source, wide.n) == (FROM_USER, 2)
    restarted = ReconcilerState()
    run_pass(world, restarted)
    assert find_published(world) == second


def test_a_site_that_hides_jobs_publishes_no_run_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = world.slurm.snapshot
    world.slurm.snapshot = lambda: replace(plain(), private_jobs=True)  # type: ignore[method-assign]
    world.add(completed(81))
    run_pass(world, ReconcilerState())
    assert world.publisher.published is not None
    assert world.publisher.published.run_times == ""


def test_only_the_newest_groups_are_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_run_times, "_MOST_LINES", 3)
    book = ReconcilerState()
    for number in range(4):
        world.add(completed(81 + number, account=f"a{number}", uid=1001 + number, user=f"u{number}"))
        run_pass(world, book)
    assert world.publisher.published is not None
    assert len(world.publisher.published.run_times.split(";")) == 3 + 1
    assert find_published(world, replace(JOB, user="1004", key="")) is not None
    old = RunTimeQuery(user="1001", gpus=2)
    assert find_published(world, old) is None


def test_one_pass_makes_a_limited_number_of_lines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_run_times, "_MOST_JOBS", 2)
    book = ReconcilerState()
    world.add(*(completed(81 + n, account=f"a{n}", uid=1001 + n, user=f"u{n}", gpus=n) for n in range(5)))
    run_pass(world, book)
    seen = [len(book.run_time_lines)]
    for _ in range(2):
        run_pass(world, book)
        seen.append(len(book.run_time_lines))
    assert seen == [6, 12, 15]
