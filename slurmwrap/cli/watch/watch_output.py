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


def lines(facts: JobStatus, look: ScreenStyle) -> list[str]:
    """The whole view. No line is longer than `look.columns`."""
    title = wrap(_title(facts), max(20, look.columns), subsequent_indent="  ")
    shown = [look.paint(line, "bold") for line in title]
    for label, text, style in _rows(facts, look):
        found = row(label, text, look.columns)
        shown += [look.paint(line, style) if style else line for line in found]
    return shown


def one_line(facts: JobStatus, look: ScreenStyle) -> str:
    """One change, for a log: the time, the state, and the row that says most about it."""
    rows = [(label, text) for label, text, style in _rows(facts, look) if label in _IN_A_LOG and style != "dim"]
    said = [text if label in _BARE else f"{label} {text}" for label, text in rows]
    text = "; ".join([_title(facts), *said])
    return f"{clock(facts.at, facts.at, look.zone, seconds=True)} {flat(text)}"


def change_key(facts: JobStatus) -> tuple[object, ...]:
    """What must differ for a line of its own: not the clock, and of a forecast only what matters."""
    waiting, trial, level = facts.waiting, facts.trial, _level(facts)
    forecast = waiting.expected_start if waiting else None
    return (
        tuple(sorted(_counts(facts).items())),
        waiting.record.reason if waiting else "",
        None if forecast is None else forecast // 600,
        facts.record.nodes if not facts.array else (),
        _trial_key(trial) if trial else (),
        level[0] if level else "",
        _silent_s(facts) is not None,
        bool(facts.silent),
        _gpu_key(facts),
    )


def _trial_key(trial: WatchedPrerun) -> tuple[object, ...]:
    row = trial.row.record if trial.row else None
    stage = trial.verdict.outcome.value if trial.verdict else trial.seen.stage if trial.seen else ""
    return (stage, row.state if row else "", row.reason if row and row.pending else "")


def _silent_s(facts: JobStatus) -> float | None:
    """For how long a running job has been silent beyond what is usual; steps that are counted are a sign of life."""
    if facts.output is None or facts.record.state != "RUNNING":
        return None
    silent = facts.output.silent_s(facts.at)
    return None if silent is None or (facts.steps is not None and not _steps_late(facts)) else silent


def _steps_late(facts: JobStatus) -> bool:
    if facts.steps is None:
        return False
    now = facts.rates[-1] if facts.rates else facts.steps.per_s
    return facts.at - facts.steps.at > max(60.0, 20 / now if now else 0.0)


def _gpu_key(facts: JobStatus) -> tuple[object, ...]:
    use = facts.gpu_use
    if use is None:
        return ()
    troubles = tuple(sorted((node, words.rstrip(" s0123456789")) for node, words in (use.troubles or {}).items()))
    return (bool(use.gpus), tuple(gpu.name for gpu in use.idle), troubles, use.given_up)


