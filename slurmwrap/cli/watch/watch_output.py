"""What `slurmwrap watch` shows: Facts → lines of a terminal, one line for a pipe, one object for programs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import tzinfo
from textwrap import wrap
from typing import Any

from slurmwrap.cli.watch import gpu_utilization
from slurmwrap.cli.watch.gpu_utilization import gpu_rows
from slurmwrap.cli.watch.job_status import JobStatus, Output, WatchedPrerun
from slurmwrap.cli.watch.pending_reasons import Meaning, describe_prerun, meaning
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.verdict import Outcome
from slurmwrap.placement.relaxation import find_due_level
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.text_format import bar, clock, flat, hms, rate_word, row, span, sparkline, state_word
from slurmwrap.sbatch.passthrough import count_array_tasks
from slurmwrap.slurm.squeue_parser import Watched

# Tasks of an array that are named.
_NAMES = 3
_IN_A_LOG = (
    "reason",
    "pre-run",
    "Slurm",
    "steps",
    "task",
    "GPU use",
    "GPU mem",
    "idle",
    "trouble",
    "warning",
)  # of a log
_BARE = ("reason", "task", "warning")  # without their label there


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenStyle:
    """How it is shown. `unicode`: bars may be drawn; `zone`: of the reader's clock."""

    columns: int = 80
    paint: Paint = plain
    unicode: bool = True
    zone: tzinfo | None = None


def lines(status: JobStatus, look: ScreenStyle) -> list[str]:
    """The whole view. No line is longer than `look.columns`."""
    title = wrap(_title(status), max(20, look.columns), subsequent_indent="  ")
    shown = [look.paint(line, "bold") for line in title]
    for label, text, style in _rows(status, look):
        found = row(label, text, look.columns)
        shown += [look.paint(line, style) if style else line for line in found]
    return shown


def one_line(status: JobStatus, look: ScreenStyle) -> str:
    """One change, for a log: the time, the state, and the row that says most about it."""
    rows = [(label, text) for label, text, style in _rows(status, look) if label in _IN_A_LOG and style != "dim"]
    said = [text if label in _BARE else f"{label} {text}" for label, text in rows]
    text = "; ".join([_title(status), *said])
    return f"{clock(status.at, status.at, look.zone, seconds=True)} {flat(text)}"


def change_key(status: JobStatus) -> tuple[object, ...]:
    """What must differ for a line of its own: not the clock, and of a forecast only what matters."""
    waiting, trial, level = status.waiting, status.trial, _level(status)
    forecast = waiting.expected_start if waiting else None
    return (
        tuple(sorted(_counts(status).items())),
        waiting.record.reason if waiting else "",
        None if forecast is None else forecast // 600,
        status.record.nodes if not status.array else (),
        _trial_key(trial) if trial else (),
        level[0] if level else "",
        _silent_s(status) is not None,
        bool(status.silent),
        _gpu_key(status),
    )


def _trial_key(trial: WatchedPrerun) -> tuple[object, ...]:
    row = trial.row.record if trial.row else None
    stage = trial.verdict.outcome.value if trial.verdict else trial.seen.stage if trial.seen else ""
    return (stage, row.state if row else "", row.reason if row and row.pending else "")


def _silent_s(status: JobStatus) -> float | None:
    """For how long a running job has been silent beyond what is usual; steps that are counted are a sign of life."""
    if status.output is None or status.record.state != "RUNNING":
        return None
    silent = status.output.silent_s(status.at)
    return None if silent is None or (status.steps is not None and not _steps_late(status)) else silent


def _steps_late(status: JobStatus) -> bool:
    if status.steps is None:
        return False
    now = status.rates[-1] if status.rates else status.steps.per_s
    return status.at - status.steps.at > max(60.0, 20 / now if now else 0.0)


def _gpu_key(status: JobStatus) -> tuple[object, ...]:
    use = status.gpu_use
    if use is None:
        return ()
    troubles = tuple(sorted((node, words.rstrip(" s0123456789")) for node, words in (use.troubles or {}).items()))
    return (bool(use.gpus), tuple(gpu.name for gpu in use.idle), troubles, use.given_up)


