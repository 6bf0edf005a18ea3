"""The report of a synthetic day has correct sums, and figures that are not known stay empty."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from night_figures import night_of

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import Incident, JobRun, PrerunRecord, StrikeRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report.formulas import NEEDED
from slurmwrap.report.night_report import (
    Estimate,
    Headline,
    IncidentRow,
    NightReport,
    Preruns,
    Retries,
    RuleRow,
    SuspectNodes,
)
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

EMPTY = {"attempts": (), "preruns": (), "submissions": (), "actions": (), "strikes": (), "blocked": ()}


def test_the_synthetic_day_gives_the_golden_report(day: dict[str, Any], data: Path) -> None:
    built = night_of(**day)
    golden = data / "night.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(to_json_dict(built), indent=1) + "\n", encoding="ascii")
    assert built == record_from_json(NightReport, json.loads(golden.read_text(encoding="ascii")))


def test_the_headline_counts_jobs_that_ended_in_the_window_without_pre_runs(day: dict[str, Any]) -> None:
    # 9 h x 16 + 12 h x 16 (ada), 1.7 h of 8 GPUs in all (bob: 12 + 6 + 30 min), 2 x 30 min x 8 (carol),
    # 1 min + 6 h of 8 (dan), 2 h + 1 h 58 min of 4 (erin); the pre-run's job and the running job are excluded.
    hours = 9 * 16 + 12 * 16 + 0.8 * 8 + 8 + 8 * (6 + 1 / 60) + 4 * (2 + 118 / 60)
    assert night_of(**day).headline == Headline(
        jobs=9,
        attempts=11,
        users=5,
        gpu_hours=pytest.approx(hours),  # type: ignore[arg-type]
        failed_attempts=7,
        failed_gpu_hours=pytest.approx(144 + 6.4 + 8 + 8 / 60),  # type: ignore[arg-type]
        cancelled_attempts=1,
        unjudged_attempts=1,
        gsub_jobs=3,
    )


def test_the_order_of_records_does_not_matter(day: dict[str, Any]) -> None:
    turned = {name: value[::-1] if isinstance(value, tuple) else value for name, value in day.items()}
    first, second = night_of(**day), night_of(**turned)
    assert first.headline == second.headline
    assert first.categories == second.categories
    assert (first.rules, first.retries, first.suspects) == (second.rules, second.retries, second.suspects)


def test_a_report_without_records_is_empty() -> None:
    nothing = Estimate(gpu_hours=None, n=0, needed=NEEDED, formula="prerun-1")
    found = night_of(since=1, until=2)
    assert [(saving.gpu_hours, saving.n) for saving in found.savings] == [(None, 0)] * 4
    assert replace(found, savings=()) == NightReport(
        since=1, until=2, clusters=(), headline=Headline(), preruns=Preruns(saved=nothing)
    )


def make_failed_run(number: int, category: str, run_s: int) -> JobRun:
    diagnosis = Diagnosis(category=category, domain="U", decision="stop", confidence=1, signature="")
    attempt = RunKey(cluster="lab", job_id=number, submit_time=0)
    return JobRun(attempt=attempt, gpus=1, start_time=0, end_time=run_s, diagnosis=diagnosis)


def make_failed_prerun(number: int, category: str, gpus: int) -> PrerunRecord:
    verdict = Verdict(outcome=Outcome.FAIL, layer="exit", reason="", seconds=36, category=category)
    return PrerunRecord(
        cluster="lab",
        job_id=1000 + number,
        prerun_job_id=2000 + number,
        uid=1,
        at=float(number),
        verdict=verdict,
        gpus=gpus,
    )


def test_savings_are_estimated_from_twenty_cases() -> None:
    failures = tuple(
        make_failed_run(n, "gpu_oom" if n < 20 else "import_error", 3600 if n < 20 else 60) for n in range(25)
    )
    preruns = (
        *(make_failed_prerun(n, "gpu_oom", 8) for n in range(15)),
        *(make_failed_prerun(n, "import_error", 4) for n in range(15, 20)),
    )
    given = {**EMPTY, "attempts": failures, "preruns": preruns}
    # gpu_oom: 20 cases, median 1 h; import_error: 5 cases only, so the median of all 25, 1 h too. 20 x 36 s were used.
    expected = Estimate(gpu_hours=15 * 8 * 1.0 + 5 * 4 * 1.0 - 0.2, n=20, needed=20, formula="prerun-1")
    assert night_of(**given, since=0, until=10_000).preruns.saved == expected
    fewer = {**given, "preruns": preruns[1:]}
    assert night_of(**fewer, since=0, until=10_000).preruns.saved == replace(expected, gpu_hours=None, n=19)


def test_a_failed_prerun_without_a_job_stops_no_job() -> None:
    alone = replace(make_failed_prerun(1, "gpu_oom", 8), job_id=None)
    preruns = night_of(**{**EMPTY, "preruns": (alone,)}, since=0, until=10).preruns
    assert (preruns.failed, preruns.stopped_jobs, preruns.gpus_never_started) == (1, 0, 0)


def test_a_job_that_ran_after_a_failed_pre_run_is_not_counted_as_stopped() -> None:
    """A job with the verdict of another job's pre-run is released, and a cancellation may fail."""
    verdict = make_failed_prerun(5, "gpu_oom", 8)
    attempt = RunKey(cluster="lab", job_id=1005, submit_time=2)
    ran = JobRun(attempt=attempt, gpus=8, start_time=6, end_time=8, nodes=("n1",))
    never_started = replace(ran, nodes=(), start_time=None)
    given = {**EMPTY, "preruns": (verdict,)}
    for attempts, jobs, gpus in (((ran,), 0, 0), ((never_started,), 1, 8), ((), 1, 8)):
        page = night_of(**{**given, "attempts": attempts}, since=0, until=10)
        assert (page.preruns.failed, page.preruns.stopped_jobs, page.preruns.gpus_never_started) == (1, jobs, gpus)
        assert [row.stopped_jobs for row in page.caught] == [jobs]
        assert page.wrong.refusals == jobs


