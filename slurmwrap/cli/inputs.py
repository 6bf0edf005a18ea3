"""`slurmwrap inputs`: which files are blocked, on what evidence, and how to free or block one. Flags in, table out.

The digest of a file is its identity (size, first and last MiB): a file that changed is free by itself.
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import RecordSource, about_job, place_of
from slurmwrap.config.load_config import load
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.read_user_file import read_inputs_as
from slurmwrap.json_output import format_json_document
from slurmwrap.model.decision import BlockedInput, InputRead
from slurmwrap.model.evidence import Citation
from slurmwrap.policy.run_filter import RunFilter
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import drop_empty_columns, fold_names, group_alike
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import read_published
from slurmwrap.store.user_state_files import UserState

# The files that are blocked, as they are now: read with no more rights than the user has who is bound.
# The uid of a block that binds everybody.
SITE = -1
# Files of a list that are read, to see whether they changed.
_LOOKED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A block, and what its file is like now: "same", "changed" (it is free), "gone", or "" where we cannot read it."""

    blocked: BlockedInput
    now: str = ""


def rows_of(found: Sequence[BlockedInput], source: RecordSource) -> list[InputRow]:
    """With what the files of the newest are like now; one reader for each user, for a file system may hang."""
    readers = {one: _find_reading_uid(one, source) for one in found[:_LOOKED]}
    now: dict[BlockedInput, str] = {}
    for uid in dict.fromkeys(readers.values()):
        mine = [one for one, reader in readers.items() if reader == uid] if uid is not None else []
        read = read_inputs_as(uid, [one.path for one in mine]) if uid is not None and mine else ()
        now |= {one: _compare_digest(one, told) for one, told in zip(mine, read, strict=False)}
    return [InputRow(blocked=one, now=now.get(one, "")) for one in found]


def now_of(blocked: BlockedInput, source: RecordSource) -> str:
    """Whether its path still holds what was blocked."""
    return rows_of([blocked], source)[0].now


def _find_reading_uid(blocked: BlockedInput, source: RecordSource) -> int | None:
    """As whom its file is read, with no more rights than the user has who is bound; None: not at all."""
    if not blocked.path or (source.site and blocked.uid == SITE and source.uid == 0):
        return None
    return blocked.uid if source.site and source.uid == 0 and blocked.uid > 0 else source.uid


def _compare_digest(blocked: BlockedInput, read: InputRead) -> str:
    if not read.digest:
        return "gone" if read.fault == "does not exist" else ""
    return "same" if read.digest == blocked.digest else "changed"


def digest_of(path: Path) -> str:
    """Of a file as it is now; UsageError where it cannot be read.

    Root reads as the file's owner; what is root's own, as no one where the path may be a user's link to it.
    """
    try:
        owner = path.stat().st_uid or (0 if _roots_alone(path) else _get_nobody_uid())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", exit_code=1) from error
    ours = os.geteuid()
    found = read_inputs_as(owner if ours == 0 else ours, (str(path),))
    if not found or not found[0].digest:
        fault = found[0].fault if found and found[0].fault else "it is no regular file, or may not be read"
        raise UsageError(f"cannot read {path}: {fault}", exit_code=1)
    return found[0].digest


def _roots_alone(path: Path) -> bool:
    """Whether no one but root decides what lies there: no links, no directory of anybody else's on the way."""
    if os.path.realpath(path) != str(path):
        return False
    found = [one.lstat() for one in (path, *path.parents)]
    return all(one.st_uid == 0 and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in found)


def _get_nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return -1


_PER_LINE = 20  # files that are read for each line, for those with the same fault are folded
_PATH = 32  # columns of the table
_DIGEST = 12  # characters that are shown of a digest, and enough to name one

app = typer.Typer(
    no_args_is_help=True,
    help="""Input files that made jobs fail, and are refused until they change.

    \b
    Examples:
      slurmwrap inputs list
      slurmwrap inputs list '/data/imagenet/*' --job 4711
      slurmwrap inputs show data/train.h5
      slurmwrap inputs clear data/train.h5       submit with it again
      slurmwrap inputs clear --job 4711          all that this job made blocked
      slurmwrap inputs block data/old.h5 --reason "labels are shifted by one"
    """,
)

Name = Annotated[str, typer.Argument(metavar="FILE", help="Its path, or the first 12 characters of its digest.")]
OfJob = Annotated[int, typer.Option("--job", metavar="JOBID", help="Only what this job made blocked.")]


