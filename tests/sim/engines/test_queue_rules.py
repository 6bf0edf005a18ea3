"""The rules `order` and `limit` in the simulated queue: causal, starvation-free, and neutral where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.config.load_config import Order
from slurmwrap.policy.queue_order import WAIT_FACTOR
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.engines.queue_rules import QueueRules, draw_user_limit_s, make_queue_rules
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

ONE_GPU = make_equal_servers(1, gpus=1, cpus=8, mem_gb=64)
HOUR = 3600.0


def make_jobs(*rows: tuple[float, float, str], gpus: int = 1) -> tuple[SimJob, ...]:
    """Jobs of (submission, run time, user)."""
    return tuple(
        SimJob(number=n, job=str(n), submit_s=at, work_s=run_s, gpus=gpus, user=user)
        for n, (at, run_s, user) in enumerate(rows)
    )


# 30 runs of two users: short ones take a minute, long ones ten hours.
PAST = make_jobs(*[(0.0, 60.0, "short"), (0.0, 10 * HOUR, "long")] * 15)
BUSY = (0.0, HOUR, "other")


def starts(
    jobs: tuple[SimJob, ...], order: str, *, limits: str = "", history: tuple[SimJob, ...] = PAST
) -> list[float]:
    asked = Simulation(jobs=jobs, servers=ONE_GPU, mode="slurm", order=order, limits=limits, history=history)
    return [began for began in run_simulation(asked)[0].began_s if began is not None]


@pytest.mark.parametrize("order", ["shortest", "gittins", "srtf", "exact"])
def test_the_job_with_the_shorter_run_time_starts_first(order: str) -> None:
    jobs = make_jobs(BUSY, (1.0, 10 * HOUR, "long"), (2.0, 60.0, "short"))
    assert starts(jobs, "")[1:] == sorted(starts(jobs, "")[1:])
    began = starts(jobs, order)
    assert began[2] < began[1]


def test_what_a_job_really_takes_is_not_known_before_it_ends() -> None:
    # Both jobs take the contrary of what their users' jobs took before.
    jobs = make_jobs(BUSY, (1.0, 60.0, "long"), (2.0, 10 * HOUR, "short"))
    began = starts(jobs, "shortest")
    assert began[2] < began[1]


def test_pending_jobs_are_classified_again_when_runs_have_ended() -> None:
    # The user's runs turn out to be short while the last job waits.
    new = [(1.0 + n, 60.0, "new") for n in range(12)]
    jobs = make_jobs((0.0, HOUR, "other"), *new, (20.0, HOUR, "other"))
    rules = make_queue_rules("shortest", "", history=PAST)
    assert rules is not None
    play_backfill(jobs, ONE_GPU, world=SchedulerParams(), rules=rules, profiles={})
    assert rules.moves > 0


def test_the_order_is_that_of_submission_while_too_few_runs_are_known() -> None:
    jobs = make_jobs(BUSY, (1.0, 10 * HOUR, "long"), (2.0, 60.0, "short"))
    assert starts(jobs, "shortest", history=PAST[:10]) == starts(jobs, "")


def test_failed_runs_are_no_evidence() -> None:
    failed = tuple(replace(job, status="FAILED") for job in PAST)
    jobs = make_jobs(BUSY, (1.0, 10 * HOUR, "long"), (2.0, 60.0, "short"))
    assert starts(jobs, "shortest", history=failed) == starts(jobs, "")


def test_a_long_job_is_passed_for_a_limited_time_only() -> None:
    # Short jobs arrive twice as fast as they end, for a day.
    flood = [(60.0 * n, 120.0, "short") for n in range(1440)]
    jobs = make_jobs(*flood[:10], (541.0, 2 * HOUR, "middle"), *flood[10:])
    past = (*PAST, *make_jobs(*[(0.0, 2 * HOUR, "middle")] * 10))
    began = starts(jobs, "shortest", history=past)
    waited = began[10] - 541.0
    # Without an order it waits for the jobs before it only, without the limit for all of them.
    assert starts(jobs, "")[10] < HOUR
    assert 0.75 * Order().most_wait_s < waited < Order().most_wait_s + WAIT_FACTOR * 2 * HOUR


def test_fewest_gpus_first_needs_no_prediction() -> None:
    servers = make_equal_servers(1, gpus=4, cpus=8, mem_gb=64)
    jobs = tuple(
        SimJob(number=n, job=str(n), submit_s=float(n), work_s=60.0, gpus=gpus) for n, gpus in enumerate((4, 4, 1))
    )
    asked = Simulation(jobs=jobs, servers=servers, mode="slurm", order="fewest-gpus")
    began = run_simulation(asked)[0].began_s
    assert began[2] < began[1]  # type: ignore[operator]


def test_a_users_limit_is_at_least_the_run_time_and_the_traces_own_comes_first() -> None:
    jobs = make_jobs(*[(0.0, 1000.0, "u")] * 200)
    factors = [draw_user_limit_s(job) / 1000.0 for job in jobs]
    assert all(1.2 <= factor <= 10 for factor in factors)
    assert max(factors) > 8
    assert min(factors) < 1.5
    assert draw_user_limit_s(replace(jobs[0], limit_s=77.0)) == 77.0


def test_a_predicted_limit_lets_backfill_start_a_job_in_a_gap_and_ends_no_job() -> None:
    servers = make_equal_servers(1, gpus=2, cpus=8, mem_gb=64)
    # One GPU is free for 4 h until the job of two GPUs may start; the last job's user asks for a day.
    jobs = (
        SimJob(number=0, job="0", submit_s=0.0, work_s=4 * HOUR, gpus=1, limit_s=4 * HOUR, user="a"),
        SimJob(number=1, job="1", submit_s=10.0, work_s=HOUR, gpus=2, limit_s=HOUR, user="b"),
        SimJob(number=2, job="2", submit_s=20.0, work_s=2 * HOUR, gpus=1, limit_s=24 * HOUR, user="c"),
    )
    past = make_jobs(*[(0.0, 1000.0, "c")] * 20)
    found = {}
    for limits in ("user", "predicted"):
        asked = Simulation(jobs=jobs, servers=servers, mode="slurm", limits=limits, history=past)
        outcome = run_simulation(asked)[0]
        found[limits] = outcome.began_s[2]
        # It outran its lowered limit, and still ran to its end.
        assert outcome.held_s[2] == 2 * HOUR
    assert found["predicted"] < HOUR < found["user"]  # type: ignore[operator]


@pytest.mark.parametrize(("order", "limits"), [("fastest", ""), ("", "guessed")])
def test_unknown_names_are_errors(order: str, limits: str) -> None:
    with pytest.raises(ValueError, match=r"there (is no order|are no limits)"):
        make_queue_rules(order, limits)
    with pytest.raises(ValueError, match=r"there (is no order|are no limits)"):
        run_simulation(Simulation(jobs=PAST[:1], servers=ONE_GPU, mode="slurm", order=order, limits=limits))


def test_no_rules_without_a_prediction() -> None:
    assert make_queue_rules("", "") is None
    assert make_queue_rules("exact", "") is None
    assert isinstance(make_queue_rules("shortest", ""), QueueRules)


def test_order_and_limits_need_the_mode_slurm() -> None:
    with pytest.raises(ValueError, match="mode slurm"):
        run_simulation(Simulation(jobs=PAST[:1], servers=ONE_GPU, order="shortest"))
