"""Effective training time of jobs that count their steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.report.night_report import Counted
from slurmwrap.report.usage_totals import compute_ettr


def run(
    start: int,
    end: int | None,
    steps: int | None,
    *,
    job_id: int = 81,
    category: str = "nccl_error",
    saved: int | None = None,
    resumed: bool = False,
    gpus: int = 1,
    rate: float | None = 1.0,
) -> JobRun:
    diagnosis = Diagnosis(
        category=category, domain="AE", decision="retry", confidence=1, signature="", checkpoint_step=saved,
        resumed=resumed,
    )  # fmt: skip
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=start), uid=1, gpus=gpus, eligible_time=start - 10,
        start_time=start, end_time=end, diagnosis=diagnosis,
        measurement=None if steps is None else Measurement(steps=steps, steps_per_s=rate),
    )  # fmt: skip


def told(*runs: JobRun) -> Counted:
    return compute_ettr(runs, since=0.0, until=1000.0)


FAILED = run(10, 110, 50, saved=40)
RESUMED = run(150, 250, 80, category="success", resumed=True)


def test_waiting_starting_up_and_lost_work_count_against_it() -> None:
    assert told(run(10, 110, 60, category="success")) == Counted(jobs=1, ettr=60 / 110)
    assert told(RESUMED, FAILED) == Counted(jobs=1, ettr=120 / 250)  # 40 that were saved and 80 more, since second 0


def test_of_a_job_that_failed_for_good_only_its_checkpoint_stands() -> None:
    assert told(FAILED) == Counted(jobs=1, ettr=40 / 110)
    assert told(run(10, 110, 50)) == Counted(jobs=1, ettr=0.0)
    assert told(run(10, 110, 50, saved=900)) == Counted(jobs=1, ettr=50 / 110)  # a boast


def test_jobs_weigh_by_their_gpus() -> None:
    small = run(10, 110, 110, category="success")
    large = run(10, 110, 0, job_id=82, gpus=9, category="success")
    assert told(small, replace(large, measurement=Measurement(steps=55, steps_per_s=1.0))) == Counted(
        jobs=2, ettr=pytest.approx((100 + 9 * 55) / 1100)
    )


@pytest.mark.parametrize(
    "runs",
    [
        (),
        (run(10, 110, None),),
        (run(10, 110, 50, rate=None),),
        (run(10, None, 50),),
        (run(1990, 2000, 5),),  # after the window
        (replace(FAILED, measurement=None), RESUMED),  # a run that did not count: nobody knows
    ],
)
def test_where_too_little_is_known_nothing_is_told(runs: tuple[JobRun, ...]) -> None:
    assert told(*runs) == Counted()
