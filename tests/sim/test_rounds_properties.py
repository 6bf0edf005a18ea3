"""Properties of the mode rounds for every trace, policy, round length and placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.allocate import allocate_proportional
from slurmwrap.sim.arrays import Ints
from slurmwrap.sim.engines.rounds_engine import play_rounds
from slurmwrap.sim.queue_policies import POLICIES, Active, Policy, make_policy
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome

SERVERS = make_equal_servers(2, gpus=4, cpus=16, mem_gb=256)
GPUS = 8

names = st.sampled_from([*POLICIES, "fjf", "sjf"])
placements = st.sampled_from(["any", "consolidate", "skew"])
round_lengths = st.sampled_from([0.0, 7.0, 300.0])
options = settings(max_examples=30, deadline=None)


@st.composite
def traces(draw: st.DrawFn) -> tuple[SimJob, ...]:
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 13, 250, 4000]), min_size=1, max_size=14))
    work = st.sampled_from([0, 1, 20, 299, 300, 301, 1800, 9000])
    gpus, model = st.sampled_from([1, 1, 2, 3, 4, 6, 8]), st.sampled_from(["", "vgg16", "resnet50"])
    return tuple(
        SimJob(
            number=n, job=f"job-{n}", submit_s=float(at), work_s=float(draw(work)), gpus=draw(gpus), model=draw(model)
        )
        for n, at in enumerate(np.cumsum(gaps))
    )  # fmt: skip


def play(jobs: Sequence[SimJob], policy: Policy, round_s: float, placement: str) -> SimOutcome:
    return play_rounds(jobs, SERVERS, policy, allocate_proportional, profiles={}, round_s=round_s, placement=placement)


@dataclass(slots=True, kw_only=True)
class RecordingPolicy:
    """Wraps a policy and records the number of GPUs in use at every call."""

    policy: Policy
    used: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def in_turn(self) -> bool:
        return self.policy.in_turn

    def order(self, active: Active, now: float) -> Ints:
        self.used.append(int(active.gpus[active.running].sum()))
        return self.policy.order(active, now)

    def quiet_s(self, active: Active, now: float) -> float:
        self.used.append(int(active.gpus[active.running].sum()))
        return self.policy.quiet_s(active, now)


@options
@given(traces(), names, round_lengths, placements)
def test_every_job_ends_after_holding_its_gpus_for_its_work(
    jobs: tuple[SimJob, ...], name: str, round_s: float, placement: str
) -> None:
    outcome = play(jobs, make_policy(name, jobs), round_s, placement)
    for job, began, ended, held in zip(jobs, outcome.began_s, outcome.ended_s, outcome.held_s, strict=True):
        needed = max(1, ceil(job.work_s / round_s)) * round_s if round_s else job.work_s
        assert began is not None and ended is not None
        assert held == pytest.approx(needed)
        assert job.submit_s <= began <= ended
        assert held <= ended - job.submit_s + 1e-6


@options
@given(traces(), names, round_lengths, placements)
def test_no_more_gpus_are_held_than_the_cluster_has(
    jobs: tuple[SimJob, ...], name: str, round_s: float, placement: str
) -> None:
    recorder = RecordingPolicy(policy=make_policy(name, jobs))
    play(jobs, recorder, round_s, placement)
    assert max(recorder.used, default=0) <= GPUS


@options
@given(traces(), names, round_lengths, placements)
def test_job_and_user_names_do_not_change_the_outcome(
    jobs: tuple[SimJob, ...], name: str, round_s: float, placement: str
) -> None:
    renamed = tuple(replace(job, job=f"z{len(jobs) - job.number}", user="somebody") for job in jobs)
    assert play(jobs, make_policy(name, jobs), round_s, placement) == play(
        renamed, make_policy(name, renamed), round_s, placement
    )


@options
@given(traces(), names, placements)
def test_a_job_alone_ends_after_its_work(jobs: tuple[SimJob, ...], name: str, placement: str) -> None:
    alone = (replace(jobs[-1], number=0),)
    assert play(alone, make_policy(name, alone), 0.0, placement).ended_s == (alone[0].submit_s + alone[0].work_s,)


@options
@given(traces(), st.sampled_from(["fifo", "srtf", "srsf", "sjf", "fjf"]))
def test_without_rounds_the_outcome_equals_a_step_by_step_simulation(jobs: tuple[SimJob, ...], name: str) -> None:
    ended = play(jobs, make_policy(name, jobs), 0.0, "any").ended_s
    assert ended == pytest.approx(simulate_step_by_step(jobs, name))


def simulate_step_by_step(jobs: Sequence[SimJob], name: str) -> list[float]:
    """The end times of a plain simulation that decides everything again at every event."""
    left, ended = {job.number: job.work_s for job in jobs}, [-1.0] * len(jobs)
    now, runs = jobs[0].submit_s, set[int]()

    def key(job: SimJob) -> tuple[float, ...]:
        keys = {
            "fifo": 0.0,
            "srtf": left[job.number],
            "srsf": left[job.number] * job.gpus,
            "sjf": float(job.gpus),
            "fjf": float(job.number not in runs),
        }
        return keys[name], job.number

    while left:
        for number in [number for number, rest in left.items() if rest <= 0 and number in runs]:
            ended[number] = now
            del left[number]
            runs.discard(number)
        waiting = sorted((job for job in jobs if job.submit_s <= now and job.number in left), key=key)
        free, runs = GPUS, set()
        for job in waiting:
            if job.gpus <= free:
                runs.add(job.number)
                free -= job.gpus
            elif name == "fifo":
                break
        coming = [job.submit_s - now for job in jobs if job.submit_s > now]
        step = min([*coming, *(left[number] for number in runs)], default=0.0)
        for number in runs:
            left[number] -= step
        now += step
    return ended
