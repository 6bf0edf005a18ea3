"""gsub with options and faults that are rare: the job is never lost, submitted twice or left waiting without notice."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from realslurm import USERS, Lab
from test_gsub import GSUB, home, write
from waiting import allow, wait_until

__all__ = ["home"]
ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(allow(300))]

JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4 --cpus-per-task=4 --mem=8000 --time=5
"""
# A command named `train` may be a training, so the pre-run waits for it.
SLOW_TRIAL = JOB + 'train() { sleep 60; }\n[ -n "$SLURMWRAP_PRERUN" ] && train\necho done\n'


def gsub(lab: Lab, home: Path, *words: str, grace_s: int = 60, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {"SLURMWRAP_PRERUN_GRACE_S": str(grace_s), **more.pop("env", {})}
    return lab.run([*GSUB, *words], user=ALICE, cwd=home, env=environ, **more)


def list_job_ids(lab: Lab, name: str) -> list[int]:
    """The ids of all jobs of this name that Slurm knows."""
    found = lab.run(["squeue", "-h", "-t", "all", "-n", name, "-o", "%i"]).stdout.split()
    return sorted(map(int, found))


def parse_job_ids(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """(job id, id of its pre-run) as gsub printed them."""
    job, trial = re.search(r"job (\d+) waits for its pre-run on one GPU, job (\d+)", done.stderr).groups()
    assert f"\ngsub: watch it: slurmwrap watch {job}\n" in done.stderr
    return int(job), int(trial)


def read_output(lab: Lab, trial: int) -> str:
    record = lab.run(["scontrol", "show", "job", str(trial)]).stdout
    return Path(re.search(r"StdOut=(\S+)", record)[1]).read_text()


def test_quiet_prints_nothing_and_submits_one_job_with_its_pre_run(lab: Lab, home: Path) -> None:
    name = f"quiet{time.monotonic_ns()}"
    script = write(home, "job.sh", JOB + "echo hi\n")
    done = gsub(lab, home, "-Q", "-J", name, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list_job_ids(lab, name)) == 1
    assert len(list_job_ids(lab, f"{name}.prerun")) == 1
    lab.wait_job(list_job_ids(lab, name)[0], {"COMPLETED"}, timeout=60)


def test_wait_runs_the_pre_run_first_and_exits_with_the_jobs_exit_code(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + '[ -n "$SLURMWRAP_PRERUN" ] || exit 7\n')
    done = gsub(lab, home, "-W", script, grace_s=600, timeout=150)  # long before the end of the grace period
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    assert "pre-run: pass" in done.stderr


def test_a_pre_run_ends_when_its_job_is_cancelled_or_starts_after_the_grace_period(lab: Lab, home: Path) -> None:
    started = parse_job_ids(gsub(lab, home, write(home, "one.sh", SLOW_TRIAL + "# one\n"), grace_s=3))
    cancelled = parse_job_ids(gsub(lab, home, write(home, "other.sh", SLOW_TRIAL + "# other\n"), grace_s=600))
    lab.wait_job(cancelled[1], {"RUNNING"}, timeout=60)
    lab.run(["scancel", str(cancelled[0])], user=ALICE)
    for (job, trial), became in ((cancelled, "was cancelled"), (started, "started")):
        lab.wait_job(trial, {"COMPLETED"})
        assert f"inconclusive: job {job} {became} before its pre-run was done" in read_output(lab, trial)
    assert lab.states(cancelled[0]) == ["CANCELLED"]
    lab.wait_job(started[0], {"COMPLETED"})


def test_export_file_applies_to_the_pre_run_and_to_the_job_as_with_sbatch(lab: Lab, home: Path) -> None:
    """Slurm 26.05 ignores the file without --export=ALL; the job then gets the same environment as with sbatch."""
    (home / "env0").write_bytes(b"PATH=/usr/bin:/bin\0FLAVOUR=sweet\0")
    bland = '[ -n "$SLURMWRAP_PRERUN" ] && [ "$FLAVOUR" != sweet ] && exit 3\n'
    script, file = write(home, "job.sh", JOB + bland + 'echo "flavour $FLAVOUR"\n'), f"--export-file={home}/env0"
    theirs = lab.submit(file, user=ALICE, cwd=home, script=(home / script).read_text())
    job, trial = parse_job_ids(gsub(lab, home, file, script, grace_s=600))
    other = write(home, "other.sh", JOB + 'echo "flavour $FLAVOUR"\n')
    with_all, _ = parse_job_ids(gsub(lab, home, file, "--export=ALL", other, grace_s=600))
    for one in (theirs, job, with_all):
        lab.wait_job(one, {"COMPLETED"}, timeout=60)
    assert (home / f"slurm-{job}.out").read_text() == (home / f"slurm-{theirs}.out").read_text()
    assert (home / f"slurm-{with_all}.out").read_text() == "flavour sweet\n"  # in every release
    assert "pass: the script ran to its end" in read_output(lab, trial)
    assert f"update job {job} StartTime now" in read_output(lab, trial)


def test_a_home_that_cannot_be_written_prevents_the_pre_run_but_not_the_job(lab: Lab, home: Path) -> None:
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


def test_a_deleted_working_directory_gives_the_error_of_sbatch(lab: Lab, home: Path) -> None:
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


@pytest.mark.slow
def test_a_verdict_is_applied_when_the_controller_answers_again(lab: Lab, home: Path) -> None:
    """The controller is stopped until a first request timed out and another one was sent."""
    go, state = (
        lab.dir / f"go-{time.monotonic_ns()}",
        home / "state",
    )  # not in the home, of which the pre-run sees a snapshot
    wait = f'until [ -z "$SLURMWRAP_PRERUN" ] || [ -e {go} ]; do sleep 0.1; done\n'
    script = write(home, "job.sh", JOB + wait + "python3 -c '1/0'\n")
    job, trial = parse_job_ids(gsub(lab, home, script, grace_s=600, env={"XDG_STATE_HOME": str(state)}))
    wait_until(lambda: list(state.rglob("progress.json")), "the supervisor is up")
    with _Stopped(lab):
        go.touch()
        seen: set[int] = set()  # one of these processes may ask whether the job still waits for its pre-run
        wait_until(lambda: len(_add_slurm_commands(seen)) > 2, "Slurm is asked again", 120, pause=0.2)
    lab.wait_job(job, {"CANCELLED"}, timeout=60)
    assert "fail: <string>:1: ZeroDivisionError" in read_output(lab, trial)


def _add_slurm_commands(known: set[int]) -> set[int]:
    """Adds the pids of alice's scontrol, squeue and scancel processes to `known`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() in ("scontrol", "squeue", "scancel") and process.username() == ALICE:
                known.add(process.pid)
    return known


class _Stopped:
    """Within this context slurmctld of the lab does not answer."""

    def __init__(self, lab: Lab) -> None:
        self.pid = int((lab.dir / "slurmctld" / "slurmctld.pid").read_text())

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGCONT)
