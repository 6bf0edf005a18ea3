"""docs/database.md: every table is described, every query runs."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from slurmwrap.store.database import Database

PAGE = (Path(__file__).parent.parent.parent / "docs" / "database.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    Database.open(tmp_path / "user.db").close()
    return tmp_path / "user.db"


def test_every_table_is_described_and_no_other(empty: Path) -> None:
    connection = sqlite3.connect(empty)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == tables


@pytest.mark.parametrize("query", QUERIES, ids=[query.split("\n")[0][:30] for query in QUERIES])
def test_every_query_runs(empty: Path, query: str) -> None:
    connection = sqlite3.connect(empty)
    assert connection.execute(query).fetchall() == []
    connection.close()


def test_there_are_queries() -> None:
    assert len(QUERIES) == 5
