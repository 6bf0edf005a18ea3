"""Two jobs on one GPU in the simulated Slurm: who joins whom, at which speeds, and when the GPU is free again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.profiling.colocation import GpuDemand, predict_pair
from slurmwrap.sim.engines.gpu_sharing import PackSettings, find_gpu_util, is_willing
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome, TimeSummary

ALL = PackSettings(consent=1.0)
# Speed of two jobs that use 30 % of their GPU each.
SPEED = predict_pair(GpuDemand(gpu_util=0.3), GpuDemand(gpu_util=0.3)).speed


def job(number: int, work_s: float, submit_s: float = 0.0, user: str = "ada", util: float = 0.3, **more: int) -> SimJob:
    known = {"gpus": 1, **more}
    return SimJob(number=number, job=str(number), submit_s=submit_s, work_s=work_s, user=user, gpu_util=util, **known)  # type: ignore[arg-type]


def play(*jobs: SimJob, gpus: int = 1, pack: PackSettings = ALL) -> tuple[SimOutcome, TimeSummary]:
    servers = make_equal_servers(1, gpus=gpus, cpus=6, mem_gb=100)
    return run_simulation(Simulation(jobs=jobs, servers=servers, mode="slurm", pack=pack))


def test_a_job_that_waits_joins_and_both_are_slower_until_one_ends() -> None:
    outcome, summary = play(job(0, 1000), job(1, 1000))
    first = 60 + 940 / SPEED
    assert 0.9 < SPEED < 1
    assert outcome.began_s == (0.0, 60.0)
    assert outcome.ended_s == (pytest.approx(first), pytest.approx(first + 60))
    assert (outcome.packed, outcome.shared_s) == (1, pytest.approx(first - 60))
    assert summary.gpu_utilisation == pytest.approx(1.0)


def test_the_gpu_is_free_when_both_have_ended() -> None:
    outcome, _ = play(job(0, 100), job(1, 1000), job(2, 10, user="eve"))
    assert outcome.began_s[2] == outcome.ended_s[1]


def test_the_guest_may_end_first() -> None:
    outcome, _ = play(job(0, 1000), job(1, 94), job(2, 10, user="eve"))
    assert outcome.ended_s[:2] == (pytest.approx(1000 + 94 / SPEED - 94), pytest.approx(60 + 94 / SPEED))
    assert outcome.began_s[2] == outcome.ended_s[0]


@pytest.mark.parametrize(
    ("second", "pack"),
    [
        (job(1, 10, user="eve"), ALL),
        (job(1, 10, util=1.0), ALL),
        (job(1, 10), replace(ALL, consent=0.0)),
    ],
    ids=["of another user", "pair is bad", "nobody consents"],
)
def test_no_job_joins(second: SimJob, pack: PackSettings) -> None:
    outcome, _ = play(job(0, 1000, util=1.0 if second.gpu_util == 1.0 else 0.3), second, pack=pack)
    assert (outcome.packed, outcome.began_s) == (0, (0.0, 1000.0))


def test_a_gpu_is_shared_by_two_at_most() -> None:
    outcome, _ = play(job(0, 1000), job(1, 1000), job(2, 1000))
    assert outcome.began_s[:2] == (0.0, 60.0)
    assert outcome.began_s[2] == outcome.ended_s[0]  # it joins the one that is alone then


def test_a_job_joins_the_one_with_which_both_run_fastest() -> None:
    outcome, _ = play(job(0, 1000, util=0.6), job(1, 1000, util=0.1), job(2, 1000), gpus=2)
    assert outcome.ended_s[0] == 1000.0
    assert outcome.ended_s[1] is not None
    assert outcome.ended_s[1] > 1000.0


def test_utilizations_that_the_trace_does_not_have_are_drawn_around_the_mean() -> None:
    unknown = [replace(job(number, 1.0), gpu_util=None) for number in range(2000)]
    drawn = [find_gpu_util(one, replace(ALL, mean_util=0.4)) for one in unknown]
    assert sum(drawn) / len(drawn) == pytest.approx(0.4, abs=0.02)
    assert find_gpu_util(job(0, 1.0, util=0.25), ALL) == 0.25


def test_a_share_of_the_jobs_consents() -> None:
    assert sum(is_willing(job(number, 1.0), replace(ALL, consent=0.25)) for number in range(2000)) in range(430, 570)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 900), st.integers(0, 900), st.sampled_from("ab"), st.floats(0, 1)),
        min_size=1,
        max_size=14,
    )
)
def test_every_job_ends_and_no_gpu_is_counted_twice(rows: list[tuple[int, int, int, str, float]]) -> None:
    rows.sort(key=lambda row: row[2])
    jobs = [
        replace(job(number, work_s, submit_s, user, util), gpus=gpus)
        for number, (gpus, work_s, submit_s, user, util) in enumerate(rows)
    ]
    outcome, summary = play(*jobs, gpus=4)
    assert summary.jobs == len(jobs)
    assert all(held >= one.work_s - 1e-6 for held, one in zip(outcome.held_s, jobs, strict=True))
    assert summary.gpu_utilisation <= 1 + 1e-9
