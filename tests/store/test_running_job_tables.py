"""Findings about running jobs and the use of their GPUs in the database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import DIVERGED, STUCK, EarlyFinding, GpuUse, LossCurve, LossPoint
from slurmwrap.store.database import Database

RUN = RunKey(cluster="c", job_id=7, submit_time=100)
FINDING = EarlyFinding(
    attempt=RUN, kind=STUCK, at=5.0, n=600, evidence="no step", uid=1000, address="7", mode="advise", action="requeue"
)
USE = GpuUse(
    attempt=RUN, node="n1", gpu=3, began=1.0, interval_s=60.0, use_pct=(1.0, 2.5), mem_mib=(10, -1), processes=(1, 0)
)


CURVE = LossCurve(
    attempt=RUN,
    source="keras",
    points=(LossPoint(at_s=0.5, step=1.0, loss=2.5), LossPoint(at_s=9.0, epoch=0.25, validation_loss=-1.0)),
    uid=1000,
    end_time=50,
    lowest=2.5,
    time_share=0.38,
    epoch_share=None,
)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(tmp_path / "a.sqlite")


def test_a_finding_is_replaced_by_run_and_kind(database: Database) -> None:
    database.save_early_finding(FINDING)
    other = replace(FINDING, attempt=RunKey(cluster="c", job_id=8, submit_time=100), kind=DIVERGED, at=9.0)
    database.save_early_finding(other)
    changed = replace(FINDING, notified=True, gone_at=7.0)
    database.save_early_finding(changed)
    assert database.early_findings() == (changed, other)
    assert (database.early_findings(RUN), database.early_findings(since=6.0)) == ((changed,), (other,))


def test_the_use_of_gpus_is_read_as_stored(database: Database) -> None:
    later = replace(USE, gpu=1, use_pct=(), mem_mib=(), processes=(), mem_total_mib=80, energy_j=3.5, mig="MIG-1")
    for use in (USE, USE, later):
        database.save_gpu_use(use)
    assert database.gpu_use(RUN) == (later, USE)


def test_a_file_of_an_older_version_has_no_findings(tmp_path: Path) -> None:
    with Database.open(tmp_path / "a.sqlite") as database:
        database.connection.executescript("DROP TABLE early_findings; DROP TABLE gpu_use; DROP TABLE loss_curves")
        assert (database.early_findings(), database.gpu_use(RUN)) == ((), ())
        assert (database.loss_curve(RUN), database.loss_curves(0.0)) == (None, ())


def test_a_loss_curve_is_replaced_by_run_and_read_as_stored(database: Database) -> None:
    other = replace(CURVE, attempt=RunKey(cluster="c", job_id=8, submit_time=100), end_time=40, points=())
    running = replace(CURVE, attempt=RunKey(cluster="c", job_id=9, submit_time=100), end_time=None)
    for curve in (replace(CURVE, points=(), lowest=None), CURVE, other, running):
        database.save_loss_curve(curve)
    assert (database.loss_curve(RUN), database.loss_curve(running.attempt)) == (CURVE, running)
    assert database.loss_curve(RunKey(cluster="d", job_id=7, submit_time=100)) is None
    assert (database.loss_curves(0.0), database.loss_curves(41.0)) == ((other, CURVE), (CURVE,))
