"""The versions of the database's schema: baseline.sql, and the steps from each version to the next.

`PRAGMA user_version` counts the steps done; `PRAGMA application_id` says that the file is slurmwrap's. All steps of one
opening run in one transaction: the file is at its old version or at the newest, never between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

APPLICATION_ID = 0x534C5752  # "SLWR"


@cache
def read_baseline() -> tuple[str, ...]:
    """The statements of baseline.sql."""
    return tuple(split_statements(Path(__file__).with_name("baseline.sql").read_text(encoding="utf-8")))


def split_statements(script: str) -> Iterator[str]:
    """The statements of an SQL script, each with the comments before it; a statement ends at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.endswith(";\n") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# Step N (from 1) brings a database from version N-1 to version N. A step that was released is never changed: a new
# function that returns the statements is appended.
MIGRATIONS: tuple[Callable[[], tuple[str, ...]], ...] = (read_baseline,)
VERSION = len(MIGRATIONS)
