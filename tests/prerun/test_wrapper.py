"""templates/prerun/wrapper.sh: a node that cannot run slurmwrap must not hold the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.shipped import shipped

WRAPPER = shipped("templates") / "prerun" / "wrapper.sh"


@pytest.fixture
def scontrol(tmp_path: Path) -> Path:
    """A scontrol that writes down what it is asked."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    return program


def wrap(scontrol: Path, **environ: str) -> tuple[int, str, str]:
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(WRAPPER)], env={"PATH": path, **environ}, capture_output=True, text=True, timeout=30
    )
    asked = scontrol.parent.parent / "asked"
    return done.returncode, done.stderr, asked.read_text() if asked.exists() else ""


@pytest.mark.parametrize("python", ["", "/no/such/python", "/bin/false"])
def test_without_our_python_the_real_job_is_let_go(scontrol: Path, tmp_path: Path, python: str) -> None:
    code, said, asked = wrap(
        scontrol, SLURMWRAP_PYTHON=python, SLURMWRAP_TRIAL_DIR=str(tmp_path), SLURMWRAP_REAL_JOB="81_2"
    )
    assert (code, asked) == (4, "update\nJobId=81_2\nStartTime=now\n")
    assert "pre-run not possible here" in said


def test_a_job_is_let_go_no_earlier_than_its_user_said(scontrol: Path, tmp_path: Path) -> None:
    later = "2030-01-01T00:00:00"
    missing = str(tmp_path / "none")
    _, said, asked = wrap(
        scontrol,
        SLURMWRAP_PYTHON=sys.executable,
        SLURMWRAP_TRIAL_DIR=missing,
        SLURMWRAP_REAL_JOB="81",
        SLURMWRAP_RELEASE_AT=later,
    )
    assert asked == f"update\nJobId=81\nStartTime={later}\n"
    assert missing in said


def test_without_a_waiting_job_nothing_is_asked_of_slurm(scontrol: Path) -> None:
    assert wrap(scontrol) == (4, "slurmwrap: pre-run not possible here: SLURMWRAP_PYTHON is not set\n", "")
