"""Format a job's timeline as the text of `slurmwrap why`; only commands may be longer than a line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.model.finding import Finding
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.report.job_report.budget_table import RetryBudgetReport
from slurmwrap.report.job_report.cited_lines import MAX_LINES as MAX_LINES
from slurmwrap.report.job_report.cited_lines import format_citations
from slurmwrap.report.job_report.next_step import Next, find_next_step
from slurmwrap.report.job_report.run_text import format_retry_budget, format_run, format_run_table, format_tasks
from slurmwrap.report.job_report.timeline import JobTimeline, is_stopped_by_prerun, list_tasks
from slurmwrap.report.queue_wait import format_wait
from slurmwrap.report.text_format import WIDTH, TextStyle, count, duration, fit, visible
from slurmwrap.report.text_format import Paint as Paint
from slurmwrap.report.text_format import plain as plain

# Up to this number, runs are shown in full; of more, only the last one, and a table of all.
_MAX_FULL_RUNS = 2


def format_job_report(
    timeline: JobTimeline,
    zone: tzinfo | None = UTC,
    paint: Paint = plain,
    *,
    columns: int = WIDTH,
    verbose: bool = False,
    account: RetryBudgetReport | None = None,
) -> str:
    """Return the whole text; times are shown in `zone`. `verbose`: nothing is folded, cut or left out."""
    look = TextStyle(zone=zone, paint=paint, columns=columns, verbose=verbose)
    prerun_sections = [_format_prerun(prerun, timeline, look) for prerun in timeline.preruns]
    stopped = is_stopped_by_prerun(timeline)
    sections = [_format_head(timeline, look), *(prerun_sections if stopped else ()), *_format_runs(timeline, look)]
    if account is not None and (verbose or len(_list_started_runs(timeline)) > 1):
        sections.append(format_retry_budget(account, look))
    shown = {attempt.attempt for attempt in timeline.attempts}
    waits = [format_wait(delay) for delay in timeline.delays if delay.attempt not in shown]
    sections.append(look.wrapped(line, "  ", "    ") for line in waits)
    planned = [*(() if stopped else prerun_sections), *_format_plan(timeline, look)]
    following = [_format_next_step(find_next_step(timeline), look)]
    sections += [*following, *planned] if _has_ended(timeline) else [*planned, *following]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _format_plan(timeline: JobTimeline, style: TextStyle) -> Iterator[Iterable[str]]:
    """Yield what gsub and the pre-run changed: in full for a job that has not ended, otherwise only with -v."""
    if timeline.submission is not None and timeline.submission.held_out:
        yield (style.paint("PRE-RUN", "bold") + " left out at random (prerun.holdout), to measure what pre-runs save",)
    later = [p for p in timeline.preruns if p.verdict.outcome is not Outcome.FAIL and any(map(_is_real, p.changes))]
    changes = timeline.submission.changes if timeline.submission is not None else ()
    if not style.verbose and _has_ended(timeline):
        real = sum(map(_is_real, changes)) + sum(sum(map(_is_real, p.changes)) for p in later)
        if real:
            yield (style.paint(f"gsub changed {count(real, 'option')} of it (-v shows what and why).", "dim"),)
        return
    if timeline.submission is not None:
        yield _format_changes("ASKED AND CHANGED", changes, timeline.submission.plan, style)
    for prerun in later:
        yield _format_changes("AFTER THE PRE-RUN", prerun.changes, prerun.plan, style)


def _has_ended(timeline: JobTimeline) -> bool:
    """Whether there is an end to explain; then the explanation and the next step come first."""
    return is_stopped_by_prerun(timeline) or any(run.diagnosis for run in _list_started_runs(timeline))


def _is_real(change: Mapping[str, Any]) -> bool:
    """Whether it changed anything: values that stayed as requested are stored too, with the reason."""
    return bool(change.get("verb")) or change.get("old") != change.get("new")


def _list_started_runs(timeline: JobTimeline) -> Sequence[JobRun]:
    """Return the runs worth showing: a job that a pre-run stopped has a cancelled record, but it never ran."""
    if not is_stopped_by_prerun(timeline):
        return timeline.attempts
    return [attempt for attempt in timeline.attempts if attempt.nodes]


def _format_runs(timeline: JobTimeline, style: TextStyle) -> Iterator[Iterable[str]]:
    runs = _list_started_runs(timeline)
    if list_tasks(timeline) and not style.verbose:
        yield from format_tasks(timeline, style)
        return
    if len(runs) > _MAX_FULL_RUNS and not style.verbose:
        yield format_run_table(runs, style)
    for number, run in enumerate(runs, start=1):
        if len(runs) <= _MAX_FULL_RUNS or style.verbose or run is runs[-1]:
            yield format_run(f"RUN {number}{_format_task(run)} ", run, timeline, style)


def _format_task(run: JobRun) -> str:
    return f" of {run.address}" if "_" in run.address else ""


# --- what was requested ---------------------------------------------------------------------------------------------


def _format_head(timeline: JobTimeline, style: TextStyle) -> Iterator[str]:
    asked, last = timeline.submission, timeline.attempts[-1] if timeline.attempts else None
    # A job with --prerun=only has no other record than its pre-run.
    trial = timeline.preruns[-1] if timeline.preruns else None
    name = asked.name if asked else last.name if last else trial.name if trial else ""
    user = asked.user if asked else last.user if last else trial.user if trial else ""
    gpus = (asked.gpus if asked else 0) or (last.gpus if last else trial.gpus if trial else 0)
    yield style.paint(style.wrapped(f"Job {timeline.address} {name}".rstrip(), "", "  "), "bold")
    facts = [f"of {user}"] if user else []
    facts += [count(gpus, "GPU")] if gpus else []
    facts += [f"submitted {style.moment(asked.at)}"] if asked else []
    alone = trial if trial is not None and not asked and not last else None
    facts += [f"pre-run ended {style.moment(alone.at)}"] if alone else []
    if facts:
        yield style.wrapped(", ".join(facts))
    if (of := asked or alone) and of.script_path:
        yield style.wrapped(_format_script(of))
    if timeline.slurm_says:
        yield style.wrapped(f"Slurm says: {timeline.slurm_says}.", "  ", "    ")
    if timeline.shared:
        yield style.wrapped(f"Shared GPU: {timeline.shared}.", "  ", "    ")
    if timeline.queue_order:
        yield style.wrapped(f"Queue: {timeline.queue_order}.", "  ", "    ")


def _format_script(asked: Submission | PrerunRecord) -> str:
    return asked.script_path if asked.script_path.startswith("/") else f"{asked.script_path} in {asked.work_dir}"


def _format_changes(
    title: str, changes: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], style: TextStyle
) -> Iterator[str]:
    """Yield what a rewrite changed, with reasons. The changes come from a user's JSON file: any key may be missing."""
    summary = _describe_plan(plan)
    if not changes and not summary:
        return
    yield style.paint(title, "bold")
    if summary:
        yield style.wrapped(summary)
    for change in changes:
        yield style.wrapped(_describe_change(change), "  ", "    ")
        reason = str(change.get("reason") or "")
        if reason:
            yield style.paint(style.wrapped(reason, "    "), "dim")


