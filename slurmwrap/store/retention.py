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

from slurmwrap.config.load_config import Retention
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.store.sqlite_connection import connect, translate_os_errors, translate_sqlite_errors


# The statements of retention.py: per kind of row, which ones are over, and what is done to them.
#
# `chosen` fills temp.chosen with the keys of at most :batch rows; `statements` then do it. An index answers each
# choice.
@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionKind:
    """One kind of row that goes, or loses its details, when `period` is over. `size`: SQL for the bytes that go."""

    name: str
    # Settled | brief | detail | keep.
    period: str
    table: str
    key: str
    where: str
    statements: tuple[str, ...]
    size: str = "0"
    # That must answer the choice: the planner knows nothing of how few rows a partial one holds.
    index: str = ""

    def chosen(self) -> str:
        """The next ones."""
        found = f"SELECT {self.key} FROM {self._source} WHERE {self.where} LIMIT :batch"
        return f"CREATE TEMP TABLE chosen AS {found}"

    @property
    def _source(self) -> str:
        return f"{self.table} AS t" + (f" INDEXED BY {self.index}" if self.index else "")

    def counted(self) -> str:
        """How many there are, and their bytes."""
        return f"SELECT count(*), sum({self.size}) FROM {self._source} WHERE {self.where}"


def _format_chosen_sql(key: str) -> str:
    return f"({key}) IN (SELECT {key} FROM temp.chosen)"


def _make_removal_kind(
    name: str, period: str, key: str, where: str, size: str = "100", also: tuple[str, ...] = (), index: str = ""
) -> RetentionKind:
    table = name.split(" ")[0]
    delete = f"DELETE FROM {table} WHERE {_format_chosen_sql(key)}"
    statements = (*also, delete)
    return RetentionKind(
        name=name, period=period, table=table, key=key, where=where, statements=statements, size=size, index=index
    )


def _cut(table: str, key: str, where: str, changes: str, size: str, index: str) -> RetentionKind:
    return RetentionKind(
        name=f"{table} (details)",
        period="detail",
        table=table,
        key=key,
        where=where,
        statements=(f"UPDATE {table} SET {changes} WHERE {_format_chosen_sql(key)}",),
        size=size,
        index=index,
    )


_RUN = "cluster, job_id, submit_time"
# Characters of the deciding line that stay.
_LINE = 120
_SETTLED = """at < :before AND NOT EXISTS (SELECT 1 FROM attempts a
    WHERE a.cluster = t.cluster AND a.job_id = t.job_id AND (a.reconciled = 0 OR a.end_time IS NULL))"""
# The root's line alone, cut: what `why` and the ledger of a repeated failure cite.
_ROOT_LINE = f"""(SELECT json_array(json_object('source', json_extract(value, '$.source'),
    'line', json_extract(value, '$.line'), 'text', substr(json_extract(value, '$.text'), 1, {_LINE}), 'role', 'root'))
    FROM json_each(diagnosis_evidence) WHERE json_extract(value, '$.role') = 'root' LIMIT 1)"""
_WELL = "diagnosis_category IN ('success', 'cancelled')"
# Two submissions are compared only if they had a pre-run, a hold-out group or a failure.
_DIGEST = """CASE WHEN :digest = 64 OR prerun_job_id IS NOT NULL OR holdout_group <> ''
        OR json_type(more, '$.forced') IS NOT NULL
        OR EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = submissions.cluster AND a.job_id = submissions.job_id
        AND a.diagnosis_category NOT IN ('success', 'cancelled')) THEN substr({}, 1, :digest) ELSE '' END"""
_TRIAL = """EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = t.cluster AND p.prerun_job_id = t.job_id)"""
_MORE_OF_RUN = "json_remove(more, '$.planned', '$.waited', '$.output_begins', '$.output_ends', '$.resize_refused')"
_MORE_OF_CALL = "json_remove(more, '$.shape', '$.own', '$.step_dir', '$.profile_variant', '$.tune', '$.place')"
_STEPS_KEPT = "('requeuehold', 'requeue', 'drain', 'block input')"

