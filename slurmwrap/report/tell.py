"""Turns a Story into the text of `slurmwrap why`, 80 columns wide; only commands may be longer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from slurmwrap.cluster.action import Verb
from slurmwrap.cluster.hostlist import fold
from slurmwrap.diagnosis.evidence import Citation
from slurmwrap.diagnosis.taxonomy import DOMAINS, SUCCESS
from slurmwrap.prerun.finding import Finding
from slurmwrap.prerun.verdict import Outcome
from slurmwrap.report.actions import scontrol_line
from slurmwrap.report.story import Next, Story, failed, next_step, stopped_by_prerun
from slurmwrap.report.waiting import waited_line
from slurmwrap.report.words import count, duration, moment, visible, wrapped
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord, PrerunRecord, QueueDelay
from slurmwrap.retry.submission import Submission

Paint = Callable[[str, str], str]  # (harmless text, "bold" | "red" | "green" | "yellow" | "dim") -> the same, in colour

MAX_LINES = 8  # cited lines per run
_INCIDENT = (
    "Part of an incident: the same cause struck several jobs within minutes. It is held against neither the job nor "
    "its nodes."
)
MAX_TEXT = 300  # characters of one cited line


def plain(text: str, style: str) -> str:
    """A Paint without colour."""
    return text


def tell(story: Story, zone: tzinfo | None = UTC, paint: Paint = plain) -> str:
    """The whole answer; times are shown in `zone`."""
    sections = [_head(story, zone, paint)]
    if story.submission is not None:
        sections.append(_changes("ASKED AND CHANGED", story.submission.changes, story.submission.plan, paint))
    for prerun in story.preruns:
        sections.append(_prerun(prerun, stopped_by_prerun(story), paint))
        if prerun.verdict.outcome is not Outcome.FAIL:
            sections.append(_changes("PLANNED AGAIN ON WHAT WAS MEASURED", prerun.changes, prerun.plan, paint))
    for number, attempt in enumerate(_started(story), start=1):
        mine = [action for action in story.actions if action.attempt == attempt.attempt]
        waited = attempt.waited or next((d for d in story.delays if d.attempt == attempt.attempt), None)
        sections.append(_run(number, attempt, mine, waited, zone, paint))
    told = {attempt.attempt for attempt in story.attempts}
    sections.append(wrapped(waited_line(d), indent="  ", hanging="    ") for d in story.delays if d.attempt not in told)
    sections.append(_next(next_step(story), paint))
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _started(story: Story) -> Sequence[AttemptRecord]:
    """The runs worth telling: what a pre-run stopped never ran, and the pre-run's section says so."""
    if not stopped_by_prerun(story):
        return story.attempts
    return [attempt for attempt in story.attempts if attempt.nodes]


def _head(story: Story, zone: tzinfo | None, paint: Paint) -> Iterator[str]:
    asked, last = story.submission, story.attempts[-1] if story.attempts else None
    name = asked.name if asked else last.name if last else ""
    user = asked.user if asked else last.user if last else ""
    gpus = (asked.gpus if asked else 0) or (last.gpus if last else 0)
    yield paint(wrapped(f"Job {story.address} {name}".rstrip(), hanging="  "), "bold")
    facts = [f"of {user}"] if user else []
    facts += [count(gpus, "GPU")] if gpus else []
    facts += [f"submitted {moment(asked.at, zone)}"] if asked else []
    if facts:
        yield wrapped(", ".join(facts), indent="  ", hanging="  ")
    if asked and asked.script_path:
        yield wrapped(_script(asked), indent="  ", hanging="  ")


def _script(asked: Submission) -> str:
    return asked.script_path if asked.script_path.startswith("/") else f"{asked.script_path} in {asked.work_dir}"


