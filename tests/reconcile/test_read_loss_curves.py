"""Loss curves of the runs that a pass judged: which are read, and that none is lost when the time of a pass is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import START, FakeClock, FakeLogs, FakeSlurm, job

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import CountedLosses, LossCurve, LossPoint
from slurmwrap.model.submission import Submission
from slurmwrap.reconcile import Scope, Services, read_loss_curves, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json


class Reader:
    """Returns a curve for each run but `silent`, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.silent: set[int] = set()

    def __call__(self, run: JobRun) -> LossCurve | None:
        self.asked.append(run.attempt.job_id)
        if run.attempt.job_id in self.silent:
            return None
        return LossCurve(attempt=run.attempt, source="x", points=(LossPoint(at_s=1.0, loss=2.0),), time_share=0.5)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def make_services(reader: Reader, store: Database, *ended: tuple[int, int]) -> Services:
    """Return the services for jobs that ended. `ended`: (job id, seconds that it ran)."""
    slurm = FakeSlurm()
    slurm.add(
        *(job(number, start_time=START - 30 - seconds, state="COMPLETED", exit_code=0) for number, seconds in ended)
    )
    return Services(
        slurm=slurm,
        store=store,
        spools=(),
        logs=FakeLogs(),
        clock=FakeClock(START),
        publisher=None,
        unpack=record_from_json,
        classify=diagnose_run,
        read_inputs=lambda uid, paths: (),
        config=Config(),
        scope=Scope(),
        curves=reader,
    )


def key_of(number: int) -> RunKey:
    return RunKey(cluster="lab", job_id=number, submit_time=START - 100)


def test_the_curve_of_each_run_of_a_minute_is_read_once_and_stored(tmp_path: Path, reader: Reader) -> None:
    reader.silent = {3}
    with Database.open(tmp_path / "db") as store:
        services, book = make_services(reader, store, (1, 60), (2, 59), (3, 600)), ReconcilerState()
        for _ in range(3):
            assert reconcile_once(services, book).errors == []
        assert sorted(reader.asked) == [1, 3]
        found = {number: store.loss_curve(key_of(number)) for number in (1, 2, 3)}
    assert [found[number] is not None for number in (1, 2, 3)] == [True, False, False]


def test_losses_of_the_step_counter_count_where_the_output_shows_none(tmp_path: Path, reader: Reader) -> None:
    points = tuple(LossPoint(at_s=float(i), step=i, loss=max(1.0, 9.0 - i / 3)) for i in range(100))
    sent = Submission(cluster="lab", job_id=1, uid=1001, user="alice", at=START - 101, step_dir="/steps")
    reader.silent = {1, 2}
    with Database.open(tmp_path / "db") as store:
        store.save_submission(sent)
        services = make_services(reader, store, (1, 100), (2, 100))
        services = replace(services, losses=lambda run, directory: CountedLosses(points=points, taken=100))
        assert reconcile_once(services, ReconcilerState()).errors == []
        found, other = store.loss_curve(key_of(1)), store.loss_curve(key_of(2))
    assert other is None
    assert found is not None and found.source == "counter" and found.points == points
    assert found.time_share == pytest.approx(0.24, abs=0.02)


def test_runs_wait_for_the_next_pass_when_the_time_is_over(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(tmp_path / "db") as store:
        services, book = make_services(reader, store, (1, 60), (2, 60)), ReconcilerState()
        monkeypatch.setattr(read_loss_curves, "_BUDGET_S", 0.0)
        reconcile_once(services, book)
        assert reader.asked == []
        monkeypatch.setattr(read_loss_curves, "_BUDGET_S", 60.0)
        reconcile_once(services, book)
        assert sorted(reader.asked) == [1, 2]
        assert book.unread_curves == []


def test_a_reader_that_fails_does_not_end_the_pass_and_is_not_asked_for_the_run_for_ever(
    tmp_path: Path, reader: Reader
) -> None:
    def fail(run: JobRun) -> LossCurve | None:
        reader.asked.append(run.attempt.job_id)
        raise ValueError("no")

    with Database.open(tmp_path / "db") as store:
        services, book = make_services(fail, store, (1, 60)), ReconcilerState()  # type: ignore[arg-type]
        assert len(reconcile_once(services, book).errors) == 1
        assert reconcile_once(services, book).errors == []
    assert reader.asked == [1]
