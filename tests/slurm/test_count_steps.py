"""--count-steps on a real Slurm: the counted steps reach the retry ledger, by Epilog and in user mode."""

from __future__ import annotations

import pwd
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from site_records import site, site_rows
from waiting import wait_for, wait_until

from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.retry_budget import make_ledger
from slurmwrap.store.database import Database

pytestmark = pytest.mark.lab
ALICE = USERS[0]
# Five steps without a checkpoint. A run that finds the checkpoint continues from there and makes nine steps.
WORK = """\
import os, sys, time
import slurmwrap_step
begin = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
if begin:
    print("resuming from checkpoint at step", begin)
for step in range(begin, begin + (9 if begin else 5)):
    slurmwrap_step.step()
    time.sleep(0.01)
open("checkpoint", "w").write("3")
raise AssertionError("no")
"""
OBSERVED = "SELECT context, at, node, facts FROM observations WHERE job_id = ? ORDER BY at"


def reconcile_and_read_runs(lab: Lab, job_id: str) -> list[JobRun]:
    """The judged runs of the job in the site's database, after one more pass of the reconciler."""
    lab.reconcile_once()
    with Database.open(Path(site(lab)["state_dir"], "site.db"), readonly=True) as database:
        return [run for run in database.attempts(job_id=int(job_id)) if run.diagnosis]


def list_steps(runs: Sequence[JobRun]) -> list[int | None]:
    return [run.measurement.steps if run.measurement else None for run in runs]


def test_counted_steps_show_the_progress_of_a_job_that_resumes_after_a_requeue(lab: Lab) -> None:
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    work = home / "counted"
    lab.run(["mkdir", "-p", work], ALICE)
    lab.run(["tee", work / "work.py"], ALICE, stdin=WORK)
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200 --requeue\n#GSUB --count-steps\n{sys.executable} work.py\n"
    lab.run(["tee", work / "job.sh"], ALICE, stdin=script)
    done = lab.run(["gsub", "--prerun=off", "job.sh"], ALICE, work)
    assert done.returncode == 0 and "not counted" not in done.stderr, done.stderr
    job_id = done.stdout.split()[-1]
    lab.wait_job(job_id, ("FAILED",))
    first = wait_for(lambda: reconcile_and_read_runs(lab, job_id), bool, timeout=60, pause=0.5)
    assert list_steps(first) == [5]
    requeued = lab.run(["scontrol", "requeue", job_id], ALICE)
    assert requeued.returncode == 0, requeued.stderr
    wait_until(lambda: lab.states(job_id) == ["PENDING"], "Slurm requeues it", pause=0.3)
    # Slurm revokes the credential of the run that ended, by seconds: a run that starts in the same one is killed.
    requeued_at = time.time()
    wait_until(lambda: time.time() - requeued_at >= 2, "a later second", pause=0.3)
    lab.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    lab.wait_job(job_id, ("FAILED",))
    both = wait_for(
        lambda: reconcile_and_read_runs(lab, job_id),
        lambda runs: list_steps(runs)[1:][-1:] == [9],
        timeout=60,
        pause=0.5,
    )
    # On a busy machine Slurm itself may start the job once more: then there is a run between these two.
    assert (list_steps(both)[0], list_steps(both)[-1]) == (5, 9), (
        both[-1].state,
        both[-1].diagnosis,
        site_rows(lab, OBSERVED, int(job_id)),
    )
    ledger = make_ledger(both, both[-1])
    assert (ledger.failures, ledger.entries) == (
        1,
        (),
    )  # the second run made progress, so the earlier failure does not count

    here = (lab.cluster, int(job_id))  # the user also has jobs on the labs of other tests
    mine = lab.slurmwrap("reconcile", "--user", user=ALICE)
    assert mine.returncode == 0, mine.stderr
    with Database.open(home / ".local/state/slurmwrap/user.db", readonly=True) as database:
        assert list_steps(database.attempts(job_id=int(job_id), cluster=lab.cluster))[-1] == 9
        (submission,) = [one for one in database.submissions() if (one.cluster, one.job_id) == here]
    assert Path(submission.step_dir).stat().st_mode & 0o777 == 0o700
    named = [path.name for path in Path(submission.step_dir).iterdir()]
    assert sorted(re.sub(r"\.[^.]+\.\d+$", "", name) for name in named) == [
        f"{job_id}.0",
        f"{job_id}.{both[-1].restarts}",
    ]
