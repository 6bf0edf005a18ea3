"""A whole run from a Simulation to its Summary: the wiring of queue, mechanism, world and measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome, TimeSummary


def job(number: int, submit_s: float, work_s: float, gpus: int = 1) -> SimJob:
    return SimJob(number=number, job=str(number), submit_s=submit_s, work_s=work_s, gpus=gpus)


# Two GPUs. The second job wants both and holds up the third in FIFO, though there is a GPU for it.
JOBS = (job(0, 0, 100), job(1, 10, 50, gpus=2), job(2, 20, 30))
ASKED = Simulation(jobs=JOBS, servers=make_equal_servers(1, gpus=2, cpus=6, mem_gb=125))


def test_fifo_without_rounds_waits_for_the_head() -> None:
    outcome, summary = run_simulation(ASKED)
    assert replace(outcome, steps=0) == SimOutcome(
        mode="rounds",
        began_s=(0.0, 100.0, 150.0),
        ended_s=(100.0, 150.0, 180.0),
        held_s=(100.0, 50.0, 30.0),
        servers=(1, 1, 1),
    )
    assert summary == TimeSummary(
        jobs=3,
        makespan_s=180.0,
        mean_jct_s=400 / 3,
        median_jct_s=140.0,
        p95_jct_s=158.0,
        p99_jct_s=159.6,
        mean_queueing_s=220 / 3,
        p99_queueing_s=129.2,
        gpu_utilisation=230 / 360,
        preemptions=0,
    )


def test_the_policy_asked_for_orders_the_queue() -> None:
    outcome, summary = run_simulation(replace(ASKED, policy="srtf"))
    assert outcome.ended_s == (150.0, 90.0, 50.0)
    assert summary.preemptions == 3


def test_rounds_of_some_length_let_a_smaller_job_pass() -> None:
    outcome, _ = run_simulation(replace(ASKED, round_s=10.0))
    assert outcome.ended_s == (100.0, 150.0, 50.0)


def test_a_window_measures_its_jobs_and_ends_with_them() -> None:
    outcome, summary = run_simulation(replace(ASKED, window=range(1)))
    assert (summary.jobs, summary.mean_jct_s, outcome.ended_s) == (1, 100.0, (100.0, None, None))


def test_progress_is_told_as_jobs_end() -> None:
    told: list[tuple[int, int]] = []
    run_simulation(ASKED, lambda ended, total: told.append((ended, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_on_slurm_nothing_is_taken_back() -> None:
    outcome, summary = run_simulation(replace(ASKED, mode="slurm", policy="srtf"))
    assert (outcome.mode, outcome.held_s, summary.preemptions) == ("slurm", (100.0, 50.0, 30.0), 0)


def test_a_mechanism_that_takes_back_is_refused_on_slurm() -> None:
    with pytest.raises(ValueError, match=r"'tune' needs leases that end: proportional or graded"):
        run_simulation(replace(ASKED, mode="slurm", mechanism="tune"))


@pytest.mark.parametrize("word", [{"mode": "none"}, {"policy": "none"}, {"mechanism": "none"}])
def test_a_word_that_nobody_knows_is_refused(word: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"there is no .* 'none'"):
        run_simulation(replace(ASKED, **word))


@pytest.mark.parametrize(("model", "servers"), [("vgg16", 1), ("resnet50", 2), ("unheard-of", 2)])
def test_on_slurm_placement_by_skew_waits_for_one_server_where_the_model_needs_it(model: str, servers: int) -> None:
    jobs = (job(0, 0, 60, gpus=2), job(1, 0, 500, gpus=2), replace(job(2, 10, 50, gpus=2), model=model))
    two = make_equal_servers(2, gpus=3, cpus=9, mem_gb=187.5)
    outcome, _ = run_simulation(Simulation(jobs=jobs, servers=two, mode="slurm", placement="skew"))
    assert outcome.servers == (1, 1, servers)
