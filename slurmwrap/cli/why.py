"""`slurmwrap why`: what happened to one job, on what evidence, and what to do. Flags in, one Story out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.reconcile_user_jobs import look_first
from slurmwrap.cli.record_access import JobRecords, RecordSource, about_job, place_of
from slurmwrap.cli.run_selection import last_failed
from slurmwrap.cli.slurm_lookup import cluster_here, find_records_of_cluster, unrecorded
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import SlurmError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document
from slurmwrap.model.job_record import JobRecord
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.report.job_report.budget_table import RetryBudgetReport, make_budget_report
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.next_step import find_next_step
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline, find_last_failure, list_tasks
from slurmwrap.report.text_format import moment
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.serialize import to_json_dict

LOOK_BACK_S = 30 * 86400.0
# Slurm's present word is a help, not the answer.
_SLURM_S = 3.0
# bytes of a script of which a line is shown
_FILE_CAP = 1 << 20


def why(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, or 77_2 for an array task.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", "--all", help="Every run, every task, every cited line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs (docs/jobs.md).")] = False,
) -> None:
    """Tell why a job failed, and what to do now.

    Without JOBID it is your last failed job; where clusters share your home, JOBID is this cluster's. Exit code 0: it
    is explained, or nothing failed; 1: nothing is known of the job; 6: the database cannot be read; 255: that is no
    job id.

    \b
    Examples:
      slurmwrap why
      slurmwrap why 81
      slurmwrap why 77 -v                   each task of an array by itself
      slurmwrap why 77_2 --json | jq .next
    """
    config = load(os.environ)
    place = place_of(config, os.environ, os.geteuid())
    checked(job or "0")
    unseen = look_first(place, config)
    if unseen:
        _say(unseen)
    address, cluster = (job, "") if job else _last(place)
    if not address and not unseen and not place.alone:
        # None is said only after a look at this moment.
        unseen = look_first(place, config, although_site=True)
        address, cluster = _last(place)
    if not address:
        _say(_none(place, unseen))
        return
    known = about_job(place, address, cluster) if cluster else find_records_of_cluster(place, address, config)
    note(known)
    timeline = _with_slurm(build_job_timeline(address, known, config, place), place, config)
    if as_json:
        typer.echo(
            format_json_document("why", {**timeline_to_json(timeline), "next": to_json_dict(find_next_step(timeline))})
        )
        return
    page = format_job_report(
        timeline,
        terminal.local_zone(),
        terminal.painter(),
        columns=terminal.columns(),
        verbose=verbose,
        account=account(timeline, known, config),
    )
    typer.echo(page, nl=False)


def _none(source: RecordSource, unseen: str) -> str:
    """Nothing failed, or it cannot be known."""
    if unseen:
        return "no failure is stored; whether a job failed since the last look is not known"
    return f"no job{'' if source.site else ' of yours'} failed in the last 30 days, as far as Slurm and slurmwrap know"


def checked(job: str) -> str:
    """A job id as people write it. UsageError for anything else."""
    head, _, task = job.partition("_")
    if not head.isdecimal() or not job.isascii() or (task and not task.isdecimal()) or len(job) > 30:
        raise UsageError(f"'{job}' is no job id", hint="write 81, or 77_2 for a task of array 77")
    return job


def account(timeline: JobTimeline, records: JobRecords, config: Config) -> RetryBudgetReport | None:
    """The ledger of the job; None for an array, whose tasks have one each."""
    ids = {run.attempt.job_id for run in timeline.attempts}
    return make_budget_report(timeline.attempts, config.retry, records.resets) if len(ids) == 1 else None


def build_job_timeline(address: str, records: JobRecords, config: Config, source: RecordSource) -> JobTimeline:
    """By what is kept of it, else by Slurm's own record. SlurmwrapError where no one knows it."""
    timeline = build_timeline(
        address, records.submissions, records.preruns, records.attempts, records.actions, records.delays
    )
    if timeline.empty:
        whose = None if source.site or source.uid == 0 else source.uid
        timeline = replace(timeline, attempts=unrecorded(address, config, os.environ, whose))
        if timeline.attempts:
            _say("nothing was recorded of it here: this is Slurm's own word")
    if timeline.empty:
        raise SlurmwrapError(
            f"nothing is known of job {address}",
            hint="'slurmwrap history' lists what is known; Slurm's own word: scontrol show job " + address,
        )
    belongs = {run.incident for run in timeline.attempts if run.incident}
    mine = tuple(one for one in records.incidents if one.incident_id in belongs)
    return replace(timeline, incidents=mine, lines=_lines(timeline, source.uid))


def _last(source: RecordSource) -> tuple[str, str]:
    """(address, cluster); empty words where none failed."""
    found = last_failed(source, time.time() - LOOK_BACK_S)
    say_notes(found.notes)
    return find_last_failure(tuple(found.runs), found.stopped) or ("", "")


def _with_slurm(timeline: JobTimeline, source: RecordSource, config: Config) -> JobTimeline:
    """With Slurm's record of this moment, for a job that has not ended."""
    last = timeline.attempts[-1] if timeline.attempts else None
    # After a requeue the next run waits.
    ended = last is not None and last.state not in ("", REQUEUED)
    if ended or list_tasks(timeline) or timeline.empty:
        return timeline
    if timeline.preruns and timeline.preruns[-1].verdict.outcome.value == "fail":
        return timeline
    if not source.site and cluster_here(config) not in ("", timeline.cluster):
        return timeline
    with suppress(SlurmError):
        job = SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).job(timeline.address)
        if job is not None and (source.site or source.uid in (0, job.uid)):
            return replace(timeline, slurm_says=_said(job))
    return timeline


def _said(job: JobRecord) -> str:
    """ "PENDING (Priority)"."""
    if job.reason == "BeginTime" and job.pending and job.eligible_time is not None:
        return f"PENDING (BeginTime, not before {moment(float(job.eligible_time), terminal.local_zone())})"
    return f"{job.state} ({job.reason})" if job.reason not in ("", "None") else job.state


def _lines(timeline: JobTimeline, uid: int) -> Mapping[tuple[str, int], str]:
    """What is at the lines that the pre-run's findings name, as it was then: read for its owner alone, and only
    from files that were not changed since."""
    asked = timeline.submission
    if asked is None or asked.uid != uid:
        return {}
    named = {(finding.file, finding.line) for record in timeline.preruns for finding in record.verdict.findings}
    found = {place: _line_of(Path(asked.work_dir) / place[0], place[1], asked.at) for place in named if all(place)}
    return {place: line for place, line in found.items() if line}


def _line_of(path: Path, number: int, before: float) -> str:
    with suppress(OSError, ValueError):
        status = path.stat()
        if path.is_file() and status.st_size <= _FILE_CAP and status.st_mtime <= before:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return lines[number - 1] if 0 < number <= len(lines) else ""
    return ""


def timeline_to_json(timeline: JobTimeline) -> dict[str, object]:
    """For JSON."""
    plain: dict[str, object] = to_json_dict(replace(timeline, lines={}))
    plain["lines"] = [{"file": file, "line": line, "text": text} for (file, line), text in timeline.lines.items()]
    return plain


def note(records: JobRecords) -> None:
    """What could not be read, on stderr."""
    say_notes(records.notes)


def say_notes(notes: Iterable[str]) -> None:
    """The same of the remarks alone."""
    for one in notes:
        _say(one)


def _say(text: str) -> None:
    print(f"slurmwrap: {text}", file=sys.stderr)
