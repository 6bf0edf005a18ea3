"""slurmwrap report: text and JSON from a real database."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.errors import StoreError
from slurmwrap.report.night_report import NightReport
from slurmwrap.store.deserialize import record_from_json

Run = Callable[..., Result]
Fill = Callable[[Path, dict[str, Any], float], None]
GOLDEN = Path(__file__).parents[2] / "data" / "report" / "night.txt"


def test_root_gets_the_report_of_the_site(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    fill(tmp_path / "site" / "site.db", day, time.time() - day["until"] - 1)
    page = slurmwrap("report", site=True).stdout
    titles = ("WHAT FAILED", "THE SAME AGAIN", "CAUGHT ON ONE GPU", "WHAT WAS DECIDED")
    sections = "\n\n".join(page[page.index(title) :].split("\n\n")[0] for title in titles) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(sections, encoding="utf-8")
    assert sections == GOLDEN.read_text(encoding="utf-8")


def test_json_is_the_whole_report(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"] - 1)
    report = record_from_json(NightReport, json.loads(slurmwrap("report", "--json").stdout))
    assert (report.headline.jobs, report.headline.failed_attempts, report.preruns.stopped_jobs) == (9, 7, 1)
    assert report.preruns.saved.gpu_hours is None
    assert [row.category for row in report.categories] == ["gpu_hardware", "nccl_error", "gpu_oom", "incorrect_inputs"]
    assert report.until - report.since == pytest.approx(86400)


def test_the_report_of_a_user_has_no_steps_for_administrators(
    slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path
) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, time.time() - day["until"] - 1)
    page = slurmwrap("report").stdout
    to_do = page[page.index("WHAT TO DO") :].split("\n\n")[0]
    assert "  slurmwrap why " in to_do
    for theirs in ("NodeName", "nodes repaired", "SUSPECT", "WAS IT RIGHT?", "WHAT WAS DECIDED", "USERS"):
        assert theirs not in page


def test_without_a_database_a_user_gets_an_empty_report_and_root_an_error(slurmwrap: Run, tmp_path: Path) -> None:
    quiet = slurmwrap("report").stdout
    assert "\nNothing ended in this time.\n" in quiet and "Slurm could not be asked (" in quiet
    if os.geteuid() == 0:
        (tmp_path / "site").mkdir()
        result = slurmwrap("report", site=True)
        assert isinstance(result.exception, StoreError)
        assert "there is no database at" in str(result.exception)
