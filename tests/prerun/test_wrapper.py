"""templates/prerun/wrapper.sh: a node that cannot run slurmwrap must not leave the job held."""

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
    """A fake scontrol that records its arguments."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    return program


def run_wrapper(scontrol: Path, **environ: str) -> tuple[int, str, str]:
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(WRAPPER)], env={"PATH": path, **environ}, capture_output=True, text=True, timeout=allow(30)
    )
    arguments_file = scontrol.parent.parent / "asked"
    return done.returncode, done.stderr, arguments_file.read_text() if arguments_file.exists() else ""


@pytest.mark.parametrize("python", ["", "/no/such/python", "/bin/false"])
def test_without_a_usable_python_the_job_is_released(scontrol: Path, tmp_path: Path, python: str) -> None:
    code, stderr, scontrol_arguments = run_wrapper(
        scontrol, SLURMWRAP_PYTHON=python, SLURMWRAP_TRIAL_DIR=str(tmp_path), SLURMWRAP_REAL_JOB="81_2"
    )
    assert (code, scontrol_arguments) == (4, "update\nJobId=81_2\nStartTime=now\n")
    assert "pre-run not possible here" in stderr


def test_a_job_is_released_no_earlier_than_its_begin_time(scontrol: Path, tmp_path: Path) -> None:
    later = "2030-01-01T00:00:00"
    missing = str(tmp_path / "none")
    _, stderr, scontrol_arguments = run_wrapper(
        scontrol,
        SLURMWRAP_PYTHON=sys.executable,
        SLURMWRAP_TRIAL_DIR=missing,
        SLURMWRAP_REAL_JOB="81",
        SLURMWRAP_RELEASE_AT=later,
    )
    assert scontrol_arguments == f"update\nJobId=81\nStartTime={later}\n"
    assert missing in stderr


def test_without_a_waiting_job_scontrol_is_not_called(scontrol: Path) -> None:
    assert run_wrapper(scontrol) == (4, "slurmwrap: pre-run not possible here: SLURMWRAP_PYTHON is not set\n", "")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fake interpreter that runs the shell commands of the file `does`."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n. {tmp_path}/does\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("commands", "code", "scontrol_arguments"),
    [
        ("exit 0", 0, ""),
        ("exit 4", 4, ""),  # Python released the job
        ("exit 1", 4, "update\nJobId=81\nStartTime=now\n"),  # for example if slurmwrap cannot be imported
        ("exit 70", 4, "update\nJobId=81\nStartTime=now\n"),
        ("kill -KILL $$", 4, "update\nJobId=81\nStartTime=now\n"),
    ],
)
def test_the_wrapper_releases_the_job_if_python_died(
    scontrol: Path, python: Path, tmp_path: Path, commands: str, code: int, scontrol_arguments: str
) -> None:
    (tmp_path / "does").write_text(commands)
    result = run_wrapper(
        scontrol, SLURMWRAP_PYTHON=str(python), SLURMWRAP_TRIAL_DIR=str(tmp_path), SLURMWRAP_REAL_JOB="81"
    )
    assert (result[0], result[2]) == (code, scontrol_arguments)


@pytest.mark.parametrize(
    ("commands", "scontrol_arguments"),
    [
        ("touch {up}; while :; do sleep 0.1; done", "update\nJobId=81\nStartTime=now\n"),
        ("trap 'sleep 0.3; echo done >{up}.2; exit 0' TERM; touch {up}; while :; do sleep 0.1; done", ""),
    ],
)
def test_the_wrapper_handles_an_early_scancel_and_python_handles_a_later_one(
    scontrol: Path, python: Path, tmp_path: Path, commands: str, scontrol_arguments: str
) -> None:
    up = tmp_path / "up"
    (tmp_path / "does").write_text(commands.format(up=up))
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
    arguments_file = tmp_path / "asked"
    assert (arguments_file.read_text() if arguments_file.exists() else "") == scontrol_arguments
    assert (tmp_path / "up.2").exists() is (not scontrol_arguments)


def test_the_program_gets_the_standard_input_of_the_job(scontrol: Path, python: Path, tmp_path: Path) -> None:
    (tmp_path / "does").write_text(f"cat >{tmp_path}/read")
    environ = {"PATH": os.environ["PATH"], "SLURMWRAP_PYTHON": str(python), "SLURMWRAP_TRIAL_DIR": str(tmp_path)}
    subprocess.run(["sh", str(WRAPPER)], env=environ, input=b"the job's input", timeout=allow(30), check=True)
    assert (tmp_path / "read").read_bytes() == b"the job's input"


def test_attached_jobs_are_released_too_and_no_more_jobs_can_attach(scontrol: Path, tmp_path: Path) -> None:
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    host = tmp_path / "trial"
    (host / "waiting").mkdir(parents=True)
    for job, at in ((90, "now"), (91, "2099-01-01T00:00:00")):
        assert prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=job, release_at=at, trial_dir="/t"))
    (host / "waiting" / ".92").write_text("half written")
    _, _, scontrol_arguments = run_wrapper(
        scontrol, SLURMWRAP_PYTHON="/bin/false", SLURMWRAP_TRIAL_DIR=str(host), SLURMWRAP_REAL_JOB="81"
    )
    assert scontrol_arguments.splitlines() == [
        "update JobId=81 StartTime=now",
        "update JobId=90 StartTime=now",
        "update JobId=91 StartTime=2099-01-01T00:00:00",
    ]
    assert not prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=93, release_at="now", trial_dir="/t"))
