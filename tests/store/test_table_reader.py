"""store/table_reader.py: tables of a database are read with sqlite-utils."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.table_reader import TableReader, ValueCount, decode_value, open_tables, restrict

ENDLESS = "(WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "site.db"
    with Database.open(found):
        pass
    with closing(sqlite3.connect(found)) as connection, connection:
        connection.execute("CREATE TABLE mixed (n INTEGER, one TEXT, tied ANY, bytes BLOB)")
        rows = [(1, "x", None, b"\x00\xff"), (2, None, "a", b"ab"), (3, None, b"\xff", b"ab"), (4, "x", 7, None)]
        connection.executemany("INSERT INTO mixed VALUES (?, ?, ?, ?)", rows * 2)
    return found


@pytest.fixture
def reader(path: Path) -> Iterator[TableReader]:
    with open_tables(path) as found:
        yield found


def test_columns_with_values_of_several_types_are_counted(reader: TableReader) -> None:
    figures = {one.column: one for one in reader.analyze_columns("mixed")}
    found = {
        name: (one.nulls, one.distinct, [(v.value, v.count) for v in one.most_common]) for name, one in figures.items()
    }
    assert found == {
        "n": (0, 4, [(1, 2), (2, 2), (3, 2), (4, 2)]),
        "one": (4, 1, [(None, 4), ("x", 4)]),
        "tied": (2, 3, [(None, 2), (7, 2), ("a", 2), ("ff", 2)]),
        "bytes": (2, 2, [("6162", 4), (None, 2), ("00ff", 2)]),
    }
    assert figures["bytes"].least_common[-1] == ValueCount(value="6162", count=4)


def test_a_long_value_is_truncated(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE mixed SET one = ?", ["y" * 500])
    with open_tables(path) as reader:
        (found,) = [one for one in reader.analyze_columns("mixed") if one.column == "one"]
    assert found.most_common == (ValueCount(value="y" * 119 + "…", count=8),)


def test_bytes_are_decoded_as_text_unless_the_column_is_a_blob() -> None:
    cases = {
        (b"a\xc3\xa4", "TEXT"): "aä",
        ("b\udcff".encode("utf-8", "surrogatepass"), ""): "b\udcff",
        (b"\xff", "TEXT"): "ff",
        (b"ab", "BLOB"): "6162",
        ("ab", "BLOB"): "ab",
        (None, "TEXT"): None,
        (2.5, "REAL"): 2.5,
    }
    assert {case: decode_value(*case) for case in cases} == cases


def test_a_restricted_connection_cannot_write_or_attach_files(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        restrict(connection)
        for sql, message in (
            ("DELETE FROM mixed", "readonly"),
            ("CREATE TEMP TABLE scratch (a)", "readonly"),
            (f"ATTACH '{other}' AS other", "too many attached databases"),
            (f"VACUUM INTO '{tmp_path}/copy.db'", "too many attached databases"),
        ):
            with pytest.raises(sqlite3.Error, match=message):
                connection.execute(sql)


def test_all_tables_are_read_from_the_snapshot_at_opening(path: Path, reader: TableReader) -> None:
    assert reader.count_rows("mixed") == 8
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM mixed")
    assert (reader.count_rows("mixed"), len(list(reader.read_rows("mixed")))) == (8, 8)


# Datasette, which other tests import, enables SQLite's callback tracebacks: Python then reports the interrupt twice.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_interrupts_an_endless_query(reader: TableReader) -> None:
    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            list(reader.read_rows("mixed", where=f"n > {ENDLESS}"))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_a_newer_database_and_one_of_another_program_are_refused(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE notes (a)")
    for file, message in ((path, "newer slurmwrap"), (other, "database of another program")):
        with pytest.raises(StoreError, match=message), open_tables(file):
            pass
