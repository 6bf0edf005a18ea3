"""gsub where things are not as they should be: the real job is never lost, sent twice or left waiting unseen."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4 --cpus-per-task=4 --mem=8000 --time=5
"""
# A command of that name may train, so it is waited for.
SLOW_TRIAL = JOB + 'train() { sleep 60; }\n[ -n "$SLURMWRAP_PRERUN" ] && train\necho done\n'


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A fresh directory of alice's."""
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def write(home: Path, name: str, text: str) -> str:
    (home / name).write_text(text)
    return name


def gsub(lab: Lab, home: Path, *words: str, grace_s: int = 60, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {"SLURMWRAP_PRERUN_GRACE_S": str(grace_s), **more.pop("env", {})}
    return lab.run(["gsub", *words], user=ALICE, cwd=home, env=environ, **more)


def ids(lab: Lab, name: str) -> list[int]:
    """All jobs of that name that Slurm knows."""
    found = lab.run(["squeue", "-h", "-t", "all", "-n", name, "-o", "%i"]).stdout.split()
    return sorted(map(int, found))


def numbers(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """(real job, its pre-run) as gsub told them."""
    job, trial = re.search(r"job (\d+) waits for its pre-run on one GPU, job (\d+)", done.stderr).groups()
    assert f"\ngsub: watch it: slurmwrap watch {job}\n" in done.stderr
    return int(job), int(trial)


def output_of_trial(lab: Lab, trial: int) -> str:
    record = lab.run(["scontrol", "show", "job", str(trial)]).stdout
    return Path(re.search(r"StdOut=(\S+)", record)[1]).read_text()


def test_quiet_submits_once_prints_nothing_and_still_has_its_pre_run(lab: Lab, home: Path) -> None:
    name = f"quiet{time.monotonic_ns()}"
    script = write(home, "job.sh", JOB + "echo hi\n")
    done = gsub(lab, home, "-Q", "-J", name, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(ids(lab, name)) == 1
    assert len(ids(lab, f"{name}.prerun")) == 1
    lab.wait_job(ids(lab, name)[0], {"COMPLETED"}, timeout=60)


def test_waiting_for_the_job_runs_its_pre_run_first_and_ends_with_its_exit_code(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + '[ -n "$SLURMWRAP_PRERUN" ] || exit 7\n')
    done = gsub(lab, home, "-W", script, grace_s=600, timeout=150)  # far from the grace's end
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    assert "pre-run: pass" in done.stderr


def test_a_pre_run_gives_up_when_its_job_is_cancelled(lab: Lab, home: Path) -> None:
    job, trial = numbers(gsub(lab, home, write(home, "job.sh", SLOW_TRIAL)))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    lab.run(["scancel", str(job)], user=ALICE)
    lab.wait_job(trial, {"COMPLETED"}, timeout=60)
    assert f"inconclusive: job {job} was cancelled before its pre-run was done" in output_of_trial(lab, trial)
    assert lab.states(job) == ["CANCELLED"]


def test_a_pre_run_gives_up_when_the_grace_is_over_and_its_job_started(lab: Lab, home: Path) -> None:
    job, trial = numbers(gsub(lab, home, write(home, "job.sh", SLOW_TRIAL), grace_s=3))
    lab.wait_job(job, {"COMPLETED"}, timeout=60)
    lab.wait_job(trial, {"COMPLETED"}, timeout=60)
    assert f"inconclusive: job {job} started before its pre-run was done" in output_of_trial(lab, trial)


def test_an_exported_file_reaches_pre_run_and_job_as_by_sbatch_and_the_job_is_let_go(lab: Lab, home: Path) -> None:
    """Slurm 26.05 forgets the file unless --export=ALL is said too: what the job gets is sbatch's to answer for."""
    (home / "env0").write_bytes(b"PATH=/usr/bin:/bin\0FLAVOUR=sweet\0")
    bland = '[ -n "$SLURMWRAP_PRERUN" ] && [ "$FLAVOUR" != sweet ] && exit 3\n'
    script = write(home, "job.sh", JOB + bland + 'echo "flavour $FLAVOUR"\n')
    theirs = lab.submit(f"--export-file={home}/env0", user=ALICE, cwd=home, script=(home / script).read_text())
    job, trial = numbers(gsub(lab, home, f"--export-file={home}/env0", script, grace_s=600))
    for one in (theirs, job):
        lab.wait_job(one, {"COMPLETED"}, timeout=60)
    assert (home / f"slurm-{job}.out").read_text() == (home / f"slurm-{theirs}.out").read_text()
    assert "pass: the script ran to its end" in output_of_trial(lab, trial)
    assert f"update job {job} StartTime now" in output_of_trial(lab, trial)


def test_an_exported_file_and_all_reach_the_job_in_every_release(lab: Lab, home: Path) -> None:
    (home / "env0").write_bytes(b"PATH=/usr/bin:/bin\0FLAVOUR=sweet\0")
    script = write(home, "job.sh", JOB + 'echo "flavour $FLAVOUR"\n')
    job, _ = numbers(gsub(lab, home, f"--export-file={home}/env0", "--export=ALL", script, grace_s=600))
    lab.wait_job(job, {"COMPLETED"}, timeout=60)
    assert (home / f"slurm-{job}.out").read_text() == "flavour sweet\n"


def test_a_home_that_cannot_be_written_costs_the_pre_run_not_the_job(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + "echo hi\n")
    done = gsub(lab, home, script, env={"XDG_STATE_HOME": "/proc/none"}, grace_s=600)
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout), done.stderr
    lab.wait_job(int(done.stdout.split()[-1]), {"COMPLETED"}, timeout=60)
    for mode in ("wait", "only"):
        done = gsub(lab, home, f"--prerun={mode}", script, env={"XDG_STATE_HOME": "/proc/none"})
        assert (done.returncode, done.stdout) == (6, "")
        assert done.stderr.splitlines() == [
            "gsub: error: no pre-run: its files cannot be written: [Errno 2] No such file or directory: '/proc/none'",
            "gsub: make room there, or go without: --prerun=off",
        ]


def test_a_directory_that_is_gone_gets_sbatchs_own_words(lab: Lab, home: Path) -> None:
    script = str(home / write(home, "job.sh", JOB))
    (home / "gone").mkdir(mode=0o777)
    there = f"cd {home}/gone && rmdir . 2>/dev/null; rmdir {home}/gone; exec "
    lab.run(["chmod", "777", str(home)], user=ALICE)
    theirs, ours = (
        lab.run(["bash", "-c", f"mkdir -p {home}/gone; {there}{program} {script}"], user=ALICE)
        for program in ("sbatch", "gsub")
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.returncode != 0


def test_a_verdict_waits_for_a_controller_that_does_not_answer(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + "sleep 4\npython3 -c '1/0'\n")
    job, trial = numbers(gsub(lab, home, script, grace_s=600))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    with _Stopped(lab):
        time.sleep(18)
    lab.wait_job(job, {"CANCELLED"}, timeout=60)
    assert "fail: <string>:1: ZeroDivisionError" in output_of_trial(lab, trial)


def test_ctrl_c_at_any_moment_never_makes_two_jobs(lab: Lab, home: Path) -> None:
    name = f"interrupted{time.monotonic_ns()}"
    script = write(home, "job.sh", JOB + "echo hi\n")
    press = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "p = subprocess.Popen(['gsub', '-J', sys.argv[1], sys.argv[2], sys.argv[3]])\n"
        "time.sleep(float(sys.argv[3])); p.send_signal(signal.SIGINT); p.wait()\n"
    )
    for after in ("0.13", "0.18", "0.25"):
        before = len(ids(lab, name))
        lab.run([sys.executable, "-c", press, name, script, after], user=ALICE, cwd=home)
        assert len(ids(lab, name)) - before <= 1
    lab.run(["scancel", f"--user={ALICE}"])


class _Stopped:
    """slurmctld of this lab does not answer while this holds."""

    def __init__(self, lab: Lab) -> None:
        self.pid = int((lab.dir / "slurmctld" / "slurmctld.pid").read_text())

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGCONT)
