"""Edge: a database in memory of records that come from several places, so that they are asked like the site's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurmwrap.store import schema
from slurmwrap.store.database import Database
from slurmwrap.store.db_creation import prepare
from slurmwrap.store.migrations import MIGRATIONS

_PLACE = Path(":memory:")


def open_in_memory(*records: tuple[schema.RecordTable, Iterable[Any]]) -> Database:
    """Newest schema, with `records` in it. Actions may be of runs that are not there."""
    connection = prepare(sqlite3.connect(_PLACE, isolation_level=None, check_same_thread=False))
    connection.execute("PRAGMA foreign_keys = OFF")
    for step in MIGRATIONS:
        for statement in step():
            connection.execute(statement)
    database = Database(_PLACE, connection)
    with database.transaction():
        for table, found in records:
            connection.executemany(
                schema.insert(table, "OR REPLACE"), (schema.row_from_record(table, one) for one in found)
            )
    return database
