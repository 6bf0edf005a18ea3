"""gsub reads the user's own state: without a database, from a sound and a damaged one, and from the spool."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.past_failure import PastFailure
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.expected_saving import ScriptOutcome
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord, list_groups
from slurmwrap.store.database import Database
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.user_state_files import UserState

PASS = PrerunRecord(
    cluster="lab",
    job_id=81,
    prerun_job_id=82,
    uid=1001,
    at=100.0,
    verdict=Verdict(outcome=Outcome.PASS, layer="step", reason="3 steps"),
    fingerprint="f1",
)
FAIL = replace(
    PASS,
    prerun_job_id=92,
    at=300.0,
    verdict=Verdict(outcome=Outcome.FAIL, layer="exit", reason="exit 1", category="semantic_error"),
)
EVIDENCE = (Citation(source="stdout", line=3, text="RuntimeError"),)


def make_submission(job_id: int, at: float, **changes: object) -> Submission:
    base = Submission(cluster="lab", job_id=job_id, uid=1001, user="ada", at=at, script_sha256="aa", fingerprint="f1")
    return replace(base, **changes)  # type: ignore[arg-type]


def make_run(job_id: int, end: int, category: str, decision: str) -> JobRun:
    diagnosis = Diagnosis(
        category=category,
        domain="U",
        decision=decision,
        confidence=1,
        signature="s",
        advice=f"mend {job_id}",
        evidence=EVIDENCE,
    )
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=end - 10)
    return JobRun(attempt=attempt, end_time=end, diagnosis=diagnosis)


@pytest.fixture
def state(tmp_path: Path) -> UserState:
    return UserState(tmp_path / "slurmwrap")


def write_to_spool(state: UserState, name: str, record: PrerunRecord) -> None:
    state.spool.mkdir(parents=True, exist_ok=True)
    content = {"version": 1, "nonce": name, "cluster": "lab", "job_id": 1, "context": "prerun", "at": 1, "node": ""}
    (state.spool / name).write_text(json.dumps({**content, "facts": {"prerun": to_json_dict(record)}}))


def read_state(state: UserState) -> tuple[object, ...]:
    return state.profile("train"), state.blocked_inputs(1001), state.passed("f1"), state.failed_before("aa")


def test_without_a_database_reads_are_empty_and_create_no_file(state: UserState) -> None:
    assert read_state(state) == (None, (), None, ())
    assert not state.directory.exists()


def test_records_in_the_database_are_found(state: UserState) -> None:
    profile = ResourceProfile(key="train", cpus_per_gpu=2.5)
    site, mine, other = (BlockedInput(digest=str(n), path="p", uid=n, reason="r", at=1.0) for n in (-1, 1001, 1002))
    with Database.open(state.database) as database:
        database.save_profile(profile)
        for blocked in (site, mine, other):
            database.block_input(blocked)
        database.save_prerun(PASS)
    assert read_state(state) == (profile, (site, mine), PASS, ())
    assert (state.profile("nothing"), state.passed("f2"), state.passed("")) == (None, None, None)


def test_a_passed_pre_run_in_the_spool_is_found(state: UserState) -> None:
    write_to_spool(state, "1.obs", replace(PASS, fingerprint="other"))
    write_to_spool(state, "2.obs", PASS)
    (state.spool / "3.obs").write_text("half a fi")
    (state.spool / "4.obs").write_text('{"context": "submit", "facts": {}}')
    (state.spool / "5.obs").mkdir()
    write_to_spool(state, ".6.obs", FAIL)
    assert state.passed("f1") == PASS


def test_a_newer_failed_pre_run_overrides_a_passed_one(state: UserState) -> None:
    with Database.open(state.database) as database:
        database.save_prerun(PASS)
    write_to_spool(state, "1.obs", FAIL)
    assert state.passed("f1") is None


def test_failures_that_a_retry_cannot_fix_are_listed_newest_first(state: UserState) -> None:
    with Database.open(state.database) as database:
        database.save_submission(make_submission(81, 1.0))
        database.save_attempt(make_run(81, 200, "gpu_oom", "stop"))
        database.save_submission(make_submission(91, 250.0, prerun_job_id=92, fingerprint="f2"))
        database.save_prerun(FAIL)
        database.save_submission(make_submission(95, 3.0))
        database.save_attempt(make_run(95, 400, "nccl_error", "retry"))
        database.save_submission(make_submission(96, 4.0, script_sha256="bb"))
        database.save_attempt(make_run(96, 500, "gpu_oom", "stop"))
    assert state.failed_before("aa") == (
        PastFailure(job_id=92, at=300.0, category="semantic_error", reason="exit 1", fingerprint="f1", prerun=True),
        PastFailure(
            job_id=81,
            at=200.0,
            category="gpu_oom",
            reason="mend 81",
            signature="s",
            fingerprint="f1",
            evidence=EVIDENCE,
        ),
    )
    assert state.failed_before("cc") == ()
    assert state.failed_before("") == ()


def test_a_failure_belongs_to_the_last_earlier_submission_of_a_reused_job_id(state: UserState) -> None:
    with Database.open(state.database) as database:
        database.save_attempt(make_run(81, 500, "gpu_oom", "stop"))
        database.save_submission(make_submission(81, 1_000.0))
        database.save_submission(make_submission(81, 2_000.0, script_sha256="bb"))
    assert (state.failed_before("aa"), state.failed_before("bb")) == ((), ())
    with Database.open(state.database) as database:
        database.save_attempt(make_run(81, 2_300, "gpu_oom", "stop"))
    assert [failure.at for failure in state.failed_before("bb")] == [2_300.0]
    assert state.failed_before("aa") == ()


def test_a_success_clears_earlier_failures(state: UserState) -> None:
    with Database.open(state.database) as database:
        for job_id, end, category in ((81, 200, "gpu_oom"), (82, 300, "success"), (83, 400, "import_error")):
            database.save_submission(make_submission(job_id, float(job_id)))
            database.save_attempt(make_run(job_id, end, category, "none" if category == "success" else "stop"))
    assert [failure.job_id for failure in state.failed_before("aa")] == [83]


def test_a_locked_database_raises_an_error(state: UserState) -> None:
    Database.open(state.database).close()
    holder = sqlite3.connect(state.database, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match=f"database {state.database} is locked"):
        state.profile("train")
    holder.close()


def test_a_damaged_database_raises_an_error(state: UserState) -> None:
    state.directory.mkdir()
    state.database.write_bytes(b"scrambled" * 1000)
    with pytest.raises(StoreError, match=f"database {state.database} is damaged"):
        state.blocked_inputs(1001)


def test_reading_loads_no_sqlite_utils(state: UserState) -> None:
    Database.open(state.database).close()
    code = f"""
