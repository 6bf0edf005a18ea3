"""One run of a job in the text of `slurmwrap why`: how it ended, on what evidence, and what was decided. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from posixpath import basename

from slurmwrap.diagnosis.cited_context import find_own_place
from slurmwrap.diagnosis.taxonomy import (
    CATEGORIES,
    COMPLETED_WITH_ERROR,
    DECISION_TITLES,
    DOMAINS,
    SUCCESS,
    get_title,
)
from slurmwrap.model.decision import Verb
from slurmwrap.model.finding import Finding
from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_run import ActionRecord, Incident, JobRun
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.report.action_counts import format_scontrol_line
from slurmwrap.report.fold_rows import fold_jobs, group_alike
from slurmwrap.report.job_report.budget_table import RetryBudgetReport
from slurmwrap.report.job_report.cited_lines import format_citations, format_short_citation
from slurmwrap.report.job_report.timeline import JobTimeline, failed, list_tasks
from slurmwrap.report.queue_wait import format_wait
from slurmwrap.report.text_format import TextStyle, count, duration, hours, in_order, table, visible

CANCELLED = "cancelled"
_QUOTED = re.compile(r"['\"`]([^'\"`\n]{2,200})['\"`]")
_INCIDENT = (
    "Part of an incident: the same cause struck several jobs within minutes. It counts against neither the job "
    "nor its nodes."
)


def format_run(title: str, record: JobRun, story: JobTimeline, look: TextStyle) -> Iterator[str]:
    with_error = record.diagnosis is not None and record.diagnosis.category == COMPLETED_WITH_ERROR
    style = "red" if failed(record) or with_error else "green" if record.diagnosis else "yellow"
    yield look.paint(visible(title), "bold") + look.paint(visible(ending(record) + _exit(record)), style)
    if with_error and record.diagnosis is not None:
        short = format_short_citation(record.diagnosis.evidence) or "an error"
        loss = "a loss of NaN or Inf: " if record.diagnosis.error == "model_diverged" else ""
        yield look.wrapped(f"Completed, but its output ends with {loss}{short}.", "  ", "    ")
    yield look.wrapped(_when_and_where(record, look) + _counted(record), "  ", "    ")
    waited = record.waited or next((d for d in story.delays if d.attempt == record.attempt), None)
    if waited is not None:
        yield look.wrapped(format_wait(waited), "  ", "    ")
    if record.state == "COMPLETED" and (used := format_requested_and_used(record)):
        yield look.wrapped(used, "  ", "    ")
    if record.diagnosis is not None and record.diagnosis.category != SUCCESS:
        yield from judged(record, story, look)


def format_requested_and_used(record: JobRun) -> str:
    """ "Asked / used: time 1 h / 12 min; CPUs 8 / 2.1; memory 32.0 GiB / 5.1 GiB." as far as it is known, per node."""
    found, parts = record.measurement, []
    if record.time_limit_s and record.start_time is not None and record.end_time is not None:
        parts.append(f"time {duration(record.time_limit_s)} / {duration(record.run_s)}")
    cpus = record.cpus // max(1, len(record.nodes))
    if cpus and found is not None and found.cpus_used is not None:
        parts.append(f"CPUs {cpus} / {found.cpus_used:.1f}")
    asked = record.mem_mib_per_node or (record.mem_mib_per_cpu or 0) * cpus
    if asked and found is not None and found.mem_peak_mib:
        parts.append(f"memory {asked / 1024:.1f} GiB / {found.mem_peak_mib / 1024:.1f} GiB")
    each = " on a node" if len(record.nodes) > 1 and len(parts) > 1 else ""
    return f"Asked / used{each}: {'; '.join(parts)}." if parts else ""


# Of the submission that are shown with a failure.
_WARNINGS = 3


def warned_of(record: JobRun, story: JobTimeline) -> Sequence[str]:
    """What gsub had said at the submission of what the run then failed of: the same line, or the same name."""
    found = record.diagnosis
    if story.submission is None or found is None or found.category in (SUCCESS, CANCELLED):
        return ()
    place = find_own_place(found.evidence)
    texts = " ".join(one.text for one in found.evidence if one.role == "root")
    category = found.error or found.category
    said = [one for one in story.submission.warnings if _is_about(one, place, texts, category)]
    return [_in_one_line(one, story.submission.work_dir) for one in said[:_WARNINGS]]


def _is_about(warning: Finding, place: tuple[str, int] | None, texts: str, category: str) -> bool:
    if place is not None and warning.line == place[1] and basename(warning.file) == basename(place[0]):
        return True
    names = set(_QUOTED.findall(warning.message))
    return bool(names & set(_QUOTED.findall(texts))) or (bool(warning.category) and warning.category == category)


def _in_one_line(warning: Finding, work_dir: str) -> str:
    file = warning.file.removeprefix(f"{work_dir}/")
    where = f"{file}:{warning.line}: " if file and warning.line else ""
    return f"{where}{warning.message}"


def judged(record: JobRun, story: JobTimeline, look: TextStyle) -> Iterator[str]:
    """Category, evidence, decision, advice, and what was asked of Slurm."""
    diagnosis = record.diagnosis
    assert diagnosis is not None
    category = diagnosis.error or diagnosis.category
    domain = DOMAINS.get(diagnosis.domain, "")
    sure = f"{round(100 * diagnosis.confidence)} % sure"
    detail = ", ".join(part for part in (domain, f"node {diagnosis.node}" if diagnosis.node else "", sure) if part)
    named = f" ({category})" if category != CANCELLED else ""
    title = "requeued" if record.state == REQUEUED and category == CANCELLED else get_title(category)
    yield look.wrapped(f"{title}{named}: {detail}", "  ", "    ")
    if look.verbose and category in CATEGORIES and category != CANCELLED:
        meaning = CATEGORIES[category].meaning
        yield look.wrapped(f"{meaning[:1].upper()}{meaning[1:]}.")
    yield from format_citations(diagnosis.evidence, look)
    if record.incident:
        yield from _incident(next((i for i in story.incidents if i.incident_id == record.incident), None), look)
    for warning in warned_of(record, story):
        yield look.wrapped(f"gsub had warned at submission: {warning}", "  ", "    ")
    if diagnosis.advice:
        yield look.wrapped(diagnosis.advice)
    repeated = record.decision == "stop" and record.decision_reason == diagnosis.advice
    if record.decision and (look.verbose or not (repeated or record.decision == "none")):
        why = f": {record.decision_reason}" if record.decision_reason and not repeated else ""
        title = DECISION_TITLES.get(record.decision, record.decision)
        yield look.wrapped(f"Decision: {title} ({record.decision}){why}", "  ", "    ")
    for action in story.actions:
        if action.attempt == record.attempt:
            yield from _format_action(action, look)


def _incident(incident: Incident | None, look: TextStyle) -> Iterator[str]:
    yield look.wrapped(_INCIDENT)
    if incident is not None:
        jobs, users = count(len(incident.jobs), "job"), count(incident.users, "user")
        over = f"over {look.moment(incident.over_at)}" if incident.over_at is not None else "still open"
        told = f"{incident.category}, {incident.scope}, since {look.moment(incident.began)}, {over}: {jobs} of {users}."
        yield look.wrapped(told, "    ")


def ending(record: JobRun) -> str:
    return record.state or "not ended"


def result_of(record: JobRun) -> str:
    """The kind of failure, or of error in the output, in plain words; Slurm's state of anything else."""
    found = record.diagnosis
    return get_title(found.category) if found and (failed(record) or found.error) else ending(record)


