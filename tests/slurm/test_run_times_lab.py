"""Run times on a real Slurm: what ended predicts the next job of its user."""

from __future__ import annotations

import json
import pwd
import time
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE, BOB = USERS[:2]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100 --time=5 --output=/dev/null
EPOCHS=${EPOCHS:-2}
python3 train.py --epochs $EPOCHS
"""
PROGRAM = "import sys, time\ntime.sleep(int(sys.argv[2]))\n"


def make_home(lab: Lab, user: str) -> Path:
    path = Path(pwd.getpwnam(user).pw_dir) / f"run_times_{time.monotonic_ns()}"
    lab.run(["mkdir", "-p", str(path)], user=user)
    (path / "job.sh").write_text(SCRIPT)
    (path / "train.py").write_text(PROGRAM)
    return path


def submit(lab: Lab, home: Path, *words: str, user: str = ALICE, **variables: str) -> dict[str, Any]:
    """What `gsub --json` prints."""
    environ = {"XDG_STATE_HOME": str(home / ".state"), **variables}
    done = lab.run(["gsub", "--json", "--prerun=off", *words, "job.sh"], user=user, cwd=home, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def explain(lab: Lab, home: Path, **variables: str) -> str:
    environ = {"XDG_STATE_HOME": str(home / ".state"), **variables}
    return lab.run(["gsub", "--explain", "--dry-run", "job.sh"], user=ALICE, cwd=home, env=environ).stderr


def test_explain_shows_how_long_the_last_runs_took(lab: Lab) -> None:
    """Four runs and an array; the reconciler publishes how long they took."""
    lab.clear()
    home = make_home(lab, ALICE)
    assert "of this job" not in explain(lab, home)
    jobs = [submit(lab, home)["job_id"] for _ in range(4)]
    array = submit(lab, home, "--array=1-2")["job_id"]
    for job in jobs:
        lab.wait_job(job, {"COMPLETED"})
    lab.wait_job(f"{array}_2", {"COMPLETED"})

    def reconcile_and_explain() -> str:
        lab.reconcile_once()
        return explain(lab, home)

    said = wait_for(reconcile_and_explain, lambda said: "by 6 runs of this job" in said, 120)
    assert "by 6 runs of this job\n" in said
    assert "gsub: it usually runs " in said and "(nine of ten within " in said
    other = explain(lab, home, EPOCHS="60")
    assert "by 6 runs of this job with another number of epochs or steps" in other
    sent = submit(lab, home, "--hold")
    assert (sent["run_time"]["source"], sent["run_time"]["runs"]) == ("runs", 6)
    lab.run(["scancel", str(sent["job_id"])])


def test_run_times_of_another_user_are_not_those_of_the_same_script(lab: Lab) -> None:
    lab.clear()
    home = make_home(lab, BOB)
    job = submit(lab, home, user=BOB)["job_id"]
    lab.wait_job(job, {"COMPLETED"})

    def reconcile_and_submit() -> dict[str, Any]:
        lab.reconcile_once()
        return submit(lab, home, "--hold", user=BOB)

    sent = wait_for(reconcile_and_submit, lambda sent: (sent["run_time"] or {}).get("source") == "runs", 120)
    assert sent["run_time"]["source"] == "runs"
    mine = make_home(lab, ALICE)
    theirs = submit(lab, mine, "--hold")
    assert (theirs["run_time"] or {}).get("source") != "runs"
    lab.clear()
