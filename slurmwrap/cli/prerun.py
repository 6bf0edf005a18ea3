"""`slurmwrap prerun`: list, show and clear the user's own pre-runs, from the files in their directories."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import find_record_source, read_job_records
from slurmwrap.config.load_config import find_user_state_dir, load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.gsub.follow_prerun import (
    LIVE,
    describe,
    follow,
    read_progress,
    read_verdict,
    read_wanted_steps,
    take_prerun_snapshot,
)
from slurmwrap.gsub.input_check import describe_input_check
from slurmwrap.gsub.prerun_sharing import ATTACHED, GONE
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.gsub.verdict_output import verdict_to_json_dict
from slurmwrap.json_output import format_json_document
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.policy.run_filter import RunFilter
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import group_alike, label
from slurmwrap.report.job_report.cited_lines import format_citations
from slurmwrap.report.job_report.job_report_text import Paint
from slurmwrap.report.text_format import TextStyle
from slurmwrap.store.prerun_registry import JOB, PrerunRegistry, read_number
from slurmwrap.store.user_state_files import UserState


# Reading pre-runs: from the files of their directories, and from Slurm for those without a verdict.
@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunRow:
    """One pre-run and its state.

    `state`: "pass", "fail" or "inconclusive"; Slurm's state in lower case until it ends; "attached" while its job
    waits for the pre-run of another job; "lost" if it, or the job that waited for it, ended without a verdict;
    "unknown" if Slurm cannot be asked.
    """

    directory: Path
    spec: TrialSpec
    # When it was submitted, Unix seconds.
    at: float
    state: str
    verdict: Verdict | None = None
    # The pre-run's job id; for an attached row, that of the pre-run that it waits for.
    prerun_job: int | None = None
    attached: bool = False

    @property
    def real_job(self) -> int | None:
        """Return the id of the job that waits, or waited, for it; None for --prerun=wait and only."""
        return int(self.spec.real_job) if self.spec.real_job else None


def rows_of(context: SubmitContext) -> tuple[PrerunRow, ...]:
    """Return every pre-run of which files exist, newest first."""
    flights = context.flights or PrerunRegistry(find_user_state_dir(os.environ))
    found = [row for path in flights.trials() if (row := _read_row(path))]
    if any(row.state == "" for row in found):
        get_slurm_state = _make_state_lookup(context)
        found = [_set_state(row, get_slurm_state) for row in found]
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))


def _read_row(directory: Path) -> PrerunRow | None:
    """Read one pre-run's files; `state` is "" if Slurm has to be asked. None for an incomplete directory."""
    try:
        spec = spec_from_json(json.loads((directory / "spec.json").read_bytes()))
        at = (directory / "spec.json").stat().st_mtime
    except (OSError, ValueError, TypeError):
        # gsub was killed while it wrote the file.
        return None
    verdict = read_verdict(directory)
    shared_prerun = read_number(directory / ATTACHED)
    state = verdict.outcome.value if verdict else "lost" if (directory / GONE).exists() else ""
    return PrerunRow(
        directory=directory,
        spec=spec,
        at=at,
        state=state,
        verdict=verdict,
        prerun_job=shared_prerun if shared_prerun is not None else read_number(directory / JOB),
        attached=shared_prerun is not None,
    )


def _make_state_lookup(context: SubmitContext) -> Callable[[int | None, str], str]:
    """Ask Slurm once for the user's jobs of this cluster; return a function from (job id, cluster) to the job's state.

    The state is "" for a job that Slurm does not know, and "UNKNOWN" for another cluster or if Slurm does not answer.
    """
    try:
        records, here = context.slurm.jobs(context.user), context.cluster
    except SlurmError as error:
        context.say(f"how they stand now is not known: {error}")
        return lambda job, cluster: "UNKNOWN"
    tasks = {record.array_job_id: record.state for record in records if record.array_job_id is not None}
    waiting = {record.array_job_id: record.state for record in records if record.array_job_id and record.pending}
    # An array with a pending task counts as pending.
    known = {**tasks, **{record.job_id: record.state for record in records}, **waiting}
    return lambda job, cluster: known.get(job or -1, "") if cluster in ("", here) else "UNKNOWN"