def as_plain(status: JobStatus) -> dict[str, Any]:
    """One JSON object: times in Unix seconds, null where it is not known."""
    record, waiting, level = status.record, status.waiting, _level(status)
    trial, use = status.trial, status.gpu_use
    return {
        "at": round(status.at, 3),
        "job": status.address,
        "name": record.name,
        "state": record.state if not status.array else None,
        "tasks": dict(_counts(status)) if status.array else None,
        "reason": waiting.record.reason if waiting else None,
        "reason_words": _meaning(status, waiting).words if waiting else None,
        "expected_start": waiting.expected_start if waiting else None,
        "nodes": list(record.nodes),
        "gpus": record.gpus,
        "start": record.start_time,
        "time_limit_s": record.time_limit_s,
        "end": record.end_time,
        "exit_code": record.exit_code if record.ended else None,
        "locality": None if level is None else {"now": level[0], "next": level[1], "next_at": level[2]},
        "prerun": None if trial is None else _plain_trial(trial),
        "output": None if status.output is None else _plain_output(status, status.output),
        "steps": None if status.steps is None else status.steps.count,
        "steps_per_s": status.rates[-1] if status.rates else status.steps.per_s if status.steps else None,
        "gpu_percent": None if use is None or use.percent is None else round(use.percent, 1),
        "gpu_use": None if use is None else gpu_utilization.as_plain(use),
    }


def _plain_trial(trial: WatchedPrerun) -> dict[str, Any]:
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


def _plain_output(status: JobStatus, output: Output) -> dict[str, Any]:
    """`silent_s`: null while it is not silent for longer than usual."""
    silent = _silent_s(status)
    return {
        "last_at": None if output.empty else round(output.at, 3),
        "last_line": output.last_line,
        "usual_gap_s": round(output.usual_gap_s, 1) or None,
        "silent_s": None if silent is None else round(silent),
    }


# --- the view ---------------------------------------------------------------------------------------------------------


def _title(status: JobStatus) -> str:
    """Which job, in which state, since when, where and how large."""
    record, counts = status.record, _counts(status)
    name = f"job {status.address} ({flat(record.name)}):"
    if status.array:
        order = sorted(counts.items(), key=lambda one: -one[1])
        return f"{name} " + ", ".join(f"{count} {state_word(state)}" for state, count in order)
    since = {"PENDING": record.eligible_time, "RUNNING": record.start_time}.get(record.state)
    waits = record.pending and since is not None and since > status.at
    lasted = f" for {span(status.at - since)}" if since and not waits else ""
    where = f" on {fold(record.nodes)}" if record.nodes and not record.pending else ""
    ended = _ended(record)
    return f"{name} {state_word(record.state)}{ended or lasted}{where}, {_size(record)}"


def _ended(record: JobRecord) -> str:
    """How it ended."""
    if not record.ended:
        return ""
    ran = ""
    if record.start_time and record.end_time and record.end_time > record.start_time:
        ran = f" after {span(record.end_time - record.start_time)}"
    # The state says it: Slurm's 0:125 and 0:15 add nothing to it.
    if record.state != "FAILED":
        return ran
    if record.signal:
        return f" with signal {record.signal}{ran}"
    return f" with exit code {record.exit_code}{ran}" if record.exit_code else ran


def _size(record: JobRecord) -> str:
    nodes = "1 node" if record.num_nodes == 1 else f"{record.num_nodes} nodes"
    return f"{nodes}, {record.gpus} GPU{'s' if record.gpus != 1 else ''}" if record.gpus else nodes


def _rows(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """(label, text, style)."""
    if status.silent:
        yield "Slurm", f"does not answer ({flat(status.silent)}); this is what it said last", "yellow"
    if status.array:
        yield from _tasks(status)
        if status.gpus:
            yield "GPU use", f"of one task at a time: slurmwrap watch {status.address}_N --gpus", ""
    if status.waiting is not None:
        yield from _waiting(status, style)
    record = status.record
    if (
        record.state == "CANCELLED"
        and status.trial
        and status.trial.verdict
        and status.trial.verdict.outcome is Outcome.FAIL
    ):
        yield "pre-run", describe_prerun(status, status.trial, style.zone), "red"
    if record.state == "RUNNING":
        yield from (("pre-run", sentence, "yellow") for sentence in _failed_commands(status))
    if record.state == "RUNNING" and not status.array:
        yield from _running(status, record, style)


def _failed_commands(status: JobStatus) -> tuple[str, ...]:
    """What of the script failed in its pre-run."""
    verdict = status.trial.verdict if status.trial else None
    if verdict is None:
        return ()
    found = describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS)
    return tuple(flat(sentence) for sentence in found)


def _tasks(status: JobStatus) -> Iterator[tuple[str, str, str]]:
    """Which tasks ended badly: a few by name, failures before what was cancelled."""
    states = {
        w.record.address: w.record.state for w in status.rows if w.record.array_task_id is not None and w.record.ended
    }
    ended = sorted({**(status.gone or {}), **states}.items(), key=lambda one: one[1] == "CANCELLED")
    if bad := [address for address, state in ended if state != "COMPLETED"]:
        more = f" and {len(bad) - _NAMES} more" if len(bad) > _NAMES else ""
        yield "task", f"{', '.join(bad[:_NAMES])}{more} did not complete; slurmwrap why {bad[0]}", "red"


