"""Read and search the tables of a database file with sqlite-utils, for `slurmwrap db`. Nothing is written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.errors import UsageError
from slurmwrap.escape import utf8
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.store.record_rows import encode_sql_text
from slurmwrap.store.sqlite_connection import (
    connect_readonly,
    explain,
    read_version,
    translate_os_errors,
    translate_sqlite_errors,
)

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteUtilsDatabase


_ROWS_PER_REPORT = 2_000  # failures between two reports of progress
_TOKENS = 24  # length of a snippet
MARKS = ("\x02", "\x03")  # around each search word in a snippet

_INDEXED = ("evidence", "advice", "diagnosis", "reason")
_FAILED = "FROM attempts WHERE diagnosis_category NOT IN ('success', 'cancelled')"
_READ = f"""SELECT cluster, address, submit_time, user, end_time, diagnosis_category, diagnosis_signature,
diagnosis_node, diagnosis_input_path, diagnosis_evidence, diagnosis_advice, decision_reason {_FAILED}"""
_FOUND = f"""SELECT f.cluster, f.job, f.submit_time, f.user, f.category, f.ended_at,
snippet(failures_fts, -1, '{MARKS[0]}', '{MARKS[1]}', '…', {_TOKENS}) AS snippet
FROM failures_fts JOIN failures f ON f.rowid = failures_fts.rowid
WHERE failures_fts MATCH ? ORDER BY failures_fts.rank, f.ended_at DESC, f.job LIMIT ?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFailure:
    """A failed run that contains all search words."""

    cluster: str
    # The address: 81, or 77_2 for an array task.
    job: str
    submit_time: int
    user: str
    category: str  # of the taxonomy
    ended_at: float | None
    # Part of its evidence, advice, diagnosis or reason.
    snippet: str


def search_failures(
    path: Path, words: Sequence[str], limit: int, progress: Callable[[float], None] = lambda share: None
) -> tuple[tuple[FoundFailure, ...], int]:
    """Return the `limit` most relevant failed runs that contain all of `words`, and how many there are in total.

    A word with spaces is a phrase. `progress` gets the share that is indexed. Raises StoreError.
    """
    from sqlite_utils import Database

    with closing(Database(memory=True, execute_plugins=False)) as index:
        with (
            translate_os_errors(path),
            translate_sqlite_errors(path),
            closing(connect_readonly(path, busy_s=_BUSY_S)) as connection,
        ):
            read_version(connection, path)
            index.table("failures").insert_all(_read_failures(connection, progress), columns=_COLUMNS)
        if not index["failures"].exists():
            return (), 0
        index.table("failures").enable_fts(_INDEXED, tokenize="porter")
        progress(1.0)
        query = " ".join('"' + _make_storable(word).replace('"', '""') + '"' for word in words)
        total = index.execute("SELECT count(*) FROM failures_fts WHERE failures_fts MATCH ?", [query]).fetchone()[0]
        found = index.query(_FOUND, [query, limit])
        return tuple(FoundFailure(**row) for row in found), total


# Columns of the index. Without them sqlite-utils would derive the types from the first rows.
_COLUMNS = {
    "cluster": str,
    "job": str,
    "submit_time": int,
    "user": str,
    "category": str,
    "ended_at": float,
    **dict.fromkeys(_INDEXED, str),
}


def _read_failures(connection: sqlite3.Connection, progress: Callable[[float], None]) -> Iterator[dict[str, Any]]:
    total = connection.execute(f"SELECT count(*) {_FAILED}").fetchone()[0]
    for number, row in enumerate(connection.execute(_READ)):
        if number % _ROWS_PER_REPORT == 0:
            # The rest of the share is for building the index, which is one step.
            progress(0.9 * number / total)
        cluster, address, submit_time, user, ended_at, category, *others = map(decode_value, row)
        signature, node, input_path, evidence, advice, reason = (_make_storable(text or "") for text in others)
        yield {
            "cluster": _make_storable(cluster),
            "job": _make_storable(address),
            "submit_time": submit_time,
            "user": _make_storable(user),
            "category": category,
            "ended_at": ended_at,
            "evidence": _make_storable(" · ".join(_list_texts(evidence))),
            "advice": advice,
            "diagnosis": " ".join(filter(None, (category, get_title(category), signature, node, input_path))),
            "reason": "" if reason == advice else reason,
        }


def _list_texts(evidence: str) -> list[str]:
    try:
        return [str(line["text"]) for line in json.loads(evidence or "[]")]
    except (ValueError, TypeError, KeyError):
        return []


def _make_storable(text: str) -> str:
    """Return the text without what SQLite's TEXT refuses."""
    return utf8(text).decode()


_BUSY_S = 30.0
_COMMON = 10  # most and least common values of a column that are returned
_VALUE_CHARS = 120  # characters of such a value
_STEPS = 1_000_000  # steps of SQLite's virtual machine between two checks for Ctrl-C
# SQLite's error codes for a wrong expression. All others are about the file.
_WRONG_SQL = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_TOOBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCount:
    """One value of a column, and the number of rows that have it."""

    # Text is cut to 120 characters.
    value: str | int | float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFigures:
    """Statistics of one column of a table."""

    table: str
    column: str
    rows: int  # of the table
    nulls: int  # rows without a value
    blanks: int  # rows with the empty text
    distinct: int  # different values, NULL not counted
    most_common: tuple[ValueCount, ...]  # at most 10; empty: every row has another value
    least_common: tuple[ValueCount, ...]  # at most 10; empty: every row has another value


