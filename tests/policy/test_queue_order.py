"""The classes of the queue order: which job is in which class, and what a class adds to a priority."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.queue_priority import PriorityScheme
from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.policy.queue_order import (
    INDEXES,
    PLACES,
    OrderSettings,
    PendingOrder,
    choose_band,
    choose_thresholds,
    classify_job,
    classify_jobs,
    compute_additions,
    compute_index,
)

SETTINGS = OrderSettings(index="shortest", thresholds=(100.0, 1000.0, 10_000.0), most_wait_s=3600.0)


def estimate(*times: float) -> RunTimeEstimate:
    """An estimate whose quantiles rise from the first to the last of `times`."""
    last = len(QUANTILE_LEVELS) - 1
    steps = [times[0] + (times[-1] - times[0]) * number / last for number in range(last + 1)]
    return RunTimeEstimate(quantiles_s=tuple(steps), source=FROM_RUNS, n=3)


JOB = PendingOrder(job="81", gpus=2, waited_s=0.0, estimate=estimate(100.0, 1100.0))


def test_the_class_follows_from_run_time_times_gpus() -> None:
    jobs = (
        JOB,
        replace(JOB, job="82", gpus=1, estimate=estimate(10.0, 20.0)),
        replace(JOB, job="83", gpus=64),
        replace(JOB, job="84", estimate=None),
        replace(JOB, job="85", gpus=64, waited_s=3600.0),
        replace(JOB, job="86", gpus=0),
    )
    assert classify_jobs(jobs, SETTINGS) == {"81": 2, "82": 0, "83": 3, "84": 2, "85": 0, "86": 1}


@pytest.mark.parametrize("index", [index for index in INDEXES if index != "las"])
def test_a_job_whose_key_overran_counts_with_its_p90(index: str) -> None:
    assert JOB.estimate is not None
    assert compute_index(replace(JOB, overran=True), index) == JOB.estimate.p90_s * 2


def test_a_job_that_resumes_counts_with_what_is_left() -> None:
    resumed = replace(JOB, attained_s=400.0, resumes=True)
    left, whole = compute_index(resumed, "srtf"), compute_index(JOB, "srtf")
    assert left is not None and whole == compute_index(JOB, "shortest") and left < whole
    assert compute_index(replace(JOB, attained_s=400.0), "srtf") == whole  # it starts anew
    assert compute_index(resumed, "las") == 800.0 and compute_index(JOB, "las") == 0.0


@pytest.mark.parametrize(("run_s", "waits_s"), [(600.0, 3600.0), (1800.0, 7200.0), (5 * 86400.0, 7 * 86400.0)])
def test_a_job_waits_four_times_its_run_time_but_seven_days_at_most(run_s: float, waits_s: float) -> None:
    job = PendingOrder(job="81", gpus=8, waited_s=waits_s - 1, estimate=estimate(run_s))
    assert classify_job(job, SETTINGS) > 0
    assert classify_job(replace(job, waited_s=waits_s), SETTINGS) == 0


def test_an_early_end_that_is_likely_counts_more_than_a_rare_long_run() -> None:
    """Most runs end at once, some are long: the Gittins index is that of the short ones."""
    crash_or_train = RunTimeEstimate(quantiles_s=(10.0,) * 9 + (90_000.0,) * 4, source=FROM_RUNS, n=9)
    steady = estimate(60.0, 61.0)
    first, second = (compute_index(replace(JOB, estimate=one), "gittins") for one in (crash_or_train, steady))
    assert first is not None and second is not None and first < second


def test_without_groups_the_first_class_gets_the_band_and_the_last_nothing() -> None:
    assert compute_additions({"81": 0, "82": 2, "83": 5}, 6, 1000) == {"81": 1000, "82": 600, "83": 0}


def test_with_groups_priority_is_only_taken_away() -> None:
    groups = {"81": "a", "82": "a", "83": "b", "84": "b"}
    assert compute_additions({"81": 0, "82": 5, "83": 4, "84": 5}, 6, 1000, groups) == {
        "81": 0,
        "82": -1000,
        "83": 0,
        "84": -200,
    }


@pytest.mark.parametrize(
    ("configured", "scheme", "band"),
    [
        (0, PriorityScheme(plugin="multifactor", weights=25_000), 2500),
        (0, PriorityScheme(plugin="multifactor"), PLACES),
        (0, PriorityScheme(plugin="basic"), PLACES),
        (70, PriorityScheme(plugin="basic"), 70),
    ],
)
def test_the_band_is_a_tenth_of_the_weights_or_a_number_of_jobs(
    configured: int, scheme: PriorityScheme, band: int
) -> None:
    assert choose_band(configured, scheme) == band


def test_the_limits_of_classes_are_evenly_spaced_on_a_logarithmic_scale() -> None:
    services = [10.0, *[100.0] * 10, *[10_000.0] * 10]
    assert choose_thresholds(services, 4) == pytest.approx((100.0, 1000.0, 10_000.0))
    assert choose_thresholds([], 4) == () and choose_thresholds(services, 1) == ()