def _set_state(row: PrerunRow, get_slurm_state: Callable[[int | None, str], str]) -> PrerunRow:
    """Set the state of a pre-run without a verdict. An attached job is lost when it or that pre-run is gone."""
    if row.state:
        return row
    state, cluster = get_slurm_state(row.prerun_job, row.spec.cluster), row.spec.cluster
    if state == "UNKNOWN":
        return replace(row, state="unknown")
    if not row.attached:
        return replace(row, state=state.lower() if state in LIVE else "lost")
    # No job id yet: the pre-run to which it is attached is being submitted.
    submitted = state in LIVE or not row.prerun_job
    return replace(
        row, state="attached" if submitted and get_slurm_state(row.real_job, cluster) == "PENDING" else "lost"
    )


# Output: the table of `prerun list`, the page of `prerun show`, and their JSON.
# Number of lines of the script's output that are shown.
_TAIL_LINES = 12


def format_preruns(
    rows: Sequence[PrerunRow], now: float, limit: int | None = None, *, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """Return the table, and how many pre-runs are left out. Pre-runs of one script that ended alike share a line."""
    if not rows:
        return "No pre-run.", 0
    head = (">job", ">pre-run", "~script", "state", ">steps", ">took", ">age", "~reason")
    groups = group_alike(rows, _make_fold_key)
    lines = [_list_cells(group, now) for group in groups[:limit]]
    note = "\n* waited for the pre-run of an earlier job" if any(row.attached for row in rows) else ""
    left = sum(map(len, groups[len(lines) :]))
    return text_format.table(head, lines, indent=0, columns=columns) + note, left


def _make_fold_key(row: PrerunRow) -> tuple[object, ...]:
    """Return what pre-runs on one line have in common: script, state and verdict."""
    verdict = (row.verdict.category, row.verdict.reason) if row.verdict else ()
    own = () if row.verdict or row.attached else (row.directory,)
    return (row.spec.script_name, row.state, verdict, row.attached, *own)


def _list_cells(group: Sequence[PrerunRow], now: float) -> list[str]:
    row = group[0]
    steps = [one.verdict.steps for one in group if one.verdict]
    took = [one.verdict.seconds for one in group if one.verdict]
    jobs = [str(one.real_job) for one in group if one.real_job]
    return [
        label(jobs) if jobs else "-",
        f"{row.prerun_job or '-'}{'*' * row.attached}",
        Path(row.spec.script_name).name,
        row.state,
        str(max(steps)) if steps else "",
        text_format.duration(max(took)) if took else "",
        text_format.duration(max(0.0, now - row.at)),
        row.verdict.reason if row.verdict else "",
    ]


def format_prerun(row: PrerunRow, changes: list[Mapping[str, Any]], paint: Paint, now: float) -> str:
    """Return everything about one pre-run; slurmwrap's own text is at most 80 columns wide."""
    head = f"PRE-RUN {row.prerun_job or ''} of {text_format.visible(row.spec.script_name)}"
    if row.real_job is not None:
        head += f", for job {row.real_job} ({text_format.count(row.spec.gpus, 'GPU')})"
    style = {"pass": "green", "fail": "red"}.get(row.state, "yellow")
    lines = [
        paint(head, "bold"),
        "  " + paint(row.state, style) + f", submitted {text_format.duration(now - row.at)} ago",
    ]
    if row.attached:
        lines.append("  it waited for the pre-run of an earlier job of the same script and code")
    if row.verdict is not None:
        lines += _format_verdict(row.verdict)
    elif row.state in ("running", "completing"):
        lines.append(
            "  "
            + describe(
                take_prerun_snapshot(
                    row.state.upper(), "", 0.0, read_progress(row.directory), read_wanted_steps(row.directory)
                )
            )
        )
    if inputs := describe_input_check(row.directory):
        lines += ["", paint("INPUT FILES", "bold")]
        lines += [text_format.wrapped(text_format.visible(line), indent="  ", hanging="    ") for line in inputs]
    if changes:
        lines += ["", paint("WHAT IT DID", "bold")]
        lines += [text_format.wrapped(_format_change(change), indent="  ", hanging="    ") for change in changes]
    if output := read_output_tail(row):
        lines += ["", paint("ITS OUTPUT ENDS", "bold"), *(f"  | {text_format.visible(line)}" for line in output)]
    lines += ["", f"  files  {text_format.visible(str(row.directory))}"]
    if row.verdict is None and row.prerun_job is not None and row.state not in ("lost", "unknown"):
        lines.append(f"  follow  slurmwrap prerun show {row.real_job or row.prerun_job} --follow")
    return "\n".join(lines)


def _format_verdict(verdict: Verdict) -> list[str]:
    steps = f", {text_format.count(verdict.steps, 'step')}" if verdict.steps else ""
    category = f"{verdict.category}: " if verdict.category else ""
    lines = [
        f"  after {text_format.duration(verdict.seconds)}{steps}, decided by layer {verdict.layer}",
        text_format.wrapped(f"{category}{verdict.reason}", indent="  ", hanging="    "),
    ]
    for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
        lines.append(text_format.wrapped(sentence, indent="  ", hanging="    "))
    for finding in verdict.findings:
        place = f"{finding.file}:{finding.line} " if finding.line else f"{finding.file} ".lstrip()
        fix = f" ({finding.fix})" if finding.fix else ""
        text = f"{finding.severity.value}: {place}{finding.message}{fix}"
        lines.append(text_format.wrapped(text, indent="  ", hanging="    "))
    return [*lines, *format_citations(verdict.evidence, TextStyle(columns=terminal.columns()))]


def _format_change(change: Mapping[str, Any]) -> str:
    asked = f"{change.get('option')}={change.get('new')}" if change.get("option") else ""
    refused = f"; Slurm refused: {change['error']}" if change.get("error") else ""
    return f"{change.get('verb')} {change.get('target')} {asked}".rstrip() + f" ({change.get('reason')}){refused}"


def find_changes(row: PrerunRow) -> list[Mapping[str, Any]]:
    """Return the changes that Slurm was asked for the waiting job; [] if they are not known any more."""
    try:
        known = read_job_records(
            find_record_source(load(os.environ), os.environ, os.geteuid()), str(row.real_job or row.prerun_job)
        )
    except SlurmwrapError:
        return []
    mine = [p for p in known.preruns if p.job_id == row.real_job and p.changes]
    return list(max(mine, key=lambda p: p.at).changes) if mine else []


def read_output_tail(row: PrerunRow) -> list[str]:
    """Return the last lines of the script's output."""
    from slurmwrap.prerun.trial.supervisor import read_tail

    if not Path(row.spec.output).is_file():
        return []
    return read_tail(row.spec.output).text.replace("\r", "\n").rstrip().splitlines()[-_TAIL_LINES:]


def prerun_row_to_json(row: PrerunRow) -> dict[str, Any]:
    about = {
        "job_id": row.real_job,
        "prerun_job_id": row.prerun_job,
        "attached": row.attached,
        "state": row.state,
        "script": row.spec.script_name,
        "args": list(row.spec.args),
        "mode": row.spec.mode,
        "gpus": row.spec.gpus,
        "fingerprint": row.spec.fingerprint,
        "at": row.at,
        "directory": str(row.directory),
        "progress": read_progress(row.directory) or None,
    }
    return {**about, **(verdict_to_json_dict(row.verdict) if row.verdict else {"verdict": None})}


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
    running: Annotated[bool, typer.Option("--running", help="Only those that have not ended.")] = False,
    state: Annotated[
        str,
        typer.Option("--state", "-t", metavar="STATE", help="Only pass, fail, inconclusive, lost, pending, running."),
    ] = "",
    category: list_options.Category = "",
    name: Annotated[str, typer.Option("--name", metavar="PATTERN", help="Only scripts of this name: 'sweep*'.")] = "",
    job: Annotated[int, typer.Option("--job", metavar="JOBID", help="Only the pre-run of this job.")] = 0,
    passed: Annotated[
        bool, typer.Option("--passed", help="List fingerprints that need no pre-run any more instead.")
    ] = False,
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

    context = _open_submit_context()
    from slurmwrap.gsub.submit import release_orphans

    release_orphans(context)
    states = tuple(one.lower() for one in list_wanted_states(state, failed))
    rows = [row for row in rows_of(context) if _matches(row, wanted, states)]
    rows = [row for row in rows if not running or (row.verdict is None and row.state != "lost")]
    rows = [row for row in rows if not job or job in (row.real_job, row.prerun_job)]
    if as_json:
        shown, more = list_options.cut_rows(rows, limit, everything)
        list_options.print_list("preruns", [prerun_row_to_json(row) for row in shown], "", as_json=True, more=more)
        return
    text, more = format_preruns(rows, time.time(), None if everything else limit, columns=terminal.columns())
    list_options.print_list("preruns", (), text, as_json=False, more=more)


def list_wanted_states(state: str, failed: bool) -> tuple[str, ...]:
    """Return the values of --state, with --failed as one of them."""
    return (*list_options.split_list(state), *((Outcome.FAIL.value,) if failed else ()))


def _matches(row: PrerunRow, run_filter: RunFilter, states: tuple[str, ...]) -> bool:
    script = Path(row.spec.script_name).name
    category = row.verdict.category if row.verdict else ""
    return (
        (not states or row.state in states)
        and (not run_filter.categories or category in run_filter.categories)
        and (not run_filter.names or any(fnmatchcase(script, pattern) for pattern in run_filter.names))
        and (run_filter.since is None or row.at >= run_filter.since)
        and (run_filter.until is None or row.at < run_filter.until)
    )


def _list_passed(run_filter: RunFilter, limit: int, everything: bool, as_json: bool) -> None:
    """List the fingerprints whose newest pre-run passed and was not cleared: the next submission has no pre-run."""
    state = UserState(find_user_state_dir(os.environ))
    marks = {*state.fingerprints(), *(row.spec.fingerprint for row in rows_of(_open_submit_context()))}
    records = [record for mark in marks if (record := state.passed(mark)) is not None]
    found = sorted((r for r in records if r.at >= (run_filter.since or 0.0)), key=lambda r: r.at, reverse=True)
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
    list_options.print_list("preruns_passed", rows, text, as_json=as_json, more=more)


@app.command()
def show(
    which: Annotated[
        str, typer.Argument(metavar="ID|last", help="Id of the job or its pre-run, or name of its directory.")
    ],
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Follow it until its verdict.")] = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Show one pre-run: its verdict with findings and evidence, what it changed, and the end of its output."""
    context = _open_submit_context()
    row = _find_prerun(which, rows_of(context))
    if follow_it and row.verdict is None and row.prerun_job is not None:
        follow(row.directory, row.prerun_job, context, Console.of_terminal("slurmwrap"))
        row = _find_prerun(row.directory.name, rows_of(context))
    changes = find_changes(row)
    if as_json:
        typer.echo(
            format_json_document(
                "prerun", {**prerun_row_to_json(row), "changes": changes, "output": read_output_tail(row)}
            )
        )
        return
    typer.echo(format_prerun(row, changes, terminal.choose_painter(), time.time()))


# "forget" was the name of this command before all commands of this kind were called "clear".
@app.command("forget", hidden=True)
@app.command(short_help="Forget what passed: the next submission is pre-run again.")
def clear(
    what: Annotated[
        str, typer.Argument(metavar="[JOB|FINGERPRINT]", help="Id of a job or its pre-run, or start of a fingerprint.")
    ] = "",
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Everything that passed with this script.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that ever passed.")] = False,
) -> None:
    """Forget what passed, so that the next submission is pre-run again."""
    if sum((bool(what), script is not None, everything)) != 1:
        raise UsageError("say what to forget: a job, a fingerprint, --script FILE or --all, one of them")
    state = UserState(find_user_state_dir(os.environ))
    marks = (
        frozenset({"*"})
        if everything
        else _find_fingerprints_of_script(script, state)
        if script
        else _find_fingerprints_of_id(what)
    )
    state.forget_passed(marks, time.time())
    named = "everything that passed" if everything else text_format.count(len(marks), "fingerprint")
    typer.echo(f"forgotten: {named}; the next submission is pre-run again")


# --- which ---------------------------------------------------------------------------------------------------------


def _open_submit_context() -> SubmitContext:
    # Imported here, because no other command should pay for gsub's imports.
    from slurmwrap.gsub.submit import open_submit_context

    return open_submit_context(load(os.environ), os.environ, Console.of_terminal("slurmwrap"))


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
    # A pre-run's id also names the jobs attached to it: prefer the job that submitted it.
    return next((row for row in found if not row.attached or str(row.real_job) == which), found[0])


def _find_fingerprints_of_id(what: str) -> frozenset[str]:
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
    known = read_job_records(find_record_source(load(os.environ), os.environ, os.geteuid()), what)
    marks = {p.fingerprint for p in known.preruns} | {s.fingerprint for s in known.submissions}
    rows = rows_of(_open_submit_context())
    marks |= {row.spec.fingerprint for row in rows if int(what) in (row.real_job, row.prerun_job)}
    if not marks - {""}:
        raise UsageError(f"no pre-run of job {what} is known", hint="slurmwrap prerun list shows them", exit_code=1)
    return frozenset(marks - {""})


def _find_fingerprints_of_script(script: Path, state: UserState) -> frozenset[str]:
    """Return the fingerprints of this file's present content, and of what was submitted under its path."""
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
