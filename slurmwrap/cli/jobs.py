"""`slurmwrap jobs`: list and show everything that is stored about jobs, and clear a job's retry ledger.

Root and SlurmUser see and clear the records of the site's reconciler. Other users see their own jobs; they can clear
records only where no site is configured and their own reconciler keeps them.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.cli.run_selection import Jobs, find_jobs
from slurmwrap.cli.slurm_lookup import find_records_of_cluster, resolve_cluster, resolve_clusters
from slurmwrap.cli.why import (
    build_job_timeline,
    check_job_id,
    make_job_budget,
    print_notes,
    print_record_notes,
    timeline_to_json,
)
from slurmwrap.config.load_config import load
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.fast_dataclasses import asdict, replace
from slurmwrap.json_output import format_json_document
from slurmwrap.model.job_run import JobRun, LedgerReset
from slurmwrap.report import text_format
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.next_step import find_next_step
from slurmwrap.report.job_report.timeline import build_timeline, list_tasks
from slurmwrap.report.job_rows import describe_stored_records, format_job_table, list_fields
from slurmwrap.report.text_format import TextStyle
from slurmwrap.store.database import Database
from slurmwrap.store.serialize import to_json_dict

# Number of jobs that are read per line of the table, because the tasks of an array are folded into one line.
_PER_LINE = 4
# Rules whose actions run a job again.
_RETRIES = ("retry", "retry_elsewhere", "resize")

app = typer.Typer(
    no_args_is_help=True,
    help="""What is kept of jobs: runs, decisions, what is still to be done, and retries used and left.

    \b
    Examples:
      slurmwrap jobs list --failed
      slurmwrap jobs list --user ada --category nccl_error --since 30d
      slurmwrap jobs list --to-do             decisions that are not all done yet
      slurmwrap jobs show 81                    all of it, with the retry ledger
      slurmwrap jobs clear 81 --note "driver fixed"
    """,
)
Job = Annotated[str, typer.Argument(metavar="JOBID", help="81, or 77_2 for an array task.")]


@app.command("list")
def list_jobs(
    since: list_options.Since = "7d",
    until: list_options.Until = "",
    failed: list_options.Failed = False,
    category: list_options.Category = "",
    state: list_options.State = "",
    decision: list_options.Decision = "",
    name: list_options.Name = "",
    user: list_options.User = "",
    account: list_options.Account = "",
    partition: list_options.Partition = "",
    node: list_options.Node = "",
    clusters: list_options.Clusters = "",
    to_do: Annotated[bool, typer.Option("--to-do", help="Only jobs with actions still to be done.")] = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List jobs, newest first: how often each ran, how it stands, and what is still to be done.

    A job is listed when one of its runs is meant. Jobs of which no run is known yet wait, or never began.
    """
    config, source = load(os.environ), _get_record_source()
    wanted = list_options.make_run_filter(
        clusters=resolve_clusters(clusters, source, config), user=user, account=account, partition=partition, name=name,
        category=category, decision=decision,
        state=state, node=node, since=since, until=until, failed=failed,
    )  # fmt: skip
    read = None if everything else limit if as_json else limit * _PER_LINE
    with list_options.garbage_collection_paused():
        found = find_jobs(source, config, wanted, read, to_do=to_do)
        print_notes(found.notes)
        if as_json:
            more = max(0, found.in_all - len(found.rows))
            list_options.print_list("jobs", map(list_fields, found.rows), "", as_json=True, more=more)
            return
        text, shown = _format_table(found, None if everything else limit)
        list_options.print_list("jobs", (), text, as_json=False, more=max(0, found.in_all - shown))


def _format_table(found: Jobs, limit: int | None) -> tuple[str, int]:
    if not found.rows:
        return "No job is known of this time.", 0
    return format_job_table(found.rows, limit, zone=terminal.get_local_zone(), columns=terminal.columns())


