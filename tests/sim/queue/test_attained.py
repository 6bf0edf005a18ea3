"""2D-LAS: the queues, who jumps when, and who is called back."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from slurmwrap.sim.queue_policies import Active, Queues

Make = Callable[..., Active]


def test_who_has_had_least_is_in_the_first_queue(active: Make) -> None:
    policy = Queues(jobs=3)
    assert policy.order(active(3, held_s=[8000, 4000, 0]), 9000.0).tolist() == [2, 1, 0]
    assert [policy.level(number) for number in range(3)] == [2, 1, 0]


def test_gpus_multiply_the_service(active: Make) -> None:
    policy = Queues(jobs=2)
    assert policy.order(active(2, held_s=[1000, 1000], gpus=[4, 1]), 2000.0).tolist() == [1, 0]


def test_a_job_that_reaches_the_threshold_goes_behind_those_already_there(active: Make) -> None:
    policy = Queues(jobs=3, thresholds=(100.0,))
    policy.order(active(3, held_s=[0, 150, 0]), 150.0)
    assert policy.order(active(3, held_s=[100, 150, 0], running=[0]), 250.0).tolist() == [2, 1, 0]


def test_who_runs_goes_on_before_equals_that_wait(active: Make) -> None:
    policy = Queues(jobs=3)
    policy.order(active(3), 0.0)
    assert policy.order(active(3, held_s=[0, 50, 50], running=[1, 2]), 50.0).tolist() == [1, 2, 0]


def test_who_was_stopped_keeps_its_place_among_the_waiting(active: Make) -> None:
    policy = Queues(jobs=4)
    policy.order(active(4, held_s=[9, 9, 0, 0], running=[0, 1]), 9.0)
    assert policy.order(active(4, held_s=[9, 20, 0, 0], running=[1]), 20.0).tolist() == [1, 0, 2, 3]


def test_it_is_quiet_until_the_next_of_who_runs_reaches_its_threshold(active: Make) -> None:
    jobs = active(3, held_s=[3000, 100, 3249], gpus=[1, 4, 1], running=[0, 1])
    policy = Queues(jobs=3, late_jumps=False)
    policy.order(jobs, 0.0)
    assert policy.quiet_s(jobs, 0.0) == 250.0


def test_late_jumps_forget_the_gpus_as_the_authors_code_does(active: Make) -> None:
    jobs = active(1, held_s=101, gpus=[4], running=[0])
    late, exact = Queues(jobs=1), Queues(jobs=1, late_jumps=False)
    assert late.quiet_s(jobs, 0.0) == (3250 - 101) // 4
    assert exact.quiet_s(jobs, 0.0) == 3250 / 4 - 101


def test_the_last_fraction_of_a_second_before_a_threshold_is_waited_for(active: Make) -> None:
    jobs = active(1, held_s=3249.6, gpus=[1], running=[0])
    policy = Queues(jobs=1)
    policy.order(jobs, 0.0)
    assert policy.quiet_s(jobs, 0.0) == pytest.approx(0.4)


def test_without_anybody_running_it_is_quiet_for_good(active: Make) -> None:
    assert Queues(jobs=2).quiet_s(active(2), 0.0) == inf


def test_who_waits_long_after_it_ran_is_called_back_and_counts_from_nothing(active: Make) -> None:
    policy = Queues(jobs=2, thresholds=(100.0,), promote=2.0)
    policy.order(active(2, held_s=[100, 0], running=[0]), 100.0)
    waits = active(2, held_s=[100, 50], running=[1])
    policy.order(waits, 150.0)
    assert policy.level(0) == 1
    assert policy.quiet_s(waits, 150.0) == pytest.approx(50.0)  # the other's threshold; then 150 s more for the first
    late = active(2, held_s=[100, 100], running=[1])
    policy.order(late, 300.0)
    assert policy.order(late, 301.0).tolist() == [0, 1]
    assert policy.level(0) == 0
    assert policy.service(late).tolist() == [0.0, 100.0]


def test_without_the_knob_nobody_is_called_back(active: Make) -> None:
    policy = Queues(jobs=1, thresholds=(100.0,))
    policy.order(active(1, held_s=100, running=[0]), 100.0)
    policy.order(active(1, held_s=100), 1e9)
    assert policy.level(0) == 1