def test_pre_run_cost_is_the_larger_of_slurms_record_and_the_verdict() -> None:
    verdict = make_failed_prerun(5, "gpu_oom", 8)  # 36 s according to the verdict
    attempt = RunKey(cluster="lab", job_id=2005, submit_time=0)
    for seconds, cost in ((50, 50), (20, 36)):
        own = JobRun(attempt=attempt, gpus=1, start_time=0, end_time=seconds, nodes=("n1",))
        page = night_of(**{**EMPTY, "preruns": (verdict,), "attempts": (own,)}, since=0, until=100)
        assert page.preruns.gpu_hours == pytest.approx(cost / 3600)
        assert page.headline == Headline()  # the pre-run is not counted as a job


def test_delay_counts_jobs_that_started_within_a_minute_of_their_release() -> None:
    def make_passed_job(number: int, started: int, *, released: bool = True) -> dict[str, Any]:
        verdict = Verdict(outcome=Outcome.PASS, layer="exit", reason="", seconds=36, category="")
        record = replace(make_failed_prerun(number, "", 8), at=1000.0, verdict=verdict, released=released)
        attempt = RunKey(cluster="lab", job_id=1000 + number, submit_time=100)
        ran = JobRun(attempt=attempt, gpus=8, start_time=started, end_time=started + 10, nodes=("n1",))
        submission = Submission(cluster="lab", job_id=1000 + number, at=100.0, uid=1, user="ada", gpus=8)
        return {"preruns": record, "attempts": ran, "submissions": submission}

    jobs = [
        make_passed_job(1, 1005),
        make_passed_job(2, 1060),
        make_passed_job(3, 1061),
        make_passed_job(4, 5000),
        make_passed_job(5, 1001, released=False),
    ]
    given = {name: tuple(job[name] for job in jobs) for name in jobs[0]}
    trials = night_of(**{**EMPTY, **given}, since=0, until=10_000).preruns
    assert (trials.delayed_jobs, trials.delay_s, trials.delay_gpu_hours) == (2, 900.0, 2 * 900 * 8 / 3600)


