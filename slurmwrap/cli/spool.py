"""`slurmwrap spool`: what waits for the reconciler, what it did not believe, and clearing that. Flags in, table out.

Names and owners are looked at, and no one's content: only the reconciler reads a spool file, by the rules of
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
from slurmwrap.cli.record_access import RecordSource, place_of
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
    help="""Files beside the database: what hooks, gsub and pre-runs left for the reconciler, what of it was not
    believed, Slurm's answers that gsub keeps for seconds, and logs of faults of ours.

    \b
    Examples:
      slurmwrap spool list
      slurmwrap spool show                what was not believed, and why
      slurmwrap spool clear               remove files that were not believed
      slurmwrap spool clear --answers     what gsub keeps of Slurm, too
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFiles:
    """The files of one owner in one spool. Times in Unix seconds."""

    spool: str
    directory: str
    # "waiting" for the reconciler, "rejected": it was not believed, "unfinished": being written, "answers" of Slurm's
    # that gsub keeps for seconds, "faults": logs of errors of slurmwrap's
    what: str
    owner: str
    files: int
    size: int  # bytes
    oldest: float


@app.command("list")
def list_spool(user: list_options.User = "", as_json: list_options.AsJson = False) -> None:
    """List files that wait and files that were not believed, by spool and owner."""
    wanted = list_options.split_list(user)
    rows = [one for one in _heaps() if not wanted or one.owner in wanted]
    list_options.say_list("spool", [asdict(one) for one in rows], _table(rows), as_json=as_json)


@app.command()
def show(user: list_options.User = "", as_json: list_options.AsJson = False) -> None:
    """Show what was not believed: whose files, how many, why, and the newest one's name."""
    place, wanted = _place(), list_options.split_list(user)
    counts = []
    if place.database.exists():
        with Database.open(place.database, readonly=True) as database:
            counts = [{**row, "user": list_options.user_name(row["uid"])} for row in database.count_rejected_entries()]
    rows = [row for row in counts if not wanted or row["user"] in wanted]
    list_options.say_list("spool_refused", rows, _refused(rows), as_json=as_json)


@app.command(short_help="Remove files that were not believed.")
def clear(
    counts: Annotated[bool, typer.Option("--counts", help="The counts by owner and reason too.")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="Slurm's answers that your gsub keeps too.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="Your logs of faults of ours too.")] = False,
) -> None:
    """Remove files that were not believed. What waits for the reconciler is never touched.

    The site's for root and SlurmUser, else your own.
    """
    place = _place()
    removed = sum(_emptied(directory / REJECTED) for _, directory in _spools(place, load(os.environ)))
    removed += _removed(_answers()) if answers else 0
    removed += _removed(_faults()) if faults else 0
    typer.echo(f"{text_format.count(removed, 'file')} removed")
    if counts and place.database.exists():
        with Database.open(place.database) as database:
            typer.echo(f"{text_format.count(forget_rejected_entries(database), 'count')} forgotten")


# --- what lies there -----------------------------------------------------------------------------------------------


def _place() -> RecordSource:
    return place_of(load(os.environ), os.environ, os.geteuid())


def _spools(source: RecordSource, config: Config) -> Iterator[tuple[str, Path]]:
    if not source.site:
        yield "yours", find_user_state_dir(os.environ) / SPOOL
        return
    if config.site.spool:
        yield "site", Path(config.site.spool)
    yield "controller", Path(config.site.state_dir) / "controller"


def _heaps() -> list[SpoolFiles]:
    place, config = _place(), load(os.environ)
    heaps = [
        heap
        for spool, directory in _spools(place, config)
        for folder, rejected in ((directory, False), (directory / REJECTED, True))
        for heap in _in(spool, folder, rejected)
    ]
    return [*heaps, *_of_files("answers", _answers()), *_of_files("faults", _faults())]


def _answers() -> list[Path]:
    """What gsub keeps of Slurm's words (slurm/response_cache.py), of the asking user."""
    try:
        folder = Path(find_cache_folder(os.environ, os.geteuid()))
        ours = folder.lstat()
        whole = stat.S_ISDIR(ours.st_mode) and ours.st_uid == os.geteuid()
        return [path for path in folder.iterdir() if whole and path.is_file() and not path.is_symlink()]
    except OSError:
        return []


def _faults() -> list[Path]:
    """Tracebacks of errors of slurmwrap's (console.py)."""
    return sorted(find_user_state_dir(os.environ).glob("fault-*.log"))


def _of_files(what: str, files: list[Path]) -> list[SpoolFiles]:
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
            owner=_owner(os.geteuid()),
            files=len(found),
            size=sum(one.st_size for one in found),
            oldest=min(one.st_mtime for one in found),
        )
    ]


def _removed(files: list[Path]) -> int:
    gone = 0
    for path in files:
        with suppress(OSError):
            path.unlink()
            gone += 1
    return gone


def _in(spool: str, directory: Path, rejected: bool) -> list[SpoolFiles]:
    groups: dict[tuple[str, int], list[os.stat_result]] = {}
    for name, found in _entries(directory):
        what = "rejected" if rejected else "unfinished" if name.startswith(".") else "waiting"
        groups.setdefault((what, found.st_uid), []).append(found)
    return [
        SpoolFiles(
            spool=spool,
            directory=str(directory),
            what=what,
            owner=_owner(uid),
            files=len(files),
            size=sum(one.st_size for one in files),
            oldest=min(one.st_mtime for one in files),
        )
        for (what, uid), files in sorted(groups.items())
    ]


def _entries(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
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
        hint = "may we read it? ls -ld shows whose it is"
        raise StoreError(f"spool {directory}: {error.strerror}", hint=hint) from error


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _emptied(directory: Path) -> int:
    """Removes the regular files of a `rejected` directory that is ours; nothing where it is a link or another's."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}", hint="see what it is: ls -ld") from error
    try:
        if os.fstat(descriptor).st_uid not in (os.geteuid(), os.stat(directory.parent).st_uid):  # noqa: PTH116
            raise RefusedError(f"{directory} belongs to somebody else: nothing was removed", hint=f"ls -ld {directory}")
        names = [entry.name for entry in os.scandir(descriptor) if entry.is_file(follow_symlinks=False)]
        gone = 0
        for name in names:
            # The reconciler keeps only so many, and was faster.
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
                gone += 1
        return gone
    finally:
        os.close(descriptor)


# --- shown ---------------------------------------------------------------------------------------------------------


def _table(rows: list[SpoolFiles]) -> str:
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
            _age(now - one.oldest),
            one.directory,
        ]
        for one in rows
    ]
    head = ("spool", "what", "~owner", ">files", ">KiB", ">oldest", "~directory")
    return text_format.table(head, lines, indent=0, columns=terminal.columns())


def _age(seconds: float) -> str:
    return text_format.duration(max(0.0, seconds))


def _refused(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Nothing was refused."
    zone = terminal.local_zone()
    lines = [
        [row["user"], str(row["count"]), text_format.moment(row["last_at"], zone)[5:], row["reason"], row["last_name"]]
        for row in rows
    ]
    return text_format.table(
        ("~user", ">files", "last", "~reason", "~newest"), lines, indent=0, columns=terminal.columns()
    )