def _describe_change(change: Mapping[str, Any]) -> str:
    if change.get("verb"):
        return _describe_update(change)
    option, old, new = (change.get(key) for key in ("option", "old", "new"))
    if old == new:
        return f"--{option} stays {'as asked' if old in (None, '') else old}"
    if old is None:
        return f"--{option}={new} added" if new else f"--{option} added"
    return f"--{option} {old or 'set'} -> {'removed' if new is None else new}"


def _describe_update(change: Mapping[str, Any]) -> str:
    """Describe what Slurm was asked to change of the waiting job."""
    asked = f"{change.get('option')}={change.get('new')}" if change.get("option") else str(change.get("verb"))
    return f"scontrol: {asked}" + (f" was refused: {change['error']}" if change.get("error") else "")


def _describe_plan(plan: Mapping[str, Any]) -> str:
    nodes, per_node = plan.get("node_count"), plan.get("gpus_per_node")
    size = f"{nodes} nodes" if nodes != 1 else "1 node"
    if nodes and per_node:
        size += f" with {count(per_node, 'GPU')}{' each' if nodes != 1 else ''}"
    parts = [size if nodes else f"{count(per_node or 0, 'GPU')} per node"] if nodes or per_node else []
    parts += ["on several switches"] if plan.get("locality") == "spread" else []
    description = ", ".join(parts)
    if plan.get("switch"):
        description += f"{'; ' if description else ''}there is room on switch {plan['switch']} now"
    return f"Plan: {description}." if description else ""


# --- the pre-run ---------------------------------------------------------------------------------------------------

_OUTCOME_STYLES = {Outcome.PASS: ("passed", "green"), Outcome.FAIL: ("failed", "red")}


def _format_prerun(record: PrerunRecord, timeline: JobTimeline, look: TextStyle) -> Iterator[str]:
    verdict = record.verdict
    word, style = _OUTCOME_STYLES.get(verdict.outcome, ("inconclusive", "yellow"))
    where = f"PRE-RUN (job {record.prerun_job_id}) "
    what = f"{word} after {duration(verdict.seconds)}"
    steps = f", {count(verdict.steps, 'step')}" if verdict.steps else ""
    yield look.paint(where, "bold") + look.paint(what + steps, style)
    kind = f"{get_title(verdict.category)} ({verdict.category}): " if verdict.category else ""
    yield look.wrapped(f"{kind}{verdict.reason}")
    for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
        yield look.paint(look.wrapped(sentence, "  ", "    "), "yellow")
    for finding in verdict.findings:
        yield from _format_finding(finding, timeline.lines.get((finding.file, finding.line), ""), look)
    yield from format_citations(verdict.evidence, look, record.output or f"output of pre-run {record.prerun_job_id}")
    if verdict.input_path:
        fault = f": {verdict.input_fault}" if verdict.input_fault else ""
        yield look.wrapped(f"Input {verdict.input_path}{fault}", "  ", "    ")
    if record.job_id is not None and is_stopped_by_prerun(timeline) and verdict.outcome is Outcome.FAIL:
        kept = f"Job {record.job_id} was cancelled before it started: {count(record.gpus, 'GPU')} kept free."
        yield look.wrapped(kept)


def _format_finding(finding: Finding, line: str, style: TextStyle) -> Iterator[str]:
    place = f"{finding.file}:{finding.line} " if finding.file and finding.line else f"{finding.file} ".lstrip()
    yield style.wrapped(f"{place}{finding.message}", "  ", "    ")
    if line:
        yield style.paint(fit(f"    > {line.strip()}", style.columns), "bold")
    if finding.fix:
        yield style.wrapped(finding.fix, "    ")


def _format_next_step(step: Next, style: TextStyle) -> Iterator[str]:
    yield style.paint("NEXT", "bold")
    yield style.wrapped(step.sentence)
    for command in step.commands:
        yield f"  {visible(command)}"
