"""Effective training time ratio (ETTR) of jobs that count their steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.report.night_report import Counted
from slurmwrap.report.usage_totals import compute_ettr


def make_run(
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


def compute_counted(*runs: JobRun) -> Counted:
    return compute_ettr(runs, since=0.0, until=1000.0)


FAILED = make_run(10, 110, 50, saved=40)
RESUMED = make_run(150, 250, 80, category="success", resumed=True)


def test_waiting_startup_and_lost_work_lower_the_ettr() -> None:
    assert compute_counted(make_run(10, 110, 60, category="success")) == Counted(jobs=1, ettr=60 / 110)
    # 40 saved steps and 80 more, from second 0
    assert compute_counted(RESUMED, FAILED) == Counted(jobs=1, ettr=120 / 250)


def test_after_a_final_failure_only_checkpointed_steps_count() -> None:
    assert compute_counted(FAILED) == Counted(jobs=1, ettr=40 / 110)
    assert compute_counted(make_run(10, 110, 50)) == Counted(jobs=1, ettr=0.0)
    # a checkpoint step beyond the counted steps
    assert compute_counted(make_run(10, 110, 50, saved=900)) == Counted(jobs=1, ettr=50 / 110)


def test_jobs_are_weighted_by_their_gpus() -> None:
    small = make_run(10, 110, 110, category="success")
    large = make_run(10, 110, 0, job_id=82, gpus=9, category="success")
    assert compute_counted(small, replace(large, measurement=Measurement(steps=55, steps_per_s=1.0))) == Counted(
        jobs=2, ettr=pytest.approx((100 + 9 * 55) / 1100)
    )


@pytest.mark.parametrize(
    "runs",
    [
        (),
        (make_run(10, 110, None),),
        (make_run(10, 110, 50, rate=None),),
        (make_run(10, None, 50),),
        (make_run(1990, 2000, 5),),  # after the window
        (replace(FAILED, measurement=None), RESUMED),  # one run counted no steps
    ],
)
def test_no_ettr_is_computed_when_data_is_missing(runs: tuple[JobRun, ...]) -> None:
    assert compute_counted(*runs) == Counted()
