"""Edge: full-text search in the stored failures, for `slurmwrap db search`.

The index (SQLite's FTS5 with Porter's stemming) is made in memory by sqlite-utils for each search: an index in the
file would cost the reconciler time at each write.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.escape import utf8
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.store.connection import connect_readonly, read_version, translate_os_errors, translate_sqlite_errors
from slurmwrap.store.table_reader import decode_value

_BUSY_S = 30.0
_TOGETHER = 2_000  # failures between two words of progress
_TOKENS = 24  # of a snippet
MARKS = ("\x02", "\x03")  # around each word of a snippet that was searched for

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
    """A failed run in which all words were found."""

    cluster: str
    # As people name it: 81, or 77_2 for an array task.
    job: str
    submit_time: int
    user: str
    category: str  # of the taxonomy
    ended_at: float | None
    # Some words of its evidence, advice, diagnosis or reason.
    snippet: str


def search_failures(
    path: Path, words: Sequence[str], limit: int, tell: Callable[[float], None] = lambda share: None
) -> tuple[tuple[FoundFailure, ...], int]:
    """Finds the failed runs that have all of `words`, the most relevant `limit` first; returns them, and how many there
    are. A word with spaces is a phrase. `tell` hears the share that is indexed. StoreError."""
    from sqlite_utils import Database

    with closing(Database(memory=True, execute_plugins=False)) as index:
        with (
            translate_os_errors(path),
            translate_sqlite_errors(path),
            closing(connect_readonly(path, busy_s=_BUSY_S)) as connection,
        ):
            read_version(connection, path)
            index.table("failures").insert_all(_read_failures(connection, tell), columns=_COLUMNS)
        if not index["failures"].exists():
            return (), 0
        index.table("failures").enable_fts(_INDEXED, tokenize="porter")
        tell(1.0)
        query = " ".join('"' + _make_storable(word).replace('"', '""') + '"' for word in words)
        total = index.execute("SELECT count(*) FROM failures_fts WHERE failures_fts MATCH ?", [query]).fetchone()[0]
        found = index.query(_FOUND, [query, limit])
        return tuple(FoundFailure(**row) for row in found), total


# Of the index. Without them sqlite-utils would derive the types from the first rows.
_COLUMNS = {
    "cluster": str,
    "job": str,
    "submit_time": int,
    "user": str,
    "category": str,
    "ended_at": float,
    **dict.fromkeys(_INDEXED, str),
}


def _read_failures(connection: sqlite3.Connection, tell: Callable[[float], None]) -> Iterator[dict[str, Any]]:
    total = connection.execute(f"SELECT count(*) {_FAILED}").fetchone()[0]
    for number, row in enumerate(connection.execute(_READ)):
        if number % _TOGETHER == 0:
            # The rest is for the index itself, which is made in one step.
            tell(0.9 * number / total)
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
    """Without what SQLite's TEXT refuses."""
    return utf8(text).decode()
