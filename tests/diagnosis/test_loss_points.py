"""Times of the points of a loss curve, and curves with fewer points."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slurmwrap.diagnosis.log_rows import clean_rows
from slurmwrap.diagnosis.loss_points import RunSpan, make_points, reduce_points
from slurmwrap.diagnosis.loss_rows import read_loss_rows
from slurmwrap.model.running_job import LossPoint

BEGAN = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
RUN_S = 4000.0


def read(text: str, began: float | None = BEGAN.timestamp(), zone_s: float = 0.0) -> list[LossPoint]:
    rows = read_loss_rows([(float(at), row) for at, row in enumerate(clean_rows(text))])
    return list(make_points(rows, RunSpan(run_s=RUN_S, began=began, zone_s=zone_s)))


def times(text: str, began: float | None = BEGAN.timestamp(), zone_s: float = 0.0) -> list[float]:
    return [round(point.at_s, 1) for point in read(text, began, zone_s)]


def log(form: str, offset_s: float = 0.0) -> str:
    """Return rows with a clock at 100, 1100 and 3100 s after the start of the run."""
    moments = [BEGAN + timedelta(seconds=offset_s + at) for at in (100, 1100, 3100)]
    return "".join(
        f"{at.strftime(form)} step {step}: loss {1 / step}\n" for step, at in zip((1, 2, 4), moments, strict=True)
    )


@pytest.mark.parametrize("hours", [0, 1, -7, 5.75])
def test_dates_are_placed_in_the_run_in_any_time_zone(hours: float) -> None:
    zone_s = hours * 3600
    assert times(log("%Y-%m-%d %H:%M:%S", zone_s), zone_s=zone_s) == [100, 1100, 3100]
    assert times(log("%Y-%m-%dT%H:%M:%S", zone_s), zone_s=7200.0 if hours != 2 else 0.0)[1:] != [0, 0]


def test_dates_of_an_unknown_zone_are_placed_by_the_end_of_the_run() -> None:
    assert times(log("%Y-%m-%d %H:%M:%S", 5 * 3600.0), zone_s=0.0) == [100, 1100, 3100]


def test_clocks_without_a_year_or_a_day_end_with_the_run() -> None:
    assert times(log("[%m/%d %H:%M:%S")) == [1000, 2000, 4000]
    assert times(log("%H:%M:%S")) == [1000, 2000, 4000]


def test_a_clock_may_pass_midnight() -> None:
    text = "23:59:00 step 1: loss 3\n00:01:00 step 2: loss 2\n00:03:00 step 3: loss 1\n"
    assert times(text) == [4000 - 240, 4000 - 120, 4000]


def test_a_log_that_is_longer_than_the_run_is_scaled() -> None:
    assert times("10:00:00 step 1: loss 3\n14:00:00 step 2: loss 2\n18:00:00 step 3: loss 1\n") == [0, 2000, 4000]


def test_progress_bars_give_times_over_epochs() -> None:
    bars = [(0, 1, "10:00"), (0, 2, "20:00"), (1, 1, "20:10"), (1, 2, "30:00")]
    text = "".join(
        f"Epoch {epoch}:  50%|██  | {done}/2 [{at}<00:10,  1.0it/s, loss={9 / (epoch + done)}]\r"
        for epoch, done, at in bars
    )
    assert times(text) == [4000 - 2400, 4000 - 1800, 4000 - 590, 4000]


def test_without_a_clock_steps_last_equally_long() -> None:
    text = "".join(f"step {step}: loss {1 / step}\n" for step in (10, 20, 40, 80))
    assert times(text) == [500, 1000, 2000, 4000]


def test_a_run_that_was_resumed_begins_at_its_first_step() -> None:
    text = "".join(f"step {step}: loss {1 / step}\n" for step in (5010, 5020, 5030, 5040))
    assert times(text) == [1000, 2000, 3000, 4000]


def test_a_counter_that_jumps_back_to_a_checkpoint_goes_on_in_time() -> None:
    text = "".join(f"step {step}: loss {1 / step + at / 1000}\n" for at, step in enumerate((10, 20, 30, 20, 30)))
    assert times(text) == [800, 1600, 2400, 3200, 4000]


def test_equal_times_are_spread() -> None:
    text = "".join(
        f"2026-03-01 10:00:{at} step {step}: loss {1 / step}\n" for step, at in enumerate(("10", "10", "20", "20"), 1)
    )
    assert times(text) == [10, 15, 20, 2010]


def test_times_ascend_and_stay_in_the_run() -> None:
    text = log("%Y-%m-%d %H:%M:%S") + log("%Y-%m-%d %H:%M:%S", -9999).replace("step 1:", "step 8:")
    found = times(text)
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] <= RUN_S


def test_a_curve_keeps_its_ends_its_lowest_values_and_its_validations() -> None:
    points = [LossPoint(at_s=float(i), step=float(i), loss=5.0 - i / 1000 + (i % 3)) for i in range(4000)]
    points[1234] = LossPoint(at_s=1234.0, step=1234.0, loss=-7.0)
    points[77] = LossPoint(at_s=77.0, step=77.0, validation_loss=0.5)
    found = reduce_points(points)
    assert len(found) <= 256
    assert {points[0], points[-1], points[1234], points[77]} <= set(found)
    assert set(found) <= set(points)
    assert list(found) == sorted(found, key=lambda point: point.at_s)
    assert reduce_points(points[:256]) == tuple(points[:256])


def test_spikes_are_not_what_is_kept() -> None:
    points = [LossPoint(at_s=float(i), loss=99.0 if i % 10 == 5 else 1.0) for i in range(5000)]
    assert sum(point.loss == 99.0 for point in reduce_points(points)) <= 2


def test_many_validations_are_thinned_out() -> None:
    points = [LossPoint(at_s=float(i), loss=1.0, validation_loss=float(9000 - i)) for i in range(9000)]
    assert len(reduce_points(points)) <= 256
