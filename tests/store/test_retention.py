"""What pruning removes from the database and what stays: real files with single rows and with a synthetic site."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_year import fill
from waiting import allow, wait_until

from slurmwrap.config.load_config import Nodes, Retention
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, QueueDelay
from slurmwrap.model.observation import Context, Observation, RejectedEntry
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import STUCK, EarlyFinding, GpuUse
from slurmwrap.model.submission import Submission
from slurmwrap.policy.node_score import compute_node_scores
from slurmwrap.store import retention
from slurmwrap.store.database import Database
from slurmwrap.store.db_maintenance import check

DAY = 86_400.0
NOW = 1_795_000_000.0
KEPT = Retention()
LOG = "/home/ada/slurm-81.out"
SECOND = Citation(source=LOG, line=9, text="Aborted", role="cascade")
ROOT = Citation(source=LOG, line=7, text="RuntimeError: " + "x" * 300, role="root")


def make_run(job_id: int, days_ago: float, **changes: Any) -> JobRun:
    end = int(NOW - days_ago * DAY)
    record = JobRun(
        attempt=RunKey(cluster="ada", job_id=job_id, submit_time=end - 900),
        address=str(job_id),
        name="train",
        user="ada",
        uid=1001,
        account="vision",
        partition="gpu",
        state="FAILED",
        reason="NonZeroExitCode",
        exit_code=1,
        signal=0,
        derived_exit_code=0,
        nodes=("n1",),
        gpus=8,
        cpus=64,
        eligible_time=end - 900,
        start_time=end - 600,
        end_time=end,
        time_limit_s=3600,
        mem_mib_per_node=65_536,
        std_out=LOG,
        std_err=LOG,
        measurement=Measurement(seconds=600.0, mem_peak_mib=900, gpu_util=0.25),
        diagnosis=Diagnosis(
            category="semantic_error",
            domain="U",
            decision="stop",
            confidence=0.93,
            signature="torch.shape",
            evidence=(ROOT, SECOND),
            advice="Make the layer's in_features fit.",
            step=700,
            resumed=True,
            checkpoint_step=500,
        ),
        decision="stop",
        decision_reason="Make the layer's in_features fit.",
        output_ends={LOG: [4000, "ab"]},
        reconciled=True,
    )
    return replace(record, **changes)


def make_completed_run(job_id: int, days_ago: float) -> JobRun:
    found = Diagnosis(category="success", domain="", decision="none", confidence=0.99, signature="slurm.completed")
    return make_run(
        job_id, days_ago, state="COMPLETED", reason="None", exit_code=0, diagnosis=found, decision="none",
        decision_reason="nothing failed", output_ends={},
    )  # fmt: skip


def make_submission(job_id: int, days_ago: float) -> Submission:
    return Submission(
        cluster="ada",
        job_id=job_id,
        uid=1001,
        user="ada",
        at=NOW - days_ago * DAY,
        name="train",
        script_path="/home/ada/train.sbatch",
        script_sha256="5" * 64,
        work_dir="/home/ada",
        gpus=8,
        nodes=1,
        retry=True,
        profile_key="train-8",
        prerun_mode="auto",
        fingerprint="f" * 64,
        inputs=("/data/a",),
        plan={"lines": []},
        changes=({"option": "mem"},),
        forced=("prerun",),
        tune=True,
    )


def make_observation(job_id: int, days_ago: float, nonce: str = "a" * 32) -> Observation:
    facts = {"uid": 1001, "logs": [{"name": LOG, "text": "x" * 5000}]}
    at = NOW - days_ago * DAY
    return Observation(
        nonce=nonce, cluster="ada", job_id=job_id, context=Context.EPILOG, at=at, node="n1", uid=0, facts=facts
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.db"


def prune(path: Path, **how: Any) -> retention.Pruned:
    return retention.prune(path, KEPT, NOW, **how)


def test_an_old_failed_run_keeps_its_root_cause_and_loses_details(path: Path) -> None:
    old, young = make_run(81, 40), make_run(82, 30)
    with Database.open(path) as store:
        store.save_attempt(old)
        store.save_attempt(young)
    assert prune(path).rows == {"attempts (details)": 1}
    assert old.diagnosis is not None
    cut = Citation(source=LOG, line=7, text=ROOT.text[:120], role="root")
    general = CATEGORIES["semantic_error"].advice  # the run's own advice was removed
    slim = replace(
        old,
        std_out="",
        std_err="",
        measurement=None,
        eligible_time=None,
        diagnosis=replace(old.diagnosis, evidence=(cut,), advice=general),
        decision_reason="",
        output_ends={},
    )
    with Database.open(path) as store:
        assert store.attempts() == (slim, young)


def test_an_old_completed_run_keeps_user_nodes_and_times(path: Path) -> None:
    old = make_completed_run(81, 40)
    with Database.open(path) as store:
        store.save_attempt(old)
    prune(path)
    found = Diagnosis(category="success", domain="", decision="none", confidence=1.0, signature="")
    slim = replace(
        old,
        std_out="",
        std_err="",
        measurement=None,
        eligible_time=None,
        reason="",
        diagnosis=found,
        decision_reason="",
    )
    with Database.open(path) as store:
        assert store.attempts() == (slim,)


@pytest.mark.parametrize(("site", "digest"), [(True, 16), (False, 64)], ids=["site", "user"])
def test_an_old_submission_keeps_its_digests(path: Path, site: bool, digest: int) -> None:
    old, young = make_submission(81, 41), make_submission(82, 1)
    with Database.open(path) as store:
        store.save_attempt(make_run(81, 40))
        store.save_submission(old)
        store.save_submission(young)
    prune(path, short_digests=site)
    slim = replace(
        old, script_path="", work_dir="", inputs=(), plan={}, changes=(), profile_key="", tune=False,
        script_sha256="5" * digest, fingerprint="f" * digest,
    )  # fmt: skip
    with Database.open(path) as store:
        assert store.submissions() == (slim, young)


def test_after_a_week_a_completed_run_keeps_its_measurement(path: Path) -> None:
    old, young, failed = make_completed_run(81, 8), make_completed_run(82, 6), make_run(83, 8)
    waited = QueueDelay(attempt=old.attempt, address="81", fair_share_s=5.0, over=True)
    with Database.open(path) as store:
        for record in (replace(old, waited=waited), young, failed):
            store.save_attempt(record)
        for job_id in (81, 82, 83):
            store.save_submission(make_submission(job_id, 8 if job_id != 82 else 6))
    assert prune(path).rows == {"attempts that ended well": 1, "submissions that ended well": 1}
    with Database.open(path) as store:
        assert store.attempts() == (replace(old, std_out="", std_err=""), failed, young)
        # its digests stay
        brief = replace(make_submission(81, 8), script_path="", work_dir="", inputs=(), plan={}, changes=(), tune=False)
        assert store.submissions() == (brief, make_submission(83, 8), make_submission(82, 6))


def test_an_unfinished_job_keeps_everything_however_old(path: Path) -> None:
    running = make_run(81, 0, end_time=None, state="", diagnosis=None, decision="", reconciled=False)
    undone = make_run(83, 500, reconciled=False)
    with Database.open(path) as store:
        store.save_attempt(running)
        store.save_attempt(undone)
        store.save_submission(make_submission(81, 90))
        store.ingest(make_observation(81, 90))
        action = PlannedAction(rule="retry", action=SlurmAction(verb=Verb.RELEASE, target="83"))
        store.intend(undone.attempt, action, "act", NOW - 500 * DAY)
        before = (store.attempts(), store.submissions(), store.observations("ada", 81), store.actions())
    assert prune(path).rows == {}
    with Database.open(path) as store:
        assert (store.attempts(), store.submissions(), store.observations("ada", 81), store.actions()) == before


def test_pruned_observations_are_not_ingested_again(path: Path) -> None:
    pruned = make_observation(81, 0.5)
    with Database.open(path) as store:
        store.save_attempt(make_run(81, 0.6))
        store.save_attempt(make_run(82, 0.1))
        assert store.ingest(pruned)
        assert store.ingest(make_observation(82, 0.1, nonce="b" * 32))
    assert prune(path).rows == {"observations": 1}
    with Database.open(path) as store:
        assert store.observations("ada", 81) == ()
        assert len(store.observations("ada", 82)) == 1
        assert not store.ingest(pruned)  # a copy of the file arrives again
        assert store.observations("ada", 81) == ()


def test_a_finished_retry_keeps_one_row_and_failed_actions_stay(path: Path) -> None:
    old = make_run(81, 40)
    steps = [(Verb.REQUEUEHOLD, "", ""), (Verb.UPDATE_JOB, "StdOut", "/a"), (Verb.RELEASE, "", ""),
             (Verb.UPDATE_JOB, "StartTime", "now+60")]  # fmt: skip
    with Database.open(path) as store:
        store.save_attempt(old)
        for verb, key, value in steps:
            ruled = PlannedAction(rule="retry", action=SlurmAction(verb=verb, target="81", key=key, value=value))
            number = store.intend(old.attempt, ruled, "act", NOW - 40 * DAY)
            store.done(number, NOW - 40 * DAY, "no" if verb is Verb.RELEASE else "")
    assert prune(path).rows["actions (steps)"] == 2
    with Database.open(path) as store:
        assert [(a.verb, a.error) for a in store.actions()] == [("requeuehold", ""), ("release", "no")]


def test_after_the_keep_period_the_whole_run_is_deleted(path: Path) -> None:
    old = make_run(81, 401)
    with Database.open(path) as store:
        store.save_attempt(old)
        store.save_submission(make_submission(81, 402))
        delay = QueueDelay(attempt=old.attempt, address="81", eligible_at=1.0, seen_at=NOW - 401 * DAY, over=True)
        store.save_delay(delay)
        ruled = PlannedAction(rule="retry", action=SlurmAction(verb=Verb.REQUEUEHOLD, target="81"))
        store.done(store.intend(old.attempt, ruled, "act", NOW - 401 * DAY), NOW - 401 * DAY)
        store.save_rejected_entry(RejectedEntry(name="x", reason="r", uid=7), NOW - 50 * DAY)
    prune(path)
    with Database.open(path) as store:
        left = (store.attempts(), store.submissions(), store.delays(), store.actions(), store.count_rejected_entries())
    assert left == ((), (), (), (), ())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_finished_run_without_an_end_is_deleted_too(path: Path) -> None:
    """A run that Slurm forgot, or whose launch failed."""
    with Database.open(path) as store:
        store.save_attempt(make_run(81, 401, end_time=None, state="REQUEUED"))
        store.save_submission(make_submission(81, 402))
    prune(path)  # the submission is kept as long as its run
    prune(path)
    with Database.open(path) as store:
        assert (store.attempts(), store.submissions()) == ((), ())


# On a synthetic site of 70 days


@pytest.fixture(scope="module")
def unpruned_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose rows were not pruned."""
    path = tmp_path_factory.mktemp("site") / "site.db"
    fill(path, days=70, jobs_per_day=25, until=NOW, observed_d=3, pruned=False)
    return path


