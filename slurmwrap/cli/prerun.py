"""`slurmwrap prerun`: the user's own pre-runs, from the files that they leave. Flags in, table or story out."""

from __future__ import annotations

import hashlib
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.prerun_page import changes_of, format_prerun, format_preruns, output_of, plain_row
from slurmwrap.cli.prerun_rows import PrerunRow, rows_of
from slurmwrap.cli.record_access import about_job, place_of
from slurmwrap.config import find_user_state_dir, load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.gsub.follow_prerun import follow
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.run_filter import RunFilter
from slurmwrap.report import text_format
from slurmwrap.store.user_state_files import UserState

app = typer.Typer(
    no_args_is_help=True,
    help="""Your pre-runs: what they found, what they do now, and what passed.

    \b
    Examples:
      slurmwrap prerun list --failed
      slurmwrap prerun list --state inconclusive --name 'sweep*'
      slurmwrap prerun list --passed            what is not run again: fingerprints
      slurmwrap prerun show last
      slurmwrap prerun show 4711 --follow       look on again after Ctrl-C
      slurmwrap prerun clear --script train.sbatch
    """,
)


@app.command("list")
def list_preruns(
    failed: list_options.Failed = False,
    running: Annotated[bool, typer.Option("--running", help="Only those that are not at their end.")] = False,
    state: Annotated[
        str,
        typer.Option("--state", "-t", metavar="STATE", help="Only pass, fail, inconclusive, lost, pending, running."),
    ] = "",
    category: list_options.Category = "",
    name: Annotated[str, typer.Option("--name", metavar="PATTERN", help="Only scripts of this name: 'sweep*'.")] = "",
    job: Annotated[int, typer.Option("--job", metavar="JOBID", help="Only that of this job.")] = 0,
    passed: Annotated[bool, typer.Option("--passed", help="What passed and is not run again instead.")] = False,
    since: list_options.Since = "14d",
    until: list_options.Until = "",
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List your pre-runs, newest first.

    Their files are kept for 14 days. Pre-runs of one script that ended alike share a line.
    """
    wanted = list_options.make_run_filter(category=category, name=name, since=since, until=until)
    if passed:
        _list_passed(wanted, limit, everything, as_json)
        return
    from slurmwrap.gsub.submit import watch_over

    desk = _open_submit_context()
    watch_over(desk)
    states = tuple(one.lower() for one in wanted_states(state, failed))
    rows = [row for row in rows_of(desk) if _is_meant(row, wanted, states)]
    rows = [row for row in rows if not running or (row.verdict is None and row.state != "lost")]
    rows = [row for row in rows if not job or job in (row.real_job, row.prerun_job)]
    if as_json:
        shown, more = list_options.cut_rows(rows, limit, everything)
        list_options.say_list("preruns", [plain_row(row) for row in shown], "", as_json=True, more=more)
        return
    text, more = format_preruns(rows, time.time(), None if everything else limit, columns=terminal.columns())
    list_options.say_list("preruns", (), text, as_json=False, more=more)


def wanted_states(state: str, failed: bool) -> tuple[str, ...]:
    """The words of --state, with --failed as one of them."""
    return (*list_options.split_list(state), *((Outcome.FAIL.value,) if failed else ()))


def _is_meant(row: PrerunRow, wanted: RunFilter, states: tuple[str, ...]) -> bool:
    script = Path(row.spec.script_name).name
    category = row.verdict.category if row.verdict else ""
    return (
        (not states or row.state in states)
        and (not wanted.categories or category in wanted.categories)
        and (not wanted.names or any(fnmatchcase(script, pattern) for pattern in wanted.names))
        and (wanted.since is None or row.at >= wanted.since)
        and (wanted.until is None or row.at < wanted.until)
    )


def _list_passed(wanted: RunFilter, limit: int, everything: bool, as_json: bool) -> None:
    """Fingerprints whose newest pre-run passed and was not cleared since: the next submission has none."""
    state = UserState(find_user_state_dir(os.environ))
    marks = {*state.fingerprints(), *(row.spec.fingerprint for row in rows_of(_open_submit_context()))}
    records = [record for mark in marks if (record := state.passed(mark)) is not None]
    found = sorted((r for r in records if r.at >= (wanted.since or 0.0)), key=lambda r: r.at, reverse=True)
    shown, more = list_options.cut_rows(found, limit, everything)
    now = time.time()
    rows = [
        {"fingerprint": one.fingerprint, "job_id": one.job_id, "prerun_job_id": one.prerun_job_id, "at": one.at}
        for one in shown
    ]
    cells = [[one.fingerprint[:16], str(one.job_id or "-"), str(one.prerun_job_id), text_format.duration(now - one.at)]
             for one in shown]  # fmt: skip
    text = (
        text_format.table(("fingerprint", ">job", ">pre-run", ">age"), cells, indent=0) if cells else "Nothing passed."
    )
    list_options.say_list("preruns_passed", rows, text, as_json=as_json, more=more)


@app.command()
def show(
    which: Annotated[str, typer.Argument(metavar="ID|last", help="Of the job, its pre-run, or its directory.")],
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Look on until its verdict.")] = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Show one pre-run: its verdict with findings and evidence, what it changed, and the end of its output."""
    desk = _open_submit_context()
    row = _find_prerun(which, rows_of(desk))
    if follow_it and row.verdict is None and row.prerun_job is not None:
        follow(row.directory, row.prerun_job, desk, Console.of_terminal("slurmwrap"))
        row = _find_prerun(row.directory.name, rows_of(desk))
    changes = changes_of(row)
    if as_json:
        typer.echo(
            list_options.format_json_document(
                "prerun", {**plain_row(row), "changes": changes, "output": output_of(row)}
            )
        )
        return
    typer.echo(format_prerun(row, changes, terminal.painter(), time.time()))


@app.command("forget", hidden=True)  # its name until there was one word for all
@app.command(short_help="Forget what passed: the next submission is pre-run again.")
def clear(
    what: Annotated[str, typer.Argument(metavar="[JOB|FINGERPRINT]", help="A job, its pre-run, or digits.")] = "",
    script: Annotated[Path | None, typer.Option(metavar="FILE", help="All that passed of this script.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that ever passed.")] = False,
) -> None:
    """Forget what passed, so that the next submission is pre-run again."""
    if sum((bool(what), script is not None, everything)) != 1:
        raise UsageError("say what to forget: a job, a fingerprint, --script FILE or --all, one of them")
    state = UserState(find_user_state_dir(os.environ))
    marks = frozenset({"*"}) if everything else _of_script(script, state) if script else _of_name(what)
    state.forget_passed(marks, time.time())
    named = "everything that passed" if everything else text_format.count(len(marks), "fingerprint")
    typer.echo(f"forgotten: {named}; the next submission is pre-run again")


# --- which ---------------------------------------------------------------------------------------------------------


def _open_submit_context() -> SubmitContext:
    from slurmwrap.gsub.submit import open_desk  # here: no other command shall pay for gsub's imports

    return open_desk(load(os.environ), os.environ, Console.of_terminal("slurmwrap"))


def _find_prerun(which: str, rows: tuple[PrerunRow, ...]) -> PrerunRow:
    if not rows:
        raise SlurmwrapError(
            "there is no pre-run of yours", hint="gsub --prerun=only SCRIPT makes one and nothing else"
        )
    if which == "last":
        return rows[0]
    found = [row for row in rows if which in (str(row.real_job), str(row.prerun_job), row.directory.name)]
    if not found:
        raise UsageError(
            f"no pre-run of yours is known as '{which}'",
            hint="slurmwrap prerun list shows them; an id is that of the job, of its pre-run, or 'last'",
            exit_code=1,
        )
    # a pre-run's id names also those that attached to it: its own comes first
    return next((row for row in found if not row.attached or str(row.real_job) == which), found[0])


def _of_name(what: str) -> frozenset[str]:
    if len(what) >= 12 and all(c in "0123456789abcdef" for c in what) and not what.isdecimal():
        marks = {
            row.spec.fingerprint for row in rows_of(_open_submit_context()) if row.spec.fingerprint.startswith(what)
        }
        if marks or len(what) == 64:
            return frozenset(marks or {what})
        raise UsageError(
            f"no fingerprint of yours starts with '{what}'", hint="slurmwrap prerun list --json shows them"
        )
    if not (what.isdecimal() and what.isascii() and len(what) < 19):
        raise UsageError(f"'{what}' is neither a job id nor a fingerprint", hint="slurmwrap prerun list shows both")
    known = about_job(place_of(load(os.environ), os.environ, os.geteuid()), what)
    marks = {p.fingerprint for p in known.preruns} | {s.fingerprint for s in known.submissions}
    rows = rows_of(_open_submit_context())
    marks |= {row.spec.fingerprint for row in rows if int(what) in (row.real_job, row.prerun_job)}
    if not marks - {""}:
        raise UsageError(f"no pre-run of job {what} is known", hint="slurmwrap prerun list shows them", exit_code=1)
    return frozenset(marks - {""})


def _of_script(script: Path, state: UserState) -> frozenset[str]:
    """Of this file as it is now, and of what was submitted under its path."""
    try:
        content = script.read_bytes()
    except OSError as error:
        raise UsageError(f"--script {script}: {error.strerror}", exit_code=1) from None
    same = state.submitted(hashlib.sha256(content).hexdigest())
    path = str(script.absolute())
    marks = {s.fingerprint for s in same}
    marks |= {row.spec.fingerprint for row in rows_of(_open_submit_context()) if row.spec.script_name == path}
    if not marks - {""}:
        raise UsageError(
            f"nothing of {script} was pre-run, as far as is known", hint="slurmwrap prerun list", exit_code=1
        )
    return frozenset(marks - {""})
