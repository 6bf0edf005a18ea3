"""A user's own report: what their jobs asked for and used, and what they can do themselves. Pure.

It leaves out what only an administrator acts on (drains, repairs, incidents of the site).
"""

from __future__ import annotations

import math
import posixpath
import shlex
from collections.abc import Iterable, Sequence
from math import fsum

from slurmwrap.diagnosis.taxonomy import COMPLETED_WITH_ERROR, get_title
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.run_filter import failed
from slurmwrap.profiling.memory_model import MemoryModel
from slurmwrap.report import text_format
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import NightReport, ToDo, UsageRow
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

ROWS = 20
# Largest number of suggested commands of each kind.
_MAX_FAILURES, _MAX_CHANGES = 5, 3
# Margin over the longest run, and over the mean CPU use, which hides bursts.
_TIME_MARGIN, _CPU_MARGIN = 1.5, 2.0
# A request is worth changing if it is at least this multiple of what is advised.
_LEAST_RATIO = 2.0
# A shorter time limit (seconds) fits into backfill gaps and is not worth changing.
_SHORT_S = 3600
# Mean use of the GPUs below which it is mentioned.
_IDLE = 0.1
# Usual time limits in minutes. The next larger one is advised.
_TIMES = (10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880, 4320, 5760, 7200, 10080, 20160)


def make_own_report(
    report: NightReport,
    attempts: Iterable[JobRun],
    submissions: Iterable[Submission],
    preruns: Iterable[PrerunRecord],
) -> NightReport:
    """Return `report` as its user reads it, with what the records of their own jobs show."""
    ended = [run for run in attempts if run.end_time and report.since <= run.end_time < report.until and run.start_time]
    newest = _map_submissions(submissions)
    tried = [one for one in preruns if report.since <= one.at < report.until]
    used = usage(ended, newest, tried)
    blocked = [one.input for one in report.blocked if one.input.uid != -1]
    doing = (
        *_suggest_for_failures(ended, newest),
        *_suggest_for_stopped(tried, newest),
        *_suggest_for_blocked(blocked),
        *_suggest_changes(used),
    )
    return replace(report, own=True, usage=used, to_do=doing, suspects=(), lemons=(), drains=())


def _map_submissions(submissions: Iterable[Submission]) -> dict[tuple[str, int], Submission]:
    return {(one.cluster, one.job_id): one for one in sorted(submissions, key=lambda one: one.at)}


def _find_submission(run: JobRun, known: dict[tuple[str, int], Submission]) -> Submission | None:
    """Return gsub's record of a run; for an array task, the record of the array."""
    head = run.address.partition("_")[0]
    array = known.get((run.attempt.cluster, int(head))) if head.isdecimal() else None
    return known.get((run.attempt.cluster, run.attempt.job_id)) or array


# ---- asked and used


def usage(
    ended: Sequence[JobRun],
    known: dict[tuple[str, int], Submission],
    tried: Sequence[PrerunRecord] = (),
) -> tuple[UsageRow, ...]:
    """Return rows by job name and GPUs, of completed runs, most GPU-hours first."""
    done = [run for run in ended if run.state == "COMPLETED"]
    rows = [make_usage_row(runs, known, tried) for runs in group_by(done, lambda run: (run.name, run.gpus)).values()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.name))[:ROWS])


def make_usage_row(
    runs: Sequence[JobRun], known: dict[tuple[str, int], Submission], tried: Sequence[PrerunRecord] = ()
) -> UsageRow:
    """Return what the runs of one job asked for and used, and the options that ask for less; `tried`: its pre-runs."""
    last = max(runs, key=lambda run: run.end_time or 0)
    nodes = max(1, len(last.nodes))
    cpus = last.cpus / nodes
    mem = last.mem_mib_per_node or (last.mem_mib_per_cpu or 0) * cpus or None
    submission = _find_submission(last, known)
    measured, by = _find_measurements(runs, known, tried)
    peaks = [one.mem_peak_mib for one in measured if one.mem_peak_mib is not None]
    busy = [one.cpus_used for one in measured if one.cpus_used is not None]
    use = [one.gpu_util for one in measured if one.gpu_util is not None]
    unused = [one.gpus_unused for one in measured if one.gpus_unused is not None]
    row = UsageRow(
        name=last.name,
        script=posixpath.join(submission.work_dir, submission.script_path)
        if submission and submission.script_path
        else "",
        runs=len(runs),
        gpu_hours=fsum(run.gpu_hours for run in runs),
        time_asked_s=last.time_limit_s,
        time_used_s=max(run.run_s for run in runs),
        cpus_asked=cpus,
        cpus_used=fsum(busy) / len(busy) if busy else None,
        mem_mib_asked=mem,
        mem_mib_peak=max(peaks) if peaks else None,
        gpus=last.gpus,
        gpu_util=fsum(use) / len(use) if use else None,
        gpus_unused=min(unused) if unused else None,
        measured_by=by,
    )
    shape = submission.shape if submission is not None else None
    return replace(row, change=tuple(suggest_options(row, shape if by == "the runs" else None)))


