"""The table `run_times`: what is stored and read, which index answers, migration from version 1, retention."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.config.load_config import Retention
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.profiling.run_time import (
    KEPT_RUNS,
    RunTimeHistory,
    RunTimeQuery,
    RunTimeRecord,
    list_groups,
    make_run_time_record,
)
from slurmwrap.store import db_creation, retention
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import MIGRATIONS
from slurmwrap.store.run_time_rows import make_group_query

JOB = RunTimeQuery(
    user="1001", key="train", variant="v", length=(("epochs", "90"),), gpus=8, account="vision", partition="gpu"
)
DAY = 86_400


def record(job_id: int, run_s: float = 3600.0, *, complete: bool = True, job: RunTimeQuery = JOB) -> RunTimeRecord:
    key = RunKey(cluster="lab", job_id=job_id, submit_time=1000 + job_id)
    sample = RunTimeSample(run_s=run_s, complete=complete, submit_s=1000.0 + job_id)
    return RunTimeRecord(attempt=key, uid=int(job.user), end_time=10_000 + job_id, job=job, sample=sample)


@pytest.fixture
def store(tmp_path: Path) -> Database:
    return Database.open(tmp_path / "site.db")


def test_each_group_returns_its_newest_runs_oldest_first(store: Database) -> None:
    for number in range(KEPT_RUNS + 5):
        assert store.save_run_time(record(number, run_s=100.0 + number, complete=number % 2 == 0))
    newest = [record(n, run_s=100.0 + n, complete=n % 2 == 0).sample for n in range(5, KEPT_RUNS + 5)]
    for group in list_groups(JOB):
        assert [sample for _, sample in store.run_times("lab", group)] == newest
        assert store.run_times("other", group) == ()
    job, _ = store.run_times("lab", ("key", "1001", "train"))[0]
    assert (job.user, job.key, job.variant, job.length) == ("1001", "train", "v", (("epochs", "90"),))


def test_the_history_of_a_store_predicts_as_one_in_memory(store: Database) -> None:
    plain = RunTimeHistory()
    jobs = [JOB, replace(JOB, length=(("epochs", "45"),)), replace(JOB, variant="w"), replace(JOB, key="", user="7")]
    for number in range(40):
        one = record(number, run_s=50.0 * (number + 1), complete=number % 5 > 0, job=jobs[number % 4])
        store.save_run_time(one)
        plain.add(one.job, one.sample)
    history = RunTimeHistory(read=lambda group: store.run_times("lab", group))
    for job in (*jobs, replace(JOB, user="9", account="none", key="")):
        assert history.estimate(job) == plain.estimate(job) is not None


def test_a_job_outside_gsub_has_no_key_and_is_not_found_by_one(store: Database) -> None:
    store.save_run_time(record(1, job=replace(JOB, key="", variant="", length=())))
    assert store.run_times("lab", ("key", "1001", "")) == ()
    assert len(store.run_times("lab", ("user", "1001", 8))) == 1


def test_a_run_is_stored_once(store: Database) -> None:
    assert store.save_run_time(record(81))
    assert not store.save_run_time(record(81))
    assert len(store.run_times("lab", ("user", "1001", 8))) == 1


def test_the_run_of_a_pre_run_is_not_stored(store: Database) -> None:
    store.save_submission(Submission(cluster="lab", job_id=81, uid=1001, user="ada", at=1.0, prerun_job_id=82))
    verdict = Verdict(outcome=Outcome.PASS, layer="step", reason="", seconds=60.0)
    store.save_prerun(PrerunRecord(cluster="lab", job_id=83, prerun_job_id=84, uid=1001, at=2.0, verdict=verdict))
    assert [store.save_run_time(record(number)) for number in (81, 82, 83, 84)] == [True, False, True, False]


@pytest.mark.parametrize("group", list_groups(JOB), ids=lambda group: group[0])
def test_each_question_is_answered_by_one_index_alone(store: Database, group: tuple[str, str, int | str]) -> None:
    sql, values = make_group_query("lab", group)
    plan = " ".join(row[3] for row in store.connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    assert f"USING COVERING INDEX run_times_by_{group[0]}" in plan
    assert "TEMP B-TREE" not in plan


def test_texts_that_are_not_utf_8_are_stored(store: Database) -> None:
    odd = replace(JOB, key="a\udcff", account="b\udcff", length=(("dataset", "\udcff"),))
    assert store.save_run_time(record(1, job=odd))
    ((job, _),) = store.run_times("lab", ("key", "1001", "a\udcff"))
    assert job.length == (("dataset", "\udcff"),)
    assert len(store.run_times("lab", ("account", "b\udcff", 8))) == 1


# --- migration -------------------------------------------------------------------------------------------------------

SUCCESS = Diagnosis(category="success", domain="", decision="none", confidence=1.0, signature="")


def run(
    job_id: int, address: str = "", state: str = "COMPLETED", category: str = "success", **changes: object
) -> JobRun:
    plain = JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=1000),
        address=address or str(job_id),
        user="ada",
        uid=1001,
        account="vision",
        partition="gpu",
        gpus=8,
        state=state,
        start_time=2000,
        end_time=5600 + job_id,
        diagnosis=replace(SUCCESS, category=category),
        reconciled=True,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_migration_finds_the_same_runs_as_the_reconciler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Submission(
        cluster="lab", job_id=81, uid=1001, user="ada", at=990.0, profile_key="train", profile_variant="v"
    )
    runs = [
        run(81),
        run(82, "81_2"),
        run(83, state="TIMEOUT", category="time_limit"),
        run(84, state="CANCELLED", category="cancelled"),
        run(85, state="FAILED", category="gpu_oom"),
        run(86, category="completed_with_error"),
        run(87, diagnosis=replace(SUCCESS, resumed=True)),
        run(88, start_time=None),
        run(89, diagnosis=None),
        run(90),  # of the pre-run
        run(91, uid=1002, user="bob"),  # submitted by another user, so the submission is not its own
        run(92, attempt=RunKey(cluster="lab", job_id=92, submit_time=90_000)),  # a later job with the same id
    ]
    path = tmp_path / "old.db"
    with monkeypatch.context() as old:
        old.setattr(db_creation, "MIGRATIONS", MIGRATIONS[:1])
        old.setattr(db_creation, "VERSION", 1)
        db_creation.create(path, None)
    with closing(sqlite3.connect(path)) as opened:
        assert opened.execute("PRAGMA user_version").fetchone() == (1,)
    with monkeypatch.context() as old:
        old.setattr("slurmwrap.store.database.VERSION", 1)
        with Database.open(path) as store:
            for one in runs:
                store.save_attempt(one)
            for submission in (call, replace(call, job_id=91), replace(call, job_id=92), replace(call, job_id=70)):
                store.save_submission(replace(submission, prerun_job_id=90 if submission.job_id == 70 else None))
    own = {81: call, 82: call}
    expected = [
        record for one in runs if (record := make_run_time_record(one, own.get(one.attempt.job_id)))
        and one.attempt.job_id != 90
    ]  # fmt: skip
    with Database.open(path) as store:
        for group in {group for one in expected for group in list_groups(one.job)}:
            wanted = [one for one in expected if group in list_groups(one.job)]
            found = store.run_times("lab", group)
            assert [sample for _, sample in found] == [one.sample for one in wanted], group
            if group[0] == "key":
                assert [(job.variant, job.length) for job, _ in found] == [("v", ())] * len(found)
    assert len(expected) == 6


# --- retention -------------------------------------------------------------------------------------------------------


def test_only_runs_that_no_group_needs_are_removed_before_keep_d(tmp_path: Path) -> None:
    path, now = tmp_path / "site.db", 1_800_000_000.0
    with Database.open(path) as store:
        for number in range(2 * KEPT_RUNS):
            end = int(now - 60 * DAY) + number
            store.save_run_time(replace(record(number, job=replace(JOB, key="")), end_time=end))
            # Another key each time: the newest of the user are not the newest of the key.
            store.save_run_time(replace(record(1000 + number, job=replace(JOB, key=f"k{number}")), end_time=end))
        # Newer runs, too young to be removed.
        for number in range(KEPT_RUNS):
            store.save_run_time(replace(record(5000 + number, job=replace(JOB, key="")), end_time=int(now - DAY)))
    done = retention.prune(path, Retention(), now)
    assert done.rows == {"run_times (superseded)": 2 * KEPT_RUNS}
    with Database.open(path) as store:
        assert len(store.run_times("lab", ("user", "1001", 8))) == KEPT_RUNS
        assert len(store.run_times("lab", ("key", "1001", "k0"))) == 1
    assert retention.prune(path, Retention(), now).rows == {}
    later = now + Retention().keep_d * DAY
    assert retention.prune(path, Retention(), later).rows == {"run_times": 3 * KEPT_RUNS}
