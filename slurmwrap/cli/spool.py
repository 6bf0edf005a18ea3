"""`slurmwrap spool`: list the files that wait for the reconciler, show what it rejected, and remove rejected files.

Only names and owners of spool files are read, not their content: the reconciler alone reads that, by the rules of
store/spool_reader.py.
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.config.load_config import Config, find_user_state_dir, load
from slurmwrap.errors import RefusedError, StoreError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.report import text_format
from slurmwrap.slurm.response_cache import find_cache_folder
from slurmwrap.store.database import Database
from slurmwrap.store.list_queries import forget_rejected_entries
from slurmwrap.store.spool_reader import MAX_ENTRIES, REJECTED
from slurmwrap.store.user_state_files import SPOOL

app = typer.Typer(
    no_args_is_help=True,
    help="""Files next to the database: what hooks, gsub and pre-runs left for the reconciler, which of it was
    rejected, Slurm's answers that gsub caches for seconds, and logs of slurmwrap's own errors.

    \b
    Examples:
      slurmwrap spool list
        slurmwrap spool show                what was rejected, and why
        slurmwrap spool clear               remove rejected files
        slurmwrap spool clear --answers     also gsub's cache of Slurm's answers
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFiles:
    """The files of one owner in one spool. Times in Unix seconds."""

    spool: str
    directory: str
    # "waiting" for the reconciler; "rejected" by it; "unfinished": being written; "answers": gsub's cache of Slurm's
    # answers; "faults": logs of slurmwrap's own errors.
    what: str
    owner: str
    files: int
    # In bytes.
    size: int
    oldest: float


@app.command("list")
def list_spool(user: list_options.User = "", as_json: list_options.AsJson = False) -> None:
    """List waiting and rejected files, by spool and owner."""
    wanted = list_options.split_list(user)
    rows = [one for one in _list_files() if not wanted or one.owner in wanted]
    list_options.print_list("spool", [asdict(one) for one in rows], _format_table(rows), as_json=as_json)


@app.command()
def show(user: list_options.User = "", as_json: list_options.AsJson = False) -> None:
    """Show what was rejected: by owner, with the number, the reason, and the name of the newest file."""
    source, wanted = _get_record_source(), list_options.split_list(user)
    counts = []
    if source.database.exists():
        with Database.open(source.database, readonly=True) as database:
            counts = [{**row, "user": list_options.user_name(row["uid"])} for row in database.count_rejected_entries()]
    rows = [row for row in counts if not wanted or row["user"] in wanted]
    list_options.print_list("spool_refused", rows, _format_rejected(rows), as_json=as_json)


