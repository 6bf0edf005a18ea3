"""`slurmwrap why`: explain what happened to one job, on what evidence, and what to do next."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.loss_curve_lookup import find_loss_curves
from slurmwrap.cli.member_runs import add_members, find_address_in_array, find_task_address, read_task_records
from slurmwrap.cli.queue_class import describe_queue_class
from slurmwrap.cli.reconcile_user_jobs import reconcile_own_jobs_first
from slurmwrap.cli.record_access import JobRecords, RecordSource, find_record_source, read_job_records
from slurmwrap.cli.run_selection import find_last_failure_records
from slurmwrap.cli.slurm_lookup import (
    find_local_cluster,
    find_records_of_cluster,
    find_unrecorded_runs,
    open_cluster,
    resolve_cluster,
)
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import SlurmError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document
from slurmwrap.model.job_record import JobRecord
from slurmwrap.policy.requeue import COMMENT_PREFIX
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.policy.time_limit import LIMIT_COMMENT
from slurmwrap.report.job_report.budget_table import RetryBudgetReport, make_budget_report
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.next_step import find_next_step
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline, find_last_failure, list_tasks
from slurmwrap.report.redaction import redact_document
from slurmwrap.report.shared_run_text import describe_shared_run
from slurmwrap.report.text_format import moment
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.shared_runs import read_shared_run

LOOK_BACK_S = 30 * 86400.0
# Timeout of the question to Slurm for the job's present state, in seconds; the page does not depend on the answer.
_SLURM_S = 3.0
# Largest size in bytes of a source file of which a line is shown.
_FILE_CAP = 1 << 20


def why(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, or 77_2 for an array task.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", "--all", help="Every run, every task, every cited line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs (docs/jobs.md).")] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="With --json: without names, host names, directories and secrets.")
    ] = False,
    given_cluster: list_options.Cluster = "",
) -> None:
    """Explain why a job failed, and what to do now.

    Without JOBID it is your last failed job; where clusters share your home, JOBID is this cluster's unless -M names
    another. Exit code 0: the job is explained, or nothing failed; 1: nothing is known of the job; 6: the database
    cannot be read; 255: JOBID is not a job id.

    \b
    Examples:
      slurmwrap why
      slurmwrap why 81
      slurmwrap why 77 -v                   each task of an array by itself
      slurmwrap why 77_2 --json | jq .next
      slurmwrap why 81 -M west              job 81 of the cluster west
      slurmwrap why 81 --json --redact      to show to someone else, or to a language model
    """
    if redact and not as_json:
        raise UsageError("--redact needs --json", hint="The page for people has no redacted form.")
    config = load(os.environ)
    source = find_record_source(config, os.environ, os.geteuid())
    check_job_id(job or "0")
    asked_cluster = resolve_cluster(given_cluster, source, config)
    unseen = reconcile_own_jobs_first(source, config)
    if unseen:
        _print_note(unseen)
    address, cluster = (job, asked_cluster) if job else _find_last_failure(source, config, asked_cluster)
    if not address and not unseen and not source.alone:
        # Before reporting that no job failed, ask Slurm now, although the site's reconciler works.
        unseen = reconcile_own_jobs_first(source, config, although_site=True)
        address, cluster = _find_last_failure(source, config, asked_cluster)
    if not address:
        _print_note(_format_no_failure(source, unseen))
        return
    known = find_records_of_cluster(source, address, config, cluster)
    print_record_notes(known)
    asked, address = address, find_address_in_array(address, known, source)
    if address != asked:
        known = read_job_records(source, address, cluster)
    known = read_task_records(address, known, source, cluster)
    timeline = build_job_timeline(address, known, config, source, cluster)
    timeline = _add_slurm_state(timeline, source, config, asked_cluster)
    if as_json:
        document = {**timeline_to_json(timeline), "next": to_json_dict(find_next_step(timeline))}
        typer.echo(format_json_document("why", redact_document(document) if redact else document))
        return
    page = format_job_report(
        timeline,
        terminal.get_local_zone(),
        terminal.choose_painter(),
        columns=terminal.columns(),
        verbose=verbose,
        account=make_job_budget(timeline, known, config),
    )
    typer.echo(page, nl=False)


def _format_no_failure(source: RecordSource, unseen: str) -> str:
    """Return the message that no failed job was found, or that it is not known whether one failed."""
    if unseen:
        return "no failure is stored; whether a job failed since the last look is not known"
    return f"no job{'' if source.site else ' of yours'} failed in the last 30 days, as far as Slurm and slurmwrap know"


def check_job_id(job: str) -> str:
    """Return a job id as users write it. Raise UsageError for any other text."""
    head, _, task = job.partition("_")
    if not head.isdecimal() or not job.isascii() or (task and not task.isdecimal()) or len(job) > 30:
        raise UsageError(f"'{job}' is no job id", hint="write 81, or 77_2 for a task of array 77")
    return job


def make_job_budget(timeline: JobTimeline, records: JobRecords, config: Config) -> RetryBudgetReport | None:
    """Return the retry budget of the job; None for an array, because each task has its own."""
    ids = {run.attempt.job_id for run in timeline.attempts}
    return make_budget_report(timeline.attempts, config.retry, records.resets) if len(ids) == 1 else None


def build_job_timeline(
    address: str, records: JobRecords, config: Config, source: RecordSource, cluster: str = ""
) -> JobTimeline:
    """Build the timeline from the stored records, else from Slurm's record. SlurmwrapError if neither has the job.

    `cluster`: that of the job; "": this host's.
    """
    task = find_task_address(address, records, source)
    timeline = build_timeline(
        *(task, records.submissions, records.preruns, records.attempts, records.actions, records.delays),
        findings=records.findings,
    )
    if timeline.empty:
        whose = None if source.site or source.uid == 0 else source.uid
        timeline = replace(timeline, attempts=find_unrecorded_runs(address, config, os.environ, whose, cluster))
        if timeline.attempts:
            _print_note("no record of this job exists; what follows is Slurm's record")
    if timeline.empty:
        of_cluster = f" of cluster {cluster}" if cluster else ""
        raise SlurmwrapError(
            f"nothing is known of job {address}{of_cluster}",
            hint="'slurmwrap history' lists the jobs with a record. Slurm's record: scontrol show job " + address,
        )
    belongs = {run.incident for run in timeline.attempts if run.incident}
    mine = tuple(one for one in records.incidents if one.incident_id in belongs)
    curves = find_loss_curves(timeline.attempts, records.curves, source)
    timeline = replace(timeline, incidents=mine, curves=curves, lines=_read_source_lines(timeline, source.uid))
    asked = timeline.submission
    if asked is not None and asked.share and asked.uid == source.uid:
        timeline = replace(timeline, shared=describe_shared_run(read_shared_run(asked.share), time.time()))
    return add_members(timeline, address, source, config)


def _find_last_failure(source: RecordSource, config: Config, cluster: str = "") -> tuple[str, str]:
    """Return (address, cluster) of the last failed job; two empty strings if none failed."""
    clusters = (cluster,) if cluster else ()
    found = find_last_failure_records(source, config, time.time() - LOOK_BACK_S, clusters)
    print_notes(found.notes)
    return find_last_failure(tuple(found.runs), found.stopped) or ("", "")


def _add_slurm_state(timeline: JobTimeline, source: RecordSource, config: Config, cluster: str) -> JobTimeline:
    """Add Slurm's present state and reason, for a job that has not ended. `cluster`: by -M; "": it was not given."""
    last = timeline.attempts[-1] if timeline.attempts else None
    # A requeued run has ended, but the job waits for its next run.
    ended = last is not None and last.state not in ("", REQUEUED)
    if ended or list_tasks(timeline) or timeline.empty:
        return timeline
    if timeline.preruns and timeline.preruns[-1].verdict.outcome.value == "fail":
        return timeline
    if not cluster and not source.site and find_local_cluster(config) not in ("", timeline.cluster):
        return timeline
    try:
        slurm = open_cluster(cluster, config, timeout_s=_SLURM_S)
        # Only the name proves that the answer is of this cluster.
        if cluster and slurm.cluster_name() != cluster:
            raise SlurmError(f"cluster {cluster} does not answer here")
        job = slurm.job(timeline.address)
        if job is not None and (source.site or source.uid in (0, job.uid)):
            order = describe_queue_class(job, timeline.submission, config, time.time())
            return replace(timeline, slurm_says=_format_slurm_state(job), queue_order=order)
    except SlurmError:
        if cluster:
            _print_note(f"the Slurm of cluster {cluster} does not answer here: the job's present state is unknown")
    return timeline


