"""The records of jobs that the reconciler of a lab keeps, and the reports of users to it."""

from __future__ import annotations

import json
import pwd
import sqlite3
import sys
import time
import tomllib
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from realslurm import Lab
from waiting import wait_for

from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.store.serialize import to_json_dict

_SEAL = """
import json, sys
from pathlib import Path
from slurmwrap.model.observation import Observation
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.spool_writer import write_sealed
for note in json.load(sys.stdin):
    write_sealed(Path(sys.argv[1]), record_from_json(Observation, note), socket=sys.argv[2])
"""
_QUICK = ("--mem=200", "--gres=gpu:1", "--partition=gpu")


def site(lab: Lab) -> dict[str, str]:
    """The table [site] of the lab's configuration."""
    return tomllib.loads(Path(lab.env["SLURMWRAP_CONFIG"]).read_text(encoding="utf-8"))["site"]


def site_rows(lab: Lab, query: str, *values: object) -> list[dict[str, object]]:
    """Rows of the site's database, opened read-only."""
    connection = sqlite3.connect(f"file:{site(lab)['state_dir']}/site.db?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


def runs(lab: Lab, job_id: int | str) -> list[dict[str, object]]:
    """The runs of a job, the first one first."""
    return site_rows(lab, "SELECT * FROM attempts WHERE job_id = ? ORDER BY submit_time", int(job_id))


def reconcile_until_judged(lab: Lab, *jobs: str, how_many: int = 1) -> list[dict[str, object]]:
    """Reconciles until `how_many` runs of each job are judged. Returns those of the last job."""

    def look() -> list[list[dict[str, object]]]:
        lab.reconcile_once()
        return [[run for run in runs(lab, job) if run["diagnosis_category"]] for job in jobs]

    return wait_for(look, lambda found: min(map(len, found)) >= how_many, timeout=60, pause=0.5)[-1]


def submit_script(lab: Lab, body: str, *options: str, user: str) -> str:
    """Submits a job with one GPU whose output is in the user's home. Returns the job id."""
    output = find_output("%j", user)
    return lab.submit(*_QUICK, f"--output={output}", *options, user=user, script=f"#!/bin/bash\n{body}\n")


def find_output(job: str, user: str) -> Path:
    """The output of a job of `submit_script`. No other number is in its name: the Epilog reads what a job id names."""
    return Path(pwd.getpwnam(user).pw_dir) / f"rec-{job}.out"


def consent_to_retries(lab: Lab, jobs: Sequence[str], user: str) -> None:
    """Writes what gsub --retry reports of each of these jobs."""
    uid = pwd.getpwnam(user).pw_uid
    common = {"uid": uid, "user": user, "at": time.time(), "retry": True, "output_appends": True}
    report_submissions(lab, [Submission(cluster=lab.cluster, job_id=int(job), **common) for job in jobs], user)


def report_submissions(lab: Lab, submissions: Iterable[Submission], user: str) -> None:
    """Writes what gsub reports, sealed by the user. One Python process writes all, because its start is expensive."""
    notes = [
        Observation(
            nonce=uuid.uuid4().hex,
            cluster=one.cluster,
            job_id=one.job_id,
            context=Context.SUBMIT,
            at=one.at,
            facts={"submission": to_json_dict(one)},
        )
        for one in submissions
    ]
    argv = [sys.executable, "-c", _SEAL, site(lab)["spool"], site(lab)["munge_socket"]]
    done = lab.run(argv, user, stdin=json.dumps([to_json_dict(note) for note in notes]))
    assert done.returncode == 0, done.stderr
