"""What the database forgets, and that nothing else goes: real files, rows of the real store and of a synthetic site."""

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


def attempt(job_id: int, days_ago: float, **changes: Any) -> JobRun:
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


def well(job_id: int, days_ago: float) -> JobRun:
    found = Diagnosis(category="success", domain="", decision="none", confidence=0.99, signature="slurm.completed")
    return attempt(
        job_id, days_ago, state="COMPLETED", reason="None", exit_code=0, diagnosis=found, decision="none",
        decision_reason="nothing failed", output_ends={},
    )  # fmt: skip


def submission(job_id: int, days_ago: float) -> Submission:
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


def observation(job_id: int, days_ago: float, nonce: str = "a" * 32) -> Observation:
    facts = {"uid": 1001, "logs": [{"name": LOG, "text": "x" * 5000}]}
    at = NOW - days_ago * DAY
    return Observation(
        nonce=nonce, cluster="ada", job_id=job_id, context=Context.EPILOG, at=at, node="n1", uid=0, facts=facts
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.db"


def pruned(path: Path, **how: Any) -> retention.Pruned:
    return retention.prune(path, KEPT, NOW, **how)


def test_an_old_failure_keeps_what_tells_why_and_loses_the_rest(path: Path) -> None:
    old, young = attempt(81, 40), attempt(82, 30)
    with Database.open(path) as store:
        store.save_attempt(old)
        store.save_attempt(young)
    assert pruned(path).rows == {"attempts (details)": 1}
    assert old.diagnosis is not None
    cut = Citation(source=LOG, line=7, text=ROOT.text[:120], role="root")
    general = CATEGORIES["semantic_error"].advice  # its own went
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


def test_an_old_run_that_ended_well_keeps_who_where_and_when(path: Path) -> None:
    old = well(81, 40)
    with Database.open(path) as store:
        store.save_attempt(old)
    pruned(path)
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
def test_an_old_submission_keeps_what_makes_it_the_very_same(path: Path, site: bool, digest: int) -> None:
    old, young = submission(81, 41), submission(82, 1)
    with Database.open(path) as store:
        store.save_attempt(attempt(81, 40))
        store.save_submission(old)
        store.save_submission(young)
    pruned(path, short_digests=site)
    slim = replace(
        old, script_path="", work_dir="", inputs=(), plan={}, changes=(), profile_key="", tune=False,
        script_sha256="5" * digest, fingerprint="f" * digest,
    )  # fmt: skip
    with Database.open(path) as store:
        assert store.submissions() == (slim, young)


def test_after_a_week_a_run_that_ended_well_keeps_what_it_measured(path: Path) -> None:
    old, young, failed = well(81, 8), well(82, 6), attempt(83, 8)
    waited = QueueDelay(attempt=old.attempt, address="81", fair_share_s=5.0, over=True)
    with Database.open(path) as store:
        for record in (replace(old, waited=waited), young, failed):
            store.save_attempt(record)
        for job_id in (81, 82, 83):
            store.save_submission(submission(job_id, 8 if job_id != 82 else 6))
    assert pruned(path).rows == {"attempts that ended well": 1, "submissions that ended well": 1}
    with Database.open(path) as store:
        assert store.attempts() == (replace(old, std_out="", std_err=""), failed, young)
        brief = replace(
            submission(81, 8), script_path="", work_dir="", inputs=(), plan={}, changes=(), tune=False
        )  # the very same it still is
        assert store.submissions() == (brief, submission(83, 8), submission(82, 6))


def test_a_job_that_still_waits_or_runs_keeps_everything_however_old(path: Path) -> None:
    running = attempt(81, 0, end_time=None, state="", diagnosis=None, decision="", reconciled=False)
    undone = attempt(83, 500, reconciled=False)
    with Database.open(path) as store:
        store.save_attempt(running)
        store.save_attempt(undone)
        store.save_submission(submission(81, 90))
        store.ingest(observation(81, 90))
        action = PlannedAction(rule="retry", action=SlurmAction(verb=Verb.RELEASE, target="83"))
        store.intend(undone.attempt, action, "act", NOW - 500 * DAY)
        before = (store.attempts(), store.submissions(), store.observations("ada", 81), store.actions())
    assert pruned(path).rows == {}
    with Database.open(path) as store:
        assert (store.attempts(), store.submissions(), store.observations("ada", 81), store.actions()) == before


def test_observations_go_hours_after_their_job_was_settled_and_are_still_known(path: Path) -> None:
    told = observation(81, 0.5)
    with Database.open(path) as store:
        store.save_attempt(attempt(81, 0.6))
        store.save_attempt(attempt(82, 0.1))
        assert store.ingest(told)
        assert store.ingest(observation(82, 0.1, nonce="b" * 32))
    assert pruned(path).rows == {"observations": 1}
    with Database.open(path) as store:
        assert store.observations("ada", 81) == ()
        assert len(store.observations("ada", 82)) == 1
        assert not store.ingest(told)  # a copy that somebody kept
        assert store.observations("ada", 81) == ()


def test_of_a_done_retry_one_row_stays_and_a_refusal_is_never_forgotten_before_its_run(path: Path) -> None:
    old = attempt(81, 40)
    steps = [(Verb.REQUEUEHOLD, "", ""), (Verb.UPDATE_JOB, "StdOut", "/a"), (Verb.RELEASE, "", ""),
             (Verb.UPDATE_JOB, "StartTime", "now+60")]  # fmt: skip
    with Database.open(path) as store:
        store.save_attempt(old)
        for verb, key, value in steps:
            ruled = PlannedAction(rule="retry", action=SlurmAction(verb=verb, target="81", key=key, value=value))
            number = store.intend(old.attempt, ruled, "act", NOW - 40 * DAY)
            store.done(number, NOW - 40 * DAY, "no" if verb is Verb.RELEASE else "")
    assert pruned(path).rows["actions (steps)"] == 2
    with Database.open(path) as store:
        assert [(a.verb, a.error) for a in store.actions()] == [("requeuehold", ""), ("release", "no")]


def test_when_the_longer_period_is_over_nothing_of_the_run_is_left(path: Path) -> None:
    old = attempt(81, 401)
    with Database.open(path) as store:
        store.save_attempt(old)
        store.save_submission(submission(81, 402))
        delay = QueueDelay(attempt=old.attempt, address="81", eligible_at=1.0, seen_at=NOW - 401 * DAY, over=True)
        store.save_delay(delay)
        ruled = PlannedAction(rule="retry", action=SlurmAction(verb=Verb.REQUEUEHOLD, target="81"))
        store.done(store.intend(old.attempt, ruled, "act", NOW - 401 * DAY), NOW - 401 * DAY)
        store.save_rejected_entry(RejectedEntry(name="x", reason="r", uid=7), NOW - 50 * DAY)
    pruned(path)
    with Database.open(path) as store:
        left = (store.attempts(), store.submissions(), store.delays(), store.actions(), store.count_rejected_entries())
    assert left == ((), (), (), (), ())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


# On a site of 70 days


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing of it was pruned."""
    path = tmp_path_factory.mktemp("site") / "site.db"
    fill(path, days=70, jobs_per_day=25, until=NOW, observed_d=3, pruned=False)
    return path


@pytest.fixture
def site(whole: Path, path: Path) -> Path:
    shutil.copy(whole, path)
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_reports_metrics_and_nodes_are_told_the_same_afterwards(site: Path) -> None:
    def told() -> tuple[Any, ...]:
        with Database.open(site) as store:
            history = store.node_history(NOW - 28 * DAY)
        totals = rows(site, "SELECT * FROM totals ORDER BY 1, 2, 3")
        runs = rows(site, "SELECT * FROM runs WHERE excluded <> 1 ORDER BY end_time, job_id")
        return compute_node_scores(history, Nodes(), now=NOW), history, totals, runs

    before = told()
    found = pruned(site)
    assert found.done and found.rows["attempts (details)"] > 500
    assert told() == before


def test_every_row_can_still_be_read_and_the_file_is_sound(site: Path) -> None:
    pruned(site)
    with Database.open(site) as store:
        read = [store.attempts(), store.submissions(), store.preruns(), store.actions(), store.delays()]
    assert all(read)
    assert check(site).faults == ()


def test_what_is_said_to_go_is_what_goes_and_then_nothing_is_left_to_do(site: Path) -> None:
    said = retention.plan(site, KEPT, NOW)
    assert said.rows == pruned(site).rows
    assert retention.plan(site, KEPT, NOW) == retention.Pruned()
    assert pruned(site).rows == {}


def test_one_that_is_interrupted_goes_on_and_comes_to_the_same(site: Path, tmp_path: Path) -> None:
    at_once = tmp_path / "at-once.db"
    shutil.copy(site, at_once)
    pruned(at_once)
    times = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(retention, "BATCH", 50)
        while not pruned(site, for_s=0.0).done:
            times += 1
    assert times > 20
    for table in ("attempts", "submissions", "preruns", "actions", "delays", "observations", "seen", "gpu_faults"):
        everything = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert rows(site, everything) == rows(at_once, everything)


def test_others_write_while_it_is_at_work(site: Path) -> None:
    over = threading.Event()
    written: list[int] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with Database.open(site, busy_s=allow(30)) as store:
                while not over.is_set():
                    store.save_submission(submission(900_000 + len(written), 0))
                    written.append(len(written))
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: written or failed, "the other writes")
    pruned(site)
    over.set()
    writer.join()
    assert failed == []
    assert rows(site, "SELECT count(*) FROM submissions WHERE job_id >= 900000") == [(len(written),)]


def test_free_pages_go_back_to_the_file_system_and_a_rewrite_packs_the_rest(site: Path) -> None:
    before = site.stat().st_size
    pruned(site)
    retention.rewrite(site, NOW)
    with closing(sqlite3.connect(site)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert site.stat().st_size < 0.6 * before
    assert retention.get_rewrite_time(site) == NOW


def test_a_file_of_the_older_layout_gets_the_newer_one(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("CREATE TABLE gone (x)")
        connection.execute("DROP TABLE gone")
        connection.commit()
    with Database.open(path) as store:
        store.save_attempt(attempt(81, 1))
    assert "older version" in check(path).notes[0]
    retention.vacuum(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (8192,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert check(path).notes == ()
    with Database.open(path) as store:
        assert store.attempts() == (attempt(81, 1),)


@pytest.mark.parametrize(("detail_d", "window_d", "days"), [(35, 28.0, 35), (7, 28.0, 29), (35, 60.0, 61)])
def test_details_stay_for_as_long_as_nodes_are_judged_by_them(detail_d: int, window_d: float, days: float) -> None:
    over = retention.compute_cutoffs(Retention(detail_d=detail_d, keep_d=400), NOW, window_d=window_d)
    brief = NOW - 7 * DAY
    assert over == {"settled": NOW - 6 * 3600, "brief": brief, "detail": NOW - days * DAY, "keep": NOW - 400 * DAY}