import sys
from pathlib import Path
from slurmwrap.store.user_state_files import UserState
from slurmwrap.store.published_files import read_published
before = "sqlite3" in sys.modules
UserState(Path({str(state.directory)!r})).passed("f1")
print(before, [m for m in ("sqlite_utils", "typer", "jinja2", "subprocess") if m in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False []\n"


INCONCLUSIVE = replace(
    PASS,
    at=150.0,
    verdict=Verdict(outcome=Outcome.INCONCLUSIVE, layer="no_training", reason="it only serves", lasting=True),
)


def test_a_lasting_inconclusive_verdict_is_found_until_it_is_forgotten(state: UserState) -> None:
    write_to_spool(state, "1.obs", PASS)
    write_to_spool(state, "2.obs", INCONCLUSIVE)
    assert (state.undecided("f1"), state.passed("f1"), state.undecided("f2")) == (INCONCLUSIVE, None, None)
    state.forget_passed(["f1"], 200.0)
    assert state.undecided("f1") is None


def test_an_inconclusive_verdict_that_is_not_lasting_is_not_found(state: UserState) -> None:
    write_to_spool(state, "1.obs", replace(INCONCLUSIVE, verdict=replace(INCONCLUSIVE.verdict, lasting=False)))
    assert state.undecided("f1") is None


def test_a_lasting_inconclusive_verdict_is_found_in_the_database(state: UserState) -> None:
    with Database.open(state.database) as database:
        database.save_prerun(INCONCLUSIVE)
    assert state.undecided("f1") == INCONCLUSIVE


COMPLETED = make_run(7, 500, "success", "none")


@pytest.mark.parametrize(
    ("run", "known"),
    [
        (COMPLETED, 500.0),
        (replace(COMPLETED, address="7_3"), None),  # nothing is known of the other array tasks
        (make_run(7, 500, "semantic_error", "stop"), None),
        (make_run(7, 200, "success", "none"), None),  # a later pre-run failed
    ],
)
def test_a_completed_run_with_the_same_fingerprint_counts_as_passed(
    state: UserState, run: JobRun, known: float | None
) -> None:
    with Database.open(state.database) as database:
        database.save_submission(make_submission(7, 190.0 if run.end_time == 200 else 490.0))
        database.save_attempt(run)
        database.save_prerun(FAIL)
    assert state.completed("aa", "f1") == known
    assert state.completed("aa", "f2") is None


def test_submissions_without_a_diagnosis_are_listed_newest_first(state: UserState) -> None:
    with Database.open(state.database) as database:
        for job_id, at in ((7, 490.0), (8, 600.0), (9, 700.0)):
            database.save_submission(make_submission(job_id, at))
        database.save_submission(make_submission(10, 800.0, cluster="other"))
        database.save_attempt(COMPLETED)
    assert state.unjudged("aa", "f1", "lab") == ((9, 700.0), (8, 600.0))
    assert state.unjudged("aa", "f1", "other") == ((10, 800.0),)


def test_a_completion_reported_by_slurm_is_kept_until_it_is_forgotten(state: UserState) -> None:
    state.remember_completed("f1", 900.0)
    assert state.completed("aa", "f1") == 900.0
    state.forget_passed(["*"], 901.0)
    assert state.completed("aa", "f1") is None


def test_outcomes_join_submissions_with_their_pre_runs_and_runs_oldest_first(state: UserState) -> None:
    assert state.outcomes() == ()
    slow = replace(PASS, at=60.0, verdict=replace(PASS.verdict, seconds=50.0))
    broken_node = make_run(85, 500, "node_failure", "retry_elsewhere")
    with Database.open(state.database) as database:
        for number, fingerprint in ((81, "v1"), (83, "v2"), (85, "v3"), (87, "v4")):
            prerun = {81: 82, 83: 92}.get(number)
            submission = make_submission(number, float(number), fingerprint=fingerprint, prerun_job_id=prerun)
            database.save_submission(replace(submission, profile_key="train"))
        database.save_submission(make_submission(89, 89.0, fingerprint=""))
        database.save_prerun(slow)
        database.save_prerun(replace(FAIL, job_id=83))
        database.save_attempt(replace(make_run(81, 400, "success", "none"), start_time=100))
        database.save_attempt(replace(broken_node, start_time=100))
        database.save_attempt(replace(make_run(87, 600, "semantic_error", "stop"), start_time=100))
    assert state.outcomes() == (
        ScriptOutcome(key="train", fingerprint="v1", failed=False, prerun_s=50.0),
        ScriptOutcome(key="train", fingerprint="v2", failed=True),
        ScriptOutcome(key="train", fingerprint="v3"),
        ScriptOutcome(key="train", fingerprint="v4", failed=True),
    )


def test_run_times_of_the_own_database_are_read_by_group(state: UserState, monkeypatch: pytest.MonkeyPatch) -> None:
    job = RunTimeQuery(user="1001", key="train", gpus=8, account="vision", partition="gpu")
    assert not state.has_database()
    sample = RunTimeSample(run_s=60.0, submit_s=1.0)
    key = RunKey(cluster="lab", job_id=81, submit_time=1)
    with Database.open(state.database) as database:
        database.save_run_time(RunTimeRecord(attempt=key, uid=1001, end_time=70, job=job, sample=sample))
    assert state.has_database()
    with state.open_run_times("lab") as read:
        assert [[one for _, one in read(group)] for group in list_groups(job)] == [[sample]] * 4
    with state.open_run_times("other") as read:
        assert not any(map(read, list_groups(job)))
    # gsub does not migrate: a database of version 1 has no such table yet.
    monkeypatch.setattr("slurmwrap.store.user_state_files._WITH_RUN_TIMES", 99)
    with state.open_run_times("lab") as read:
        assert not any(map(read, list_groups(job)))


def test_a_failure_that_the_pre_run_did_not_show_is_none_that_it_stops(state: UserState) -> None:
    with Database.open(state.database) as database:
        database.save_submission(replace(make_submission(81, 90.0, prerun_job_id=82), profile_key="train"))
        database.save_prerun(PASS)
        database.save_attempt(make_run(81, 9000, "semantic_error", "stop"))
    assert [one.failed for one in state.outcomes()] == [False]


def test_the_sites_outcomes_keep_users_with_the_same_key_apart(state: UserState) -> None:
    with Database.open(state.database) as database:
        for number, uid in ((81, 1001), (83, 1002)):
            database.save_submission(replace(make_submission(number, float(number)), uid=uid, profile_key="train"))
        assert [one.key for one in database.script_outcomes(10)] == ["1001 train", "1002 train"]
        assert [one.key for one in database.script_outcomes(1)] == ["1002 train"]
