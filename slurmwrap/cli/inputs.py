"""`slurmwrap inputs`: which files are blocked, on what evidence, and how to free or block one. Flags in, table out.

The digest of a file is its identity (size, first and last MiB): a file that changed is free by itself.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.known import Place, about_job, place_of
from slurmwrap.config import load
from slurmwrap.diagnosis.evidence import Citation
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.host.inputs import read_inputs_as
from slurmwrap.report import words
from slurmwrap.retry.blocked import BlockedInput
from slurmwrap.store.database import Database
from slurmwrap.store.published import read_published
from slurmwrap.store.userstate import UserState

SITE = -1  # the uid of a block that binds everybody
_DIGEST = 12  # characters that are shown of a digest, and enough to name one

app = typer.Typer(
    no_args_is_help=True,
    help="""Input files that made jobs fail, and are refused until they change.

    \b
    Examples:
      slurmwrap inputs list
      slurmwrap inputs show data/train.h5
      slurmwrap inputs clear data/train.h5       submit with it again
      slurmwrap inputs block data/old.h5 --reason "labels are shifted by one"
    """,
)

Name = Annotated[str, typer.Argument(metavar="FILE", help="Its path, or the first 12 characters of its digest.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A block, and what its file is like now: "same", "changed" (it is free), "gone", or "" where we cannot read it."""

    blocked: BlockedInput
    now: str = ""


@app.command("list")
def list_inputs(as_json: AsJson = False) -> None:
    """List blocked inputs: those of your jobs, everyone's for root and SlurmUser."""
    place = _place()
    rows = [Row(blocked=one, now=_now(one, place)) for one in _blocked(place)]
    typer.echo(json.dumps([_plain(row) for row in rows], indent=2) if as_json else table(rows))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show why an input is blocked: the job, its log lines, and who is bound."""
    place = _place()
    row = _one(name, place)
    cited = _evidence(row.blocked, place)
    if as_json:
        lines = [{"source": cite.source, "line": cite.line, "text": cite.text} for cite in cited]
        typer.echo(json.dumps({**_plain(row), "evidence": lines}, indent=2))
        return
    typer.echo(_story(row, cited))


@app.command()
def clear(name: Name) -> None:
    """Free an input, so that jobs may name it again.

    Root and SlurmUser free what binds everybody; anybody else what binds himself.
    """
    place = _place()
    blocked = _one(name, place).blocked
    if place.site:
        with Database.open(place.database) as database:
            database.clear_input(blocked.digest)
        typer.echo(f"free again: {_named(blocked)}")
        typer.echo("gsub sees it after the next pass of 'slurmwrap reconcile'", err=True)
        return
    if blocked.uid == SITE:
        raise RefusedError(
            f"{_named(blocked)} is blocked for everybody: only an administrator can free it",
            hint="gsub --force submits a job with it as it is; a changed file is free by itself",
        )
    if place.database.exists():
        with Database.open(place.database) as database:
            database.clear_input(blocked.digest)
    UserState(place.database.parent).free_input(blocked.digest, time.time())
    typer.echo(f"free again: {_named(blocked)}")


@app.command()
def block(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that no job shall read as it is now.")],
    reason: Annotated[str, typer.Option(help="What is wrong with it; gsub tells it to whoever names the file.")],
) -> None:
    """Refuse jobs that name this file, until it changes.

    Root and SlurmUser block it for everybody; anybody else for himself. An administrator's read of the file is made
    with the rights of the file's owner.
    """
    place = _place()
    blocked = BlockedInput(
        digest=_digest_of(path.absolute()),
        path=str(path.absolute()),
        uid=SITE if place.site else place.uid,
        reason=reason,
        at=time.time(),
    )
    place.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Database.open(place.database) as database:
        database.block_input(blocked)
    typer.echo(f"blocked: {_named(blocked)}")


# --- what is blocked -----------------------------------------------------------------------------------------------


def _place() -> Place:
    return place_of(load(os.environ), os.environ, os.geteuid())


def _blocked(place: Place) -> tuple[BlockedInput, ...]:
    """What binds the asking user, newest first; everything for the site."""
    found: dict[tuple[str, int], BlockedInput] = {}
    if place.published is not None:
        published = read_published(place.published, place.trusted)
        found = {(b.digest, b.uid): b for b in (published.blocked if published else ()) if b.uid in (SITE, place.uid)}
    if place.database.exists():
        with Database.open(place.database, readonly=True) as database:
            own = database.blocked_inputs(None if place.site else place.uid)
        found |= {(b.digest, b.uid): b for b in own}  # with the path, which is not published
    freed = {} if place.site else UserState(place.database.parent).freed_inputs()
    standing = (b for b in found.values() if b.uid == SITE or freed.get(b.digest, 0.0) < b.at)
    return tuple(sorted(standing, key=lambda b: b.at, reverse=True))


def _one(name: str, place: Place) -> Row:
    known = _blocked(place)
    path = str(Path(name).absolute())
    found = [b for b in known if b.path == path or (len(name) >= _DIGEST and b.digest.startswith(name))]
    if not found and Path(name).exists():
        digest = _digest_of(Path(path))
        found = [b for b in known if b.digest == digest]
    if not found:
        raise UsageError(f"'{name}' is not blocked", hint="slurmwrap inputs list", exit_code=1)
    return Row(blocked=found[0], now=_now(found[0], place))


def _now(blocked: BlockedInput, place: Place) -> str:
    """Whether its path still holds what was blocked. Nobody's file is read with more rights than its user has."""
    reader = blocked.uid if place.site and place.uid == 0 and blocked.uid > 0 else place.uid
    if not blocked.path or (place.site and blocked.uid == SITE and place.uid == 0):
        return ""
    found = read_inputs_as(reader, (blocked.path,))
    if not found:
        return ""
    if not found[0].digest:
        return "gone" if found[0].fault == "does not exist" else ""
    return "same" if found[0].digest == blocked.digest else "changed"


