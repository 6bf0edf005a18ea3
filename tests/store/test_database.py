"""Database with real SQLite files: every method returns complete records, and every error names the file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.model.decision import BlockedInput, PlannedAction, RetryDecision, SlurmAction, Strike, Verb
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.job_run import ActionRecord, Incident, JobRun, PrerunRecord, QueueDelay, StrikeRecord
from slurmwrap.model.observation import Context, Observation, RejectedEntry
from slurmwrap.model.resource_profile import Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.protocols import Store
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import APPLICATION_ID, VERSION
from slurmwrap.store.record_rows import TABLES

UGLY = "quote ' \" ; newline \n escape \x1b[31m null \x00 not UTF-8 \udcff"

KEY = RunKey(cluster="lab", job_id=81, submit_time=1_000)
DIAGNOSIS = Diagnosis(
    category="gpu_hardware",
    domain="IF",
    decision="retry_elsewhere",
    confidence=0.95,
    signature="xid79",
    evidence=(Citation(source="kernel:n3", line=0, text="NVRM: Xid 79"), Citation(source=UGLY, line=7, text=UGLY)),
    advice="nothing to mend in your job",
    node="n3",
    conclusive=True,
)
ATTEMPT = JobRun(
    attempt=KEY,
    address="77_2",
    restarts=1,
    name=UGLY,
    user="ada",
    uid=1001,
    account="vision",
    partition="gpu",
    state="FAILED",
    reason="NonZeroExitCode",
    exit_code=1,
    signal=0,
    derived_exit_code=3,
    nodes=("n3", "n4"),
    gpus=16,
    cpus=64,
    eligible_time=1_010,
    start_time=1_020,
    end_time=4_620,
    time_limit_s=86_400,
    mem_mib_per_node=64_000,
    mem_mib_per_cpu=1_000,
    std_out="/home/ada/\udcff.out",
    std_err="/home/ada/x.err",
    measurement=Measurement(seconds=3600, steps=10, steps_per_s=0.5, mem_peak_mib=20_000, mem_source="cgroup"),
    diagnosis=DIAGNOSIS,
    decision="retry_elsewhere",
    decision_reason="Xid 79 on n3",
    planned=(PlannedAction(rule="drain", action=SlurmAction(verb=Verb.DRAIN, target="n3", value=UGLY)),),
    retry_at=4_700.5,
    incident="i1",
    resize_refused=True,
    saved_after_s=1200.5,
    gpu_s=42.5,
    passed=3,
    longest_s=86_400,
    waited=QueueDelay(attempt=KEY, address="77_2", gpus=16, eligible_at=1_010.0, fragmentation_s=9.5, over=True),
    reconciled=True,
)
SUBMISSION = Submission(
    cluster="lab",
    job_id=81,
    uid=1001,
    user="ada",
    at=999.5,
    name=UGLY,
    script_path="/home/ada/train.sbatch",
    script_sha256="ab" * 32,
    work_dir="/home/ada",
    gpus=16,
    nodes=2,
    retry=True,
    profile_key="train",
    prerun_mode="auto",
    prerun_job_id=82,
    fingerprint="f1",
    inputs=("/data/a", "/data/\udcfe"),
    output_appends=True,
    plan={"lines": [{"option": "mem", "value": "20G", "reason": "ä"}]},
    changes=({"option": "mem", "old": None, "new": "20G"},),
)
PRERUN = PrerunRecord(
    cluster="lab",
    job_id=81,
    prerun_job_id=82,
    uid=1001,
    at=1_005.25,
    verdict=Verdict(
        outcome=Outcome.FAIL,
        layer="exit",
        reason="exit 1 after 0 steps",
        seconds=4.5,
        category="semantic_error",
        findings=(Finding(severity=Severity.WARNING, message="no data", file="train.py", line=3, fix="add it"),),
        evidence=(Citation(source="stdout", line=9, text="RuntimeError: shapes"),),
        measurement=Measurement(seconds=4.5, cpus_used=1.5),
        input_path="/data/a",
        input_fault="truncated",
    ),
    fingerprint="f1",
    profile_key="train",
    gpus=16,
    plan={"node_count": 2},
    changes=({"option": "cpus-per-task", "old": "8", "new": "4"},),
    released=True,
)
PROFILE = ResourceProfile(
    key="train",
    cpus_per_gpu=3.5,
    mem_mib_per_gpu=9_000,
    steps_per_s=2.0,
    gpu_type="a100",
    gpus_per_node=8,
    runs=3,
    preruns=1,
    confidence=0.8,
    source="epilog",
    measured_at=5_000.0,
)
OBSERVATION = Observation(
    nonce="a1b2",
    cluster="lab",
    job_id=81,
    context=Context.EPILOG,
    at=4_621.5,
    node="n3",
    uid=0,
    facts={"kernel": [{"text": UGLY, "at": None}], "exit": "1:0"},
)
REQUEUE = PlannedAction(
    rule="retry_elsewhere", action=SlurmAction(verb=Verb.REQUEUEHOLD, target="77_2", reason="Xid 79")
)
DRAIN = PlannedAction(rule="drain", action=SlurmAction(verb=Verb.DRAIN, target="n3", value="slurmwrap: Xid 79"))
STRIKE = Strike(node="n3", cause="gpu_hardware", conclusive=True, text="Xid 79")
BLOCKED = BlockedInput(digest="d1", path="/data/\udcff", uid=1001, reason="truncated", at=4_700.0, job_id=81)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "user.db"


@pytest.fixture
def store(path: Path) -> Iterator[Database]:
    with Database.open(path) as database:
        yield database


def reopen(store: Database) -> Database:
    store.close()
    return Database.open(store.path)


def test_database_implements_the_store_protocol(store: Database) -> None:
    protocol: Store = store
    assert protocol.attempts() == ()


def test_an_observation_is_read_back_unchanged_and_ingested_once(store: Database) -> None:
    assert store.ingest(OBSERVATION)
    assert not store.ingest(replace(OBSERVATION, node="n9", facts={}))
    with reopen(store) as again:
        assert again.observations("lab", 81) == (OBSERVATION,)
        assert again.observations("lab", 82) == ()
        assert again.observations("other", 81) == ()


def test_observations_are_listed_oldest_first(store: Database) -> None:
    later = replace(OBSERVATION, nonce="00", at=9_000.0)
    for one in (later, OBSERVATION):
        store.ingest(one)
    assert store.observations("lab", 81) == (OBSERVATION, later)


def test_a_run_is_read_back_unchanged(store: Database) -> None:
    assert all(getattr(ATTEMPT, f.name) != f.default for f in fields(JobRun)), "the sample leaves a default"
    store.save_attempt(ATTEMPT)
    with reopen(store) as again:
        assert again.attempt(KEY) == ATTEMPT
        assert again.attempt(replace(KEY, submit_time=1)) is None


def test_a_run_with_default_values_is_read_back_unchanged(store: Database) -> None:
    bare = JobRun(attempt=KEY)
    store.save_attempt(bare)
    assert store.attempt(KEY) == bare


def test_saving_a_run_again_replaces_it_and_keeps_its_actions(store: Database) -> None:
    store.save_attempt(ATTEMPT)
    action = store.intend(KEY, REQUEUE, "act", 5_000.0)
    changed = replace(ATTEMPT, state="COMPLETED", diagnosis=None, measurement=None, decision="", reconciled=False)
    store.save_attempt(changed)
    assert store.attempts() == (changed,)
    assert [a.action_id for a in store.actions(KEY)] == [action]


def test_runs_are_selected_by_every_filter(store: Database) -> None:
    old = replace(ATTEMPT, attempt=replace(KEY, submit_time=10), end_time=20, reconciled=True)
    running = JobRun(attempt=replace(KEY, submit_time=5_000), user="bob")
    other = replace(ATTEMPT, attempt=RunKey(cluster="two", job_id=9, submit_time=2_000), reconciled=False)
    for record in (running, other, ATTEMPT, old):
        store.save_attempt(record)
    assert store.attempts() == (old, ATTEMPT, other, running)
    assert store.attempts(cluster="two") == (other,)
    assert store.attempts(job_id=81) == (old, ATTEMPT, running)
    assert store.attempts(user="bob") == (running,)
    assert store.attempts(since=4_620) == (ATTEMPT, other, running)
    assert store.attempts(since=4_621) == (running,)
    assert store.attempts(unreconciled=True) == (other, running)
    assert store.attempts(cluster="lab", user="ada", since=21) == (ATTEMPT,)


def test_runs_are_found_by_the_job_id_that_slurm_prints(store: Database) -> None:
    def run(job_id: int, address: str) -> JobRun:
        return replace(ATTEMPT, attempt=RunKey(cluster="lab", job_id=job_id, submit_time=job_id), address=address)

    tasks = run(78, "77_1"), run(79, "77_2"), run(80, "77_10")
    others = run(81, "770_1"), run(82, "7"), run(77, "177_1")
    for record in (*others, *reversed(tasks)):
        store.save_attempt(record)
    assert store.attempts_of("77") == tasks
    assert store.attempts_of("77_1") == tasks[:1]
    assert store.attempts_of("7") == (others[1],)
    assert store.attempts_of("78") == ()


def test_a_diagnosis_is_stored_with_its_decision_strikes_and_blocked_inputs(store: Database) -> None:
    bare = replace(ATTEMPT, diagnosis=None, decision="", decision_reason="", reconciled=False)
    store.save_attempt(bare)
    decision = RetryDecision(decision="retry_elsewhere", reason=UGLY, strikes=(STRIKE,), blocked=(BLOCKED,))
    judged = replace(bare, diagnosis=DIAGNOSIS, decision="retry_elsewhere", decision_reason=UGLY)
    store.save_judged(judged, decision, 4_800.0)
    with reopen(store) as again:
        assert again.attempt(KEY) == judged
        assert again.strikes(since=0) == (
            StrikeRecord(
                node="n3", cause="gpu_hardware", conclusive=True, text="Xid 79", at=4_800.0, job_id=81, uid=1001
            ),
        )
        assert again.blocked_inputs() == (BLOCKED,)


def test_a_new_diagnosis_replaces_only_the_strikes_of_that_run(store: Database) -> None:
    store.save_attempt(ATTEMPT)
    store.add_strike(replace(STRIKE, node="n9"), 4_700.0, 80, 1002)
    decision = RetryDecision(decision="retry_elsewhere", reason="r", strikes=(STRIKE,))
    for at in (4_800.0, 4_900.0):
        store.save_judged(ATTEMPT, decision, at)
    assert [(s.node, s.at) for s in store.strikes(since=0)] == [("n9", 4_700.0), ("n3", 4_900.0)]
    assert [s.node for s in store.strikes(since=0, node="n9")] == ["n9"]
    assert [s.node for s in store.strikes(since=4_800)] == ["n3"]


def test_a_diagnosis_that_cannot_be_stored_completely_is_not_stored(store: Database) -> None:
    bare = replace(ATTEMPT, diagnosis=None, decision="", decision_reason="")
    store.save_attempt(bare)
    broken = replace(BLOCKED, digest=None)  # type: ignore[arg-type]
    decision = RetryDecision(decision="stop", reason="r", strikes=(STRIKE,), blocked=(BLOCKED, broken))
    with pytest.raises(StoreError, match="NOT NULL constraint failed"):
        store.save_judged(replace(bare, diagnosis=DIAGNOSIS), decision, 1.0)
    assert (store.attempt(KEY), store.strikes(since=0), store.blocked_inputs()) == (bare, (), ())


def test_settling_a_run_changes_no_other_field(store: Database) -> None:
    judged = replace(ATTEMPT, reconciled=False, planned=(), resize_refused=True)
    store.save_attempt(replace(judged, planned=(REQUEUE,), resize_refused=False))
    store.settle(judged)
    assert store.attempt(KEY) == replace(judged, reconciled=True)
    assert store.attempts(unreconciled=True) == ()


def test_an_action_is_intended_once_and_marked_done(store: Database) -> None:
    store.save_attempt(ATTEMPT)
    first = store.intend(KEY, REQUEUE, "act", 5_000.0)
    second = store.intend(KEY, DRAIN, "advise", 5_001.0)
    again = replace(REQUEUE, action=replace(REQUEUE.action, reason="in other words"))
    assert store.intend(KEY, again, "act", 6_000.0) == first
    store.done(first, 5_002.0, error=UGLY)
    assert store.intend(KEY, REQUEUE, "act", 7_000.0) == first
    done = ActionRecord(
        action_id=first,
        attempt=KEY,
        rule="retry_elsewhere",
        mode="act",
        verb="requeuehold",
        target="77_2",
        key="",
        value="",
        reason="Xid 79",
        intended_at=5_000.0,
        done_at=5_002.0,
        error=UGLY,
    )
    waiting = ActionRecord(
        action_id=second,
        attempt=KEY,
        rule="drain",
        mode="advise",
        verb="drain",
        target="n3",
        key="",
        value="slurmwrap: Xid 79",
        reason="",
        intended_at=5_001.0,
    )
    with reopen(store) as again_open:
        assert again_open.actions() == (done, waiting)
        assert again_open.actions(KEY) == (done, waiting)
        assert again_open.actions(unfinished=True) == (waiting,)
        assert again_open.actions(replace(KEY, job_id=1)) == ()


def test_the_same_action_for_another_run_is_a_separate_action(store: Database) -> None:
    other = replace(KEY, submit_time=2_000)
    assert store.intend(KEY, REQUEUE, "act", 1.0) != store.intend(other, REQUEUE, "act", 1.0)


def test_an_action_without_a_run_can_be_intended_again_once_it_is_done(store: Database) -> None:
    first = store.intend(None, DRAIN, "act", 1.0)
    assert store.intend(None, DRAIN, "act", 2.0) == first
    store.done(first, 3.0)
    second = store.intend(None, DRAIN, "act", 4.0)
    assert second != first
    assert [(a.action_id, a.attempt, a.done_at) for a in store.actions()] == [(first, None, 3.0), (second, None, None)]


def test_marking_an_unknown_action_done_raises_an_error(store: Database) -> None:
    with pytest.raises(StoreError, match="there is no action 7"):
        store.done(7, 1.0)


def test_blocked_inputs_apply_to_their_user_or_all_users_until_cleared(store: Database) -> None:
    site = replace(BLOCKED, digest="d2", uid=-1, at=1.0)
    other = replace(BLOCKED, digest="d1", uid=1002, at=2.0)
    for blocked in (BLOCKED, site, other, replace(BLOCKED, reason="again")):
        store.block_input(blocked)
    assert store.blocked_inputs(1001) == (site, replace(BLOCKED, reason="again"))
    assert store.blocked_inputs(1002) == (site, other)
    assert len(store.blocked_inputs()) == 3
    assert store.clear_input("d1")
    assert not store.clear_input("d1")
    assert store.blocked_inputs() == (site,)


def test_submissions_are_read_back_unchanged(store: Database) -> None:
    newer = replace(SUBMISSION, at=2_000.0, user="bob", retry=False, prerun_job_id=None)
    for one in (newer, SUBMISSION, SUBMISSION):
        store.save_submission(one)
    with reopen(store) as again:
        assert again.submissions() == (SUBMISSION, newer)
        assert again.submissions(user="ada") == (SUBMISSION,)
        assert again.submissions(since=1_000) == (newer,)
        assert again.submission("lab", 81) == newer
        assert again.submission("lab", 82) is None


def test_preruns_are_read_back_unchanged(store: Database) -> None:
    alone = PrerunRecord(
        cluster="lab",
        job_id=None,
        prerun_job_id=90,
        uid=1001,
        at=2_000.0,
        verdict=Verdict(outcome=Outcome.PASS, layer="step", reason="3 steps"),
    )
    for one in (alone, PRERUN, PRERUN):
        store.save_prerun(one)
    with reopen(store) as again:
        assert again.preruns() == (PRERUN, alone)
        assert again.preruns(job_id=81) == (PRERUN,)
        assert again.preruns(fingerprint="f1") == (PRERUN,)
        assert again.preruns(since=1_006) == (alone,)


def test_a_submission_and_its_prerun_are_found_by_either_job_id(store: Database) -> None:
    store.save_submission(SUBMISSION)
    store.save_prerun(PRERUN)
    for job_id in (81, 82):
        assert (store.submissions_of(job_id), store.preruns_of(job_id)) == ((SUBMISSION,), (PRERUN,))
    assert (store.submissions_of(83), store.preruns_of(83)) == ((), ())


def test_forgetting_a_profile_deletes_its_measurements(store: Database, path: Path) -> None:
    other = replace(PROFILE, key="other")
    for one in (PROFILE, other):
        store.save_profile(one)
        store.save_measurement(one.key, Measurement(steps=3), 1.0, "epilog")
    assert [store.forget_profile(key) for key in ("train", "train", "none")] == [True, False, False]
    assert store.profiles() == (other,)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT key FROM measurements").fetchall() == [("other",)]


def test_profiles_are_read_back_unchanged(store: Database) -> None:
    unknown = ResourceProfile(key="unknown")
    for one in (unknown, PROFILE, PROFILE):
        store.save_profile(one)
    with reopen(store) as again:
        assert again.profile("train") == PROFILE
        assert again.profile("nothing") is None
        assert again.profiles() == (PROFILE, unknown)


def test_the_same_measurement_is_stored_once(store: Database) -> None:
    for seconds in (1.0, 1.0, 2.0):
        store.save_measurement("train", Measurement(seconds=seconds), 5.0, "prerun")
    store.close()
    connection = sqlite3.connect(store.path)
    rows = connection.execute(
        "SELECT key, at, source, json_extract(measurement, '$.seconds') FROM measurements"
    ).fetchall()
    connection.close()
    assert sorted(rows) == [("train", 5.0, "prerun", 1.0), ("train", 5.0, "prerun", 2.0)]


def test_rejected_entries_are_counted_per_uid(store: Database) -> None:
    for name in ("a.obs", "b.obs"):
        store.save_rejected_entry(RejectedEntry(name=name, reason=UGLY, uid=1003), 5.0)
    store.save_rejected_entry(RejectedEntry(name="c.obs", reason="bad JSON"), 6.0)
    assert [(row["uid"], row["count"], row["last_name"]) for row in store.count_rejected_entries()] == [
        (1003, 2, "b.obs"),
        (-1, 1, "c.obs"),
    ]


def test_the_more_column_supplies_fields_of_a_later_version(store: Database) -> None:
    store.save_profile(PROFILE)
    store.close()
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE profiles SET more = ?", [json.dumps({"invented_later": 1, "gpu_type": "h100"})])
    connection.commit()
    connection.close()
    with Database.open(store.path) as again:
        assert again.profile("train") == replace(PROFILE, gpu_type="h100")


def test_an_error_in_a_transaction_rolls_everything_back(store: Database) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.save_profile(PROFILE)
        with store.transaction():
            store.save_submission(SUBMISSION)
        1 / 0  # noqa: B018
    assert (store.profiles(), store.submissions()) == ((), ())


# Incidents

INCIDENT = Incident(
    incident_id="i2", category="storage_io", scope=f"path /{UGLY}", began=1_000.5, last=1_100.0, jobs=(81,),
    uids=(1001,), nodes=("n1",), reach=("n1", "n2"),
)  # fmt: skip


def test_an_incident_is_read_back_and_replaced_by_its_id(store: Database) -> None:
    over = replace(INCIDENT, over_at=1_700.0, jobs=(81, 82))
    store.save_incident(INCIDENT)
    assert store.incidents() == store.incidents(open_only=True) == (INCIDENT,)
    store.save_incident(over)
    assert (store.incidents(), store.incidents(open_only=True)) == ((over,), ())
    assert (store.incidents(since=1_700.0), store.incidents(since=1_701.0)) == ((over,), ())


def test_runs_of_an_incident_and_their_inconclusive_strikes_are_marked(store: Database) -> None:
    other = replace(ATTEMPT.attempt, job_id=99)
    strikes = tuple(Strike(node="n3", cause=c, conclusive=c == "hard", text="") for c in ("soft", "hard"))
    for key in (ATTEMPT.attempt, other):
        record = replace(ATTEMPT, attempt=key, incident="")
        store.save_judged(record, RetryDecision(decision="retry", reason="", strikes=strikes), 5.0)
    store.save_incident(INCIDENT, [ATTEMPT.attempt])
    assert {(s.job_id, s.cause): s.incident for s in store.strikes(since=0)} == {
        (ATTEMPT.attempt.job_id, "soft"): "i2",
        (ATTEMPT.attempt.job_id, "hard"): "",
        (99, "soft"): "",
        (99, "hard"): "",
    }
    assert {a.attempt.job_id: a.incident for a in store.attempts()} == {ATTEMPT.attempt.job_id: "i2", 99: ""}


def test_the_newest_failures_of_some_categories_are_listed_oldest_first(store: Database) -> None:
    ends = {number: replace(ATTEMPT, attempt=replace(ATTEMPT.attempt, job_id=number), end_time=number) for number in
            (10, 20, 30, 40)}  # fmt: skip
    for record in ends.values():
        store.save_attempt(record)
    store.save_attempt(replace(ends[40], attempt=replace(ATTEMPT.attempt, job_id=50), diagnosis=None))
    wanted = {DIAGNOSIS.category}
    assert store.failures(wanted, since=15, limit=9) == (ends[20], ends[30], ends[40])
    assert store.failures(wanted, since=15, limit=2) == (ends[30], ends[40])
    assert store.failures({"cpu_oom"}, since=0, limit=9) == ()


# The database file


def test_a_new_database_is_one_private_file_with_its_version(path: Path) -> None:
    old = os.umask(0)
    try:
        Database.open(path).close()
    finally:
        os.umask(old)
    assert [p.name for p in path.parent.iterdir()] == ["user.db"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


def test_reopening_keeps_the_stored_records(store: Database) -> None:
    store.save_profile(PROFILE)
    with reopen(store) as again:
        assert again.profiles() == (PROFILE,)


def test_tables_have_exactly_the_columns_of_their_records(store: Database) -> None:
    store.close()
    connection = sqlite3.connect(store.path)
    columns = {t.name: [row[1] for row in connection.execute(f"PRAGMA table_info({t.name})")] for t in TABLES}
    connection.close()
    for table in TABLES:
        extra = {"strikes": {"strike_id", "cluster", "submit_time"}}.get(table.name, set())
        extra = extra | ({"slim"} if table.name in ("attempts", "submissions", "preruns") else set())
        assert set(columns[table.name]) == {*table.columns, "more", *extra}, table.name


def test_a_newer_database_is_refused_and_unchanged(store: Database) -> None:
    store.close()
    connection = sqlite3.connect(store.path)
    connection.execute(f"PRAGMA user_version = {VERSION + 7}")
    connection.commit()
    connection.close()
    before = store.path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(StoreError, match=f"newer slurmwrap .schema {VERSION + 7}; this one knows {VERSION}") as e:
            Database.open(store.path, readonly=readonly)
        assert "upgrade slurmwrap" in e.value.hint
    assert store.path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    foreign = tmp_path / "places.sqlite"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(StoreError, match="database of another program"):
        Database.open(foreign)
    assert foreign.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, by far " * 100, b"SQLite format 3\x00" + b"\xff" * 4000])
def test_a_damaged_file_is_named_in_the_error_and_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "user.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"database {path} is damaged") as caught:
        Database.open(path)
    assert f"mv {path}" in caught.value.hint
    assert path.read_bytes() == content


def test_damage_inside_a_table_is_reported_when_it_is_read(store: Database) -> None:
    for number in range(200):
        store.save_submission(replace(SUBMISSION, job_id=number))
    store.close()
    pages = bytearray(store.path.read_bytes())
    pages[-8192 * 9 :] = b"\xa5" * (8192 * 9)  # the schema is in earlier pages
    store.path.write_bytes(pages)
    with Database.open(store.path) as again, pytest.raises(StoreError, match=f"database {store.path} is damaged"):
        again.submissions()


def test_an_invalid_stored_value_is_reported_with_its_field(store: Database) -> None:
    store.save_prerun(PRERUN)
    store.close()
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE preruns SET verdict_outcome = 'perhaps'")
    connection.commit()
    connection.close()
    with Database.open(store.path) as again, pytest.raises(StoreError) as caught:
        again.preruns()
    assert str(caught.value) == (
        f"{store.path}, table preruns: PrerunRecord.verdict.outcome: 'perhaps' is not one of pass, fail, inconclusive"
    )


def test_a_locked_database_raises_an_error_after_the_timeout(store: Database) -> None:
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        Database.open(store.path, busy_s=0.05) as second,
        pytest.raises(StoreError, match=f"database {store.path} is locked by another process") as caught,
    ):
        second.save_profile(PROFILE)
    holder.close()
    assert "fuser" in caught.value.hint
    store.save_profile(PROFILE)
    assert store.profiles() == (PROFILE,)


def test_a_reader_sees_the_last_committed_state_during_a_transaction(store: Database) -> None:
    store.save_profile(PROFILE)
    with Database.open(store.path, readonly=True, busy_s=0.05) as reader, store.transaction():
        store.save_profile(replace(PROFILE, key="new"))
        assert reader.profiles() == (PROFILE,)


def test_a_readonly_database_cannot_be_written(store: Database) -> None:
    with (
        Database.open(store.path, readonly=True) as reader,
        pytest.raises(StoreError, match=f"database {store.path} cannot be written"),
    ):
        reader.save_profile(PROFILE)


def test_a_readonly_open_does_not_create_a_database(path: Path) -> None:
    with pytest.raises(StoreError, match=f"no database at {path} yet"):
        Database.open(path, readonly=True)
    assert not path.parent.exists()


def test_a_path_where_no_directory_can_be_created_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "user.db"
    with pytest.raises(StoreError, match=f"database {path} cannot be used: File exists") as caught:
        Database.open(path)
    assert f"ls -ld {path.parent}" in caught.value.hint


def test_two_processes_that_create_the_database_at_once_share_it(path: Path) -> None:
    code = """
