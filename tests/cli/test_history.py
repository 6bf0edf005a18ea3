"""slurmwrap history: folded rows, filters, totals and JSON, from the database of a site and of a user."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.cli.history import format_history
from slurmwrap.cli.run_selection import FoundRuns, sum_run_records
from slurmwrap.errors import UsageError
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.report.text_format import width

Run = Callable[..., Result]
Fill = Callable[[Path, dict[str, Any], float], None]


def test_one_synthetic_day_is_listed_with_folded_rows_and_totals(
    slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path
) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"])
    result = slurmwrap("history", "--since", "7d")
    table, _, sums = result.stdout.partition("\n\n")
    lines = table.splitlines()
    assert lines[0].split() == ["job", "name", "user", "GPUs", "ended", "h:min", "result"]
    assert [line for line in result.stdout.splitlines() if width(line) > 80] == []
    assert "\x1b" not in result.stdout
    shown = [(line.split()[0], "pre-run  wrong use" in line) for line in lines[1:]]
    assert ("170", True) in shown
    assert "102" not in {job for job, _ in shown}, "a pre-run is not listed as a run"
    assert [job for job, _ in shown if job == "101"] == ["101", "101"]
    assert any(line.startswith("110_[0-2] (3)") for line in lines)
    assert "stopped by a pre-run." in sums


@pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")
def test_the_site_database_gives_the_same_output_as_the_user_database(
    slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path
) -> None:
    # The same times in both: rows show minutes.
    shift = time.time() - day["until"]
    for place in ("slurmwrap/user.db", "site/site.db"):
        fill(tmp_path / place, day, shift)
    for words in ((), ("--failed",), ("--user", "fay"), ("--since", "4h"), ("--prerun",), ("--each",)):
        assert slurmwrap("history", *words, site=True).stdout == slurmwrap("history", *words).stdout


def test_filters_select_runs(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"])

    def select(*words: str) -> tuple[list[str], list[int]]:
        result = json.loads(slurmwrap("history", "--json", *words).stdout)
        return sorted(run["address"] for run in result["runs"]), [p["job_id"] for p in result["stopped"]]

    assert select("--user", "bob") == (["110_0", "110_1", "110_2"], [])
    assert select("--user", "fay") == ([], [170])
    assert select("--since", "4h")[0] == ["101", "141", "150"]
    assert select("--prerun") == ([], [170])
    assert select("--category", "gpu_hardware", "--node", "n3")[0] == ["101"]
    assert not {"141", "150"} & set(select("--until", "4h")[0])
    wrong = slurmwrap("history", "--decision", "retri").exception
    assert isinstance(wrong, UsageError) and wrong.hint == "did you mean retry?"


def test_omitted_runs_are_counted_and_included_in_the_totals(
    slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path
) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"])
    every = json.loads(slurmwrap("history", "--json", "--all").stdout)
    assert (every["more"], every["totals"]["runs"], every["totals"]["stopped"]) == (0, len(every["runs"]), 1)
    some = json.loads(slurmwrap("history", "--json", "--limit", "2").stdout)
    assert some["more"] == len(every["runs"]) - 2
    assert some["totals"] == every["totals"]
    lines = slurmwrap("history", "--limit", "2", "--each").stdout.splitlines()
    assert lines[3] == f"and {len(every['runs']) + 1 - 2} runs more (--all shows them)"


def test_an_empty_history_says_that_no_run_is_stored(slurmwrap: Run) -> None:
    unknown = "No run is stored of this time; what ended since the last look is not known.\n"
    assert slurmwrap("history").stdout == unknown


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_an_invalid_period_is_refused(slurmwrap: Run, option: str) -> None:
    result = slurmwrap("history", option, "7 days")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{option} '7 days' is neither a period nor a date"
    assert result.exception.hint == "write it as 24h, 7d or 2026-11-20"


BASE = JobRun(
    attempt=RunKey(cluster="lab", job_id=1, submit_time=0),
    name="sweep",
    user="ada",
    state="FAILED",
    gpus=1,
    start_time=1_795_240_800,
    diagnosis=Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=1, signature=""),
    decision="stop",
)


def format_lines(*runs: JobRun, each: bool = False) -> list[str]:
    found_runs = FoundRuns(runs=runs, sums=sum_run_records(runs))
    return format_history(found_runs, UTC, limit=None, each=each).splitlines()


def test_tasks_with_the_same_end_share_a_line_and_users_are_shown_if_they_differ() -> None:
    runs = [replace(BASE, address=f"77_{n}", end_time=1_795_240_860 + n) for n in range(3)]
    other = replace(
        BASE, address="80", name="no\nname", end_time=1_795_244_400, state="OUT_OF_MEMORY", decision="resize"
    )
    assert format_lines(*runs, other) == [
        "job           name      GPUs  ended        h:min  result",
        "80            no\\nname     1  11-21 07:00   1:00  out of GPU memory",
        "77_[0-2] (3)  sweep        1  11-21 06:01   0:01  out of GPU memory",
        "",
        "4 runs, 4 failed (100 %), 1.05 GPU-hours, 1.05 of them in failed runs.",
    ]
    bob = replace(other, user="bob", diagnosis=None, start_time=None)
    assert format_lines(runs[0], bob)[:3] == [
        "job   name      user  GPUs  ended        h:min  result",
        "80    no\\nname  bob      1  11-21 07:00         out of memory",
        "77_0  sweep     ada      1  11-21 06:01   0:01  out of GPU memory",
    ]


def test_repeated_runs_with_the_same_failure_share_a_line() -> None:
    runs = [
        replace(BASE, attempt=replace(BASE.attempt, job_id=n), address=str(n), end_time=1_795_240_860 + n)
        for n in range(80, 85)
    ]
    completed = [
        replace(
            run, address=f"9{run.address}", diagnosis=replace(BASE.diagnosis, category="success"), state="COMPLETED"
        )
        for run in runs[:2]
    ]
    lines = format_lines(*runs, *completed)
    assert [line.split()[0] for line in lines[1:4]] == ["84", "981", "980"]
    assert lines[1].split()[1] == "(5)"
    assert [line.split()[0] for line in format_lines(*runs, each=True)[1:6]] == ["84", "83", "82", "81", "80"]