def _format_slurm_state(job: JobRecord) -> str:
    """Return state and reason as shown to the user: "PENDING (Priority)", and a time limit that holds until it starts.

    The Comment that says so may be its user's own, so it is only shown.
    """
    if job.reason == "BeginTime" and job.pending and job.eligible_time is not None:
        return f"PENDING (BeginTime, not before {moment(float(job.eligible_time), terminal.get_local_zone())})"
    state = f"{job.state} ({job.reason})" if job.reason not in ("", "None") else job.state
    limit = job.pending and job.comment.startswith(LIMIT_COMMENT)
    return f"{state}, {job.comment.removeprefix(COMMENT_PREFIX)}" if limit else state


def _read_source_lines(timeline: JobTimeline, uid: int) -> Mapping[tuple[str, int], str]:
    """Return the source lines that the pre-run's findings name, by (file, line).

    Files are read only for the job's owner, and only if they were not changed since the submission.
    """
    asked = timeline.submission
    if asked is None or asked.uid != uid:
        return {}
    named = {(finding.file, finding.line) for record in timeline.preruns for finding in record.verdict.findings}
    found = {where: _read_line(Path(asked.work_dir) / where[0], where[1], asked.at) for where in named if all(where)}
    return {where: line for where, line in found.items() if line}


def _read_line(path: Path, number: int, before: float) -> str:
    with suppress(OSError, ValueError):
        status = path.stat()
        if path.is_file() and status.st_size <= _FILE_CAP and status.st_mtime <= before:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return lines[number - 1] if 0 < number <= len(lines) else ""
    return ""


def timeline_to_json(timeline: JobTimeline) -> dict[str, object]:
    """Convert a timeline to plain values for JSON."""
    plain: dict[str, object] = {**to_json_dict(replace(timeline, lines={})), "cluster": timeline.cluster}
    plain["lines"] = [{"file": file, "line": line, "text": text} for (file, line), text in timeline.lines.items()]
    return plain


def print_record_notes(records: JobRecords) -> None:
    """Print on stderr which records could not be read."""
    print_notes(records.notes)


def print_notes(notes: Iterable[str]) -> None:
    """Print each note on stderr."""
    for one in notes:
        _print_note(one)


def _print_note(text: str) -> None:
    print(f"slurmwrap: {text}", file=sys.stderr)