def _find_measurements(
    runs: Sequence[JobRun], known: dict[tuple[str, int], Submission], tried: Sequence[PrerunRecord]
) -> tuple[list[Measurement], str]:
    """Return what the runs used per node, and who measured it.

    If no run was measured: what their pre-runs used, multiplied by the GPUs of a node.
    """
    found = [run.measurement for run in runs if run.measurement is not None]
    if found:
        return found, "the runs"
    keys = {one.profile_key for run in runs if (one := _find_submission(run, known)) is not None} - {""}
    gpus = max(1, round(runs[-1].gpus / max(1, len(runs[-1].nodes))))
    of_them = [one.verdict.measurement for one in tried if one.profile_key in keys and one.verdict.measurement]
    return [_scale_measurement(one, gpus) for one in of_them], "the pre-run" if of_them else ""


def _scale_measurement(one: Measurement, gpus: int) -> Measurement:
    factor = gpus / max(1, one.gpus)
    return Measurement(
        cpus_used=None if one.cpus_used is None else one.cpus_used * factor,
        mem_peak_mib=None if one.mem_peak_mib is None or one.mem_source == "rss" else round(one.mem_peak_mib * factor),
        gpu_util=one.gpu_util,
    )


def suggest_options(row: UsageRow, shape: ResourceShape | None) -> Iterable[str]:
    """Yield options that ask for less.

    `shape`: the request; None if it is not known, or if no whole run was measured (a pre-run runs few steps): then only
    a time limit is suggested.
    """
    if _asks_too_long(row):
        yield f"--time={_format_time_limit(compute_advised_time_s(row.time_used_s))}"
    if shape is None:
        return
    if row.cpus_used is not None and row.cpus_asked and shape.cpus and shape.cpu_unit is not CpuUnit.NONE:
        advised = max(1, math.ceil(shape.cpus * row.cpus_used * _CPU_MARGIN / row.cpus_asked))
        if shape.cpus >= _LEAST_RATIO * advised:
            yield f"--{shape.cpu_unit.value}={advised}"
    if row.mem_mib_peak is not None and row.mem_mib_asked and shape.mem_mib and shape.mem_unit is not MemUnit.NONE:
        share = MemoryModel(peak_mib=row.mem_mib_peak).floor_mib / row.mem_mib_asked
        # Use the job's own unit, because sbatch refuses to mix units.
        advised = math.ceil(shape.mem_mib * share / 1024)
        if shape.mem_mib >= _LEAST_RATIO * advised * 1024:
            yield f"--{shape.mem_unit.value}={advised}G"


def _asks_too_long(row: UsageRow) -> bool:
    asked = row.time_asked_s or 0
    return asked >= max(_SHORT_S, _LEAST_RATIO * compute_advised_time_s(row.time_used_s))


def compute_advised_time_s(longest_s: float) -> float:
    """Return a time limit for jobs whose longest run took so long: half as much again, rounded up to a usual limit."""
    wanted = longest_s * _TIME_MARGIN
    return 60.0 * next((minutes for minutes in _TIMES if minutes * 60 >= wanted), math.ceil(wanted / 86400) * 1440)


def _format_time_limit(seconds: float) -> str:
    """Format a time for sbatch: 0:10:00, 2-00:00:00."""
    days, minutes = divmod(round(seconds / 60), 1440)
    return f"{days}-{minutes // 60:02d}:{minutes % 60:02d}:00" if days else f"{minutes // 60}:{minutes % 60:02d}:00"


