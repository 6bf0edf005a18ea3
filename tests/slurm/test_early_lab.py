"""Running jobs on a real Slurm: bad ones are found in short waiting times, and good ones that look bad are not."""

from __future__ import annotations

import json
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, command_environment
from site_records import report_submissions, site, site_rows
from waiting import wait_for, wait_until

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import DIVERGED, IDLE, PARTLY_DEAD, STUCK, GpuUse
from slurmwrap.model.submission import Submission
from slurmwrap.store.database import Database

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE = USERS[0]
# The waiting times are a hundredth of the real ones.
SHORT = {
    "EARLY_EVERY_S": "1", "EARLY_CPU_SHARE": "1", "EARLY_DIVERGED_S": "1", "EARLY_DEAD_S": "2", "EARLY_STUCK_S": "6",
    "EARLY_IDLE_S": "9", "EARLY_STUCK_GAPS": "2", "RETRY_BACKOFF_S": "0", "RULES_LIMIT": "observe",
}  # fmt: skip
# A program counts its steps, one each tenth of a second, and prints each tenth one.
PROGRAM = """\
import os, sys, time
sys.path.insert(0, os.environ["COUNTER"])
import slurmwrap_step
number = 0
def train(seconds, loss="2.5"):
    global number
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        slurmwrap_step.step()
        if number % 10 == 0:
            print(f"step {number}/99999 loss {loss}", flush=True)
        time.sleep(0.1)
"""
HANGS = "train(4); time.sleep(600)"
DIVERGES = "train(4); train(600, 'nan')"
NO_GPU = "train(600)"
LOSES_A_RANK = """
train(4)
if os.environ["SLURM_PROCID"] == "1":
    raise KeyError("image")
time.sleep(600)
"""
# Good ones: a checkpoint, skipped batches, an error that is survived, and long times before the first step.
SAVES = "train(4); print('Saving checkpoint', flush=True); time.sleep(5); train(600)"
SKIPS = "train(4); train(0.4, 'nan'); train(600)"
SURVIVES = """
import traceback
train(4)
try:
    raise OSError("shard 3")
except OSError:
    traceback.print_exc()
train(600)
"""
COMPILES = "time.sleep(12); train(600)"
LICENCE = "print('Waiting for a license', flush=True); time.sleep(12); train(600)"


@pytest.fixture
def quiet_lab(lab: Lab) -> Iterator[Lab]:
    lab.reset()
    yield lab
    lab.reset()


def start_reconciler(lab: Lab, mode: str) -> subprocess.Popen[bytes]:
    """Starts `reconcile --watch`, as the service does."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll=1"]
    names = {**SHORT, "RULES_EARLY": mode}
    environ = {**command_environment(None), **lab.env, **{f"SLURMWRAP_{name}": one for name, one in names.items()}}
    return subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(60)


class Jobs:
    """Jobs of alice, and what is invented about their GPUs."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.home = Path(pwd.getpwnam(ALICE).pw_dir) / "early"
        lab.run(["mkdir", "-p", self.home / "steps"], ALICE)
        self.counter = Path(__file__).parents[2] / "slurmwrap" / "inject"

    def start(self, name: str, program: str, *options: str, tasks: int = 1, retry: bool = False) -> str:
        """Submits a job that runs `program` in each task, and what gsub would report of it."""
        self.lab.run(["tee", self.home / f"{name}.py"], ALICE, stdin=PROGRAM + program)
        script = (
            f"#!/bin/bash\nexport COUNTER={self.counter} SLURMWRAP_STEP_DIR={self.home}/steps SLURMWRAP_STEP_NAMED=1\n"
            f"srun --ntasks={tasks} --kill-on-bad-exit=0 {sys.executable} -u {self.home}/{name}.py\n"
        )
        job = self.lab.submit(
            *("--mem=200", "--time=60", "--requeue", f"--ntasks={tasks}", "--cpus-per-task=1", "--gpus=2"),
            *(f"--job-name={name}", f"--output={self.home}/{name}.out", *options),
            user=ALICE, script=script, cwd=self.home,
        )  # fmt: skip
        report_submissions(
            self.lab,
            [
                Submission(
                    cluster=self.lab.cluster, job_id=int(job), uid=pwd.getpwnam(ALICE).pw_uid, user=ALICE,
                    at=time.time(), retry=retry, step_dir=f"{self.home}/steps", output_appends=True,
                )
            ],
            ALICE,
        )  # fmt: skip
        return job

    def use_gpus(self, uses: dict[str, tuple[float, int]]) -> None:
        """Stores samples of the last minute: job -> use of its two GPUs in percent, and processes on each."""
        shown = self.lab.run(["squeue", "-h", "-t", "RUNNING", "-O", "JobID:20,SubmitTime:30"], None).stdout
        submitted = {line.split()[0]: line.split()[1] for line in shown.splitlines()}
        with Database.open(Path(site(self.lab)["state_dir"]) / "site.db") as store:
            for job, (use, processes) in uses.items():
                if job not in submitted:
                    continue
                at = int(time.mktime(time.strptime(submitted[job], "%Y-%m-%dT%H:%M:%S")))
                for gpu in range(2):
                    store.save_gpu_use(
                        GpuUse(
                            attempt=RunKey(cluster=self.lab.cluster, job_id=int(job), submit_time=at), node="n0",
                            gpu=gpu, began=time.time() - 60, interval_s=1.0, use_pct=(use,) * 60, mem_mib=(),
                            processes=(processes,) * 60,
                        )
                    )  # fmt: skip

    def found(self) -> dict[str, list[str]]:
        """Job -> kinds of its findings."""
        found: dict[str, list[str]] = {}
        for row in site_rows(self.lab, "SELECT job_id, kind FROM early_findings ORDER BY at"):
            found.setdefault(str(row["job_id"]), []).append(str(row["kind"]))
        return found


