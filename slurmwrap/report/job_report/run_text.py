"""Format one run of a job for `slurmwrap why`: how it ended, the evidence, and the decision. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from slurmwrap.model.job_run import STOP_RULE, ActionRecord, Incident, JobRun
from slurmwrap.model.running_job import FINDING_TITLES, EarlyFinding
from slurmwrap.policy.moved_run import RESTARTED
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.report.action_counts import format_scontrol_line
from slurmwrap.report.convergence_text import draw_loss, format_convergence
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


def format_run(title: str, run: JobRun, timeline: JobTimeline, look: TextStyle) -> Iterator[str]:
    with_error = run.diagnosis is not None and run.diagnosis.category == COMPLETED_WITH_ERROR
    style = "red" if failed(run) or with_error else "green" if run.diagnosis else "yellow"
    yield look.paint(visible(title), "bold") + look.paint(visible(get_state(run) + _format_exit_code(run)), style)
    if with_error and run.diagnosis is not None:
        short = format_short_citation(run.diagnosis.evidence) or "an error"
        loss = "a loss of NaN or Inf: " if run.diagnosis.error == "model_diverged" else ""
        yield look.wrapped(f"Completed, but its output ends with {loss}{short}.", "  ", "    ")
    yield look.wrapped(_describe_time_and_nodes(run, look) + _describe_step_count(run), "  ", "    ")
    # Slurm's own reasons are one word; a sentence is what the wrapper of a packed array says about a member.
    if " " in run.reason:
        yield look.wrapped(visible(run.reason), "  ", "    ")
    waited = run.waited or next((d for d in timeline.delays if d.attempt == run.attempt), None)
    if waited is not None:
        yield look.wrapped(format_wait(waited), "  ", "    ")
    for finding in timeline.findings:
        if finding.attempt == run.attempt:
            over = finding.gone_at is not None
            text = look.wrapped(
                f"Found {look.moment(finding.at)}: {describe_finding(finding, look.moment)}", "  ", "    "
            )
            yield text if over else look.paint(text, "yellow")
    if run.state == "COMPLETED" and (used := format_requested_and_used(run)):
        yield look.wrapped(used, "  ", "    ")
    curve = next((one for one in timeline.curves if one.attempt == run.attempt), None)
    if curve is not None and (sentence := format_convergence(run, curve)):
        yield look.wrapped(f"Loss: {sentence}. {draw_loss(curve)}".rstrip(), "  ", "    ")
    for action in timeline.actions:
        if action.attempt == run.attempt and action.verb == Verb.MOVE.value and action.mode != "observe":
            yield look.wrapped(describe_move(action), "  ", "    ")
        if action.attempt == run.attempt and action.rule == STOP_RULE:
            yield from _format_action(action, look)
            yield look.wrapped(action.reason, "    ")
    if run.diagnosis is not None and run.diagnosis.category != SUCCESS:
        yield from format_diagnosis(run, timeline, look)


_DONE = {"cancel": "; slurmwrap cancelled it", "requeue": "; slurmwrap requeued it", "signal": "; it got a signal"}


def describe_finding(finding: EarlyFinding, moment: Callable[[float], str]) -> str:
    """Return "stuck: no step for 12 min, no GPU is in use (over since 14:03)". `moment`: formats Unix seconds."""
    over = f" (over since {moment(finding.gone_at)})" if finding.gone_at is not None else ""
    title = FINDING_TITLES.get(finding.kind, finding.kind)
    return f"{title}: {visible(finding.evidence)}{over}{_DONE.get(finding.action, '')}"


def format_requested_and_used(run: JobRun) -> str:
    """Return "Asked / used: time 1 h / 12 min; CPUs 8 / 2.1; memory 32.0 GiB / 5.1 GiB.", per node, as far as known."""
    found, parts = run.measurement, []
    if run.time_limit_s and run.start_time is not None and run.end_time is not None:
        parts.append(f"time {duration(run.time_limit_s)} / {duration(run.run_s)}")
    cpus = run.cpus // max(1, len(run.nodes))
    if cpus and found is not None and found.cpus_used is not None:
        parts.append(f"CPUs {cpus} / {found.cpus_used:.1f}")
    asked = run.mem_mib_per_node or (run.mem_mib_per_cpu or 0) * cpus
    if asked and found is not None and found.mem_peak_mib:
        parts.append(f"memory {asked / 1024:.1f} GiB / {found.mem_peak_mib / 1024:.1f} GiB")
    each = " on a node" if len(run.nodes) > 1 and len(parts) > 1 else ""
    return f"Asked / used{each}: {'; '.join(parts)}." if parts else ""


# Largest number of warnings of the submission that are shown with a failure.
_WARNINGS = 3


def find_matching_warnings(run: JobRun, timeline: JobTimeline) -> Sequence[str]:
    """Return gsub's warnings at submission about the later cause of the failure: the same line, or the same name."""
    found = run.diagnosis
    if timeline.submission is None or found is None or found.category in (SUCCESS, CANCELLED):
        return ()
    place = find_own_place(found.evidence)
    texts = " ".join(one.text for one in found.evidence if one.role == "root")
    category = found.error or found.category
    said = [one for one in timeline.submission.warnings if _is_about(one, place, texts, category)]
    return [_format_warning(one, timeline.submission.work_dir) for one in said[:_WARNINGS]]


