"""--count-steps on a real Slurm: what the job counts reaches the ledger, by Epilog and in user mode."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab, run_as
from waiting import wait_for

from slurmwrap.retry.ledger import ledger_of
from slurmwrap.store.database import Database

pytestmark = pytest.mark.lab
ALICE = USERS[0]
# Five steps from scratch; a run that finds its checkpoint goes on from there and comes further.
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


def gsub(lab: Lab, *words: str, cwd: Path) -> tuple[str, str]:
    done = lab.run([sys.executable, "-m", "slurmwrap.cli.gsub", *words], ALICE, cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()[-1], done.stderr


def attempts(lab: Lab, job_id: str) -> list[dict[str, Any]]:
    lab.reconcile_once()
    place = tomllib.loads(Path(lab.env["SLURMWRAP_CONFIG"]).read_text(encoding="utf-8"))["site"]["state_dir"]
    with sqlite3.connect(f"file:{place}/site.db?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT * FROM attempts WHERE job_id = ? ORDER BY submit_time", [int(job_id)])
        found = [dict(row) for row in rows if row["diagnosis_category"]]
    connection.close()
    return found


def steps(rows: Sequence[dict[str, Any]]) -> list[int | None]:
    return [json.loads(row["measurement"] or "{}").get("steps") for row in rows]


def test_a_counted_job_that_resumes_after_a_requeue_shows_its_progress(lab: Lab) -> None:
    home = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip())
    work = home / "counted"
    run_as(ALICE, ["mkdir", "-p", work])
    run_as(ALICE, ["tee", work / "work.py"], stdin=WORK)
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200 --requeue\n#GSUB --count-steps\n{sys.executable} work.py\n"
    run_as(ALICE, ["tee", work / "job.sh"], stdin=script)
    job_id, said = gsub(lab, "--prerun=off", "job.sh", cwd=work)
    assert "not counted" not in said
    lab.wait_job(job_id, ("FAILED",))
    first = wait_for(lambda: attempts(lab, job_id), bool, timeout=60, pause=0.5)
    assert steps(first) == [5]
    requeued = lab.run(["scontrol", "requeue", job_id], ALICE)
    assert requeued.returncode == 0, requeued.stderr
    lab.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    wait_for(lambda: lab.states(job_id), lambda seen: seen == ["FAILED"] and restarts(lab, job_id) == 1, timeout=60)
    both = wait_for(lambda: attempts(lab, job_id), lambda rows: len(rows) == 2, timeout=60, pause=0.5)
    assert steps(both) == [5, 9]

    mine = lab.slurmwrap("reconcile", "--user", user=ALICE)
    assert mine.returncode == 0, mine.stderr
    with Database.open(home / ".local/state/slurmwrap/user.db", readonly=True) as database:
        runs = database.attempts(job_id=int(job_id))
        assert [run.measurement.steps if run.measurement else None for run in runs][-1] == 9
        (submission,) = [one for one in database.submissions() if one.job_id == int(job_id)]
    assert Path(submission.step_dir).stat().st_mode & 0o777 == 0o700
    named = [path.name for path in Path(submission.step_dir).iterdir()]
    assert sorted(re.sub(r"\.[^.]+\.\d+$", "", name) for name in named) == [f"{job_id}.0", f"{job_id}.1"]
    place = tomllib.loads(Path(lab.env["SLURMWRAP_CONFIG"]).read_text(encoding="utf-8"))["site"]["state_dir"]
    with Database.open(Path(place) / "site.db", readonly=True) as database:
        older, newer = database.attempts(job_id=int(job_id))
    ledger = ledger_of([older, newer], newer)
    assert (ledger.failures, ledger.entries) == (1, ())  # it came further, so what it failed of before is forgiven


def restarts(lab: Lab, job_id: str) -> int:
    shown = lab.run(["scontrol", "show", "job", job_id]).stdout
    return int((re.findall(r"Restarts=(\d+)", shown) or ["-1"])[0])
