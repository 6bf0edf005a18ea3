"""Members side by side in a pre-run, as real processes with a fake torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.prerun.trial.pack_measurement import PackSpeeds, list_numbers_of_members, measure_members
from slurmwrap.prerun.trial.trial_spec import TrialSpec

TRAIN = """
import os, sys, time
import torch.optim
index = os.environ['SLURM_ARRAY_TASK_ID']
with open(sys.argv[1], 'a') as seen:
    print(index, file=seen)
open('result.' + index, 'w').close()
optimizer = torch.optim.SGD()
for step in range(10 if index == sys.argv[2] else 10**9):
    time.sleep(0.05)
    optimizer.step()
"""
Measure = Callable[..., PackSpeeds]


@pytest.fixture
def measure(make_spec: Callable[..., TrialSpec], job: Path, tmp_path: Path) -> Measure:
    """Measures members with the indices 3, 5, 7 and 9; the one with the index `ends` ends after ten steps."""
    (job / "train.py").write_text(TRAIN)

    def run(ends: str = "none", text: str = "#!/bin/bash\npython train.py $1 $2\n", **fields: object) -> PackSpeeds:
        pack = {"pack_most": 4, "pack_indices": (3, 5, 7, 9), "pack_s": 0.3, "pack_limit_s": allow(60.0)}
        environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(job), "LANG": "C"}
        spec = make_spec(text, str(tmp_path / "seen"), ends, **{**pack, **fields})
        return measure_members(spec, 4, environ=environ)

    return run


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if "__pycache__" not in path.parts)


def count_members(tmp_path: Path) -> int:
    """How many processes of members are left."""
    left = 0
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            left += f"SLURMWRAP_TRIAL_DIR={tmp_path}/trial/members".encode() in status.read_bytes()
        except OSError:
            continue
    return left


def test_members_that_only_sleep_are_as_many_times_as_fast(measure: Measure, job: Path, tmp_path: Path) -> None:
    before = list_files(job)
    found = measure()
    assert [point.members for point in found.points] == [1, 2, 4] and found.end == "fit", found
    alone, _, four = found.points
    assert 4 * four.steps_per_s > 1.5 * alone.steps_per_s > 0
    # Each has an index of its own, and none leaves a file or a process.
    assert sorted((tmp_path / "seen").read_text().split()) == ["3", "5", "7", "9"]
    assert list_files(job) == before
    assert not (tmp_path / "trial" / "members").exists()
    assert count_members(tmp_path) == 0


@pytest.mark.parametrize(("ends", "measured", "end"), [("3", 0, "first_exit"), ("5", 1, "exit")])
def test_a_member_that_ends_ends_the_measurement(measure: Measure, ends: str, measured: int, end: str) -> None:
    found = measure(ends, pack_s=allow(5.0))
    assert (len(found.points), found.end) == (measured, end)


def test_a_program_without_steps_is_given_up(measure: Measure) -> None:
    found = measure(text="#!/bin/bash\nexec sleep 600\n", pack_limit_s=0.5)
    assert found == PackSpeeds(end="time")


def test_the_time_that_is_left_limits_the_measurement(measure: Measure) -> None:
    assert measure(pack_limit_s=0.0).end == "time"


def test_the_numbers_are_powers_of_two() -> None:
    assert [list_numbers_of_members(most) for most in (1, 3, 8)] == [[1], [1, 2], [1, 2, 4, 8]]


def test_without_an_overlay_the_users_files_stay_as_they_are_too(measure: Measure, job: Path) -> None:
    before = list_files(job)
    assert measure(overlay="off", pack_most=2).end in ("fit", "files")
    assert list_files(job) == before
