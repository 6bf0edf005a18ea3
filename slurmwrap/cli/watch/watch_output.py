"""Format a job's status for `slurmwrap watch`: lines of a terminal, one line for a log, one JSON object. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from textwrap import wrap
from typing import Any

from slurmwrap.cli.watch import gpu_utilization
from slurmwrap.cli.watch.gpu_utilization import format_gpu_rows
from slurmwrap.cli.watch.job_status import JobStatus, Output, WatchedPrerun
from slurmwrap.cli.watch.loss_outlook import format_loss_rows, outlook_to_json_dict
from slurmwrap.cli.watch.prerun_line import describe_prerun
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.run_time import FROM_USER
from slurmwrap.model.running_job import FINDING_TITLES, EarlyFinding
from slurmwrap.model.submission import PackedArray
from slurmwrap.model.verdict import Outcome
from slurmwrap.placement.expected_start import ExpectedStart
from slurmwrap.placement.partition_choice import AT_ONCE_S
from slurmwrap.placement.relaxation import find_due_level
from slurmwrap.policy.resize import compute_time_needed_s
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.profiling.progress_estimate import EndForecast
from slurmwrap.report.convergence_text import format_last_loss
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.loss_text import describe_dominated
from slurmwrap.report.pending_reasons import ReasonMeaning, explain_reason
from slurmwrap.report.text_format import (
    bar,
    clock,
    count,
    flat,
    format_hms,
    format_slurm_time,
    format_state,
    format_step_rate,
    row,
    span,
    sparkline,
)
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.sbatch.passthrough import count_array_tasks
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.pack_results import find_slurm_state

# Number of failed array tasks that are named.
_MOST_NAMED_TASKS = 3
# Slurm's forecast is shown in addition if it is so much later.
_FORECASTS_DIFFER_S = 60
# Labels of the rows that are written to a log.
_LOG_LABELS = (
    "reason",
    "queue",
    "pre-run",
    "Slurm",
    "steps",
    "loss",
    "ends",
    "task",
    "members",
    "shared",
    "sweep",
    "GPU use",
    "GPU mem",
    "idle",
    "trouble",
    "found",
    "warning",
)
# Rows that are written to a log without their label.
_UNLABELLED = ("reason", "task", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenStyle:
    """How the status is formatted. `unicode`: block characters may be used; `zone`: the user's time zone."""

    columns: int = 80
    paint: Paint = plain
    unicode: bool = True
    zone: tzinfo | None = None


def format_screen(status: JobStatus, look: ScreenStyle) -> list[str]:
    """Return the lines of the whole view. No line is longer than `look.columns`."""
    title = wrap(_format_title(status), max(20, look.columns), subsequent_indent="  ")
    shown = [look.paint(line, "bold") for line in title]
    for label, text, style in _list_rows(status, look):
        found = row(label, text, look.columns)
        shown += [look.paint(line, style) if style else line for line in found]
    return shown


def format_log_line(status: JobStatus, look: ScreenStyle) -> str:
    """Return one line for a log: the time, the state, and the most important rows."""
    rows = [(label, text) for label, text, style in _list_rows(status, look) if label in _LOG_LABELS and style != "dim"]
    texts = [text if label in _UNLABELLED else f"{label} {text}" for label, text in rows]
    text = "; ".join([_format_title(status), *texts])
    return f"{clock(status.at, status.at, look.zone, seconds=True)} {flat(text)}"


def make_change_key(status: JobStatus) -> tuple[object, ...]:
    """Return what must change before another line is written to a log.

    The clock is not part of it. Of Slurm's forecast only changes of ten minutes count.
    """
    waiting, trial, level = status.waiting, status.trial, _find_locality(status)
    forecast, end = waiting.expected_start if waiting else None, get_end(status)
    return (
        tuple(sorted(count_states(status).items())),
        waiting.record.reason if waiting else "",
        None if forecast is None else forecast // 600,
        status.record.nodes if not status.array else (),
        _make_prerun_key(trial) if trial else (),
        level[0] if level else "",
        compute_silent_s(status) is not None,
        end is not None and end.share_at_limit is not None,
        tuple(one.kind for one in status.findings),
        status.loss is not None and status.loss.losses.bad_at_end > 0,
        tuple(one.name for one in status.dominated),
        tuple(one.index for one in status.members if one.state == "failed"),
        bool(status.silent),
        status.shared.partition(" since ")[0],
        _make_gpu_key(status),
    )


