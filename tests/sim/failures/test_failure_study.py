"""The whole failure study on small traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.errors import TraceError
from slurmwrap.sim.failures import FailureSettings, FailureStudy, run_failure_study
from slurmwrap.sim.failures.failure_study import select_middle
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

Trace = Callable[..., list[SimJob]]
SERVERS = make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)
SURE = FailureSettings(misread=0.0, unexplained_curable=0.0, false_fails=0.0)


def make_mixed_jobs(trace: Trace, count: int = 500) -> list[SimJob]:
    return trace(count, gpus=(1, 1, 1, 4, 8), work_s=(300.0, 3600.0, 14_400.0, 60_000.0, 600.0, 1800.0, 900.0))


@pytest.fixture(scope="module")
def study() -> FailureStudy:
    jobs = [
        SimJob(number=at, job="", submit_s=600.0 * at, work_s=(300.0, 3600.0, 60_000.0)[at % 3], gpus=(1, 4)[at % 2])
        for at in range(1500)
    ]
    return run_failure_study(jobs, servers=SERVERS, seeds=range(3))


def test_the_same_seeds_give_the_same_study(trace: Trace) -> None:
    jobs = make_mixed_jobs(trace, 150)
    assert run_failure_study(jobs, servers=SERVERS, seeds=(4, 5)) == run_failure_study(
        jobs, servers=SERVERS, seeds=(4, 5)
    )
    assert run_failure_study(jobs, servers=SERVERS, seeds=(4, 6)) != run_failure_study(
        jobs, servers=SERVERS, seeds=(4, 5)
    )


def test_costs_add_up_and_savings_are_relative_to_the_plain_arm(study: FailureStudy) -> None:
    plain = study.arm("plain").cost_gpu_hours.mean
    for arm in study.arms:
        parts = arm.wasted_gpu_hours.mean + arm.trial_gpu_hours.mean + arm.false_stop_gpu_hours.mean
        assert arm.cost_gpu_hours.mean == pytest.approx(parts)
        assert arm.saved_gpu_hours.mean == pytest.approx(plain - parts, abs=1e-6)


def test_costs_of_categories_add_up_to_those_of_the_arms(study: FailureStudy) -> None:
    for arm in study.arms:
        lost = sum(row.cost_gpu_hours[arm.name] for row in study.categories)
        assert lost == pytest.approx(arm.wasted_gpu_hours.mean + arm.false_stop_gpu_hours.mean)


def test_shares_equal_the_published_shares_and_built_in_ones_are_marked(study: FailureStudy) -> None:
    checks = {one.name: one for one in study.checks}
    assert {name: one.built_in for name, one in checks.items()} == {
        "jobs killed": True,
        "GPU time of killed jobs": True,
        "jobs unsuccessful": False,
        "GPU time of unsuccessful jobs": False,
        "jobs of both kinds": False,
        "GPU time of both": False,
    }
    assert checks["jobs killed"].here.mean == pytest.approx(0.135, abs=0.015)
    assert checks["jobs unsuccessful"].here.mean == pytest.approx(0.172, abs=0.02)
    assert checks["jobs of both kinds"].here.mean == pytest.approx(0.307, abs=0.025)


def test_a_transient_failure_is_stopped_only_by_a_budget(trace: Trace) -> None:
    """No log is misread, so every false stop is due to a budget."""
    arm = run_failure_study(make_mixed_jobs(trace), servers=SERVERS, settings=SURE, seeds=(1, 2)).arm("all")
    assert arm.false_stops == arm.budget_stops


def test_without_budgets_no_transient_failure_is_stopped(trace: Trace) -> None:
    endless = replace(Config().retry, per_root_cause=1000, confirmations=1000, max_restarts=0, max_lost_gpu_hours=0.0)
    config = replace(Config(), retry=endless)
    done = run_failure_study(make_mixed_jobs(trace), servers=SERVERS, settings=SURE, seeds=(1,), config=config)
    assert done.arm("retry").false_stops.mean == 0
    assert done.arm("retry").completed_jobs.mean >= done.arm("plain").completed_jobs.mean


def test_adaptive_retry_saves_gpu_time_compared_to_blind_retries(trace: Trace) -> None:
    blind = replace(SURE, blind_retries=3)
    assert (
        run_failure_study(make_mixed_jobs(trace), servers=SERVERS, settings=blind, seeds=(1, 2))
        .arm("retry")
        .saved_share.mean
        > 0.3
    )


def test_without_failures_nothing_is_saved(trace: Trace) -> None:
    never = FailureSettings(failing_jobs=0.0, node_failures_per_day=0.0)
    done = run_failure_study(make_mixed_jobs(trace, 300), servers=SERVERS, settings=never, seeds=(1,))
    assert {arm.name: arm.wasted_gpu_hours.mean for arm in done.arms} == dict.fromkeys(
        ("plain", "by-hand", "pre-run", "retry", "exclusion", "all"), 0.0
    )
    assert done.categories == ()
    assert done.arm("pre-run").cost_gpu_hours == done.arm("pre-run").trial_gpu_hours


def test_only_the_middle_of_a_long_trace_is_used(trace: Trace) -> None:
    jobs = trace(100)
    assert [job.number for job in select_middle(jobs, 10)] == list(range(45, 55))
    done = run_failure_study(jobs, servers=SERVERS, seeds=(1,), most_jobs=10)
    assert (done.jobs, done.of) == (10, 100)


def test_a_pre_run_is_no_longer_than_its_time_limit(trace: Trace) -> None:
    short = replace(Config(), prerun=replace(Config().prerun, time_limit_s=30))
    assert run_failure_study(trace(20), servers=SERVERS, seeds=(1,), config=short).settings.trial_s == 30.0


def test_progress_counts_the_played_arms(trace: Trace) -> None:
    seen: list[tuple[int, int]] = []
    run_failure_study(trace(20), servers=SERVERS, seeds=(1, 2), progress=lambda done, of: seen.append((done, of)))
    assert seen == [(at, 12) for at in range(1, 13)]


def test_the_study_can_be_serialized_as_json(study: FailureStudy) -> None:
    assert json.loads(json.dumps(asdict(study), allow_nan=False))["arms"][0]["name"] == "plain"


def test_a_trace_without_gpus_is_refused() -> None:
    with pytest.raises(TraceError, match="no job of the trace holds a GPU"):
        run_failure_study([SimJob(number=0, job="a", submit_s=0, work_s=1, gpus=0)], servers=SERVERS)


def test_an_empty_list_of_seeds_is_refused(trace: Trace) -> None:
    with pytest.raises(ValueError, match="no seed"):
        run_failure_study(trace(3), servers=SERVERS, seeds=())
