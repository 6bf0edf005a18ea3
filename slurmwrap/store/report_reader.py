"""Read the figures of a night report from a database, several queries at a time (adapter).

SQLite releases Python's lock while it works, so queries on separate connections run in parallel; long ones are split by
time. A database in memory has one connection and little content.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import QueueDelay
from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.report.night_report import Moment
from slurmwrap.report.report_inputs import (
    Caught,
    Delayed,
    Detail,
    GpuRun,
    Idle,
    Key,
    MultiNodeRun,
    RunGroup,
    StayingRun,
    StepCountedRun,
    TunedRun,
)
from slurmwrap.sbatch.job_request import CpuUnit, ResourceShape
from slurmwrap.store import report_sql as sql
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.sqlite_connection import connect_readonly, translate_sqlite_errors

Rows = list[tuple[Any, ...]]
_WORKERS, _PARTS, _LONG_S = 4, 4, 60 * 86400.0
_BUSY_S = 5.0
_CACHE = ("PRAGMA temp_store = MEMORY", "PRAGMA cache_size = -64000", "PRAGMA mmap_size = 4294967296")

# Conditions that restrict a query to one user, by the alias of the table.
_USER_CONDITIONS = {
    "r": " AND r.user = :user_id",
    "a": " AND a.user = :user",
    "s": " AND s.user = :user",
    "d": " AND d.user = :user",
    "p": " AND p.uid = :uid",
    "x": " AND EXISTS (SELECT 1 FROM attempts b WHERE b.cluster = x.cluster AND b.job_id = x.job_id"
    " AND b.submit_time = x.submit_time AND b.user = :user)",
}
_ACCOUNT_CONDITIONS = {
    "r": " AND r.account = :account_id",
    "a": " AND a.account = :account",
    "s": " AND EXISTS (SELECT 1 FROM attempts b WHERE b.cluster = s.cluster AND b.job_id = s.job_id"
    " AND b.account = :account)",
    "d": " AND EXISTS (SELECT 1 FROM attempts b WHERE b.cluster = d.cluster AND b.job_id = d.job_id"
    " AND b.account = :account)",
    "p": " AND EXISTS (SELECT 1 FROM attempts b WHERE b.cluster = p.cluster"
    " AND b.job_id IN (p.job_id, p.prerun_job_id) AND b.account = :account)",
    "x": " AND EXISTS (SELECT 1 FROM attempts b WHERE b.cluster = x.cluster AND b.job_id = x.job_id"
    " AND b.submit_time = x.submit_time AND b.account = :account)",
}
# Runs refer to the names of clusters by number.
_CLUSTER_CONDITIONS = {
    alias: f" AND {alias}.cluster IN (SELECT value FROM json_each(:clusters))" for alias in ("a", "s", "d", "p", "x")
} | {"r": " AND r.cluster IN (SELECT id FROM names WHERE name IN (SELECT value FROM json_each(:clusters)))"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The time [since, until) in Unix seconds, and the user, account and clusters of the report; empty means all."""

    since: float
    until: float
    user: str = ""
    account: str = ""
    clusters: tuple[str, ...] = ()