def _make_prerun_key(trial: WatchedPrerun) -> tuple[object, ...]:
    row = trial.row.record if trial.row else None
    stage = trial.verdict.outcome.value if trial.verdict else trial.seen.stage if trial.seen else ""
    return (stage, row.state if row else "", row.reason if row and row.pending else "")


def compute_silent_s(status: JobStatus) -> float | None:
    """Return for how many seconds a running job has been unusually silent, else None. Counted steps count as output."""
    if status.output is None or status.record.state != "RUNNING":
        return None
    silent = status.output.silent_s(status.at)
    return None if silent is None or (status.steps is not None and not _are_steps_late(status)) else silent


def get_end(status: JobStatus) -> EndForecast | None:
    """Return when the job is expected to end. None for a silent job: it may hang, and then nothing is known."""
    return None if compute_silent_s(status) is not None else status.end


def _are_steps_late(status: JobStatus) -> bool:
    if status.steps is None:
        return False
    now = status.rates[-1] if status.rates else status.steps.per_s
    return status.at - status.steps.at > max(60.0, 20 / now if now else 0.0)


def _make_gpu_key(status: JobStatus) -> tuple[object, ...]:
    use = status.gpu_use
    if use is None:
        return ()
    # Without the seconds at the end, which change all the time.
    troubles = tuple(sorted((node, text.rstrip(" s0123456789")) for node, text in (use.troubles or {}).items()))
    return (bool(use.gpus), tuple(gpu.name for gpu in use.idle), troubles, use.given_up)


def status_to_json_dict(status: JobStatus) -> dict[str, Any]:
    """Return the JSON object of a status: times in Unix seconds, null for what is not known."""
    record, waiting, level = status.record, status.waiting, _find_locality(status)
    trial, use = status.trial, status.gpu_use
    return {
        "at": round(status.at, 3),
        "job": status.address,
        "name": record.name,
        "state": record.state if not status.array else None,
        "tasks": dict(count_states(status)) if status.array else None,
        "members": dict(count_members(status, status.pack)) if status.pack is not None else None,
        "reason": waiting.record.reason if waiting else None,
        "reason_words": explain_waiting(status, waiting).words if waiting else None,
        "expected_start": waiting.expected_start if waiting else None,
        "forecast_start": None if status.start is None else _start_to_json_dict(status.start),
        "earlier": None if status.earlier is None else {"partition": status.earlier[0], "at": round(status.earlier[1])},
        "queue_order": status.queue_order or None,
        "shared": status.shared or None,
        "share_advice": status.share_advice or None,
        "nodes": list(record.nodes),
        "gpus": record.gpus,
        "start": record.start_time,
        "time_limit_s": record.time_limit_s,
        "end": record.end_time,
        "forecast_end": None if (end := get_end(status)) is None else _end_to_json_dict(end),
        "exit_code": record.exit_code if record.ended else None,
        "findings": [_finding_to_json_dict(one) for one in status.findings],
        "locality": None if level is None else {"now": level[0], "next": level[1], "next_at": level[2]},
        "prerun": None if trial is None else _prerun_to_json_dict(trial),
        "output": None if status.output is None else _output_to_json_dict(status, status.output),
        "steps": None if status.steps is None else status.steps.count,
        "loss": None if status.loss is None else outlook_to_json_dict(status.loss),
        "dominated": [asdict(one) for one in status.dominated],
        "steps_per_s": status.rates[-1] if status.rates else status.steps.per_s if status.steps else None,
        "gpu_percent": None if use is None or use.percent is None else round(use.percent, 1),
        "gpu_use": None if use is None else gpu_utilization.gpu_use_to_json_dict(use),
    }


def _prerun_to_json_dict(trial: WatchedPrerun) -> dict[str, Any]:
    seen, verdict, row = trial.seen, trial.verdict, trial.row
    return {
        "job": trial.job_id,
        "state": row.record.state if row else None,
        "pending_reason": row.record.reason if row and row.record.pending else None,
        "expected_start": row.expected_start if row else None,
        "start": row.record.start_time if row else None,
        "stage": seen.stage if seen else None,
        "steps": verdict.steps if verdict else seen.steps if seen else None,
        "verdict": verdict.outcome.value if verdict else None,
        "steps_wanted": seen.steps_wanted if seen else None,
        "reason": verdict.reason if verdict else None,
        "failed_commands": [asdict(one) for one in verdict.failed_commands] if verdict else [],
    }