@pytest.fixture
def site(unpruned_site: Path, path: Path) -> Path:
    shutil.copy(unpruned_site, path)
    return path


def read_rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_pruning_does_not_change_reports_metrics_and_node_scores(site: Path) -> None:
    def summarize() -> tuple[Any, ...]:
        with Database.open(site) as store:
            history = store.node_history(NOW - 28 * DAY)
        totals = read_rows(site, "SELECT * FROM totals ORDER BY 1, 2, 3")
        runs = read_rows(site, "SELECT * FROM runs WHERE excluded <> 1 ORDER BY end_time, job_id")
        return compute_node_scores(history, Nodes(), now=NOW), history, totals, runs

    before = summarize()
    found = prune(site)
    assert found.done and found.rows["attempts (details)"] > 500
    assert summarize() == before


def test_after_pruning_every_row_can_be_read_and_the_database_is_sound(site: Path) -> None:
    prune(site)
    with Database.open(site) as store:
        read = [store.attempts(), store.submissions(), store.preruns(), store.actions(), store.delays()]
    assert all(read)
    assert check(site).faults == ()


def test_pruning_removes_the_planned_rows_and_a_second_pass_nothing(site: Path) -> None:
    planned = retention.plan(site, KEPT, NOW)
    assert planned.rows == prune(site).rows
    assert retention.plan(site, KEPT, NOW) == retention.Pruned()
    assert prune(site).rows == {}


