"""When a running job ends: by its own progress, else by earlier runs, and whether its time limit comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.model.run_time import FROM_RUNS, FROM_USER, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.profiling.progress_estimate import EndForecast, RunProgress, estimate_from_progress, forecast_end

START = 1_000_000.0
NOW = START + 1000
QUARTER = ShownProgress(done=100, total=400, left_s=3000)
SEEN = RunProgress(at=NOW, shown=QUARTER)


def make_history(median_s: float, source: str = FROM_RUNS, n: int = 14) -> RunTimeEstimate:
    """Return an estimate whose quantiles go evenly from half of the median to one and a half."""
    return RunTimeEstimate(quantiles_s=tuple(median_s * (0.5 + level) for level in QUANTILE_LEVELS), source=source, n=n)


def forecast(**changes) -> EndForecast | None:
    return forecast_end(**{"now": NOW, "start": START, "limit_s": None, **changes})


def test_progress_gives_the_end_and_a_later_bound() -> None:
    found = forecast(progress=SEEN)
    assert found is not None
    assert (round(found.at - NOW), found.source, found.progress) == (3000, "progress", QUARTER)
    assert found.by - NOW == pytest.approx(3000 * 1.21, rel=0.01)


@pytest.mark.parametrize(
    ("limit_s", "share"),
    [(None, None), (5000, None), (4000, None), (3000, 0.75), (900, 0.25)],
)
def test_the_share_that_is_done_at_the_time_limit(limit_s: float | None, share: float | None) -> None:
    found = forecast(progress=SEEN, limit_s=limit_s)
    assert found is not None
    assert found.share_at_limit == (None if share is None else pytest.approx(share))


def test_the_rate_of_the_step_counter_is_used_if_it_counts_the_same_steps() -> None:
    faster = replace(SEEN, count=110, count_at=NOW + 10, count_per_s=0.29)
    assert forecast(now=NOW + 10, progress=faster).at == pytest.approx(NOW + 10 + 1000)
    # It counts optimizer steps, and the output counts four batches for each.
    assert forecast(progress=replace(faster, count=25)).at == pytest.approx(NOW + 3000)


def test_a_resumed_run_is_measured_by_two_looks() -> None:
    resumed = replace(SEEN, shown=replace(QUARTER, left_s=None))
    assert forecast(progress=resumed) is None
    assert forecast(progress=replace(resumed, seen_per_s=0.5)).at == pytest.approx(NOW + 600)


def test_time_since_the_last_line_counts_and_an_end_that_has_passed_is_no_forecast() -> None:
    assert forecast(now=NOW + 100, progress=SEEN).at == pytest.approx(NOW + 3000)
    assert forecast(now=NOW + 3050, progress=SEEN) is not None
    assert forecast(now=NOW + 4000, progress=SEEN) is None


def test_without_progress_earlier_runs_that_lasted_longer_than_this_one_count() -> None:
    history = make_history(2000.0)
    found = forecast(history=history)
    assert (found.source, found.n, found.progress) == (FROM_RUNS, 14, None)
    # At 1000 s none of them had ended, at 1500 s a quarter.
    assert found.at == pytest.approx(START + 2000)
    assert forecast(now=START + 1500, history=history).at == pytest.approx(START + 2250, abs=5)
    assert forecast(now=START + 9000, history=history) is None
    assert forecast() is None


def test_progress_counts_more_than_history_unless_it_is_that_of_one_epoch() -> None:
    assert forecast(progress=SEEN, history=make_history(5000.0)).source == "progress"
    assert forecast(progress=SEEN, history=make_history(50_000.0)).source == FROM_RUNS
    assert forecast(progress=SEEN, history=make_history(50_000.0, n=2)).source == "progress"
    assert forecast(progress=SEEN, history=make_history(50_000.0, source=FROM_USER)).source == "progress"


def test_the_estimate_is_wider_at_the_beginning() -> None:
    early, late = (estimate_from_progress(10.0, 1000.0, share) for share in (0.05, 0.5))
    assert early.p50_s == late.p50_s == 1010.0
    assert early.p90_s > late.p90_s > 1010.0 > late.p10_s > early.p10_s
