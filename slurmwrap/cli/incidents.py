"""`slurmwrap incidents`: list causes that made several jobs fail at once, show one, and close it.

Root and SlurmUser see all incidents; other users see what is published about the open ones.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.config.load_config import load
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document
from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_run import Incident, JobRun
from slurmwrap.policy.run_filter import RunFilter
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import fold_jobs
from slurmwrap.store import list_queries
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import read_published
from slurmwrap.store.serialize import to_json_dict

# Number of characters of an id that are shown, and that are enough to name it.
_ID_CHARS = 6

app = typer.Typer(
    no_args_is_help=True,
    help="""Infrastructure causes that struck several jobs within minutes (docs/incidents.md).

    \b
    Examples:
      slurmwrap incidents list --open
      slurmwrap incidents list --since 30d --category storage_io
      slurmwrap incidents show 3fa4c1
      slurmwrap incidents close 3fa4c1 --note "file system is back"
    """,
)
Which = Annotated[str, typer.Argument(metavar="INCIDENT|last", help="The first characters of its id, or 'last'.")]


@app.command("list")
def list_incidents(
    since: list_options.Since = "7d",
    until: list_options.Until = "",
    category: list_options.Category = "",
    user: list_options.User = "",
    node: list_options.Node = "",
    still_open: Annotated[bool, typer.Option("--open", help="Only incidents that are not over.")] = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List incidents, newest first."""
    wanted = list_options.make_run_filter(category=category, user=user, node=node, since=since, until=until)
    source = _get_record_source()
    if not source.site:
        rows = _list_published(source, wanted)
        list_options.print_list("incidents", rows, _format_published_table(rows), as_json=as_json)
        return
    found = [one for one in _list_incidents(source, wanted.since) if _matches(one, wanted, still_open)]
    shown, more = list_options.cut_rows(found, limit, everything)
    list_options.print_list(
        "incidents", [_incident_to_json_dict(one) for one in shown], _format_table(shown), as_json=as_json, more=more
    )


@app.command()
def show(which: Which, as_json: list_options.AsJson = False) -> None:
    """Show one incident: what its failures have in common, its jobs, users and nodes, and when retries start."""
    source = _get_site_source()
    one = _find_incident(which, _list_incidents(source, None))
    with Database.open(source.database, readonly=True) as database:
        runs = list_queries.find_runs_of_incident(database, one.incident_id)
    if as_json:
        typer.echo(
            format_json_document(
                "incident", {**_incident_to_json_dict(one), "runs": [to_json_dict(run) for run in runs]}
            )
        )
        return
    typer.echo(_format_incident(one, runs))


@app.command(short_help="Mark an incident as over.")
def close(which: Which, note: list_options.Note = "") -> None:
    """Mark an incident as over: later failures are diagnosed individually, and new retries are not delayed.

    Retries that were granted keep their time. Nothing is deleted; who closed it is stored. For root and SlurmUser.
    """
    source = _get_site_source()
    one = _find_incident(which, _list_incidents(source, None))
    if one.over_at is not None:
        raise UsageError(
            f"incident {one.incident_id[:_ID_CHARS]} is over since {_format_moment(one.over_at)}", exit_code=1
        )
    with Database.open(source.database) as database:
        database.save_incident(
            replace(one, over_at=time.time(), closed_by=list_options.get_user_name_of_caller(), note=note)
        )
    typer.echo(f"{one.incident_id[:_ID_CHARS]}: closed")
    typer.echo("retries and gsub see it after the next pass of 'slurmwrap reconcile'", err=True)


# --- what is known -------------------------------------------------------------------------------------------------


def _get_record_source() -> RecordSource:
    return find_record_source(load(os.environ), os.environ, os.geteuid())


def _get_site_source() -> RecordSource:
    source = _get_record_source()
    if not source.site:
        raise RefusedError(
            "incidents are the site's: only root and SlurmUser see them in full, where site.state_dir is configured",
            hint="'slurmwrap incidents list' shows what is published of those that are open",
        )
    return source


def _list_incidents(source: RecordSource, since: float | None) -> list[Incident]:
    with Database.open(source.database, readonly=True) as database:
        found = database.incidents(since=since)
    return sorted(found, key=lambda one: (one.over_at is not None, -one.began))


def _matches(incident: Incident, run_filter: RunFilter, still_open: bool) -> bool:
    return (
        (not still_open or incident.over_at is None)
        and (not run_filter.categories or incident.category in run_filter.categories)
        and (run_filter.until is None or incident.began < run_filter.until)
        and (not run_filter.nodes or bool(set(run_filter.nodes) & set(incident.nodes)))
        and (not run_filter.users or any(list_options.user_name(uid) in run_filter.users for uid in incident.uids))
    )


