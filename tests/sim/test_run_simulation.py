"""A whole run from a Simulation to its summary: queue, mechanism, engine and measures together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome, TimeSummary, compute_fairness


def job(number: int, submit_s: float, work_s: float, gpus: int = 1) -> SimJob:
    return SimJob(number=number, job=str(number), submit_s=submit_s, work_s=work_s, gpus=gpus)


# Two GPUs. The second job needs both, and in FIFO the third waits behind it although one GPU is free.
JOBS = (job(0, 0, 100), job(1, 10, 50, gpus=2), job(2, 20, 30))
SIMULATION = Simulation(jobs=JOBS, servers=make_equal_servers(1, gpus=2, cpus=6, mem_gb=125))


def test_fifo_without_rounds_waits_for_the_first_job() -> None:
    outcome, summary = run_simulation(SIMULATION)
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


def test_the_selected_policy_orders_the_queue() -> None:
    outcome, summary = run_simulation(replace(SIMULATION, policy="srtf"))
    assert outcome.ended_s == (150.0, 90.0, 50.0)
    assert summary.preemptions == 3


def test_in_rounds_a_smaller_job_may_pass() -> None:
    outcome, _ = run_simulation(replace(SIMULATION, round_s=10.0))
    assert outcome.ended_s == (100.0, 150.0, 50.0)


def test_a_window_measures_only_its_jobs_and_ends_with_them() -> None:
    outcome, summary = run_simulation(replace(SIMULATION, window=range(1)))
    assert (summary.jobs, summary.mean_jct_s, outcome.ended_s) == (1, 100.0, (100.0, None, None))


def test_progress_is_reported_as_jobs_end() -> None:
    reports: list[tuple[int, int]] = []
    run_simulation(SIMULATION, lambda ended, total: reports.append((ended, total)))
    assert reports == [(1, 3), (2, 3), (3, 3)]


def test_in_mode_slurm_no_job_is_preempted() -> None:
    outcome, summary = run_simulation(replace(SIMULATION, mode="slurm", policy="srtf"))
    assert (outcome.mode, outcome.held_s, summary.preemptions) == ("slurm", (100.0, 50.0, 30.0), 0)


def test_in_mode_slurm_a_mechanism_that_needs_leases_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'tune' needs leases that end: proportional or graded"):
        run_simulation(replace(SIMULATION, mode="slurm", mechanism="tune"))


@pytest.mark.parametrize("word", [{"mode": "none"}, {"policy": "none"}, {"mechanism": "none"}])
def test_an_unknown_mode_policy_or_mechanism_is_refused(word: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"there is no .* 'none'"):
        run_simulation(replace(SIMULATION, **word))


@pytest.mark.parametrize(("model", "servers"), [("vgg16", 1), ("resnet50", 2), ("unheard-of", 2)])
def test_in_mode_slurm_only_a_skewed_model_waits_for_one_server(model: str, servers: int) -> None:
    jobs = (job(0, 0, 60, gpus=2), job(1, 0, 500, gpus=2), replace(job(2, 10, 50, gpus=2), model=model))
    two = make_equal_servers(2, gpus=3, cpus=9, mem_gb=187.5)
    outcome, _ = run_simulation(Simulation(jobs=jobs, servers=two, mode="slurm", placement="skew"))
    assert outcome.servers == (1, 1, servers)


def test_fairness_compares_each_user_with_an_equal_part_of_the_cluster() -> None:
    """Two GPUs: while both users have jobs, the job of two GPUs would take twice as long on its user's part."""
    jobs = (replace(job(0, 0, 100, gpus=2), user="ada"), replace(job(1, 0, 100), user="eve"))
    outcome, _ = run_simulation(replace(SIMULATION, jobs=jobs))
    assert outcome.ended_s == (100.0, 200.0)
    # ada: 100 s instead of 200 s; eve: 200 s instead of 100 s.
    assert compute_fairness(jobs, outcome, SIMULATION.servers) == {"eve": 2.0, "ada": 0.5}


def test_fairness_is_empty_without_users() -> None:
    assert compute_fairness(JOBS, run_simulation(SIMULATION)[0], SIMULATION.servers) == {}
