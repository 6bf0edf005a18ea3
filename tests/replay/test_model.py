"""The model of Slurm's queue, and what `graded` reaches in it. Deterministic: no clock, no Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay.bound import best_found, least_makespan
from replay.generator import static_jobs
from replay.model import SHARE, Policy, Waiting, World, by_allocate, cluster, geometric_mean, play, points
from replay.tracefile import DATA, TraceJob, read_trace

from slurmwrap.placement.claim import SpeedPoint

SPEEDS = points(DATA / "profiles" / "synergy_profiles.csv")
WORLD = World(servers=cluster())
ONE = World(servers=cluster(1), limit_factor=1.0)
FLAT = {"flat": (SpeedPoint(cpus=1, mem_mib=1, speed=1.0),)}


def jobs(*works: float, gpus: int = 1) -> tuple[TraceJob, ...]:
    return tuple(
        TraceJob(number=number, model="flat", submit_s=0.0, work_s=work, gpus=gpus) for number, work in enumerate(works)
    )


def asking(**requests: tuple[float, int]) -> Policy:
    """Requests by job number, given before anything starts; the share for all others."""
    return lambda now, waiting, rooms: {
        one.job.number: requests.get(f"job{one.job.number}", (SHARE[0], SHARE[1])) for one in waiting
    }


def test_jobs_start_in_turn_as_soon_as_they_fit() -> None:
    played = play(jobs(*[100.0] * 9), FLAT, ONE, None)
    assert played.began == (0.0,) * 8 + (100.0,)
    assert played.makespan == 200.0


def test_a_job_behind_one_that_does_not_fit_waits_for_the_backfill_scheduler() -> None:
    """24 CPUs: job 1 must wait for all of them, job 2 ends before job 0 does."""
    policy = asking(job1=(24.0, 1000))
    world = replace(ONE, backfill_s=30.0)
    assert play(jobs(100.0, 100.0, 60.0), FLAT, world, policy).began == (0.0, 100.0, 0.0)


def test_a_long_job_does_not_delay_the_one_in_front_of_it() -> None:
    policy = asking(job1=(24.0, 1000))
    assert play(jobs(100.0, 100.0, 150.0), FLAT, ONE, policy).began == (0.0, 100.0, 200.0)


def test_a_running_job_keeps_what_it_has() -> None:
    def policy(now: float, waiting: list[Waiting], rooms: object) -> dict[int, tuple[float, int]]:
        return {one.job.number: (1.0, 1000) if now else (3.0, 1000) for one in waiting}

    played = play(jobs(*[1000.0] * 10), FLAT, replace(ONE, tick_s=10.0), policy)
    assert played.cpus == (3.0,) * 8 + (1.0,) * 2


def test_a_tick_changes_no_more_requests_than_allowed() -> None:
    def policy(now: float, waiting: list[Waiting], rooms: object) -> dict[int, tuple[float, int]]:
        return {one.job.number: (1.0 + (now > 0), 1000) for one in waiting}

    played = play(jobs(*[15.0] * 12), FLAT, replace(ONE, tick_s=10.0, updates=3), policy)
    assert played.cpus == (1.0,) * 8 + (2.0,) * 3 + (1.0,)


@pytest.fixture(scope="module")
def ratios() -> list[float]:
    """Makespan of proportional over that of graded, seeds 1 to 10."""
    queues = [static_jobs(seed) for seed in range(1, 11)]
    tuned = [play(queue, SPEEDS, WORLD, by_allocate(SPEEDS)).makespan for queue in queues]
    return [play(queue, SPEEDS, WORLD, None).makespan / span for queue, span in zip(queues, tuned, strict=True)]


def test_graded_is_well_ahead_of_proportional_on_generated_queues(ratios: list[float]) -> None:
    assert geometric_mean(ratios) >= 1.08
    assert min(ratios) >= 1.0


@pytest.mark.parametrize("seed", range(3))
def test_and_on_the_shipped_trace_whatever_the_small_delays(seed: int) -> None:
    trace = read_trace(DATA / "traces" / "synergy_static100.csv")
    world = replace(WORLD, jitter_s=120.0, seed=seed)
    plain, tuned = play(trace, SPEEDS, world, None), play(trace, SPEEDS, world, by_allocate(SPEEDS))
    assert plain.makespan / tuned.makespan >= 1.2


def test_no_schedule_is_shorter_than_the_proven_bound() -> None:
    trace = static_jobs(1, count=40)
    bound = least_makespan(trace, SPEEDS, cluster(1))
    world = World(servers=cluster(1))
    found, _ = best_found(trace, SPEEDS, world, tries=10)
    assert bound <= found <= play(trace, SPEEDS, world, None).makespan


def test_the_bound_of_jobs_that_nothing_speeds_up_is_what_the_gpus_take() -> None:
    assert least_makespan(jobs(*[100.0] * 16), FLAT, cluster(1)) == pytest.approx(200.0)
    assert least_makespan(jobs(100.0, 700.0), FLAT, cluster(1)) == 700.0
