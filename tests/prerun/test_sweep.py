"""Which job of a sweep is tried next."""

from __future__ import annotations

from slurmwrap.gsub.prerun_job import choose_next, has_time


def test_the_job_with_most_that_never_passed_is_next_and_of_equals_the_first() -> None:
    waiting = {1: ("--heads=4", "--lr=b"), 2: ("--heads=5", "--lr=b"), 3: ("--heads=5", "--lr=a")}
    assert choose_next(waiting, {"--heads=4", "--lr=a"}) == 2
    assert choose_next(waiting, {"--heads=4", "--heads=5", "--lr=a", "--lr=b"}) == 1


def test_no_trial_begins_that_would_end_behind_the_budget() -> None:
    assert has_time(100, 20, 120)
    assert not has_time(101, 20, 120)
    assert not has_time(3, 3, 0)