class TableReader:
    """The tables and views of an open file. Use `open_tables` to create it."""

    def __init__(self, path: Path, database: SqliteUtilsDatabase) -> None:
        self.path = path
        self._database = database
        self.tables = tuple(sorted(name for name in database.table_names() if not name.startswith("sqlite_")))
        self.names = (*self.tables, *sorted(database.view_names()))

    def list_columns(self, table: str) -> tuple[str, ...]:
        """Return the names of the columns in the table's order. `table`: one of `names`."""
        with self._translate_errors():
            return tuple(self._database[table].columns_dict)

    def count_rows(self, table: str, where: str = "", values: Mapping[str, str] | None = None) -> int:
        """Return the number of rows for which the SQL expression `where` is true. UsageError if it is wrong."""
        with self._translate_errors(where):
            return self._database[table].count_where(_enclose(where), _encode(values))

    def read_rows(
        self,
        table: str,
        *,
        where: str = "",
        values: Mapping[str, str] | None = None,
        columns: Sequence[str] = (),
        order: str = "",
        descending: bool = False,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield rows as dicts of text, numbers and None; bytes that are not text as hexadecimal digits.

        `where`: an SQL expression with `:name` for the keys of `values`. `columns` (default all), `order`: names from
        `list_columns`. UsageError if the expression is wrong.
        """
        types = {one.name: one.type for one in self._database[table].columns}
        with self._translate_errors(where):
            for row in self._database[table].rows_where(
                _enclose(where),
                _encode(values),
                order_by=f"{_quote(order)} {'DESC' if descending else 'ASC'}" if order else None,
                select=", ".join(map(_quote, columns)) or "*",
                limit=limit,
            ):
                yield {name: decode_value(value, types.get(name, "")) for name, value in row.items()}

    def analyze_columns(
        self, table: str, progress: Callable[[str], None] = lambda column: None
    ) -> Iterator[ColumnFigures]:
        """Yield statistics of each column of a table (not a view). `progress` gets the name of each column."""
        with self._translate_errors():
            found = self._database.table(table)
            rows = found.count
            for column in found.columns:
                progress(column.name)
                # Without common values: sqlite-utils counts one value with NULLs wrong, and cannot sort NULL with text.
                seen = found.analyze_column(column.name, total_rows=rows, most_common=False, least_common=False)
                common = seen.num_distinct < rows
                yield ColumnFigures(
                    table=table,
                    column=column.name,
                    rows=rows,
                    nulls=seen.num_null,
                    blanks=seen.num_blank,
                    distinct=seen.num_distinct,
                    most_common=self._count_values(table, column.name, column.type, "DESC") if common else (),
                    least_common=self._count_values(table, column.name, column.type, "ASC") if common else (),
                )

    def _count_values(self, table: str, column: str, kind: str, way: str) -> tuple[ValueCount, ...]:
        sql = f"SELECT {_quote(column)}, count(*) FROM {_quote(table)} GROUP BY 1 ORDER BY 2 {way}, 1 LIMIT {_COMMON}"
        found = self._database.execute(sql).fetchall()
        return tuple(ValueCount(value=_cut(decode_value(value, kind)), count=count) for value, count in found)

    @contextmanager
    def _translate_errors(self, where: str = "") -> Iterator[None]:
        hint = 'it is an expression of SQL: --where "user = :u AND gpus > 8" --param u ada'
        try:
            yield
        except UnicodeEncodeError as error:
            raise UsageError("--where is no valid UTF-8", hint=hint) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from error
            if where and code in _WRONG_SQL:
                raise UsageError(f"--where '{where}': {error}", hint=hint) from error
            raise explain(error, self.path) from error


@contextmanager
def open_tables(path: Path) -> Iterator[TableReader]:
    """Open the file for reading in one read transaction, which shows it as it is at this moment. StoreError."""
    from sqlite_utils import Database

    with translate_os_errors(path), translate_sqlite_errors(path):
        connection = connect_readonly(path, busy_s=_BUSY_S)
    with closing(connection):
        with translate_sqlite_errors(path):
            read_version(connection, path)
            restrict(connection)
            connection.execute("BEGIN")
            reader = TableReader(path, Database(connection, execute_plugins=False))
        yield reader


def restrict(connection: sqlite3.Connection) -> None:
    """Restrict SQL of users to reading this file, and make it possible to end it with Ctrl-C."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    # Python raises KeyboardInterrupt only while it runs Python code: this handler, whose exception interrupts SQLite.
    connection.set_progress_handler(lambda: 0, _STEPS)


def decode_value(value: Any, kind: str = "") -> Any:
    """A value of SQLite as text, number or None. `kind`: the declared type of its column."""
    if not isinstance(value, bytes):
        return value
    # Text that is no valid UTF-8 (schema.encode_sql_text).
    if kind != "BLOB":
        try:
            return value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
    return value.hex()


def _enclose(where: str) -> str | None:
    """In parentheses, on lines of its own: a comment in it ends there."""
    return f"(\n{where}\n)" if where else None


def _encode(values: Mapping[str, str] | None) -> dict[str, str | bytes]:
    return {name: encode_sql_text(value) for name, value in (values or {}).items()}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cut(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _VALUE_CHARS else f"{value[: _VALUE_CHARS - 1]}…"
