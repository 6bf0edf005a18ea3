"""Confidence intervals over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from slurmwrap.sim.failures.student_t import (
    compute_by_resampling,
    compute_forecast,
    compute_interval,
    compute_paired,
    compute_ratio,
    quantile_t,
)
from slurmwrap.sim.failures.study_result import Interval


def test_interval_of_a_textbook_sample() -> None:
    """Mean 3, standard deviation √2.5, five values: 3 ± 2.776 · √(2.5 / 5)."""
    found = compute_interval([1, 2, 3, 4, 5])
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - 1.96293, 3 + 1.96293), abs=1e-4)


def test_one_seed_gives_no_interval() -> None:
    assert compute_interval([4.0]) == Interval(mean=4.0)


def test_paired_differences_cancel_common_variation() -> None:
    assert compute_paired([90.0, 190.0, 290.0], [100.0, 200.0, 300.0]) == Interval(mean=10.0, low=10.0, high=10.0)


def test_a_ratio_is_a_ratio_of_sums() -> None:
    found = compute_ratio([-5.0, 300.0], [1.0, 999.0])
    assert found.mean == pytest.approx(0.295)
    assert compute_ratio([10.0, 20.0, 30.0], [100.0, 200.0, 300.0]) == Interval(mean=0.1, low=0.1, high=0.1)
    assert (compute_ratio([1.0], [4.0]), compute_ratio([0.0, 0.0], [0.0, 0.0])) == (
        Interval(mean=0.25),
        Interval(mean=0.0),
    )


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        compute_interval([])


def test_a_forecast_interval_does_not_shrink_with_more_draws() -> None:
    """The interval of the mean shrinks with the square root of the number of draws; that of one more draw does not."""
    few, many = compute_forecast([0.0, 10.0] * 10), compute_forecast([0.0, 10.0] * 1000)
    assert few.high is not None
    assert many.high is not None
    assert many.high - many.mean == pytest.approx(1.96 * 5, rel=0.01)
    assert few.high - few.mean == pytest.approx(many.high - many.mean, rel=0.15)
    assert compute_forecast([0.0, 0.0, 1.0], least=0.0).low == 0.0


def test_savings_of_a_single_day_have_a_wide_interval() -> None:
    even = np.full((3, 30), 10.0)
    one_day = np.zeros((3, 30))
    one_day[:, 7] = 300.0
    assert compute_by_resampling(even, even)[0] == Interval(mean=300.0, low=300.0, high=300.0)
    saved, _ = compute_by_resampling(one_day, even)
    assert (saved.mean, saved.low) == (300.0, 0.0)
    assert saved.high is not None
    assert saved.high >= 900.0


def test_the_interval_includes_the_variation_between_draws() -> None:
    draws = np.repeat(np.array([[0.0], [10.0]]), 30, axis=1)
    saved, share = compute_by_resampling(draws, np.full((2, 30), 20.0))
    assert (saved.low, saved.mean, saved.high) == (0.0, 150.0, 300.0)
    assert (share.low, share.mean, share.high) == (0.0, 0.25, 0.5)


def test_a_few_days_are_not_resampled() -> None:
    days = np.array([[1.0, 5.0], [2.0, 4.0]])
    assert compute_by_resampling(days, days)[0] == Interval(mean=6.0, low=6.0, high=6.0)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (30, 2.0423), (31, 2.0395), (60, 2.0003), (120, 1.9799)]
)
def test_quantiles_equal_textbook_tables(degrees: int, quantile: float) -> None:
    assert quantile_t(degrees) == pytest.approx(quantile, abs=4e-4)
