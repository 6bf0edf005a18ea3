"""The user's own runs as the installed program lists them for tab completion."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from waiting import allow

from slurmwrap.gsub import gsub_script
from slurmwrap.gsub.submission_records import leave_submission
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.store.database import Database

SUBMITTED = Submission(cluster="lab", job_id=81, uid=os.getuid(), user="ada", at=100.0, name="train")


def list_recent_runs(home: Path) -> list[str]:
    environ = {"HOME": str(home), "XDG_STATE_HOME": f"{home}/state", "SLURMWRAP_COMPLETE": "jobs"}
    done = subprocess.run(
        [sys.executable, gsub_script.__file__], env=environ, cwd=home, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=allow(60),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_recent_runs_are_listed_newest_first_and_an_array_once(tmp_path: Path) -> None:
    assert list_recent_runs(tmp_path) == []
    state = tmp_path / "state" / "slurmwrap"
    state.mkdir(parents=True)
    with Database.open(state / "user.db") as database:
        database.save_submission(SUBMITTED)
        for task in (0, 1):
            database.save_attempt(
                JobRun(
                    attempt=RunKey(cluster="lab", job_id=90 + task, submit_time=200),
                    address=f"90_{task}",
                    name="sweep\n51|FORGED|x",
                    state="FAILED",
                )
            )
    leave_submission(replace(SUBMITTED, job_id=95, at=300.0, name="late"), os.getuid(), str(state / "spool"), None)
    first, second, third = list_recent_runs(tmp_path)
    assert (first, third) == ("95||late", "81||train")
    assert second.startswith("90|FAILED|sweep")