def _finding_to_json_dict(finding: EarlyFinding) -> dict[str, Any]:
    return {
        "job": finding.address,
        "kind": finding.kind,
        "at": round(finding.at) or None,
        "n": finding.n or None,
        "evidence": finding.evidence,
        "action": finding.action or None,
    }


def _start_to_json_dict(start: ExpectedStart) -> dict[str, Any]:
    """Return the JSON object of a forecast; times in Unix seconds."""
    return {"at": round(start.at), "by": round(start.by), "jobs": start.jobs, "predicted": start.predicted}


def _end_to_json_dict(end: EndForecast) -> dict[str, Any]:
    """Return the JSON object of a forecast. `share_at_limit`: null if the job's time limit comes later."""
    shown = end.progress if end.progress is not None and end.progress.total else None
    return {
        "at": round(end.at),
        "by": round(end.by),
        "source": end.source,
        "runs": end.n or None,
        "done": None if shown is None else shown.done,
        "total": None if shown is None else shown.total,
        "unit": None if shown is None else shown.unit,
        "share_at_limit": None if end.share_at_limit is None else round(end.share_at_limit, 3),
    }


def _output_to_json_dict(status: JobStatus, output: Output) -> dict[str, Any]:
    """Return the JSON object of the output. `silent_s`: null while it is not silent for longer than usual."""
    silent = compute_silent_s(status)
    return {
        "last_at": None if output.empty else round(output.at, 3),
        "last_line": output.last_line,
        "usual_gap_s": round(output.usual_gap_s, 1) or None,
        "silent_s": None if silent is None else round(silent),
    }


# --- the view ---------------------------------------------------------------------------------------------------------


def _format_title(status: JobStatus) -> str:
    """Return the title: job, state and since when, nodes and size."""
    record, counts = status.record, count_states(status)
    name = f"job {status.address} ({flat(record.name)}):"
    if status.array:
        order = sorted(counts.items(), key=lambda one: -one[1])
        return f"{name} " + ", ".join(f"{count} {format_state(state)}" for state, count in order)
    since = {"PENDING": record.eligible_time, "RUNNING": record.start_time}.get(record.state)
    waits = record.pending and since is not None and since > status.at
    lasted = f" for {span(status.at - since)}" if since and not waits else ""
    where = f" on {fold(record.nodes)}" if record.nodes and not record.pending else ""
    ended = _format_ending(record)
    return f"{name} {format_state(record.state)}{ended or lasted}{where}, {_format_size(record)}"


def _format_ending(record: JobRecord) -> str:
    """Return how the job ended; "" if it has not ended."""
    if not record.ended:
        return ""
    ran = ""
    if record.start_time and record.end_time and record.end_time > record.start_time:
        ran = f" after {span(record.end_time - record.start_time)}"
    # Other states need no exit code: Slurm's 0:125 and 0:15 add nothing to them.
    if record.state != "FAILED":
        return ran
    if record.signal:
        return f" with signal {record.signal}{ran}"
    return f" with exit code {record.exit_code}{ran}" if record.exit_code else ran


def _format_size(record: JobRecord) -> str:
    nodes = "1 node" if record.num_nodes == 1 else f"{record.num_nodes} nodes"
    return f"{nodes}, {record.gpus} GPU{'s' if record.gpus != 1 else ''}" if record.gpus else nodes


def _list_rows(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """Yield (label, text, style) of each row below the title."""
    if status.silent:
        yield "Slurm", f"does not answer ({flat(status.silent)}); this is its last answer", "yellow"
    yield from _list_findings(status, style)
    if status.members:
        yield _make_members_row(status.members, status.address)
    if status.shared:
        yield "shared", status.shared, ""
    if status.array:
        if not status.members:
            yield from _list_failed_tasks(status)
        if status.gpus:
            yield "GPU use", f"of one task at a time: slurmwrap watch {status.address}_N --gpus", ""
        if dominated := describe_dominated(status.dominated):
            yield "sweep", dominated, ""
    if status.waiting is not None:
        yield from _list_waiting_rows(status, style)
    record = status.record
    if (
        record.state == "CANCELLED"
        and status.trial
        and status.trial.verdict
        and status.trial.verdict.outcome is Outcome.FAIL
    ):
        yield "pre-run", describe_prerun(status, status.trial, style.zone), "red"
    if record.state == "RUNNING":
        yield from (("pre-run", sentence, "yellow") for sentence in _describe_failed_commands(status))
    if record.state == "RUNNING" and not status.array:
        yield from _list_running_rows(status, record, style)


def _describe_failed_commands(status: JobStatus) -> tuple[str, ...]:
    """Return sentences about commands of the script that failed in the pre-run."""
    verdict = status.trial.verdict if status.trial else None
    if verdict is None:
        return ()
    found = describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS)
    return tuple(flat(sentence) for sentence in found)


