"""Consistency of table 7 with the sums of its authors and with derived figures."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.taxonomy import FAILURES
from slurmwrap.sim.failures.published_rates import (
    CLASSIFIED,
    FAILING_JOBS,
    PHILLY,
    compute_misread_share,
    compute_seen_share,
    get_demand_column,
)


def test_demand_columns_add_up_to_the_trials_in_every_row() -> None:
    assert [c.reason for c in PHILLY if sum(c.by_demand) != c.trials] == []


def test_the_whole_table_has_the_published_number_of_trials_and_rows() -> None:
    assert (len(PHILLY), sum(cause.trials for cause in PHILLY)) == (22, 39_776)


def test_shares_of_run_time_add_up_to_100_percent() -> None:
    assert sum(cause.share for cause in PHILLY) == pytest.approx(100, abs=0.05)


def test_the_eight_most_common_reasons_repeat_as_in_the_paper() -> None:
    top = sorted(PHILLY, key=lambda cause: -cause.trials)[:8]
    trials = sum(cause.trials for cause in top)
    per_job, per_user = trials / sum(c.jobs for c in top), trials / sum(c.users for c in top)
    assert (int(per_job * 10) / 10, round(per_user, 1)) == (2.3, 38.8)


def test_every_reason_has_a_category_of_the_taxonomy() -> None:
    assert {cause.category for cause in PHILLY} <= set(FAILURES)


def test_the_share_of_failing_jobs_equals_the_published_counts() -> None:
    assert pytest.approx(17_581 / 96_260) == FAILING_JOBS


@pytest.mark.parametrize(("gpus", "column"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (128, 2)])
def test_the_column_of_a_gpu_demand(gpus: int, column: int) -> None:
    assert get_demand_column(gpus) == column


def test_measured_shares_equal_those_in_the_documentation() -> None:
    assert (sum(n for n, _ in CLASSIFIED), round(compute_misread_share(), 3), round(compute_seen_share(), 3)) == (
        415,
        0.099,
        0.975,
    )