def describe_unused_request(row: UsageRow) -> str:
    """Describe unused time and GPUs: "asked for 7 d, ran 44 s at most"; "" if it is not worth changing."""
    parts = []
    if row.time_asked_s and _asks_too_long(row):
        parts.append(
            f"asked for {text_format.duration(row.time_asked_s)}, ran {text_format.duration(row.time_used_s)} at most"
        )
    if row.gpus_unused:
        parts.append(f"{row.gpus_unused} of {row.gpus} GPUs were never used")
    elif row.gpu_util is not None and row.gpu_util < _IDLE and row.gpus:
        parts.append(f"its GPUs were busy for {text_format.percent(row.gpu_util)} of the time")
    return "; ".join(parts)


# ---- what to do


def _suggest_for_failures(ended: Sequence[JobRun], known: dict[tuple[str, int], Submission]) -> Iterable[ToDo]:
    """Suggest to look at the newest run of each job name if it failed for good or its output ends with an error.

    A job name whose newest run completed is left out.
    """
    names = group_by(sorted(ended, key=lambda run: run.end_time or 0), lambda run: run.name)
    lost = [
        runs for runs in names.values() if _went_wrong(runs[-1]) and not runs[-1].incident and not runs[-1].retry_at
    ]
    lost.sort(key=lambda runs: runs[-1].end_time or 0, reverse=True)
    for runs in lost[:_MAX_FAILURES]:
        last = runs[-1]
        assert last.diagnosis is not None
        alike = sum(_went_wrong(run) and _has_same_category(run, last) for run in runs)
        often = f" {alike} times" if alike > 1 else ""
        how = "failed" if failed(last) else "completed with an error in its output"
        why = f"{last.name} {how}{often}: {last.diagnosis.advice or get_title(last.diagnosis.category)}"
        yield ToDo(why=why, command=f"slurmwrap why {shlex.quote(last.address or str(last.attempt.job_id))}")


def _went_wrong(run: JobRun) -> bool:
    return failed(run) or (run.diagnosis is not None and run.diagnosis.category == COMPLETED_WITH_ERROR)


def _has_same_category(run: JobRun, last: JobRun) -> bool:
    diagnosis, last_diagnosis = run.diagnosis, last.diagnosis
    return diagnosis is not None and last_diagnosis is not None and diagnosis.category == last_diagnosis.category


def _suggest_for_stopped(tried: Sequence[PrerunRecord], known: dict[tuple[str, int], Submission]) -> Iterable[ToDo]:
    """Suggest to look at jobs that their pre-run cancelled if no later pre-run of the script passed; newest first."""
    scripts: dict[str, PrerunRecord] = {}
    for one in sorted(tried, key=lambda one: one.at):
        submission = known.get((one.cluster, one.job_id)) if one.job_id is not None else None
        if submission is not None:
            scripts[submission.script_path or submission.name] = one
    fails = [one for one in scripts.values() if one.verdict.outcome is Outcome.FAIL]
    for one in sorted(fails, key=lambda one: -one.at)[:_MAX_FAILURES]:
        why = f"job {one.job_id} was cancelled by its pre-run: {one.verdict.reason}"
        yield ToDo(why=why, command=f"slurmwrap why {one.job_id}")


def _suggest_for_blocked(blocked: Sequence[BlockedInput]) -> Iterable[ToDo]:
    for one in sorted(blocked, key=lambda one: -one.at)[:_MAX_FAILURES]:
        why = f"jobs that read {one.path} are refused until it changes: {one.reason.removeprefix(f'{one.path}: ')}"
        yield ToDo(why=why, command=f"slurmwrap inputs show {shlex.quote(one.path)}")


def _suggest_changes(rows: Sequence[UsageRow]) -> Iterable[ToDo]:
    worth = [row for row in rows if row.change and row.script]
    for row in worth[:_MAX_CHANGES]:
        waste = describe_unused_request(row) or "it asks for more than it used"
        start = "; with less it may start sooner" if any(one.startswith("--time") for one in row.change) else ""
        command = " ".join(("gsub", *row.change, shlex.quote(row.script)))
        # The arguments of a script are not stored.
        yield ToDo(why=f"{row.name}: {waste}{start} (add its arguments, if any)", command=command, advice=True)
