"""The versions of the database's schema: baseline.sql, and the steps from each version to the next.

`PRAGMA user_version` is the number of steps done; `PRAGMA application_id` marks the file as slurmwrap's. When a file is
opened, all missing steps run in one transaction: it has its old version or the newest, never one between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

APPLICATION_ID = 0x534C5752  # "SLWR"


@cache
def read_baseline() -> tuple[str, ...]:
    """Return the statements of baseline.sql."""
    return tuple(split_statements(Path(__file__).with_name("baseline.sql").read_text(encoding="utf-8")))


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script, with the comments before them. A statement ends at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.endswith(";\n") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# Step N (from 1) migrates a database from version N-1 to version N. A released step is never changed: append a new
# function that returns the statements.
MIGRATIONS: tuple[Callable[[], tuple[str, ...]], ...] = (read_baseline,)
VERSION = len(MIGRATIONS)
