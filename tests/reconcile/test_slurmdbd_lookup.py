"""The reconciler with slurmdbd: its records are used only for runs that slurmctld no longer shows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fakes import START, job
from test_reconcile_pass import BUG, World, category_and_decision_of, hooks, submission, submission_observation

from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.job_record import JobRecord
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.reconcile import PassSummary, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.reconcile.slurmdbd_lookup import matching


@dataclass
class FakeSlurmdbd:
    """A slurmdbd with these runs. It records the job ids of each query in `queries`."""

    runs_of: tuple[JobRecord, ...] = ()
    queries: list[tuple[int, ...]] = field(default_factory=list)
    away: bool = False

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        self.queries.append(tuple(job_ids))
        if self.away:
            raise SlurmUnreachable("sacct: error: Problem talking to the database: Connection refused")
        return tuple(run for run in self.runs_of if {run.job_id, run.array_job_id} & set(job_ids))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reconcile(world: World, slurmdbd: FakeSlurmdbd, state: ReconcilerState | None = None) -> PassSummary:
    return reconcile_once(replace(world.services(), accounting=slurmdbd), state)


def running(job_id: int) -> JobRecord:
    return job(job_id, state="RUNNING", reason="None", exit_code=0, end_time=None)


def sacct_record(job_id: int, **changes: object) -> JobRecord:
    """The record that sacct has of a run: without output paths, memory and features."""
    return replace(job(job_id), std_out="", std_err="", mem_mib_per_node=None, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "exit_code", "wanted"),
    [
        ("TIMEOUT", 0, "time_limit"),
        ("CANCELLED", 0, "cancelled"),
        ("NODE_FAIL", 0, "node_failure"),
        ("COMPLETED", 0, "success"),
        ("OUT_OF_MEMORY", 0, "cpu_oom"),
    ],
)
def test_a_run_that_slurmctld_forgot_gets_its_end_from_slurmdbd(
    world: World, state: str, exit_code: int, wanted: str
) -> None:
    seen = running(81)
    world.add(seen)
    world.run()
    world.slurm.records.clear()  # MinJobAge is over
    end = sacct_record(81, state=state, exit_code=exit_code, reason="None", end_time=START - 10)
    reconcile(world, FakeSlurmdbd((end,)))
    found = world.attempt(seen)
    assert (category_and_decision_of(world, seen)[0], found.state, found.exit_code, found.end_time) == (
        wanted,
        state,
        exit_code,
        START - 10,
    )
    assert (found.nodes, found.std_out, found.restarts) == (seen.nodes, seen.std_out, 0)
    assert found.reconciled


def test_without_slurmdbd_a_run_that_slurmctld_forgot_is_still_diagnosed(world: World) -> None:
    seen = running(81)
    world.add(seen)
    world.run()
    world.slurm.records.clear()
    world.run()
    assert world.attempt(seen).reconciled
    assert world.attempt(seen).state == ""


def test_a_forgotten_run_is_diagnosed_only_after_slurmdbd_answers(world: World) -> None:
    seen, slurmdbd = running(81), FakeSlurmdbd((sacct_record(81),), away=True)
    world.add(seen)
    world.run()
    world.slurm.records.clear()
    summary = reconcile(world, slurmdbd)
    assert world.attempt(seen).diagnosis is None
    assert [error for error in summary.errors if "slurmdbd" in error] == [
        "job 81: not judged before slurmdbd answers: sacct: error: Problem talking to the database: Connection refused"
    ]
    slurmdbd.away = False
    reconcile(world, slurmdbd)
    assert (world.attempt(seen).state, world.attempt(seen).exit_code) == ("FAILED", 1)


def test_slurmdbd_is_not_asked_about_a_run_that_slurmctld_shows(world: World) -> None:
    shown, slurmdbd = job(82), FakeSlurmdbd((sacct_record(82, state="COMPLETED", exit_code=0),))
    world.add(shown)
    world.spool_observations(submission_observation(submission(82)), *hooks(shown, log=BUG))
    reconcile(world, slurmdbd)
    assert category_and_decision_of(world, shown) == ("traceback_from_crash", "stop")
    assert slurmdbd.queries == []


def test_a_run_that_slurm_requeued_gets_its_end_from_slurmdbd(world: World) -> None:
    first = running(83)
    world.add(first)
    world.run()
    again = replace(running(83), restarts=1, submit_time=START + 5, start_time=START + 130)
    world.add(again)
    slurmdbd = FakeSlurmdbd(
        (
            sacct_record(83, state="NODE_FAIL", exit_code=0, reason="None"),
            sacct_record(83, **_times_of(again), state="RUNNING"),
        )
    )
    reconcile(world, slurmdbd)
    assert category_and_decision_of(world, first)[0] == "node_failure"
    assert world.attempt(again).state == ""


def _times_of(record: JobRecord) -> dict[str, object]:
    return {"submit_time": record.submit_time, "start_time": record.start_time, "end_time": None}


def test_a_hundred_forgotten_runs_need_one_query_to_slurmdbd(world: World) -> None:
    world.add(*(running(number) for number in range(100, 200)))
    world.run()
    world.slurm.records.clear()
    slurmdbd = FakeSlurmdbd(tuple(sacct_record(number, state="TIMEOUT", exit_code=0) for number in range(100, 200)))
    summary = reconcile(world, slurmdbd)
    assert slurmdbd.queries == [tuple(range(100, 200))]
    assert {record.state for record in summary.judged} == {"TIMEOUT"}


def test_a_run_that_began_and_ended_between_two_passes_is_diagnosed(world: World) -> None:
    world.store.save_submission(submission(90))
    world.store.save_submission(submission(91))  # an array
    world.store.save_submission(submission(92))  # by now a run of another user has this job id
    world.store.save_submission(submission(93))  # cancelled before it started
    tasks = [sacct_record(91 + i, array_job_id=91, array_task_id=i) for i in range(1)]
    slurmdbd = FakeSlurmdbd(
        (
            sacct_record(90),
            *tasks,
            sacct_record(92, uid=7),
            sacct_record(93, state="CANCELLED", start_time=None, nodes=()),
        )
    )
    state = ReconcilerState()
    judged = reconcile(world, slurmdbd, state).judged
    assert sorted((one.attempt.job_id, one.address, one.state) for one in judged) == [
        (90, "90", "FAILED"),
        (91, "91_0", "FAILED"),
    ]
    reconcile(world, slurmdbd, state)
    assert slurmdbd.queries == [
        (90, 91, 92, 93),
        (90, 91),
    ]  # a query for old submissions once an hour; then a query to diagnose the two runs


def test_runs_that_reuse_a_job_id_are_distinguished() -> None:
    mine = record_of(running(81), "lab")
    later = sacct_record(81, submit_time=START + 10_000, start_time=START + 10_001, end_time=START + 10_060)
    assert matching([later, sacct_record(81)], mine) == sacct_record(81)
    assert matching([later], mine) is None
    assert matching([sacct_record(81, uid=7)], mine) is None
    assert matching([sacct_record(81, state="REQUEUED")], mine) is None
    # A run known only from its hooks is matched by its start time.
    by_hooks = replace(mine, attempt=replace(mine.attempt, submit_time=START - 92), start_time=START - 88)
    assert matching([later, sacct_record(81)], by_hooks) == sacct_record(81)