@app.command(short_help="Show all that is kept of one job.")
def show(
    job: Job,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", "--all", help="Show each task of an array.")] = False,
    as_json: list_options.AsJson = False,
    given_cluster: list_options.Cluster = "",
) -> None:
    """Show all that is stored about one job: its submission with plan and changes, each run with evidence and decision,
    every intended action, the retry ledger, and what clears it. Tasks of an array that ended alike are shown once."""
    config, source = load(os.environ), _get_record_source()
    address = check_job_id(job)
    cluster = resolve_cluster(given_cluster, source, config)
    known = find_records_of_cluster(source, address, config, cluster)
    print_record_notes(known)
    timeline = build_job_timeline(address, known, config, source, cluster)
    ledger = make_job_budget(timeline, known, config)
    kept = describe_stored_records(timeline, known.actions)
    if as_json:
        content = {**timeline_to_json(timeline), "kept": kept, "next": to_json_dict(find_next_step(timeline))}
        typer.echo(format_json_document("job", {**content, "ledger": asdict(ledger) if ledger is not None else None}))
        return
    whole = verbose or not list_tasks(timeline)
    look = TextStyle(
        zone=terminal.get_local_zone(), paint=terminal.choose_painter(), columns=terminal.columns(), verbose=whole
    )
    typer.echo(
        format_job_report(timeline, look.zone, look.paint, columns=look.columns, verbose=whole, account=ledger)
        + "\n" + look.paint("KEPT", "bold") + "\n"
        + "\n".join(look.wrapped(f"{name:<13} {value}", "  ", " " * 16) for name, value in kept.items())
    )  # fmt: skip
    typer.echo(f"  {'cleared by':<13} slurmwrap jobs clear {timeline.address}")


@app.command(short_help="Give a job its retries back, and take back a retry that was decided.")
def clear(job: Job, note: list_options.Note = "", given_cluster: list_options.Cluster = "") -> None:
    """Give a job its retries back, and take back a retry that was decided and not done yet.

    What it failed of so far counts no more against its retries. Nothing is deleted: who said so, when and why is kept
    and shown. A job that Slurm holds stays held. For root and SlurmUser, and for your own jobs where no site is.
    """
    config, source, address = load(os.environ), _get_record_source(), check_job_id(job)
    if not source.site and not source.alone:
        raise RefusedError(
            "the site's reconciler keeps the ledger: only root and SlurmUser may clear it",
            hint="submit the job again: a new job has all its retries; or ask your administrator",
        )
    known = find_records_of_cluster(source, address, config, resolve_cluster(given_cluster, source, config))
    # Use the timeline's runs: `known` may hold those of another cluster's job, or an older job's, with the same id.
    runs = list(build_timeline(address, known.submissions, (), known.attempts, ()).attempts)
    if not runs:
        hint = "slurmwrap jobs list --since 30d"
        raise UsageError(f"no run of job {address} is known: there is nothing to clear", hint=hint, exit_code=1)
    now, who = time.time(), list_options.get_user_name_of_caller()
    with Database.open(source.database) as database, database.transaction():
        for cluster, job_id in dict.fromkeys((run.attempt.cluster, run.attempt.job_id) for run in runs):
            database.add_reset(LedgerReset(cluster=cluster, job_id=job_id, at=now, who=who, note=note))
        given_up = [line for run in runs for line in _take_back(database, run, who, now)]
    typer.echo(
        f"{address}: {text_format.count(len(runs), 'run')} forgiven, "
        f"{text_format.count(len(given_up), 'action')} taken back"
    )
    for line in given_up:
        typer.echo(f"  not done: {line}")
    for line in _list_left_to_people(known.actions, runs, now):
        typer.echo(f"  {line}", err=True)


def _take_back(database: Database, run: JobRun, who: str, now: float) -> list[str]:
    """Give up slurmwrap's intended actions that would run the job again, and return a line for each.

    Actions that are planned but not yet stored as intended are removed from the run's plan.
    """
    taken = []
    for action in database.actions(run.attempt, unfinished=True):
        if action.mode == "act" and action.rule in _RETRIES:
            database.done(action.action_id, now, f"taken back by {who}")
            taken.append(f"{action.verb} {action.target}")
    kept = tuple(ruled for ruled in run.planned if ruled.rule not in _RETRIES)
    if kept != run.planned:
        database.save_attempt(replace(run, planned=kept, retry_at=None))
        taken += [f"{r.action.verb.value} {r.action.target}" for r in run.planned if r.rule in _RETRIES and not taken]
    return taken


def _list_left_to_people(actions: Any, runs: list[JobRun], now: float) -> list[str]:
    """Return a line for each request that Slurm has already received, and that only a person can take back."""
    lines = []
    for run in runs:
        mine = [a for a in actions if a.attempt == run.attempt and a.mode == "act"]
        held = any(a.verb == "requeuehold" and a.done_at is not None and not a.error for a in mine)
        free = any(a.verb == "release" and a.done_at is not None and not a.error for a in mine)
        if held and not free:
            lines.append(f"Slurm holds it: scontrol release {run.address}, or scancel {run.address}")
        elif run.retry_at is not None and run.retry_at > now:
            lines.append(f"its next run is due already: scancel {run.address} if it shall not start")
    return lines


def _get_record_source() -> RecordSource:
    return find_record_source(load(os.environ), os.environ, os.geteuid())
