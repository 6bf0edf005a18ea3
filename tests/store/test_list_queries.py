"""SQL list queries agree with policy.run_filter.matches on every record of a realistic database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_year import fill

from slurmwrap.cli.run_selection import sum_run_records
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_filter import RunFilter, matches
from slurmwrap.policy.run_from_slurm import submitted_id
from slurmwrap.report.job_report.timeline import has_never_run, list_stopped_jobs
from slurmwrap.report.job_rows import JobRow, make_job_row
from slurmwrap.store import list_queries
from slurmwrap.store.database import Database
from slurmwrap.store.job_summary import summarize_jobs

UNTIL = 1_795_000_000.0
DAY = 86400.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("find") / "site.db"
    fill(database, days=4, jobs_per_day=60, seed=3, until=UNTIL)
    return database


@pytest.fixture(scope="module")
def job_runs(path: Path) -> list[JobRun]:
    """All runs except those of pre-runs and of jobs that a pre-run stopped."""
    with Database.open(path, readonly=True) as database:
        preruns, submissions, runs = database.preruns(), database.submissions(), database.attempts()
    trials = {(p.cluster, p.prerun_job_id) for p in preruns} | {(s.cluster, s.prerun_job_id) for s in submissions}
    stopped = list_stopped_jobs(preruns)
    return [
        run
        for run in runs
        if (run.attempt.cluster, run.attempt.job_id) not in trials and not has_never_run(run, stopped)
    ]


CASES = {
    "all": RunFilter(),
    "a day": RunFilter(since=UNTIL - DAY),
    "until": RunFilter(since=UNTIL - 3 * DAY, until=UNTIL - DAY),
    "failed": RunFilter(failed=True),
    "a user": RunFilter(users=("user001",)),
    "two users' failures": RunFilter(users=("user001", "user002"), failed=True, since=UNTIL - 2 * DAY),
    "a category": RunFilter(categories=("cpu_oom", "gpu_oom")),
    "a name": RunFilter(names=("sweep*", "eval-bert")),
    "an account": RunFilter(accounts=("lab-vision",)),
    "a partition": RunFilter(partitions=("gpu",), since=UNTIL - DAY),
    "a decision": RunFilter(decisions=("stop",)),
    "a state": RunFilter(states=("COMPLETED", "RUNNING")),
    "running": RunFilter(states=("RUNNING",)),
    "a node": RunFilter(nodes=("gpu0001", "gpu0002", "gpu0003")),
    "none": RunFilter(users=("nobody",)),
}


@pytest.mark.parametrize("wanted", CASES.values(), ids=CASES)
def test_sql_queries_agree_with_the_filter_predicate(path: Path, job_runs: list[JobRun], wanted: RunFilter) -> None:
    expected = {run.attempt: run for run in job_runs if matches(wanted, run)}
    with Database.open(path, readonly=True) as database:
        found = list_queries.find_runs(database, wanted, limit=None)
        sums = list_queries.sum_runs(database, wanted)
        jobs = list_queries.find_jobs(database, wanted, limit=None)
    assert len(found) == len(expected)
    assert {run.attempt: run for run in found} == expected
    totals = sum_run_records(found)
    assert (sums.runs, sums.failed) == (totals.runs, totals.failed)
    assert sums.gpu_hours == pytest.approx(totals.gpu_hours)
    assert sums.failed_gpu_hours == pytest.approx(totals.failed_gpu_hours)
    assert set(jobs) == {(key.cluster, key.job_id) for key in expected}


def test_jobs_of_two_clusters_with_one_id_are_told_apart(tmp_path: Path) -> None:
    runs = [
        JobRun(
            attempt=RunKey(cluster=name, job_id=1, submit_time=100), address="1", gpus=1, start_time=200, end_time=end
        )
        for name, end in (("east", 300), ("west", 400), ("north", None))
    ]
    waiting = Submission(cluster="west", job_id=2, uid=1, user="ada", at=500.0)
    with Database.open(tmp_path / "site.db") as database:
        for run in runs:
            database.save_attempt(run)
        database.save_submission(waiting)
        assert list_queries.list_clusters(database) == ("east", "north", "west")
        for clusters in (("west",), ("east", "north"), ("absent",)):
            wanted = RunFilter(clusters=clusters)
            mine = {run.attempt for run in runs if run.attempt.cluster in clusters}
            assert {run.attempt for run in list_queries.find_runs(database, wanted, limit=None)} == mine
            assert {run.attempt for run in runs if matches(wanted, run)} == mine
            assert (
                list_queries.sum_runs(database, wanted).runs == list_queries.count_jobs(database, wanted) == len(mine)
            )
            found = list_queries.find_waiting_submissions(
                database, since=0.0, until=None, users=(), limit=None, clusters=clusters
            )
            assert [one.job_id for one in found] == [2] * ("west" in clusters)


def test_every_filter_case_finds_some_runs_but_not_all(path: Path) -> None:
    with Database.open(path, readonly=True) as database:
        counts = {name: len(list_queries.find_runs(database, wanted, limit=None)) for name, wanted in CASES.items()}
    assert counts["none"] == 0
    assert all(
        0 < count < counts["all"] for name, count in counts.items() if name not in ("all", "none", "a partition")
    )


def test_runs_are_listed_newest_first_by_end_or_start(path: Path) -> None:
    with Database.open(path, readonly=True) as database:
        every = list_queries.find_runs(database, RunFilter(), limit=None)
        some = list_queries.find_runs(database, RunFilter(), limit=10)
        jobs = list_queries.find_jobs(database, RunFilter(), limit=5)
    moments = [run.end_time or run.start_time or run.attempt.submit_time for run in every]
    assert moments == sorted(moments, reverse=True)
    assert any(run.end_time is None for run in every)
    assert some == every[:10]
    assert jobs == tuple(dict.fromkeys((run.attempt.cluster, run.attempt.job_id) for run in every))[:5]


def test_one_job_is_found_by_its_key(path: Path) -> None:
    with Database.open(path, readonly=True) as database:
        run = list_queries.find_runs(database, RunFilter(failed=True), limit=1)[0]
        assert run in list_queries.find_runs_of_id(database, run.attempt.job_id)
        assert list_queries.find_runs_of_id(database, 10**12) == ()
        assert list_queries.list_clusters(database) == (run.attempt.cluster,)
        assert list_queries.find_uids(database, run.user) == (run.uid,)


def test_queries_about_one_job_scan_no_large_table(path: Path) -> None:
    """The tables of a site have millions of rows."""
    with Database.open(path, readonly=True) as database:
        run = list_queries.find_runs(database, RunFilter(failed=True), limit=1)[0]
        queries: list[str] = []
        connection = database.connection
        connection.set_trace_callback(queries.append)
        database.attempts_of(run.address)
        database.attempts_of(f"{run.attempt.job_id}_3")
        list_queries.find_runs_of_id(database, run.attempt.job_id)
        database.submissions_of(run.attempt.job_id)
        database.preruns_of(run.attempt.job_id)
        database.actions(run.attempt)
        database.delays(job_id=run.attempt.job_id)
        database.resets(run.attempt.job_id)
        list_queries.find_runs(database, RunFilter(since=UNTIL - DAY), limit=10)
        list_queries.find_jobs(database, RunFilter(since=UNTIL - DAY, failed=True), limit=10)
        connection.set_trace_callback(None)
        plans = [row[3] for sql in queries for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert len(plans) > 20
    large = ("attempts", "submissions", "preruns", "actions", "delays", "runs", "a", "r", "s", "p")
    assert [plan for plan in plans if plan.split()[0] == "SCAN" and plan.split()[1] in large] == []


@pytest.mark.parametrize("wanted", CASES.values(), ids=CASES)
def test_rows_of_many_jobs_equal_the_rows_of_single_jobs(path: Path, wanted: RunFilter) -> None:
    with Database.open(path, readonly=True) as database:
        keys = list_queries.find_jobs(database, wanted, limit=None)
        rows = [make_job_row(one.runs, one.to_do, one.submission) for one in summarize_jobs(database, keys)]
        alone = [make_row_by_key(database, key) for key in keys]
    assert rows == alone
    assert [(row.cluster, row.job_id) for row in rows] == list(keys)


def make_row_by_key(database: Database, key: tuple[str, int]) -> JobRow:
    runs = database.attempts(cluster=key[0], job_id=key[1])
    last = runs[-1]
    actions = database.actions(last.attempt, unfinished=True)
    return make_job_row(runs, actions, database.submission(key[0], submitted_id(last)))


def test_submissions_without_a_run_are_waiting(path: Path, tmp_path: Path) -> None:
    """A waiting job, a running job, an ended array task, and a job that ended before it was recorded."""
    copy = tmp_path / "site.db"
    copy.write_bytes(path.read_bytes())
    with Database.open(copy) as database:
        assert list_queries.find_waiting_submissions(database, since=0.0, until=None, users=(), limit=None) == ()
        ended = list_queries.find_runs(database, RunFilter(failed=True), limit=1)[0]
        cluster = ended.attempt.cluster
        for job_id, user, at in ((900_001, "ada", UNTIL - 9), (900_002, "bob", UNTIL - DAY), (900_003, "ada", UNTIL)):
            database.save_submission(Submission(cluster=cluster, job_id=job_id, uid=1, user=user, at=at, name="x"))
        running = RunKey(cluster=cluster, job_id=900_003, submit_time=int(UNTIL))
        database.save_attempt(replace(ended, attempt=running, address="900003", end_time=None, state=""))
        task = RunKey(cluster=cluster, job_id=900_010, submit_time=int(UNTIL))
        database.save_submission(Submission(cluster=cluster, job_id=900_004, uid=1, user="ada", at=UNTIL - 5))
        database.save_attempt(replace(ended, attempt=task, address="900004_1"))
        early = RunKey(cluster=cluster, job_id=900_005, submit_time=int(UNTIL))
        database.save_submission(Submission(cluster=cluster, job_id=900_005, uid=1, user="ada", at=UNTIL - 4))
        database.save_attempt(replace(ended, attempt=early, address="900005", end_time=int(UNTIL - 2 * DAY)))
        elsewhere = Submission(cluster="elsewhere", job_id=ended.attempt.job_id, uid=1, user="ada", at=UNTIL - 3)
        database.save_submission(elsewhere)

        def waiting(
            since: float = UNTIL - DAY, until: float | None = None, user: str = "", limit: int = 9
        ) -> list[int]:
            users = (user,) if user else ()
            found = list_queries.find_waiting_submissions(database, since=since, until=until, users=users, limit=limit)
            return [one.job_id for one in found]

        assert waiting() == [elsewhere.job_id, 900_001, 900_002]
        assert waiting(since=UNTIL - 20) == [elsewhere.job_id, 900_001]
        assert waiting(until=UNTIL - 20) == [900_002]
        assert waiting(user="bob") == [900_002]
        assert waiting(limit=1) == [elsewhere.job_id]