KINDS: tuple[RetentionKind, ...] = (
    _make_removal_kind(
        "observations",
        "settled",
        "nonce",
        _SETTLED,
        "length(facts) + 120",
        also=(
            # Of the others a copy changes nothing: what a user said of their job is written once more.
            f"""INSERT OR IGNORE INTO seen SELECT nonce_mark(nonce), CAST(at AS INTEGER) FROM observations
            WHERE context = 'epilog' AND {_format_chosen_sql("nonce")}""",
        ),
        index="observations_by_time",
    ),
    RetentionKind(
        name="attempts that ended well",
        period="brief",
        table="attempts",
        key=_RUN,
        where=f"""end_time >= :since AND end_time < :before AND slim = 0 AND reconciled = 1 AND std_out <> ''
        AND {_WELL}""",
        statements=(
            f"""UPDATE attempts SET std_out = '', std_err = '', diagnosis_evidence = NULL, more = {_MORE_OF_RUN}
            WHERE {_format_chosen_sql(_RUN)}""",
        ),
        size="length(std_out) + length(std_err) + length(more) + coalesce(length(diagnosis_evidence), 0)",
        index="attempts_exposure",
    ),
    RetentionKind(
        name="submissions that ended well",
        period="brief",
        table="submissions",
        key="cluster, job_id, at",
        where="""slim = 0 AND at >= :since AND at < :before AND work_dir <> '' AND EXISTS (SELECT 1 FROM attempts a
        WHERE a.cluster = t.cluster AND a.job_id = t.job_id) AND NOT EXISTS (SELECT 1 FROM attempts a
        WHERE a.cluster = t.cluster AND a.job_id = t.job_id
        AND (a.reconciled = 0 OR a.diagnosis_category NOT IN ('success', 'cancelled')))""",
        statements=(
            f"""UPDATE submissions SET script_path = '', work_dir = '', inputs = '[]', plan = '{{}}', changes = '[]',
            more = {_MORE_OF_CALL} WHERE {_format_chosen_sql("cluster, job_id, at")}""",
        ),
        size="length(plan) + length(changes) + length(more) + length(inputs) + length(script_path) + length(work_dir)",
        index="submissions_detailed",
    ),
    RetentionKind(
        name="preruns that passed",
        period="brief",
        table="preruns",
        key="cluster, prerun_job_id, at",
        where="slim = 0 AND at >= :since AND at < :before AND verdict_outcome = 'pass' AND plan <> '{}'",
        statements=(
            f"""UPDATE preruns SET plan = '{{}}', changes = '[]', verdict_findings = '[]', verdict_evidence = '[]'
            WHERE {_format_chosen_sql("cluster, prerun_job_id, at")}""",
        ),
        size="length(plan) + length(changes)",
        index="preruns_detailed",
    ),
    _make_removal_kind("seen", "detail", "nonce", "at < :before", "30"),
    _make_removal_kind(
        "attempts of pre-runs",
        "detail",
        _RUN,
        f"end_time < :before AND slim = 0 AND reconciled = 1 AND {_TRIAL}",
        "600",
        index="attempts_exposure",
    ),
    _cut(
        "attempts",
        _RUN,
        f"end_time < :before AND slim = 0 AND reconciled = 1 AND NOT {_TRIAL}",
        f"""slim = 1, std_out = '', std_err = '', measurement = NULL,
        reason = CASE reason WHEN 'None' THEN '' ELSE reason END, eligible_time = nullif(eligible_time, submit_time),
        diagnosis_signature = CASE WHEN {_WELL} THEN '' ELSE diagnosis_signature END,
        diagnosis_confidence = CASE WHEN {_WELL} THEN 1.0 ELSE diagnosis_confidence END,
        diagnosis_evidence = CASE WHEN {_WELL} THEN NULL ELSE {_ROOT_LINE} END, diagnosis_advice = '',
        decision_reason = CASE WHEN {_WELL} OR decision_reason = diagnosis_advice
        OR decision_reason LIKE '%: it was not submitted by gsub' THEN '' ELSE substr(decision_reason, 1, 200) END,
        more = {_MORE_OF_RUN}""",
        """length(std_out) + length(std_err) + coalesce(length(measurement), 0) + length(more)
        + coalesce(length(diagnosis_evidence), 0)""",
        "attempts_exposure",
    ),
    _cut(
        "submissions",
        "cluster, job_id, at",
        """slim = 0 AND at < :before AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = t.cluster
        AND a.job_id = t.job_id AND (a.reconciled = 0 OR a.end_time IS NULL))""",
        f"""slim = 1, script_path = '', work_dir = '', inputs = '[]', plan = '{{}}', changes = '[]', profile_key = '',
        script_sha256 = {_DIGEST.format("script_sha256")}, fingerprint = {_DIGEST.format("fingerprint")},
        more = {_MORE_OF_CALL}""",
        "length(plan) + length(changes) + length(more) + length(inputs) + length(script_path) + length(work_dir)",
        "submissions_detailed",
    ),
    _cut(
        "preruns",
        "cluster, prerun_job_id, at",
        "slim = 0 AND at < :before",
        """slim = 1, plan = '{}', changes = '[]', verdict_findings = '[]', verdict_measurement = NULL, profile_key = '',
        verdict_evidence = '[]', fingerprint = substr(fingerprint, 1, :digest),
        verdict_reason = substr(verdict_reason, 1, 200)""",
        "length(plan) + length(changes) + length(verdict_evidence) + coalesce(length(verdict_measurement), 0)",
        "preruns_detailed",
    ),
    _make_removal_kind(
        "actions (steps)",
        "detail",
        "action_id",
        f"""intended_at < :before AND done_at IS NOT NULL AND error = '' AND verb NOT IN {_STEPS_KEPT}
        AND key NOT IN ('MinMemoryNode', 'MinMemoryCPU', 'TimeLimit') AND EXISTS (SELECT 1 FROM actions o
        WHERE o.cluster = t.cluster AND o.job_id = t.job_id AND o.submit_time = t.submit_time AND o.rule = t.rule
        AND o.verb IN {_STEPS_KEPT})""",
        "200",
    ),
    _make_removal_kind(
        "actions (waiting)",
        "detail",
        "action_id",
        "intended_at < :before AND done_at IS NOT NULL AND error = '' AND rule IN ('relax', 'tune')",
        "200",
    ),
    RetentionKind(
        name="actions (details)",
        period="detail",
        table="actions",
        key="action_id",
        where="intended_at < :before AND done_at IS NOT NULL AND verb = 'block input' AND length(value) > 16",
        statements=(
            f"UPDATE actions SET value = substr(value, 1, 16), reason = '' WHERE {_format_chosen_sql('action_id')}",
        ),
        size="length(reason) + 48",
    ),
    RetentionKind(
        name="delays (details)",
        period="detail",
        table="delays",
        key=_RUN,
        where="seen_at < :before AND over = 1 AND address <> ''",
        statements=(
            f"""UPDATE delays SET address = '', waits_for = '',
            eligible_at = round(eligible_at), seen_at = round(seen_at), fair_share_s = round(fair_share_s),
            fragmentation_s = round(fragmentation_s), unknown_s = round(unknown_s)
            WHERE {_format_chosen_sql(_RUN)}""",
        ),
        size="length(address) + length(waits_for) + 20",
        index="delays_detailed",
    ),
    _make_removal_kind("gpu_faults", "detail", "rowid", "at < :before", "length(text) + 40"),
    _make_removal_kind("rejected_entries", "detail", "uid, reason", "last_at < :before"),
    _make_removal_kind(
        "measurements", "detail", "key, at, source, measurement", "at < :before", "length(measurement) + 60"
    ),
    # Runs and all about them
    _make_removal_kind("actions", "keep", "action_id", "intended_at < :before AND done_at IS NOT NULL", "200"),
    _make_removal_kind("delays", "keep", _RUN, "seen_at < :before AND over = 1"),
    _make_removal_kind("preruns", "keep", "cluster, prerun_job_id, at", "at < :before", "300"),
    _make_removal_kind(
        "submissions",
        "keep",
        "cluster, job_id, at",
        """at < :before AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = t.cluster AND a.job_id = t.job_id
        AND (a.end_time IS NULL OR a.end_time >= :before))""",
        "300",
    ),
    _make_removal_kind(
        "attempts",
        "keep",
        _RUN,
        """end_time < :before AND reconciled = 1 AND NOT EXISTS (SELECT 1 FROM actions o WHERE o.cluster = t.cluster
        AND o.job_id = t.job_id AND o.submit_time = t.submit_time
        AND (o.done_at IS NULL OR o.intended_at >= :before))""",
        "300",
    ),
    _make_removal_kind("strikes", "keep", "strike_id", "at < :before"),
    _make_removal_kind("removals", "keep", "node, began", "ended < :before"),
    _make_removal_kind("repairs", "keep", "node, at, kind", "at < :before"),
    _make_removal_kind("incidents", "keep", "incident_id", "over_at < :before", "length(jobs) + length(nodes) + 200"),
    _make_removal_kind("budget_resets", "keep", "cluster, job_id, at", "at < :before"),
)


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
    # False: time was up, the next one goes on.
    done: bool = True

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
    from slurmwrap.store.sqlite_connection import connect_readonly

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
    from slurmwrap.store.db_creation import set_page_layout
    from slurmwrap.store.sqlite_connection import select_journal_mode

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
    # Actions go before their attempts; rows are checked by `db check`.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.create_function("nonce_mark", 1, mark_of, deterministic=True)


def _prune_in_batches(
    connection: sqlite3.Connection, kind: RetentionKind, before: float, now: float, short_digests: bool
) -> Iterator[int]:
    """Transaction by transaction until nothing is left; yields how many rows each changed or removed."""
    given = {"before": before, "batch": BATCH, "now": now, "digest": 16 if short_digests else 64}
    # What was looked at is not looked at again.
    given["since"] = _read_pruned_until(connection, kind.name) - DAY_S
    rows = BATCH
    while rows == BATCH:
        connection.execute("DROP TABLE IF EXISTS temp.chosen")
        # Looked for before the write lock is taken.
        connection.execute(kind.chosen(), given)
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
    # Some stay for what comes next.
    while left > _PAGES:
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        now: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if now >= left:
            break
        left = now
    ended: int = connection.execute("PRAGMA page_count").fetchone()[0]
    return (began - ended) * size
