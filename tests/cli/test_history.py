"""slurmwrap history: one line per run, 80 columns, filters, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

from typer.testing import Result

from slurmwrap.cli.history import table
from slurmwrap.cli.known import Known
from slurmwrap.diagnosis.evidence import Attempt, Diagnosis
from slurmwrap.errors import UsageError
from slurmwrap.report.words import width
from slurmwrap.retry.attempt import AttemptRecord

Run = Callable[..., Result]
Fill = Callable[[Path, dict[str, Any], float], None]


def test_the_composed_day(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"])
    result = slurmwrap("history", "--since", "7d")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["job", "name", "user", "GPUs", "ended", "h:min", "result"]
    assert [line for line in lines if width(line) > 80] == []
    assert "\x1b" not in result.stdout
    shown = [(line.split()[0], "pre-run  semantic_error" in line) for line in lines[1:]]
    assert ("170", True) in shown
    assert "102" not in {job for job, _ in shown}, "a pre-run is no run of its own"
    assert [job for job, _ in shown if job == "101"] == ["101", "101"]
    assert any(line.startswith("110_0…2 (3)") for line in lines)


def test_a_user_and_a_period_can_be_chosen(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"])
    bob = json.loads(slurmwrap("history", "--user", "bob", "--json").stdout)
    assert ([run["address"] for run in bob["runs"]], bob["stopped"]) == (["110_0", "110_1", "110_2"], [])
    fay = json.loads(slurmwrap("history", "--user", "fay", "--json").stdout)
    assert ([run["address"] for run in fay["runs"]], [p["job_id"] for p in fay["stopped"]]) == ([], [170])
    late = json.loads(slurmwrap("history", "--since", "4h", "--json").stdout)
    assert sorted(run["address"] for run in late["runs"]) == ["101", "141", "150"]


def test_nothing_is_said_in_words(slurmwrap: Run) -> None:
    assert slurmwrap("history").stdout == "No run is known of this time.\n"


def test_a_wrong_period_is_named(slurmwrap: Run) -> None:
    result = slurmwrap("history", "--since", "7 days")
    assert isinstance(result.exception, UsageError)
    assert result.exception.hint == "write it as 24h, 7d or 2026-11-20"


def test_tasks_that_ended_alike_share_a_line_and_users_are_shown_only_where_they_differ() -> None:
    diagnosis = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=1, signature="")
    base = AttemptRecord(
        attempt=Attempt(cluster="lab", job_id=1, submit_time=0),
        name="sweep",
        user="ada",
        state="FAILED",
        gpus=1,
        start_time=1_795_240_800,
        diagnosis=diagnosis,
        decision="stop",
    )
    runs = [replace(base, address=f"77_{n}", end_time=1_795_240_860 + n) for n in range(3)]
    other = replace(
        base, address="80", name="no\nname", end_time=1_795_244_400, state="OUT_OF_MEMORY", decision="resize"
    )
    assert table(Known(), [*runs, other], [], UTC).splitlines() == [
        "job         name      GPUs  ended        h:min  result",
        "77_0…2 (3)  sweep        1  11-21 06:01   0:01  gpu_oom",
        "80          no\\nname     1  11-21 07:00   1:00  gpu_oom",
    ]
    bob = replace(other, user="bob", diagnosis=None, start_time=None)
    assert table(Known(), [runs[0], bob], [], UTC).splitlines() == [
        "job   name      user  GPUs  ended        h:min  result",
        "77_0  sweep     ada      1  11-21 06:01   0:01  gpu_oom",
        "80    no\\nname  bob      1  11-21 07:00         out of memory",
    ]
