"""kill -9 of the reconciler while it acts on a real Slurm: every job is run again once, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest
from realslurm import USERS, Lab
from test_reconcile_lab import NCCL, consent, runs, site_rows, submit
from waiting import wait_for

pytestmark = pytest.mark.lab
ALICE, _ = USERS
JOBS = 12
BODY = f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; {NCCL}; exit 1'


def killed_pass(lab: Lab, seconds: float) -> bool:
    """One `reconcile --once` that is killed after so long; False when it was done before."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    environ = {**lab.env, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    alive = process.poll() is None
    process.kill()
    process.wait(10)
    return alive


def test_a_reconciler_that_is_killed_over_and_over_runs_every_job_again_exactly_once(lab: Lab) -> None:
    jobs = [submit(lab, BODY, "--requeue", "--open-mode=append") for _ in range(JOBS)]
    for job in jobs:
        consent(lab, job, ALICE)
        lab.wait_job(job, ("FAILED",), timeout=60)
    dice = random.Random(7)
    # From before its first read of Slurm to well into its updates.
    kills = sum(killed_pass(lab, dice.uniform(0.15, 0.6)) for _ in range(14))
    assert kills >= 3
    wait_for(lambda: _passed(lab, jobs), bool, 60, pause=0.5)
    for job in jobs:
        lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        lab.wait_job(job, ("COMPLETED",), timeout=90)
        assert "Restarts=1 " in lab.run(["scontrol", "show", "job", job]).stdout
        actions = site_rows(lab, "SELECT verb, key, error FROM actions WHERE job_id = ?", int(job))
        done = [(row["verb"], row["key"]) for row in actions]
        assert len(done) == len(set(done)) and ("requeuehold", "") in done and ("release", "") in done
        assert {row["error"] for row in actions} <= {"", "it was requeued already"}
        told = json.loads(lab.slurmwrap("why", job, "--json", user=ALICE).stdout)
        assert next(a["diagnosis"]["category"] for a in told["attempts"] if a["diagnosis"]) == "nccl_error"


def _passed(lab: Lab, jobs: list[str]) -> bool:
    lab.reconcile_once()
    return all(any(run["reconciled"] for run in runs(lab, job)) for job in jobs)
