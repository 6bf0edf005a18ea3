"""Descriptions of all tables and columns of the database, read from the comments in the schema.

docs/database.md and Datasette show them. The module needs only a scratch database in memory.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.store.migrations import MIGRATIONS

_TABLE = re.compile(r"CREATE (TABLE|VIEW) (\w+)(?: AS| \() -- (.+)")
_COLUMN = re.compile(r"^\s*(?:.+ AS )?(\w+)(?: .*?)?,? -- (.+)$", re.MULTILINE)
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)[^-]* -- (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """Description of one table or view. `columns`: name → meaning; `key`: columns of the primary key."""

    name: str
    meaning: str
    columns: Mapping[str, str]
    key: tuple[str, ...] = ()


@cache
def describe_tables() -> tuple[TableDescription, ...]:
    """Return all tables and views of the newest schema, ordered by name."""
    statements = [statement for step in MIGRATIONS for statement in step()]
    meanings = {name: meaning for _, name, meaning in _TABLE.findall("\n".join(statements))}
    comments = {column: meaning for statement in statements for column, meaning in _find_comments(statement)}
    with closing(sqlite3.connect(":memory:")) as scratch:
        for statement in statements:
            scratch.execute(statement)
        names = scratch.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        ).fetchall()
        return tuple(
            _describe(scratch, name, meanings, comments) for (name,) in names if not name.startswith("sqlite_")
        )


def _describe(
    scratch: sqlite3.Connection, name: str, meanings: Mapping[str, str], comments: Mapping[tuple[str, str], str]
) -> TableDescription:
    rows = scratch.execute(f"SELECT name, pk FROM pragma_table_info('{name}') ORDER BY cid").fetchall()
    key = tuple(column for column, position in sorted(rows, key=lambda row: row[1]) if position)
    columns = {column: comments.get((name, column), "") for column, _ in rows}
    return TableDescription(name=name, meaning=meanings.get(name, ""), columns=columns, key=key)


def _find_comments(statement: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (table, column) and the comment of each column."""
    if head := _TABLE.search(statement):
        yield from (((head[2], name), meaning) for name, meaning in _COLUMN.findall(statement[head.end() :]))
    elif added := _ADDED.search(statement):
        yield (added[1], added[2]), added[3]


def format_markdown() -> str:
    """Return the tables of docs/database.md as Markdown."""
    return "\n".join(_format_section(one) for one in describe_tables())


def _format_section(one: TableDescription) -> str:
    key = f" Key: `{', '.join(one.key)}`." if one.key else ""
    head = f"### `{one.name}`\n\n{one.meaning[:1].upper()}{one.meaning[1:]}.{key}\n\n| column | meaning |\n|---|---|\n"
    return head + "".join(
        f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |\n" for name, meaning in one.columns.items()
    )
