"""Open SQLite files and translate their errors to messages that say what to do. Standard library only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from slurmwrap.errors import StoreError
from slurmwrap.store.migrations import APPLICATION_ID, VERSION

# Types of network file systems. SQLite's WAL needs memory that all processes share, so it works on one machine only
# (https://sqlite.org/wal.html).
_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs", "panfs", "wekafs", "9p")
)


def connect(path: Path, *, busy_s: float) -> sqlite3.Connection:
    """Open an existing file for reading and writing; wait at most `busy_s` for other writers. Raises sqlite3.Error."""
    connection = sqlite3.connect(_make_uri(path, "mode=rw"), uri=True, timeout=busy_s, isolation_level=None)
    connection.row_factory = None
    return connection


def connect_readonly(path: Path, *, busy_s: float, any_thread: bool = False) -> sqlite3.Connection:
    """Open an existing file for reading only. Raises sqlite3.Error. `any_thread`: other threads may use it."""
    connection = sqlite3.connect(
        _make_uri(path, "mode=ro"), uri=True, timeout=busy_s, isolation_level=None, check_same_thread=not any_thread
    )
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        # A reader of a file in WAL mode creates a -shm file. If it may not, and no process writes, it can read without.
        connection.close()
        if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists():
            raise
        connection = sqlite3.connect(
            _make_uri(path, "mode=ro&immutable=1"), uri=True, isolation_level=None, check_same_thread=not any_thread
        )
    return connection


def _make_uri(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?{mode}"


def read_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the schema; 0 for an empty file. StoreError if it is newer or not slurmwrap's."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreError(f"{path} is a database of another program", hint="move it away; nothing in it was changed")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer slurmwrap (schema {version}; this one knows {VERSION})",
            hint="upgrade slurmwrap here; the file was not touched",
        )
    return version


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert sqlite3.Error to a StoreError that names `path` and says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, path) from error


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Convert an OSError about `path` or its directory to a StoreError."""
    try:
        yield
    except OSError as error:
        hint = f"see that its directory exists, is yours and has space left: ls -ld {path.parent}"
        raise StoreError(f"database {path} cannot be used: {error.strerror or error}", hint=hint) from error


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the StoreError for an SQLite error, by its primary code, the low byte (https://sqlite.org/rescode.html)."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # A file that is opened read-only is not migrated, so a table may be missing.
    missing = str(error).startswith(("no such table", "no such column"))
    what, hint = _OLD_SCHEMA if missing else _FAULTS.get(code, (f"cannot be used: {error}", ""))
    return StoreError(f"database {path} {what}", hint=hint.format(path=path))


_OLD_SCHEMA = ("is of an older version", "the next 'slurmwrap reconcile' migrates it")
_LOCKED = ("is locked by another process", "try again in a moment; 'fuser {path}' shows which one")
_BROKEN = (
    "is damaged",
    "nothing was changed; restore a backup, or move the file away to start a new one: mv {path} {path}.damaged",
)
_READONLY = ("cannot be written", "see who owns it and whether its file system is mounted read-only: ls -l {path}")
_FAULTS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
    sqlite3.SQLITE_FULL: ("has no space left", "free space on its file system or raise the quota: df {path}"),
    sqlite3.SQLITE_READONLY: _READONLY,
    sqlite3.SQLITE_PERM: _READONLY,
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "see that you may read and write it and its directory: ls -ld {path}",
    ),
    sqlite3.SQLITE_IOERR: ("cannot be read or written (I/O error)", "look at the disk and its quota: df {path}"),
}


def select_journal_mode(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return `WAL`, or `DELETE` if `path` is on a network file system (a home directory shared by login nodes)."""
    try:
        kind = find_filesystem(path.resolve(), mounts.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return "WAL"
    return "DELETE" if kind in _NETWORK or kind.startswith("fuse.") else "WAL"


def find_filesystem(path: Path, mountinfo: str) -> str:
    """Return the type of `path`'s file system from the text of /proc/self/mountinfo (proc(5)); "" if none. Pure."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if len(fields) < 5:
            continue
        mount = Path(fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        # Of two file systems on one mount point, the later one is visible.
        if path.is_relative_to(mount) and len(mount.parts) >= best:
            best, found = len(mount.parts), kind
    return found
