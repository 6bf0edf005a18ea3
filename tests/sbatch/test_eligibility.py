"""Options that keep a job from starting at once, and the dependency of its pre-run."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.eligibility import (
    can_share_dependency,
    find_delay,
    list_corresponding_jobs,
    make_prerun_dependency,
)
from slurmwrap.sbatch.parse_request import parse_request

NOW = 1_800_000_000.0
RESERVATIONS = {"soon": int(NOW) + 60, "open": int(NOW) - 60}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ([], ""),
        (["--dependency=afterok:5"], "--dependency"),
        (["--hold"], "--hold"),
        (["--priority=0"], "--hold"),
        (["--begin=now+60"], "--begin"),
        (["--begin=now"], ""),
        (["--begin=2001-01-01"], ""),
        (["--begin=who knows"], "--begin"),
        (["--reservation=soon"], "--reservation"),
        (["--reservation=open"], ""),
        (["--reservation=open,soon"], ""),
        (["--reservation=unheard"], "--reservation"),
    ],
)
def test_find_delay_names_the_option_that_delays_the_job(words: list[str], option: str) -> None:
    request = parse_request(
        [*words, "job"], environ={}, cwd="/w", read_script=lambda path: b"#!/bin/sh\n", read_stdin=lambda: b""
    )
    found = find_delay(request, NOW, RESERVATIONS)
    assert (f"({option})" in found) if option else found == ""


@pytest.mark.parametrize(
    ("value", "task", "wanted"),
    [
        ("afterok:7:8,afterany:9", None, "afterok:7:8,afterany:9"),
        ("afterok:7?afterany:9", 3, "afterok:7?afterany:9"),
        ("aftercorr:7", None, "aftercorr:7"),  # the job is no array: waits for each task of 7, as in Slurm
        ("aftercorr:7", 3, "aftercorr:7_3"),
        ("aftercorr:7:8,afterok:7", 3, "aftercorr:7_3:8,afterok:7"),  # job 8 is no array
        ("afterok:9?aftercorr:7_5", 3, "afterok:9?aftercorr:7_5"),
    ],
)
def test_the_pre_run_depends_on_the_same_jobs_as_its_job(value: str, task: int | None, wanted: str) -> None:
    assert make_prerun_dependency(value, task, {"7"}) == wanted


def test_dependencies_that_a_pre_run_cannot_share() -> None:
    values = ("singleton", "afterok:1,singleton", "expand:3", "", "afterok:1?afterany:2", "after:1+5")
    assert [can_share_dependency(value) for value in values] == [False, False, False, True, True, True]
    assert list_corresponding_jobs("aftercorr:7:8,afterok:9?aftercorr:12_3") == ("7", "8")