def _list_findings(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """Yield what the rule `early` found about the present run."""
    for one in status.findings[:_MOST_NAMED_TASKS]:
        task = f"{one.address} " if status.array else ""
        since = f" since {clock(one.at, status.at, style.zone)}" if one.at else ""
        yield "found", f"{task}{format_finding_kind(one)}{since}: {flat(one.evidence)}", "red"
    if (more := len(status.findings) - _MOST_NAMED_TASKS) > 0:
        yield "", f"and {more} more", "red"


def format_finding_kind(finding: EarlyFinding) -> str:
    """Return the kind of a finding in plain words."""
    return FINDING_TITLES.get(finding.kind, flat(finding.kind))


def _list_failed_tasks(status: JobStatus) -> Iterator[tuple[str, str, str]]:
    """Yield a row with the tasks that did not complete: a few by name, failed tasks before cancelled ones."""
    states = {
        w.record.address: w.record.state for w in status.rows if w.record.array_task_id is not None and w.record.ended
    }
    ended = sorted({**(status.gone or {}), **states}.items(), key=lambda one: one[1] == "CANCELLED")
    if bad := [address for address, state in ended if state != "COMPLETED"]:
        more = f" and {len(bad) - _MOST_NAMED_TASKS} more" if len(bad) > _MOST_NAMED_TASKS else ""
        yield "task", f"{', '.join(bad[:_MOST_NAMED_TASKS])}{more} did not complete; slurmwrap why {bad[0]}", "red"


def _make_members_row(members: Sequence[PackMember], address: str) -> tuple[str, str, str]:
    """Return the row with the number of members of a packed array in each state, and which of them failed."""
    states = ["paused" if member.paused else member.state for member in members if member.state != "failed"]
    counts = Counter(states)
    parts = [f"{number} {flat(state)}" for state, number in counts.most_common()]
    bad = [f"{flat(address).partition('_')[0]}_{one.index}" for one in members if one.state == "failed"]
    if not bad:
        return "members", ", ".join(parts), ""
    more = f" and {len(bad) - _MOST_NAMED_TASKS} more" if len(bad) > _MOST_NAMED_TASKS else ""
    parts.append(f"{len(bad)} failed ({', '.join(bad[:_MOST_NAMED_TASKS])}{more}): slurmwrap why {bad[0]}")
    return "members", ", ".join(parts), "red"


def explain_waiting(status: JobStatus, waiting: WatchedJob) -> ReasonMeaning:
    """Explain why the job waits. BeginTime is explained by the pre-run if the job waits for one."""
    found, reason = explain_reason(waiting.record.reason), waiting.record.reason
    if reason == "BeginTime" and status.trial and not status.trial.verdict:
        return ReasonMeaning(words="it waits for its pre-run", way_out="")
    if reason == "BeginTime" and status.shared:
        return ReasonMeaning(words="its script runs in another job, so Slurm is not to start it", way_out="")
    if waiting.dependency and reason.startswith("Dependency"):
        return ReasonMeaning(words=f"{found.words}: {flat(waiting.dependency)}", way_out=found.way_out)
    return found


def _list_waiting_rows(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    waiting = status.waiting
    assert waiting is not None
    found = explain_waiting(status, waiting)
    yield "reason", f"{found.words} ({flat(waiting.record.reason)})", ""
    if found.way_out:
        yield "", found.way_out, "dim"
    if status.trial is not None:
        yield "pre-run", describe_prerun(status, status.trial, style.zone), ""
        yield from (("", sentence, "yellow") for sentence in _describe_failed_commands(status))
    if status.share_advice:
        yield "share", status.share_advice, ""
    if status.queue_order:
        yield "queue", status.queue_order, ""
    yield from _list_start_rows(status, waiting, style)
    yield from _list_locality_rows(status, style)


def _list_start_rows(status: JobStatus, waiting: WatchedJob, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """Yield when the job may start, or when Slurm expects it to start.

    A job that waits for its pre-run has no such row: the pre-run's row has the time.
    """
    begins, start = waiting.record.eligible_time or 0, status.start
    if start is not None:
        latest = f", nine of ten by {clock(start.by, status.at, style.zone)}" if start.by - start.at >= 60 else ""
        basis = f"{start.predicted} of {count(start.jobs, 'job')}"
        yield (
            "start",
            f"expected {_format_moment(start.at, status, style)}{latest}, by run times of {basis} before it",
            "",
        )
    if waiting.record.reason == "BeginTime":
        if begins > status.at and not status.shared and (status.trial is None or status.trial.verdict is not None):
            yield "start", f"not before {_format_moment(begins, status, style)}", ""
    elif waiting.expected_start and waiting.expected_start > status.at:
        where = f", on {flat(waiting.expected_nodes)}" if waiting.expected_nodes else ""
        slurms = f"{_format_moment(waiting.expected_start, status, style)}{where}; Slurm's forecast"
        if status.start is None:
            yield "start", f"expected {slurms}", ""
        elif waiting.expected_start - status.start.at >= _FORECASTS_DIFFER_S:
            yield "", f"if all jobs use their time limits: {slurms}", "dim"
    if status.earlier is not None:
        name, at = status.earlier
        when = "now" if at - status.at < AT_ONCE_S else f"at about {clock(at, status.at, style.zone)}"
        both = flat(f"{waiting.record.partition},{name}")
        yield "", f"partition {flat(name)} would start it {when}: {_format_move(waiting, both)}", ""


def _format_move(waiting: WatchedJob, partitions: str) -> str:
    address = waiting.record.waiting_address or waiting.record.address
    return f"scontrol update JobId={address} Partition={partitions}"


def _format_moment(at: float, status: JobStatus, style: ScreenStyle) -> str:
    return f"{clock(at, status.at, style.zone)}, in {span(at - status.at)}"


def _find_locality(status: JobStatus) -> tuple[str, str, float | None] | None:
    """Return the locality that a waiting job requires now, the next one, and when that applies (None: not known).

    None if the job does not wait or its plan has fewer than two locality levels.
    """
    levels, waiting = status.plan.levels, status.waiting
    if waiting is None or len(levels) < 2:
        return None
    eligible = waiting.record.eligible_time
    waited = max(0.0, status.at - eligible) if eligible else 0.0
    at = find_due_level(levels, waited) if status.relaxes else 0
    if at + 1 >= len(levels):
        return (levels[at].name, "", None)
    due = eligible + max(level.wait_s for level in levels[: at + 1]) if eligible and status.relaxes else None
    return (levels[at].name, levels[at + 1].name, due)


def _list_locality_rows(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    level = _find_locality(status)
    switches = next((w.value for w in status.plan.lines if w.option == "switches" and w.value), "")
    if level is not None and level[2] is not None:
        name, after, due = level
        then = "any nodes" if after == "any" else after
        begins = status.record.eligible_time or 0
        if begins > status.at:
            wait = span((due or 0) - begins)
            yield "place", f"will require {flat(name)} for {wait} once it may start, then {flat(then)}", ""
            return
        yield (
            "place",
            f"requires {flat(name)}; relaxes to {flat(then)} at {clock(due or 0, status.at, style.zone)}, "
            f"in {span((due or 0) - status.at)}",
            "",
        )
    elif level is not None and status.relaxes:
        yield (
            "place",
            "requires no particular nodes any more" if level[0] == "any" else f"requires {flat(level[0])}",
            "",
        )
    elif switches:
        count, _, wait = switches.partition("@")
        bound = f"; Slurm drops this after {flat(wait)} (min:s) of waiting" if wait else ""
        yield "place", f"requests at most {flat(count)} leaf switch{'es' if count != '1' else ''}{bound}", ""


def _list_running_rows(status: JobStatus, record: JobRecord, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    if record.start_time:
        yield "time", _format_run_time(status.at, record, style), ""
    if status.steps is not None:
        now = status.rates[-1] if status.rates else status.steps.per_s
        rate = f"  {format_step_rate(now)}" if now else ""
        late = f"  (none for {span(status.at - status.steps.at)})" if _are_steps_late(status) else ""
        yield "steps", f"{status.steps.count:,}{rate}  {sparkline(status.rates, style.unicode)}".rstrip() + late, ""
    elif status.counts_steps:
        yield "steps", "none counted yet", ""
    if status.loss is not None:
        yield from format_loss_rows(status.loss)
    elif status.output is not None and status.output.losses:
        yield "loss", format_last_loss(status.output.losses, style.unicode), ""
    if status.stops:
        yield "stop", status.stops, "dim"
    if (end := get_end(status)) is not None:
        yield from _list_end_rows(status, end, style)
    if status.gpu_use is not None:
        yield from format_gpu_rows(status.gpu_use, style.unicode)
    elif status.gpus is False and record.gpus:
        yield "GPU use", "--gpus measures it, by a small step in the job", "dim"
    if status.output is not None:
        yield from _list_output_rows(status, status.output, style)


def _list_end_rows(status: JobStatus, end: EndForecast, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """Yield when the job is expected to end, and a warning if its time limit comes first."""
    latest = "" if end.progress is not None else f", nine of ten by {clock(end.by, status.at, style.zone)}"
    yield "ends", f"about {_format_moment(end.at, status, style)}{latest}, {_describe_basis(end)}", ""
    if end.share_at_limit is None:
        return
    share = min(99.0, 100 * end.share_at_limit)
    yield "warning", f"its time limit comes first: about {share:.0f} % will be done by then", "yellow"
    limit_at = (status.record.start_time or 0) + (status.record.time_limit_s or 0)
    whole = format_slurm_time(compute_time_needed_s(end.needs_s, 0.0))
    yield (
        "",
        f"let it write a checkpoint before {clock(limit_at, status.at, style.zone)}, or ask your administrators for "
        f"more time; from its beginning it needs --time={whole}",
        "dim",
    )


def _describe_basis(end: EndForecast) -> str:
    """Return what a forecast rests on: "by its progress: step 1,200 of 4,000"."""
    if end.progress is not None:
        shown = end.progress
        part = f": {shown.unit} {shown.done:,} of {shown.total:,}" if shown.total else ""
        return f"by its progress{part}"
    runs = "run" if end.n == 1 else f"{end.n} runs"
    return f"by your last {runs} with as many GPUs" if end.source == FROM_USER else f"by its earlier {runs}"


def _list_output_rows(status: JobStatus, output: Output, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """Yield the last line of the output, its age, and a warning if the job is unusually silent."""
    silent = compute_silent_s(status)
    if output.last_line:
        yield "output", flat(output.last_line)[: 2 * style.columns], ""
    if silent is None:
        age = span(status.at - output.at)
        yield ("output", "none yet", "dim") if output.empty else ("", f"last output {age} ago", "dim")
        return
    gap = "" if output.empty or output.usual_gap_s < 1 else f"; usually a line every {span(output.usual_gap_s)}"
    yield "warning", f"no output for {span(silent)}{gap}", "yellow"


def _format_run_time(now: float, record: JobRecord, style: ScreenStyle) -> str:
    """Return the elapsed time, the limit, a bar, and the latest end."""
    began = record.start_time or now
    if not record.time_limit_s:
        return f"{format_hms(now - began)}, without a limit"
    shown = bar((now - began) / record.time_limit_s, style.unicode)
    ends = clock(began + record.time_limit_s, now, style.zone)
    return f"{format_hms(now - began)} of {format_hms(record.time_limit_s)} {shown} ends by {ends}"


def count_states(status: JobStatus) -> Counter[str]:
    """Return the number of jobs or tasks in each state; the pending row of an array stands for many tasks."""
    found: Counter[str] = Counter()
    for watched in status.rows:
        found[watched.record.state] += count_tasks(watched)
    found.update((status.gone or {}).values())
    return found


def count_members(status: JobStatus, pack: PackedArray) -> Counter[str]:
    """Return the number of members of these tasks in each state. One that was not started has the state of its task."""
    indices, members = expand_indices(pack.array), {one.index: one for one in status.members}
    states, found = dict(_list_task_states(status)), Counter[str]()
    for at, index in enumerate(indices):
        member = members.get(index)
        ran_in = "" if member is None else member.task.partition("_")[2]
        task = int(ran_in) if ran_in.isdecimal() else indices[at - at % pack.members]
        if task in states:
            found[states[task] if member is None else find_slurm_state(member, states[task])] += 1
    return found


def _list_task_states(status: JobStatus) -> Iterator[tuple[int, str]]:
    """Yield the index and the state of each task; the pending tasks share a row."""
    for watched in status.rows:
        record, one = watched.record, watched.record.array_task_id
        yield from ((index, record.state) for index in (expand_indices(record.array_tasks) if one is None else (one,)))
    for address, state in (status.gone or {}).items():
        yield int(address.partition("_")[2] or -1), state


def count_tasks(row: WatchedJob) -> int:
    """Return for how many jobs or tasks a row stands."""
    return max(1, count_array_tasks(row.record.array_tasks)) if row.record.array_tasks else 1
