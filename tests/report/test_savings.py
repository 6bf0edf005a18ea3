"""Savings: each formula checked by hand, and no estimate below twenty cases."""

from __future__ import annotations

from math import hypot, sqrt
from statistics import fmean

import pytest

from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.report import savings
from slurmwrap.report.confidence_interval import reach
from slurmwrap.report.formulas import BY_ID, FORMULAS
from slurmwrap.report.night_report import Retries, Wrong
from slurmwrap.report.report_inputs import Caught, Drawn, Figures, Passed, RetriedRun, TunedRun
from slurmwrap.report.savings import compute_holdout
from slurmwrap.report.usage_totals import count_false_decisions, count_retries, is_missed

CURVE = tuple(CurvePoint(cpus=cpus, steps_per_s=speed) for cpus, speed in ((2, 10.0), (4, 16.0), (8, 20.0)))


def make_caught(category: str, gpus: int) -> Caught:
    return Caught(category=category, job_id=1, gpus=gpus, uid=7, at=0.0, reason="")


def test_pre_run_saving_is_gpus_times_median_minus_their_cost() -> None:
    cases = [make_caught("gpu_oom", 8)] * 15 + [make_caught("import_error", 4)] * 10
    lasted = {"gpu_oom": [1800] * 10 + [3600] * 11, "import_error": [60] * 5}  # for import_error the median of all: 1 h
    found = savings.estimate_prerun_saving(cases, lasted, 7200.0)
    assert found.gpu_hours == pytest.approx(15 * 8 * 1.0 + 10 * 4 * (1800 / 3600) - 2)
    assert (found.n, found.spared) == (25, True)
    # Ranks 6 and 16 of 21, 8 and 19 of 26: half an hour and an hour. 120 GPUs may have lost 60, 40 may have gained 20.
    assert (found.low, found.high) == (pytest.approx(140 - 60 - 2), pytest.approx(140 + 20 - 2))


def test_no_saving_is_estimated_below_twenty_cases() -> None:
    lasted = {"gpu_oom": [3600] * 50}
    for cases, of in (
        ([make_caught("gpu_oom", 8)] * 19, lasted),
        ([make_caught("gpu_oom", 8)] * 50, {"gpu_oom": [1] * 19}),
    ):
        found = savings.estimate_prerun_saving(cases, of, 0.0)
        assert (found.gpu_hours, found.low, found.high, found.n) == (None, None, None, 19)
    assert savings.retry([RetriedRun("success", "gpu_oom", 3600.0)] * 19).gpu_hours is None
    assert savings.estimate_tuning_saving([TunedRun(3600.0, 2, 4, CURVE)] * 19).gpu_hours is None


def test_retry_saving_is_completed_minus_failed_gpu_hours() -> None:
    cases = [RetriedRun("success", "nccl_error", 7200.0)] * 15 + [RetriedRun("nccl_error", "nccl_error", 3600.0)] * 5
    cases += [RetriedRun("cancelled", "nccl_error", 9e9), RetriedRun("", "nccl_error", 9e9)]
    found = savings.retry(cases)
    assert (found.gpu_hours, found.n, found.spared) == (15 * 2 - 5 * 1, 20, False)


def test_tuning_saving_follows_the_measured_curve() -> None:
    faster, slower, beyond = (
        TunedRun(3600.0, 2, 8, CURVE),
        TunedRun(3600.0, 8, 6, CURVE),
        TunedRun(3600.0, 16, 8, CURVE),
    )
    found = savings.estimate_tuning_saving([faster] * 15 + [slower] * 5 + [beyond] * 9)
    assert found.gpu_hours == pytest.approx(15 * (20 / 10 - 1) + 5 * (18 / 20 - 1))
    assert found.n == 20


