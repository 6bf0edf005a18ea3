"""Synergy's queues in the simulator's slurm mode: results of `graded`, and lower bounds. Deterministic."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean

import pytest
from replay.bound import best_found, least_makespan
from replay.model import STATIC, by_allocate, cluster, makespan, play, points, profiles
from replay.tracefile import MATRICES, STATIC100, read_trace

from slurmwrap.placement.demand import SpeedPoint
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace import synergy_loads

KNOWN, SPEEDS, SERVERS = profiles(MATRICES), points(MATRICES), cluster()
FLAT = {"flat": (SpeedPoint(cpus=1, mem_mib=1, speed=1.0),)}


def make_jobs(*works: float) -> tuple[SimJob, ...]:
    return tuple(
        SimJob(number=number, job=str(number), model="flat", submit_s=0.0, work_s=work, gpus=1)
        for number, work in enumerate(works)
    )


@pytest.mark.parametrize("seeds", [(1, 2), pytest.param((1, 2, 3, 4, 5, 6), marks=pytest.mark.slow)])
def test_graded_beats_proportional_by_8_percent_on_generated_queues(seeds: tuple[int, ...]) -> None:
    """The ratio is the makespan of proportional over that of graded."""
    queues = [synergy_loads.generate_load(synergy_loads.STATIC, seed=seed) for seed in seeds]
    plain = [makespan(play(queue, KNOWN, SERVERS, STATIC, None), STATIC) for queue in queues]
    tuned = [makespan(play(queue, KNOWN, SERVERS, STATIC, by_allocate()), STATIC) for queue in queues]
    ratios = [before / after for before, after in zip(plain, tuned, strict=True)]
    assert geometric_mean(ratios) >= 1.08
    assert min(ratios) >= 1.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_graded_beats_proportional_by_20_percent_on_the_shipped_trace_with_jitter(seed: int) -> None:
    trace = read_trace(STATIC100)
    world = replace(STATIC, jitter_s=120.0, seed=seed)
    plain, tuned = play(trace, KNOWN, SERVERS, world, None), play(trace, KNOWN, SERVERS, world, by_allocate())
    assert makespan(plain, world) / makespan(tuned, world) >= 1.2


def test_no_schedule_is_shorter_than_the_lower_bound() -> None:
    trace, one = synergy_loads.generate_load(synergy_loads.STATIC, seed=1, jobs=40), cluster(1)
    bound = least_makespan(trace, SPEEDS, one)
    found, _ = best_found(trace, SPEEDS, one, STATIC, tries=10)
    assert bound <= found <= makespan(play(trace, KNOWN, one, STATIC, None), STATIC)


def test_the_lower_bound_of_jobs_with_constant_speed_is_their_gpu_time() -> None:
    assert least_makespan(make_jobs(*[100.0] * 16), FLAT, cluster(1)) == pytest.approx(200.0)
    assert least_makespan(make_jobs(100.0, 700.0), FLAT, cluster(1)) == 700.0