def _is_about(warning: Finding, place: tuple[str, int] | None, texts: str, category: str) -> bool:
    if place is not None and warning.line == place[1] and basename(warning.file) == basename(place[0]):
        return True
    names = set(_QUOTED.findall(warning.message))
    return bool(names & set(_QUOTED.findall(texts))) or (bool(warning.category) and warning.category == category)


def _format_warning(warning: Finding, work_dir: str) -> str:
    file = warning.file.removeprefix(f"{work_dir}/")
    where = f"{file}:{warning.line}: " if file and warning.line else ""
    return f"{where}{warning.message}"


def format_diagnosis(run: JobRun, timeline: JobTimeline, style: TextStyle) -> Iterator[str]:
    """Yield category, evidence, decision, advice, and the actions in Slurm."""
    diagnosis = run.diagnosis
    assert diagnosis is not None
    category = diagnosis.error or diagnosis.category
    domain = DOMAINS.get(diagnosis.domain, "")
    sure = f"{round(100 * diagnosis.confidence)} % sure"
    detail = ", ".join(part for part in (domain, f"node {diagnosis.node}" if diagnosis.node else "", sure) if part)
    named = f" ({category})" if category != CANCELLED else ""
    title = "requeued" if run.state == REQUEUED and category == CANCELLED else get_title(category)
    yield style.wrapped(f"{title}{named}: {detail}", "  ", "    ")
    if style.verbose and category in CATEGORIES and category != CANCELLED:
        meaning = CATEGORIES[category].meaning
        yield style.wrapped(f"{meaning[:1].upper()}{meaning[1:]}.")
    yield from format_citations(diagnosis.evidence, style)
    if run.incident:
        yield from _format_incident(next((i for i in timeline.incidents if i.incident_id == run.incident), None), style)
    for warning in find_matching_warnings(run, timeline):
        yield style.wrapped(f"gsub had warned at submission: {warning}", "  ", "    ")
    if diagnosis.advice:
        yield style.wrapped(diagnosis.advice)
    repeated = run.decision == "stop" and run.decision_reason == diagnosis.advice
    if run.decision and (style.verbose or not (repeated or run.decision == "none")):
        why = f": {run.decision_reason}" if run.decision_reason and not repeated else ""
        title = DECISION_TITLES.get(run.decision, run.decision)
        yield style.wrapped(f"Decision: {title} ({run.decision}){why}", "  ", "    ")
    for action in timeline.actions:
        if action.attempt == run.attempt and action.rule != STOP_RULE and action.verb != Verb.MOVE.value:
            yield from _format_action(action, style)


