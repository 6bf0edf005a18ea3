"""The pending queue: it keeps the order of its policy while jobs join and leave."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.sim.engines.pending_queue import PendingSimJob, make_pending_queue
from slurmwrap.sim.engines.sim_request import make_ask
from slurmwrap.sim.queue_policies import POLICIES, Active, make_policy
from slurmwrap.sim.sim_job import SimJob


def make_pending(job: SimJob) -> PendingSimJob:
    return PendingSimJob(
        place=job.number, job=job, nodes=None, cpus=1.0, mem_mib=1.0, asked=(1.0, 1.0),
        ask=make_ask(job.gpus, None, 1.0, 1.0), length_s=1.0,
    )  # fmt: skip


def make_active(jobs: list[SimJob]) -> Active:
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
def test_the_pending_queue_has_the_order_of_its_policy(
    policy: str, drawn: list[tuple[float, int, bool]], most: int
) -> None:
    """A job with `leaves` set leaves directly after it joined."""
    jobs = [
        SimJob(number=n, job=str(n), submit_s=float(n // 2), work_s=work_s, gpus=gpus)
        for n, (work_s, gpus, _) in enumerate(drawn)
    ]
    queue = make_pending_queue(jobs, make_policy(policy, jobs))
    for job, (_, _, leaves) in zip(jobs, drawn, strict=True):
        pending = make_pending(job)
        queue.join(pending)
        if leaves:
            queue.leave(pending)
    stay = [job for job, (_, _, leaves) in zip(jobs, drawn, strict=True) if not leaves]
    order = make_policy(policy, jobs).order(make_active(stay), 20.0)
    expected = [stay[at].number for at in order[:most]]
    assert [pending.place for pending in queue.first(most, 20.0)] == expected
    assert [pending.place for pending in queue.walk(most, 20.0)] == expected
    assert len(queue) == len(stay)


@given(policy=st.sampled_from(POLICIES), drawn=st.lists(sizes, min_size=1, max_size=12))
def test_a_job_may_leave_the_queue_while_walk_iterates(policy: str, drawn: list[tuple[float, int, bool]]) -> None:
    jobs = [
        SimJob(number=n, job=str(n), submit_s=0.0, work_s=work_s, gpus=gpus)
        for n, (work_s, gpus, _) in enumerate(drawn)
    ]
    queue = make_pending_queue(jobs, make_policy(policy, jobs))
    for job in jobs:
        queue.join(make_pending(job))
    expected = [pending.place for pending in queue.first(len(jobs), 20.0)]
    found = []
    for pending in queue.walk(len(jobs), 20.0):
        found.append(pending.place)
        if drawn[pending.place][2]:
            queue.leave(pending)
    assert found == expected
