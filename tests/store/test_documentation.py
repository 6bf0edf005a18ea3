"""docs/database.md: its tables are those of the schema, and every query runs."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from slurmwrap.store.database import Database
from slurmwrap.store.record_rows import TABLES
from slurmwrap.store.schema_docs import describe_tables, format_markdown

PAGE = (Path(__file__).parent.parent.parent / "docs" / "database.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def empty_database(tmp_path: Path) -> Path:
    Database.open(tmp_path / "user.db").close()
    return tmp_path / "user.db"


def test_the_page_shows_the_tables_of_the_schema() -> None:
    """To fix it: python .ci/database_page.py"""
    made = re.search(r"<!-- begin: made of the schema [^\n]*-->\n\n(.*)\n<!-- end -->", PAGE, re.DOTALL)
    assert made is not None
    assert made[1] == format_markdown()


def test_every_table_and_column_of_a_database_is_documented(empty_database: Path) -> None:
    connection = sqlite3.connect(empty_database)
    names = {r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    columns = {name: [r[1] for r in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    connection.close()
    assert {one.name: list(one.columns) for one in describe_tables()} == columns
    undocumented = [
        f"{one.name}.{name}" for one in describe_tables() for name, meaning in one.columns.items() if not meaning
    ]
    assert undocumented == []
    assert [one.name for one in describe_tables() if not one.meaning] == []


def test_documented_keys_are_the_primary_keys() -> None:
    keys = {one.name: one.key for one in describe_tables()}
    assert {table.name: keys[table.name] for table in TABLES} == {table.name: table.key for table in TABLES}


@pytest.mark.parametrize("query", QUERIES, ids=[query.split("\n")[0][:30] for query in QUERIES])
def test_every_documented_query_runs(empty_database: Path, query: str) -> None:
    connection = sqlite3.connect(empty_database)
    assert connection.execute(query).fetchall() == []
    connection.close()


def test_the_page_has_five_queries() -> None:
    assert len(QUERIES) == 5
