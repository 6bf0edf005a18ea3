"""`slurmwrap inputs`: list and show blocked input files with the evidence, and free or block a file.

The digest of a file is its identity (size, first and last MiB): a file that changed is no longer blocked.
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
from slurmwrap.cli.record_access import RecordSource, find_record_source, read_job_records
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

# Uid of a block that applies to all users.
SITE = -1
# Number of listed files that are read to see whether they changed.
_MAX_COMPARED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A blocked input, and what its file is now: "same", "changed" (no longer refused), "gone", or "" if unreadable."""

    blocked: BlockedInput
    now: str = ""


def make_input_rows(found: Sequence[BlockedInput], source: RecordSource) -> list[InputRow]:
    """Return a row for each blocked input; for the newest _MAX_COMPARED ones, compare the files with their digests.

    A block's file is read with no more rights than the user has to whom the block applies. One process reads the files
    of each user, because a file system may hang.
    """
    readers = {one: _find_reading_uid(one, source) for one in found[:_MAX_COMPARED]}
    now: dict[BlockedInput, str] = {}
    for uid in dict.fromkeys(readers.values()):
        mine = [one for one, reader in readers.items() if reader == uid] if uid is not None else []
        read = read_inputs_as(uid, [one.path for one in mine]) if uid is not None and mine else ()
        now |= {one: _compare_digest(one, read_input) for one, read_input in zip(mine, read, strict=False)}
    return [InputRow(blocked=one, now=now.get(one, "")) for one in found]


def compare_blocked_file(blocked: BlockedInput, source: RecordSource) -> str:
    """Return whether the file still has the blocked content; values as in InputRow."""
    return make_input_rows([blocked], source)[0].now


def _find_reading_uid(blocked: BlockedInput, source: RecordSource) -> int | None:
    """Return the uid as which a file is read: that of the user whom the block binds; None: do not read it."""
    if not blocked.path or (source.site and blocked.uid == SITE and source.uid == 0):
        return None
    return blocked.uid if source.site and source.uid == 0 and blocked.uid > 0 else source.uid


def _compare_digest(blocked: BlockedInput, read: InputRead) -> str:
    if not read.digest:
        return "gone" if read.fault == "does not exist" else ""
    return "same" if read.digest == blocked.digest else "changed"


def read_digest(path: Path) -> str:
    """Return the digest of a file as it is now. Raise UsageError if it cannot be read.

    Root reads a file as its owner. A file of root's is read as root only if no other user could have put a link in its
    path, otherwise as nobody.
    """
    try:
        owner = path.stat().st_uid or (0 if _is_controlled_by_root(path) else _get_nobody_uid())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", exit_code=1) from error
    own_uid = os.geteuid()
    found = read_inputs_as(owner if own_uid == 0 else own_uid, (str(path),))
    if not found or not found[0].digest:
        fault = found[0].fault if found and found[0].fault else "it is no regular file, or may not be read"
        raise UsageError(f"cannot read {path}: {fault}", exit_code=1)
    return found[0].digest


def _is_controlled_by_root(path: Path) -> bool:
    """Whether only root decides which file this path names: it has no link, and no directory that others may change."""
    if os.path.realpath(path) != str(path):
        return False
    # A sticky directory is accepted, because other users cannot replace root's file in it.
    found = [one.lstat() for one in (path, *path.parents)]
    return all(one.st_uid == 0 and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in found)


def _get_nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return -1


# Number of blocked inputs that are read per line of the table, because those with the same fault share a line.
_PER_LINE = 20
# Width of the path in the table, in columns.
_PATH_COLUMNS = 32
# Number of characters of a digest that are shown, and that are enough to name it.
_DIGEST_LENGTH = 12

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
OfJob = Annotated[
    int, typer.Option("--job", metavar="JOBID", help="Only inputs that were blocked because of this job.")
]


