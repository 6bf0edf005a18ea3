"""Which job of a sweep gets the next trial."""

from __future__ import annotations

from slurmwrap.gsub.prerun_job import choose_next, has_time


def test_the_job_with_the_most_untested_arguments_is_next_and_ties_go_to_the_first() -> None:
    waiting = {1: ("--heads=4", "--lr=b"), 2: ("--heads=5", "--lr=b"), 3: ("--heads=5", "--lr=a")}
    assert choose_next(waiting, {"--heads=4", "--lr=a"}) == 2
    assert choose_next(waiting, {"--heads=4", "--heads=5", "--lr=a", "--lr=b"}) == 1


def test_no_trial_starts_that_would_exceed_the_time_budget() -> None:
    assert has_time(100, 20, 120)
    assert not has_time(101, 20, 120)
    assert not has_time(3, 3, 0)