def _format_incident(incident: Incident | None, style: TextStyle) -> Iterator[str]:
    yield style.wrapped(_INCIDENT)
    if incident is not None:
        jobs, users = count(len(incident.jobs), "job"), count(incident.users, "user")
        over = f"over {style.moment(incident.over_at)}" if incident.over_at is not None else "still open"
        summary = (
            f"{incident.category}, {incident.scope}, since {style.moment(incident.began)}, {over}: {jobs} of {users}."
        )
        yield style.wrapped(summary, "    ")
        if incident.doubt:
            yield style.wrapped(
                f"It is {incident.doubt}: it delays only retries of users with several such jobs.", "    "
            )


def get_state(run: JobRun) -> str:
    return run.state or "not ended"


def describe_run_result(run: JobRun) -> str:
    """Return the title of the failure, or of the error in the output; otherwise Slurm's state."""
    found = run.diagnosis
    return get_title(found.category) if found and (failed(run) or found.error) else get_state(run)


def _format_exit_code(run: JobRun) -> str:
    if run.exit_code is None or run.state == "COMPLETED":
        return ""
    # Slurm then reports signal 125, which does not exist.
    if run.signal and run.state != "OUT_OF_MEMORY":
        return f", signal {run.signal}"
    return f", exit code {run.exit_code}" if run.exit_code else ""


def _describe_time_and_nodes(run: JobRun, style: TextStyle) -> str:
    if run.start_time is None:
        return "It never started." if run.state else "It waits."
    where = f" on {fold(run.nodes)}" if run.nodes else ""
    if run.end_time is None:
        return f"Since {style.moment(run.start_time)}{where}."
    ran = f" ({duration(run.run_s)})"
    return f"{style.moment(run.start_time)} to {style.moment(run.end_time)}{ran}{where}."


def _describe_step_count(run: JobRun) -> str:
    """Describe what the step counter saw of the run. A long time without steps before the end shows that it hung."""
    measured = run.measurement
    if measured is None or not measured.steps:
        return ""
    speed = f", {measured.steps_per_s:.3g} a second" if measured.steps_per_s else ""
    until = measured.steps_until_s
    last = "" if until is None else f", the last {duration(max(0.0, run.run_s - until))} before the end"
    return f" It counted {count(measured.steps, 'step')}{speed}{last}."


_BLOCK_SCOPES = {"user": "  # for its owner's jobs", "site": "  # for everybody's jobs"}


def _format_action(action: ActionRecord, style: TextStyle) -> Iterable[str]:
    if action.mode == "observe":
        return
    bound = _BLOCK_SCOPES.get(action.key, "") if action.verb == Verb.BLOCK_INPUT.value else ""
    yield f"  {describe_action_status(action)}: {visible(format_scontrol_line(action))}{bound}"
    if action.error:
        yield style.wrapped(action.error, "    ")


def describe_move(action: ActionRecord) -> str:
    """Return "Moved: job 93, which needs less, waits 9 h less by that; its restart costs about 2 min." or the like."""
    if action.key == RESTARTED:
        return f"After the move {visible(action.reason)}."
    if action.error:
        return f"Not moved: {visible(action.error)} ({visible(action.reason)})."
    title = "Moved" if action.done_at is not None else "Being moved"
    return f"{title if action.mode == 'act' else 'A move is advised'}: {visible(action.reason)}."


def describe_action_status(action: ActionRecord) -> str:
    """Return "observed", "advised", "refused" (or given up), "done" or "to be done"."""
    if action.mode != "act":
        return "advised" if action.mode == "advise" else "observed"
    if action.error:
        return "refused"
    return "done" if action.done_at is not None else "to be done"