def _exit(record: JobRun) -> str:
    if record.exit_code is None or record.state == "COMPLETED":
        return ""
    # Slurm says signal 125 then, which is none.
    if record.signal and record.state != "OUT_OF_MEMORY":
        return f", signal {record.signal}"
    return f", exit code {record.exit_code}" if record.exit_code else ""


def _when_and_where(record: JobRun, look: TextStyle) -> str:
    if record.start_time is None:
        return "It never started." if record.state else "It waits."
    where = f" on {fold(record.nodes)}" if record.nodes else ""
    if record.end_time is None:
        return f"Since {look.moment(record.start_time)}{where}."
    ran = f" ({duration(record.run_s)})"
    return f"{look.moment(record.start_time)} to {look.moment(record.end_time)}{ran}{where}."


def _counted(record: JobRun) -> str:
    """What the step counter saw of the run; one that stood still long before its end hung."""
    measured = record.measurement
    if measured is None or not measured.steps:
        return ""
    speed = f", {measured.steps_per_s:.3g} a second" if measured.steps_per_s else ""
    until = measured.steps_until_s
    last = "" if until is None else f", the last {duration(max(0.0, record.run_s - until))} before the end"
    return f" It counted {count(measured.steps, 'step')}{speed}{last}."


_BOUND = {"user": "  # for its owner's jobs", "site": "  # for everybody's jobs"}


def _format_action(action: ActionRecord, look: TextStyle) -> Iterable[str]:
    if action.mode == "observe":
        return
    bound = _BOUND.get(action.key, "") if action.verb == Verb.BLOCK_INPUT.value else ""
    yield f"  {describe_action_status(action)}: {visible(format_scontrol_line(action))}{bound}"
    if action.error:
        yield look.wrapped(action.error, "    ")


