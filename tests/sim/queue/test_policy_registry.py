"""Queue policies by name."""

from __future__ import annotations

import pytest

from slurmwrap.sim.queue_policies import POLICIES, Gittins, Las, Queues, make_policy
from slurmwrap.sim.sim_job import SimJob

JOBS = [SimJob(number=n, job=f"j{n}", submit_s=n, work_s=10.0 * n + 1, gpus=1 + n % 2) for n in range(5)]


def test_every_name_gives_the_policy_of_that_name() -> None:
    assert [make_policy(name, JOBS).name for name in POLICIES] == [
        "fifo",
        "srtf",
        "srsf",
        "2d-las",
        "2d-gittins",
        "ftf",
        "themis",
        "drf",
    ]


def test_the_policy_names_of_tiresias_are_accepted() -> None:
    assert isinstance(make_policy("2d-las", JOBS), Queues)
    assert isinstance(make_policy("2d-gittins", JOBS), Gittins)


def test_without_thresholds_las_is_plain() -> None:
    assert make_policy("las", JOBS, thresholds=()) == Las()


def test_every_call_makes_a_new_policy() -> None:
    assert make_policy("las", JOBS) is not make_policy("las", JOBS)


def test_the_history_of_gittins_is_the_service_of_the_jobs_of_the_trace() -> None:
    policy = make_policy("gittins", JOBS)
    assert isinstance(policy, Gittins)
    assert policy.index.ordered.tolist() == [1.0, 21.0, 22.0, 41.0, 62.0]


def test_an_unknown_policy_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no policy 'lottery': fifo, srtf, srsf, las, gittins, ftf"):
        make_policy("lottery", JOBS)