def test_interrupted_pruning_continues_and_gives_the_same_result(site: Path, tmp_path: Path) -> None:
    at_once = tmp_path / "at-once.db"
    shutil.copy(site, at_once)
    prune(at_once)
    times = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(retention, "BATCH", 50)
        while not prune(site, for_s=0.0).done:
            times += 1
    assert times > 20
    for table in ("attempts", "submissions", "preruns", "actions", "delays", "observations", "seen", "gpu_faults"):
        everything = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert read_rows(site, everything) == read_rows(at_once, everything)


def test_other_processes_can_write_during_pruning(site: Path) -> None:
    over = threading.Event()
    written: list[int] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with Database.open(site, busy_s=allow(30)) as store:
                while not over.is_set():
                    store.save_submission(make_submission(900_000 + len(written), 0))
                    written.append(len(written))
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: written or failed, "the other writes")
    prune(site)
    over.set()
    writer.join()
    assert failed == []
    assert read_rows(site, "SELECT count(*) FROM submissions WHERE job_id >= 900000") == [(len(written),)]


def test_a_rewrite_frees_pages_and_shrinks_the_file(site: Path) -> None:
    before = site.stat().st_size
    prune(site)
    retention.rewrite(site, NOW)
    with closing(sqlite3.connect(site)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert site.stat().st_size < 0.6 * before
    assert retention.get_rewrite_time(site) == NOW


def test_vacuum_converts_an_older_file_layout(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("CREATE TABLE gone (x)")
        connection.execute("DROP TABLE gone")
        connection.commit()
    with Database.open(path) as store:
        store.save_attempt(make_run(81, 1))
    assert "older version" in check(path).notes[0]
    retention.vacuum(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (8192,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert check(path).notes == ()
    with Database.open(path) as store:
        assert store.attempts() == (make_run(81, 1),)


@pytest.mark.parametrize(("detail_d", "window_d", "days"), [(35, 28.0, 35), (7, 28.0, 29), (35, 60.0, 61)])
def test_details_are_kept_for_the_node_score_window(detail_d: int, window_d: float, days: float) -> None:
    over = retention.compute_cutoffs(Retention(detail_d=detail_d, keep_d=400), NOW, window_d=window_d)
    brief = NOW - 7 * DAY
    assert over == {"settled": NOW - 6 * 3600, "brief": brief, "detail": NOW - days * DAY, "keep": NOW - 400 * DAY}


def test_what_was_seen_of_a_running_job_is_pruned_with_the_details_of_its_run(tmp_path: Path) -> None:
    ages = {81: 200.0, 82: 1.0}
    with Database.open(tmp_path / "site.db") as database:
        for job_id, days in ages.items():
            record = make_run(job_id, days)
            database.save_attempt(record)
            save_running_records(database, record.attempt, NOW - days * DAY)
        running = replace(make_run(83, 100.0), end_time=None, state="", diagnosis=None, reconciled=False)
        database.save_attempt(running)
        save_running_records(database, running.attempt, NOW - 200 * DAY, ended=False)
    assert retention.prune(tmp_path / "site.db", KEPT, NOW).rows["gpu_use"] == 1
    with Database.open(tmp_path / "site.db") as database:
        kept = {
            table: [job for (job,) in database.connection.execute(f"SELECT job_id FROM {table} ORDER BY job_id")]
            for table in ("gpu_use", "early_findings")
        }
        curves = dict(database.connection.execute("SELECT job_id, points = '[]' FROM loss_curves"))
    assert kept == {"gpu_use": [82, 83], "early_findings": [82]}
    # When a training stopped to improve is kept as long as the run.
    assert curves == {81: True, 82: False, 83: False}


def save_running_records(database: Database, attempt: RunKey, at: float, *, ended: bool = True) -> None:
    database.save_gpu_use(
        GpuUse(
            attempt=attempt, node="n1", gpu=0, began=at, interval_s=60.0, use_pct=(1.0,), mem_mib=(1,), processes=(1,)
        )
    )
    database.save_early_finding(
        EarlyFinding(attempt=attempt, kind=STUCK, at=at, n=1, evidence="", uid=1, address="81", mode="act")
    )
    curve = (attempt.cluster, attempt.job_id, attempt.submit_time, at if ended else None)
    values = "?, ?, ?, ?, 1, 'keras', '[[1, 1, 1, 1, null]]', NULL, NULL, NULL"
    database.connection.execute(f"INSERT INTO loss_curves VALUES ({values})", curve)