@app.command("list")
def list_inputs(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Only paths that match: '/data/*.tar'.")] = "",
    job: OfJob = 0,
    user: list_options.User = "",
    since: Annotated[str, typer.Option("--since", "-S", help="Only blocked since then: 24h, 7d, or a date.")] = "",
    freed: Annotated[bool, typer.Option("--freed", help="List what you freed instead: it does not bind you.")] = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List blocked inputs, newest first: those of your jobs, everyone's for root and SlurmUser.

    Files of one directory with the same fault share a line.
    """
    source = _get_record_source()
    if freed:
        _list_freed(source, as_json)
        return
    wanted = list_options.make_run_filter(user=user, since=since)
    found = [one for one in _list_blocked(source) if _matches(one, pattern, job, wanted)]
    shown, more = list_options.cut_rows(found, limit * (1 if as_json else _PER_LINE), everything)
    rows = make_input_rows(shown, source)
    text, left = format_inputs(rows, None if everything else limit, columns=terminal.columns())
    more = more if as_json else more + left
    list_options.print_list("inputs", [_row_to_json(row) for row in rows], text, as_json=as_json, more=more)


def _matches(one: BlockedInput, pattern: str, job: int, run_filter: RunFilter) -> bool:
    return (
        (not pattern or fnmatchcase(one.path, pattern) or one.path == str(Path(pattern).absolute()))
        and (not job or one.job_id == job)
        and (not run_filter.users or _format_owner(one.uid) in run_filter.users)
        and (run_filter.since is None or one.at >= run_filter.since)
    )


def _list_freed(source: RecordSource, as_json: bool) -> None:
    """List the site's blocked inputs that this user freed for themselves."""
    freed = {} if source.site else UserState(source.database.parent).freed_inputs()
    rows = [{"digest": digest, "freed_at": at} for digest, at in sorted(freed.items(), key=lambda one: -one[1])]
    lines = [
        [digest[:_DIGEST_LENGTH], text_format.moment(at, terminal.get_local_zone())] for digest, at in freed.items()
    ]
    text = text_format.table(("digest", "freed"), lines, indent=0) if lines else "No input was freed by you."
    list_options.print_list("inputs_freed", rows, text, as_json=as_json)


@app.command()
def show(name: Name, as_json: list_options.AsJson = False) -> None:
    """Show why an input is blocked: the job, its log lines, and who is bound."""
    source = _get_record_source()
    row = _make_input_row(name, source)
    cited = _find_evidence(row.blocked, source)
    if as_json:
        lines = [{"source": cite.source, "line": cite.line, "text": cite.text} for cite in cited]
        typer.echo(format_json_document("input", {**_row_to_json(row), "evidence": lines}))
        return
    typer.echo(_format_input(row, cited))


@app.command()
def clear(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Paths, or first characters of digests.")
    ] = None,
    job: OfJob = 0,
) -> None:
    """Free inputs, so that jobs may name them again.

    Root and SlurmUser free what binds everybody; other users free what binds themselves.
    """
    if bool(names) == bool(job):
        raise UsageError("name the files to free, or the job with --job", hint="slurmwrap inputs list")
    source = _get_record_source()
    chosen = [_make_input_row(name, source).blocked for name in names or ()] or [
        b for b in _list_blocked(source) if b.job_id == job
    ]
    if not chosen:
        raise UsageError(f"job {job} made no input blocked", hint="slurmwrap inputs list", exit_code=1)
    bound = next((one for one in chosen if one.uid == SITE and not source.site), None)
    if bound is not None:
        raise RefusedError(
            f"{_format_path(bound)} is blocked for everybody: only an administrator can free it",
            hint="gsub --force submits a job with it as it is; a changed file is free by itself",
        )
    for one in chosen:
        _free_input(one, source)
        typer.echo(f"free again: {_format_path(one)}")
    if source.site:
        typer.echo("gsub sees it after the next pass of 'slurmwrap reconcile'", err=True)


def _free_input(blocked: BlockedInput, source: RecordSource) -> None:
    if source.database.exists():
        with Database.open(source.database) as database:
            database.clear_input(blocked.digest)
    if not source.site:
        UserState(source.database.parent).free_input(blocked.digest, time.time())


@app.command()
def block(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that no job should read in its present state.")],
    reason: Annotated[str, typer.Option(help="What is wrong with it; gsub shows it to users who name the file.")],
) -> None:
    """Refuse jobs that name this file, until it changes.

    Root and SlurmUser block it for everybody; other users for themselves. For an administrator the file is read
    with the rights of its owner.
    """
    source = _get_record_source()
    blocked = BlockedInput(
        digest=read_digest(path.absolute()),
        path=str(path.absolute()),
        uid=SITE if source.site else source.uid,
        reason=reason,
        at=time.time(),
    )
    source.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Database.open(source.database) as database:
        database.block_input(blocked)
    typer.echo(f"blocked: {_format_path(blocked)}")


# --- what is blocked -----------------------------------------------------------------------------------------------


def _get_record_source() -> RecordSource:
    return find_record_source(load(os.environ), os.environ, os.geteuid())