@app.command("list")
def list_inputs(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Only paths like it: '/data/*.tar'.")] = "",
    job: OfJob = 0,
    user: list_options.User = "",
    since: Annotated[str, typer.Option("--since", "-S", help="Only blocked since then: 24h, 7d, or a date.")] = "",
    freed: Annotated[bool, typer.Option("--freed", help="What you freed instead: it binds you no more.")] = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List blocked inputs, newest first: those of your jobs, everyone's for root and SlurmUser.

    Files of one directory with the same fault share a line.
    """
    place = _get_record_source()
    if freed:
        _list_freed(place, as_json)
        return
    wanted = list_options.make_run_filter(user=user, since=since)
    found = [one for one in _list_blocked(place) if _is_meant(one, pattern, job, wanted)]
    shown, more = list_options.cut_rows(found, limit * (1 if as_json else _PER_LINE), everything)
    rows = rows_of(shown, place)
    text, left = format_inputs(rows, None if everything else limit, columns=terminal.columns())
    more = more if as_json else more + left
    list_options.say_list("inputs", [_plain(row) for row in rows], text, as_json=as_json, more=more)


def _is_meant(one: BlockedInput, pattern: str, job: int, run_filter: RunFilter) -> bool:
    return (
        (not pattern or fnmatchcase(one.path, pattern) or one.path == str(Path(pattern).absolute()))
        and (not job or one.job_id == job)
        and (not run_filter.users or _format_owner(one.uid) in run_filter.users)
        and (run_filter.since is None or one.at >= run_filter.since)
    )


def _list_freed(source: RecordSource, as_json: bool) -> None:
    """The site's block that its user overruled for themselves."""
    freed = {} if source.site else UserState(source.database.parent).freed_inputs()
    rows = [{"digest": digest, "freed_at": at} for digest, at in sorted(freed.items(), key=lambda one: -one[1])]
    lines = [[digest[:_DIGEST], text_format.moment(at, terminal.local_zone())] for digest, at in freed.items()]
    text = text_format.table(("digest", "freed"), lines, indent=0) if lines else "No input was freed by you."
    list_options.say_list("inputs_freed", rows, text, as_json=as_json)


@app.command()
def show(name: Name, as_json: list_options.AsJson = False) -> None:
    """Show why an input is blocked: the job, its log lines, and who is bound."""
    place = _get_record_source()
    row = _make_input_row(name, place)
    cited = _find_evidence(row.blocked, place)
    if as_json:
        lines = [{"source": cite.source, "line": cite.line, "text": cite.text} for cite in cited]
        typer.echo(format_json_document("input", {**_plain(row), "evidence": lines}))
        return
    typer.echo(_story(row, cited))


@app.command()
def clear(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Paths, or first characters of digests.")
    ] = None,
    job: OfJob = 0,
) -> None:
    """Free inputs, so that jobs may name them again.

    Root and SlurmUser free what binds everybody; anybody else what binds himself.
    """
    if bool(names) == bool(job):
        raise UsageError("name the files to free, or the job with --job", hint="slurmwrap inputs list")
    place = _get_record_source()
    chosen = [_make_input_row(name, place).blocked for name in names or ()] or [
        b for b in _list_blocked(place) if b.job_id == job
    ]
    if not chosen:
        raise UsageError(f"job {job} made no input blocked", hint="slurmwrap inputs list", exit_code=1)
    bound = next((one for one in chosen if one.uid == SITE and not place.site), None)
    if bound is not None:
        raise RefusedError(
            f"{_format_path(bound)} is blocked for everybody: only an administrator can free it",
            hint="gsub --force submits a job with it as it is; a changed file is free by itself",
        )
    for one in chosen:
        _free_input(one, place)
        typer.echo(f"free again: {_format_path(one)}")
    if place.site:
        typer.echo("gsub sees it after the next pass of 'slurmwrap reconcile'", err=True)


def _free_input(blocked: BlockedInput, source: RecordSource) -> None:
    if source.database.exists():
        with Database.open(source.database) as database:
            database.clear_input(blocked.digest)
    if not source.site:
        UserState(source.database.parent).free_input(blocked.digest, time.time())


@app.command()
def block(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that no job shall read as it is now.")],
    reason: Annotated[str, typer.Option(help="What is wrong with it; gsub shows it to users who name the file.")],
) -> None:
    """Refuse jobs that name this file, until it changes.

    Root and SlurmUser block it for everybody; anybody else for himself. An administrator's read of the file is made
    with the rights of the file's owner.
    """
    place = _get_record_source()
    blocked = BlockedInput(
        digest=digest_of(path.absolute()),
        path=str(path.absolute()),
        uid=SITE if place.site else place.uid,
        reason=reason,
        at=time.time(),
    )
    place.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Database.open(place.database) as database:
        database.block_input(blocked)
    typer.echo(f"blocked: {_format_path(blocked)}")


# --- what is blocked -----------------------------------------------------------------------------------------------


def _get_record_source() -> RecordSource:
    return place_of(load(os.environ), os.environ, os.geteuid())


