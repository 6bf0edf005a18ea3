"""The text of messages about findings of the rule `early`: with the evidence for the owner, without it for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import DIVERGED, IDLE, PARTLY_DEAD, STUCK, WILL_NOT_FINISH, EarlyFinding
from slurmwrap.policy.finding_messages import FindingGroup
from slurmwrap.report.text_format import count, duration, in_order, visible

_TITLES: Mapping[str, str] = {
    DIVERGED: "its loss is NaN or infinite",
    PARTLY_DEAD: "a part of it ended while the rest waits",
    STUCK: "it makes no progress",
    IDLE: "GPUs that it holds are idle",
    WILL_NOT_FINISH: "it will not finish within its time limit",
}
_ACTIONS: Mapping[str, str] = {
    "cancel": "slurmwrap has cancelled it.",
    "signal": "slurmwrap has sent it a signal.",
    "requeue": "slurmwrap runs it again.",
}
# Number of array tasks that a message names, and of findings that a summary lists.
_NAMED, _LISTED = 8, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """A message about findings. `facts` contain no text of a log."""

    subject: str
    text: str
    facts: Mapping[str, Any]


def get_finding_title(kind: str) -> str:
    """Return what was found, as a clause about the job."""
    return _TITLES.get(kind, kind.replace("_", " "))


def format_finding(group: FindingGroup, user: str, name: str = "") -> FindingText:
    """Return the message about one group. `name`: name of the job, "" where it is unknown; for the owner only."""
    first = group.first
    lines = [_format_tasks(group), _format_figure(first), visible(first.evidence), _ACTIONS.get(first.action, "")]
    return FindingText(
        subject=f"Slurm {_format_jobs(group)}{f' {name}' if name else ''}: {get_finding_title(first.kind)}",
        text=_join_lines([*lines, *_list_commands(first)]),
        facts=_make_facts("early", user, [group]),
    )


def format_public_finding(group: FindingGroup, user: str) -> FindingText:
    """Return the message about one group for a channel that others read: job, user, kind and figures alone."""
    first = group.first
    lines = [_format_tasks(group), _format_figure(first), _ACTIONS.get(first.action, "")]
    return FindingText(
        subject=f"Slurm {_format_jobs(group)} of {user}: {get_finding_title(first.kind)}",
        text=_join_lines([*lines, *_list_commands(first)]),
        facts=_make_facts("early", user, [group]),
    )


def format_finding_summary(groups: Sequence[FindingGroup], user: str) -> FindingText:
    """Return one message for all further groups of a user in this hour. It contains no text of a log."""
    rows = [_format_row(group) for group in groups[:_LISTED]]
    more = [f"... and {len(groups) - _LISTED} more"] if len(groups) > _LISTED else []
    about = "The limit of messages in an hour is reached (notify.per_hour). Left out are:"
    return FindingText(
        subject=f"Slurm: {count(len(groups), 'further finding')} about running jobs of {user}",
        text="\n".join((about, *rows, *more)),
        facts=_make_facts("early_summary", user, groups),
    )


def _format_row(group: FindingGroup) -> str:
    figure = _format_figure(group.first)
    return f"{_format_jobs(group)}: {get_finding_title(group.first.kind)}{f' ({figure})' if figure else ''}"


def _format_jobs(group: FindingGroup) -> str:
    first = group.first
    if len(group.findings) == 1:
        return f"job {first.address}"
    return f"array {first.address.partition('_')[0]}, {count(len(group.findings), 'task')}"


def _format_tasks(group: FindingGroup) -> str:
    """Return the tasks of an array, and that later ones are not reported; "" for a single job."""
    array, _, task = group.first.address.partition("_")
    if not task:
        return ""
    named = in_order(one.address for one in group.findings)
    shown = ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")
    return f"{shown}. No message follows about further tasks of array {array} with the same cause."


def _format_figure(one: EarlyFinding) -> str:
    """Return how often or how long it was seen; "" if there is no figure."""
    if one.n <= 0:
        return ""
    return {
        DIVERGED: f"seen in {count(one.n, 'line')}",
        PARTLY_DEAD: count(one.n, "rank"),
        STUCK: f"no step for {duration(one.n)}",
        IDLE: count(one.n, "GPU"),
    }.get(one.kind, "")


def _list_commands(one: EarlyFinding) -> tuple[str, ...]:
    return ("", f"slurmwrap watch {one.address}", f"slurmwrap why {one.address}")


def _join_lines(lines: Sequence[str]) -> str:
    """Return the lines without empty ones at the beginning; one empty line separates the commands."""
    text = [line for line in lines[:-3] if line]
    return "\n".join((*text, *(lines[-3:] if text else lines[-2:])))


def _make_facts(event: str, user: str, groups: Sequence[FindingGroup]) -> Mapping[str, Any]:
    first = groups[0].first
    found = [
        {"jobs": [one.address for one in group.findings], "kind": group.first.kind, "n": group.first.n,
         "action": group.first.action, "at": round(group.first.at)}
        for group in groups
    ]  # fmt: skip
    return {"version": 1, "event": event, "cluster": first.attempt.cluster, "user": user, "findings": found}
