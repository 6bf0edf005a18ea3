"""SQL queries for lists: the newest runs and jobs of a database, and sums over all runs, with filters and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_filter import NO_FAILURES, RunFilter, moment_of
from slurmwrap.store import record_rows
from slurmwrap.store.sqlite_connection import translate_sqlite_errors
from slurmwrap.store.sqlite_session import Session

_KEY = ("cluster", "job_id", "submit_time")
_SHOWN = (
    *("address", "restarts", "name", "user", "uid", "account", "partition", "state", "gpus", "start_time"),
    *("end_time", "decision", "decision_reason", "retry_at", "incident"),
)
COLUMNS = ", ".join(f"a.{name}" for name in (*_KEY, *_SHOWN, "diagnosis_category"))  # of the table `attempts a`
# One shared Diagnosis per category, because a list contains few categories.
_DIAGNOSES: dict[str, Diagnosis] = {}


def make_listed_run(row: Mapping[str, Any]) -> JobRun:
    """Return a record with only the fields that a list shows; its diagnosis has only the category."""
    category = row["diagnosis_category"]
    return JobRun(
        attempt=RunKey(cluster=row["cluster"], job_id=row["job_id"], submit_time=row["submit_time"]),
        diagnosis=_make_category_diagnosis(category) if category is not None else None,
        **{name: decode_text(row[name]) for name in _SHOWN},
    )


def decode_text(value: Any) -> Any:
    """Decode text that is not valid UTF-8, which is stored as bytes (record_rows.encode_sql_text)."""
    return value.decode("utf-8", "surrogatepass") if type(value) is bytes else value


def _make_category_diagnosis(category: str) -> Diagnosis:
    found = _DIAGNOSES.get(category)
    if found is None:
        found = Diagnosis(category=category, domain="", decision="", confidence=0.0, signature="")
        _DIAGNOSES[category] = found
    return found


_FAR_FUTURE = 1e18  # Unix seconds
_FAILED = f"diagnosis_category NOT IN ({', '.join(repr(one) for one in NO_FAILURES)})"  # NULL: undiagnosed, not failed
# Whether a run that has not ended is a pre-run's own. For ended runs the column `excluded` of `runs` says so.
_IS_PRERUN = """(
    EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = a.cluster AND p.prerun_job_id = a.job_id)
    OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = a.job_id AND s.cluster = a.cluster))"""
# With CROSS JOIN SQLite keeps the order of the tables, so that only the wanted rows of the wide table are read.
_ENDED_RUNS = """runs r CROSS JOIN names c ON c.id = r.cluster CROSS JOIN attempts a
    ON a.cluster = c.name AND a.job_id = r.job_id AND a.submit_time = r.submit_time"""
_STATE = "CASE WHEN a.state <> '' THEN a.state WHEN a.start_time IS NULL THEN 'PENDING' ELSE 'RUNNING' END"
_RUNS_ON_NODES = "EXISTS (SELECT 1 FROM json_each(a.nodes) AS one WHERE one.value IN ({}))"
_IN_PARTITION = "instr(',' || a.partition || ',', ',' || ? || ',') > 0"
_SUMS = """SELECT count(*) AS runs, sum(r.outcome = 2) AS failed, sum(r.gpus * r.run_s) / 3600.0 AS gpu_hours,
    sum(CASE WHEN r.outcome = 2 THEN r.gpus * r.run_s END) / 3600.0 AS failed_gpu_hours FROM {} WHERE {}"""
# Almost every submission has a run that has ended since. These are removed first with the narrow table; only for the
# few that are left SQLite checks whether there is any run at all.
_WAITING = """WITH left_over AS MATERIALIZED (
        SELECT cluster, job_id FROM submissions WHERE {}
        EXCEPT SELECT c.name, r.job_id FROM runs r CROSS JOIN names c ON c.id = r.cluster WHERE r.end_time >= ?)
    SELECT s.* FROM left_over l CROSS JOIN submissions s ON s.cluster = l.cluster AND s.job_id = l.job_id
    WHERE s.at >= ? AND s.at < ?
        AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = s.cluster AND a.job_id = s.job_id)
        AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.address <> CAST(a.job_id AS TEXT)
            AND a.address > s.job_id || '_' AND a.address < s.job_id || '`')
    ORDER BY s.at DESC LIMIT ?"""
_START_TIME = "coalesce(a.start_time, a.submit_time)"
Clause = tuple[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over all selected runs, shown or not. Runs that have not ended have no hours yet."""

    runs: int = 0
    failed: int = 0
    gpu_hours: float = 0.0
    failed_gpu_hours: float = 0.0


