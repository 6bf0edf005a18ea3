"""Delete old data from the database in small transactions, so that reconciler and gsub can work meanwhile (adapter).

Periods, counted back from now; the last two are [retention] in the configuration:

    settled   a run's observations (its logs) are deleted some hours after all runs of its job were handled
    brief     after a week: paths, plans and pre-run findings of successful runs and pre-runs; not of failures
    detail_d  data that only explains a run: log lines except the deciding one, paths, plans, measurements; sources of
              strikes (kernel lines), the steps of a retry, counts of rejected spool files; use of GPUs, loss curves
              and findings of the rule `early`
    keep_d    the run and everything that refers to it

Details that the assessment of nodes needs (nodes.window_days) are kept at least that long. The table `pruned` records
how far each kind has come, so that an interrupted pruning continues there.
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
from slurmwrap.profiling.run_time import KEPT_RUNS
from slurmwrap.store.sqlite_connection import connect, translate_os_errors, translate_sqlite_errors


# Kinds of rows: which rows are too old, and what is done to them.
#
# `chosen` fills temp.chosen with the keys of at most :batch rows, then `statements` run. Each choice is answered by an
# index.
@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionKind:
    """One kind of row that is deleted or loses details after `period`. `size`: SQL for the bytes that are freed."""

    name: str
    # One of "settled", "brief", "detail", "keep".
    period: str
    table: str
    key: str
    where: str
    statements: tuple[str, ...]
    size: str = "0"
    # Index to use: SQLite's planner does not know that a partial index contains few rows.
    index: str = ""

    def chosen(self) -> str:
        """Return SQL that selects the next rows."""
        found = f"SELECT {self.key} FROM {self._source} WHERE {self.where} LIMIT :batch"
        return f"CREATE TEMP TABLE chosen AS {found}"

    @property
    def _source(self) -> str:
        return f"{self.table} AS t" + (f" INDEXED BY {self.index}" if self.index else "")

    def counted(self) -> str:
        """Return SQL for the number of rows and their bytes."""
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


def _make_detail_kind(table: str, key: str, where: str, changes: str, size: str, index: str) -> RetentionKind:
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
# Characters of the deciding log line that are kept.
_LINE = 120
_SETTLED = """at < :before AND NOT EXISTS (SELECT 1 FROM attempts a
    WHERE a.cluster = t.cluster AND a.job_id = t.job_id AND (a.reconciled = 0 OR a.end_time IS NULL))"""
# Only the line of the root cause, cut: `why` and the retry budget cite it for a repeated failure.
_ROOT_LINE = f"""(SELECT json_array(json_object('source', json_extract(value, '$.source'),
    'line', json_extract(value, '$.line'), 'text', substr(json_extract(value, '$.text'), 1, {_LINE}), 'role', 'root'))
    FROM json_each(diagnosis_evidence) WHERE json_extract(value, '$.role') = 'root' LIMIT 1)"""
_SUCCEEDED = "diagnosis_category IN ('success', 'cancelled')"
# Digests are compared only for submissions that had a pre-run, a hold-out group or a failure.
_DIGEST = """CASE WHEN :digest = 64 OR prerun_job_id IS NOT NULL OR holdout_group <> ''
        OR json_type(more, '$.forced') IS NOT NULL
        OR EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = submissions.cluster AND a.job_id = submissions.job_id
        AND a.diagnosis_category NOT IN ('success', 'cancelled')) THEN substr({}, 1, :digest) ELSE '' END"""
_TRIAL = """EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = t.cluster AND p.prerun_job_id = t.job_id)"""
_MORE_OF_RUN = "json_remove(more, '$.planned', '$.waited', '$.output_begins', '$.output_ends', '$.resize_refused')"
_MORE_OF_CALL = """json_remove(
    more, '$.shape', '$.own', '$.step_dir', '$.logs', '$.profile_variant', '$.length', '$.tune', '$.place',
    '$.expected_p50_s', '$.expected_p90_s', '$.expected_source')"""
_STEPS_KEPT = "('requeuehold', 'requeue', 'drain', 'block input')"


def _format_superseded_sql(group: str, where: str = "true") -> str:
    """Return SQL that is true if a run in `run_times` has KEPT_RUNS newer ones of its group."""
    ranked = f"""SELECT rowid AS run, row_number() OVER (PARTITION BY {group} ORDER BY end_time DESC) AS place
        FROM run_times WHERE {where}"""
    return f"rowid IN (SELECT run FROM ({ranked}) WHERE place > {KEPT_RUNS})"


KINDS: tuple[RetentionKind, ...] = (
    _make_removal_kind(
        "observations",
        "settled",
        "nonce",
        _SETTLED,
        "length(facts) + 120",
        also=(
            # Only Epilog observations need it. A repeated one of another kind only stores a user's own report again.
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
        AND {_SUCCEEDED}""",
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
    _make_detail_kind(
        "attempts",
        _RUN,
        f"end_time < :before AND slim = 0 AND reconciled = 1 AND NOT {_TRIAL}",
        f"""slim = 1, std_out = '', std_err = '', measurement = NULL,
        reason = CASE reason WHEN 'None' THEN '' ELSE reason END, eligible_time = nullif(eligible_time, submit_time),
        diagnosis_signature = CASE WHEN {_SUCCEEDED} THEN '' ELSE diagnosis_signature END,
        diagnosis_confidence = CASE WHEN {_SUCCEEDED} THEN 1.0 ELSE diagnosis_confidence END,
        diagnosis_evidence = CASE WHEN {_SUCCEEDED} THEN NULL ELSE {_ROOT_LINE} END, diagnosis_advice = '',
        decision_reason = CASE WHEN {_SUCCEEDED} OR decision_reason = diagnosis_advice
        OR decision_reason LIKE '%: it was not submitted by gsub' THEN '' ELSE substr(decision_reason, 1, 200) END,
        more = {_MORE_OF_RUN}""",
        """length(std_out) + length(std_err) + coalesce(length(measurement), 0) + length(more)
        + coalesce(length(diagnosis_evidence), 0)""",
        "attempts_exposure",
    ),
    _make_detail_kind(
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
    _make_detail_kind(
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
        "intended_at < :before AND done_at IS NOT NULL AND error = '' AND rule IN ('relax', 'tune', 'limit')",
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
    RetentionKind(
        name="loss_curves (details)",
        period="detail",
        table="loss_curves",
        key=_RUN,
        where="end_time < :before AND points <> '[]'",
        statements=(f"UPDATE loss_curves SET points = '[]' WHERE {_format_chosen_sql(_RUN)}",),
        size="length(points)",
    ),
    # What was seen of jobs while they ran.
    _make_removal_kind(
        "gpu_use",
        "detail",
        f"{_RUN}, node, gpu, mig",
        """began < :before AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = t.cluster AND a.job_id = t.job_id
        AND a.submit_time = t.submit_time AND (a.end_time IS NULL OR a.end_time >= :before))""",
        "length(use_pct) + length(mem_mib) + length(processes) + length(more) + 120",
        index="gpu_use_by_begin",
    ),
    _make_removal_kind("early_findings", "detail", f"{_RUN}, kind", "at < :before", "length(evidence) + 160"),
    # Only the newest runs of a group are ever read. The groups of an account or a partition are larger than a user's.
    _make_removal_kind(
        "run_times (superseded)",
        "brief",
        "rowid",
        f"""end_time < :before AND {_format_superseded_sql("uid, gpus")}
        AND (key = '' OR {_format_superseded_sql("uid, key", "key <> ''")})""",
        "130",
    ),
    # Runs and everything that refers to them.
    _make_removal_kind("actions", "keep", "action_id", "intended_at < :before AND done_at IS NOT NULL", "200"),
    _make_removal_kind("delays", "keep", _RUN, "seen_at < :before AND over = 1"),
    _make_removal_kind("early_findings", "keep", f"{_RUN}, kind", "at < :before"),
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
        # A run that Slurm forgot, or that was never launched, has no end.
        """(end_time < :before OR (end_time IS NULL AND submit_time < :before)) AND reconciled = 1
        AND NOT EXISTS (SELECT 1 FROM actions o WHERE o.cluster = t.cluster
        AND o.job_id = t.job_id AND o.submit_time = t.submit_time
        AND (o.done_at IS NULL OR o.intended_at >= :before))""",
        "300",
    ),
    _make_removal_kind("run_times", "keep", "rowid", "end_time < :before", "130", index="run_times_by_end"),
    _make_removal_kind("loss_curves", "keep", _RUN, "end_time < :before", "length(points) + 100"),
    _make_removal_kind("strikes", "keep", "strike_id", "at < :before"),
    _make_removal_kind("removals", "keep", "node, began", "ended < :before"),
    _make_removal_kind("repairs", "keep", "node, at, kind", "at < :before"),
    _make_removal_kind("incidents", "keep", "incident_id", "over_at < :before", "length(jobs) + length(nodes) + 200"),
    _make_removal_kind("budget_resets", "keep", "cluster, job_id, at", "at < :before"),
)


