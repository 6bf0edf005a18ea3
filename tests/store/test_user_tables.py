"""store/database.py: the tables that hold what users report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes import job
from test_reconcile_pass import submission

from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.store.database import Database


def test_jobs_without_a_run_are_listed_once_by_their_last_submission(tmp_path: Path) -> None:
    with Database.open(tmp_path / "site.db") as store:
        first = submission(1)
        for number, at in ((4, 10.0), (1, 20.0), (2, 30.0), (4, 40.0), (3, 5.0)):
            store.save_submission(replace(first, job_id=number, at=at))
        store.save_submission(replace(first, job_id=9, at=50.0, cluster="another"))
        store.save_attempt(record_of(job(2), first.cluster))
        store.save_attempt(record_of(job(1), "another"))
        assert store.unseen(first.cluster, since=10.0) == (1, 4)
        assert store.unseen("another", since=0.0) == (9,)
