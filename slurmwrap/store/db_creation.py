"""Create a database file and migrate it to the newest schema, each in one step that is never visible half done."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from slurmwrap.errors import StoreError
from slurmwrap.protocols import Clock
from slurmwrap.store.migrations import APPLICATION_ID, MIGRATIONS, OLD_NAMES_MARK, VERSION, rename_old_names
from slurmwrap.store.sqlite_connection import connect, select_journal_mode

BUSY_S = 5.0
PAGE_BYTES = 8192


def prepare(connection: sqlite3.Connection, *, writable: bool = True) -> sqlite3.Connection:
    """Apply the settings that are valid per connection (in autocommit mode); close the connection on failure."""
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if writable:
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection
    except BaseException:
        connection.close()
        raise


def create(path: Path, clock: Clock | None) -> None:
    """Create the file under a temporary name and rename it, so that no process ever sees an incomplete schema."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp: mode 0600
    os.close(handle)
    temporary = Path(name)
    try:
        connection = prepare(connect(temporary, busy_s=BUSY_S))
        try:
            set_page_layout(connection)
            migrate(connection, path, clock)
        finally:
            connection.close()
        _give_to_owner(temporary, path.parent)
        _put_in_place(temporary, path)
    finally:
        for leftover in (
            temporary,
            temporary.with_name(temporary.name + "-wal"),
            temporary.with_name(temporary.name + "-shm"),
        ):
            leftover.unlink(missing_ok=True)


def set_page_layout(connection: sqlite3.Connection) -> None:
    """Set page size and auto_vacuum. In a file with content they take effect only with VACUUM, outside of WAL mode.

    Pages are twice the usual size: SQLite stores up to a quarter of a page of each row of a table WITHOUT ROWID, and
    the widest rows have 1 to 2 KB. With auto_vacuum, space that pruning frees can be returned in small steps.
    """
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def _give_to_owner(temporary: Path, directory: Path) -> None:
    """Give the file to the directory's owner: root may be the first to open the database of SlurmUser."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(temporary, owner.st_uid, owner.st_gid)


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename like os.replace, but keep a database that another process has created in the meantime."""
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError:
        # The file system has no hard links.
        temporary.replace(path)


def _run_steps(connection: sqlite3.Connection, done: int) -> None:
    for step in MIGRATIONS[done:]:
        for statement in step():
            connection.execute(statement)


def _require_columns(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError when a migrated database lacks a column of a new one: a version between releases wrote it."""
    with closing(sqlite3.connect(":memory:")) as new:
        _run_steps(new, 0)
        wanted = _list_columns(new)
    missing = sorted(wanted - _list_columns(connection))
    if missing:
        raise StoreError(
            f"{path} cannot be migrated: it lacks {', '.join(missing[:3])}; a version between two releases wrote it",
            hint="nothing in it was changed: use the version that wrote it, or move the file away to start a new one",
        )


def _list_columns(connection: sqlite3.Connection) -> set[str]:
    sql = "SELECT t.name || '.' || c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    return {name for (name,) in connection.execute(sql)}


def migrate(connection: sqlite3.Connection, path: Path, clock: Clock | None) -> None:
    """Run all missing steps in one transaction. The version is read again inside it, after waiting for writers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = connection.execute("PRAGMA user_version").fetchone()[0]
        if done and connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [OLD_NAMES_MARK]).fetchone():
            triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for statement in rename_old_names(name for (name,) in triggers):
                connection.execute(statement)
        _run_steps(connection, done)
        if done:
            _require_columns(connection, path)
        at = clock.now() if clock else time.time()
        for version in range(done + 1, VERSION + 1):
            connection.execute("INSERT OR IGNORE INTO migrations VALUES (?, ?)", [version, at])
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    connection.execute(f"PRAGMA journal_mode = {select_journal_mode(path)}")
