"""The line of who waits: as its policy orders them, whoever joins and leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.sim.engines.pending_queue import PendingSimJob, make_pending_queue
from slurmwrap.sim.engines.sim_request import make_ask
from slurmwrap.sim.queue_policies import POLICIES, Active, make_policy
from slurmwrap.sim.sim_job import SimJob


def waits(job: SimJob) -> PendingSimJob:
    return PendingSimJob(
        place=job.number, job=job, nodes=None, cpus=1.0, mem_mib=1.0, asked=(1.0, 1.0),
        ask=make_ask(job.gpus, None, 1.0, 1.0), length_s=1.0,
    )  # fmt: skip


def columns(jobs: list[SimJob]) -> Active:
    return Active(
        number=np.array([job.number for job in jobs], dtype=np.int64),
        submit_s=np.array([job.submit_s for job in jobs]),
        gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
        left_s=np.array([job.work_s for job in jobs]),
        speed=np.ones(len(jobs)),
        held_s=np.zeros(len(jobs)),
        running=np.zeros(len(jobs), dtype=np.bool_),
    )


sizes = st.tuples(st.sampled_from((1.0, 5.0, 5.0, 60.0)), st.integers(1, 3), st.booleans())


@settings(max_examples=80)
@given(policy=st.sampled_from(POLICIES), drawn=st.lists(sizes, min_size=1, max_size=12), most=st.integers(1, 13))
def test_the_line_stands_as_the_policy_would_sort_it(
    policy: str, drawn: list[tuple[float, int, bool]], most: int
) -> None:
    """Who has `leaves` set goes as soon as it has come."""
    jobs = [
        SimJob(number=n, job=str(n), submit_s=float(n // 2), work_s=work_s, gpus=gpus)
        for n, (work_s, gpus, _) in enumerate(drawn)
    ]
    line = make_pending_queue(jobs, make_policy(policy, jobs))
    for job, (_, _, leaves) in zip(jobs, drawn, strict=True):
        one = waits(job)
        line.join(one)
        if leaves:
            line.leave(one)
    stay = [job for job, (_, _, leaves) in zip(jobs, drawn, strict=True) if not leaves]
    order = make_policy(policy, jobs).order(columns(stay), 20.0)
    expected = [stay[at].number for at in order[:most]]
    assert [one.place for one in line.first(most, 20.0)] == expected
    assert [one.place for one in line.walk(most, 20.0)] == expected
    assert len(line) == len(stay)


@given(policy=st.sampled_from(POLICIES), drawn=st.lists(sizes, min_size=1, max_size=12))
def test_who_is_handed_out_may_leave_before_the_next_one(policy: str, drawn: list[tuple[float, int, bool]]) -> None:
    jobs = [
        SimJob(number=n, job=str(n), submit_s=0.0, work_s=work_s, gpus=gpus)
        for n, (work_s, gpus, _) in enumerate(drawn)
    ]
    line = make_pending_queue(jobs, make_policy(policy, jobs))
    for job in jobs:
        line.join(waits(job))
    expected = [one.place for one in line.first(len(jobs), 20.0)]
    found = []
    for one in line.walk(len(jobs), 20.0):
        found.append(one.place)
        if drawn[one.place][2]:
            line.leave(one)
    assert found == expected
