"""Make a RetryDecision from a diagnosis: what to do about the job, its nodes and its inputs. Pure.

Every failed job gets a decision. Slurm is asked to change only gsub jobs whose user agreed to retries, and only within
the retry budget that the job's earlier failures leave.
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
from slurmwrap.policy.retry_budget import count_allowed_retries
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.policy.strikes import find_blamed_node, make_drain_actions, make_strikes
from slurmwrap.sbatch.retry_on import find_named_ending

__all__ = ["REQUEUED_ALREADY", "DecisionContext", "decide"]

BY_HAND = "requeued by its own script, its user or an administrator, which is no failure"
REQUEUED_ALREADY = "Slurm requeued it already, nothing is added"
_ASKED_FOR = "as its user asked for, because Slurm had given it less"


def decide(context: DecisionContext, config: Config) -> RetryDecision:
    """Return the decision with its reason, its actions, strikes and blocked inputs.

    No node is blamed for a failure of an incident, unless that node's own kernel shows a conclusive fault.
    """
    if context.stopped:
        about_job = RetryDecision(decision="none", reason=context.stopped)
    elif has_failed_to_launch(context):
        about_job = decide_launch(context, config)
    else:
        about_job = _select_decider(context)(context, config)
    blames = context.incident is None or _is_node_fault(context)
    strikes = make_strikes(context.diagnosis, context.record) if blames else ()
    drains = make_drain_actions(context.diagnosis, context.record) if blames else ()
    return replace(about_job, actions=(*drains, *about_job.actions), strikes=strikes)


def _select_decider(context: DecisionContext) -> Callable[[DecisionContext, Config], RetryDecision]:
    if context.incident is not None and context.diagnosis.decision == "blacklist_input":
        # The file itself is intact: the file system was unreachable.
        return _decide_retry
    if decision_context.find_agreed_ending(context) and not find_blamed_node(context.diagnosis, context.record):
        return _decide_named_ending
    return _DECIDERS.get(context.diagnosis.decision, _decide_stop)


def _is_node_fault(context: DecisionContext) -> bool:
    return context.diagnosis.conclusive and bool(find_blamed_node(context.diagnosis, context.record))


def _decide_nothing(context: DecisionContext, config: Config) -> RetryDecision:
    reasons = {"CANCELLED": "it was cancelled", REQUEUED: BY_HAND}
    reason = reasons.get(context.record.state, "nothing failed")
    if context.diagnosis.category == COMPLETED_WITH_ERROR:
        reason = "Slurm calls it COMPLETED, so it is not run again"
    return RetryDecision(decision="none", reason=reason)


def _decide_stop(context: DecisionContext, config: Config) -> RetryDecision:
    return RetryDecision(decision="stop", reason=context.diagnosis.advice or "the same would happen again")


def _decide_retry(context: DecisionContext, config: Config) -> RetryDecision:
    category = context.diagnosis.category
    limit = count_allowed_retries(context.diagnosis, False, config.retry)
    spent = context.ledger.spent(category)
    delay = retry_budget.compute_backoff_s(config.retry.backoff_s, spent, _make_seed(context))
    return _decide_rerun(context, config, spent, limit, RequeueSpec(rule="retry", delay_s=delay))


def _decide_named_ending(context: DecisionContext, config: Config) -> RetryDecision:
    """Run it again because its user named this ending with --retry-on, whatever the diagnosis is.

    Only earlier runs with a named ending count against its budget.
    """
    assert context.submission is not None
    named, limit = context.submission.retry_on, config.retry.per_root_cause
    spent = context.ledger.count_endings(lambda code, signal: find_named_ending(named, code, signal))
    delay = retry_budget.compute_backoff_s(config.retry.backoff_s, spent, _make_seed(context))
    cause = f"{decision_context.find_agreed_ending(context)}, which --retry-on names"
    return _decide_rerun(context, config, spent, limit, RequeueSpec(rule="retry", delay_s=delay), cause)


def _decide_retry_elsewhere(context: DecisionContext, config: Config) -> RetryDecision:
    blamed = find_blamed_node(context.diagnosis, context.record)
    limit = count_allowed_retries(context.diagnosis, bool(blamed), config.retry)
    spent = context.ledger.spent(context.diagnosis.category)
    return _decide_rerun(
        context, config, spent, limit, RequeueSpec(rule="retry_elsewhere", avoid=_list_nodes_to_avoid(context, config))
    )


def _select_resize(context: DecisionContext, config: Config) -> RetryDecision:
    return {"cpu_oom": _decide_more_memory, "time_limit": _decide_more_time}.get(
        context.diagnosis.category, _decide_stop
    )(context, config)


def _decide_more_memory(context: DecisionContext, config: Config) -> RetryDecision:
    if context.job is None or decision_context.is_requeued(context) or decision_context.find_refusal(context):
        return _decide_rerun(context, config, 0, 1, RequeueSpec(rule="resize"))
    peak = context.record.measurement.mem_peak_mib if context.record.measurement else None
    cap = resize.compute_memory_cap(context.job, context.fleet.largest_mem_mib, context.limits)
    memory = resize.compute_larger_memory(context.job, peak, factor=config.retry.resize_memory_factor, cap_mib=cap)
    if memory is None:
        why = "it ran out of host memory, and no node of its partition has more for it"
        return RetryDecision(decision="stop", reason=why)
    return _decide_resize(context, config, RequeueSpec(rule="resize", memory=memory))


def _decide_more_time(context: DecisionContext, config: Config) -> RetryDecision:
    """Request more time, but only for a job that was seen to resume: any other one would lose the longer time as well.

    At the partition's limit the same time is requested again, because the job continues from its checkpoint.
    """
    asked = _get_unused_minutes(context)
    if asked is None and (not context.diagnosis.resumed or context.diagnosis.checkpoint_step is None):
        return _decide_stop(context, config)
    factor, remaining_s = config.retry.resize_time_factor, context.diagnosis.remaining_s
    minutes = resize.compute_longer_time_limit(
        context.record.time_limit_s, context.limits, factor=factor, remaining_s=remaining_s
    )
    wanted = max((one for one in (minutes, asked) if one is not None), default=None)
    if wanted is None:
        return _decide_retry(context, config)
    again = RequeueSpec(rule="resize", time_min=wanted)
    return _decide_resize(context, config, again if wanted != asked else replace(again, why_time=_ASKED_FOR))


def _get_unused_minutes(context: DecisionContext) -> int | None:
    """Return the limit that the user asked for, in minutes, if the run had less than that; else None.

    Slurm gives less by --time-min of rule `limit` (reconcile/limit_pending.py). A user's own --time-min is their
    decision.
    """
    submission, given_s = context.submission, context.record.time_limit_s
    if submission is None or submission.shape is None or submission.time is None or submission.time.fixed:
        return None
    asked_s = submission.shape.time_limit_s
    return -(-asked_s // 60) if asked_s and given_s and given_s < asked_s else None


def _decide_resize(context: DecisionContext, config: Config, again: RequeueSpec) -> RetryDecision:
    category = context.diagnosis.category
    if category in context.ledger.refused:
        reason = f"{category}; Slurm refused the larger job last time (association, QOS or partition limits)"
        return RetryDecision(decision="stop", reason=reason)
    return _decide_rerun(context, config, context.ledger.spent(category), config.retry.per_root_cause, again)


def _decide_block_input(context: DecisionContext, config: Config) -> RetryDecision:
    path = context.diagnosis.input_path
    # A file that only the log blames is confirmed by one run on another node, which distinguishes a bad file from a bad
    # mount. After that, or if slurmwrap itself found the fault, the file is blocked.
    confirmed = context.ledger.confirmations(context.diagnosis.category, path) >= config.retry.confirmations
    possible = not decision_context.find_refusal(context) and config.mode_of("retry_elsewhere") == "act"
    if path and not context.fault and not confirmed and decision_context.is_requeued(context):
        return RetryDecision(decision="retry_elsewhere", reason=f"{path} is blamed; {REQUEUED_ALREADY}")
    if (
        path
        and not context.fault
        and not confirmed
        and possible
        and not decision_context.find_exhausted_budget(context, 0, 1, config)
    ):
        reason = f"once more on another node, to distinguish a bad file from a bad mount: {path}"
        return _schedule_rerun(
            context,
            config,
            RequeueSpec(rule="retry_elsewhere", reason=reason, avoid=_list_nodes_to_avoid(context, config)),
        )
    blocks = blocked_inputs.make_blocks(context)
    return RetryDecision(
        decision="blacklist_input",
        reason=blocked_inputs.format_block_reason(context),
        actions=blocked_inputs.make_block_actions(blocks),
        blocked=blocks if config.mode_of("block_input") == "act" else (),
    )


_DECIDERS: dict[str, Callable[[DecisionContext, Config], RetryDecision]] = {
    "none": _decide_nothing,
    "stop": _decide_stop,
    "retry": _decide_retry,
    "retry_elsewhere": _decide_retry_elsewhere,
    "resize": _select_resize,
    "blacklist_input": _decide_block_input,
}


def _decide_rerun(
    context: DecisionContext, config: Config, spent: int, limit: int, again: RequeueSpec, cause: str = ""
) -> RetryDecision:
    """Return `again` if Slurm, the retry budget and the user's consent allow it; else `stop` or `none`.

    `cause`: why it is run again, if not for the category of the diagnosis.
    """
    category = cause or context.diagnosis.category
    if context.record.state == "CANCELLED":
        return RetryDecision(decision="none", reason="it was cancelled: a cancelled job is never requeued")
    if decision_context.is_requeued(context):
        return RetryDecision(decision=again.rule, reason=f"{category}; {REQUEUED_ALREADY}")
    if reason := decision_context.find_exhausted_budget(context, spent, limit, config, cause):
        return RetryDecision(decision="stop", reason=reason)
    if refusal := decision_context.find_refusal(context):
        return RetryDecision(decision="stop", reason=f"{category}; not run again: {refusal}")
    return _schedule_rerun(
        context, config, replace(again, reason=_format_retry_reason(context, category, spent, limit))
    )


def _format_retry_reason(context: DecisionContext, cause: str, spent: int, limit: int) -> str:
    if context.incident is not None:
        return f"{cause}, part of an incident ({_describe_incident(context.incident)}): no retry is counted"
    return f"{cause}, retry {spent + 1} of {limit}"


def _describe_incident(incident: Incident) -> str:
    return f"{incident.category}, {incident.scope}, {len(incident.jobs)} jobs"


def _schedule_rerun(context: DecisionContext, config: Config, again: RequeueSpec) -> RetryDecision:
    """Return the rerun with the moment at which it may start: after back-off, incident and hourly limit."""
    assert context.job is not None and context.submission is not None
    delay = again.delay_s
    if context.incident is not None:
        delay = max(delay, wait_s(context.incident, context.record.attempt.job_id, context.now))
    acts = config.mode_of(again.rule) == "act"
    per_hour = config.retry.max_per_hour if acts else 0
    start_at = retry_budget.find_next_start(context.starts, context.now + delay, per_hour)
    delayed_by_limit = start_at > context.now + delay
    again = replace(
        again,
        delay_s=math.ceil(start_at - context.now) if delayed_by_limit else delay,
        comment=make_launch_comment(context),
    )
    if not context.submission.output_appends:
        again = replace(again, std_out=requeue.retry_output(context.record.std_out, context.record.restarts))
    reason = _describe_requeue(again) + (
        f", because {per_hour} retries an hour are the limit (retry.max_per_hour)" if delayed_by_limit else ""
    )
    return RetryDecision(
        decision=again.rule,
        reason=reason,
        actions=requeue.make_requeue_actions(again, context.job),
        start_at=start_at if acts else None,
    )


def _describe_requeue(again: RequeueSpec) -> str:
    details = [again.reason]
    if again.avoid:
        details.append(f"away from {', '.join(again.avoid)}")
    if again.memory:
        details.append(f"with {again.memory[0]}={again.memory[1]}M")
    if again.time_min is not None:
        details.append(f"with {again.time_min} minutes, {again.why_time}")
    if again.delay_s:
        details.append(f"after {again.delay_s} s")
    return "; ".join(details)


def _list_nodes_to_avoid(context: DecisionContext, config: Config) -> tuple[str, ...]:
    """Return the nodes that the next run should avoid, within the share that may be excluded; () for an incident."""
    if context.incident is not None and not _is_node_fault(context):
        return ()
    blamed = find_blamed_node(context.diagnosis, context.record)
    nodes = requeue.list_suspect_nodes(context.diagnosis, context.record, blamed)
    if not context.fleet.nodes:
        return nodes
    allowed = context.fleet.allowance(config.placement.exclude_cap)
    excluded = context.ledger.nodes | set(nodes)
    # A job that excludes too many nodes of a small partition would wait forever.
    left = sum(node.name not in excluded for node in context.fleet.nodes)
    return nodes if len(excluded) <= allowed and left >= len(context.record.nodes) else ()


def _make_seed(context: DecisionContext) -> str:
    attempt = context.record.attempt
    return f"{attempt.cluster}:{attempt.job_id}:{context.record.restarts}"