def _changes(title: str, changes: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    """What a rewrite did, with its reasons. Changes came as JSON from a user's own file: any key may be missing."""
    summary = _plan(plan)
    if not changes and not summary:
        return
    yield paint(title, "bold")
    if summary:
        yield wrapped(summary, indent="  ", hanging="  ")
    for change in changes:
        yield wrapped(_change(change), indent="  ", hanging="    ")
        reason = str(change.get("reason") or "")
        if reason:
            yield paint(wrapped(reason, indent="    ", hanging="    "), "dim")


def _change(change: Mapping[str, Any]) -> str:
    if change.get("verb"):
        return _update(change)
    option, old, new = (change.get(key) for key in ("option", "old", "new"))
    if old == new:
        return f"--{option} stays {'as asked' if old in (None, '') else old}"
    if old is None:
        return f"--{option}={new} added" if new else f"--{option} added"
    return f"--{option} {old or 'set'} -> {'removed' if new is None else new}"


def _update(change: Mapping[str, Any]) -> str:
    """What was asked of Slurm for the waiting job."""
    asked = f"{change.get('option')}={change.get('new')}" if change.get("option") else str(change.get("verb"))
    return f"scontrol: {asked}" + (f" was refused: {change['error']}" if change.get("error") else "")


def _plan(plan: Mapping[str, Any]) -> str:
    nodes, per_node = plan.get("node_count"), plan.get("gpus_per_node")
    parts = [f"{nodes} nodes" if nodes != 1 else "1 node"] if nodes else []
    parts += [f"{count(per_node, 'GPU')} on each"] if per_node else []
    parts += [str(plan["locality"])] if plan.get("locality") not in (None, "", "any") else []
    parts += [f"room now in {plan['switch']}"] if plan.get("switch") else []
    return f"Plan: {', '.join(parts)}." if parts else ""


_OUTCOME = {Outcome.PASS: ("passed", "green"), Outcome.FAIL: ("failed", "red")}


def _prerun(record: PrerunRecord, stopped: bool, paint: Paint) -> Iterator[str]:
    verdict = record.verdict
    word, style = _OUTCOME.get(verdict.outcome, ("inconclusive", "yellow"))
    where = f"PRE-RUN (job {record.prerun_job_id}) "
    what = f"{word} after {duration(verdict.seconds)}"
    steps = f", {count(verdict.steps, 'step')}" if verdict.steps else ""
    yield paint(where, "bold") + paint(what + steps, style)
    kind = f"{verdict.category}: " if verdict.category else ""
    yield wrapped(f"{kind}{verdict.reason}", indent="  ", hanging="  ")
    for finding in verdict.findings:
        yield from _finding(finding)
    yield from _evidence(verdict.evidence)
    if verdict.input_path:
        fault = f": {verdict.input_fault}" if verdict.input_fault else ""
        yield wrapped(f"Input {verdict.input_path}{fault}", indent="  ", hanging="    ")
    if record.job_id is not None and stopped and verdict.outcome is Outcome.FAIL:
        yield wrapped(f"Job {record.job_id} was cancelled before it started: {count(record.gpus, 'GPU')} kept free.",
                      indent="  ", hanging="  ")  # fmt: skip


def _finding(finding: Finding) -> Iterator[str]:
    place = f"{finding.file}:{finding.line} " if finding.file and finding.line else f"{finding.file} ".lstrip()
    yield wrapped(f"{place}{finding.message}", indent="  ", hanging="    ")
    if finding.fix:
        yield wrapped(finding.fix, indent="    ", hanging="    ")


def _evidence(citations: Sequence[Citation]) -> Iterator[str]:
    """Root causes first; at most MAX_LINES."""
    ordered = sorted(citations, key=lambda citation: citation.role != "root")
    for citation in ordered[:MAX_LINES]:
        place = f"{citation.source}:{citation.line}" if citation.line else citation.source
        text = citation.text.strip()
        shown = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
        yield wrapped(f"| {place}: {shown}", indent="  ", hanging="  |   ")
    if len(ordered) > MAX_LINES:
        yield f"  | and {count(len(ordered) - MAX_LINES, 'line')} more (--json shows all)"


def _run(
    number: int,
    record: AttemptRecord,
    actions: Sequence[ActionRecord],
    waited: QueueDelay | None,
    zone: tzinfo | None,
    paint: Paint,
) -> Iterator[str]:
    style = "red" if failed(record) else "green" if record.diagnosis else "yellow"
    ended = record.state or "not ended"
    task = f" of {record.address}" if "_" in record.address else ""
    yield paint(f"RUN {number}{visible(task)} ", "bold") + paint(visible(ended + _exit(record)), style)
    yield wrapped(_when_and_where(record, zone) + _counted(record), indent="  ", hanging="    ")
    if waited is not None:
        yield wrapped(waited_line(waited), indent="  ", hanging="    ")
    diagnosis = record.diagnosis
    if diagnosis is None or diagnosis.category == SUCCESS:
        return
    domain = DOMAINS.get(diagnosis.domain, "")
    sure = f"{round(100 * diagnosis.confidence)} % sure"
    detail = ", ".join(part for part in (domain, f"node {diagnosis.node}" if diagnosis.node else "", sure) if part)
    yield wrapped(f"{diagnosis.category} ({detail})", indent="  ", hanging="    ")
    yield from _evidence(diagnosis.evidence)
    if record.incident:
        yield wrapped(_INCIDENT, indent="  ", hanging="  ")
    if record.decision:
        why = f": {record.decision_reason}" if record.decision_reason else ""
        yield wrapped(f"Decision: {record.decision}{why}", indent="  ", hanging="    ")
    if diagnosis.advice and diagnosis.advice not in record.decision_reason:
        yield wrapped(diagnosis.advice, indent="  ", hanging="  ")
    for action in actions:
        yield from _action(action)


def _exit(record: AttemptRecord) -> str:
    if record.exit_code is None or record.state == "COMPLETED":
        return ""
    if record.signal and record.state != "OUT_OF_MEMORY":  # Slurm says signal 125 then, which is none
        return f", signal {record.signal}"
    return f", exit code {record.exit_code}" if record.exit_code else ""


def _when_and_where(record: AttemptRecord, zone: tzinfo | None) -> str:
    if record.start_time is None:
        return "It never started." if record.state else "It waits."
    where = f" on {fold(record.nodes)}" if record.nodes else ""
    if record.end_time is None:
        return f"Since {moment(record.start_time, zone)}{where}."
    ran = f" ({duration(record.run_s)})"
    return f"{moment(record.start_time, zone)} to {moment(record.end_time, zone)}{ran}{where}."


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


def _action(action: ActionRecord) -> Iterable[str]:
    if action.mode == "observe":
        return
    if action.mode != "act":
        status = "advised"
    elif action.error:
        status = "refused"
    else:
        status = "done" if action.done_at is not None else "to be done"
    bound = _BOUND.get(action.key, "") if action.verb == Verb.BLOCK_INPUT.value else ""
    yield f"  {status}: {visible(scontrol_line(action))}{bound}"
    if action.error:
        yield wrapped(action.error, indent="    ", hanging="    ")


def _next(step: Next, paint: Paint) -> Iterator[str]:
    yield paint("NEXT", "bold")
    yield wrapped(step.sentence, indent="  ", hanging="  ")
    if step.command:
        yield f"  {visible(step.command)}"
