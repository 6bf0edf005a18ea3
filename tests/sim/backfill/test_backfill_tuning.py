"""Tuning of waiting jobs in the Slurm model: which jobs are tuned, when and by how much."""

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
SHARE = 10 * 1024  # MiB per GPU
PARAMS = SchedulerParams(resolution_s=0.0, group_s=0.0, backfill_s=30.0)
GRADED: Mechanism = partial(allocate, policy="graded", settings=GradedSettings())
HUNGRY = ResourceProfile(
    key="hungry", surface=tuple(SpeedPoint(cpus=c, mem_mib=1024, speed=c / 3) for c in (1, 2, 3, 4, 5, 6))
)
LIGHT = ResourceProfile(key="light", surface=(SpeedPoint(cpus=1, mem_mib=1024, speed=1.0),))
KNOWN = {"hungry": HUNGRY, "light": LIGHT}


def job(number: int, model: str, work_s: float = 600.0, **more: object) -> SimJob:
    known = {"submit_s": 0.0, "gpus": 1, **more}
    return SimJob(number=number, job=str(number), work_s=work_s, model=model, **known)  # type: ignore[arg-type]


def run(jobs: Sequence[SimJob], mechanism: Mechanism | None = GRADED, world: SchedulerParams = PARAMS) -> SimOutcome:
    return play_backfill(jobs, ONE, world=world, mechanism=mechanism, profiles=KNOWN)


def test_a_single_job_is_submitted_with_at_most_its_share() -> None:
    outcome = run([job(0, "hungry")])
    assert (outcome.began_s, outcome.ended_s, outcome.updates) == ((0.0,), (600.0,), 0)


def test_waiting_jobs_divide_the_cpus_that_light_jobs_do_not_need() -> None:
    """Four light jobs need one CPU each, so 20 are left for four hungry jobs, five each."""
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run(jobs, world=replace(PARAMS, opens_s=60.0))
    assert outcome.began_s == (60.0,) * 8
    assert outcome.ended_s[:4] == (660.0,) * 4
    assert outcome.ended_s[4:] == pytest.approx((420.0,) * 4)
    assert outcome.updates == 8  # CPUsPerTask and MinCPUsNode of each; memory was tuned at submission


def test_running_jobs_keep_their_cpus() -> None:
    """The first jobs start at once with their share; later allocations apply only to waiting jobs."""
    jobs = [job(n, "hungry", 600.0) for n in range(8)] + [job(8, "hungry", 600.0)]
    outcome = run(jobs)
    assert outcome.ended_s[:8] == (600.0,) * 8


def test_the_rate_limit_restricts_the_number_of_updates() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    slow = run(jobs, world=replace(PARAMS, opens_s=1.0, updates_per_s=2.0))
    assert slow.updates == 2


def test_only_the_head_of_the_queue_is_tuned() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    assert run(jobs, world=replace(PARAMS, opens_s=60.0, head=4)).updates == 0


def test_no_job_gets_more_than_its_share_before_a_job_that_is_not_tuned() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run([*jobs, job(8, "unknown")], world=replace(PARAMS, opens_s=60.0))
    assert (outcome.ended_s[4:8], outcome.updates) == ((660.0,) * 4, 0)


def test_without_a_mechanism_each_job_gets_its_share() -> None:
    jobs = [job(n, "light") for n in range(4)] + [job(n, "hungry") for n in range(4, 8)]
    outcome = run(jobs, None, replace(PARAMS, opens_s=60.0))
    assert (outcome.ended_s, outcome.updates) == ((660.0,) * 8, 0)


def test_with_a_mechanism_jobs_are_submitted_after_the_lag_of_gsub() -> None:
    world = replace(PARAMS, lag_s=0.5)
    assert run([job(0, "light")], world=world).began_s == (0.5,)
    assert run([job(0, "light")], None, world).began_s == (0.0,)


def test_the_mechanism_gets_waiting_jobs_in_order_and_free_gpus() -> None:
    seen: list[tuple[list[str], list[int]]] = []

    def record_calls(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        seen.append(([claim.job for claim in claims], [server.gpus_free for server in servers]))
        return allocate(claims, servers, "proportional")

    jobs = [job(0, "light", gpus=6), job(1, "light", gpus=8), job(2, "light", gpus=4)]
    run(jobs, record_calls)
    assert (["1", "2"], [2]) in seen
    assert all(names == sorted(names) for names, _ in seen)


def test_run_time_is_unchanged_with_the_cpus_of_the_trace() -> None:
    """It ran 600 s with 6 CPUs, at twice the speed of its share, and requests the same CPUs."""
    outcome = run([job(0, "hungry", 600.0, cpus=6)], None)
    assert outcome.held_s == pytest.approx((600.0,))


def test_an_excessive_allocation_does_not_block_jobs_forever() -> None:
    def greedy(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        return [Allocation(job=claim.job, cpus=25.0, mem_mib=1024, servers=("n0",)) for claim in claims]

    outcome = run([job(n, "hungry") for n in range(3)], greedy, replace(PARAMS, opens_s=60.0))
    assert outcome.ended_s == (660.0,) * 3
