"""A run that Slurm could not launch and holds since (launch_failed_requeued_held): whether it is released again. Pure.

Slurm 22.05 drains the node with the Reason "Prolog error", counts the restart and holds the job for ever. Where our own
Prolog gate refused the node we caused it, and always let the job go; else its user must have agreed to retries.
"""

from __future__ import annotations

from slurmwrap.config import Config
from slurmwrap.model.action import GATE_PREFIX, SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.retry_decision import PlannedAction, RetryDecision
from slurmwrap.policy import decision_context, requeue
from slurmwrap.policy.decision_context import DecisionContext
from slurmwrap.policy.requeue import RequeueSpec

# squeue prints it with blanks
HELD_LAUNCH = "launch_failed_requeued_held"


def is_held_launch(job: JobRecord) -> bool:
    """Slurm holds the job since a Prolog failed."""
    return job.pending and job.restarts > 0 and job.reason.replace(" ", "_") == HELD_LAUNCH


def has_failed_to_launch(case: DecisionContext) -> bool:
    """This run is the one that did not get off the ground, and Slurm holds the next one."""
    job = case.job
    return job is not None and is_held_launch(job) and job.restarts == case.record.restarts + 1


def decide_launch(case: DecisionContext, config: Config) -> RetryDecision:
    """What becomes of the held job. The gate's own refusals cost no budget and need no consent."""
    if case.gate:
        return _decide_after_gate(case)
    where = f" on {', '.join(case.record.nodes)}" if case.record.nodes else ""
    held = f"it could not be launched{where}, and Slurm holds it"
    if refusal := decision_context.find_owner_refusal(case):
        way = f"'scontrol release {case.record.address}' lets it start again"
        return RetryDecision(decision="stop", reason=f"{held}; not released: {refusal} ({way})")
    spent = case.ledger.spent(case.diagnosis.category)
    if reason := decision_context.find_exhausted_budget(case, spent, config.retry.confirmations, config):
        return RetryDecision(decision="stop", reason=f"{held}; {reason}")
    return _decide_release(case, "retry_elsewhere", f"{held}; released once, to start elsewhere", case.record.nodes)


def make_launch_comment(case: DecisionContext) -> str:
    """What is in the job's Comment while it waits for its next run."""
    return f"{case.diagnosis.category} (slurmwrap why {case.record.address or case.record.attempt.job_id})"


def _decide_after_gate(case: DecisionContext) -> RetryDecision:
    # Of several nodes only one need have refused.
    nodes = case.gate_nodes or case.record.nodes[:1]
    reason = f"the Prolog gate refused {', '.join(nodes)}: {case.gate}"
    relabel = tuple(
        PlannedAction(
            rule="gate",
            action=SlurmAction(
                verb=Verb.DRAIN,
                target=node,
                value=f"{GATE_PREFIX}{case.gate}, before job {case.record.attempt.job_id}",
                reason="Slurm drained it for the Prolog's exit code",
            ),
        )
        for node in nodes
    )
    found = _decide_release(case, "gate", reason, nodes)
    return RetryDecision(decision="retry_elsewhere", reason=found.reason, actions=(*relabel, *found.actions))


def _decide_release(case: DecisionContext, rule: str, reason: str, avoid: tuple[str, ...]) -> RetryDecision:
    assert case.job is not None
    again = RequeueSpec(
        rule=rule, reason=reason, avoid=avoid if len(avoid) == 1 else (), comment=make_launch_comment(case)
    )
    # It is requeued and held already.
    actions = requeue.make_requeue_actions(again, case.job)[1:]
    return RetryDecision(decision="retry_elsewhere", reason=reason, actions=actions)