def describe_action_status(action: ActionRecord) -> str:
    """ "observed", "advised", "refused" (or given up), "done", "to be done"."""
    if action.mode != "act":
        return "advised" if action.mode == "advise" else "observed"
    if action.error:
        return "refused"
    return "done" if action.done_at is not None else "to be done"


# Arrays and jobs of many runs in the text of `slurmwrap why`: tasks that ended alike, runs, and the ledger.
def format_tasks(story: JobTimeline, look: TextStyle) -> Iterator[Iterable[str]]:
    """Tasks that ended alike are one story, that of the first that failed; those that failed come first."""
    for group in group_tasks(story):
        title = f"{count(len(group), 'TASK', 'TASKS')} {fold_jobs(run.address for run in group)} "
        first = min(group, key=lambda run: run.end_time or 1 << 62)
        if len(group) == 1:
            yield format_run(f"TASK {first.address} ", first, story, look)
        elif failed(first):
            yield _format_alike(title, group, first, story, look)
        else:
            style = "green" if first.diagnosis else "yellow"
            yield [look.paint(visible(title), "bold") + look.paint(visible(result_of(first)), style)]


def group_tasks(story: JobTimeline) -> tuple[tuple[JobRun, ...], ...]:
    """The last run of each task, those that ended alike together; failures first, the largest group first."""
    groups = group_alike(list_tasks(story), _make_ending_key)
    return tuple(sorted(groups, key=lambda group: (not failed(group[0]), -len(group))))


def _make_ending_key(run: JobRun) -> tuple[object, ...]:
    found = run.diagnosis
    if not failed(run) or found is None:
        return (result_of(run),)
    return (found.category, found.signature, run.decision, run.state, found.input_path)


def _format_alike(
    title: str, group: Sequence[JobRun], first: JobRun, story: JobTimeline, look: TextStyle
) -> Iterator[str]:
    yield look.paint(look.wrapped(f"{title}failed alike", "", "  "), "red")
    ends = sorted(run.end_time for run in group if run.end_time)
    nodes = {name for run in group for name in run.nodes}
    if ends:
        between = f"between {look.moment(ends[0])} and {look.moment(ends[-1])}" if ends[-1] - ends[0] > 60 else ""
        at = between or f"at {look.moment(ends[0])}"
        longest = max(run.run_s for run in group)
        where = f", on {fold(in_order(nodes))}" if nodes else ""
        yield look.wrapped(f"They ended {at}, after {duration(longest)} at most{where}.", "  ", "    ")
    yield look.wrapped(f"The first one is {first.address} (slurmwrap why {first.address}):", "  ")
    yield from judged(first, story, look)


def run_table(runs: Sequence[JobRun], look: TextStyle) -> Iterator[str]:
    """A line for each run of one job, oldest first."""
    yield look.paint(f"{count(len(runs), 'RUN', 'RUNS')}", "bold")
    rows = [
        [
            str(number),
            look.moment(run.end_time)[5:] if run.end_time else "",
            duration(run.run_s) if run.start_time else "",
            fold(run.nodes),
            result_of(run),
            f"{run.decision}{' (incident)' if run.incident else ''}",
        ]
        for number, run in enumerate(runs, start=1)
    ]
    head = (">run", "ended", ">after", "~nodes", "result", "decision")
    yield table(head, rows, columns=look.columns)


def format_retry_budget(account: RetryBudgetReport, look: TextStyle) -> Iterator[str]:
    """What its failures cost the job, and how many retries are left to each root cause."""
    if not account.budgets:
        return
    yield look.paint("RETRIES", "bold")
    rows = [
        [
            get_title(one.category),
            str(one.failures),
            str(one.used),
            str(one.limit),
            str(one.left),
            ", ".join(one.not_counted),
        ]
        for one in account.budgets
    ]
    head = ["root cause", ">failed", ">used", ">of", ">left", "~not counted"]
    width = 6 if any(one.not_counted for one in account.budgets) else 5
    yield table(head[:width], [row[:width] for row in rows], columns=look.columns)
    caps = f" of {account.max_failures}" if account.max_failures else ""
    lost = f" of {hours(account.max_lost_gpu_hours)}" if account.max_lost_gpu_hours else ""
    totals = f"In all {account.failures}{caps} failures, {hours(account.lost_gpu_hours)}{lost} GPU-hours lost."
    yield look.wrapped(totals, "  ", "    ")
    for reset in account.resets:
        why = f": {reset.note}" if reset.note else ""
        yield look.wrapped(f"Cleared {look.moment(reset.at)} by {reset.who}{why}", "  ", "    ")