def test_bad_jobs_are_found_and_good_ones_that_look_bad_are_not(quiet_lab: Lab) -> None:
    lab, jobs = quiet_lab, Jobs(quiet_lab)
    lab.reconcile_once()
    hangs, diverges, dead = (
        jobs.start("hangs", HANGS),
        jobs.start("diverges", DIVERGES),
        jobs.start("dead", LOSES_A_RANK, tasks=2),
    )
    idle = jobs.start("idle", NO_GPU)
    good = [
        jobs.start(name, program, tasks=2 if name == "survives" else 1)
        for name, program in {
            "saves": SAVES, "skips": SKIPS, "survives": SURVIVES, "compiles": COMPILES, "licence": LICENCE,
        }.items()
    ]  # fmt: skip
    expected = {hangs: [STUCK], diverges: [DIVERGED], dead: [PARTLY_DEAD], idle: [IDLE]}
    service = start_reconciler(lab, "advise")
    try:

        def look() -> dict[str, list[str]]:
            unused = {hangs: (0.0, 1), dead: (0.0, 1), idle: (0.0, 0), good[3]: (0.0, 1), good[4]: (0.0, 1)}
            jobs.use_gpus({diverges: (90.0, 1), **dict.fromkeys(good[:3], (90.0, 1)), **unused})
            return jobs.found()

        assert wait_for(look, lambda now: set(expected) <= now.keys(), timeout=100, pause=1) == expected
        comment = lab.run(["squeue", "-h", "-o", "%k", "-j", hangs]).stdout
        assert comment.startswith("slurmwrap: stuck: no step for ") and f"(slurmwrap why {hangs})" in comment
        # The good jobs have gone on by now, each longer than the waiting times.
        assert lab.states(good[0]) == ["RUNNING"]
    finally:
        stop(service)
    why = lab.slurmwrap("why", dead, user=lab.slurm_user)
    assert "partly dead: rank 1 ended with an error" in why.stdout, why.stdout + why.stderr
    assert (
        json.loads(lab.slurmwrap("why", dead, "--json", user=lab.slurm_user).stdout)["findings"][0]["kind"]
        == PARTLY_DEAD
    )


def test_a_job_that_lost_a_rank_is_requeued_by_consent(quiet_lab: Lab) -> None:
    lab, jobs = quiet_lab, Jobs(quiet_lab)
    lab.reconcile_once()
    agrees, refuses = (jobs.start(f"r{retry}", LOSES_A_RANK, tasks=2, retry=retry) for retry in (True, False))
    service = start_reconciler(lab, "act")
    try:
        wait_until(lambda: {agrees, refuses} <= jobs.found().keys(), "both are found", timeout=100)
        restarts = lambda: lab.run(["squeue", "-h", "-O", "RestartCnt:9", "-j", agrees]).stdout.strip()  # noqa: E731
        wait_until(lambda: restarts() == "1" and lab.states(agrees) == ["RUNNING"], "it runs again", timeout=100)
    finally:
        stop(service)
    rows = site_rows(lab, "SELECT job_id, action FROM early_findings ORDER BY at")
    assert {(str(row["job_id"]), row["action"]) for row in rows} >= {(agrees, "requeue"), (refuses, "")}
    assert lab.states(refuses) == ["RUNNING"]