def test_a_curve_is_not_extrapolated_beyond_its_points() -> None:
    assert [savings.interpolate_speed(CURVE, cpus) for cpus in (1, 2, 3, 4, 6, 8, 9)] == [
        None,
        10.0,
        13.0,
        16.0,
        18.0,
        20.0,
        None,
    ]
    assert (
        savings.interpolate_speed((), 1),
        savings.interpolate_speed(CURVE[:1], 2),
        savings.interpolate_speed(CURVE[:1], 3),
    ) == (None, 10.0, None)


def test_false_decisions_are_counted_with_all_decisions() -> None:
    again = [
        RetriedRun("success", "nccl_error", 1.0),
        RetriedRun("nccl_error", "nccl_error", 1.0),
        RetriedRun("gpu_oom", "nccl_error", 1.0),
        RetriedRun("cancelled", "nccl_error", 1.0),
        RetriedRun("", "nccl_error", 1.0),
    ]
    passed = [Passed(30.0, "import_error", 20.0), Passed(30.0, "success", 20.0)]
    figures = Figures(since=0, until=1, again=again, passed=passed, refused=5, refused_falsely=1)
    assert count_false_decisions(figures) == Wrong(
        retries=3,
        retries_failed_again=1,
        preruns_passed=2,
        preruns_missed=1,
        refusals=5,
        false_refusals=1,
    )
    assert count_retries(again) == Retries(jobs=5, completed=1, failed_again=2, cancelled=1, unfinished=1)


@pytest.mark.parametrize(
    ("category", "run_s", "expected"),
    [
        ("import_error", 120.0, True),
        ("import_error", 121.0, False),
        ("gpu_oom", 20.0, False),  # a sharded job's memory use cannot be measured on one GPU
        ("node_failure", 20.0, False),
        ("cancelled", 20.0, False),
    ],
)
def test_a_pre_run_missed_only_failures_that_it_could_detect(category: str, run_s: float, expected: bool) -> None:
    assert is_missed(Passed(30.0, category, run_s)) is expected


def test_the_holdout_experiment_compares_draws_not_jobs() -> None:
    held = [Drawn(f"h{n // 2}", True, 3600.0 * (n % 4), 0.0) for n in range(60)]  # 30 draws of two jobs
    control = [Drawn(f"c{n}", False, 3600.0 * (n % 2), 360.0) for n in range(50)]
    figures = Figures(since=0, until=1, drawn=[*held, *control], holdout=0.05)
    found = compute_holdout(figures)
    assert (found.held_out, found.control, found.share) == (60, 50, 0.05)
    assert found.held_out_waste == pytest.approx(1.5)
    assert found.control_waste == pytest.approx(0.5 + 0.1)
    assert found.difference == pytest.approx(0.9)
    # 15 draws each of 1 and 5 GPU-hours deviate by 2 from their mean of 3; 25 each of 0.1 and 1.1 by 0.5 from 0.6
    (down, up), (other_down, other_up) = reach([1.0, 5.0] * 15), reach([1.0] * 25)
    error, other_error = 2 / 2 / sqrt(29), 0.5 / sqrt(49)
    assert found.low == pytest.approx(0.9 - hypot(down * error, other_up * other_error))
    assert found.high == pytest.approx(0.9 + hypot(up * error, other_down * other_error))
    sound = [one for one in control if not one.waste_gpu_s] * 9  # draws without a failure are not counted as cases
    assert compute_holdout(Figures(since=0, until=1, drawn=[*held, *sound])).difference is None
    few = compute_holdout(Figures(since=0, until=1, drawn=[*held[:38], *control]))
    assert (few.held_out, few.difference, few.low, few.high) == (38, None, None, None)
    assert few.held_out_waste == pytest.approx(fmean([n % 4 for n in range(38)]))


def test_every_formula_documents_what_it_counts_and_leaves_out() -> None:
    assert set(FORMULAS) == set(BY_ID) == {"prerun-1", "retry-1", "placement-2", "tuning-1", "holdout-1"}
    assert all(one.says and one.case and one.leaves_out for one in BY_ID.values())