class ReportReader:
    """Runs queries of report_sql.py at once; `Future.result` returns their rows. Use it as a context manager."""

    def __init__(self, path: Path, period: Period, connection: sqlite3.Connection | None = None) -> None:
        """`connection`: of a database in memory; otherwise `path` is opened for reading. Raises StoreError."""
        self.path, self.period = path, period
        self._own = connection is None
        self._first = connection or self._connect()
        self._idle: list[sqlite3.Connection] = [self._first]
        self._pool = ThreadPoolExecutor(_WORKERS) if self._own else None
        try:
            found = self._read_at_once("SELECT id, name FROM names")
            self.names: dict[int, str] = {number: decode_text(name) for number, name in found}
            self._ids = {name: number for number, name in self.names.items()}
            self._given = self._make_parameters()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ReportReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the running queries and close the connections."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for connection in self._idle if self._own else ():
            connection.close()
        self._idle = []

    def _make_parameters(self) -> dict[str, Any]:
        user, account = self.period.user, self.period.account
        found = self._read_at_once(sql.UID_OF, [self._ids[user]]) if user in self._ids else []
        found = found or (
            self._read_at_once("SELECT uid FROM submissions WHERE user = ? LIMIT 1", [user]) if user else []
        )
        return {
            "since": self.period.since,
            "until": self.period.until,
            "user": user,
            "account": account,
            "clusters": json.dumps(self.period.clusters),
            "user_id": self._ids.get(user, -1),
            "account_id": self._ids.get(account, -1),
            "uid": found[0][0] if found else -2,
            "base": max(self.names, default=0) + 1,
        }

    # ------------------------------------------------------------------------------------------- queries

    def ask(self, query: str, table: str, **given: Any) -> Future[Rows]:
        """Start a query. `table`: alias of the table that `{mine}` restricts."""
        return self._start_query(partial(self._read_rows, self._restrict_query(query, table), {**self._given, **given}))

    def sums(self, summed: sql.SumQuery, since: float, until: float, **given: Any) -> list[Future[Rows]]:
        """Start sums over runs, in several pieces if the time is long. The caller adds the results of the pieces."""
        return [self.sum(summed, **given, since=low, until=high) for low, high in self.pieces(since, until)]

    def sum(self, summed: sql.SumQuery, **given: Any) -> Future[Rows]:
        """Start sums over runs in one piece."""
        return self._start_query(partial(self._sum_rows, summed, {**self._given, **given}))

    def parts(self, query: str, table: str, since: float, until: float, **given: Any) -> list[Future[Rows]]:
        """Start a query, in several pieces if the time is long."""
        return [self.ask(query, table, **given, since=low, until=high) for low, high in self.pieces(since, until)]

    def pieces(self, since: float, until: float) -> Iterator[tuple[float, float]]:
        """Split a long time into the pieces of parallel queries; a short one is not split."""
        parts = _PARTS if until - since > _LONG_S and self._own else 1
        return pairwise([since + (until - since) * part / parts for part in range(parts)] + [until])

    def _start_query(self, work: Callable[[], Rows]) -> Future[Rows]:
        if self._pool is not None:
            return self._pool.submit(work)
        done: Future[Rows] = Future()
        done.set_result(work())
        return done

    def _sum_rows(self, summed: sql.SumQuery, given: Mapping[str, Any]) -> Rows:
        with translate_sqlite_errors(self.path), self._borrow_connection() as connection:
            connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {summed.table} ({summed.create})")
            connection.execute(f"DELETE FROM temp.{summed.table}")
            connection.execute(f"INSERT INTO temp.{summed.table} {self._restrict_query(summed.insert, 'r')}", given)
            rows = connection.execute(summed.select, given).fetchall()
            return json.loads(rows[0][0]) if summed.as_json else rows

    def stream(self, query: str, table: str, **given: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows one by one, so that the caller may stop early."""
        with translate_sqlite_errors(self.path), self._borrow_connection() as connection:
            yield from connection.execute(self._restrict_query(query, table), {**self._given, **given})

    def bound(self, query: str, table: str, **given: Any) -> tuple[str, dict[str, Any]]:
        """Return the query and its values, for callers that read whole records."""
        return self._restrict_query(query, table), {**self._given, **given}

    @property
    def uid(self) -> int:
        """The uid of the user whom the report is about; -2 when it is not known."""
        return int(self._given["uid"])

    def _restrict_query(self, query: str, table: str) -> str:
        conditions = _USER_CONDITIONS[table] if self.period.user else ""
        conditions += _ACCOUNT_CONDITIONS[table] if self.period.account else ""
        conditions += _CLUSTER_CONDITIONS[table] if self.period.clusters else ""
        return query.format(mine=conditions)

    def _read_rows(self, query: str, given: Mapping[str, Any]) -> Rows:
        with translate_sqlite_errors(self.path), self._borrow_connection() as connection:
            return connection.execute(query, given).fetchall()

    def _read_at_once(self, query: str, given: Sequence[Any] = ()) -> Rows:
        with translate_sqlite_errors(self.path):
            return self._first.execute(query, given).fetchall()

    @contextmanager
    def _borrow_connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise StoreError(f"there is no database at {self.path} yet", hint="it is made when the first job is seen")
        with translate_sqlite_errors(self.path):
            connection = connect_readonly(self.path, busy_s=_BUSY_S, any_thread=True)
            for pragma in _CACHE:
                connection.execute(pragma)
        return connection

    # ------------------------------------------------------------------------------------------- results

    def cells(self, asked: Sequence[Future[Rows]]) -> list[RunGroup]:
        """Return the groups of runs from the results of CELLS, unpacked and added."""
        sums: dict[int, tuple[int, int]] = {}
        for packed, runs, gpu_s in (row for part in asked for row in part.result()):
            before = sums.get(packed, (0, 0))
            sums[packed] = before[0] + runs, before[1] + gpu_s
        base = self._given["base"]
        return [self._make_run_group(packed, runs, gpu_s, base) for packed, (runs, gpu_s) in sums.items()]

    def _make_run_group(self, packed: int, runs: int, gpu_s: int, base: int) -> RunGroup:
        rest, bin = divmod(packed, 32)
        rest, demand = divmod(rest, 4)
        rest, struck = divmod(rest, 2)
        rest, category = divmod(rest, base)
        user, account = divmod(rest, base)
        return RunGroup(
            user=self.names[user],
            account=self.names[account],
            category=self.names.get(category, ""),
            struck=bool(struck),
            demand=demand,
            bin=bin,
            runs=runs,
            gpu_s=float(gpu_s),
        )

    def details(self, keys: Sequence[Key]) -> dict[Key, Detail]:
        """Return addresses and advice of these runs."""
        found = {}
        with translate_sqlite_errors(self.path), self._borrow_connection() as connection:
            for key in keys:
                row = connection.execute(sql.DETAIL, key).fetchone()
                if row is not None:
                    found[key] = Detail(decode_text(row[0]) or str(key[1]), decode_text(row[1] or ""))
        return found


def decode_text(value: Any) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def parse_json_list(text: Any) -> list[Any]:
    """Return the JSON list in a column; [] if there is none."""
    with suppress(ValueError, TypeError):
        found = json.loads(text)
        return found if isinstance(found, list) else []
    return []


# Conversion of rows of report_sql.py's queries to records of the night report.
DAY_S = 86400.0
# Length of the report's time up to which → length of one step of the curve of allocated GPUs.
_STEPS = ((2 * DAY_S, 3600.0), (14 * DAY_S, 6 * 3600.0), (92 * DAY_S, DAY_S), (float("inf"), 7 * DAY_S))
_MAX_STEPS = 200


def compute_edges(since: float, until: float) -> list[float]:
    length = max(next(step for limit, step in _STEPS if until - since <= limit), (until - since) / _MAX_STEPS)
    count = max(1, -int(-(until - since) // length))
    return [max(since, until - length * number) for number in range(count, 0, -1)] + [until]


def compute_moments(edges: Sequence[float], sums: Rows, spills: Sequence[Rows]) -> list[Moment]:
    """Return GPU-hours per step: of runs that ended in it, plus what runs that ended later used in it."""
    held = [[float(value) for value in row[:3]] for row in sums]
    for number, rows in enumerate(spills):
        for start, gpus, outcome in rows:
            held[number][outcome - 1] -= gpus * (edges[number] - start)
            for earlier in range(number - 1, -1, -1):
                low, high = edges[earlier], edges[earlier + 1]
                held[earlier][outcome - 1] += gpus * (high - max(low, start))
                if start >= low:
                    break
    return [
        Moment(at=low, seconds=high - low, completed=well / 3600, failed=failed / 3600, cancelled=cancelled / 3600)
        for (low, high), (well, failed, cancelled) in zip(pairwise(edges), held, strict=True)
    ]


def collect_failure_times(rows: Rows, names: Mapping[int, str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return sorted seconds to failure by category, for the report's own time and for all examined runs."""
    in_period: dict[str, list[int]] = {}
    all_examined: dict[str, list[int]] = {}
    for category, by_itself, run_s, runs in rows:
        all_examined.setdefault(names[category], []).extend([run_s] * runs)
        if by_itself:
            in_period.setdefault(names[category], []).extend([run_s] * runs)
    return in_period, all_examined


def sum_counts(counts: Iterable[tuple[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for key, count in counts:
        found[key] = found.get(key, 0) + count
    return found


def scale_to_period(delayed: Delayed, outcomes: Rows, since: float, detail: float) -> Delayed:
    """Scale figures of the newest days to the whole time if only these days were examined."""
    if detail <= since or not delayed.tried:
        return delayed
    tried = sum(count for outcome, count in outcomes if outcome != "fail")
    factor = tried / delayed.tried
    return Delayed(tried, round(delayed.started * factor), delayed.gpu_s * factor, delayed.wait_s * factor)


def make_idle_run(row: Sequence[Any], names: Mapping[int, str]) -> Idle:
    cluster, job_id, submit_time, user, name, gpus, unused, permille, run_s = row
    use = permille / 1000 * (gpus - unused) / gpus if permille is not None else None
    key = (names[cluster], job_id, submit_time)
    return Idle(
        key=key,
        user=names[user],
        name=decode_text(name),
        gpus=gpus,
        unused=min(gpus, unused),
        use=0.0 if unused >= gpus else use,
        run_s=run_s,
    )


def make_multi_node_runs(rows: Rows) -> list[MultiNodeRun]:
    return [
        MultiNodeRun(tuple(map(str, parse_json_list(nodes))), float(gpu_s), bool(failed))
        for nodes, gpu_s, failed in rows
    ]


def make_gpu_run(row: Sequence[Any]) -> GpuRun:
    cluster, nodes, gpus, partition, start, end, permille = row
    named = tuple(f"{decode_text(cluster)}/{node}" for node in parse_json_list(nodes))
    use = None if permille is None else min(1.0, permille / 1000)
    return GpuRun(named, gpus, decode_text(partition), float(start), float(end), use)


def make_staying_run(cluster: str, user: str, row: Sequence[Any], until: float) -> StayingRun:
    """Convert a row; what comes after `until` has not happened yet."""
    job_id, submitted, ended, run_s, gpus, over, failed, again = row
    later = max(0.0, ended - until)
    return StayingRun(
        cluster,
        job_id,
        submitted,
        float(ended - later),
        float(max(0.0, run_s - later)),
        gpus,
        user,
        over=bool(over) and not later,
        completed=not failed,
        again=bool(again),
    )


def make_paced_run(row: Sequence[Any]) -> StepCountedRun:
    uid, script, variant, gpus, nodes, gpu_s, steps_per_s, ended, placed = row
    work = (uid, decode_text(script), variant, gpus)
    return StepCountedRun(
        work, tuple(map(str, parse_json_list(nodes))), float(gpu_s), float(steps_per_s), float(ended), bool(placed)
    )


def make_queue_delay(row: Sequence[Any]) -> QueueDelay:
    cluster, job_id, submit_time, address, user, gpus, eligible, seen, fair, fragmented, unknown, over = row
    return QueueDelay(
        attempt=RunKey(cluster=cluster, job_id=job_id, submit_time=submit_time),
        address=decode_text(address),
        user=decode_text(user),
        gpus=gpus,
        eligible_at=float(eligible),
        seen_at=float(seen),
        fair_share_s=float(fair),
        fragmentation_s=float(fragmented),
        unknown_s=float(unknown),
        over=bool(over),
    )


def make_caught_failure(category: str, job_id: int | None, gpus: int, uid: int, at: float, reason: Any) -> Caught:
    return Caught(category, job_id, gpus, uid, at, decode_text(reason))


def make_tuned_run(gpu_s: int, cpus: int, gpus: int, nodes: int, shape: str, curve: str) -> TunedRun | None:
    """Convert a row; None if the requested CPUs per GPU are unknown, or the job got exactly these."""
    asked = compute_requested_cpus_per_gpu(record_from_json(ResourceShape, json.loads(shape)), gpus)
    got = cpus / gpus
    if asked is None or abs(got - asked) < 0.01:
        return None
    points = tuple(record_from_json(CurvePoint, point) for point in parse_json_list(curve))
    return TunedRun(float(gpu_s), asked, got, points)


def compute_requested_cpus_per_gpu(shape: ResourceShape, gpus: int) -> float | None:
    """Return the CPUs per GPU that the user requested; None if they left it to Slurm."""
    if shape.cpus is None or not gpus:
        return None
    if shape.cpu_unit is CpuUnit.PER_GPU:
        return float(shape.cpus)
    tasks = shape.tasks or (shape.tasks_per_node or 1) * (shape.nodes or 1)
    return shape.cpus * tasks / gpus if shape.cpu_unit is CpuUnit.PER_TASK else None