# --- runs and jobs -------------------------------------------------------------------------------------------------


def find_runs(
    session: Session, run_filter: RunFilter, *, limit: int | None, as_listed: bool = False
) -> tuple[JobRun, ...]:
    """Return the newest runs by their end, or by their start while they run or wait; `limit` None: all of them.

    `as_listed`: fill in only the fields that a list shows. StoreError for a file of an older version.
    """
    return tuple(iterate_runs(session, run_filter, limit=limit, as_listed=as_listed))


def iterate_runs(
    session: Session, run_filter: RunFilter, *, limit: int | None, as_listed: bool = False
) -> Iterator[JobRun]:
    """Yield the runs of `find_runs` one by one, because all runs of a month need too much memory."""
    columns, make_run = (
        (COLUMNS, make_listed_run) if as_listed else ("a.*", partial(record_rows.record_from_row, record_rows.ATTEMPTS))
    )
    where, values = _make_open_run_clause(run_filter)
    sql = f"SELECT {columns} FROM attempts a WHERE {where} ORDER BY {_START_TIME} DESC LIMIT ?"
    open_runs = session.each(sql, [*values, _format_limit(limit)], make_run)
    where, values = _make_and_clause([*_make_narrow_clauses(run_filter), *_make_wide_clauses(run_filter)])
    sql = f"SELECT {columns} FROM {_ENDED_RUNS} WHERE {where} ORDER BY r.end_time DESC, r.job_id DESC LIMIT ?"
    ended = session.each(sql, [*values, _format_limit(limit)], make_run)
    return islice(merge(open_runs, ended, key=moment_of, reverse=True), limit)


def sum_runs(session: Session, run_filter: RunFilter) -> Sums:
    """Return the sums over all selected runs, read as two rows."""
    where, values = _make_open_run_clause(run_filter)
    row = session._rows(f"SELECT count(*) AS n, sum({_FAILED}) AS failed FROM attempts a WHERE {where}", values)[0]
    wide = _make_wide_clauses(run_filter)
    where, values = _make_and_clause([*_make_narrow_clauses(run_filter), *wide])
    ended = session._rows(_SUMS.format(_ENDED_RUNS if wide else "runs r", where), values)[0]
    return Sums(
        runs=row["n"] + ended["runs"],
        failed=(row["failed"] or 0) + (ended["failed"] or 0),
        gpu_hours=ended["gpu_hours"] or 0.0,
        failed_gpu_hours=ended["failed_gpu_hours"] or 0.0,
    )


def find_jobs(session: Session, run_filter: RunFilter, *, limit: int | None) -> tuple[tuple[str, int], ...]:
    """Return (cluster, raw job id) of the newest jobs with a selected run."""
    where, values = _make_open_run_clause(run_filter)
    sql = f"""SELECT a.cluster AS cluster, a.job_id AS job_id, max({_START_TIME}) AS at FROM attempts a WHERE {where}
        GROUP BY 1, 2 ORDER BY 3 DESC LIMIT ?"""
    found = session._rows(sql, [*values, _format_limit(limit)])
    newest = {(row["cluster"], row["job_id"]): row["at"] for row in found}
    for key, at in _find_ended_jobs(session, run_filter, limit).items():
        # A job that runs again is placed by the run that has not ended.
        newest.setdefault(key, at)
    return tuple(sorted(newest, key=lambda key: (-newest[key], key)))[:limit]


def _find_ended_jobs(session: Session, run_filter: RunFilter, limit: int | None) -> dict[tuple[str, int], float]:
    """Return the newest jobs with a selected run that has ended, and when the newest such run ended.

    Rows are read from the newest on until there are enough: grouping a year's runs by job would read all of them.
    """
    wide = _make_wide_clauses(run_filter)
    where, values = _make_and_clause([*_make_narrow_clauses(run_filter), *wide])
    sql = f"""SELECT (SELECT name FROM names WHERE id = r.cluster), r.job_id, r.end_time
        FROM {_ENDED_RUNS if wide else "runs r"} WHERE {where} ORDER BY r.end_time DESC, r.job_id DESC"""
    found: dict[tuple[str, int], float] = {}
    with translate_sqlite_errors(session.path):
        for cluster, job_id, ended in session.connection.execute(sql, values):
            found.setdefault((cluster, job_id), ended)
            if limit is not None and len(found) >= limit:
                break
    return found