import sys
from slurmwrap.store.database import Database
from slurmwrap.model.resource_profile import ResourceProfile
sys.stdin.readline()
with Database.open(sys.argv[1]) as database:
    database.save_profile(ResourceProfile(key=sys.argv[2]))
"""
    keys = [str(number) for number in range(2)]
    makers = [
        subprocess.Popen([sys.executable, "-c", code, path, key], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for key in keys
    ]
    errors = [maker.communicate(b"go\n")[1] for maker in makers]
    assert errors == [b""] * len(makers)
    with Database.open(path) as database:
        assert [profile.key for profile in database.profiles()] == keys
    assert [p.name for p in path.parent.iterdir()] == ["user.db"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "slurmwrap-test", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_raises_an_error_and_keeps_stored_records(small_disk: Path) -> None:
    path = small_disk / "site.db"
    with Database.open(path) as database:
        database.save_profile(PROFILE)
        with pytest.raises(StoreError, match=f"database {path} has no space left") as caught:
            for number in range(1_000):
                database.ingest(replace(OBSERVATION, nonce=str(number), facts={"log": "x" * 100_000}))
        assert f"df {path}" in caught.value.hint
        assert database.profiles() == (PROFILE,)


def test_no_file_remains_when_the_disk_is_too_full_for_a_new_database(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 680 * 1024)
    with pytest.raises(StoreError, match=r"no space left|I/O error"):
        Database.open(small_disk / "site.db")
    assert [p.name for p in small_disk.iterdir()] == ["ballast"]


def test_a_database_on_a_readonly_file_system_can_only_be_read(small_disk: Path) -> None:
    path = small_disk / "site.db"
    with Database.open(path) as database:
        database.save_profile(PROFILE)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Database.open(path, readonly=True) as database:
        assert database.profiles() == (PROFILE,)
    with pytest.raises(StoreError, match=f"database {path} cannot be opened"):
        Database.open(path)


def test_a_database_created_by_root_belongs_to_the_owner_of_its_directory(path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    path.parent.mkdir()
    os.chown(path.parent, 1234, 1235)
    Database.open(path).close()
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)