def as_plain(facts: JobStatus) -> dict[str, Any]:
    """One JSON object: times in Unix seconds, null where it is not known."""
    record, waiting, level = facts.record, facts.waiting, _level(facts)
    trial, use = facts.trial, facts.gpu_use
    return {
        "at": round(facts.at, 3),
        "job": facts.address,
        "name": record.name,
        "state": record.state if not facts.array else None,
        "tasks": dict(_counts(facts)) if facts.array else None,
        "reason": waiting.record.reason if waiting else None,
        "reason_words": _meaning(facts, waiting).words if waiting else None,
        "expected_start": waiting.expected_start if waiting else None,
        "nodes": list(record.nodes),
        "gpus": record.gpus,
        "start": record.start_time,
        "time_limit_s": record.time_limit_s,
        "end": record.end_time,
        "exit_code": record.exit_code if record.ended else None,
        "locality": None if level is None else {"now": level[0], "next": level[1], "next_at": level[2]},
        "prerun": None if trial is None else _plain_trial(trial),
        "output": None if facts.output is None else _plain_output(facts, facts.output),
        "steps": None if facts.steps is None else facts.steps.count,
        "steps_per_s": facts.rates[-1] if facts.rates else facts.steps.per_s if facts.steps else None,
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


def _plain_output(facts: JobStatus, output: Output) -> dict[str, Any]:
    """`silent_s`: null while it is not silent for longer than usual."""
    silent = _silent_s(facts)
    return {
        "last_at": None if output.empty else round(output.at, 3),
        "last_line": output.last_line,
        "usual_gap_s": round(output.usual_gap_s, 1) or None,
        "silent_s": None if silent is None else round(silent),
    }


# --- the view ---------------------------------------------------------------------------------------------------------


def _title(facts: JobStatus) -> str:
    """Which job, in which state, since when, where and how large."""
    record, counts = facts.record, _counts(facts)
    name = f"job {facts.address} ({flat(record.name)}):"
    if facts.array:
        order = sorted(counts.items(), key=lambda one: -one[1])
        return f"{name} " + ", ".join(f"{count} {state_word(state)}" for state, count in order)
    since = {"PENDING": record.eligible_time, "RUNNING": record.start_time}.get(record.state)
    waits = record.pending and since is not None and since > facts.at
    lasted = f" for {span(facts.at - since)}" if since and not waits else ""
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


def _rows(facts: JobStatus, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """(label, text, style)."""
    if facts.silent:
        yield "Slurm", f"does not answer ({flat(facts.silent)}); this is what it said last", "yellow"
    if facts.array:
        yield from _tasks(facts)
        if facts.gpus:
            yield "GPU use", f"of one task at a time: slurmwrap watch {facts.address}_N --gpus", ""
    if facts.waiting is not None:
        yield from _waiting(facts, look)
    record = facts.record
    if (
        record.state == "CANCELLED"
        and facts.trial
        and facts.trial.verdict
        and facts.trial.verdict.outcome is Outcome.FAIL
    ):
        yield "pre-run", describe_prerun(facts, facts.trial, look.zone), "red"
    if record.state == "RUNNING":
        yield from (("pre-run", sentence, "yellow") for sentence in _failed_commands(facts))
    if record.state == "RUNNING" and not facts.array:
        yield from _running(facts, record, look)


def _failed_commands(facts: JobStatus) -> tuple[str, ...]:
    """What of the script failed in its pre-run."""
    verdict = facts.trial.verdict if facts.trial else None
    if verdict is None:
        return ()
    found = describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS)
    return tuple(flat(sentence) for sentence in found)


def _tasks(facts: JobStatus) -> Iterator[tuple[str, str, str]]:
    """Which tasks ended badly: a few by name, failures before what was cancelled."""
    states = {
        w.record.address: w.record.state for w in facts.rows if w.record.array_task_id is not None and w.record.ended
    }
    ended = sorted({**(facts.gone or {}), **states}.items(), key=lambda one: one[1] == "CANCELLED")
    if bad := [address for address, state in ended if state != "COMPLETED"]:
        more = f" and {len(bad) - _NAMES} more" if len(bad) > _NAMES else ""
        yield "task", f"{', '.join(bad[:_NAMES])}{more} did not complete; slurmwrap why {bad[0]}", "red"


def _meaning(facts: JobStatus, waiting: Watched) -> Meaning:
    """Why it waits, in words."""
    found, reason = meaning(waiting.record.reason), waiting.record.reason
    if reason == "BeginTime" and facts.trial and not facts.trial.verdict:
        return Meaning(words="it waits for its pre-run", way_out="")
    if waiting.dependency and reason.startswith("Dependency"):
        return Meaning(words=f"{found.words}: {flat(waiting.dependency)}", way_out=found.way_out)
    return found


def _waiting(facts: JobStatus, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    waiting = facts.waiting
    assert waiting is not None
    found = _meaning(facts, waiting)
    yield "reason", f"{found.words} ({flat(waiting.record.reason)})", ""
    if found.way_out:
        yield "", found.way_out, "dim"
    if facts.trial is not None:
        yield "pre-run", describe_prerun(facts, facts.trial, look.zone), ""
        yield from (("", sentence, "yellow") for sentence in _failed_commands(facts))
    yield from _start(facts, waiting, look)
    yield from _place(facts, look)


def _start(facts: JobStatus, waiting: Watched, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """When it may begin, or when Slurm expects it to. While its pre-run goes on that row says it already."""
    begins = waiting.record.eligible_time or 0
    if waiting.record.reason == "BeginTime":
        if begins > facts.at and (facts.trial is None or facts.trial.verdict is not None):
            yield "start", f"not before {_when(begins, facts, look)}", ""
    elif waiting.expected_start and waiting.expected_start > facts.at:
        where = f", on {flat(waiting.expected_nodes)}" if waiting.expected_nodes else ""
        yield "start", f"expected {_when(waiting.expected_start, facts, look)}{where}; Slurm's forecast", ""


def _when(at: float, facts: JobStatus, look: ScreenStyle) -> str:
    return f"{clock(at, facts.at, look.zone)}, in {span(at - facts.at)}"


def _level(facts: JobStatus) -> tuple[str, str, float | None] | None:
    """(what the job requires now, what it requires next, from when). None: nothing."""
    levels, waiting = facts.plan.levels, facts.waiting
    if waiting is None or len(levels) < 2:
        return None
    eligible = waiting.record.eligible_time
    waited = max(0.0, facts.at - eligible) if eligible else 0.0
    at = find_due_level(levels, waited) if facts.relaxes else 0
    if at + 1 >= len(levels):
        return (levels[at].name, "", None)
    due = eligible + max(level.wait_s for level in levels[: at + 1]) if eligible and facts.relaxes else None
    return (levels[at].name, levels[at + 1].name, due)


def _place(facts: JobStatus, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    level = _level(facts)
    switches = next((w.value for w in facts.plan.lines if w.option == "switches" and w.value), "")
    if level is not None and level[2] is not None:
        name, after, due = level
        then = "any nodes" if after == "any" else after
        begins = facts.record.eligible_time or 0
        if begins > facts.at:
            wait = span((due or 0) - begins)
            yield "place", f"will require {flat(name)} for {wait} once it may start, then {flat(then)}", ""
            return
        yield (
            "place",
            f"requires {flat(name)}; relaxes to {flat(then)} at {clock(due or 0, facts.at, look.zone)}, "
            f"in {span((due or 0) - facts.at)}",
            "",
        )
    elif level is not None and facts.relaxes:
        yield (
            "place",
            "requires no particular nodes any more" if level[0] == "any" else f"requires {flat(level[0])}",
            "",
        )
    elif switches:
        count, _, wait = switches.partition("@")
        bound = f"; Slurm drops this after {flat(wait)} (min:s) of waiting" if wait else ""
        yield "place", f"requests at most {flat(count)} leaf switch{'es' if count != '1' else ''}{bound}", ""


def _running(facts: JobStatus, record: JobRecord, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    if record.start_time:
        yield "time", _time(facts.at, record, look), ""
    if facts.steps is not None:
        now = facts.rates[-1] if facts.rates else facts.steps.per_s
        rate = f"  {rate_word(now)}" if now else ""
        late = f"  (none for {span(facts.at - facts.steps.at)})" if _steps_late(facts) else ""
        yield "steps", f"{facts.steps.count:,}{rate}  {sparkline(facts.rates, look.unicode)}".rstrip() + late, ""
    elif facts.counts_steps:
        yield "steps", "none counted yet", ""
    if facts.gpu_use is not None:
        yield from gpu_rows(facts.gpu_use, look.unicode)
    elif facts.gpus is False and record.gpus:
        yield "GPU use", "--gpus measures it, by a small step in the job", "dim"
    if facts.output is not None:
        yield from _output(facts, facts.output, look)


def _output(facts: JobStatus, output: Output, look: ScreenStyle) -> Iterator[tuple[str, str, str]]:
    """The last line, how old it is, and a warning where that is unusual."""
    silent = _silent_s(facts)
    if output.last_line:
        yield "output", flat(output.last_line)[: 2 * look.columns], ""
    if silent is None:
        age = span(facts.at - output.at)
        yield ("output", "none yet", "dim") if output.empty else ("", f"last output {age} ago", "dim")
        return
    gap = "" if output.empty or output.usual_gap_s < 1 else f"; usually a line every {span(output.usual_gap_s)}"
    yield "warning", f"no output for {span(silent)}{gap}", "yellow"


def _time(now: float, record: JobRecord, look: ScreenStyle) -> str:
    """Elapsed, limit, a bar, and when it is over at the latest."""
    began = record.start_time or now
    if not record.time_limit_s:
        return f"{hms(now - began)}, without a limit"
    shown = bar((now - began) / record.time_limit_s, look.unicode)
    ends = clock(began + record.time_limit_s, now, look.zone)
    return f"{hms(now - began)} of {hms(record.time_limit_s)} {shown} ends by {ends}"


def _counts(facts: JobStatus) -> Counter[str]:
    """State → jobs or tasks; a waiting row of an array stands for many."""
    found: Counter[str] = Counter()
    for watched in facts.rows:
        record = watched.record
        found[record.state] += max(1, count_array_tasks(record.array_tasks))
    found.update((facts.gone or {}).values())
    return found
