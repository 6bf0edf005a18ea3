"""Turns a Diagnosis into a RetryDecision: what to do about the job, its nodes and its inputs. Pure.

Every job gets a decision; Slurm is asked to change only the jobs of gsub whose user agreed to retries, and only after
the ledger of the job's earlier failures was asked too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.taxonomy import COMPLETED_WITH_ERROR
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import RetryDecision
from slurmwrap.policy import blocked_inputs, decision_context, requeue, resize, retry_budget
from slurmwrap.policy.decision_context import DecisionContext
from slurmwrap.policy.incident import Incident, wait_s
from slurmwrap.policy.requeue import RequeueSpec, decide_launch, has_failed_to_launch, make_launch_comment
from slurmwrap.policy.retry_budget import retries_of
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.policy.strikes import blamed_node, drains_of, strikes_of

__all__ = ["REQUEUED_ALREADY", "DecisionContext", "decide"]

BY_HAND = "requeued by its own script, its user or an administrator, which is no failure"
REQUEUED_ALREADY = "Slurm requeued it already, nothing is added"


def decide(case: DecisionContext, config: Config) -> RetryDecision:
    """The decision with its reason, the actions it asks for, strikes and blocked inputs.

    Of an incident no node is blamed, unless that very node's kernel shows a conclusive fault.
    """
    about_job = decide_launch(case, config) if has_failed_to_launch(case) else _select_decider(case)(case, config)
    blames = case.incident is None or _is_node_fault(case)
    strikes = strikes_of(case.diagnosis, case.record) if blames else ()
    drains = drains_of(case.diagnosis, case.record) if blames else ()
    return replace(about_job, actions=(*drains, *about_job.actions), strikes=strikes)


def _select_decider(case: DecisionContext) -> Callable[[DecisionContext, Config], RetryDecision]:
    if case.incident is not None and case.diagnosis.decision == "blacklist_input":
        # The file is where it was; what is under it was away.
        return _retry
    return _ABOUT.get(case.diagnosis.decision, _stop)


def _is_node_fault(case: DecisionContext) -> bool:
    return case.diagnosis.conclusive and bool(blamed_node(case.diagnosis, case.record))


def _decide_nothing(case: DecisionContext, config: Config) -> RetryDecision:
    told = {"CANCELLED": "it was cancelled", REQUEUED: BY_HAND}
    reason = told.get(case.record.state, "nothing failed")
    if case.diagnosis.category == COMPLETED_WITH_ERROR:
        reason = "Slurm calls it COMPLETED, so it is not run again"
    return RetryDecision(decision="none", reason=reason)


def _stop(case: DecisionContext, config: Config) -> RetryDecision:
    return RetryDecision(decision="stop", reason=case.diagnosis.advice or "the same would happen again")


def _retry(case: DecisionContext, config: Config) -> RetryDecision:
    category = case.diagnosis.category
    limit = retries_of(case.diagnosis, False, config.retry)
    spent = case.ledger.spent(category)
    delay = retry_budget.compute_backoff_s(config.retry.backoff_s, spent, _seed(case))
    return _decide_rerun(case, config, spent, limit, RequeueSpec(rule="retry", delay_s=delay))


def _retry_elsewhere(case: DecisionContext, config: Config) -> RetryDecision:
    blamed = blamed_node(case.diagnosis, case.record)
    limit = retries_of(case.diagnosis, bool(blamed), config.retry)
    spent = case.ledger.spent(case.diagnosis.category)
    return _decide_rerun(case, config, spent, limit, RequeueSpec(rule="retry_elsewhere", avoid=_avoid(case, config)))


def _resize(case: DecisionContext, config: Config) -> RetryDecision:
    return {"cpu_oom": _decide_more_memory, "time_limit": _decide_more_time}.get(case.diagnosis.category, _stop)(
        case, config
    )


def _decide_more_memory(case: DecisionContext, config: Config) -> RetryDecision:
    if case.job is None or decision_context.is_requeued(case) or decision_context.find_refusal(case):
        return _decide_rerun(case, config, 0, 1, RequeueSpec(rule="resize"))
    peak = case.record.measurement.mem_peak_mib if case.record.measurement else None
    cap = resize.memory_cap(case.job, case.fleet.largest_mem_mib, case.limits)
    memory = resize.more_memory(case.job, peak, factor=config.retry.resize_memory_factor, cap_mib=cap)
    if memory is None:
        why = "it ran out of host memory, and no node of its partition has more for it"
        return RetryDecision(decision="stop", reason=why)
    return _decide_resize(case, config, RequeueSpec(rule="resize", memory=memory))


def _decide_more_time(case: DecisionContext, config: Config) -> RetryDecision:
    """Only for a job that was seen to resume: any other one would lose the longer time as well.

    At the partition's limit the same time again is enough, for it goes on from its checkpoint.
    """
    if not case.diagnosis.resumed or case.diagnosis.checkpoint_step is None:
        return _stop(case, config)
    factor, remaining_s = config.retry.resize_time_factor, case.diagnosis.remaining_s
    minutes = resize.more_time(case.record.time_limit_s, case.limits, factor=factor, remaining_s=remaining_s)
    if minutes is None:
        return _retry(case, config)
    return _decide_resize(case, config, RequeueSpec(rule="resize", time_min=minutes))


def _decide_resize(case: DecisionContext, config: Config, again: RequeueSpec) -> RetryDecision:
    category = case.diagnosis.category
    if category in case.ledger.refused:
        reason = f"{category}; Slurm refused the larger job last time (association, QOS or partition limits)"
        return RetryDecision(decision="stop", reason=reason)
    return _decide_rerun(case, config, case.ledger.spent(category), config.retry.per_root_cause, again)


def _decide_block_input(case: DecisionContext, config: Config) -> RetryDecision:
    path = case.diagnosis.input_path
    confirmed = case.ledger.confirmations(case.diagnosis.category, path) >= config.retry.confirmations
    possible = not decision_context.find_refusal(case) and config.mode_of("retry_elsewhere") == "act"
    if path and not case.fault and not confirmed and decision_context.is_requeued(case):
        return RetryDecision(decision="retry_elsewhere", reason=f"{path} is blamed; {REQUEUED_ALREADY}")
    if (
        path
        and not case.fault
        and not confirmed
        and possible
        and not decision_context.find_exhausted_budget(case, 0, 1, config)
    ):
        reason = f"once more elsewhere, to tell a bad file from a bad mount: {path}"
        return _schedule_rerun(
            case, config, RequeueSpec(rule="retry_elsewhere", reason=reason, avoid=_avoid(case, config))
        )
    blocks = blocked_inputs.make_blocks(case)
    return RetryDecision(
        decision="blacklist_input",
        reason=blocked_inputs.format_block_reason(case),
        actions=blocked_inputs.make_block_actions(blocks),
        blocked=blocks if config.mode_of("block_input") == "act" else (),
    )


_ABOUT: dict[str, Callable[[DecisionContext, Config], RetryDecision]] = {
    "none": _decide_nothing,
    "stop": _stop,
    "retry": _retry,
    "retry_elsewhere": _retry_elsewhere,
    "resize": _resize,
    "blacklist_input": _decide_block_input,
}


def _decide_rerun(case: DecisionContext, config: Config, spent: int, limit: int, again: RequeueSpec) -> RetryDecision:
    """`again` if Slurm, the ledger and the user's consent allow it, else `stop` or `none` with the reason."""
    category = case.diagnosis.category
    if case.record.state == "CANCELLED":
        return RetryDecision(decision="none", reason="it was cancelled: a cancelled job is never requeued")
    if decision_context.is_requeued(case):
        return RetryDecision(decision=again.rule, reason=f"{category}; {REQUEUED_ALREADY}")
    if reason := decision_context.find_exhausted_budget(case, spent, limit, config):
        return RetryDecision(decision="stop", reason=reason)
    if refusal := decision_context.find_refusal(case):
        return RetryDecision(decision="stop", reason=f"{category}; not run again: {refusal}")
    return _schedule_rerun(case, config, replace(again, reason=_format_retry_reason(case, spent, limit)))