def _list_blocked(source: RecordSource) -> tuple[BlockedInput, ...]:
    """Return the blocks that apply to the calling user, newest first; all blocks if the source is the site's."""
    found: dict[tuple[str, int], BlockedInput] = {}
    if source.published is not None:
        published = read_published(source.published, source.trusted)
        found = {(b.digest, b.uid): b for b in (published.blocked if published else ()) if b.uid in (SITE, source.uid)}
    if source.database.exists():
        with Database.open(source.database, readonly=True) as database:
            own = database.blocked_inputs(None if source.site else source.uid)
        # The user's own database also has the path, which is not published.
        found |= {(b.digest, b.uid): b for b in own}
    freed = {} if source.site else UserState(source.database.parent).freed_inputs()
    standing = (b for b in found.values() if b.uid == SITE or freed.get(b.digest, 0.0) < b.at)
    return tuple(sorted(standing, key=lambda b: b.at, reverse=True))


def _make_input_row(name: str, source: RecordSource) -> InputRow:
    known = _list_blocked(source)
    path = str(Path(name).absolute())
    found = [b for b in known if b.path == path or (len(name) >= _DIGEST_LENGTH and b.digest.startswith(name))]
    if not found and Path(name).exists():
        digest = read_digest(Path(path))
        found = [b for b in known if b.digest == digest]
    if not found:
        raise UsageError(f"'{name}' is not blocked", hint="slurmwrap inputs list", exit_code=1)
    return InputRow(blocked=found[0], now=compare_blocked_file(found[0], source))


def _find_evidence(blocked: BlockedInput, source: RecordSource) -> tuple[Citation, ...]:
    if not blocked.job_id:
        return ()
    known = read_job_records(source, str(blocked.job_id))
    runs = [run for run in known.attempts if run.diagnosis and run.diagnosis.input_path == blocked.path]
    tried = [p.verdict.evidence for p in known.preruns if p.verdict.input_path == blocked.path]
    return runs[-1].diagnosis.evidence if runs and runs[-1].diagnosis else tried[-1] if tried else ()


# --- shown ---------------------------------------------------------------------------------------------------------


def format_inputs(
    rows: Sequence[InputRow], limit: int | None = None, *, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """Return the table of at most `limit` lines, and how many inputs are left out.

    Files that are "changed" or "gone" are no longer refused.
    """
    if not rows:
        return "No input is blocked.", 0
    head = ("input", "binds", "job", "since", "now", "~reason")
    groups = group_alike(rows, _make_fold_key)
    lines = [_format_line(group) for group in groups[:limit]]
    left = sum(map(len, groups[len(lines) :]))
    return text_format.table(*drop_empty_columns(head, lines), indent=0, columns=columns), left


def _make_fold_key(row: InputRow) -> tuple[object, ...]:
    """Return what inputs on one line have in common: directory, bound user, fault and present state."""
    one = row.blocked
    directory = one.path.rpartition("/")[0]
    return (directory or one.digest, one.uid, one.reason.replace(one.path, ""), row.now)


def _format_line(group: Sequence[InputRow]) -> list[str]:
    one = max((row.blocked for row in group), key=lambda blocked: blocked.at)
    paths = ", ".join(
        fold_names(text_format.in_order(row.blocked.path or row.blocked.digest[:_DIGEST_LENGTH] for row in group))
    )
    of = [str(row.blocked.job_id) for row in group if row.blocked.job_id]
    jobs = of[0] if of else ""
    return [
        text_format.fit_middle(paths, _PATH_COLUMNS) + (f" ({len(group)})" if len(group) > 1 else ""),
        _format_owner(one.uid),
        jobs,
        text_format.moment(one.at, terminal.get_local_zone())[5:10],
        group[0].now,
        _format_reason(one),
    ]


def _format_reason(blocked: BlockedInput) -> str:
    """Return the reason without the path, which is in another column."""
    return blocked.reason.replace(blocked.path, "").strip(" :,") or blocked.reason


def _format_input(row: InputRow, cited: tuple[Citation, ...]) -> str:
    blocked = row.blocked
    state = {"changed": "The file has changed: it is free.", "gone": "There is no such file any more."}.get(row.now, "")
    by = f"by job {blocked.job_id}" if blocked.job_id else "by hand"
    lines = [
        _format_path(blocked),
        f"  digest  {blocked.digest}",
        f"  binds   {_format_owner(blocked.uid)}",
        f"  since   {text_format.moment(blocked.at, terminal.get_local_zone())}, {by}",
        f"  why     {text_format.visible(blocked.reason)}",
        *([f"  now     {state}"] if state else []),
        *(f"  {text_format.visible(cite.source)}:{cite.line}: {text_format.visible(cite.text)}" for cite in cited),
    ]
    if blocked.job_id:
        lines.append(f"  more    slurmwrap why {blocked.job_id}")
    return "\n".join(lines)


def _row_to_json(row: InputRow) -> dict[str, Any]:
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
    """Return the path, which a user chose, with control characters made visible."""
    return text_format.visible(blocked.path) or f"the file of digest {blocked.digest[:_DIGEST_LENGTH]}"
