"""`slurmwrap history`: one line per run. Flags in, one table out."""

from __future__ import annotations

import json
import os
import time
from datetime import tzinfo
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.known import Known, of_period, place_of
from slurmwrap.cli.why import note
from slurmwrap.config import load
from slurmwrap.prerun.verdict import Outcome
from slurmwrap.report import words
from slurmwrap.report.story import failed, never_ran, stopped_jobs
from slurmwrap.retry.attempt import AttemptRecord, PrerunRecord
from slurmwrap.store.plain import to_plain

HEAD = ("job", "~name", "~user", ">GPUs", "ended", ">h:min", "result")


def history(
    since: Annotated[str, typer.Option(help="24h, 7d, or a date.")] = "7d",
    user: Annotated[str, typer.Option(help="Only this user's runs.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List runs and what they ended of.

    Yours, or everyone's for root and SlurmUser.

    \b
    Examples:
      slurmwrap history
      slurmwrap history --since 24h --user ada
      slurmwrap history --json | jq '.runs[] | select(.decision == "stop")'
    """
    start = terminal.since(since, time.time())
    known = of_period(place_of(load(os.environ), os.environ, os.geteuid()), start)
    note(known)
    trials = {(s.cluster, s.prerun_job_id) for s in known.submissions} | {
        (p.cluster, p.prerun_job_id) for p in known.preruns
    }
    runs = [run for run in known.attempts if _within(run, start) and user in ("", run.user)]
    ended_early = stopped_jobs(known.preruns)
    runs = [r for r in runs if (r.attempt.cluster, r.attempt.job_id) not in trials and not never_ran(r, ended_early)]
    uids = {run.uid for run in runs} | {s.uid for s in known.submissions if s.user == user}
    stopped = [p for p in known.preruns if p.at >= start and _stopped(p) and (not user or p.uid in uids)]
    if as_json:
        typer.echo(
            json.dumps({"runs": [to_plain(r) for r in runs], "stopped": [to_plain(p) for p in stopped]}, indent=2)
        )
        return
    typer.echo(table(known, runs, stopped, terminal.local_zone()))


def _within(run: AttemptRecord, start: float) -> bool:
    return run.end_time is None or run.end_time >= start


def _stopped(record: PrerunRecord) -> bool:
    return record.verdict.outcome is Outcome.FAIL


def table(known: Known, runs: list[AttemptRecord], stopped: list[PrerunRecord], zone: tzinfo | None) -> str:
    """Oldest first; runs that differ in nothing but their array task share a line. "pre-run": it never started."""
    names = {(s.cluster, s.job_id): (s.name, s.user) for s in known.submissions}
    lines = [(_time(run), _row(run, zone)) for run in runs]
    lines += [(p.at, _stopped_row(p, names.get((p.cluster, p.job_id or 0), ("", "")), zone)) for p in stopped]
    rows = _folded([row for _, row in sorted(lines, key=lambda line: line[0])])
    if not rows:
        return "No run is known of this time."
    users = {row[2] for row in rows}
    keep = [i for i, name in enumerate(HEAD) if name != "~user" or len(users) > 1]
    return words.table([HEAD[i] for i in keep], [[row[i] for i in keep] for row in rows], indent=0, columns=words.WIDTH)


def _time(run: AttemptRecord) -> float:
    return float(run.end_time or run.start_time or run.attempt.submit_time)


def _row(run: AttemptRecord, zone: tzinfo | None) -> list[str]:
    return [
        run.address or str(run.attempt.job_id),
        run.name,
        run.user,
        str(run.gpus),
        words.moment(run.end_time, zone)[5:] if run.end_time else "",
        _hours(run.run_s) if run.start_time else "",
        _result(run),
    ]


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _result(run: AttemptRecord) -> str:
    """The category of a failure; Slurm's state of anything else."""
    if failed(run) and run.diagnosis:
        return run.diagnosis.category
    return run.state.lower().replace("_", " ") or "not ended"


def _stopped_row(record: PrerunRecord, known_as: tuple[str, str], zone: tzinfo | None) -> list[str]:
    name, user = known_as
    job = str(record.job_id or record.prerun_job_id)
    ended = words.moment(record.at, zone)[5:]
    return [job, name, user, str(record.gpus), ended, "pre-run", record.verdict.category or "failed"]


def _folded(rows: list[list[str]]) -> list[list[str]]:
    """Neighbours of one array that are alike but for the task become one line: "77_0…77_31 (32)"."""
    groups: list[list[list[str]]] = []
    for row in rows:
        before = groups[-1][0] if groups else None
        if before and "_" in row[0] and row[0].split("_")[0] == before[0].split("_")[0] and _alike(row, before):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_one(group) for group in groups]


def _alike(row: list[str], other: list[str]) -> bool:
    return [*row[1:4], row[6]] == [*other[1:4], other[6]]


def _one(group: list[list[str]]) -> list[str]:
    if len(group) == 1:
        return group[0]
    return [f"{group[0][0]}…{group[-1][0].split('_')[1]} ({len(group)})", *group[-1][1:]]
