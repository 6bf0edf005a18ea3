"""Format the list of jobs for `slurmwrap watch`: a table, the selected job below it, and the page of a log. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from slurmwrap.cli.watch.job_list import JobList, ListedJob, format_counts, sum_states
from slurmwrap.cli.watch.job_list_keys import JOB, LOG, ListView, find_selected
from slurmwrap.cli.watch.job_status import JobStatus
from slurmwrap.cli.watch.watch_output import (
    ScreenStyle,
    compute_silent_s,
    format_finding_kind,
    format_screen,
    get_end,
)
from slurmwrap.diagnosis.log_rows import remove_ansi
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.report.text_format import (
    clock,
    count,
    fit,
    fit_middle,
    flat,
    format_hms,
    format_state,
    format_step_rate,
    pad,
    span,
    visible,
    width,
)

NO_JOBS = "Slurm knows no job of yours now. gsub submits one; slurmwrap history lists earlier ones."
# Columns of the job id at most, and of name and state at least.
_WIDEST_JOB, _LEAST_NAME, _LEAST_STATE = 14, 8, 30
# The selected job is shown below the table from this height on, in at most so many lines.
_LEAST_HEIGHT, _MOST_BELOW = 16, 8
_GAP = "  "
# Number of failed members that are named in a line.
_MOST_NAMED = 2
# Reasons of an array that its counts show already.
_USUAL_OF_ARRAYS = ("None", "JobArrayTaskLimit")
_STYLE_CODES = re.compile(r"\x1b\[[0-9;:]*m")


# --- the table --------------------------------------------------------------------------------------------------------


def count_table_rows(height: int) -> int:
    """Return how many lines of the table fit on a screen of this height."""
    return max(1, height - 3 - _count_rows_below(height))


def _count_rows_below(height: int) -> int:
    return min(_MOST_BELOW, height // 3) if height >= _LEAST_HEIGHT else 0


def format_list(
    jobs: JobList, lines: Sequence[ListedJob], view: ListView, style: ScreenStyle, height: int
) -> list[str]:
    """Return exactly `height` lines: title, table, the selected job, and the keys. `view.top` is the first job."""
    rows, columns = count_table_rows(height), style.columns
    place = find_selected(view, lines)
    # Times go on between two reads.
    visible = [replace(one, status=replace(one.status, at=jobs.at)) for one in lines[view.top : view.top + rows]]
    found = count(sum(not one.task for one in lines), "job")
    shown = [format_title(jobs, style, f"{found} with '{flat(view.search)}' of " if view.search else "")]
    if lines:
        shown += format_table(visible, style, place - view.top)
    else:
        shown += ["", fit(NO_JOBS if not jobs.jobs else f"no job matches '{flat(view.search)}'", columns)]
    below = _count_rows_below(height)
    shown += [""] * (rows + 2 - len(shown))
    if below:
        shown.append(style.paint(("─" if style.unicode else "-") * columns, "dim"))
        shown += (
            _fit_lines(format_screen(visible[place - view.top].status, style), columns)[: below - 1] if lines else []
        )
    shown += [""] * (height - 1 - len(shown))
    return [*shown[: height - 1], _format_foot(jobs, view, style)]


def format_table(lines: Sequence[ListedJob], style: ScreenStyle, selected: int | None = None) -> list[str]:
    """Return the head of the table and a line for each job. `selected`: place of the line that is marked."""
    cells = [_format_cells(one, style) for one in lines]
    head = ("JOB", "NAME", "GPUS", "TIME", "STATE")
    widths = [max(width(row[at]) for row in (head, *(cell for cell, _ in cells))) for at in range(4)]
    widths[0] = min(widths[0], _WIDEST_JOB)
    # On a narrow terminal the name is cut, then the time and the GPUs are left out.
    room = style.columns - _LEAST_STATE - 2 - len(_GAP) * 4
    widths[1] = min(widths[1], max(_LEAST_NAME, min(room - widths[0] - widths[2] - widths[3], style.columns // 3)))
    for at in (3, 2):
        if sum(widths) > room:
            widths[at] = 0
    shown = [style.paint(_join_cells("  ", head, widths, style.columns), "dim")]
    for place, (row, kind) in enumerate(cells):
        line = _join_cells("> " if place == selected else "  ", row, widths, style.columns)
        kind = "bold" if place == selected else kind
        shown.append(style.paint(line, kind) if kind else line)
    return shown


def _join_cells(mark: str, row: Sequence[str], widths: Sequence[int], columns: int) -> str:
    cells = [pad(fit(row[at], widths[at]), widths[at], right=at in (2, 3)) for at in range(4) if widths[at]]
    return fit(f"{mark}{_GAP.join((*cells, row[4]))}", columns).rstrip()


def _format_cells(entry: ListedJob, style: ScreenStyle) -> tuple[tuple[str, ...], str]:
    """Return the cells of a line, and its style or ""."""
    state, kind = describe_state(entry, style)
    label = f"  {entry.label}" if entry.task else entry.label
    name = "" if entry.task else flat(entry.record.name)
    time = _format_time(entry)
    return (label, name, str(entry.gpus or ""), time, flat(state)), kind


def _format_time(entry: ListedJob) -> str:
    """Return how long the job has run or waited, or how long it ran; of an array the longest of its running tasks."""
    at, record = entry.status.at, entry.record
    if record.ended:
        ran = record.start_time and record.end_time and record.end_time - record.start_time
        return format_hms(ran) if ran else ""
    if record.pending:
        since = record.eligible_time or record.submit_time
        return format_hms(at - (since if since <= at else record.submit_time))
    starts = [w.record.start_time for w in entry.status.rows if w.record.state == record.state and w.record.start_time]
    return format_hms(at - min(starts)) if starts else ""


def describe_state(entry: ListedJob, style: ScreenStyle) -> tuple[str, str]:
    """Return state and what is expected of a job: "running, 31 %, ends 17:28", and the style of its line or ""."""
    status, record = entry.status, entry.record
    packed = status.pack is not None
    state = format_counts(entry.counts) if status.array or packed else _describe_own_state(record)
    state += f" members{_name_failed(status)}" if packed else ""
    if status.findings:
        return f"{_describe_findings(entry)}, {state}", "red"
    if record.pending or (status.array and status.waiting is not None):
        return ", ".join((state, *_describe_start(entry, style))), ""
    if record.state == "RUNNING" and not status.array and not packed:
        progress, warning = _describe_progress(entry, style)
        return ", ".join((state, *progress)), "yellow" if warning else ""
    return state, "" if not status.ended else "red" if entry.failed else "dim"


def _name_failed(status: JobStatus) -> str:
    """Return " (77_5, 77_9 ...)": members that failed, a few by name; "" without any."""
    failed = [f"{flat(one.task).partition('_')[0]}_{one.index}" for one in status.members if one.state == "failed"]
    more = " ..." if len(failed) > _MOST_NAMED else ""
    return f" ({', '.join(failed[:_MOST_NAMED])}{more})" if failed else ""


def _describe_findings(entry: ListedJob) -> str:
    """Return "stuck: no step for 14 min"; of several tasks "3 stuck, 1 diverged"."""
    findings = entry.status.findings
    if entry.status.array:
        kinds = Counter(format_finding_kind(one) for one in findings)
        return ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return ", ".join(f"{format_finding_kind(one)}: {one.evidence}" for one in findings)


def _describe_own_state(record: JobRecord) -> str:
    name = format_state(record.state)
    if record.state != "FAILED":
        return name
    return f"{name}, signal {record.signal}" if record.signal else f"{name}, exit code {record.exit_code}"


def _describe_progress(entry: ListedJob, style: ScreenStyle) -> tuple[list[str], bool]:
    """Return the progress of a running job and its end, and whether that is a warning."""
    status, record = entry.status, entry.record
    silent, end = compute_silent_s(status), get_end(status)
    if silent is not None:
        return [f"no output for {span(silent)}"], True
    if end is not None:
        share = end.progress.share if end.progress is not None else None
        done = [] if share is None else [f"{100 * share:.0f} %"]
        late = end.share_at_limit is not None
        return [*done, "its time limit comes first" if late else f"ends {clock(end.at, status.at, style.zone)}"], late
    if status.steps is not None:
        rate = f", {format_step_rate(status.steps.per_s)}" if status.steps.per_s else ""
        return [f"{status.steps.count:,} steps{rate}"], False
    if record.start_time and record.time_limit_s:
        return [f"limit {clock(record.start_time + record.time_limit_s, status.at, style.zone)}"], False
    return [], False


def _describe_start(entry: ListedJob, style: ScreenStyle) -> list[str]:
    """Return when a pending job, or the next task of an array, is expected to start, and its class in the queue."""
    status, waiting = entry.status, entry.status.waiting
    assert waiting is not None
    reason, begins = waiting.record.reason, waiting.record.eligible_time or 0
    if reason == "BeginTime" and status.shared:
        what = status.shared.removeprefix("it ").partition(" since ")[0]
    elif status.start is not None:
        what = f"starts {clock(status.start.at, status.at, style.zone)}"
    elif reason == "BeginTime" and status.trial is not None and status.trial.verdict is None:
        what = "waits for its pre-run"
    elif reason == "BeginTime" and begins > status.at:
        what = f"not before {clock(begins, status.at, style.zone)}"
    elif waiting.expected_start and waiting.expected_start > status.at:
        what = f"starts by {clock(waiting.expected_start, status.at, style.zone)}"
    else:
        what = "" if status.array and reason in _USUAL_OF_ARRAYS else flat(reason)
    start = f"next {what}" if status.array and "start" in what else what
    order = status.queue_order.partition(":")[0]
    return [one for one in (start, order) if one]


def format_title(jobs: JobList, style: ScreenStyle, matches: str = "") -> str:
    """Return how many jobs and tasks are in which state, and the time. `matches`: which of them are shown."""
    gpus = sum(one.gpus for one in jobs.jobs if "RUNNING" in one.counts)
    counted = format_counts(sum_states(jobs.jobs))
    title = f"{matches}{count(len(jobs.jobs), 'job')} of {jobs.user}{': ' if counted else ''}{counted}"
    if gpus:
        title += f"; {count(gpus, 'GPU')}"
    time = clock(jobs.at, jobs.at, style.zone, seconds=True)
    room = style.columns - len(time) - 2
    return style.paint(f"{pad(fit(title, room), room)}  {time}" if room > 20 else fit(title, style.columns), "bold")


def _format_foot(jobs: JobList, view: ListView, style: ScreenStyle) -> str:
    """Return the last line: a question, an answer, what is typed, or the keys."""
    if view.asks_cancel:
        return style.paint(fit(f"cancel job {view.asks_cancel}? y: scancel; any other key: no", style.columns), "bold")
    if view.typing:
        # The end of a long text is shown, where the next key goes.
        typed = flat(view.search + "|").removesuffix("|")
        return style.paint(f"/{typed[-max(1, style.columns - 2) :]}", "bold")
    if view.message:
        return style.paint(fit(view.message, style.columns), "yellow")
    if jobs.silent:
        silent = f"Slurm does not answer ({jobs.silent}); this is its last answer"
        return style.paint(fit(silent, style.columns), "yellow")
    keys = {
        JOB: "Esc back, l log, x cancel, r read again; Ctrl-C ends the view, not the job",
        LOG: "Esc back, arrows and PgUp scroll, End follows, Tab other file, x cancel",
    }.get(view.page, f"Enter opens, l log, Space tasks, / search, s sort ({view.sort}), x cancel, q quit")
    return style.paint(fit(keys, style.columns), "dim")


def _fit_lines(lines: Sequence[str], columns: int) -> list[str]:
    """Return lines that may have a style. One that is too long, of wide characters or on a tiny screen, is cut."""
    plain = [_STYLE_CODES.sub("", line) for line in lines]
    return [line if width(bare) <= columns else fit(bare, columns) for line, bare in zip(lines, plain, strict=True)]


# --- the pages of one job ---------------------------------------------------------------------------------------------


def format_job_page(jobs: JobList, body: Sequence[str], view: ListView, style: ScreenStyle, height: int) -> list[str]:
    """Return `height` lines: the view of one job, as without the list, and the keys."""
    shown = [*_fit_lines(body[: height - 1], style.columns), *[""] * (height - 1 - len(body))]
    return [*shown, _format_foot(jobs, view, style)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """The end of one output file. `note`: why there is no text; "" if there is."""

    address: str = ""
    path: str = ""
    text: str = ""
    written_at: float = 0.0
    place: int = 0  # of the file in the job's files
    files: int = 1
    note: str = ""


def format_log_page(
    jobs: JobList, log: LogPage, view: ListView, style: ScreenStyle, height: int, now: float
) -> tuple[list[str], int]:
    """Return `height` lines with the end of a log, and the largest scroll that shows something else."""
    rows = max(1, height - 2)
    other = f" (file {log.place + 1} of {log.files})" if log.files > 1 else ""
    age = f", written {span(now - log.written_at)} ago" if log.written_at else ""
    name = f"log of job {log.address or view.opened}{other}: "
    path = fit_middle(log.path, max(10, style.columns - len(name) - len(age))) if log.path else ""
    title = style.paint(fit(f"{name}{path}{age}", style.columns), "bold")
    body = [log.note] if log.note else wrap_log(log.text, style.columns)
    most = max(0, len(body) - rows)
    end = len(body) - min(view.scroll, most)
    shown = body[max(0, end - rows) : end]
    return [title, *shown, *[""] * (rows - len(shown)), _format_foot(jobs, view, style)], most


def wrap_log(text: str, columns: int) -> list[str]:
    """Return the lines of a log at this width, without its colours and movements of the cursor.

    Of a line that a progress bar rewrote, the last version is shown; other control characters are spelt out.
    """
    found: list[str] = []
    for line in remove_ansi(text).replace("\b", "").split("\n"):
        rest = visible(line.rstrip("\r").rpartition("\r")[2].expandtabs(8))
        while width(rest) > columns:
            cut = _count_fitting(rest, columns)
            found.append(rest[:cut])
            rest = rest[cut:]
        found.append(rest)
    while found and not found[-1]:
        found.pop()
    return found


def _count_fitting(text: str, columns: int) -> int:
    """Return how many characters fit, at least one."""
    if text.isascii():
        return columns
    used = 0
    for at, character in enumerate(text):
        used += width(character)
        if used > columns:
            return max(1, at)
    return len(text)
