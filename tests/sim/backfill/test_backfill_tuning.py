"""Waiting jobs that are tuned while they wait, in the model: when, how much, and whose requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server, SpeedPoint
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome

ONE = make_equal_servers(1, gpus=8, cpus=24, mem_gb=80)
SHARE = 10 * 1024  # MiB of a GPU
WORLD = SchedulerParams(resolution_s=0.0, group_s=0.0, backfill_s=30.0)
GRADED: Mechanism = partial(allocate, policy="graded", settings=GradedSettings())
HUNGRY = ResourceProfile(
    key="hungry", surface=tuple(SpeedPoint(cpus=c, mem_mib=1024, speed=c / 3) for c in (1, 2, 3, 4, 5, 6))
)
LIGHT = ResourceProfile(key="light", surface=(SpeedPoint(cpus=1, mem_mib=1024, speed=1.0),))
KNOWN = {"hungry": HUNGRY, "light": LIGHT}


def job(number: int, model: str, work_s: float = 600.0, **more: object) -> SimJob:
    known = {"submit_s": 0.0, "gpus": 1, **more}
    return SimJob(number=number, job=str(number), work_s=work_s, model=model, **known)  # type: ignore[arg-type]


def run(jobs: Sequence[SimJob], mechanism: Mechanism | None = GRADED, world: SchedulerParams = WORLD) -> SimOutcome:
    return play_backfill(jobs, ONE, world=world, mechanism=mechanism, profiles=KNOWN)


def test_a_lone_job_is_submitted_with_its_share_at_most() -> None:
    outcome = run([job(0, "hungry")])
    assert (outcome.began_s, outcome.ended_s, outcome.updates) == ((0.0,), (600.0,), 0)


def test_waiting_jobs_divide_what_light_ones_leave() -> None:
    """Four light jobs keep a CPU each: twenty are left for four hungry ones, five each."""
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run(jobs, world=replace(WORLD, opens_s=60.0))
    assert outcome.began_s == (60.0,) * 8
    assert outcome.ended_s[:4] == (660.0,) * 4
    assert outcome.ended_s[4:] == pytest.approx((420.0,) * 4)
    assert outcome.updates == 8  # CPUsPerTask and MinCPUsNode of each: their memory was tuned when they were submitted


def test_who_runs_keeps_what_he_has() -> None:
    """The first start at their share at once: what the mechanism wants later is for those that still wait."""
    jobs = [job(n, "hungry", 600.0) for n in range(8)] + [job(8, "hungry", 600.0)]
    outcome = run(jobs)
    assert outcome.ended_s[:8] == (600.0,) * 8


def test_no_more_updates_than_the_bucket_holds() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    slow = run(jobs, world=replace(WORLD, opens_s=1.0, updates_per_s=2.0))
    assert slow.updates == 2


def test_only_the_head_of_the_queue_is_tuned() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    assert run(jobs, world=replace(WORLD, opens_s=60.0, head=4)).updates == 0


def test_nobody_has_more_than_his_share_in_front_of_a_job_that_is_not_tuned() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run([*jobs, job(8, "unknown")], world=replace(WORLD, opens_s=60.0))
    assert (outcome.ended_s[4:8], outcome.updates) == ((660.0,) * 4, 0)


def test_without_a_mechanism_everybody_has_his_share() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run(jobs, None, replace(WORLD, opens_s=60.0))
    assert (outcome.ended_s, outcome.updates) == ((660.0,) * 8, 0)


def test_gsub_comes_a_little_later_than_sbatch() -> None:
    world = replace(WORLD, lag_s=0.5)
    assert run([job(0, "light")], world=world).began_s == (0.5,)
    assert run([job(0, "light")], None, world).began_s == (0.0,)


def test_the_mechanism_sees_waiting_jobs_in_order_and_what_is_free() -> None:
    seen: list[tuple[list[str], list[int]]] = []

    def watching(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        seen.append(([claim.job for claim in claims], [server.gpus_free for server in servers]))
        return allocate(claims, servers, "proportional")

    jobs = [job(0, "light", gpus=6), job(1, "light", gpus=8), job(2, "light", gpus=4)]
    run(jobs, watching)
    assert (["1", "2"], [2]) in seen
    assert all(names == sorted(names) for names, _ in seen)


def test_a_profile_says_how_long_a_job_takes_with_what_it_asked() -> None:
    """It ran 600 s with 6 CPUs, that is at twice the speed of its share, and it asks for them again."""
    outcome = run([job(0, "hungry", 600.0, cpus=6)], None)
    assert outcome.held_s == pytest.approx((600.0,))


def test_a_mechanism_that_asks_for_more_than_there_is_makes_nobody_wait_for_ever() -> None:
    def greedy(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        return [Allocation(job=claim.job, cpus=25.0, mem_mib=1024, servers=("n0",)) for claim in claims]

    outcome = run([job(n, "hungry") for n in range(3)], greedy, replace(WORLD, opens_s=60.0))
    assert outcome.ended_s == (660.0,) * 3
