"""templates/prerun/wrapper.sh: a node that cannot run slurmwrap must not hold the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow, wait_until

from slurmwrap.package_files import shipped
from slurmwrap.store import prerun_registry

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
        ["sh", str(WRAPPER)], env={"PATH": path, **environ}, capture_output=True, text=True, timeout=allow(30)
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


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that does what its test says."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n. {tmp_path}/does\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("does", "code", "asked"),
    [
        ("exit 0", 0, ""),
        ("exit 4", 4, ""),  # it let go itself
        ("exit 1", 4, "update\nJobId=81\nStartTime=now\n"),  # as where slurmwrap cannot be imported
        ("exit 70", 4, "update\nJobId=81\nStartTime=now\n"),
        ("kill -KILL $$", 4, "update\nJobId=81\nStartTime=now\n"),
    ],
)
def test_a_python_that_dies_has_let_nobody_go_so_the_wrapper_does(
    scontrol: Path, python: Path, tmp_path: Path, does: str, code: int, asked: str
) -> None:
    (tmp_path / "does").write_text(does)
    found = wrap(scontrol, SLURMWRAP_PYTHON=str(python), SLURMWRAP_TRIAL_DIR=str(tmp_path), SLURMWRAP_REAL_JOB="81")
    assert (found[0], found[2]) == (code, asked)


@pytest.mark.parametrize(
    ("does", "asked"),
    [
        ("touch {up}; while :; do sleep 0.1; done", "update\nJobId=81\nStartTime=now\n"),
        ("trap 'sleep 0.3; echo done >{up}.2; exit 0' TERM; touch {up}; while :; do sleep 0.1; done", ""),
    ],
)
def test_scancel_in_the_first_moments_lets_the_job_go_and_later_is_pythons_to_handle(
    scontrol: Path, python: Path, tmp_path: Path, does: str, asked: str
) -> None:
    up = tmp_path / "up"
    (tmp_path / "does").write_text(does.format(up=up))
    environ = {
        "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
        "SLURMWRAP_PYTHON": str(python),
        "SLURMWRAP_TRIAL_DIR": str(tmp_path),
        "SLURMWRAP_REAL_JOB": "81",
    }
    running = subprocess.Popen(["sh", str(WRAPPER)], env=environ, stderr=subprocess.PIPE)
    wait_until(up.exists, "the start of the program")
    running.terminate()
    running.communicate(timeout=allow(30))
    told = tmp_path / "asked"
    assert (told.read_text() if told.exists() else "") == asked
    assert (tmp_path / "up.2").exists() is (not asked)


def test_standard_input_is_the_jobs(scontrol: Path, python: Path, tmp_path: Path) -> None:
    (tmp_path / "does").write_text(f"cat >{tmp_path}/read")
    environ = {"PATH": os.environ["PATH"], "SLURMWRAP_PYTHON": str(python), "SLURMWRAP_TRIAL_DIR": str(tmp_path)}
    subprocess.run(["sh", str(WRAPPER)], env=environ, input=b"the job's input", timeout=allow(30), check=True)
    assert (tmp_path / "read").read_bytes() == b"the job's input"


def test_jobs_that_attached_are_let_go_too_and_the_door_is_shut(scontrol: Path, tmp_path: Path) -> None:
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    host = tmp_path / "trial"
    (host / "waiting").mkdir(parents=True)
    for job, at in ((90, "now"), (91, "2099-01-01T00:00:00")):
        assert prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=job, release_at=at, trial_dir="/t"))
    (host / "waiting" / ".92").write_text("half written")
    _, _, asked = wrap(scontrol, SLURMWRAP_PYTHON="/bin/false", SLURMWRAP_TRIAL_DIR=str(host), SLURMWRAP_REAL_JOB="81")
    assert asked.splitlines() == [
        "update JobId=81 StartTime=now",
        "update JobId=90 StartTime=now",
        "update JobId=91 StartTime=2099-01-01T00:00:00",
    ]
    assert not prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=93, release_at="now", trial_dir="/t"))
