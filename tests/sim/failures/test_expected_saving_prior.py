"""The constants of prerun/expected_saving.py are what Philly's table 7 and its trace give."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest

from slurmwrap.prerun import expected_saving
from slurmwrap.sim.failures.draw_failures import curve_of, is_shown_alone
from slurmwrap.sim.failures.published_rates import (
    FAILING_JOBS,
    PHILLY,
    compute_late_seen_share,
    compute_rehearsed_share,
    compute_seen_share,
)
from slurmwrap.sim.trace.read_trace import read_load

TRACE = Path(__file__).parents[2] / "data" / "traces" / "philly.csv.gz"
# A job of each class of GPU demand.
GPUS = (1, 4, 8)
_QUANTILES = (np.arange(20_000) + 0.5) / 20_000


def collect_failures(column: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (run times, weights) of the failures that one GPU shows, by jobs; the weights of all causes sum to 1."""
    times, weights = [], []
    in_all = sum(cause.by_demand[column] / cause.repetition for cause in PHILLY)
    for cause in PHILLY:
        if is_shown_alone(cause.category, GPUS[column]) and not cause.transient:
            times.append(np.array([curve_of(cause).seconds(float(q)) for q in _QUANTILES[::20]]))
            weights.append(
                np.full(len(times[-1]), cause.by_demand[column] / cause.repetition / in_all / len(times[-1]))
            )
    return np.concatenate(times), np.concatenate(weights)


@pytest.mark.parametrize("column", range(3))
def test_the_shares_of_early_and_late_failures_are_table_7s(column: int) -> None:
    times, weights = collect_failures(column)
    early = times <= expected_saving.EARLY_S
    assert expected_saving.EARLY_FAILURES[column] == pytest.approx(FAILING_JOBS * weights[early].sum(), abs=0.001)
    assert expected_saving.LATE_FAILURES[column] == pytest.approx(FAILING_JOBS * weights[~early].sum(), abs=0.001)


def test_what_a_failure_loses_is_table_7s_run_time_to_failure() -> None:
    parts = [collect_failures(column) for column in range(3)]
    in_all = [sum(cause.by_demand[column] / cause.repetition for cause in PHILLY) for column in range(3)]
    times = np.concatenate([times for times, _ in parts])
    weights = np.concatenate([weights * total for (_, weights), total in zip(parts, in_all, strict=True)])
    early = times <= expected_saving.EARLY_S
    assert np.average(times[early], weights=weights[early]) == pytest.approx(expected_saving.EARLY_LOSS_S, rel=0.02)
    for run_s, lost_s in expected_saving.LATE_LOSS_S:
        mean = np.average(np.minimum(times[~early], run_s), weights=weights[~early])
        assert mean == pytest.approx(lost_s, rel=0.02)


def test_the_run_times_are_those_of_philly() -> None:
    jobs = read_load(TRACE).jobs
    for column, wanted in enumerate(expected_saving.PHILLY_RUN_S):
        found = [job.work_s for job in jobs if expected_saving.get_gpu_class(job.gpus) == column]
        assert median(found) == pytest.approx(wanted, abs=1)


def test_the_share_that_is_seen_early_is_the_measured_one() -> None:
    assert abs(expected_saving.SEEN_EARLY - compute_seen_share()) < 0.01
    assert abs(expected_saving.SEEN_LATE - compute_rehearsed_share() * compute_late_seen_share()) < 0.01
