"""Time limits against run times in the report: shares, limits that fit, and the rows from a database."""

from __future__ import annotations

from dataclasses import replace

import nights
import pytest
from night_figures import night_of

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import AccountLimitRow, LimitRow, PredictionRow, TimeLimits
from slurmwrap.report.report_inputs import PredictedRun, TimeAskedFor
from slurmwrap.report.time_limits import compare_predictions, compute_time_limits

DAY, HOUR = 86_400, 3600
UNTIL = 1_700_200_000


def ask(*runs_s: int, limit_s: int = DAY, gpus: int = 2, name: str = "train", account: str = "ml") -> TimeAskedFor:
    return TimeAskedFor("ada", account, name, [(limit_s, run_s, gpus) for run_s in runs_s])


def test_a_job_whose_runs_are_short_gets_a_limit_that_holds_all_of_them() -> None:
    found = compute_time_limits([ask(HOUR, HOUR, HOUR, HOUR, 2 * HOUR)])
    unused = 2 * (5 * 24 - 6)
    assert found == TimeLimits(
        runs=5,
        used_share=pytest.approx(1 / 24),
        gpu_hours_unused=unused,
        jobs=(
            LimitRow(
                user="ada", account="ml", name="train", runs=5, limit_s=DAY, median_run_s=HOUR,
                longest_run_s=2 * HOUR, used_share=pytest.approx(1 / 24), fits_s=3 * HOUR, gpu_hours_unused=unused,
            ),
        ),
        accounts=(
            AccountLimitRow(account="ml", runs=5, used_share=pytest.approx(1 / 24), gpu_hours_unused=unused),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "fits_s"),
    [
        (ask(HOUR, HOUR, HOUR, HOUR), None),  # too few
        (ask(*[18 * HOUR] * 5), None),  # hardly less
        (ask(*[HOUR] * 19, 4 * HOUR), 4 * HOUR),  # the slowest run counts more than the others' margin
    ],
)
def test_a_fitting_limit_needs_enough_runs_and_must_be_clearly_less(asked: TimeAskedFor, fits_s: int | None) -> None:
    (row,) = compute_time_limits([asked]).jobs
    assert row.fits_s == fits_s


def test_jobs_are_listed_by_what_they_asked_for_in_vain_and_small_ones_are_left_out() -> None:
    small = ask(HOUR, limit_s=HOUR + 60, name="small", account="bio")
    found = compute_time_limits([small, ask(HOUR, name="a"), ask(HOUR, HOUR, name="b")])
    assert [row.name for row in found.jobs] == ["b", "a"]
    assert [(row.account, row.runs) for row in found.accounts] == [("ml", 3), ("bio", 1)]
    assert compute_time_limits([]) == TimeLimits()


def test_a_run_slightly_beyond_its_limit_used_all_of_it() -> None:
    assert compute_time_limits([ask(DAY + 30)]).used_share == 1.0


def make_run(job_id: int, **changes) -> JobRun:
    end = UNTIL - 1000 - job_id
    ok = Diagnosis(category="success", domain="", decision="none", confidence=1, signature="")
    run = JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=end - 9000), user="ada", account="ml", name="train",
        state="COMPLETED", nodes=("n0",), gpus=4, start_time=end - HOUR, end_time=end, time_limit_s=10 * HOUR,
        diagnosis=ok, uid=1, address=str(job_id),
    )  # fmt: skip
    return replace(run, **changes)


def test_completed_runs_with_gpus_and_a_limit_are_read_from_the_database() -> None:
    failed = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=1, signature="")
    runs = (
        *(make_run(number) for number in range(1, 6)),
        make_run(6, gpus=0),
        make_run(7, time_limit_s=None),
        make_run(8, state="FAILED", diagnosis=failed),
        make_run(9, name="train.prerun"),
        make_run(10, end_time=UNTIL - 9 * DAY, start_time=UNTIL - 10 * DAY),
        make_run(11, user="bob", account="bio"),
    )
    verdict = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="", seconds=60)
    trial = PrerunRecord(cluster="lab", job_id=1, prerun_job_id=9, uid=1, at=1.0, verdict=verdict)
    report = night_of(attempts=runs, preruns=(trial,), since=UNTIL - 30 * DAY, until=UNTIL)
    assert [(row.user, row.account, row.runs, row.gpu_hours_unused, row.fits_s) for row in report.limits.jobs] == [
        ("ada", "ml", 5, 5 * 9 * 4, 1.5 * HOUR),
        ("bob", "bio", 1, 9 * 4, None),
    ]
    assert (report.limits.runs, report.limits.used_share) == (6, pytest.approx(0.1))


def test_predictions_at_submission_are_compared_with_the_runs() -> None:
    runs = [(90.0, "runs"), (130.0, "runs"), (210.0, "runs"), (30.0, "runs"), (100.0, "user")]
    found = compare_predictions([PredictedRun(source, 100.0, 150.0, run_s) for run_s, source in runs])
    assert found == (
        PredictionRow(source="runs", runs=4, within_factor_2=0.5, within_p90=0.75, median_ratio=1.1),
        PredictionRow(source="user", runs=1, within_factor_2=1.0, within_p90=1.0, median_ratio=1.0),
    )


def test_predictions_are_read_with_each_task_of_an_array() -> None:
    # Raw ids of tasks are other jobs' numbers; the last task has the array's own. "11_0" is no task of 1.
    tasks = [(1, "1_3"), (5, "1_0"), (6, "1_1"), (7, "11_0")]
    runs = tuple(replace(make_run(number), address=address) for number, address in tasks)
    sent = Submission(
        cluster="lab", job_id=1, uid=1, user="ada", at=float(min(run.attempt.submit_time for run in runs)),
        expected_p50_s=3000, expected_p90_s=3200, expected_source="runs",
    )  # fmt: skip
    report = night_of(attempts=runs, submissions=(sent,), since=UNTIL - DAY, until=UNTIL)
    assert [(row.source, row.runs) for row in report.predictions] == [("runs", 3)]


def test_predictions_are_read_with_the_first_run_of_each_job() -> None:
    runs = tuple(make_run(number) for number in range(1, 6))
    sent = [
        Submission(
            cluster="lab", job_id=number, uid=1, user="ada", at=float(run.attempt.submit_time), expected_p50_s=3000,
            expected_p90_s=3200, expected_source="runs",
        )
        for number, run in enumerate(runs, start=1)
    ]  # fmt: skip
    resumed = replace(runs[1].diagnosis, resumed=True)
    failed = replace(runs[2].diagnosis, category="gpu_oom")
    attempts = (runs[0], replace(runs[1], diagnosis=resumed), replace(runs[2], diagnosis=failed), *runs[3:])
    submissions = (*sent[:3], replace(sent[3], expected_p90_s=None), replace(sent[4], uid=2))
    report = night_of(attempts=attempts, submissions=submissions, since=UNTIL - DAY, until=UNTIL)
    assert report.predictions == (
        PredictionRow(source="runs", runs=1, within_factor_2=1.0, within_p90=0.0, median_ratio=1.2),
    )


def test_the_headline_has_the_share_of_time_limits_that_was_used() -> None:
    (figure,) = [one for one in build_page(nights.full()).figures if one.key == "limits"]
    assert (figure.value, figure.detail) == (
        "18.3 %", "median of 812 completed runs; 48,120 GPU-hours asked for beyond the need",
    )  # fmt: skip
