"""Single arms of the failure study: accounting of the GPU time of single jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.sim.failures.draw_failures import FailingJob
from slurmwrap.sim.failures.play_failures import choose_wrong_category, play_arm
from slurmwrap.sim.failures.sim_nodes import Hardware
from slurmwrap.sim.failures.study_arms import FailureWorld, GpuTimeAccount, RetryArm, arms_of
from slurmwrap.sim.sim_job import SimJob

MakeTrace = Callable[..., list[SimJob]]
MakeWorld = Callable[..., FailureWorld]
ARMS = {arm.name: arm for arm in arms_of(dump=False)}
WRONG = FailingJob(number=0, uid=1, category="semantic_error", run_s=100.0, trials=3, shown=True)
FLAKY = FailingJob(number=0, uid=1, category="mpi_runtime_failure", run_s=100.0, trials=2, curable=True)


def play(world: FailureWorld, arm: str) -> GpuTimeAccount:
    return play_arm(world, ARMS[arm])


def test_a_job_without_failure_costs_nothing(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1, gpus=(4,))), "plain")
    assert (found.productive, found.cost, found.completed, found.runs) == (4 * 3600.0, 0.0, 1, 1)


def test_blind_retries_repeat_a_permanent_failure_as_often_as_in_table_7(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1, gpus=(4,)), WRONG), "plain")
    assert (found.wasted, found.failed_runs, found.completed, found.unsuccessful) == (3 * 4 * 100.0, 3, 0, 1)


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_fixed_number_of_blind_retries_is_used_up(trace: MakeTrace, world: MakeWorld, retries: int) -> None:
    found = play(world(trace(1), WRONG, blind_retries=retries), "plain")
    assert (found.failed_runs, found.wasted) == (retries + 1, (retries + 1) * 100.0)


def test_in_arm_by_hand_the_user_retries_once(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), WRONG, hand_retries=1), "by-hand")
    assert (found.failed_runs, found.told_after_s) == (2, [100.0 + 7200.0 + 100.0])


def test_adaptive_retry_stops_a_permanent_failure_at_once(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), WRONG), "retry")
    assert (found.failed_runs, found.wasted, found.false_stops) == (1, 100.0, 0)


def test_a_pre_run_stops_a_permanent_failure_at_the_cost_of_one_gpu(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1, gpus=(8,)), WRONG), "pre-run")
    assert (found.trials, found.wasted, found.runs, found.stopped_by_trial) == (100.0, 0.0, 0, 1)


def test_every_successful_job_pays_for_its_pre_run(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(3, gpus=(8,), work_s=(3600.0, 60.0)), trial_s=180.0), "pre-run")
    assert (found.trials, found.completed) == (180.0 + 60.0 + 180.0, 3)


def test_a_rehearsal_takes_longer_and_stops_a_late_failure_after_all_its_time(
    trace: MakeTrace, world: MakeWorld
) -> None:
    late = replace(WRONG, run_s=7200.0)
    found = play(world(trace(2, gpus=(8,)), late, trial_s=180.0, rehearsal_s=120.0), "pre-run")
    assert (found.trials, found.wasted, found.stopped_by_trial, found.completed) == (600.0, 0.0, 1, 1)


@pytest.mark.parametrize(("waits", "run_s", "stopped"), [(1.0, 7200.0, 1), (0.0, 7200.0, 0), (1.0, 60.0, 0)])
def test_a_broken_input_stops_a_job_that_waits_while_it_is_read(
    trace: MakeTrace, world: MakeWorld, waits: float, run_s: float, stopped: int
) -> None:
    broken = FailingJob(number=0, uid=1, category="incorrect_inputs", run_s=run_s, fault=0, checked=True)
    found = play(world(trace(1, gpus=(8,)), broken, one_gpu_waits=waits), "pre-run")
    assert (found.stopped_by_trial, found.runs) == (stopped, 1 - stopped)


@pytest.mark.parametrize(("every_job", "refused"), [(False, 0), (True, 1)])
def test_a_job_without_a_pre_run_is_stopped_only_if_its_inputs_are_read_as_well(
    trace: MakeTrace, world: MakeWorld, every_job: bool, refused: int
) -> None:
    broken = FailingJob(number=0, uid=1, category="incorrect_inputs", run_s=7200.0, fault=0, checked=True)
    found = play(world(trace(1), broken, one_gpu_waits=0.0, checks_every_job=every_job), "pre-run")
    assert (found.trials, found.unsuccessful, found.runs) == (0.0, 1, 1 - refused)


@pytest.mark.parametrize(
    ("settings", "prerun", "trials"),
    [
        ({"one_gpu_waits": 0.0}, {}, 0.0),
        ({"passed_before": 1.0}, {}, 0.0),
        ({}, {"min_gpus": 2}, 0.0),
        ({}, {"select": "value"}, 0.0),
        ({"trial_s": 1.0}, {"select": "value"}, 1.0),
        ({}, {}, 180.0),
    ],
    ids=["a one-GPU job that can start", "passed before", "below min_gpus", "not worth it", "worth it", "else"],
)
def test_jobs_that_get_no_pre_run(
    trace: MakeTrace, world: MakeWorld, settings: dict[str, float], prerun: dict[str, object], trials: float
) -> None:
    chosen = {"select": "all", "min_gpus": 1, **prerun}
    config = replace(Config(), prerun=replace(Config().prerun, **chosen))  # type: ignore[arg-type]
    assert play(world(trace(1), config=config, **settings), "pre-run").trials == trials


def test_a_pre_run_that_stops_a_correct_job_is_a_false_stop(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), false_fails=1.0), "pre-run")
    assert (found.false_stops, found.completed, found.trials) == (1, 0, 180.0)


@pytest.mark.parametrize("arm", list(ARMS))
def test_a_transient_failure_is_cured_in_every_arm(trace: MakeTrace, world: MakeWorld, arm: str) -> None:
    found = play(world(trace(1, gpus=(2,)), FLAKY, one_gpu_waits=0.0), arm)
    assert (found.completed, found.failed_runs, found.false_stops, found.given_up) == (1, 2, 0, 0)
    assert found.wasted == 2 * 200.0


def test_time_saved_in_a_checkpoint_is_not_wasted(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = replace(FLAKY, run_s=1000.0, trials=1)
    found = play(world(trace(1), failing_job, checkpoint_s=300.0), "plain")
    assert (found.wasted, found.productive) == (100.0, 3600.0)


def test_a_permanent_failure_keeps_nothing_from_checkpoints(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), replace(WRONG, run_s=1000.0, shown=False), checkpoint_s=300.0), "retry")
    assert found.wasted == 1000.0


def test_a_transient_failure_is_stopped_when_its_budget_is_used_up(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), replace(FLAKY, trials=9)), "all")
    assert (found.failed_runs, found.false_stops, found.budget_stops) == (1 + Config().retry.per_root_cause, 1, 1)
    assert (found.false_stopped, found.wasted) == (400.0, 0.0)


def test_a_job_that_lost_too_many_gpu_hours_is_stopped(trace: MakeTrace, world: MakeWorld) -> None:
    """8 GPUs for 200 h without a checkpoint exceed retry.max_lost_gpu_hours at the first failure."""
    failing_job = replace(FLAKY, run_s=200 * 3600.0)
    found = play(world(trace(1, gpus=(8,)), failing_job, checkpoint_s=None), "retry")
    assert (found.failed_runs, found.budget_stops) == (1, 1)


def test_a_job_whose_checkpoint_keeps_nearly_all_gpu_hours_runs_again(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = replace(FLAKY, run_s=200 * 3600.0 + 60)
    found = play(world(trace(1, gpus=(8,)), failing_job, checkpoint_s=3600.0), "retry")
    assert (found.failed_runs, found.budget_stops, found.completed) == (1, 0, 1)


def test_a_misread_log_may_stop_a_transient_failure(trace: MakeTrace, world: MakeWorld) -> None:
    jobs = trace(300)
    doomed = [replace(FLAKY, number=job.number) for job in jobs]
    found = play(world(jobs, *doomed, misread=1.0), "retry")
    assert found.false_stops > 200
    assert found.budget_stops == 0
    # completed jobs failed twice: only the second log was misread, or none
    assert found.wasted == 200.0 * found.completed


def test_a_resubmission_after_a_false_stop_loses_only_that_run(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = replace(FLAKY, trials=9)
    found = play(world(trace(1), failing_job, comes_back=True), "retry")
    # nine failures, with a stop after every four
    assert (found.false_stops, found.budget_stops, found.completed, found.failed_runs) == (2, 2, 1, 9)
    assert (found.false_stopped, found.wasted) == (0.0, 900.0)


def test_memory_is_increased_until_the_job_fits(trace: MakeTrace, world: MakeWorld) -> None:
    """Each retry gets 1.5 times as much: 1.5 and 2.25 times the original memory."""
    failing_job = FailingJob(number=0, uid=1, category="cpu_oom", run_s=100.0, need=2.0)
    found = play(world(trace(1), failing_job), "retry")
    assert (found.failed_runs, found.completed, found.wasted) == (2, 1, 200.0)
    assert play(world(trace(1), failing_job), "plain").completed == 0


def test_a_blocked_input_is_refused_for_the_same_user(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = FailingJob(number=0, uid=1, category="incorrect_inputs", run_s=100.0, fault=0)
    doomed = (failing_job, replace(failing_job, number=1), replace(failing_job, number=2, uid=2))
    found = play(world(trace(3), *doomed), "retry")
    # job 0 is confirmed by a second run; job 2 belongs to another user
    assert (found.refused, found.failed_runs, found.completed) == (1, 4, 0)
    assert play(world(trace(3), *doomed), "plain").refused == 0


def test_a_pre_run_that_finds_a_broken_input_blocks_it(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = FailingJob(number=0, uid=1, category="incorrect_inputs", run_s=100.0, fault=0, shown=True)
    found = play(world(trace(2), failing_job, replace(failing_job, number=1)), "all")
    assert (found.stopped_by_trial, found.refused, found.runs) == (1, 1, 0)


def test_a_killed_job_is_not_counted_as_waste(trace: MakeTrace, world: MakeWorld) -> None:
    found = play(world(trace(1), FailingJob(number=0, uid=1, killed=True)), "plain")
    assert (found.killed, found.cost, found.completed, found.unsuccessful) == (3600.0, 0.0, 0, 0)


def make_lemon_world(trace: MakeTrace, world: MakeWorld) -> FailureWorld:
    """2000 one-GPU jobs of a day each; only node 3 fails, about twice per day of use."""
    jobs = trace(2000, work_s=(86_400.0,))
    found = world(jobs, checkpoint_s=3600.0)
    bad = replace(found.hardware, lemons=frozenset({3}), lemon_rate=2 / 86_400.0, healthy_rate=0.0)
    assert isinstance(bad, Hardware)
    return replace(found, hardware=bad)


def test_excluding_a_lemon_node_reduces_node_failures(trace: MakeTrace, world: MakeWorld) -> None:
    lemon_world = make_lemon_world(trace, world)
    plain, without = play(lemon_world, "plain"), play(lemon_world, "exclusion")
    assert without.node_failures < 0.3 * plain.node_failures
    assert without.wasted < 0.3 * plain.wasted
    assert without.excluded_lemon_days == without.excluded_days > 0
    assert (plain.completed, without.completed) == (2000, 2000)


def test_arms_with_the_same_behaviour_have_the_same_failures(trace: MakeTrace, world: MakeWorld) -> None:
    """Common random numbers: the actions of an arm on one job do not change other jobs."""
    lemon_world = make_lemon_world(trace, world)
    assert play(lemon_world, "plain") == play(lemon_world, "plain")
    assert play(lemon_world, "by-hand") == play(lemon_world, "plain")


def test_the_number_of_runs_is_limited(trace: MakeTrace, world: MakeWorld) -> None:
    failing_job = replace(FLAKY, trials=10_000)
    found = play(world(trace(1), failing_job, max_runs=7), "plain")
    assert (found.runs, found.given_up) == (7, 1)


def test_all_gpu_time_is_counted_exactly_once(trace: MakeTrace, world: MakeWorld) -> None:
    jobs = trace(400, gpus=(1, 4), work_s=(600.0, 90_000.0))
    doomed = [replace(FLAKY if job.number % 2 else WRONG, number=job.number) for job in jobs if job.number % 3 == 0]
    for arm in ARMS.values():
        found = play_arm(world(jobs, *doomed, misread=0.2, checkpoint_s=50.0), arm)
        assert sum(found.by_category.values()) == pytest.approx(found.wasted + found.false_stopped)
        assert found.completed + found.unsuccessful == len(jobs)


def test_a_wrong_category_is_neither_the_true_one_nor_one_from_slurm() -> None:
    found = {choose_wrong_category("semantic_error", at / 100) for at in range(100)}
    assert found.isdisjoint({"semantic_error", "cpu_oom", "job_preempted"})
    assert "incorrect_inputs" in found


def test_a_harmless_wrong_category_leads_to_the_same_decision() -> None:
    for category in ("semantic_error", "checkpoint_error"):
        for harmless in (False, True):
            found = {choose_wrong_category(category, at / 100, harmless=harmless) for at in range(100)}
            decisions = {CATEGORIES[one].decision == CATEGORIES[category].decision for one in found}
            assert category not in found and decisions == {harmless}


def test_arms_of_a_dump_have_no_blind_retries() -> None:
    assert [(arm.name, arm.retries) for arm in arms_of(dump=True)] == [
        ("plain", "none"),
        ("pre-run", "none"),
        ("retry", "production"),
        ("exclusion", "none"),
        ("all", "production"),
    ]
    assert arms_of(dump=False)[0] == RetryArm(name="plain", title="plain, blind retries (Philly)")
