"""bench/interval_coverage: its table is the one in use, and the coverage it measures for whole formulas."""

from __future__ import annotations

import numpy as np
import pytest
from interval_coverage.table import CASES, SIGMAS, cell
from interval_coverage.trials import WAYS, measured, of_prerun, of_sum
from interval_coverage.worlds import SUMS

from slurmwrap.report import confidence_interval


def test_the_table_in_use_has_the_cells_of_the_bench() -> None:
    assert (confidence_interval.SIGMAS, tuple(confidence_interval.TABLE)) == (SIGMAS, CASES)


@pytest.mark.parametrize(("cases", "column"), [(20, 2), (50, 3)])
def test_a_newly_simulated_cell_equals_that_of_the_table(cases: int, column: int) -> None:
    again = cell(cases, SIGMAS[column], np.random.default_rng(7), draws=8_000_000)
    assert again == pytest.approx(confidence_interval.TABLE[cases][column], rel=0.05)


def test_the_prerun_interval_covers_95_percent_and_is_narrower_than_before() -> None:
    found = measured(of_prerun(50), 150, seed=1)
    assert set(found) == {"before", "now"}
    assert found["now"].held >= 0.95
    assert found["now"].mean_width < found["before"].mean_width / 3


def test_every_method_is_measured_on_the_same_cases() -> None:
    found = measured(of_sum(SUMS[4], 20), 200, seed=1)
    assert tuple(found) == WAYS
    assert found["now"].held > 0.93 > found["before"].held > found["BCa"].held > found["Student's t"].held