def _format_retry_reason(case: DecisionContext, spent: int, limit: int) -> str:
    if case.incident is not None:
        return (
            f"{case.diagnosis.category}, part of an incident ({_describe_incident(case.incident)}): no retry is counted"
        )
    return f"{case.diagnosis.category}, retry {spent + 1} of {limit}"


def _describe_incident(incident: Incident) -> str:
    return f"{incident.category}, {incident.scope}, {len(incident.jobs)} jobs"


def _schedule_rerun(case: DecisionContext, config: Config, again: RequeueSpec) -> RetryDecision:
    """With the moment it may start: after back-off, incident and brake."""
    assert case.job is not None and case.submission is not None
    delay = again.delay_s
    if case.incident is not None:
        delay = max(delay, wait_s(case.incident, case.record.attempt.job_id, case.now))
    acts = config.mode_of(again.rule) == "act"
    brake = config.retry.max_per_hour if acts else 0
    start_at = retry_budget.find_next_start(case.starts, case.now + delay, brake)
    braked = start_at > case.now + delay
    again = replace(
        again, delay_s=math.ceil(start_at - case.now) if braked else delay, comment=make_launch_comment(case)
    )
    if not case.submission.output_appends:
        again = replace(again, std_out=requeue.retry_output(case.record.std_out, case.record.restarts))
    reason = _describe_requeue(again) + (
        f", for {brake} retries an hour are the limit (retry.max_per_hour)" if braked else ""
    )
    return RetryDecision(
        decision=again.rule,
        reason=reason,
        actions=requeue.make_requeue_actions(again, case.job),
        start_at=start_at if acts else None,
    )


def _describe_requeue(again: RequeueSpec) -> str:
    details = [again.reason]
    if again.avoid:
        details.append(f"away from {', '.join(again.avoid)}")
    if again.memory:
        details.append(f"with {again.memory[0]}={again.memory[1]}M")
    if again.time_min is not None:
        details.append(f"with {again.time_min} minutes, for it resumes from its checkpoint")
    if again.delay_s:
        details.append(f"after {again.delay_s} s")
    return "; ".join(details)


def _avoid(case: DecisionContext, config: Config) -> tuple[str, ...]:
    """Nodes the next run should leave, within the share that may be excluded; none for an incident's sake."""
    if case.incident is not None and not _is_node_fault(case):
        return ()
    blamed = blamed_node(case.diagnosis, case.record)
    nodes = requeue.list_suspect_nodes(case.diagnosis, case.record, blamed)
    if not case.fleet.nodes:
        return nodes
    allowed = case.fleet.allowance(config.placement.exclude_cap)
    return nodes if len(case.ledger.nodes | set(nodes)) <= allowed else ()


def _seed(case: DecisionContext) -> str:
    attempt = case.record.attempt
    return f"{attempt.cluster}:{attempt.job_id}:{case.record.restarts}"
