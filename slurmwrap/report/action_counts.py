"""Count recorded actions by rule, and turn actions into commands to paste. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from slurmwrap.model.decision import Verb
from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_run import ActionRecord
from slurmwrap.policy.moved_run import GAINED, LEASE, LOST, RESTARTED
from slurmwrap.report.night_report import MoveTotals, RuleRow, ToDo
from slurmwrap.report.report_inputs import ActionSteps
from slurmwrap.report.text_format import in_order


def count_rule_rows(steps: Iterable[ActionSteps]) -> tuple[RuleRow, ...]:
    """Return one row per rule. Targets are counted, not changes, because one decision may need several changes."""
    counts: dict[str, Counter[str]] = {}
    for step in steps:
        counts.setdefault(step.rule, Counter())[_get_outcome(step)] += step.targets
    return tuple(RuleRow(rule=rule, **counts[rule]) for rule in sorted(counts))


def _get_outcome(step: ActionSteps) -> str:
    if step.mode != "act":
        return {"observe": "observed"}.get(step.mode, "advised")
    if step.refused:
        return "refused"
    return "done" if step.done else "waiting"


REQUEUES = {Verb.REQUEUE.value, Verb.REQUEUEHOLD.value}


def count_moves(moves: Iterable[ActionRecord]) -> MoveTotals:
    """Return how many jobs were moved, and what that was expected to gain and lose."""
    moves = tuple(moves)
    again = [one for one in moves if one.key == RESTARTED]
    others = [one for one in moves if one.key != RESTARTED]
    done = [one for one in others if one.mode == "act" and one.done_at is not None and not one.error]
    figures = Counter[str]()
    for one in done:
        figures.update({name: value for name, value in one.figures if name in (GAINED, LOST)})
    # Work that was done again although the job was expected to continue.
    unexpected_s = sum(dict(one.figures).get(LOST, 0.0) for one in again)
    return MoveTotals(
        moved=len(done),
        leases=sum(one.key == LEASE for one in done),
        given_up=sum(one.mode == "act" and bool(one.error) for one in others),
        advised=sum(one.mode == "advise" for one in others),
        gained_gpu_hours=figures[GAINED] / 3600,
        lost_gpu_hours=(figures[LOST] + unexpected_s) / 3600,
        unexpected_gpu_hours=unexpected_s / 3600,
        restarted=len(again),
    )


def list_advised_actions(actions: Sequence[ActionRecord]) -> tuple[ToDo, ...]:
    """Return the drains that were only advised, then a repair command for those done. Equal reasons are combined."""
    drains = [action for action in actions if action.verb == Verb.DRAIN.value]
    advised = [action for action in drains if action.mode == "advise" and action.done_at is None]
    done = {a.target for a in drains if a.mode == "act" and a.done_at is not None and not a.error}
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for action in advised:
        reasons.setdefault((action.reason, action.value), {})[action.target] = None
    todo = [
        ToDo(why=why or "advised", command=format_update_node_command(tuple(nodes), "DRAIN", text))
        for (why, text), nodes in reasons.items()
    ]
    if done:
        why = f"drained by slurmwrap; once {'they are' if len(done) > 1 else 'it is'} repaired"
        todo.append(ToDo(why=why, command=make_repair_command(done)))
    return tuple(todo)


def make_repair_command(nodes: Iterable[str]) -> str:
    """Return the command that ends slurmwrap's drain and records the repair, after which earlier faults weigh less.

    scontrol alone would not record the repair.
    """
    return f"slurmwrap nodes repaired {shlex.quote(fold(in_order(nodes)))} --resume"


def format_scontrol_line(action: ActionRecord) -> str:
    """Return the shell command for one action, safe to paste: every value is quoted if the shell would interpret it.

    Slurm does not know blocked inputs; the command for these is slurmwrap's own.
    """
    if action.verb in (Verb.DRAIN.value, Verb.RESUME.value):
        return format_update_node_command((action.target,), action.verb.upper(), action.value)
    target = shlex.quote(action.target)
    if action.verb == Verb.BLOCK_INPUT.value:
        return f"slurmwrap inputs block {target} --reason {shlex.quote(action.reason or 'blocked')}"
    if action.verb == Verb.MOVE.value:
        # It is never sent itself. By hand, a person would do this after the next checkpoint.
        return f"scontrol requeue {target}"
    if action.verb == Verb.CANCEL.value:
        return f"scancel {target}"
    if action.verb == Verb.SIGNAL.value:
        return f"scancel --signal={shlex.quote(action.key)}{' --batch' if action.value == 'batch' else ''} {target}"
    if action.verb == Verb.UPDATE_JOB.value:
        return f"scontrol update JobId={target} {action.key}={shlex.quote(action.value)}"
    return f"scontrol {action.verb} {target}"


def format_update_node_command(nodes: tuple[str, ...], state: str, reason: str) -> str:
    """Return the scontrol command that sets the state of nodes."""
    # Quoted, because the shell would read n[1-4] as a pattern.
    names = shlex.quote(fold(in_order(nodes)))
    command = f"scontrol update NodeName={names} State={state}"
    return f"{command} Reason={shlex.quote(reason)}" if reason else command
