"""Edge: what the database forgets, and when. Small transactions, so that reconciler and gsub go on next to it.

Periods, counted back from now; the last two are [retention] in the configuration:

    settled   a run's observations (its logs) go some hours after all runs of its job were judged and acted upon
    brief     of runs that ended well, and of nothing that failed: paths, plans, what the pre-run found, a week after
    detail_d  what only explains a run goes: log lines beyond the one that decided, paths, plans, measurements; strikes'
              sources (kernel lines), the steps of a retry, refused spool files
    keep_d    the run goes, with all that is about it

What nodes are judged by (nodes.window_days) keeps its details for at least that long. How far each kind came is in the
table `pruned`: one that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from slurmwrap.config import Retention
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.store.connection import connect, translate_os_errors, translate_sqlite_errors
from slurmwrap.store.retention_sql import KINDS, RetentionKind

DAY_S = 86_400.0
BRIEF_D = 7
SETTLED_S = 6 * 3600.0  # a job that is requeued by hand soon after is judged with its earlier run's log next to it
BATCH = 500  # rows of one transaction: some 20 ms on a plain disk
_PAUSE_S = 0.005  # between two, so that others who wait for the write lock get it
_PAGES = 2_000  # given back to the file system in one step


def mark_of(nonce: str) -> bytes:
    """What remains of an observation's nonce in the table `seen`."""
    return sha256(nonce.encode("utf-8", "surrogatepass")).digest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What one pruning did, or would do: kind -> rows."""

    rows: Mapping[str, int] = field(default_factory=dict)
    freed_bytes: int = 0
    done: bool = True  # False: time was up, the next one goes on

    @property
    def total(self) -> int:
        """Rows in all."""
        return sum(self.rows.values())


def compute_cutoffs(kept: Retention, now: float, *, window_d: float = 28.0) -> dict[str, float]:
    """Period -> Unix seconds before which it is over. Details stay for the window by which nodes are judged."""
    detail_s = max(kept.detail_d, window_d + 1) * DAY_S
    keep_s = max(kept.keep_d * DAY_S, detail_s)
    brief_s = min(BRIEF_D * DAY_S, detail_s)
    return {"settled": now - SETTLED_S, "brief": now - brief_s, "detail": now - detail_s, "keep": now - keep_s}


def prune(
    path: Path,
    kept: Retention,
    now: float,
    *,
    window_d: float = 28.0,
    short_digests: bool = True,
    for_s: float | None = None,
    tell: Callable[[str, int], None] = lambda kind, rows: None,
    clock: Callable[[], float] = time.monotonic,
) -> Pruned:
    """Removes what is over from the database at `path`, for at most about `for_s` seconds. StoreError.

    `short_digests`: the site's digests of scripts are cut in old rows; a user's own are not, since gsub compares them.
    """
    until = None if for_s is None else clock() + for_s
    over = compute_cutoffs(kept, now, window_d=window_d)
    done: dict[str, int] = {}
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=30.0)) as connection:
        _prepare(connection)
        for kind in KINDS:
            for rows in _prune_in_batches(connection, kind, over[kind.period], now, short_digests):
                done[kind.name] = done.get(kind.name, 0) + rows
                tell(kind.name, rows)
                if until is not None and clock() >= until:
                    return Pruned(rows=done, freed_bytes=_give_back(connection), done=False)
                time.sleep(_PAUSE_S)
        freed = _give_back(connection)
    return Pruned(rows=done, freed_bytes=freed)


def plan(path: Path, kept: Retention, now: float, *, window_d: float = 28.0) -> Pruned:
    """What `prune` would do, counted. Nothing is written. `freed_bytes`: of the rows' own text, about."""
    from slurmwrap.store.connection import connect_readonly

    over = compute_cutoffs(kept, now, window_d=window_d)
    found: dict[str, int] = {}
    freed = 0
    with (
        translate_os_errors(path),
        translate_sqlite_errors(path),
        closing(connect_readonly(path, busy_s=5.0)) as connection,
    ):
        for kind in KINDS:
            given = {"before": over[kind.period], "since": 0.0}
            rows, size = connection.execute(kind.counted(), given).fetchone()
            if rows:
                found[kind.name], freed = rows, freed + (size or 0)
    return Pruned(rows=found, freed_bytes=freed)


