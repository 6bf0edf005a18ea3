"""The Gittins index, and queues ordered by it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.sim.queue_policies import Active, Gittins, make_gittins_index

Make = Callable[..., Active]
PAST = np.array([40.0, 10.0, 20.0])


def test_the_index_is_the_chance_to_end_divided_by_the_expected_service() -> None:
    # a = 0, D = 15: one of three jobs ends after 10; the other two take 15 each
    assert make_gittins_index(PAST, 15.0).at(np.array([0.0]))[0] == pytest.approx((1 / 3) / ((10 + 15 + 15) / 3))
    # a = 12: of the jobs of 20 and 40 one ends within 15, after 8
    assert make_gittins_index(PAST, 15.0).at(np.array([12.0]))[0] == pytest.approx((1 / 2) / ((8 + 15) / 2))


def test_without_a_quantum_the_index_is_one_over_the_mean_remaining_service() -> None:
    assert make_gittins_index(PAST, inf).at(np.array([0.0, 15.0])) == pytest.approx([3 / 70, 2 / 30])


def test_the_index_is_zero_beyond_the_longest_known_service() -> None:
    assert make_gittins_index(PAST, 15.0).at(np.array([40.0, 1e9])).tolist() == [0.0, 0.0]


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    st.integers(1, 500),
    st.lists(st.integers(0, 1200), min_size=1, max_size=10),
)
def test_the_index_equals_its_definition(past: list[int], quantum: int, attained: list[int]) -> None:
    found = make_gittins_index(np.array(past, dtype=np.float64), float(quantum)).at(
        np.array(attained, dtype=np.float64)
    )
    for a, index in zip(attained, found.tolist(), strict=True):
        left = [service - a for service in past if service > a]
        ends = sum(one <= quantum for one in left)
        assert index == pytest.approx(ends / sum(min(one, quantum) for one in left) if left else 0.0)


def test_within_a_queue_the_job_with_the_highest_index_is_first(active: Make) -> None:
    policy = Gittins(jobs=3, thresholds=(100.0,), index=make_gittins_index(np.array([10.0, 50.0, 52.0, 500.0]), 5.0))
    assert policy.order(active(3, held_s=[0, 49, 8]), 60.0).tolist() == [1, 2, 0]


def test_the_queues_come_before_the_index(active: Make) -> None:
    policy = Gittins(jobs=2, thresholds=(100.0,), index=make_gittins_index(np.array([10.0, 110.0]), 5.0))
    assert policy.order(active(2, held_s=[108, 0]), 200.0).tolist() == [1, 0]
