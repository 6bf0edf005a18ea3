"""`slurmwrap prerun`: the user's own pre-runs, from the files that they leave. Flags in, table or story out."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.follow import LIVE, describe, follow, read_progress, read_verdict, seen, steps_wanted
from slurmwrap.cli.known import about_job, place_of
from slurmwrap.cli.verdicts import shown
from slurmwrap.cli.voice import Voice
from slurmwrap.config import load, user_state_dir
from slurmwrap.errors import SlurmError, SlurmwrapError, UsageError
from slurmwrap.prerun.trial import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict import Outcome, Verdict
from slurmwrap.report import words
from slurmwrap.report.tell import Paint
from slurmwrap.store.inflight import JOB, Flights, number_in
from slurmwrap.store.userstate import UserState
from slurmwrap.submit import Desk
from slurmwrap.submit.attach import ATTACHED, GONE

_TAIL_LINES = 12

app = typer.Typer(
    no_args_is_help=True,
    help="""Your pre-runs: what they found, what they do now, and what passed.

    \b
    Examples:
      slurmwrap prerun list --failed
      slurmwrap prerun show last
      slurmwrap prerun show 4711 --follow       look on again after Ctrl-C
      slurmwrap prerun forget --script train.sbatch
    """,
)

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pre-run. `state`: "pass", "fail", "inconclusive"; Slurm's own in lower case while it lives; "attached" while
    it waits for another one's; "lost" when it ended without a verdict, "unknown" when Slurm cannot be asked."""

    directory: Path
    spec: TrialSpec
    at: float  # when it was submitted, Unix seconds
    state: str
    verdict: Verdict | None = None
    prerun_job: int | None = None  # of an attached one: the pre-run that it waits for
    attached: bool = False

    @property
    def real_job(self) -> int | None:
        """The job that waits, or waited, for it; None for --prerun=wait and only."""
        return int(self.spec.real_job) if self.spec.real_job else None


@app.command("list")
def list_preruns(
    failed: Annotated[bool, typer.Option("--failed", help="Only those that found a failure.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Only those that are not at their end.")] = False,
    since: Annotated[str, typer.Option(help="24h, 7d, or a date.")] = "14d",
    as_json: AsJson = False,
) -> None:
    """List your pre-runs, newest first.

    Their files are kept for 14 days.
    """
    start = terminal.since(since, time.time())
    from slurmwrap.cli.flow import watch_over

    desk = _desk()
    watch_over(desk)
    rows = [row for row in _rows(desk) if row.at >= start]
    rows = [row for row in rows if not failed or row.state == Outcome.FAIL.value]
    rows = [row for row in rows if not running or (row.verdict is None and row.state != "lost")]
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows], indent=2))
    else:
        typer.echo(table(rows, time.time()))