def count_jobs(session: Session, run_filter: RunFilter) -> int:
    """Return how many jobs have a selected run. A job that ended and now runs again counts twice."""
    where, values = _make_open_run_clause(run_filter)
    sql = f"SELECT count(DISTINCT a.cluster || ' ' || a.job_id) AS n FROM attempts a WHERE {where}"
    open_jobs: int = session._rows(sql, values)[0]["n"]
    wide = _make_wide_clauses(run_filter)
    where, values = _make_and_clause([*_make_narrow_clauses(run_filter), *wide])
    distinct_jobs = f"SELECT DISTINCT r.job_id, r.cluster FROM {_ENDED_RUNS if wide else 'runs r'} WHERE {where}"
    ended: int = session._rows(f"SELECT count(*) AS n FROM ({distinct_jobs})", values)[0]["n"]
    return open_jobs + ended


def find_runs_of_id(session: Session, job_id: int) -> tuple[JobRun, ...]:
    """Return the runs of one raw job id on any cluster, oldest first; by key, since a scan would read every row."""
    sql = "SELECT * FROM attempts WHERE cluster = ? AND job_id = ? ORDER BY submit_time"
    found = (session._read(record_rows.ATTEMPTS, sql, [cluster, job_id]) for cluster in list_clusters(session))
    return tuple(run for runs in found for run in runs)


def find_runs_of_incident(session: Session, incident_id: str) -> tuple[JobRun, ...]:
    """Return the runs of an incident, oldest first."""
    sql = "SELECT * FROM attempts WHERE incident = ? AND incident <> '' ORDER BY end_time, job_id"
    return session._read(record_rows.ATTEMPTS, sql, [incident_id])


def find_uids(session: Session, user: str) -> tuple[int, ...]:
    """Return the uid of the user's newest stored run; the accounts of this machine may differ."""
    sql = """SELECT a.uid AS uid FROM runs r CROSS JOIN names c ON c.id = r.cluster CROSS JOIN attempts a
        ON a.cluster = c.name AND a.job_id = r.job_id AND a.submit_time = r.submit_time
        WHERE r.user = (SELECT id FROM names WHERE name = ?) AND a.uid >= 0 ORDER BY r.end_time DESC LIMIT 1"""
    rows = session._rows(sql, _encode_texts([user]))
    if not rows:
        newest = "SELECT uid FROM submissions WHERE user = ? ORDER BY at DESC LIMIT 1"
        rows = session._rows(newest, _encode_texts([user]))
    return (rows[0]["uid"],) if rows else ()


# --- submissions without a run -------------------------------------------------------------------------------------


def find_waiting_submissions(
    session: Session,
    *,
    since: float,
    until: float | None,
    users: Sequence[str],
    limit: int | None,
    clusters: Sequence[str] = (),
) -> tuple[Submission, ...]:
    """Return submissions without a stored run, newest first: they wait, were cancelled early, or were never seen."""
    until = _FAR_FUTURE if until is None else until
    where, values = _make_and_clause(
        [("at >= ? AND at < ?", [since, until]), _make_in_clause("user", users), _make_in_clause("cluster", clusters)]
    )
    sql = _WAITING.format(where)
    return session._read(record_rows.SUBMISSIONS, sql, [*values, since, since, until, _format_limit(limit)])


def find_failed_preruns(
    session: Session, run_filter: RunFilter, uids: Sequence[int], *, limit: int | None
) -> tuple[PrerunRecord, ...]:
    """Return failed pre-runs of the selected time and categories, newest first; `uids` () means all users."""
    where, values = _make_stopped_clause(run_filter, uids)
    sql = f"SELECT * FROM preruns WHERE {where} ORDER BY at DESC LIMIT ?"
    return session._read(record_rows.PRERUNS, sql, [*values, _format_limit(limit)])


def count_failed_preruns(session: Session, run_filter: RunFilter, uids: Sequence[int]) -> int:
    """Return how many pre-runs `find_failed_preruns` would return without a limit."""
    where, values = _make_stopped_clause(run_filter, uids)
    count: int = session._rows(f"SELECT count(*) AS n FROM preruns WHERE {where}", values)[0]["n"]
    return count


def _make_stopped_clause(run_filter: RunFilter, uids: Sequence[int]) -> Clause:
    until = _FAR_FUTURE if run_filter.until is None else run_filter.until
    clauses: list[Clause] = [
        ("verdict_outcome = 'fail'", []),
        ("at >= ? AND at < ?", [run_filter.since or 0.0, until]),
        _make_in_clause("verdict_category", run_filter.categories),
        _make_in_clause("cluster", run_filter.clusters),
    ]
    if uids:
        clauses.append((f"uid IN ({_make_marks(uids)})", list(uids)))
    return _make_and_clause(clauses)


