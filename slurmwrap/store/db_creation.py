"""Create a database file and migrate it to the newest schema, each in one step that is never visible half done."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from slurmwrap.protocols import Clock
from slurmwrap.store.migrations import APPLICATION_ID, MIGRATIONS, VERSION
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


def migrate(connection: sqlite3.Connection, path: Path, clock: Clock | None) -> None:
    """Run all missing steps in one transaction. The version is read again inside it, after waiting for writers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = connection.execute("PRAGMA user_version").fetchone()[0]
        for step in MIGRATIONS[done:]:
            for statement in step():
                connection.execute(statement)
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
