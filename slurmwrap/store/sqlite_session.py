"""Edge: one open SQLite file: transactions, and the few statements that every method of Database is made of."""

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
    """An open database file. Every write is a transaction of its own, or part of the one around it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        # Public: store/report_reader.py reads rows without making records.
        self.connection = connection
        self._depth = 0

    def close(self) -> None:
        """Closes the file; the object cannot be used afterwards."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes within happen together or not at all. May be nested; the outermost one counts."""
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
        # Most writes: the transaction around them explains what goes wrong.
        if self._depth:
            return self.connection.execute(sql, row).rowcount > 0
        with self.transaction():
            return self._write(sql, row)

    def _select(
        self, table: RecordTable, where: Mapping[str, Any], *, extra: str = "", order: str = ""
    ) -> tuple[Any, ...]:
        """`where`: condition with one "?" -> its value; None leaves the condition out."""
        given = [(condition, value) for condition, value in where.items() if value is not None]
        conditions = [condition for condition, _ in given] + ([extra] if extra else [])
        sql = f"SELECT * FROM {table.name}"
        sql += f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql += f" ORDER BY {order}" if order else ""
        values = [encode_sql_text(value) if isinstance(value, str) else value for _, value in given]
        return self._read(table, sql, values)

    def _read(self, table: RecordTable, sql: str, values: Sequence[Any] | dict[str, Any]) -> tuple[Any, ...]:
        try:
            return tuple(record_from_row(table, row) for row in self._rows(sql, values))
        except ValueError as error:
            raise StoreError(f"{self.path}, table {table.name}: {error}", hint="restore a backup") from error

    def _rows(self, sql: str, values: Sequence[Any] | dict[str, Any] | None = None) -> list[dict[str, Any]]:
        with translate_sqlite_errors(self.path):
            cursor = self.connection.execute(sql, values if values is not None else ())
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def each(self, sql: str, values: Sequence[Any], made: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        """What `made` makes of each row, read as it is taken; the file must stay open as long."""
        with translate_sqlite_errors(self.path):
            cursor = self.connection.execute(sql, values)
            names = [column[0] for column in cursor.description]
            try:
                yield from (made(dict(zip(names, row, strict=True))) for row in cursor)
            except ValueError as error:
                raise StoreError(f"{self.path}: {error}", hint="restore a backup") from error

    @contextmanager
    def _write_durably(self) -> Iterator[None]:
        """WAL with synchronous=NORMAL may lose its newest commits when the power fails; within, it may not."""
        if self._depth:
            yield
            return
        with translate_sqlite_errors(self.path):
            self.connection.execute("PRAGMA synchronous = FULL")
            try:
                yield
            finally:
                self.connection.execute("PRAGMA synchronous = NORMAL")