def _list_blocked(source: RecordSource) -> tuple[BlockedInput, ...]:
    """What binds the asking user, newest first; everything for the site."""
    found: dict[tuple[str, int], BlockedInput] = {}
    if source.published is not None:
        published = read_published(source.published, source.trusted)
        found = {(b.digest, b.uid): b for b in (published.blocked if published else ()) if b.uid in (SITE, source.uid)}
    if source.database.exists():
        with Database.open(source.database, readonly=True) as database:
            own = database.blocked_inputs(None if source.site else source.uid)
        # With the path, which is not published.
        found |= {(b.digest, b.uid): b for b in own}
    freed = {} if source.site else UserState(source.database.parent).freed_inputs()
    standing = (b for b in found.values() if b.uid == SITE or freed.get(b.digest, 0.0) < b.at)
    return tuple(sorted(standing, key=lambda b: b.at, reverse=True))


def _make_input_row(name: str, source: RecordSource) -> InputRow:
    known = _list_blocked(source)
    path = str(Path(name).absolute())
    found = [b for b in known if b.path == path or (len(name) >= _DIGEST and b.digest.startswith(name))]
    if not found and Path(name).exists():
        digest = digest_of(Path(path))
        found = [b for b in known if b.digest == digest]
    if not found:
        raise UsageError(f"'{name}' is not blocked", hint="slurmwrap inputs list", exit_code=1)
    return InputRow(blocked=found[0], now=now_of(found[0], source))


def _find_evidence(blocked: BlockedInput, source: RecordSource) -> tuple[Citation, ...]:
    if not blocked.job_id:
        return ()
    known = about_job(source, str(blocked.job_id))
    runs = [run for run in known.attempts if run.diagnosis and run.diagnosis.input_path == blocked.path]
    tried = [p.verdict.evidence for p in known.preruns if p.verdict.input_path == blocked.path]
    return runs[-1].diagnosis.evidence if runs and runs[-1].diagnosis else tried[-1] if tried else ()


# --- shown ---------------------------------------------------------------------------------------------------------


def format_inputs(
    rows: Sequence[InputRow], limit: int | None = None, *, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """At most `limit` lines, and how many inputs are left out. "changed" and "gone" ones are refused no longer."""
    if not rows:
        return "No input is blocked.", 0
    head = ("input", "binds", "job", "since", "now", "~reason")
    groups = group_alike(rows, _make_fold_key)
    lines = [_format_line(group) for group in groups[:limit]]
    left = sum(map(len, groups[len(lines) :]))
    return text_format.table(*drop_empty_columns(head, lines), indent=0, columns=columns), left


def _make_fold_key(row: InputRow) -> tuple[object, ...]:
    """Files of one directory with the same fault."""
    one = row.blocked
    directory = one.path.rpartition("/")[0]
    return (directory or one.digest, one.uid, one.reason.replace(one.path, ""), row.now)


def _format_line(group: Sequence[InputRow]) -> list[str]:
    one = max((row.blocked for row in group), key=lambda blocked: blocked.at)
    paths = ", ".join(
        fold_names(text_format.in_order(row.blocked.path or row.blocked.digest[:_DIGEST] for row in group))
    )
    of = [str(row.blocked.job_id) for row in group if row.blocked.job_id]
    jobs = of[0] if of else ""
    return [
        text_format.fit_middle(paths, _PATH) + (f" ({len(group)})" if len(group) > 1 else ""),
        _format_owner(one.uid),
        jobs,
        text_format.moment(one.at, terminal.local_zone())[5:10],
        group[0].now,
        _reason(one),
    ]


def _reason(blocked: BlockedInput) -> str:
    """Without the path, which is next to it."""
    return blocked.reason.replace(blocked.path, "").strip(" :,") or blocked.reason


def _story(row: InputRow, cited: tuple[Citation, ...]) -> str:
    blocked = row.blocked
    state = {"changed": "The file has changed: it is free.", "gone": "There is no such file any more."}.get(row.now, "")
    by = f"by job {blocked.job_id}" if blocked.job_id else "by hand"
    lines = [
        _format_path(blocked),
        f"  digest  {blocked.digest}",
        f"  binds   {_format_owner(blocked.uid)}",
        f"  since   {text_format.moment(blocked.at, terminal.local_zone())}, {by}",
        f"  why     {text_format.visible(blocked.reason)}",
        *([f"  now     {state}"] if state else []),
        *(f"  {text_format.visible(cite.source)}:{cite.line}: {text_format.visible(cite.text)}" for cite in cited),
    ]
    if blocked.job_id:
        lines.append(f"  more    slurmwrap why {blocked.job_id}")
    return "\n".join(lines)


def _plain(row: InputRow) -> dict[str, Any]:
    one = row.blocked
    return {
        "path": one.path,
        "digest": one.digest,
        "binds": _format_owner(one.uid),
        "uid": one.uid,
        "reason": one.reason,
        "job_id": one.job_id or None,
        "at": one.at,
        "now": row.now,
    }


def _format_owner(uid: int) -> str:
    return "everybody" if uid == SITE else list_options.user_name(uid)


def _format_path(blocked: BlockedInput) -> str:
    """Fit for a terminal: a path is its user's text."""
    return text_format.visible(blocked.path) or f"the file of digest {blocked.digest[:_DIGEST]}"
