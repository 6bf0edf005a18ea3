"""The program behind the shims of rm, cp, mv, ..., as laid beside a trial's script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow, wait_until

from slurmwrap.prerun.trial.trial_layout import write_trial_files
from slurmwrap.prerun.trial.trial_spec import TrialSpec

Shim = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shim(tmp_path: Path, job: Path, make_spec: Callable[..., TrialSpec]) -> Shim:
    """Starts a laid shim in the job's directory, which is held; all else below tmp_path is scratch."""
    spec = make_spec("#!/bin/sh\n")
    environ = {
        "PATH": f"{spec.trial_dir}/shims:/usr/bin:/bin",
        "SLURMWRAP_SHIMS": f"{spec.trial_dir}/shims",
        "SLURMWRAP_PYTHON": sys.executable,
        "SLURMWRAP_STEP_DIR": spec.step_dir,
        "SLURMWRAP_FREE": str(tmp_path),
        "SLURMWRAP_HELD": str(job),
    }
    write_trial_files(spec, environ)

    def start(*words: str) -> subprocess.Popen[str]:
        program = f"{spec.trial_dir}/shims/{words[0]}"
        pipe = subprocess.PIPE
        return subprocess.Popen([program, *words[1:]], cwd=job, env=environ, stdout=pipe, stderr=pipe, text=True)

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=allow(30))
    return process.returncode, out, err


def test_a_command_that_stays_in_scratch_runs_in_the_shims_place(shim: Shim, tmp_path: Path, job: Path) -> None:
    assert ended(shim("cp", "train.py", f"{tmp_path}/copy")) == (0, "", "")
    assert (tmp_path / "copy").read_text() == (job / "train.py").read_text()


def test_a_command_that_would_reach_the_users_files_waits_for_its_end(shim: Shim, tmp_path: Path, job: Path) -> None:
    process, told = shim("rm", "train.py"), tmp_path / "trial" / "steps" / "touched"
    try:
        wait_until(lambda: told.exists() and told.read_text(), "what the shim tells")
        assert (told.read_text(), process.poll()) == (f"rm\t{job}/train.py\n", None)
    finally:
        process.kill()
        process.communicate()
    assert (job / "train.py").exists()


def test_what_is_not_there_may_be_removed(shim: Shim) -> None:
    assert ended(shim("rm", "-f", "nothing")) == (0, "", "")


def test_directories_are_made_and_noted_so_that_they_can_be_taken_away(shim: Shim, tmp_path: Path, job: Path) -> None:
    assert ended(shim("mkdir", "-p", "a/b")) == (0, "", "")
    noted = (tmp_path / "trial" / "steps" / "made").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in noted] == [f"{job}/a", f"{job}/a/b"]


def test_what_the_program_loads_is_compiled_once(shim: Shim, tmp_path: Path) -> None:
    ended(shim("rm", "-f", "nothing"))
    kept = (tmp_path / "trial" / "shims" / "__pycache__").iterdir()
    assert sorted(path.name.partition(".")[0] for path in kept) == ["file_effects", "writable_paths"]
