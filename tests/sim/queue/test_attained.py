"""2D-LAS: the queues, when jobs are demoted, and when they are promoted."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from slurmwrap.sim.queue_policies import Active, Queues

Make = Callable[..., Active]


def test_the_job_with_the_least_service_is_in_the_first_queue(active: Make) -> None:
    policy = Queues(jobs=3)
    assert policy.order(active(3, held_s=[8000, 4000, 0]), 9000.0).tolist() == [2, 1, 0]
    assert [policy.level(number) for number in range(3)] == [2, 1, 0]


def test_service_is_time_multiplied_by_gpus(active: Make) -> None:
    policy = Queues(jobs=2)
    assert policy.order(active(2, held_s=[1000, 1000], gpus=[4, 1]), 2000.0).tolist() == [1, 0]


def test_a_job_that_reaches_a_threshold_goes_to_the_end_of_the_next_queue(active: Make) -> None:
    policy = Queues(jobs=3, thresholds=(100.0,))
    policy.order(active(3, held_s=[0, 150, 0]), 150.0)
    assert policy.order(active(3, held_s=[100, 150, 0], running=[0]), 250.0).tolist() == [2, 1, 0]


def test_running_jobs_go_before_waiting_jobs_of_the_same_queue(active: Make) -> None:
    policy = Queues(jobs=3)
    policy.order(active(3), 0.0)
    assert policy.order(active(3, held_s=[0, 50, 50], running=[1, 2]), 50.0).tolist() == [1, 2, 0]


def test_a_preempted_job_keeps_its_place_among_the_waiting_jobs(active: Make) -> None:
    policy = Queues(jobs=4)
    policy.order(active(4, held_s=[9, 9, 0, 0], running=[0, 1]), 9.0)
    assert policy.order(active(4, held_s=[9, 20, 0, 0], running=[1]), 20.0).tolist() == [1, 0, 2, 3]


def test_quiet_s_lasts_until_a_running_job_reaches_its_threshold(active: Make) -> None:
    jobs = active(3, held_s=[3000, 100, 3249], gpus=[1, 4, 1], running=[0, 1])
    policy = Queues(jobs=3, late_jumps=False)
    policy.order(jobs, 0.0)
    assert policy.quiet_s(jobs, 0.0) == 250.0


def test_late_jumps_ignore_gpus_as_the_code_of_tiresias_does(active: Make) -> None:
    jobs = active(1, held_s=101, gpus=[4], running=[0])
    late, exact = Queues(jobs=1), Queues(jobs=1, late_jumps=False)
    assert late.quiet_s(jobs, 0.0) == (3250 - 101) // 4
    assert exact.quiet_s(jobs, 0.0) == 3250 / 4 - 101


def test_quiet_s_includes_the_last_fraction_of_a_second(active: Make) -> None:
    jobs = active(1, held_s=3249.6, gpus=[1], running=[0])
    policy = Queues(jobs=1)
    policy.order(jobs, 0.0)
    assert policy.quiet_s(jobs, 0.0) == pytest.approx(0.4)


def test_quiet_s_is_infinite_if_no_job_runs(active: Make) -> None:
    assert Queues(jobs=2).quiet_s(active(2), 0.0) == inf


def test_a_job_that_waits_too_long_is_promoted_and_its_service_is_reset(active: Make) -> None:
    policy = Queues(jobs=2, thresholds=(100.0,), promote=2.0)
    policy.order(active(2, held_s=[100, 0], running=[0]), 100.0)
    waits = active(2, held_s=[100, 50], running=[1])
    policy.order(waits, 150.0)
    assert policy.level(0) == 1
    # until job 1 reaches its threshold; job 0 waits 150 s more
    assert policy.quiet_s(waits, 150.0) == pytest.approx(50.0)
    late = active(2, held_s=[100, 100], running=[1])
    policy.order(late, 300.0)
    assert policy.order(late, 301.0).tolist() == [0, 1]
    assert policy.level(0) == 0
    assert policy.service(late).tolist() == [0.0, 100.0]


def test_without_promote_no_job_is_promoted(active: Make) -> None:
    policy = Queues(jobs=1, thresholds=(100.0,))
    policy.order(active(1, held_s=100, running=[0]), 100.0)
    policy.order(active(1, held_s=100), 1e9)
    assert policy.level(0) == 1
