"""One run of a job in the text of `slurmwrap why`: how it ended, on what evidence, and what was decided. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmwrap.cluster.action import Verb
from slurmwrap.cluster.hostlist import fold
from slurmwrap.diagnosis.taxonomy import CATEGORIES, DOMAINS, SUCCESS
from slurmwrap.report.actions import scontrol_line
from slurmwrap.report.cited import cited
from slurmwrap.report.look import Look
from slurmwrap.report.story import Story, failed
from slurmwrap.report.waiting import waited_line
from slurmwrap.report.words import count, duration, visible
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord, Incident
from slurmwrap.retry.record import REQUEUED

CANCELLED = "cancelled"
_INCIDENT = (
    "Part of an incident: the same cause struck several jobs within minutes. It is held against neither the job nor "
    "its nodes."
)


def told_run(title: str, record: AttemptRecord, story: Story, look: Look) -> Iterator[str]:
    style = "red" if failed(record) else "green" if record.diagnosis else "yellow"
    yield look.paint(visible(title), "bold") + look.paint(visible(ending(record) + _exit(record)), style)
    yield look.wrapped(_when_and_where(record, look) + _counted(record), "  ", "    ")
    waited = record.waited or next((d for d in story.delays if d.attempt == record.attempt), None)
    if waited is not None:
        yield look.wrapped(waited_line(waited), "  ", "    ")
    if record.diagnosis is not None and record.diagnosis.category != SUCCESS:
        yield from judged(record, story, look)


def judged(record: AttemptRecord, story: Story, look: Look) -> Iterator[str]:
    """Category, evidence, decision, advice, and what was asked of Slurm."""
    diagnosis = record.diagnosis
    assert diagnosis is not None
    domain = DOMAINS.get(diagnosis.domain, "")
    sure = f"{round(100 * diagnosis.confidence)} % sure"
    detail = ", ".join(part for part in (domain, f"node {diagnosis.node}" if diagnosis.node else "", sure) if part)
    by_hand = record.state == REQUEUED and diagnosis.category == CANCELLED
    yield look.wrapped(f"{'requeued' if by_hand else diagnosis.category} ({detail})", "  ", "    ")
    if diagnosis.category in CATEGORIES and diagnosis.category != CANCELLED:
        meaning = CATEGORIES[diagnosis.category].meaning
        yield look.wrapped(f"{meaning[:1].upper()}{meaning[1:]}.")
    yield from cited(diagnosis.evidence, look)
    if record.incident:
        yield from _incident(next((i for i in story.incidents if i.incident_id == record.incident), None), look)
    if record.decision:
        why = f": {record.decision_reason}" if record.decision_reason else ""
        yield look.wrapped(f"Decision: {record.decision}{why}", "  ", "    ")
    if diagnosis.advice and diagnosis.advice not in record.decision_reason:
        yield look.wrapped(diagnosis.advice)
    for action in story.actions:
        if action.attempt == record.attempt:
            yield from _action(action, look)


def _incident(incident: Incident | None, look: Look) -> Iterator[str]:
    yield look.wrapped(_INCIDENT)
    if incident is not None:
        jobs, users = count(len(incident.jobs), "job"), count(incident.users, "user")
        over = f"over {look.moment(incident.over_at)}" if incident.over_at is not None else "still open"
        told = f"{incident.category}, {incident.scope}, since {look.moment(incident.began)}, {over}: {jobs} of {users}."
        yield look.wrapped(told, "    ")


def ending(record: AttemptRecord) -> str:
    return record.state or "not ended"


def _exit(record: AttemptRecord) -> str:
    if record.exit_code is None or record.state == "COMPLETED":
        return ""
    if record.signal and record.state != "OUT_OF_MEMORY":  # Slurm says signal 125 then, which is none
        return f", signal {record.signal}"
    return f", exit code {record.exit_code}" if record.exit_code else ""


def _when_and_where(record: AttemptRecord, look: Look) -> str:
    if record.start_time is None:
        return "It never started." if record.state else "It waits."
    where = f" on {fold(record.nodes)}" if record.nodes else ""
    if record.end_time is None:
        return f"Since {look.moment(record.start_time)}{where}."
    ran = f" ({duration(record.run_s)})"
    return f"{look.moment(record.start_time)} to {look.moment(record.end_time)}{ran}{where}."


def _counted(record: AttemptRecord) -> str:
    """What the step counter saw of the run; one that stood still long before its end hung."""
    measured = record.measurement
    if measured is None or not measured.steps:
        return ""
    speed = f", {measured.steps_per_s:.3g} a second" if measured.steps_per_s else ""
    until = measured.steps_until_s
    last = "" if until is None else f", the last {duration(max(0.0, record.run_s - until))} before the end"
    return f" It counted {count(measured.steps, 'step')}{speed}{last}."


_BOUND = {"user": "  # for its owner's jobs", "site": "  # for everybody's jobs"}


def _action(action: ActionRecord, look: Look) -> Iterable[str]:
    if action.mode == "observe":
        return
    bound = _BOUND.get(action.key, "") if action.verb == Verb.BLOCK_INPUT.value else ""
    yield f"  {status_of(action)}: {visible(scontrol_line(action))}{bound}"
    if action.error:
        yield look.wrapped(action.error, "    ")


def status_of(action: ActionRecord) -> str:
    """ "observed", "advised", "refused" (or given up), "done", "to be done"."""
    if action.mode != "act":
        return "advised" if action.mode == "advise" else "observed"
    if action.error:
        return "refused"
    return "done" if action.done_at is not None else "to be done"
