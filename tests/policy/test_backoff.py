"""When the next run may start: backoff, jitter and the hourly limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.policy.retry_budget import HOUR_S, compute_backoff_s, compute_spread, find_next_start


def test_the_wait_doubles_up_to_an_hour() -> None:
    assert [compute_backoff_s(60, spent) for spent in (0, 1, 2, 6, 100)] == [60, 120, 240, 3600, 3600]


def test_jitter_depends_on_the_job_and_is_repeatable() -> None:
    waits = [compute_backoff_s(60, 1, f"lab:{job_id}:0") for job_id in range(100)]
    assert waits == [compute_backoff_s(60, 1, f"lab:{job_id}:0") for job_id in range(100)]
    assert (min(waits) >= 120, max(waits) <= 150, len(set(waits)) > 20) == (True, True, True)


def test_without_backoff_there_is_no_jitter() -> None:
    assert compute_backoff_s(0, 3, "lab:81:0") == 0


@given(st.text())
def test_any_text_is_a_valid_seed(seed: str) -> None:
    assert 0 <= compute_spread(seed) < 1


@pytest.mark.parametrize(
    ("starts", "per_hour", "expected"),
    [
        ((), 1, 1000.0),
        ((900.0,), 2, 1000.0),
        ((900.0,), 1, 900 + HOUR_S),
        ((900.0, 900 + HOUR_S), 1, 900 + 2 * HOUR_S),
        ((900.0,) * 5, 0, 1000.0),  # no hourly limit
        ((1000.0 - HOUR_S,), 1, 1000.0),  # exactly one hour ago
        ((1500.0,), 1, 1500 + HOUR_S),  # a planned start counts too
        ((100.0, 5000.0, 5000.0), 2, 1000.0),
        ((900.0, 4000.0, 5000.0), 2, 4000 + HOUR_S),
    ],
)
def test_a_start_waits_until_the_hourly_limit_allows_it(
    starts: tuple[float, ...], per_hour: int, expected: float
) -> None:
    assert find_next_start(starts, 1000.0, per_hour) == expected


@given(st.lists(st.floats(0, 20_000), max_size=40), st.integers(1, 5))
def test_no_hour_has_more_starts_than_the_limit(requested: list[float], per_hour: int) -> None:
    starts: list[float] = []
    for earliest in requested:
        starts.append(find_next_start(starts, earliest, per_hour))
        assert starts[-1] >= earliest
    ordered = sorted(starts)
    assert all(last - first >= HOUR_S - 0.01 for first, last in zip(ordered, ordered[per_hour:], strict=False))