DAY_S = 86_400.0
BRIEF_D = 7
# Seconds. A job that is requeued by hand soon after its end is diagnosed together with the log of its earlier run.
SETTLED_S = 6 * 3600.0
BATCH = 500  # rows per transaction: some 20 ms on a plain disk
_PAUSE_S = 0.005  # between two transactions, so that other processes can take the write lock
_PAGES = 2_000  # pages returned to the file system in one step


def digest_nonce(nonce: str) -> bytes:
    """Return the digest of an observation's nonce that is kept in the table `seen`."""
    return sha256(nonce.encode("utf-8", "surrogatepass")).digest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Result of one pruning, done or planned: kind → rows."""

    rows: Mapping[str, int] = field(default_factory=dict)
    freed_bytes: int = 0
    # False: the time was over, and the next pruning continues.
    done: bool = True

    @property
    def total(self) -> int:
        """The number of rows of all kinds."""
        return sum(self.rows.values())


def compute_cutoffs(kept: Retention, now: float, *, window_d: float = 28.0) -> dict[str, float]:
    """Return period → time (Unix seconds) before which data is too old; details stay for the node window."""
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
    """Delete old data from the database at `path`, for about `for_s` seconds at most. Raises StoreError.

    `short_digests`: cut the digests of scripts in old rows. A user's own database keeps them, since gsub compares them.
    """
    # A batch is committed before the time is checked, so every call makes progress and a later one continues.
    until = None if for_s is None else clock() + for_s
    cutoffs = compute_cutoffs(kept, now, window_d=window_d)
    done: dict[str, int] = {}
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=30.0)) as connection:
        _prepare(connection)
        for kind in KINDS:
            for rows in _prune_in_batches(connection, kind, cutoffs[kind.period], now, short_digests):
                done[kind.name] = done.get(kind.name, 0) + rows
                tell(kind.name, rows)
                if until is not None and clock() >= until:
                    return Pruned(rows=done, freed_bytes=_release_free_pages(connection), done=False)
                time.sleep(_PAUSE_S)
        freed = _release_free_pages(connection)
    return Pruned(rows=done, freed_bytes=freed)


def plan(path: Path, kept: Retention, now: float, *, window_d: float = 28.0) -> Pruned:
    """Count what `prune` would do, without writing. `freed_bytes` is an estimate from the length of the rows' text."""
    from slurmwrap.store.sqlite_connection import connect_readonly

    cutoffs = compute_cutoffs(kept, now, window_d=window_d)
    found: dict[str, int] = {}
    freed = 0
    with (
        translate_os_errors(path),
        translate_sqlite_errors(path),
        closing(connect_readonly(path, busy_s=5.0)) as connection,
    ):
        for kind in KINDS:
            parameters = {"before": cutoffs[kind.period], "since": 0.0}
            rows, size = connection.execute(kind.counted(), parameters).fetchone()
            if rows:
                found[kind.name], freed = rows, freed + (size or 0)
    return Pruned(rows=found, freed_bytes=freed)