def forget_rejected_entries(session: Session) -> int:
    """Delete the counts of rejected spool files and return the number of rows."""
    with session.transaction():
        count: int = session._rows("SELECT count(*) AS n FROM rejected_entries")[0]["n"]
        session._write("DELETE FROM rejected_entries", {})
    return count


# --- conditions ----------------------------------------------------------------------------------------------------


def list_clusters(session: Session, *also: str) -> tuple[str, ...]:
    """Return the clusters with runs, submissions or pre-runs, or with rows in the tables `also`.

    Each name takes one step in an index; no query reads every row.
    """
    names: set[str] = set()
    for table in ("attempts", "submissions", "preruns", *also):
        name = _find_after(session, table, "")
        while name is not None:
            names.add(name)
            name = _find_after(session, table, name)
    return tuple(sorted(names))


def _find_after(session: Session, table: str, name: str) -> str | None:
    rows = session._rows(f"SELECT min(cluster) AS name FROM {table} WHERE cluster > ?", [name])
    found: str | None = rows[0]["name"]
    return found


def _make_open_run_clause(run_filter: RunFilter) -> Clause:
    """Return the condition for runs that are not known to have ended."""
    clauses: list[Clause] = [
        (f"a.end_time IS NULL AND NOT {_IS_PRERUN}", []),
        _make_in_clause("a.cluster", run_filter.clusters),
        _make_in_clause("a.user", run_filter.users),
        _make_in_clause("a.account", run_filter.accounts),
        _make_in_clause("a.diagnosis_category", run_filter.categories),
        _make_or_clause("a.name GLOB ?", run_filter.names),
        *_make_wide_clauses(run_filter),
        (_FAILED if run_filter.failed else "1", []),
    ]
    if run_filter.until is not None:
        clauses.append((f"{_START_TIME} < ?", [run_filter.until]))
    return _make_and_clause(clauses)


def _make_narrow_clauses(run_filter: RunFilter) -> list[Clause]:
    """Return the conditions that the table `runs` can answer."""
    until = _FAR_FUTURE if run_filter.until is None else run_filter.until
    return [
        ("r.end_time >= ? AND r.end_time < ? AND r.excluded = 0", [run_filter.since or 0, until]),
        _make_name_clause("r.cluster", run_filter.clusters),
        _make_name_clause("r.user", run_filter.users),
        _make_name_clause("r.account", run_filter.accounts),
        _make_name_clause("r.category", run_filter.categories),
        _make_job_name_clause(run_filter.names),
        ("r.outcome = 2" if run_filter.failed else "1", []),
    ]


def _make_name_clause(column: str, names: Sequence[str]) -> Clause:
    if not names:
        return "1", []
    return f"{column} IN (SELECT id FROM names WHERE name IN ({_make_marks(names)}))", _encode_texts(names)


def _make_job_name_clause(patterns: Sequence[str]) -> Clause:
    where, values = _make_or_clause("name GLOB ?", patterns)
    return (f"r.name IN (SELECT id FROM job_names WHERE {where})", values) if patterns else ("1", [])


def _make_wide_clauses(run_filter: RunFilter) -> list[Clause]:
    """Return the conditions that only the table `attempts` can answer; () if none are selected."""
    clauses = [
        _make_in_clause("a.decision", run_filter.decisions),
        _make_in_clause(_STATE, run_filter.states),
        _make_or_clause(_IN_PARTITION, run_filter.partitions),
    ]
    if run_filter.nodes:
        clauses.append((_RUNS_ON_NODES.format(_make_marks(run_filter.nodes)), _encode_texts(run_filter.nodes)))
    return [clause for clause in clauses if clause[0] != "1"]


def _make_in_clause(column: str, values: Sequence[str]) -> Clause:
    return (f"{column} IN ({_make_marks(values)})", _encode_texts(values)) if values else ("1", [])


def _make_or_clause(condition: str, values: Sequence[str]) -> Clause:
    return (f"({' OR '.join([condition] * len(values))})", _encode_texts(values)) if values else ("1", [])


def _make_and_clause(clauses: Sequence[Clause]) -> Clause:
    kept = [clause for clause in clauses if clause[0] != "1"]
    return " AND ".join(where for where, _ in kept), [value for _, values in kept for value in values]


def _make_marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _encode_texts(texts: Sequence[str]) -> list[Any]:
    return [record_rows.encode_sql_text(word) for word in texts]


def _format_limit(limit: int | None) -> int:
    return -1 if limit is None else max(0, limit)
