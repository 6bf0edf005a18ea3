"""The report computed by SQL equals plain Python on the same random records."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import night_reference as reference
import pytest
from night_figures import night_of

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.cli.report import build_report_of_night
from slurmwrap.config.load_config import Config
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import ActionRecord, Incident, JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report.night_report import Fairness
from slurmwrap.report.report_inputs import BIN_EDGES_S
from slurmwrap.store.database import Database

SINCE, UNTIL = 1_700_100_000, 1_700_200_000
BEGAN = SINCE - (UNTIL - SINCE) - 20_000
CATEGORIES = ("success", "success", "cancelled", "gpu_oom", "import_error", "node_failure", None)


def make_records(seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    attempts = [run for job_id in range(1, 60) for run in make_runs(job_id, dice)]
    submissions, preruns = [], []
    for job_id in dice.sample(range(1, 60), 25):
        trial = dice.choice((None, 200 + job_id, 200 + job_id % 7))
        at = float(dice.randrange(BEGAN, UNTIL))
        submissions.append(Submission(cluster="lab", job_id=job_id, uid=1, user="ada", at=at, prerun_job_id=trial))
        if trial and dice.random() < 0.7:
            verdict = Verdict(outcome=dice.choice(list(Outcome)), layer="exit", reason="", seconds=60)
            preruns.append(
                PrerunRecord(cluster="lab", job_id=job_id, prerun_job_id=trial, uid=1, at=at + 60, verdict=verdict)
            )
        if trial:
            attempts += make_runs(trial, dice)[:1]
    known = {run.attempt: run for run in attempts}
    return {
        "attempts": tuple(known.values()),
        "submissions": tuple(submissions),
        "preruns": tuple(preruns),
        "actions": tuple(
            make_requeue_action(n, run, dice) for n, run in enumerate(known.values()) if dice.random() < 0.3
        ),
        "incidents": (
            Incident(
                incident_id="open",
                category="node_failure",
                scope="cluster",
                began=SINCE + 5.0,
                last=float(SINCE + 5),
            ),
            Incident(incident_id="over", category="gpu_oom", scope="", began=BEGAN, last=BEGAN, over_at=SINCE - 1.0),
        ),
    }


def make_runs(job_id: int, dice: random.Random) -> list[JobRun]:
    at, found = dice.randrange(BEGAN, UNTIL + 5000), []
    cluster = "two" if job_id > 50 and dice.random() < 0.3 else "lab"
    user, gpus = dice.choice(["ada", "bob", "cyd"]), dice.choice((0, 1, 2, 4, 5, 8, 9, 16))
    for restarts in range(dice.choice((1, 1, 1, 2, 3))):
        begin = at + dice.randrange(3000)
        end = begin + dice.choice((0, 30, 60, 3599, 3600, dice.randrange(40_000)))
        name = dice.choice(CATEGORIES)
        diagnosis = name and Diagnosis(
            category=name,
            domain="",
            decision="stop",
            confidence=1,
            signature="",
            input_path=dice.choice(("", "/data/a", "/data/b\udce9")),
        )
        found.append(
            JobRun(
                attempt=RunKey(cluster=cluster, job_id=job_id, submit_time=at),
                address=str(job_id),
                restarts=restarts,
                name=dice.choice(("train", "eval", "naïve\n")),
                user=user,
                account=("nlp", "", "ml")[job_id % 3],
                nodes=dice.choice(((), ("n1",), ("n1", "n2"))),
                gpus=gpus,
                start_time=dice.choice((begin, begin, None)),
                end_time=dice.choice((end, end, end, None)),
                diagnosis=diagnosis or None,
                incident=dice.choice(("", "", "", "open", "over", "unknown")),
            )
        )
        at = end + 1
    return found


def make_requeue_action(number: int, run: JobRun, dice: random.Random) -> ActionRecord:
    return ActionRecord(
        action_id=number + 1,
        attempt=run.attempt,
        rule="retry",
        mode=dice.choice(("act", "act", "advise")),
        verb=dice.choice(("requeuehold", "release")),
        target=run.address,
        key="",
        value="",
        reason="",
        intended_at=float(dice.randrange(BEGAN, UNTIL)),
        done_at=dice.choice((1.0, None)),
        error=dice.choice(("", "", "no")),
    )


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 30))])
def test_every_sum_equals_that_of_plain_python(seed: int) -> None:
    records = make_records(seed)
    page = night_of(**records, since=SINCE, until=UNTIL)
    of = (records, SINCE, UNTIL)
    assert page.headline == approx_record(reference.headline(*of))
    assert page.before == approx_record(reference.headline(records, 2 * SINCE - UNTIL, SINCE, gsub=False))
    assert {row.category: row for row in page.categories} == approx_rows(reference.categories(*of))
    users = {row.name: replace(row, preruns=0, stopped_jobs=0) for row in page.users if row.attempts}
    assert users == approx_rows(reference.shares(*of, "user"))
    assert {row.name: row for row in page.accounts} == approx_rows(reference.shares(*of, "account"))
    assert list(page.runtimes) == reference.runtimes(*of, [float(edge) for edge in BIN_EDGES_S])
    repeated = {(row.user, row.name, row.category): replace(row, jobs=tuple(sorted(row.jobs))) for row in page.repeated}
    assert repeated == approx_rows(reference.repeated(*of))
    assert {(row.user, row.category): row for row in page.repeated_users} == approx_rows(reference.repeated_users(*of))
    assert {row.path: row for row in page.repeated_inputs} == approx_rows(reference.repeated_inputs(*of))
    assert page.retries == reference.retries(*of)
    for one in page.held:
        expected = reference.held(*of, one.at, one.at + one.seconds)
        assert (one.completed, one.failed, one.cancelled) == pytest.approx(expected)
    assert [one.at + one.seconds for one in page.held[:-1]] == [two.at for _, two in pairwise(page.held)]


def approx_record(record: Any) -> Any:
    """Return the record with floats that compare approximately."""
    floats = {name: pytest.approx(getattr(record, name)) for name in record.__slots__ if is_float(record, name)}
    return replace(record, **floats)


def approx_rows(rows: dict[Any, Any]) -> dict[Any, Any]:
    return {key: approx_record(row) for key, row in rows.items()}


def is_float(record: Any, name: str) -> bool:
    return isinstance(getattr(record, name), float)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_report_from_a_site_database_equals_that_of_records_in_memory(tmp_path: Path, seed: int) -> None:
    """Rows are written in another order and rewritten: triggers keep the tables that the report reads."""
    records = make_records(seed)
    path = tmp_path / "site.db"
    with Database.open(path) as database:
        for prerun in records["preruns"]:
            database.save_prerun(prerun)
        for run in records["attempts"]:
            database.save_attempt(replace(run, end_time=None, diagnosis=None, gpus=77, user="nobody"))
            database.save_attempt(run)
        for submission in records["submissions"]:
            database.save_submission(submission)
        for incident in records["incidents"]:
            database.save_incident(incident)
    place = RecordSource(database=path, site=True, uid=0)
    found = build_report_of_night(place, Config(), SINCE, UNTIL)
    expected = night_of(**{**records, "actions": ()}, since=SINCE, until=UNTIL)
    of_site = {"lemons": (), "locality": (), "fairness": Fairness()}
    assert replace(found, **of_site) == replace(expected, **of_site)


def test_a_report_of_one_user_counts_only_that_users_records() -> None:
    records = make_records(3)
    own = [run for run in records["attempts"] if run.user == "bob"]
    whole = night_of(**records, since=SINCE, until=UNTIL, user="bob")
    (row,) = whole.users
    assert row.name == "bob"
    assert (whole.headline.attempts, whole.headline.jobs) == (
        len(reference.ended({**records, "attempts": own}, SINCE, UNTIL)),
        len({reference.job(run) for run in reference.ended({**records, "attempts": own}, SINCE, UNTIL)}),
    )
    accounts = night_of(**records, since=SINCE, until=UNTIL, account="nlp").accounts
    assert [one.name for one in accounts] == ["nlp"]


def test_a_report_of_one_cluster_counts_only_its_records() -> None:
    records = make_records(3)
    own = [run for run in records["attempts"] if run.attempt.cluster == "two"]
    whole = night_of(**records, since=SINCE, until=UNTIL, clusters=("two", "absent"))
    assert whole.clusters == ("two",)
    assert whole.headline.attempts == len(reference.ended({**records, "attempts": own}, SINCE, UNTIL)) > 0
    assert night_of(**records, since=SINCE, until=UNTIL, clusters=("lab", "two")).headline.attempts > len(own)
