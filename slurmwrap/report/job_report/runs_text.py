"""Arrays and jobs of many runs in the text of `slurmwrap why`: tasks that ended alike, runs, and the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.model.hostlist import fold
from slurmwrap.model.run import JobRun
from slurmwrap.report.fold_rows import fold_jobs, group_alike
from slurmwrap.report.job_report.budget_table import RetryBudgetReport
from slurmwrap.report.job_report.run_text import format_run, judged, result_of
from slurmwrap.report.job_report.timeline import JobTimeline, failed, list_tasks
from slurmwrap.report.text_format import count, duration, hours, in_order, table, visible
from slurmwrap.report.text_style import TextStyle


def format_tasks(story: JobTimeline, look: TextStyle) -> Iterator[Iterable[str]]:
    """Tasks that ended alike are one story, told of the first that failed; those that failed come first."""
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