def vacuum(path: Path) -> int:
    """Writes the whole file anew, without what is free in it; returns the bytes that it is smaller. StoreError.

    Needs as much free space again, and no one else may have the file open: page size and auto_vacuum of an older file
    are changed outside of WAL only.
    """
    from slurmwrap.store.connection import select_journal_mode
    from slurmwrap.store.db_creation import set_page_layout

    before = path.stat().st_size
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=30.0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
        set_page_layout(connection)
        connection.execute("VACUUM")
        connection.execute(f"PRAGMA journal_mode = {select_journal_mode(path)}")
    return max(0, before - path.stat().st_size)


def get_rewrite_time(path: Path) -> float:
    """When the file was last written anew; else when it was made. Unix seconds. StoreError."""
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=5.0)) as connection:
        sql = "SELECT coalesce((SELECT at FROM pruned WHERE what = ?), (SELECT min(at) FROM migrations), 0)"
        at: float = connection.execute(sql, (_REWRITTEN,)).fetchone()[0]
        return at


def rewrite(path: Path, now: float) -> None:
    """VACUUM: pages that cut rows left half empty are filled. Readers go on, other writers wait. StoreError."""
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=30.0)) as connection:
        connection.execute("VACUUM")
        _store_pruned_until(connection, _REWRITTEN, now, now, 0)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_REWRITTEN = "file written anew"


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = OFF")  # actions go before their attempts; rows are checked by `db check`
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.create_function("nonce_mark", 1, mark_of, deterministic=True)


def _prune_in_batches(
    connection: sqlite3.Connection, kind: RetentionKind, before: float, now: float, short_digests: bool
) -> Iterator[int]:
    """Transaction by transaction until nothing is left; yields how many rows each changed or removed."""
    given = {"before": before, "batch": BATCH, "now": now, "digest": 16 if short_digests else 64}
    given["since"] = _read_pruned_until(connection, kind.name) - DAY_S  # what was looked at is not looked at again
    rows = BATCH
    while rows == BATCH:
        connection.execute("DROP TABLE IF EXISTS temp.chosen")
        connection.execute(kind.chosen(), given)  # looked for before the write lock is taken
        rows = connection.execute("SELECT count(*) FROM temp.chosen").fetchone()[0]
        if rows:
            _apply(connection, kind, given, rows)
            yield rows


def _read_pruned_until(connection: sqlite3.Connection, kind: str) -> float:
    found = connection.execute("SELECT before FROM pruned WHERE what = ?", (kind,)).fetchone()
    return float(found[0]) if found else 0.0


def _apply(connection: sqlite3.Connection, kind: RetentionKind, given: Mapping[str, float], rows: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in kind.statements:
            connection.execute(statement, given)
        _store_pruned_until(connection, kind.name, given["before"] if rows < BATCH else 0.0, given["now"], rows)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise


def _store_pruned_until(connection: sqlite3.Connection, what: str, before: float, now: float, rows: int) -> None:
    """`before` 0: there is more to do of this kind, so how far it came stays as it was."""
    connection.execute(
        """INSERT INTO pruned VALUES (?, ?, ?, ?) ON CONFLICT (what) DO UPDATE
        SET before = max(before, excluded.before), at = excluded.at, rows = rows + excluded.rows""",
        (what, before, now, rows),
    )


def _give_back(connection: sqlite3.Connection) -> int:
    """Free pages at the end of the file, a few at a time; 0 for a file that was made without auto_vacuum."""
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return 0
    began: int = connection.execute("PRAGMA page_count").fetchone()[0]
    left: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    while left > _PAGES:  # some stay for what comes next
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        now: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if now >= left:
            break
        left = now
    ended: int = connection.execute("PRAGMA page_count").fetchone()[0]
    return (began - ended) * size
