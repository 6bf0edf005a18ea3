"""Queue policies with one criterion: submission, remaining time, GPUs or fairness."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from slurmwrap.sim.queue_policies import Active, Fifo, FinishTimeFairness, FirstFit, Las, Policy, Smallest, Srsf, Srtf

Make = Callable[..., Active]


def test_fifo_orders_by_submission_and_ignores_running_jobs(active: Make) -> None:
    assert Fifo().order(active(3, left_s=[9, 1, 5], running=[2]), 10.0).tolist() == [0, 1, 2]


def test_first_fit_puts_running_jobs_first(active: Make) -> None:
    assert FirstFit().order(active(4, running=[1, 3]), 10.0).tolist() == [1, 3, 0, 2]


def test_srtf_orders_by_remaining_time_at_the_last_speed(active: Make) -> None:
    assert Srtf().order(active(3, left_s=[100, 90, 200], speed=[1, 1, 4]), 0.0).tolist() == [2, 1, 0]


def test_srsf_orders_by_remaining_time_multiplied_by_gpus(active: Make) -> None:
    assert Srsf().order(active(3, left_s=[100, 90, 40], gpus=[1, 2, 4]), 0.0).tolist() == [0, 2, 1]


def test_smallest_orders_by_gpus_only(active: Make) -> None:
    assert Smallest().order(active(3, left_s=[1, 2, 3], gpus=[4, 1, 2]), 0.0).tolist() == [1, 2, 0]


def test_plain_las_orders_by_held_gpu_seconds(active: Make) -> None:
    assert Las().order(active(3, held_s=[50, 30, 20], gpus=[1, 1, 4]), 0.0).tolist() == [1, 0, 2]


def test_ftf_puts_the_job_with_the_largest_relative_delay_first(active: Make) -> None:
    # at 100 s: rho = (100 + 10)/10, (99 + 1000)/1000, (98 + 50)/100
    waiting = active(3, left_s=[10, 1000, 50])
    work = np.array([10.0, 1000.0, 100.0])
    assert FinishTimeFairness(work_s=work).order(waiting, 100.0).tolist() == [0, 2, 1]
    assert FinishTimeFairness(work_s=work, worst_first=False).order(waiting, 100.0).tolist() == [1, 2, 0]


@pytest.mark.parametrize("policy", [Fifo(), Srtf(), Srsf(), Smallest(), Las(), FirstFit()], ids=lambda p: p.name)
def test_equal_jobs_stay_in_the_order_of_submission(active: Make, policy: Policy) -> None:
    assert policy.order(active(40), 50.0).tolist() == list(range(40))


@pytest.mark.parametrize(
    ("policy", "quiet_s"),
    [(Fifo(), inf), (FirstFit(), inf), (Srtf(), inf), (Srsf(), inf), (Smallest(), inf), (Las(), 0.0)],
    ids=lambda value: getattr(value, "name", None),
)
def test_quiet_s_of_each_policy(active: Make, policy: Policy, quiet_s: float) -> None:
    assert policy.quiet_s(active(2, running=[0]), 0.0) == quiet_s


def test_only_fifo_is_in_turn() -> None:
    assert Fifo().in_turn
    assert not any(policy.in_turn for policy in (FirstFit(), Srtf(), Srsf(), Smallest(), Las()))
