"""Which messages are sent about findings of the rule `early`: one per array and cause, and a limit per hour. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import EarlyFinding

# A finding that could not be reported for this time is not reported any more, in seconds.
FRESH_S = 6 * 3600.0
# Findings of one array id within this time are about the same array, because ids are reused; in seconds.
SAME_ARRAY_S = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings of one user about which one message is sent: those of one cause and array, or one of a single job."""

    findings: tuple[EarlyFinding, ...]  # oldest first

    @property
    def first(self) -> EarlyFinding:
        """Return the oldest finding."""
        return self.findings[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlan:
    """The messages of one pass."""

    single: tuple[FindingGroup, ...] = ()  # one message each
    summaries: tuple[tuple[FindingGroup, ...], ...] = ()  # one message for all groups of one
    silent: tuple[EarlyFinding, ...] = ()  # covered by a message that was sent before


def list_due(findings: Iterable[EarlyFinding], is_current: Callable[[EarlyFinding], bool]) -> tuple[EarlyFinding, ...]:
    """Return the findings about which the user should hear.

    Left out are those of mode `observe`, and those whose evidence is gone or whose job has ended by itself.
    """
    return tuple(
        one
        for one in findings
        if not one.notified and one.mode != "observe" and (one.action or (one.gone_at is None and is_current(one)))
    )


def plan_messages(
    due: Sequence[EarlyFinding], earlier: Iterable[EarlyFinding], get_capacity: Callable[[int], int]
) -> MessagePlan:
    """Return the messages about `due`. `earlier`: findings that were reported; `get_capacity`: uid -> messages left.

    If there is more to say than messages are left, the last one is a summary. Without any left, the findings wait.
    """
    reported = {_identify_cause(one): one.at for one in earlier if one.notified}
    silent = tuple(one for one in due if _is_reported(one, reported))
    groups: dict[object, list[EarlyFinding]] = {}
    for one in sorted(due, key=lambda finding: (finding.at, finding.attempt.job_id)):
        if one not in silent:
            groups.setdefault(_identify_cause(one), []).append(one)
    of_user: dict[int, list[FindingGroup]] = {}
    for found in groups.values():
        of_user.setdefault(found[0].uid, []).append(FindingGroup(findings=tuple(found)))
    single: list[FindingGroup] = []
    summaries: list[tuple[FindingGroup, ...]] = []
    for uid, own in of_user.items():
        capacity = get_capacity(uid)
        alone = len(own) if len(own) <= capacity else max(0, capacity - 1)
        single += own[:alone]
        if capacity > 0 and own[alone:]:
            summaries.append(tuple(own[alone:]))
    return MessagePlan(single=tuple(single), summaries=tuple(summaries), silent=silent)


def list_message_times(findings: Iterable[EarlyFinding], since: float) -> tuple[tuple[int, float], ...]:
    """Return (uid, Unix seconds) of the messages that were sent after `since`, as far as stored findings show it."""
    first: dict[object, tuple[int, float]] = {}
    for one in findings:
        if one.notified:
            known = first.get(_identify_cause(one))
            first[_identify_cause(one)] = (one.uid, min(one.at, known[1]) if known else one.at)
    return tuple((uid, at) for uid, at in first.values() if at > since)


def _identify_cause(one: EarlyFinding) -> object:
    """Return the subject of a message. Each run of a job that is no array task is a subject of its own."""
    array, _, task = one.address.partition("_")
    return (one.attempt.cluster, array, one.uid, one.kind) if task else (one.attempt, one.kind)


def _is_reported(one: EarlyFinding, reported: dict[object, float]) -> bool:
    at = reported.get(_identify_cause(one))
    return at is not None and abs(one.at - at) < SAME_ARRAY_S