def _find_incident(which: str, known: list[Incident]) -> Incident:
    if which == "last" and known:
        return max(known, key=lambda one: one.began)
    found = [one for one in known if which and one.incident_id.startswith(which)]
    if len(found) == 1:
        return found[0]
    problem = f"matches {len(found)} ids" if found else "is not a known incident"
    raise UsageError(
        f"'{text_format.fit(which, 60)}' {problem}", hint="slurmwrap incidents list --since 400d", exit_code=1
    )


def _list_published(source: RecordSource, run_filter: RunFilter) -> list[dict[str, Any]]:
    published = read_published(source.published, source.trusted) if source.published else None
    found = [
        one
        for one in (published.incidents if published else ())
        if not run_filter.categories or one.category in run_filter.categories
    ]
    return [
        {"id": "", "category": one.category, "scope": one.scope, "began": one.since, "over_at": None,
         "jobs": one.jobs, "users": one.users}
        for one in found
    ]  # fmt: skip


# --- shown ---------------------------------------------------------------------------------------------------------

_HEAD = ("id", "root cause", "~scope", "began", "over", ">jobs", ">users", ">nodes")


def _format_table(found: Any) -> str:
    if not found:
        return "No incident is known of this time."
    rows = [
        [
            one.incident_id[:_ID_CHARS],
            one.category,
            one.scope,
            _format_moment(one.began)[5:],
            _format_moment(one.over_at)[5:] if one.over_at is not None else "open" if one.confirmed else "unconfirmed",
            str(len(one.jobs)),
            str(one.users),
            str(len(one.nodes)),
        ]
        for one in found
    ]
    return text_format.table(_HEAD, rows, indent=0, columns=terminal.columns())


def _format_published_table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "No open incident is published."
    head = ("root cause", "~scope", "since", ">jobs", ">users")
    cells = [[r["category"], r["scope"], _format_moment(r["began"])[5:], str(r["jobs"]), str(r["users"])] for r in rows]
    return text_format.table(head, cells, indent=0, columns=terminal.columns())


def _format_incident(incident: Incident, runs: tuple[JobRun, ...]) -> str:
    paint, columns = terminal.choose_painter(), terminal.columns()
    over = (
        f"over since {_format_moment(incident.over_at)}"
        if incident.over_at is not None
        else f"open, at least until {_format_moment(incident.ends)}"
    )
    users = ", ".join(text_format.visible(list_options.user_name(uid)) for uid in incident.uids)
    facts = [
        ("scope", incident.scope),
        ("began", f"{_format_moment(incident.began)}; {over}"),
        ("jobs", fold_jobs(map(str, incident.jobs))),
        ("users", users),
        ("nodes", fold(text_format.in_order(incident.nodes)) if incident.nodes else "none"),
        ("evidence", incident.doubt or f"kernel, NVML, Slurm or hooks report it of {fold(incident.proof)}"),
        ("retries", f"start within {text_format.duration(incident.spread_s)} after its end; none is counted"),
    ]
    if incident.closed_by:
        facts.append(("closed", f"by {incident.closed_by}{': ' + incident.note if incident.note else ''}"))
    lines = [paint(f"Incident {incident.incident_id[:_ID_CHARS]} {text_format.visible(incident.category)}", "bold")]
    lines += [
        text_format.wrapped(f"{name:<8} {value}", indent="  ", hanging=" " * 11, columns=columns)
        for name, value in facts
    ]
    evidence = next((c for run in runs if run.diagnosis for c in run.diagnosis.evidence if c.role == "root"), None)
    if evidence is not None:
        cited = f"e.g.     {evidence.source}:{evidence.line}: {evidence.text}"
        lines.append(text_format.wrapped(cited, indent="  ", hanging=" " * 11, columns=columns))
    if runs:
        lines.append(f"  more     slurmwrap why {runs[0].address or runs[0].attempt.job_id}")
    if incident.over_at is None:
        lines.append(f"  close    slurmwrap incidents close {incident.incident_id[:_ID_CHARS]} --note WHY")
    return "\n".join(lines)


def _format_moment(at: float) -> str:
    return text_format.moment(at, terminal.get_local_zone())


def _incident_to_json_dict(incident: Incident) -> dict[str, Any]:
    plain = to_json_dict(incident)
    return {"id": plain.pop("incident_id"), **plain}
