"""Turns recorded actions into the report's counts, and into commands that a person can paste. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from slurmwrap.cluster.action import Verb
from slurmwrap.cluster.hostlist import fold
from slurmwrap.report.record import Retries, RuleRow, ToDo
from slurmwrap.report.words import in_order
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord


def rule_rows(actions: Sequence[ActionRecord]) -> tuple[RuleRow, ...]:
    """One row per rule. One decision may need several changes of Slurm: what is counted is targets, not changes."""
    rules = sorted({action.rule for action in actions})
    return tuple(_rule_row(rule, [action for action in actions if action.rule == rule]) for rule in rules)


def _rule_row(rule: str, actions: Sequence[ActionRecord]) -> RuleRow:
    steps: dict[object, list[ActionRecord]] = {}
    for action in actions:
        steps.setdefault((action.attempt, action.target, action.mode), []).append(action)
    outcomes = [_outcome(group) for group in steps.values()]
    return RuleRow(
        rule=rule,
        observed=outcomes.count("observed"),
        advised=outcomes.count("advised"),
        done=outcomes.count("done"),
        refused=outcomes.count("refused"),
        waiting=outcomes.count("waiting"),
    )


def _outcome(steps: Sequence[ActionRecord]) -> str:
    if steps[0].mode != "act":
        return {"observe": "observed"}.get(steps[0].mode, "advised")
    if any(step.error for step in steps):
        return "refused"
    return "done" if all(step.done_at is not None for step in steps) else "waiting"


REQUEUES = {Verb.REQUEUE.value, Verb.REQUEUEHOLD.value}


def retries(actions: Sequence[ActionRecord], attempts: Sequence[AttemptRecord]) -> Retries:
    """What became of the runs that followed our requeues."""
    requeued = {
        (a.attempt.cluster, a.attempt.job_id, a.attempt.submit_time)
        for a in actions
        if a.verb in REQUEUES and a.mode == "act" and a.done_at is not None and not a.error and a.attempt is not None
    }
    results = [_next_run(attempts, *key) for key in sorted(requeued)]
    return Retries(
        jobs=len(requeued),
        completed=results.count("success"),
        cancelled=results.count("cancelled"),
        unfinished=results.count(""),
        failed_again=sum(result not in ("success", "cancelled", "") for result in results),
    )


def _next_run(attempts: Sequence[AttemptRecord], cluster: str, job_id: int, submit_time: int) -> str:
    """Category of the job's next run; "" while there is none or it is not judged."""
    later = [
        record
        for record in attempts
        if (record.attempt.cluster, record.attempt.job_id) == (cluster, job_id)
        and record.attempt.submit_time > submit_time
    ]
    first = min(later, key=lambda record: record.attempt.submit_time, default=None)
    return first.diagnosis.category if first and first.diagnosis else ""


def to_do(actions: Sequence[ActionRecord]) -> tuple[ToDo, ...]:
    """Drains that were only advised, then the way back for those that were done. Equal reasons are folded."""
    drains = [action for action in actions if action.verb == Verb.DRAIN.value]
    advised = [action for action in drains if action.mode == "advise" and action.done_at is None]
    done = {a.target for a in drains if a.mode == "act" and a.done_at is not None and not a.error}
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for action in advised:
        reasons.setdefault((action.because, action.value), {})[action.target] = None
    todo = [
        ToDo(why=because or "advised", command=_update_node(tuple(nodes), "DRAIN", reason))
        for (because, reason), nodes in reasons.items()
    ]
    if done:
        why = f"drained by slurmwrap; once {'they are' if len(done) > 1 else 'it is'} repaired"
        todo.append(ToDo(why=why, command=_update_node(tuple(done), "RESUME", "")))
    return tuple(todo)


def scontrol_line(action: ActionRecord) -> str:
    """The shell command for one action, safe to paste: every value is quoted where the shell would read it.

    A blocked input is none of Slurm's: the command is ours.
    """
    if action.verb in (Verb.DRAIN.value, Verb.RESUME.value):
        return _update_node((action.target,), action.verb.upper(), action.value)
    target = shlex.quote(action.target)
    if action.verb == Verb.BLOCK_INPUT.value:
        return f"slurmwrap inputs block {target} --reason {shlex.quote(action.because or 'blocked')}"
    if action.verb == Verb.CANCEL.value:
        return f"scancel {target}"
    if action.verb == Verb.UPDATE_JOB.value:
        return f"scontrol update JobId={target} {action.key}={shlex.quote(action.value)}"
    return f"scontrol {action.verb} {target}"


def _update_node(nodes: tuple[str, ...], state: str, reason: str) -> str:
    names = shlex.quote(fold(in_order(nodes)))  # the shell would read n[1-4] as a pattern
    command = f"scontrol update NodeName={names} State={state}"
    return f"{command} Reason={shlex.quote(reason)}" if reason else command