@app.command()
def show(
    which: Annotated[str, typer.Argument(metavar="ID|last", help="Of the job, its pre-run, or its directory.")],
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Look on until its verdict.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one pre-run: its verdict with findings and evidence, what it changed, and the end of its output."""
    desk = _desk()
    row = _one(which, _rows(desk))
    if follow_it and row.verdict is None and row.prerun_job is not None:
        follow(row.directory, row.prerun_job, desk, Voice.of_terminal("slurmwrap"))
        row = _one(row.directory.name, _rows(desk))
    changes = _changes(row)
    if as_json:
        typer.echo(json.dumps({**_plain(row), "changes": changes, "output": _output(row)}, indent=2))
        return
    typer.echo(story(row, changes, terminal.painter(), time.time()))


@app.command()
def forget(
    what: Annotated[str, typer.Argument(metavar="[JOB|FINGERPRINT]", help="A job, its pre-run, or digits.")] = "",
    script: Annotated[Path | None, typer.Option(metavar="FILE", help="All that passed of this script.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that ever passed.")] = False,
) -> None:
    """Forget what passed, so that the next submission is pre-run again."""
    if sum((bool(what), script is not None, everything)) != 1:
        raise UsageError("say what to forget: a job, a fingerprint, --script FILE or --all, one of them")
    state = UserState(user_state_dir(os.environ))
    marks = frozenset({"*"}) if everything else _of_script(script, state) if script else _of_name(what)
    state.forget_passed(marks, time.time())
    named = "everything that passed" if everything else words.count(len(marks), "fingerprint")
    typer.echo(f"forgotten: {named}; the next submission is pre-run again")


# --- which ---------------------------------------------------------------------------------------------------------


def _desk() -> Desk:
    from slurmwrap.cli.flow import open_desk  # here: no other command shall pay for gsub's imports

    return open_desk(load(os.environ), os.environ, Voice.of_terminal("slurmwrap"))


def _rows(desk: Desk) -> tuple[Row, ...]:
    """All that left files, newest first."""
    flights = desk.flights or Flights(user_state_dir(os.environ))
    found = [row for path in flights.trials() if (row := _read(path))]
    if any(row.state == "" for row in found):
        word = _slurms_word(desk)
        found = [_with_state(row, word) for row in found]
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))


def _read(directory: Path) -> Row | None:
    """What its files say; `state` "" where Slurm has to be asked."""
    try:
        spec = spec_from_json(json.loads((directory / "spec.json").read_bytes()))
        at = (directory / "spec.json").stat().st_mtime
    except (OSError, ValueError, TypeError):
        return None  # its gsub was killed while it wrote
    verdict = read_verdict(directory)
    host = number_in(directory / ATTACHED)
    state = verdict.outcome.value if verdict else "lost" if (directory / GONE).exists() else ""
    return Row(
        directory=directory,
        spec=spec,
        at=at,
        state=state or ("attached" if host is not None else ""),
        verdict=verdict,
        prerun_job=host if host is not None else number_in(directory / JOB),
        attached=host is not None,
    )


def _slurms_word(desk: Desk) -> Callable[[Row], str]:
    """Row → Slurm's state of its pre-run, "" for one that it does not know; asked once, of this cluster."""
    try:
        known = {record.job_id: record.state for record in desk.slurm.jobs(desk.user)}
        here = desk.cluster
    except SlurmError as error:
        desk.say(f"how they stand now is not known: {error}")
        return lambda _: "UNKNOWN"
    return lambda row: known.get(row.prerun_job or -1, "") if row.spec.cluster in ("", here) else "UNKNOWN"


def _with_state(row: Row, word: Callable[[Row], str]) -> Row:
    if row.state:
        return row
    state = word(row)
    return replace(row, state="unknown" if state == "UNKNOWN" else state.lower() if state in LIVE else "lost")


def _one(which: str, rows: tuple[Row, ...]) -> Row:
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
        marks = {row.spec.fingerprint for row in _rows(_desk()) if row.spec.fingerprint.startswith(what)}
        if marks or len(what) == 64:
            return frozenset(marks or {what})
        raise UsageError(
            f"no fingerprint of yours starts with '{what}'", hint="slurmwrap prerun list --json shows them"
        )
    if not (what.isdecimal() and what.isascii() and len(what) < 19):
        raise UsageError(f"'{what}' is neither a job id nor a fingerprint", hint="slurmwrap prerun list shows both")
    known = about_job(place_of(load(os.environ), os.environ, os.geteuid()), what)
    marks = {p.fingerprint for p in known.preruns} | {s.fingerprint for s in known.submissions}
    rows = _rows(_desk())
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
    marks |= {row.spec.fingerprint for row in _rows(_desk()) if row.spec.script_name == path}
    if not marks - {""}:
        raise UsageError(
            f"nothing of {script} was pre-run, as far as is known", hint="slurmwrap prerun list", exit_code=1
        )
    return frozenset(marks - {""})


# --- shown ---------------------------------------------------------------------------------------------------------


def table(rows: list[Row], now: float) -> str:
    """One line per pre-run."""
    if not rows:
        return "No pre-run."
    head = (">job", ">pre-run", "~script", "state", ">steps", ">took", ">age", "~reason")
    lines = [
        [
            str(row.real_job or "-"),
            f"{row.prerun_job or '-'}{'*' * row.attached}",
            words.visible(Path(row.spec.script_name).name),
            row.state,
            str(row.verdict.steps) if row.verdict else "",
            words.duration(row.verdict.seconds) if row.verdict else "",
            words.duration(max(0.0, now - row.at)),
            words.visible(row.verdict.reason) if row.verdict else "",
        ]
        for row in rows
    ]
    note = "\n* waited for the pre-run of an earlier job" if any(row.attached for row in rows) else ""
    return words.table(head, lines, indent=0, columns=words.WIDTH + 40) + note


def story(row: Row, changes: list[Mapping[str, Any]], paint: Paint, now: float) -> str:
    """Everything about one pre-run, 80 columns wide where the text is ours."""
    head = f"PRE-RUN {row.prerun_job or ''} of {words.visible(row.spec.script_name)}"
    if row.real_job is not None:
        head += f", for job {row.real_job} ({words.count(row.spec.gpus, 'GPU')})"
    style = {"pass": "green", "fail": "red"}.get(row.state, "yellow")
    lines = [paint(head, "bold"), "  " + paint(row.state, style) + f", submitted {words.duration(now - row.at)} ago"]
    if row.attached:
        lines.append("  it waited for the pre-run of an earlier job of the same script and code")
    if row.verdict is not None:
        lines += _verdict_lines(row.verdict)
    elif row.state in ("running", "completing"):
        lines.append(
            "  " + describe(seen(row.state.upper(), "", 0.0, read_progress(row.directory), steps_wanted(row.directory)))
        )
    if changes:
        lines += ["", paint("WHAT IT DID", "bold")]
        lines += [words.wrapped(_change(change), indent="  ", hanging="    ") for change in changes]
    if output := _output(row):
        lines += ["", paint("ITS OUTPUT ENDS", "bold"), *(f"  | {words.visible(line)}" for line in output)]
    lines += ["", f"  files  {words.visible(str(row.directory))}"]
    if row.verdict is None and row.prerun_job is not None and row.state not in ("lost", "unknown"):
        lines.append(f"  follow  slurmwrap prerun show {row.real_job or row.prerun_job} --follow")
    return "\n".join(lines)


def _verdict_lines(verdict: Verdict) -> list[str]:
    steps = f", {words.count(verdict.steps, 'step')}" if verdict.steps else ""
    category = f"{verdict.category}: " if verdict.category else ""
    lines = [
        f"  after {words.duration(verdict.seconds)}{steps}, decided by layer {verdict.layer}",
        words.wrapped(f"{category}{verdict.reason}", indent="  ", hanging="    "),
    ]
    for finding in verdict.findings:
        place = f"{finding.file}:{finding.line} " if finding.line else f"{finding.file} ".lstrip()
        fix = f" ({finding.fix})" if finding.fix else ""
        text = f"{finding.severity.value}: {place}{finding.message}{fix}"
        lines.append(words.wrapped(text, indent="  ", hanging="    "))
    for cited in verdict.evidence:
        lines.append(words.wrapped(f"| {cited.source}:{cited.line}: {cited.text}", indent="  ", hanging="  |   "))
    return lines


def _change(change: Mapping[str, Any]) -> str:
    asked = f"{change.get('option')}={change.get('new')}" if change.get("option") else ""
    refused = f"; Slurm refused: {change['error']}" if change.get("error") else ""
    return f"{change.get('verb')} {change.get('target')} {asked}".rstrip() + f" ({change.get('reason')}){refused}"


def _changes(row: Row) -> list[Mapping[str, Any]]:
    """What was asked of Slurm for the waiting job; empty where that is not known any more."""
    try:
        known = about_job(place_of(load(os.environ), os.environ, os.geteuid()), str(row.real_job or row.prerun_job))
    except SlurmwrapError:
        return []
    mine = [p for p in known.preruns if p.job_id == row.real_job and p.changes]
    return list(max(mine, key=lambda p: p.at).changes) if mine else []


def _output(row: Row) -> list[str]:
    """The last lines of what the script printed."""
    from slurmwrap.prerun.supervisor import tail

    if not Path(row.spec.output).is_file():
        return []
    return tail(row.spec.output).text.replace("\r", "\n").rstrip().splitlines()[-_TAIL_LINES:]


def _plain(row: Row) -> dict[str, Any]:
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
    return {**about, **(shown(row.verdict) if row.verdict else {"verdict": None})}
