"""Write records to a database through the store's own tables, in large transactions."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmwrap.store import record_rows
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import fill_run_times
from slurmwrap.store.sqlite_connection import connect

_ALSO = {"strikes": ("cluster", "submit_time")}
_BATCH = 20_000


class Sink:
    """Writes rows directly after the store has opened or created the file: one method call per row would take hours."""

    def __init__(self, path: Path) -> None:
        Database.open(path).close()
        self.counts: Counter[str] = Counter()
        self._connection: sqlite3.Connection = connect(path, busy_s=60)
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._size = 0

    def add(self, table: record_rows.RecordTable, record: Any, **also: Any) -> None:
        """Add one record; `also`: values of columns for which the record has no field."""
        sql = record_rows.insert(table, "OR REPLACE", also=_ALSO.get(table.name, ()))
        self.row(table.name, sql, {**record_rows.row_from_record(table, record), **also})

    def row(self, table: str, sql: str, row: Mapping[str, Any]) -> None:
        """Add one row by a separate statement."""
        self._rows.setdefault(sql, []).append(row)
        self.counts[table] += 1
        self._size += 1
        if self._size >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write all pending rows in one transaction. Attempts come first, because actions refer to them."""
        self._connection.execute("BEGIN IMMEDIATE")
        for sql, rows in sorted(self._rows.items(), key=lambda item: "INTO attempts" not in item[0]):
            self._connection.executemany(sql, rows)
        self._connection.execute("COMMIT")
        self._rows, self._size = {}, 0

    def close(self) -> None:
        self.flush()
        for statement in fill_run_times():
            self._connection.execute(statement)
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
