"""The lease clock: when rounds begin and leases end."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.sim.engines.job_table import LeaseClock, make_lease_clock

ROUNDS = LeaseClock(first_s=300.0, round_s=300.0)
EVENTS = LeaseClock(first_s=0.0, round_s=0.0)


@pytest.mark.parametrize(
    ("submits", "first_s"),
    [([0.0, 0.099], 1.0), ([0.0, 500.0], 0.0), ([8.0, 500.0], 300.0), ([409.0, 500.0], 600.0), ([300.0, 500.0], 300.0)],
)
def test_the_time_of_the_first_round(submits: list[float], first_s: float) -> None:
    assert make_lease_clock(submits, 300.0) == LeaseClock(first_s=first_s, round_s=300.0)


def test_without_rounds_one_beat_is_one_second_of_the_trace() -> None:
    clock = make_lease_clock([8.0, 500.0], 0.0)
    assert (clock.at(12.5), clock.beat(12.5), clock.beat_s, clock.end(10.0, 2.5)) == (12.5, 12.5, 1.0, 12.5)


def test_a_job_ends_at_the_end_of_a_round() -> None:
    assert [ROUNDS.end(5, beats) for beats in (0.0, 0.4, 1.0, 1.0 + 1e-12, 1.1)] == [6, 6, 6, 6, 7]


def test_the_next_look_is_at_the_next_possible_change() -> None:
    assert [ROUNDS.look(5, quiet) for quiet in (0.0, 300.0, 301.0, inf)] == [6, 6, 7, inf]
    assert EVENTS.look(5, 0.25) == 5.25


@given(st.floats(0, 1e8), st.sampled_from([0.1, 7.0, 300.0]), st.floats(0, 1e8))
def test_a_submission_belongs_to_the_first_round_that_begins_at_or_after_it(
    first_s: float, round_s: float, moment_s: float
) -> None:
    clock = LeaseClock(first_s=first_s, round_s=round_s)
    beat = clock.beat(moment_s)
    assert clock.at(beat) >= moment_s
    assert beat == 0 or clock.at(beat - 1) < moment_s + 1e-6
