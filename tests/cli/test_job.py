"""slurmwrap job: a site's administrator reads the database, the owner of a job the site's sealed file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.errors import UsageError
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.profiling.gpu_use import shorten_series
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FilePublisher, parse_published_gpu_use, read_why

Run = Callable[..., Result]
NOW = int(time.time())
KEY = RunKey(cluster="lab", job_id=81, submit_time=NOW - 9000)
RUN = JobRun(
    attempt=KEY, address="81", name="train", user="ada", uid=os.geteuid(), state="COMPLETED", exit_code=0,
    nodes=("n1",), gpus=2, cpus=8, start_time=NOW - 8000, end_time=NOW - 4000, time_limit_s=36000,
    mem_mib_per_node=32768, measurement=Measurement(seconds=4000, cpu_s=8000.0, mem_peak_mib=4000),
    diagnosis=Diagnosis(category="success", domain="", decision="none", confidence=1.0, signature=""), reconciled=True,
)  # fmt: skip


def make_use(gpu: int, minutes: int = 300, **changes: Any) -> GpuUse:
    base = GpuUse(
        attempt=KEY, node="n1", gpu=gpu, began=NOW - 7990.0, interval_s=60.0, use_pct=(50.0,) * minutes,
        mem_mib=(1000,) * minutes, processes=(1,) * minutes, mem_total_mib=81920,
    )  # fmt: skip
    return replace(base, **changes)


@pytest.fixture
def site(tmp_path: Path, slurmwrap: Run) -> Run:
    """The site's database with job 81, which used one of its two GPUs, and the tasks of array 77."""
    (tmp_path / "site").mkdir()
    with Database.open(tmp_path / "site" / "site.db") as database, database.transaction():
        database.save_attempt(RUN)
        for use in (make_use(0), make_use(1, use_pct=(0.0,) * 300, processes=(0,) * 300), make_use(HOST)):
            database.save_gpu_use(use)
        for task in range(3):
            key = replace(KEY, job_id=100 + task)
            state = "FAILED" if task == 2 else "COMPLETED"
            database.save_attempt(replace(RUN, attempt=key, address=f"77_{task}", state=state, gpus=0))
        waiting = replace(RUN, attempt=replace(KEY, job_id=90), address="90", state="", start_time=None, end_time=None)
        database.save_attempt(replace(waiting, measurement=None, diagnosis=None, reconciled=False))
    return partial(slurmwrap, site=True)


def test_a_job_is_shown_with_its_use_and_advice(site: Run) -> None:
    out = site("job", "81").stdout
    assert "Job 81 train, completed" in out
    assert "2.0 of 8 CPUs busy" in out
    assert "mean of 2 GPUs, 1 never used" in out
    assert "--time=2:00:00" in out
    assert "--mem=6G" in out


def test_the_same_for_programs(site: Run) -> None:
    plain = json.loads(site("job", "81", "--json").stdout)
    assert plain["kind"] == "slurmwrap.job_efficiency"
    (run,) = plain["runs"]
    assert (run["cpu_share"], run["mem_mib"], run["gpus_unused"]) == (0.25, 4000, 1)
    assert [use["gpu"] for use in run["gpu_use"]] == [0, 1, HOST]
    assert plain["advice"][0]["option"] == "--time=2:00:00"


def test_an_array_is_summed_up(site: Run) -> None:
    out = site("job", "77", "-v").stdout
    assert "Array 77 train, 3 tasks: 2 completed, 1 failed" in out
    assert "slurmwrap why 77_2" in out
    assert len([line for line in out.splitlines() if line.startswith("  77_")]) == 3


def test_a_page_is_written(site: Run, tmp_path: Path) -> None:
    assert site("job", "81", "--html", str(tmp_path / "job.html")).stdout == ""
    assert "Job 81" in (tmp_path / "job.html").read_text()
    failed = site("job", "81", "--html", str(tmp_path / "none" / "job.html"))
    assert isinstance(failed.exception, UsageError)


@pytest.mark.parametrize(("job", "message"), [("90", "has not started"), ("x", "is no job id")])
def test_what_cannot_be_shown_is_said(site: Run, job: str, message: str) -> None:
    failed = site("job", job).exception
    assert isinstance(failed, UsageError)
    assert message in str(failed)


def test_the_owner_gets_the_use_of_the_gpus_in_the_sealed_file(tmp_path: Path) -> None:
    def seal(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
        return payload

    uses = (make_use(0), make_use(1, 5), make_use(HOST))
    FilePublisher(tmp_path, "", seal).tell_owner(RUN, (), shorten_series(uses))
    (plain,) = read_why(tmp_path, 81, lambda sealed: (sealed, 0), {os.geteuid()})
    found = parse_published_gpu_use(plain)
    assert [(use.gpu, len(use.use_pct), use.ends_at) for use in found] == [
        (0, 38, make_use(0).ends_at),
        (1, 5, make_use(1, 5).ends_at),
        (HOST, 38, make_use(0).ends_at),
    ]
    assert len(shorten_series([make_use(gpu) for gpu in range(1024)])[0].use_pct) <= 4
