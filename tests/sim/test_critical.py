"""Only the critical jobs of a round move to the front of the queue."""

import numpy as np

from slurmwrap.sim.engines.rounds_engine import move_critical_first
from slurmwrap.sim.queue_policies import Active


def make_active(left_s: list[float], gpus: list[int] | None = None) -> Active:
    count = len(left_s)
    return Active(
        number=np.arange(count),
        submit_s=np.zeros(count),
        gpus=np.array(gpus or [1] * count),
        left_s=np.array(left_s),
        speed=np.ones(count),
        held_s=np.zeros(count),
        running=np.zeros(count, dtype=np.bool_),
    )


def list_order(left_s: list[float], *, best: list[float], gpus: int, wide: list[int] | None = None) -> list[int]:
    jobs = make_active(left_s, wide)
    order = np.argsort(jobs.left_s, kind="stable")
    return [int(at) for at in move_critical_first(order, jobs, np.array(best), gpus, 1.5)]


def test_a_job_longer_than_all_other_work_together_goes_first() -> None:
    assert list_order([100.0, 200.0, 2000.0], best=[1.0, 1.0, 1.0], gpus=4) == [2, 0, 1]


def test_a_job_that_could_catch_up_at_its_best_speed_keeps_its_place() -> None:
    assert list_order([100.0, 200.0, 2000.0], best=[1.0, 1.0, 3.0], gpus=4) == [0, 1, 2]


def test_no_job_is_critical_if_much_work_waits() -> None:
    assert list_order([1000.0] * 40 + [2000.0], best=[1.0] * 41, gpus=4) == list(range(41))


def test_jobs_count_with_all_their_gpus() -> None:
    assert list_order([100.0, 900.0], best=[1.0, 1.0], gpus=4) == [1, 0]
    assert list_order([100.0, 900.0], best=[1.0, 1.0], gpus=4, wide=[1, 4]) == [0, 1]


def test_several_critical_jobs_keep_their_order() -> None:
    assert list_order([10.0, 3000.0, 2500.0], best=[1.0, 1.0, 1.0], gpus=8) == [2, 1, 0]
