"""Decisions about simulated runs are made by the code of production."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.model.job_run import JobRun
from slurmwrap.placement import node_ranking as production_avoid
from slurmwrap.policy import retry_budget, retry_decision, strikes
from slurmwrap.policy.strikes import Fleet, make_strikes
from slurmwrap.prerun.verdict import single_gpu_messages
from slurmwrap.sim.failures import draw_failures, sim_judge, sim_nodes
from slurmwrap.sim.failures.sim_judge import FailedRun, diagnosis_of, judge_failed_run, record_of, switch_rules_on
from slurmwrap.sim.failures.sim_nodes import nodes_of
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

ACT = switch_rules_on(Config())
FLEET = Fleet(nodes=nodes_of(make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)))
JOB = SimJob(number=4, job="4", submit_s=0.0, work_s=7200.0, gpus=8)
RUN = FailedRun(job=JOB, uid=7, run=0, began_s=0.0, ended_s=600.0, nodes=("n03",), told="nccl_error", mem_mib=100_000)


def judge_repeatedly(run: FailedRun, times: int) -> list[tuple[str, bool]]:
    """The decisions about `times` runs that all fail for the same reason."""
    before: list[JobRun] = []
    found = []
    for number in range(times):
        one = replace(run, run=number, began_s=run.began_s + 3600 * number, ended_s=run.ended_s + 3600 * number)
        outlook = judge_failed_run(one, before, FLEET, ACT)
        before.append(replace(record_of(one, diagnosis_of(one)), decision=outlook.decision.decision))
        found.append((outlook.decision.decision, outlook.again))
    return found


def test_the_simulator_uses_the_functions_of_production() -> None:
    assert sim_judge.decide is retry_decision.decide
    assert sim_judge.make_ledger is retry_budget.make_ledger
    assert sim_nodes.make_strikes is strikes.make_strikes
    assert sim_nodes.health is strikes.health
    assert sim_nodes.avoid is production_avoid.avoid
    assert draw_failures.ELSEWHERE is single_gpu_messages.ELSEWHERE


def test_a_transient_failure_is_retried_until_its_budget_is_used_up() -> None:
    assert judge_repeatedly(RUN, 4) == [("retry", True)] * 3 + [("stop", False)]


def test_a_user_error_is_not_retried() -> None:
    assert judge_repeatedly(replace(RUN, told="syntax_error"), 1) == [("stop", False)]


def test_a_retry_is_delayed() -> None:
    first = judge_failed_run(RUN, (), FLEET, ACT)
    assert 60 <= first.delay_s <= 75


def test_after_out_of_memory_the_retry_gets_50_percent_more_memory() -> None:
    found = judge_failed_run(replace(RUN, told="cpu_oom"), (), FLEET, ACT)
    assert (found.again, found.mem_mib) == (True, 150_000)


def test_out_of_memory_with_all_memory_of_a_node_is_stopped() -> None:
    found = judge_failed_run(replace(RUN, told="cpu_oom", mem_mib=500 * 1024), (), FLEET, ACT)
    assert (found.again, found.decision.decision) == (False, "stop")


def test_a_conclusive_fault_gives_its_node_a_strike_and_the_job_avoids_it() -> None:
    run = replace(RUN, told="gpu_hardware", node="n03", conclusive=True)
    found = judge_failed_run(run, (), FLEET, ACT)
    assert (found.again, found.avoid) == (True, ("n03",))
    assert [strike.node for strike in make_strikes(diagnosis_of(run), record_of(run, diagnosis_of(run)))] == ["n03"]


@pytest.mark.parametrize("category", ["node_failure", "job_preempted"])
def test_a_job_that_slurm_requeues_needs_no_action(category: str) -> None:
    found = judge_failed_run(
        replace(RUN, told=category, node="n03" if category == "node_failure" else ""), (), FLEET, ACT
    )
    assert (found.again, found.decision.actions) == (True, ())


def test_a_suspected_input_is_confirmed_on_another_node_and_then_blocked() -> None:
    run = replace(RUN, told="incorrect_inputs", input_path="/d/x", digest="d")
    assert judge_repeatedly(run, 2) == [("retry_elsewhere", True), ("blacklist_input", False)]


def test_an_input_that_a_check_finds_broken_is_blocked_at_once() -> None:
    run = replace(RUN, told="incorrect_inputs", input_path="/d/x", digest="d", fault="is truncated")
    found = judge_failed_run(run, (), FLEET, ACT)
    assert (found.again, [(b.uid, b.digest) for b in found.decision.blocked]) == (False, [(7, "d")])


def test_progress_beyond_the_last_checkpoint_resets_the_budget() -> None:
    """From the third run on each run makes more progress than any before, so the budget is reset."""
    before: list[JobRun] = []
    found = []
    for number, kept in enumerate((0.0, 0.0, 3600.0, 7200.0, 10_800.0, 14_400.0)):
        run = replace(
            RUN, run=number, began_s=9000.0 * number, ended_s=9000.0 * number + 4000, kept_s=kept,
            progress_s=kept + 400, resumed=kept > 3600,
        )  # fmt: skip
        outlook = judge_failed_run(run, before, FLEET, ACT)
        before.append(replace(record_of(run, diagnosis_of(run)), decision=outlook.decision.decision))
        found.append(outlook.again)
    assert found == [True] * 6
