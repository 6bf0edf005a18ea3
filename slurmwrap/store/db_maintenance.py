"""Back up a database file while others write to it, check it for damage, and delete old copies (adapter)."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.sqlite_connection import (
    connect_readonly,
    read_version,
    translate_os_errors,
    translate_sqlite_errors,
)

# Pages that one step of a backup copies.
_PAGES = 1_000
_BUSY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """One table with its rows, and its bytes including indexes. None: this SQLite has no dbstat to report them."""

    name: str
    rows: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How far one kind of pruning has come."""

    what: str
    before: float
    at: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Result of `check`. `faults`: problems, a sentence each; () for a sound file. `notes`: possible improvements."""

    path: str
    version: int
    newest_version: int
    journal_mode: str
    bytes: int
    wal_bytes: int
    # Unused pages in the file.
    free_bytes: int
    # End of the oldest run in Unix seconds.
    first_run: float | None
    last_run: float | None
    tables: tuple[TableSize, ...] = ()
    pruned: tuple[Pruning, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def backup(
    source: Path, target: Path, *, force: bool = False, progress: Callable[[float], None] = lambda share: None
) -> int:
    """Copy `source` as it is at one moment, while others read and write it; return the bytes of the copy.

    The copy is written into a temporary private folder with mode 0600, checked, synced to disk and renamed. A folder is
    needed because SQLite opens files next to a database by name (-journal, -wal). `progress` gets the share done.
    StoreError when `target` exists (without `force`) or anything fails; nothing is left behind then.
    """
    if target.exists() and not force:
        raise StoreError(f"{target} exists already", hint="name another file, or use --force")
    reject_open_directory(target.parent)
    with translate_os_errors(target):
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    temporary = folder / target.name
    try:
        with translate_os_errors(target):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        _copy(source, temporary, target, progress)
        with translate_os_errors(target):
            _sync_to_disk(temporary)
            temporary.replace(target)
            _sync_to_disk(target.parent)
            return target.stat().st_size
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def reject_open_directory(directory: Path) -> None:
    """Raise StoreError if root would write a copy into a directory in which another user could replace it."""
    if os.geteuid() != 0:
        return
    with translate_os_errors(directory):
        found = directory.stat()
    others = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if found.st_uid != 0 or others:
        raise StoreError(
            f"root writes no copy into {directory}, where uid {found.st_uid} or other users could replace it",
            hint="name a folder that only root can write: install -d -m 700 /var/backups/slurmwrap",
        )


def _copy(source: Path, temporary: Path, target: Path, progress: Callable[[float], None]) -> None:
    with (
        translate_os_errors(source),
        translate_sqlite_errors(source),
        closing(connect_readonly(source, busy_s=_BUSY_S)) as read,
    ):
        read_version(read, source)
        # With a read transaction the copy shows this moment, and does not start again when another process writes.
        read.execute("BEGIN")
        read.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with translate_sqlite_errors(target), closing(sqlite3.connect(temporary, isolation_level=None)) as write:
            read.backup(
                write, pages=_PAGES, progress=lambda _, left, total: progress(1 - left / total if total else 1.0)
            )
            # A single file: the copy must not need a -wal file.
            write.execute("PRAGMA journal_mode = DELETE")
            check_result = [row[0] for row in write.execute("PRAGMA quick_check(3)")]
        if check_result != ["ok"]:
            raise StoreError(
                f"the copy of {source} is not sound: {check_result[0]}", hint=f"run: slurmwrap db check {source}"
            )


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rotate(directory: Path, stem: str, keep: int) -> tuple[Path, ...]:
    """Delete all but the newest `keep` copies `STEM-20261121-030000.db` in `directory`, and no file of another name.

    Return the deleted paths.
    """
    dated = re.compile(re.escape(stem) + r"-[0-9]{8}-[0-9]{4,6}\.db")
    found = sorted(path for path in directory.iterdir() if dated.fullmatch(path.name))
    deleted = tuple(found[:-keep] if keep else found)
    with translate_os_errors(directory):
        for path in deleted:
            path.unlink()
    return deleted


def check(path: Path, *, thorough: bool = True) -> Health:
    """Check the whole file; without `thorough` indexes are not compared with their tables.

    StoreError when the file cannot be opened at all.
    """
    with (
        translate_os_errors(path),
        translate_sqlite_errors(path),
        closing(connect_readonly(path, busy_s=_BUSY_S)) as connection,
    ):
        version = read_version(connection, path)
        damage = _check_integrity(connection, thorough)
        faults = [*damage, *([] if damage else _check_orphans(connection))]
        if version < VERSION:
            faults.append(
                f"its schema has version {version}, this slurmwrap needs {VERSION}: run 'slurmwrap db migrate'"
            )
        size: int = connection.execute("PRAGMA page_size").fetchone()[0]
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            faults.append(f"other users may open it (mode {mode:04o}), and it holds users' log lines: chmod 600 {path}")
        notes = [] if connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2 else [_OLD_LAYOUT]
        return Health(
            path=str(path),
            version=version,
            newest_version=VERSION,
            journal_mode=connection.execute("PRAGMA journal_mode").fetchone()[0],
            bytes=path.stat().st_size,
            wal_bytes=_get_size(path.with_name(path.name + "-wal")),
            free_bytes=size * connection.execute("PRAGMA freelist_count").fetchone()[0],
            # A damaged file is not queried: the first bad page would raise, and the other faults would not be reported.
            first_run=None if damage else _read_one(connection, "SELECT min(end_time) FROM attempts"),
            last_run=None if damage else _read_one(connection, "SELECT max(end_time) FROM attempts"),
            tables=() if damage else _list_tables(connection),
            pruned=() if damage else _list_prunings(connection),
            faults=tuple(faults),
            notes=tuple(notes),
        )


_OLD_LAYOUT = (
    "it was created by an older version and does not shrink by itself: 'slurmwrap db prune --vacuum' changes that"
)


def _check_integrity(connection: sqlite3.Connection, thorough: bool) -> list[str]:
    pragma = "integrity_check" if thorough else "quick_check"
    try:
        check_result = [str(row[0]) for row in connection.execute(f"PRAGMA {pragma}(10)")]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        check_result = [str(error)]
    return [] if check_result == ["ok"] else [f"damaged: {line}" for line in check_result]


def _check_orphans(connection: sqlite3.Connection) -> list[str]:
    found = [row[0] for row in connection.execute("PRAGMA foreign_key_check")]
    return [f"{found.count(name)} rows of {name} point to a run that is not there" for name in sorted(set(found))]


def _read_one(connection: sqlite3.Connection, sql: str) -> float | None:
    try:
        found: float | None = connection.execute(sql).fetchone()[0]
    except sqlite3.OperationalError:  # an empty file
        return None
    return found


def _list_prunings(connection: sqlite3.Connection) -> tuple[Pruning, ...]:
    try:
        rows = connection.execute("SELECT what, before, at, rows FROM pruned ORDER BY what").fetchall()
    except sqlite3.OperationalError:  # of an older version
        return ()
    return tuple(Pruning(what=what, before=before, at=at, rows=count) for what, before, at, count in rows)


def _list_tables(connection: sqlite3.Connection) -> tuple[TableSize, ...]:
    """Return the tables, the largest first."""
    # Imported here because it takes 0.1 s and no other command needs it.
    from sqlite_utils import Database

    sizes = _list_sizes(connection)
    found = [
        TableSize(name=table.name, rows=table.count, bytes=None if sizes is None else sizes.get(table.name, 0))
        for table in Database(connection, execute_plugins=False).tables
        if not table.name.startswith("sqlite_")
    ]
    return tuple(sorted(found, key=lambda table: (-(table.bytes or 0), -table.rows, table.name)))


def _list_sizes(connection: sqlite3.Connection) -> dict[str, int] | None:
    sql = "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s JOIN sqlite_master m ON m.name = s.name"
    try:
        return dict(connection.execute(f"{sql} WHERE s.aggregate = 1 GROUP BY 1").fetchall())
    except sqlite3.OperationalError:
        return None


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
