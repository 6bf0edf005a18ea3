"""The reconciler with slurmdbd: what it remembers counts where Slurm shows a run no longer, and nowhere else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fakes import START, job
from test_reconcile_pass import BUG, World, category_of, hooks, submission, submitted

from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.job_record import JobRecord
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.reconcile import PassSummary, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.reconcile.slurmdbd_lookup import matching


@dataclass
class Ledger:
    """A slurmdbd that remembers these runs."""

    runs_of: tuple[JobRecord, ...] = ()
    asked: list[tuple[int, ...]] = field(default_factory=list)
    away: bool = False

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        self.asked.append(tuple(job_ids))
        if self.away:
            raise SlurmUnreachable("sacct: error: Problem talking to the database: Connection refused")
        return tuple(run for run in self.runs_of if {run.job_id, run.array_job_id} & set(job_ids))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reconcile(world: World, ledger: Ledger, book: ReconcilerState | None = None) -> PassSummary:
    return reconcile_once(replace(world.services(), accounting=ledger), book)


def running(job_id: int) -> JobRecord:
    return job(job_id, state="RUNNING", reason="None", exit_code=0, end_time=None)


def told(job_id: int, **changes: object) -> JobRecord:
    """What sacct has of a run: no output, no memory, no features."""
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
def test_a_forgotten_run_ended_as_slurmdbd_says(world: World, state: str, exit_code: int, wanted: str) -> None:
    seen = running(81)
    world.add(seen)
    world.run()
    world.slurm.records.clear()  # MinJobAge is over
    end = told(81, state=state, exit_code=exit_code, reason="None", end_time=START - 10)
    reconcile(world, Ledger((end,)))
    found = world.attempt(seen)
    assert (category_of(world, seen)[0], found.state, found.exit_code, found.end_time) == (
        wanted,
        state,
        exit_code,
        START - 10,
    )
    assert (found.nodes, found.std_out, found.restarts) == (seen.nodes, seen.std_out, 0)
    assert found.reconciled


def test_without_slurmdbd_a_forgotten_run_is_judged_all_the_same(world: World) -> None:
    seen = running(81)
    world.add(seen)
    world.run()
    world.slurm.records.clear()
    world.run()
    assert world.attempt(seen).reconciled
    assert world.attempt(seen).state == ""


def test_it_is_waited_for_while_it_does_not_answer(world: World) -> None:
    seen, ledger = running(81), Ledger((told(81),), away=True)
    world.add(seen)
    world.run()
    world.slurm.records.clear()
    summary = reconcile(world, ledger)
    assert world.attempt(seen).diagnosis is None
    assert [error for error in summary.errors if "slurmdbd" in error] == [
        "job 81: not judged before slurmdbd answers: sacct: error: Problem talking to the database: Connection refused"
    ]
    ledger.away = False
    reconcile(world, ledger)
    assert (world.attempt(seen).state, world.attempt(seen).exit_code) == ("FAILED", 1)


def test_a_run_that_slurm_still_shows_is_slurms_word_alone(world: World) -> None:
    shown, ledger = job(82), Ledger((told(82, state="COMPLETED", exit_code=0),))
    world.add(shown)
    world.hear(submitted(submission(82)), *hooks(shown, log=BUG))
    reconcile(world, ledger)
    assert category_of(world, shown) == ("traceback_from_crash", "stop")
    assert ledger.asked == []


def test_a_run_that_slurm_requeued_ended_as_slurmdbd_says(world: World) -> None:
    first = running(83)
    world.add(first)
    world.run()
    again = replace(running(83), restarts=1, submit_time=START + 5, start_time=START + 130)
    world.add(again)
    ledger = Ledger((told(83, state="NODE_FAIL", exit_code=0, reason="None"), told(83, **_of(again), state="RUNNING")))
    reconcile(world, ledger)
    assert category_of(world, first)[0] == "node_failure"
    assert world.attempt(again).state == ""


def _of(record: JobRecord) -> dict[str, object]:
    return {"submit_time": record.submit_time, "start_time": record.start_time, "end_time": None}


def test_a_hundred_forgotten_runs_are_one_question(world: World) -> None:
    world.add(*(running(number) for number in range(100, 200)))
    world.run()
    world.slurm.records.clear()
    ledger = Ledger(tuple(told(number, state="TIMEOUT", exit_code=0) for number in range(100, 200)))
    summary = reconcile(world, ledger)
    assert ledger.asked == [tuple(range(100, 200))]
    assert {record.state for record in summary.judged} == {"TIMEOUT"}


def test_what_ran_and_ended_while_nobody_looked_is_judged(world: World) -> None:
    world.store.save_submission(submission(90))
    world.store.save_submission(submission(91))  # an array
    world.store.save_submission(submission(92))  # another user's run has the number since
    world.store.save_submission(submission(93))  # cancelled before it began
    tasks = [told(91 + i, array_job_id=91, array_task_id=i) for i in range(1)]
    ledger = Ledger((told(90), *tasks, told(92, uid=7), told(93, state="CANCELLED", start_time=None, nodes=())))
    book = ReconcilerState()
    judged = reconcile(world, ledger, book).judged
    assert sorted((one.attempt.job_id, one.address, one.state) for one in judged) == [
        (90, "90", "FAILED"),
        (91, "91_0", "FAILED"),
    ]
    reconcile(world, ledger, book)
    assert ledger.asked == [
        (90, 91, 92, 93),
        (90, 91),
    ]  # once an hour; then to judge them


def test_ids_that_came_back_are_told_apart() -> None:
    mine = record_of(running(81), "lab")
    later = told(81, submit_time=START + 10_000, start_time=START + 10_001, end_time=START + 10_060)
    assert matching([later, told(81)], mine) == told(81)
    assert matching([later], mine) is None
    assert matching([told(81, uid=7)], mine) is None
    assert matching([told(81, state="REQUEUED")], mine) is None
    # known from its hooks alone: the start tells
    by_hooks = replace(mine, attempt=replace(mine.attempt, submit_time=START - 92), start_time=START - 88)
    assert matching([later, told(81)], by_hooks) == told(81)