def test_a_decision_with_several_changes_counts_once(day: dict[str, Any]) -> None:
    assert night_of(**day).rules == (
        RuleRow(rule="drain", done=1, advised=2),
        RuleRow(rule="resize", advised=1),
        RuleRow(rule="retry", done=1, refused=1),
        RuleRow(rule="retry_elsewhere", done=1),
    )


def test_a_retry_is_judged_by_the_next_run(day: dict[str, Any]) -> None:
    assert night_of(**day).retries == Retries(jobs=2, completed=1, failed_again=1)
    without = [a for a in day["attempts"] if a.restarts == 0]
    assert night_of(**{**day, "attempts": without}).retries == Retries(jobs=2, unfinished=2)


def test_nodes_with_equal_strikes_share_a_row() -> None:
    def make_strike(node: str, at: float, text: str = "Xid 48") -> StrikeRecord:
        return StrikeRecord(node=node, cause="gpu_ecc_error", conclusive=True, text=text, at=at, job_id=1, uid=7)

    strikes = (
        make_strike("n2", 1),
        make_strike("n10", 4),
        make_strike("n1", 3),
        make_strike("n5", 2, "Xid 64"),
        make_strike("n9", 99),
    )
    row = SuspectNodes(
        nodes=("n1", "n2", "n10"),
        strikes=1,
        conclusive=True,
        causes=("gpu_ecc_error",),
        jobs=1,
        users=1,
        last_at=4,
        text="Xid 48",
    )
    assert night_of(**{**EMPTY, "strikes": strikes}, since=0, until=50).suspects == (
        row,
        replace(row, nodes=("n5",), last_at=2, text="Xid 64"),
    )


def test_a_job_stopped_by_its_pre_run_is_not_counted_as_a_cancelled_run() -> None:
    prerun = make_failed_prerun(7, "semantic_error", 16)
    cancelled = replace(
        make_failed_run(7, "cancelled", 0),
        attempt=RunKey(cluster=prerun.cluster, job_id=prerun.job_id or 0, submit_time=900),
        nodes=(),
        state="CANCELLED",
    )
    ran = replace(cancelled, attempt=replace(cancelled.attempt, job_id=10_000), nodes=("n1",))
    report = night_of(attempts=(cancelled, ran), preruns=(prerun,), since=0, until=1e12)
    assert (report.headline.attempts, report.headline.cancelled_attempts) == (1, 1)
    (row,) = report.caught
    assert (row.category, row.stopped_jobs, row.gpus_never_started) == ("semantic_error", 1, 16)


def test_an_incident_is_one_row_and_its_runs_are_in_no_other_table() -> None:
    def set_incident(run: JobRun, name: str) -> JobRun:
        return replace(run, incident=name, user="ada", name="x")

    runs = [set_incident(make_failed_run(n, "storage_io", 3600), "i1" if n < 4 else "") for n in range(6)]
    # part of an incident that the page does not show
    older = set_incident(make_failed_run(9, "storage_io", 3600), "gone")
    struck = [
        StrikeRecord(
            node=f"n{n}", cause="storage_io", conclusive=False, text="", at=5, job_id=n, incident="i1" * (n < 4)
        )
        for n in range(6)
    ]
    incident = Incident(
        incident_id="i1", category="storage_io", scope="path /x", began=3000, last=3600, jobs=(0, 1, 2, 3), uids=(1, 2),
        proof=("n1", "n2"),
    )  # fmt: skip
    given = {**EMPTY, "attempts": (*runs, older), "strikes": struck}
    report = night_of(
        **given, incidents=(incident, replace(incident, incident_id="i0", over_at=-5)), since=0, until=9000
    )
    assert report.incidents == (
        IncidentRow(
            incident_id="i1",
            category="storage_io",
            scope="path /x",
            began=3000,
            over_at=None,
            jobs=4,
            users=2,
            gpu_hours=4,
        ),
    )
    assert [(row.category, row.attempts) for row in report.categories] == [("storage_io", 3)]
    assert [row.attempts for row in report.repeated] == [3]
    assert [row.nodes for row in report.suspects] == [("n4", "n5")]
    assert (report.headline.failed_attempts, report.headline.failed_gpu_hours) == (7, 7)
