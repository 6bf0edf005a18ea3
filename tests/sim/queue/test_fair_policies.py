"""Themis's finish-time fairness and dominant resource fairness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurmwrap.sim.queue_policies import Active, Themis, make_dominant_share
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

Make = Callable[..., Active]
SERVERS = make_equal_servers(2, gpus=4, cpus=16, mem_gb=100)


def job(number: int, user: str, gpus: int = 1, cpus: int | None = None) -> SimJob:
    return SimJob(number=number, job=str(number), submit_s=number, work_s=100.0, gpus=gpus, user=user, cpus=cpus)


def test_themis_serves_the_job_first_that_is_latest_compared_with_its_part(active: Make) -> None:
    """Of two jobs on four GPUs, each has a part of two: the job of four GPUs would take twice as long there."""
    policy = Themis(work_s=np.array([100.0, 100.0]), total_gpus=4)
    columns = active(2, gpus=[4, 1], left_s=[100.0, 100.0])
    assert policy.order(columns, 50.0).tolist() == [1, 0]
    # Waiting makes it worse for the job of one GPU, unless the other one has waited twice as long.
    assert policy.order(active(2, gpus=[4, 1], left_s=[100.0, 20.0]), 200.0).tolist() == [1, 0]
    assert policy.order(active(2, gpus=[4, 1], left_s=[320.0, 10.0]), 220.0).tolist() == [0, 1]


def test_themis_counts_the_mean_number_of_jobs_since_the_submission(active: Make) -> None:
    policy = Themis(work_s=np.full(9, 100.0), total_gpus=4)
    policy.order(active(9, gpus=4), 10.0)
    # Alone from now on: the part of the first job grows from a ninth towards the whole cluster.
    early = active(1, gpus=4)
    policy.order(early, 20.0)
    policy.order(early, 1000.0)
    assert 1.0 < (policy._job_seconds - policy._before[0]) / 1000.0 < 1.2


def test_drf_gives_the_next_job_to_the_user_with_the_least_dominant_share(active: Make) -> None:
    jobs = [job(0, "ada"), job(1, "ada"), job(2, "ada"), job(3, "eve", gpus=2), job(4, "eve")]
    # ada 1/8, eve 2/8, ada 2/8; with equal shares the job that was submitted first.
    assert make_dominant_share(jobs, SERVERS).order(active(5), 9.0).tolist() == [0, 3, 1, 2, 4]


def test_drf_counts_the_scarcest_resource(active: Make) -> None:
    jobs = [job(0, "ada", cpus=16), job(1, "ada"), job(2, "eve"), job(3, "eve"), job(4, "eve"), job(5, "eve")]
    assert make_dominant_share(jobs, SERVERS).order(active(6), 9.0).tolist() == [0, 2, 3, 4, 5, 1]


def test_without_users_drf_is_first_come_first_served(active: Make) -> None:
    jobs = [job(number, "") for number in range(4)]
    assert make_dominant_share(jobs, SERVERS).order(active(4), 9.0).tolist() == [0, 1, 2, 3]