def _digest_of(path: Path) -> str:
    """Of a file as it is now; UsageError where it cannot be read.

    Root reads as the file's owner; what is root's own, as nobody where the path may be a user's link to it.
    """
    try:
        owner = path.stat().st_uid or (0 if _roots_alone(path) else _nobody())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", exit_code=1) from error
    ours = os.geteuid()
    found = read_inputs_as(owner if ours == 0 else ours, (str(path),))
    if not found or not found[0].digest:
        fault = found[0].fault if found and found[0].fault else "it is no regular file, or may not be read"
        raise UsageError(f"cannot read {path}: {fault}", exit_code=1)
    return found[0].digest


def _roots_alone(path: Path) -> bool:
    """Whether nobody but root decides what lies there: no links, no directory of anybody else's on the way."""
    if os.path.realpath(path) != str(path):
        return False
    found = [one.lstat() for one in (path, *path.parents)]
    return all(one.st_uid == 0 and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in found)


def _nobody() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return -1


def _evidence(blocked: BlockedInput, place: Place) -> tuple[Citation, ...]:
    if not blocked.job_id:
        return ()
    known = about_job(place, str(blocked.job_id))
    runs = [run for run in known.attempts if run.diagnosis and run.diagnosis.input_path == blocked.path]
    tried = [p.verdict.evidence for p in known.preruns if p.verdict.input_path == blocked.path]
    return runs[-1].diagnosis.evidence if runs and runs[-1].diagnosis else tried[-1] if tried else ()


# --- shown ---------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """One line per input. "changed" and "gone" ones are refused no longer."""
    if not rows:
        return "No input is blocked."
    head = ("~input", "binds", ">job", "since", "now", "~reason")
    lines = [
        [
            row.blocked.path or row.blocked.digest[:_DIGEST],
            _binds(row.blocked.uid),
            str(row.blocked.job_id or ""),
            words.moment(row.blocked.at, terminal.local_zone())[5:],
            row.now,
            row.blocked.reason,
        ]
        for row in rows
    ]
    return words.table(head, lines, indent=0, columns=words.WIDTH + 20)


def _story(row: Row, cited: tuple[Citation, ...]) -> str:
    blocked = row.blocked
    state = {"changed": "The file has changed: it is free.", "gone": "There is no such file any more."}.get(row.now, "")
    by = f"by job {blocked.job_id}" if blocked.job_id else "by hand"
    lines = [
        _named(blocked),
        f"  digest  {blocked.digest}",
        f"  binds   {_binds(blocked.uid)}",
        f"  since   {words.moment(blocked.at, terminal.local_zone())}, {by}",
        f"  why     {words.visible(blocked.reason)}",
        *([f"  now     {state}"] if state else []),
        *(f"  {words.visible(cite.source)}:{cite.line}: {words.visible(cite.text)}" for cite in cited),
    ]
    if blocked.job_id:
        lines.append(f"  more    slurmwrap why {blocked.job_id}")
    return "\n".join(lines)


def _plain(row: Row) -> dict[str, Any]:
    one = row.blocked
    return {
        "path": one.path,
        "digest": one.digest,
        "binds": _binds(one.uid),
        "uid": one.uid,
        "reason": one.reason,
        "job_id": one.job_id or None,
        "at": one.at,
        "now": row.now,
    }


def _binds(uid: int) -> str:
    if uid == SITE:
        return "everybody"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _named(blocked: BlockedInput) -> str:
    """Fit for a terminal: a path is its user's text."""
    return words.visible(blocked.path) or f"the file of digest {blocked.digest[:_DIGEST]}"