# Arrays and jobs with many runs: tasks that ended alike, the table of runs, and the retry ledger.
def format_tasks(timeline: JobTimeline, look: TextStyle) -> Iterator[Iterable[str]]:
    """Yield a section for each group of tasks that ended alike, about the first that failed; failures come first."""
    for group in group_tasks(timeline):
        title = f"{count(len(group), 'TASK', 'TASKS')} {fold_jobs(run.address for run in group)} "
        first = min(group, key=lambda run: run.end_time or 1 << 62)
        if len(group) == 1:
            yield format_run(f"TASK {first.address} ", first, timeline, look)
        elif failed(first):
            yield _format_task_group(title, group, first, timeline, look)
        else:
            style = "green" if first.diagnosis else "yellow"
            yield [look.paint(visible(title), "bold") + look.paint(visible(describe_run_result(first)), style)]


def group_tasks(timeline: JobTimeline) -> tuple[tuple[JobRun, ...], ...]:
    """Return the last run of each task, grouped by how it ended; failures first, then the largest group."""
    groups = group_alike(list_tasks(timeline), _make_ending_key)
    return tuple(sorted(groups, key=lambda group: (not failed(group[0]), -len(group))))


def _make_ending_key(run: JobRun) -> tuple[object, ...]:
    found = run.diagnosis
    if not failed(run) or found is None:
        return (describe_run_result(run),)
    return (found.category, found.signature, run.decision, run.state, found.input_path)


def _format_task_group(
    title: str, group: Sequence[JobRun], first: JobRun, timeline: JobTimeline, style: TextStyle
) -> Iterator[str]:
    yield style.paint(style.wrapped(f"{title}failed alike", "", "  "), "red")
    ends = sorted(run.end_time for run in group if run.end_time)
    nodes = {name for run in group for name in run.nodes}
    if ends:
        between = f"between {style.moment(ends[0])} and {style.moment(ends[-1])}" if ends[-1] - ends[0] > 60 else ""
        at = between or f"at {style.moment(ends[0])}"
        longest = max(run.run_s for run in group)
        where = f", on {fold(in_order(nodes))}" if nodes else ""
        yield style.wrapped(f"They ended {at}, after {duration(longest)} at most{where}.", "  ", "    ")
    yield style.wrapped(f"The first one is {first.address} (slurmwrap why {first.address}):", "  ")
    yield from format_diagnosis(first, timeline, style)


def format_run_table(runs: Sequence[JobRun], style: TextStyle) -> Iterator[str]:
    """Yield a table with a line for each run of one job, oldest first."""
    yield style.paint(f"{count(len(runs), 'RUN', 'RUNS')}", "bold")
    rows = [
        [
            str(number),
            style.moment(run.end_time)[5:] if run.end_time else "",
            duration(run.run_s) if run.start_time else "",
            fold(run.nodes),
            describe_run_result(run),
            f"{run.decision}{' (incident)' if run.incident else ''}",
        ]
        for number, run in enumerate(runs, start=1)
    ]
    head = (">run", "ended", ">after", "~nodes", "result", "decision")
    yield table(head, rows, columns=style.columns)


def format_retry_budget(account: RetryBudgetReport, style: TextStyle) -> Iterator[str]:
    """Yield what the failures cost the job, and how many retries each root cause has left."""
    if not account.budgets:
        return
    yield style.paint("RETRIES", "bold")
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
    yield table(head[:width], [row[:width] for row in rows], columns=style.columns)
    caps = f" of {account.max_failures}" if account.max_failures else ""
    lost = f" of {hours(account.max_lost_gpu_hours)}" if account.max_lost_gpu_hours else ""
    totals = f"In all {account.failures}{caps} failures, {hours(account.lost_gpu_hours)}{lost} GPU-hours lost."
    yield style.wrapped(totals, "  ", "    ")
    for reset in account.resets:
        why = f": {reset.note}" if reset.note else ""
        yield style.wrapped(f"Cleared {style.moment(reset.at)} by {reset.who}{why}", "  ", "    ")
