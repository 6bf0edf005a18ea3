"""An open SQLite file with transactions and the few statements that all methods of Database use (adapter)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from slurmwrap.errors import StoreError
from slurmwrap.store.record_rows import RecordTable, encode_sql_text, insert, record_from_row, row_from_record
from slurmwrap.store.sqlite_connection import translate_sqlite_errors

T = TypeVar("T")


class Session:
    """An open database file. Every write is its own transaction, or part of an enclosing one."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        # Public, because store/report_reader.py reads rows without making records.
        self.connection = connection
        self._depth = 0

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context in which either all writes happen or none. It may be nested; the outermost one commits."""
        with translate_sqlite_errors(self.path):
            if self._depth == 0:
                self.connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and self.connection.in_transaction:
                    self.connection.rollback()
                raise
            self._depth -= 1
            if self._depth == 0:
                self._commit()

    def _commit(self) -> None:
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error:
            self.connection.rollback()
            raise

    def _upsert(self, table: RecordTable, record: Any) -> None:
        self._write(insert(table, conflict=True), row_from_record(table, record))

    def _write(self, sql: str, row: Mapping[str, Any]) -> bool:
        # Within a transaction, as most writes are, the enclosing context translates errors.
        if self._depth:
            return self.connection.execute(sql, row).rowcount > 0
        with self.transaction():
            return self._write(sql, row)

    def _select(
        self, table: RecordTable, where: Mapping[str, Any], *, extra: str = "", order: str = ""
    ) -> tuple[Any, ...]:
        """Return matching records. `where`: condition with one "?" → its value; None leaves the condition out."""
        conditions_with_values = [(condition, value) for condition, value in where.items() if value is not None]
        conditions = [condition for condition, _ in conditions_with_values] + ([extra] if extra else [])
        sql = f"SELECT * FROM {table.name}"
        sql += f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql += f" ORDER BY {order}" if order else ""
        values = [encode_sql_text(value) if isinstance(value, str) else value for _, value in conditions_with_values]
        return self._read(table, sql, values)

    def _read(self, table: RecordTable, sql: str, values: Sequence[Any] | dict[str, Any]) -> tuple[Any, ...]:
        try:
            return tuple(record_from_row(table, row) for row in self._rows(sql, values))
        except ValueError as error:
            raise StoreError(f"{self.path}, table {table.name}: {error}", hint="restore a backup") from error

    def _has_table(self, name: str) -> bool:
        """Return True if the file has the table. A file of an older version that is opened read-only may not."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", [name]))

    def _rows(self, sql: str, values: Sequence[Any] | dict[str, Any] | None = None) -> list[dict[str, Any]]:
        with translate_sqlite_errors(self.path):
            cursor = self.connection.execute(sql, values if values is not None else ())
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def each(self, sql: str, values: Sequence[Any], made: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        """Yield `made(row)` for each row, read one by one; the file must stay open meanwhile."""
        with translate_sqlite_errors(self.path):
            cursor = self.connection.execute(sql, values)
            names = [column[0] for column in cursor.description]
            try:
                yield from (made(dict(zip(names, row, strict=True))) for row in cursor)
            except ValueError as error:
                raise StoreError(f"{self.path}: {error}", hint="restore a backup") from error

    @contextmanager
    def _write_durably(self) -> Iterator[None]:
        """Return a context whose commits survive a power failure; WAL with synchronous=NORMAL may lose the newest."""
        if self._depth:
            yield
            return
        with translate_sqlite_errors(self.path):
            self.connection.execute("PRAGMA synchronous = FULL")
            try:
                yield
            finally:
                self.connection.execute("PRAGMA synchronous = NORMAL")