@app.command(short_help="Remove rejected files.")
def clear(
    counts: Annotated[bool, typer.Option("--counts", help="Also the counts by owner and reason.")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="Also your gsub's cache of Slurm's answers.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="Also your logs of slurmwrap's own errors.")] = False,
) -> None:
    """Remove rejected files. What waits for the reconciler is never touched.

    The site's for root and SlurmUser, else your own.
    """
    source = _get_record_source()
    removed = sum(_remove_rejected(directory / REJECTED) for _, directory in _list_spools(source, load(os.environ)))
    removed += _remove_files(_list_cached_answers()) if answers else 0
    removed += _remove_files(_list_error_logs()) if faults else 0
    typer.echo(f"{text_format.count(removed, 'file')} removed")
    if counts and source.database.exists():
        with Database.open(source.database) as database:
            typer.echo(f"{text_format.count(forget_rejected_entries(database), 'count')} forgotten")


# --- files in the spools --------------------------------------------------------------------------------------------


def _get_record_source() -> RecordSource:
    return find_record_source(load(os.environ), os.environ, os.geteuid())


def _list_spools(source: RecordSource, config: Config) -> Iterator[tuple[str, Path]]:
    if not source.site:
        yield "yours", find_user_state_dir(os.environ) / SPOOL
        return
    if config.site.spool:
        yield "site", Path(config.site.spool)
    yield "controller", Path(config.site.state_dir) / "controller"


def _list_files() -> list[SpoolFiles]:
    source, config = _get_record_source(), load(os.environ)
    groups = [
        group
        for spool, directory in _list_spools(source, config)
        for folder, rejected in ((directory, False), (directory / REJECTED, True))
        for group in _summarize_spool(spool, folder, rejected)
    ]
    return [
        *groups,
        *_summarize_files("answers", _list_cached_answers()),
        *_summarize_files("faults", _list_error_logs()),
    ]


def _list_cached_answers() -> list[Path]:
    """Return the files of the calling user's cache of Slurm's answers (slurm/response_cache.py)."""
    try:
        folder = Path(find_cache_folder(os.environ, os.geteuid()))
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return [path for path in folder.iterdir() if is_own and path.is_file() and not path.is_symlink()]
    except OSError:
        return []


def _list_error_logs() -> list[Path]:
    """Return the logs with tracebacks of slurmwrap's own errors (console.py)."""
    return sorted(find_user_state_dir(os.environ).glob("fault-*.log"))


def _summarize_files(what: str, files: list[Path]) -> list[SpoolFiles]:
    found = []
    for path in files:
        with suppress(OSError):
            found.append(path.stat())
    if not found:
        return []
    return [
        SpoolFiles(
            spool="yours",
            directory=str(files[0].parent),
            what=what,
            owner=_format_owner(os.geteuid()),
            files=len(found),
            size=sum(one.st_size for one in found),
            oldest=min(one.st_mtime for one in found),
        )
    ]


def _remove_files(files: list[Path]) -> int:
    gone = 0
    for path in files:
        with suppress(OSError):
            path.unlink()
            gone += 1
    return gone


def _summarize_spool(spool: str, directory: Path, rejected: bool) -> list[SpoolFiles]:
    groups: dict[tuple[str, int], list[os.stat_result]] = {}
    for name, found in _iterate_entries(directory):
        what = "rejected" if rejected else "unfinished" if name.startswith(".") else "waiting"
        groups.setdefault((what, found.st_uid), []).append(found)
    return [
        SpoolFiles(
            spool=spool,
            directory=str(directory),
            what=what,
            owner=_format_owner(uid),
            files=len(files),
            size=sum(one.st_size for one in files),
            oldest=min(one.st_mtime for one in files),
        )
        for (what, uid), files in sorted(groups.items())
    ]


def _iterate_entries(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES:
                    return
                found = entry.stat(follow_symlinks=False)
                if entry.name != "wake" and not stat.S_ISDIR(found.st_mode):
                    yield entry.name, found
    except FileNotFoundError:
        return
    except OSError as error:
        hint = "check its owner and mode with ls -ld"
        raise StoreError(f"spool {directory}: {error.strerror}", hint=hint) from error


def _format_owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _remove_rejected(directory: Path) -> int:
    """Remove the regular files of a `rejected` directory and return how many.

    Raise RefusedError if it is neither the caller's nor of the spool's owner, StoreError if it is a symbolic link.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}", hint="see what it is: ls -ld") from error
    try:
        if os.fstat(descriptor).st_uid not in (os.geteuid(), os.stat(directory.parent).st_uid):  # noqa: PTH116
            raise RefusedError(f"{directory} belongs to someone else: nothing was removed", hint=f"ls -ld {directory}")
        names = [entry.name for entry in os.scandir(descriptor) if entry.is_file(follow_symlinks=False)]
        gone = 0
        for name in names:
            # The reconciler limits the number of rejected files and may have removed it first.
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
                gone += 1
        return gone
    finally:
        os.close(descriptor)


# --- shown ---------------------------------------------------------------------------------------------------------


def _format_table(rows: list[SpoolFiles]) -> str:
    if not rows:
        return "Nothing waits, and nothing was refused."
    now = time.time()
    lines = [
        [
            one.spool,
            one.what,
            one.owner,
            f"{one.files:,}",
            f"{one.size / 1024:,.0f}",
            _format_age(now - one.oldest),
            one.directory,
        ]
        for one in rows
    ]
    head = ("spool", "what", "~owner", ">files", ">KiB", ">oldest", "~directory")
    return text_format.table(head, lines, indent=0, columns=terminal.columns())


def _format_age(seconds: float) -> str:
    return text_format.duration(max(0.0, seconds))


def _format_rejected(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Nothing was refused."
    zone = terminal.get_local_zone()
    lines = [
        [row["user"], str(row["count"]), text_format.moment(row["last_at"], zone)[5:], row["reason"], row["last_name"]]
        for row in rows
    ]
    return text_format.table(
        ("~user", ">files", "last", "~reason", "~newest"), lines, indent=0, columns=terminal.columns()
    )
