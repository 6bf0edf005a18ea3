"""The program that the shims of rm, cp, mv, ... call, as installed for a trial."""

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
def start_shim(tmp_path: Path, job: Path, make_spec: Callable[..., TrialSpec]) -> Shim:
    """Starts a shim in the job's directory, which is protected; the rest of tmp_path is free."""
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


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=allow(30))
    return process.returncode, out, err


def test_a_command_that_writes_only_to_free_directories_runs(start_shim: Shim, tmp_path: Path, job: Path) -> None:
    assert wait_for_end(start_shim("cp", "train.py", f"{tmp_path}/copy")) == (0, "", "")
    assert (tmp_path / "copy").read_text() == (job / "train.py").read_text()


def test_a_command_that_would_change_user_files_is_reported_and_waits(
    start_shim: Shim, tmp_path: Path, job: Path
) -> None:
    process, touched_file = start_shim("rm", "train.py"), tmp_path / "trial" / "steps" / "touched"
    try:
        wait_until(lambda: touched_file.exists() and touched_file.read_text(), "the report of the shim")
        assert (touched_file.read_text(), process.poll()) == (f"rm\t{job}/train.py\n", None)
    finally:
        process.kill()
        process.communicate()
    assert (job / "train.py").exists()


def test_removing_a_missing_file_is_allowed(start_shim: Shim) -> None:
    assert wait_for_end(start_shim("rm", "-f", "nothing")) == (0, "", "")


def test_directories_are_made_and_recorded_for_later_removal(start_shim: Shim, tmp_path: Path, job: Path) -> None:
    assert wait_for_end(start_shim("mkdir", "-p", "a/b")) == (0, "", "")
    recorded = (tmp_path / "trial" / "steps" / "made").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in recorded] == [f"{job}/a", f"{job}/a/b"]


def test_modules_of_the_shim_are_compiled_once(start_shim: Shim, tmp_path: Path) -> None:
    wait_for_end(start_shim("rm", "-f", "nothing"))
    compiled = (tmp_path / "trial" / "shims" / "__pycache__").iterdir()
    assert sorted(path.name.partition(".")[0] for path in compiled) == ["file_effects", "writable_paths"]
