"""Edge: makes a database file and brings it to the newest schema, each in one step that cannot be seen half done."""

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
    """The connection (in autocommit mode) with the settings that hold for it alone; closes it when that fails."""
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if writable:
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection
    except BaseException:
        connection.close()
        raise


def create(path: Path, clock: Clock | None) -> None:
    """Makes the whole file aside and puts it in place in one step: no one ever sees half a schema."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp: mode 0600
    os.close(handle)
    aside = Path(name)
    try:
        connection = prepare(connect(aside, busy_s=BUSY_S))
        try:
            set_page_layout(connection)
            migrate(connection, path, clock)
        finally:
            connection.close()
        _give_to_owner(aside, path.parent)
        _put_in_place(aside, path)
    finally:
        for leftover in (aside, aside.with_name(aside.name + "-wal"), aside.with_name(aside.name + "-shm")):
            leftover.unlink(missing_ok=True)


def set_page_layout(connection: sqlite3.Connection) -> None:
    """How the file is made of pages; of one that holds something it takes effect with VACUUM, outside of WAL.

    Pages twice the usual size: SQLite keeps a quarter of one of a row of a table WITHOUT ROWID, and our widest rows
    are 1 to 2 KB. What pruning frees can be given back to the file system bit by bit.
    """
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def _give_to_owner(aside: Path, directory: Path) -> None:
    """Root may be the first to open SlurmUser's database; SlurmUser must still be able to use it."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(aside, owner.st_uid, owner.st_gid)


def _put_in_place(aside: Path, path: Path) -> None:
    """Like os.replace, but a database that another process made in the meantime stays."""
    try:
        with suppress(FileExistsError):
            os.link(aside, path)
    except OSError:
        # A file system without hard links.
        aside.replace(path)


def migrate(connection: sqlite3.Connection, path: Path, clock: Clock | None) -> None:
    """All missing steps in one transaction; the version is read again inside it, after waiting for other writers."""
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