def vacuum(path: Path) -> int:
    """Rewrite the whole file without its free pages and return the bytes that were saved. Raises StoreError.

    It needs as much free space again, and no other process may have the file open: page size and auto_vacuum of an
    older file can be changed only outside of WAL mode.
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
    """Return when the file was last rewritten, else when it was created, in Unix seconds. Raises StoreError."""
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=5.0)) as connection:
        sql = "SELECT coalesce((SELECT at FROM pruned WHERE what = ?), (SELECT min(at) FROM migrations), 0)"
        at: float = connection.execute(sql, (_REWRITTEN,)).fetchone()[0]
        return at


def rewrite(path: Path, now: float) -> None:
    """Run VACUUM to fill pages that are half empty. Readers are not blocked, other writers wait. Raises StoreError."""
    with translate_os_errors(path), translate_sqlite_errors(path), closing(connect(path, busy_s=30.0)) as connection:
        connection.execute("VACUUM")
        _store_pruned_until(connection, _REWRITTEN, now, now, 0)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_REWRITTEN = "file written anew"


def _prepare(connection: sqlite3.Connection) -> None:
    # Actions are deleted before their runs; `db check` checks references.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.create_function("nonce_mark", 1, digest_nonce, deterministic=True)


def _prune_in_batches(
    connection: sqlite3.Connection, kind: RetentionKind, before: float, now: float, short_digests: bool
) -> Iterator[int]:
    """Run transactions until nothing is left; yield how many rows each of them changed or deleted."""
    parameters = {"before": before, "batch": BATCH, "now": now, "digest": 16 if short_digests else 64}
    # Rows that an earlier pruning has examined are skipped.
    parameters["since"] = _read_pruned_until(connection, kind.name) - DAY_S
    rows = BATCH
    while rows == BATCH:
        connection.execute("DROP TABLE IF EXISTS temp.chosen")
        # The rows are searched before the write lock is taken.
        connection.execute(kind.chosen(), parameters)
        rows = connection.execute("SELECT count(*) FROM temp.chosen").fetchone()[0]
        if rows:
            _apply(connection, kind, parameters, rows)
            yield rows


def _read_pruned_until(connection: sqlite3.Connection, kind: str) -> float:
    found = connection.execute("SELECT before FROM pruned WHERE what = ?", (kind,)).fetchone()
    return float(found[0]) if found else 0.0


def _apply(connection: sqlite3.Connection, kind: RetentionKind, parameters: Mapping[str, float], rows: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in kind.statements:
            connection.execute(statement, parameters)
        _store_pruned_until(
            connection, kind.name, parameters["before"] if rows < BATCH else 0.0, parameters["now"], rows
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise


def _store_pruned_until(connection: sqlite3.Connection, what: str, before: float, now: float, rows: int) -> None:
    """Record the progress of a kind. `before` 0: more rows of this kind are left, so its time is not changed."""
    connection.execute(
        """INSERT INTO pruned VALUES (?, ?, ?, ?) ON CONFLICT (what) DO UPDATE
        SET before = max(before, excluded.before), at = excluded.at, rows = rows + excluded.rows""",
        (what, before, now, rows),
    )


def _release_free_pages(connection: sqlite3.Connection) -> int:
    """Return free pages to the file system in small steps; return the freed bytes, 0 for a file without auto_vacuum."""
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return 0
    began: int = connection.execute("PRAGMA page_count").fetchone()[0]
    left: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    # Some free pages are kept for new rows.
    while left > _PAGES:
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        now: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if now >= left:
            break
        left = now
    ended: int = connection.execute("PRAGMA page_count").fetchone()[0]
    return (began - ended) * size
