"""`why`, `history` and `jobs` on a real Slurm: a pending job, a retried job, an array whose tasks failed alike."""

from __future__ import annotations

import json
import pwd
import shutil
import sys
import time

import pytest
from realslurm import USERS, Lab

from slurmwrap.model.submission import Submission
from slurmwrap.store.database import Database

pytestmark = pytest.mark.lab
ALICE, _ = USERS
# The code is in a file that does not exist: since 3.13 Python shows the source line of `-c`, before it did not.
CRASHES = """python3 -c 'exec(compile("raise ValueError(1)", "model.py", "exec"))'"""
BROKEN_LINK = "echo 'RuntimeError: NCCL communicator was aborted on rank 1.'; exit 1"


def gsub(lab: Lab, *words: str) -> str:
    done = lab.run(
        [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", "-G1", "--mem=100", *words], ALICE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def why(lab: Lab, job: str) -> list[str]:
    done = lab.slurmwrap("why", job, user=ALICE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_why_shows_the_state_of_a_waiting_job_and_the_watch_command(lab: Lab) -> None:
    job = gsub(lab, "--hold", "--wrap", "true")
    lines = why(lab, job)
    lab.run(["scancel", job])
    assert "  Slurm says: PENDING (JobHeldUser)." in lines
    assert lines[-3:] == ["NEXT", "  It has not ended.", f"  slurmwrap watch {job}"]


def test_a_job_id_means_the_local_cluster_if_clusters_share_a_home(lab: Lab) -> None:
    other = lab.submit("--mem=100", "--output=/dev/null", user=ALICE, script="#!/bin/sh\nexit 6\n")
    lab.wait_job(other, ("FAILED",))
    lab.reconcile_once()  # so that the site has sealed a record for alice
    job = lab.submit("--mem=100", "--output=/dev/null", user=ALICE, script="#!/bin/sh\nexit 7\n")
    lab.wait_job(job, ("FAILED",))
    state = lab.dir / "state-of-two"
    theirs = [
        Submission(cluster="elsewhere", job_id=int(one), uid=pwd.getpwnam(ALICE).pw_uid, user=ALICE, at=time.time())
        for one in (job, "999999")
    ]
    with Database.open(state / "slurmwrap" / "user.db") as database:
        for one in theirs:
            database.save_submission(one)
    for path in (state, *state.rglob("*")):
        shutil.chown(path, ALICE)
    here, there = (
        lab.slurmwrap("why", one, "--json", user=ALICE, env={"XDG_STATE_HOME": str(state)}) for one in (job, "999999")
    )
    assert here.stderr == "slurmwrap: no record of this job exists; what follows is Slurm's record\n"
    assert [run["exit_code"] for run in json.loads(here.stdout)["attempts"]] == [7]
    assert there.stderr == f"slurmwrap: job 999999 is of cluster elsewhere; this is {lab.cluster}\n"
    assert json.loads(there.stdout)["submission"]["cluster"] == "elsewhere"


def test_array_tasks_that_failed_alike_are_shown_once_with_the_log_line(lab: Lab) -> None:
    array = gsub(lab, "--array=0-3", "--output=%x-%A_%a.out", "--wrap", CRASHES)
    lab.wait_job(array, ("FAILED",))
    lab.reconcile_once()
    lines = why(lab, array)
    assert f"4 TASKS {array}_[0-3] failed alike" in lines
    at = lines.index("    > ValueError: 1")
    assert lines[at - 1] == '    |   File "model.py", line 1, in <module>'
    history = lab.slurmwrap("history", "--failed", user=ALICE).stdout
    assert any(line.startswith(f"{array}_[0-3] (4)") for line in history.splitlines())


def test_a_retry_is_listed_and_only_root_can_clear_its_ledger(lab: Lab) -> None:
    job = gsub(lab, "--retry", "--wrap", BROKEN_LINK)
    lab.wait_job(job, ("FAILED",))
    lab.reconcile_once()
    assert f"  slurmwrap watch {job}" in why(lab, job)
    row = next(one for one in json.loads(lab.slurmwrap("jobs", "list", "--json").stdout)["rows"] if one["job"] == job)
    assert (row["category"], row["decision"], row["retry"], row["failures"]) == ("nccl_error", "retry", True, 1)
    refused = lab.slurmwrap("jobs", "clear", job, user=ALICE)
    cleared = lab.slurmwrap("jobs", "clear", job, "--note", "link mended")
    lab.run(["scancel", job])
    assert (refused.returncode, cleared.returncode) == (5, 0)
    assert cleared.stdout == f"{job}: 1 run forgiven, no actions taken back\n"
    assert cleared.stderr == f"  its next run is due already: scancel {job} if it shall not start\n"
    ledger = json.loads(lab.slurmwrap("jobs", "show", job, "--json").stdout)["ledger"]
    assert [(one["used"], one["left"], one["not_counted"]) for one in ledger["budgets"]] == [
        (0, 3, ["1 before the ledger was cleared"])
    ]
