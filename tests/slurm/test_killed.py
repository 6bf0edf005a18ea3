"""kill -9 of the reconciler while it acts on a real Slurm: every job is run again once, and no job is lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupting import interrupting
from realslurm import USERS, Lab, command_environment
from site_records import consent_to_retries, runs, site_rows
from test_reconcile_lab import NCCL, submit
from waiting import SLOWNESS, allow, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(400))]
ALICE, _ = USERS
BODY = f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; {NCCL}; exit 1'
# The number of the change that a pass makes in Slurm, and whether before or after it. The first change of a job is
# requeuehold. A pass continues with the first change that is not done yet.
MOMENTS = ((1, "before"), (1, "after"), (1, "after"), (2, "before"), (2, "after"))


def test_jobs_rerun_exactly_once_if_the_reconciler_is_killed_at_its_changes(lab: Lab, open_dir: Path) -> None:
    jobs = _submit_failing_jobs(lab, 2)
    for number, (nth, when) in enumerate(MOMENTS):
        folder = open_dir / str(number)
        folder.mkdir()
        tools = interrupting(folder, "scontrol", nth, when, signal.SIGKILL, ("requeuehold", "update", "release"))
        assert _start_pass(lab, tools).wait(allow(60)) == -signal.SIGKILL, (nth, when)
    _assert_rerun_exactly_once(lab, jobs)


@pytest.mark.slow
def test_jobs_rerun_exactly_once_if_the_reconciler_is_killed_at_any_moment(lab: Lab) -> None:
    jobs, kills, dice = _submit_failing_jobs(lab, 12), 0, random.Random(7)
    for _ in range(14):
        process = _start_pass(lab)
        time.sleep(dice.uniform(0.15, 0.6) * SLOWNESS)  # from before its first read of Slurm until it makes updates
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 3
    _assert_rerun_exactly_once(lab, jobs)


def _submit_failing_jobs(lab: Lab, number: int) -> list[str]:
    """Submits jobs that fail with a retryable error and whose owner consented to retries; waits until they failed."""
    jobs = [submit(lab, BODY, "--requeue", "--open-mode=append") for _ in range(number)]
    consent_to_retries(lab, jobs, ALICE)
    for job in jobs:
        lab.wait_job(job, ("FAILED",))
    return jobs


def _start_pass(lab: Lab, tools: str = "") -> subprocess.Popen[bytes]:
    """Starts one `reconcile --once`. `tools`: a directory that comes first in PATH."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    environ = {**command_environment(None), **lab.env}
    environ["PATH"] = f"{tools}:{environ['PATH']}" if tools else environ["PATH"]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _assert_rerun_exactly_once(lab: Lab, jobs: list[str]) -> None:
    def reconciled() -> bool:
        lab.reconcile_once()
        return all(any(run["reconciled"] for run in runs(lab, job)) for job in jobs)

    wait_until(reconciled, "the first run of every job is reconciled", pause=0.5)
    for job in jobs:
        lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    for job in jobs:
        lab.wait_job(job, ("COMPLETED",))
        assert "Restarts=1 " in lab.run(["scontrol", "show", "job", job]).stdout
        actions = site_rows(lab, "SELECT verb, key, error FROM actions WHERE job_id = ?", int(job))
        done = [(row["verb"], row["key"]) for row in actions]
        assert len(done) == len(set(done)) and ("requeuehold", "") in done and ("release", "") in done
        assert {row["error"] for row in actions} <= {"", "it was requeued already"}
        timeline = json.loads(lab.slurmwrap("why", job, "--json", user=ALICE).stdout)
        categories = [one["diagnosis"]["category"] for one in timeline["attempts"] if one["diagnosis"]]
        assert categories[0] == "nccl_error"
