"""slurmwrap convergence, and the loss in why and history, from a user's database."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve, LossPoint
from slurmwrap.report.text_format import width
from slurmwrap.store.database import Database

Run = Callable[..., Result]
NOW = int(time.time())


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """An array of two tasks with a loss, and a job without one."""
    path = tmp_path / "slurmwrap" / "user.db"
    path.parent.mkdir(exist_ok=True)
    ok = Diagnosis(category="success", domain="", decision="none", confidence=1, signature="")
    with Database.open(path) as database, database.transaction():
        for number, address in ((77, "77_1"), (78, "77_2"), (90, "90")):
            key = RunKey(cluster="lab", job_id=number, submit_time=NOW - 9000)
            run = JobRun(
                attempt=key, address=address, name="vit", user="ada", uid=os.geteuid(), state="COMPLETED",
                nodes=("n0",), gpus=8, start_time=NOW - 8200, end_time=NOW - 1000, diagnosis=ok, reconciled=True,
            )  # fmt: skip
            database.save_attempt(run)
            if number == 90:
                continue
            points = tuple(LossPoint(at_s=i * 72.0, loss=number - 76 + math.exp(-i / 9)) for i in range(100))
            database.save_loss_curve(
                LossCurve(
                    attempt=key,
                    source="keras",
                    points=points,
                    uid=run.uid,
                    end_time=run.end_time,
                    lowest=number - 76.0,
                    time_share=0.25,
                    epoch_share=0.5,
                )
            )
    return path


@pytest.mark.usefixtures("sweep")
def test_members_of_a_sweep_are_listed_and_drawn(slurmwrap: Run, tmp_path: Path) -> None:
    result = slurmwrap("convergence", "77", "--svg", str(tmp_path / "sweep.svg"))
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["job", "name", "state", "near", "lowest", "GPU-h", "after", "lowest", "loss"]
    assert [line.split()[:7] for line in lines[1:3]] == [
        ["77_1", "vit", "completed", "25", "%", "12.0", "1"],
        ["77_2", "vit", "completed", "25", "%", "12.0", "2"],
    ]
    assert "24.0 GPU-hours came after a loss within 0.1 %." in result.stdout
    assert all(width(line) <= 80 for line in lines)
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")


@pytest.mark.usefixtures("sweep")
def test_one_run_is_described_in_a_sentence(slurmwrap: Run) -> None:
    text = " ".join(slurmwrap("convergence", "77_1").stdout.split())
    assert (
        "within 0.1 % of its lowest loss after 25 % of its time; the rest cost 12.0 GPU-hours. Lowest loss: 1." in text
    )
    assert "100 points, read as keras." in text


@pytest.mark.usefixtures("sweep")
def test_json_has_the_points(slurmwrap: Run) -> None:
    document = json.loads(slurmwrap("convergence", "77_2", "--json").stdout)
    (run,) = document["runs"]
    assert (document["kind"], run["address"], run["time_share"], len(run["points"])) == (
        *("slurmwrap.convergence", "77_2", 0.25, 100),
    )


@pytest.mark.usefixtures("sweep")
def test_a_job_without_a_loss_is_an_error_that_says_what_to_do(slurmwrap: Run) -> None:
    missing = slurmwrap("convergence", "90").exception
    assert isinstance(missing, SlurmwrapError) and "no loss was found in the output of job 90" in str(missing)
    assert isinstance(slurmwrap("convergence", "x").exception, UsageError)


@pytest.mark.usefixtures("sweep")
def test_why_and_history_show_the_loss(slurmwrap: Run) -> None:
    text = " ".join(slurmwrap("why", "77_1").stdout.split())
    assert "Loss: within 0.1 % of its lowest loss after 25 % of its time; the rest cost 12.0 GPU-hours." in text
    lines = slurmwrap("history", "--each").stdout.splitlines()
    assert "loss" in lines[0].split()
    assert sum("25 %" in line for line in lines) == 2