def _meaning(status: JobStatus, waiting: Watched) -> Meaning:
    """Why it waits, in words."""
    found, reason = meaning(waiting.record.reason), waiting.record.reason
    if reason == "BeginTime" and status.trial and not status.trial.verdict:
        return Meaning(words="it waits for its pre-run", way_out="")
    if waiting.dependency and reason.startswith("Dependency"):
        return Meaning(words=f"{found.words}: {flat(waiting.dependency)}", way_out=found.way_out)
    return found


def _waiting(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    waiting = status.waiting
    assert waiting is not None
    found = _meaning(status, waiting)
    yield "reason", f"{found.words} ({flat(waiting.record.reason)})", ""
    if found.way_out:
        yield "", found.way_out, "dim"
    if status.trial is not None:
        yield "pre-run", describe_prerun(status, status.trial, style.zone), ""
        yield from (("", sentence, "yellow") for sentence in _failed_commands(status))
    yield from _start(status, waiting, style)
    yield from _place(status, style)


def _start(status: JobStatus, waiting: Watched, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """When it may begin, or when Slurm expects it to. While its pre-run goes on that row says it already."""
    begins = waiting.record.eligible_time or 0
    if waiting.record.reason == "BeginTime":
        if begins > status.at and (status.trial is None or status.trial.verdict is not None):
            yield "start", f"not before {_when(begins, status, style)}", ""
    elif waiting.expected_start and waiting.expected_start > status.at:
        where = f", on {flat(waiting.expected_nodes)}" if waiting.expected_nodes else ""
        yield "start", f"expected {_when(waiting.expected_start, status, style)}{where}; Slurm's forecast", ""


def _when(at: float, status: JobStatus, style: ScreenStyle) -> str:
    return f"{clock(at, status.at, style.zone)}, in {span(at - status.at)}"


def _level(status: JobStatus) -> tuple[str, str, float | None] | None:
    """(what the job requires now, what it requires next, from when). None: nothing."""
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


def _place(status: JobStatus, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    level = _level(status)
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


def _running(status: JobStatus, record: JobRecord, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    if record.start_time:
        yield "time", _time(status.at, record, style), ""
    if status.steps is not None:
        now = status.rates[-1] if status.rates else status.steps.per_s
        rate = f"  {rate_word(now)}" if now else ""
        late = f"  (none for {span(status.at - status.steps.at)})" if _steps_late(status) else ""
        yield "steps", f"{status.steps.count:,}{rate}  {sparkline(status.rates, style.unicode)}".rstrip() + late, ""
    elif status.counts_steps:
        yield "steps", "none counted yet", ""
    if status.gpu_use is not None:
        yield from gpu_rows(status.gpu_use, style.unicode)
    elif status.gpus is False and record.gpus:
        yield "GPU use", "--gpus measures it, by a small step in the job", "dim"
    if status.output is not None:
        yield from _output(status, status.output, style)


def _output(status: JobStatus, output: Output, style: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """The last line, how old it is, and a warning where that is unusual."""
    silent = _silent_s(status)
    if output.last_line:
        yield "output", flat(output.last_line)[: 2 * style.columns], ""
    if silent is None:
        age = span(status.at - output.at)
        yield ("output", "none yet", "dim") if output.empty else ("", f"last output {age} ago", "dim")
        return
    gap = "" if output.empty or output.usual_gap_s < 1 else f"; usually a line every {span(output.usual_gap_s)}"
    yield "warning", f"no output for {span(silent)}{gap}", "yellow"


def _time(now: float, record: JobRecord, style: ScreenStyle) -> str:
    """Elapsed, limit, a bar, and when it is over at the latest."""
    began = record.start_time or now
    if not record.time_limit_s:
        return f"{hms(now - began)}, without a limit"
    shown = bar((now - began) / record.time_limit_s, style.unicode)
    ends = clock(began + record.time_limit_s, now, style.zone)
    return f"{hms(now - began)} of {hms(record.time_limit_s)} {shown} ends by {ends}"


def _counts(status: JobStatus) -> Counter[str]:
    """State → jobs or tasks; a waiting row of an array stands for many."""
    found: Counter[str] = Counter()
    for watched in status.rows:
        record = watched.record
        found[record.state] += max(1, count_array_tasks(record.array_tasks))
    found.update((status.gone or {}).values())
    return found
