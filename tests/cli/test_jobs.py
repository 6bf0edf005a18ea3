"""slurmwrap jobs: list, show and clear, on real databases."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.config.load_config import Retry
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.retry_budget import make_ledger
from slurmwrap.report.job_report.budget_table import make_budget_report
from slurmwrap.store.database import Database

Run = Callable[..., Result]
NOW = int(time.time())
UID = os.geteuid()


def make_run(job_id: int, number: int = 0, category: str = "nccl_error", **changes: Any) -> JobRun:
    decision = changes.pop("decision", "retry")
    diagnosis = Diagnosis(
        category=category, domain="AE", decision=decision, confidence=0.9, signature="s", advice="Look at rank 3."
    )
    base = JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=NOW - 9000 + 1000 * number),
        address=str(job_id),
        restarts=number,
        name="train",
        user="ada",
        uid=UID,
        account="lab",
        partition="gpu",
        state="FAILED",
        exit_code=1,
        nodes=("n1",),
        gpus=8,
        start_time=NOW - 8900 + 1000 * number,
        end_time=NOW - 8400 + 1000 * number,
        diagnosis=diagnosis,
        decision=decision,
        decision_reason=f"{category}, retry {number + 1} of 3",
    )
    return replace(base, **changes)


@pytest.fixture
def user_db(tmp_path: Path) -> Path:
    """Job 81 failed three times; its third retry is not done yet. Three tasks of array 77 failed in the same way."""
    path = tmp_path / "slurmwrap" / "user.db"
    path.parent.mkdir()
    with Database.open(path) as database, database.transaction():
        database.save_submission(
            Submission(cluster="lab", job_id=81, uid=UID, user="ada", at=NOW - 9100, name="train", gpus=8, retry=True)
        )
        database.save_submission(
            Submission(cluster="lab", job_id=99, uid=UID, user="ada", at=NOW - 50, name="later", gpus=2)
        )
        for number in range(3):
            database.save_attempt(make_run(81, number))
        for task in range(4):
            done = task == 3
            database.save_attempt(
                make_run(
                    100 + task,
                    category="success" if done else "gpu_oom",
                    decision="none" if done else "stop",
                    address=f"77_{task}",
                    name="sweep",
                    state="COMPLETED" if done else "FAILED",
                    gpus=1,
                )
            )
        last = make_run(81, 2).attempt
        for verb in (Verb.REQUEUEHOLD, Verb.RELEASE):
            action = SlurmAction(verb=verb, target="81", reason="nccl_error, retry 3 of 3")
            database.intend(last, PlannedAction(rule="retry", action=action), "act", NOW - 60)
        drain = SlurmAction(verb=Verb.DRAIN, target="n1", reason="Xid 79")
        database.intend(last, PlannedAction(rule="drain", action=drain), "act", NOW - 60)
    return path


def list_rows(slurmwrap: Run, *words: str) -> list[dict[str, Any]]:
    return json.loads(slurmwrap("jobs", "list", "--json", *words).stdout)["rows"]  # type: ignore[no-any-return]


def test_tasks_with_the_same_result_share_a_line_and_waiting_jobs_are_listed(slurmwrap: Run, user_db: Path) -> None:
    head, *lines = slurmwrap("jobs", "list").stdout.splitlines()
    assert head.split() == ["job", "name", "GPUs", "runs", "last", "result", "decision", "to", "do"]
    assert [" ".join(re.sub(r" \d\d-\d\d \d\d:\d\d", "", line).split()) for line in lines] == [
        "99 later 2 not ended",
        "81 train 8 3 NCCL error retry 3 actio…",
        "77_[0-2] (3) sweep 1 out of GPU memory stop",
        "77_3 sweep 1 completed",
    ]


def test_filters_select_jobs_with_a_matching_run(slurmwrap: Run, user_db: Path) -> None:
    def jobs(*words: str) -> list[str]:
        return [row["job"] for row in list_rows(slurmwrap, *words)]

    assert jobs("--failed") == ["81", "77_0", "77_1", "77_2"]
    assert jobs("--category", "gpu_oom") == ["77_0", "77_1", "77_2"]
    assert jobs("--name", "tr*", "--decision", "retry") == ["81"]
    assert jobs("--state", "completed") == ["77_3"]
    assert jobs("--to-do") == ["81"]
    assert jobs("--node", "n[2-4]") == []
    assert jobs("--until", "1h", "--failed", "--node", "n1") == ["81", "77_0", "77_1", "77_2"]
    assert jobs("--limit", "1") == ["99"]
    wrong = slurmwrap("jobs", "list", "--category", "gpu_omo").exception
    assert isinstance(wrong, UsageError) and wrong.hint == "did you mean gpu_oom?"


def test_show_has_the_retry_budget_the_actions_and_the_clear_command(slurmwrap: Run, user_db: Path) -> None:
    lines = slurmwrap("jobs", "show", "81").stdout.splitlines()
    assert lines[0] == "Job 81 train"
    assert [line for line in lines if line.startswith("RUN ")] == [f"RUN {n} FAILED, exit code 1" for n in (1, 2, 3)]
    assert "  to be done: scontrol requeuehold 81" in lines
    assert [line.split()[2:] for line in lines if line.startswith("  NCCL error  ")] == [["3", "3", "3", "0"]]
    assert "  retries       on (--retry)" in lines
    assert lines[-1] == "  cleared by    slurmwrap jobs clear 81"
    plain = json.loads(slurmwrap("jobs", "show", "81", "--json").stdout)
    assert (plain["kind"], plain["schema"], plain["ledger"]["budgets"][0]["used"]) == ("slurmwrap.job", 1, 3)


def test_tasks_with_the_same_end_are_shown_once_unless_all_is_given(slurmwrap: Run, user_db: Path) -> None:
    folded, whole = slurmwrap("jobs", "show", "77").stdout, slurmwrap("jobs", "show", "77", "--all").stdout
    assert [line for line in folded.splitlines() if "TASK" in line or line.startswith("RUN")] == [
        "3 TASKS 77_[0-2] failed alike",
        "TASK 77_3 COMPLETED",
    ]
    assert len([line for line in whole.splitlines() if line.startswith("RUN ")]) == 4
    assert whole == slurmwrap("jobs", "show", "77", "-v").stdout
    assert folded.splitlines()[-1] == "  cleared by    slurmwrap jobs clear 77"


def test_clear_resets_the_retry_budget_and_cancels_unfinished_actions(slurmwrap: Run, user_db: Path) -> None:
    result = slurmwrap("jobs", "clear", "81", "--note", "switch mended")
    assert result.exit_code == 0, result.exception
    assert result.stdout == (
        "81: 3 runs forgiven, 2 actions taken back\n  not done: requeuehold 81\n  not done: release 81\n"
    )
    with Database.open(user_db, readonly=True) as database:
        (reset,) = database.resets(81)
        runs = database.attempts(job_id=81)
        open_ones = [action.verb for action in database.actions(unfinished=True)]
        errors = {action.error for action in database.actions() if action.rule == "retry"}
    assert (reset.note, len(runs), open_ones) == ("switch mended", 3, ["drain"])
    assert errors == {f"taken back by {reset.who}"}
    fourth = make_run(81, 3, end_time=reset.at + 100)
    assert make_ledger(runs, fourth).spent("nccl_error") == 3
    assert make_ledger(runs, fourth, (reset,)).spent("nccl_error") == 0
    budget_report = make_budget_report((*runs, fourth), Retry(), (reset,))
    assert [(b.category, b.failures, b.used, b.left, b.not_counted) for b in budget_report.budgets] == [
        ("nccl_error", 4, 1, 2, ("3 before the ledger was cleared",))
    ]
    assert budget_report.failures == 1
    assert "by " in slurmwrap("jobs", "show", "81").stdout.partition("Cleared ")[2]


def test_clear_of_a_held_job_names_the_commands_for_its_user(slurmwrap: Run, user_db: Path) -> None:
    with Database.open(user_db) as database:
        hold = next(action for action in database.actions() if action.verb == "requeuehold")
        database.done(hold.action_id, float(NOW))
    result = slurmwrap("jobs", "clear", "81")
    assert result.stdout.splitlines()[0] == "81: 3 runs forgiven, 1 action taken back"
    assert result.stderr == "  Slurm holds it: scontrol release 81, or scancel 81\n"


def test_clear_cancels_planned_actions_of_the_job_and_keeps_drains(slurmwrap: Run, user_db: Path) -> None:
    action = SlurmAction(verb=Verb.REQUEUEHOLD, target="82", reason="x")
    drain = SlurmAction(verb=Verb.DRAIN, target="n1", reason="y")
    planned = (PlannedAction(rule="drain", action=drain), PlannedAction(rule="retry", action=action))
    with Database.open(user_db) as database:
        database.save_attempt(make_run(82, planned=planned, retry_at=NOW + 500.0))
    assert [row["to_do"] for row in list_rows(slurmwrap, "--to-do") if row["job"] == "82"] == [2]
    assert slurmwrap("jobs", "clear", "82").stdout.splitlines()[0] == "82: 1 run forgiven, 1 action taken back"
    with Database.open(user_db, readonly=True) as database:
        (run,) = database.attempts(job_id=82)
    assert (run.planned, run.retry_at) == (planned[:1], None)


def test_clear_of_an_unknown_job_and_of_an_invalid_id_is_refused(slurmwrap: Run, user_db: Path) -> None:
    unknown = slurmwrap("jobs", "clear", "4711").exception
    assert isinstance(unknown, UsageError) and unknown.exit_code == 1
    assert str(unknown) == "no run of job 4711 is known: there is nothing to clear"
    assert str(slurmwrap("jobs", "clear", "x").exception) == "'x' is no job id"


def test_clear_is_refused_for_users_where_the_site_keeps_the_retry_budget(
    slurmwrap: Run, user_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_SITE_PUBLISHED", str(user_db.parent / "published"))
    refused = slurmwrap("jobs", "clear", "81").exception
    assert isinstance(refused, RefusedError) and refused.exit_code == 5
    with Database.open(user_db, readonly=True) as database:
        assert database.resets(81) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")
def test_root_lists_and_clears_jobs_of_the_site(slurmwrap: Run, user_db: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    user_db.rename(tmp_path / "site" / "site.db")
    listed = json.loads(slurmwrap("jobs", "list", "--json", "--failed", site=True).stdout)
    assert ([row["job"] for row in listed["rows"]], listed["more"]) == (["81", "77_0", "77_1", "77_2"], 0)
    assert [
        row["job"] for row in json.loads(slurmwrap("jobs", "list", "--to-do", "--json", site=True).stdout)["rows"]
    ] == ["81"]
    assert slurmwrap("jobs", "clear", "77_1", site=True).stdout == "77_1: 1 run forgiven, no actions taken back\n"
    with Database.open(tmp_path / "site" / "site.db", readonly=True) as database:
        assert len(database.resets(101)) == 1 and database.resets(100) == ()
