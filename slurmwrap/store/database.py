"""The database of the site or of one user (adapter): implements `protocols.Store` with SQLite.

Every public method is one transaction. BEGIN IMMEDIATE takes the write lock before anything is read, so that two
processes never overwrite each other's work. Methods raise StoreError, which names the file and says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurmwrap.errors import StoreError
from slurmwrap.model.decision import BlockedInput, PlannedAction, RetryDecision, SlurmAction, Strike
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import (
    ActionRecord,
    Incident,
    JobRun,
    LedgerReset,
    PrerunRecord,
    QueueDelay,
    StrikeRecord,
    intended,
)
from slurmwrap.model.observation import Observation, RejectedEntry
from slurmwrap.model.resource_profile import Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.policy.node_history import (
    CHECK_FAILED,
    CHECK_PASSED,
    Exposure,
    GpuFault,
    NodeCheck,
    NodeFailure,
    NodeHistory,
    Removal,
    Repair,
    list_gpu_faults,
)
from slurmwrap.prerun.expected_saving import ScriptOutcome
from slurmwrap.profiling.contention import ComparedRun
from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup, RunTimeQuery, RunTimeRecord
from slurmwrap.protocols import Clock
from slurmwrap.store import record_rows, run_time_rows
from slurmwrap.store.db_creation import BUSY_S, create, migrate, prepare
from slurmwrap.store.list_queries import list_clusters
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.record_rows import dump, encode_sql_text
from slurmwrap.store.retention import digest_nonce
from slurmwrap.store.running_job_tables import RunningJobTables
from slurmwrap.store.script_outcomes import make_outcomes_sql, outcome_from_row
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.sqlite_connection import (
    connect,
    connect_readonly,
    read_version,
    translate_os_errors,
    translate_sqlite_errors,
)
from slurmwrap.store.sqlite_session import Session
from slurmwrap.store.user_state_files import CLOCK_TOLERANCE_S, is_fault_of_script

# The table of the repairs has the checks of nodes, too.
_IS_CHECK = f"kind IN ('{CHECK_PASSED}', '{CHECK_FAILED}')"
_UNSEEN_SQL = """
SELECT job_id FROM submissions s WHERE cluster = :cluster AND at >= :since
AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = s.cluster AND a.job_id = s.job_id)
GROUP BY job_id ORDER BY max(at)
"""


def make_cluster_condition(session: Session, *also: str) -> tuple[str, list[str]]:
    """Return an SQL condition on `cluster`, and its values, for queries that know only a job id.

    The primary keys begin with the cluster, and there are few clusters, so with it they answer such a query. `also`:
    further tables to take cluster names from, for clusters without any known run.
    """
    names = list(list_clusters(session, *also))
    return f"cluster IN ({', '.join('?' * len(names))})", names


class ProfileUse(NamedTuple):
    """The last use of a profile's key in submissions. `script` is a path, or the job name if it came from stdin."""

    # The key without the prefix of the user.
    key: str
    uid: int
    script: str
    last_at: float  # Unix seconds
    times: int


_PROFILE_USES_SQL = """
SELECT profile_key, uid, CASE script_path WHEN '' THEN name ELSE script_path END AS script, max(at) AS at, count(*) AS n
FROM submissions WHERE profile_key <> '' GROUP BY profile_key, uid
"""


class UserReportTables(Session):
    """Submissions, pre-runs and profiles: what users report about their own jobs, and what is derived from it."""

    def save_submission(self, submission: Submission) -> None:
        """Insert or replace by (cluster, job_id, at)."""
        self._upsert(record_rows.SUBMISSIONS, submission)

    def submission(self, cluster: str, job_id: int) -> Submission | None:
        """Return the newest submission of this job id; None when there is none."""
        found = self._select(record_rows.SUBMISSIONS, {"cluster = ?": cluster, "job_id = ?": job_id}, order="at")
        return found[-1] if found else None

    def submissions(self, *, since: float | None = None, user: str | None = None) -> tuple[Submission, ...]:
        """Return submissions, oldest first."""
        return self._select(record_rows.SUBMISSIONS, {"at >= ?": since, "user = ?": user}, order="at, cluster, job_id")

    def unseen(self, cluster: str, since: float) -> tuple[int, ...]:
        """Return the ids of jobs submitted at or after `since` without a stored run, oldest first."""
        rows = self._rows(_UNSEEN_SQL, {"cluster": encode_sql_text(cluster), "since": since})
        return tuple(row["job_id"] for row in rows)

    def submissions_of(self, job_id: int) -> tuple[Submission, ...]:
        """Return the submissions of a job or of the job that is its pre-run, oldest first."""
        condition, clusters = make_cluster_condition(self)
        sql = f"""SELECT * FROM submissions WHERE {condition} AND job_id = ?
            UNION SELECT * FROM submissions WHERE prerun_job_id = ? ORDER BY at, cluster, job_id"""
        return self._read(record_rows.SUBMISSIONS, sql, [*clusters, job_id, job_id])

    def preruns_of(self, job_id: int) -> tuple[PrerunRecord, ...]:
        """Return the pre-runs of a job, or the one that ran as this job, oldest first."""
        condition, clusters = make_cluster_condition(self)
        sql = f"""SELECT * FROM preruns WHERE {condition} AND prerun_job_id = ?
            UNION SELECT * FROM preruns WHERE job_id = ? ORDER BY at, cluster, prerun_job_id"""
        return self._read(record_rows.PRERUNS, sql, [*clusters, job_id, job_id])

    def save_prerun(self, record: PrerunRecord) -> None:
        """Insert or replace by (cluster, prerun_job_id, at)."""
        self._upsert(record_rows.PRERUNS, record)

    def preruns(
        self, *, job_id: int | None = None, fingerprint: str | None = None, since: float | None = None
    ) -> tuple[PrerunRecord, ...]:
        """Return pre-runs, oldest first."""
        where = {"job_id = ?": job_id, "fingerprint = ?": fingerprint, "at >= ?": since}
        return self._select(record_rows.PRERUNS, where, order="at, cluster, prerun_job_id")

    def profile(self, key: str) -> ResourceProfile | None:
        """Return the resource profile under `key`; None when there is none."""
        found = self._select(record_rows.PROFILES, {"key = ?": key})
        return found[0] if found else None

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """Return all resource profiles, ordered by key."""
        return self._select(record_rows.PROFILES, {}, order="key")

    def save_profile(self, profile: ResourceProfile) -> None:
        """Insert or replace a resource profile."""
        self._upsert(record_rows.PROFILES, profile)

    def script_outcomes(self, limit: int) -> tuple[ScriptOutcome, ...]:
        """Return what became of the newest submissions of all users, oldest first; keys begin with the uid."""
        rows = self._rows(make_outcomes_sql(limit, CLOCK_TOLERANCE_S), {})
        return tuple(outcome_from_row(row, own=is_fault_of_script(row), by_user=True) for row in rows)

    def shared_runs(self, since: float) -> tuple[ComparedRun, ...]:
        """Return the runs with counted steps that ended since then and all runs next to them; () without such steps."""
        if not self._rows(_COUNTED_STEPS_SQL, {"since": since}):
            return ()
        return tuple(
            map(_make_shared_run, self._rows(_SHARED_RUNS_SQL, {"since": since, "clocks_s": CLOCK_TOLERANCE_S}))
        )

    def profile_uses(self) -> tuple[ProfileUse, ...]:
        """Return the profile keys that submissions name, each with its newest script, in no particular order."""
        return tuple(
            ProfileUse(row["profile_key"], row["uid"], row["script"], float(row["at"]), row["n"])
            for row in self._rows(_PROFILE_USES_SQL, {})
        )

    def forget_profile(self, key: str) -> bool:
        """Delete a profile and the measurements that it was made from; return False when there was none."""
        where = {"key": encode_sql_text(key)}
        with self.transaction():
            self._write("DELETE FROM measurements WHERE key = :key", where)
            return self._write("DELETE FROM profiles WHERE key = :key", where)

    def save_measurement(self, key: str, measurement: Measurement, at: float, source: str) -> None:
        """Store a raw measurement next to the profile that it contributed to; the same one is stored only once."""
        row = {"key": encode_sql_text(key), "at": at, "source": source, "measurement": dump(to_json_dict(measurement))}
        self._write("INSERT OR IGNORE INTO measurements VALUES (:key, :at, :source, :measurement)", row)

    def add_reset(self, reset: LedgerReset) -> None:
        """Stop counting a job's earlier failures against its retry budget; adding the same reset twice is harmless."""
        self._upsert(record_rows.LEDGER_RESETS, reset)

    def resets(self, job_id: int) -> tuple[LedgerReset, ...]:
        """Return the resets of one raw job id, oldest first; () for a file of an older version."""
        # A file that was opened read-only is not migrated, so the table may be missing.
        if not self._has_table("budget_resets"):
            return ()
        return self._select(record_rows.LEDGER_RESETS, {"job_id = ?": job_id}, order="at")


# Queries for node health. Each is answered by an index of its own; the parameter `?` is in Unix seconds.
_TEXT_CAP = 500

GPU_FAULTS = """
SELECT node, at, job_id, uid, text,
    coalesce(
        (SELECT max(a.incident) FROM attempts a WHERE a.cluster = f.cluster AND a.job_id = f.job_id), ''
    ) AS incident
FROM gpu_faults f WHERE at >= ? ORDER BY at, rowid
"""

# Runs that slurmwrap's own Prolog gate refused are excluded: they are not independent evidence from Slurm. So are runs
# of users without a name: Slurm makes no credential for their jobs, and tries one node after the other.
FAILURES = """
SELECT nodes, end_time, job_id, uid, diagnosis_node, diagnosis_evidence, incident
FROM attempts INDEXED BY attempts_node_failures
WHERE diagnosis_category = 'node_failure' AND end_time >= ? AND diagnosis_signature <> 'hook.refused'
    AND user <> CAST(uid AS TEXT)
ORDER BY end_time
"""

# Only runs that still have their details count; retention keeps them longer than the window in which nodes are examined
# (store/retention.py). Runs on the same node list are summed before the list is expanded.
EXPOSURE = """
SELECT node.value AS node, sum(runs) AS runs, sum(seconds) / 3600.0 AS hours
FROM (
    SELECT nodes, count(*) AS runs, sum(max(0, end_time - start_time)) AS seconds
    FROM attempts INDEXED BY attempts_exposure
    WHERE slim = 0 AND start_time IS NOT NULL AND end_time IS NOT NULL AND end_time >= ?
    GROUP BY nodes
), json_each(nodes) AS node
GROUP BY node.value
"""


def make_failure(row: Mapping[str, Any]) -> NodeFailure:
    """Convert one row of FAILURES."""
    cited = json.loads(row["diagnosis_evidence"] or "[]")
    text = f"{cited[0].get('source', '')}: {cited[0].get('text', '')}" if cited else ""
    return NodeFailure(
        nodes=tuple(json.loads(row["nodes"])),
        at=float(row["end_time"]),
        job_id=row["job_id"],
        uid=row["uid"],
        named=row["diagnosis_node"] or "",
        text=text[:_TEXT_CAP],
        incident=row["incident"],
    )


OF_ATTEMPT = "cluster = :cluster AND job_id = :job_id AND submit_time = :submit_time"


class RunTimeTable(Session):
    """Run times of ended runs, from which those of later jobs are predicted (profiling/run_time.py)."""

    def save_run_time(self, record: RunTimeRecord) -> bool:
        """Store the run time of one run. Return False if it is stored already, or if the run was a pre-run."""
        row = run_time_rows.row_from_run_time(record)
        with self.transaction():
            for name in {row["cluster"], row["account"], row["partition"]}:
                self._write(run_time_rows.ADD_NAME, {"name": name})
            return self._write(run_time_rows.ADD_RUN_TIME, row)

    def run_times(self, cluster: str, group: RunTimeGroup) -> GroupRuns:
        """Return the newest KEPT_RUNS runs of a group, oldest first. () for a file of an older version."""
        # A file that was opened read-only is not migrated, so the table may be missing.
        if not self._has_table("run_times"):
            return ()
        sql, values = run_time_rows.make_group_query(cluster, group)
        return tuple(run_time_rows.run_times_from_rows(group, self._rows(sql, values)))

    def run_time_jobs(self, cluster: str, limit: int) -> tuple[tuple[RunTimeQuery, int], ...]:
        """Return the `limit` different jobs of which a run ended last, each with that end in Unix seconds."""
        rows = self._rows(run_time_rows.JOBS, {"cluster": encode_sql_text(cluster), "limit": limit})
        return tuple(map(run_time_rows.job_from_row, rows))


class FaultTables(Session):
    """Strikes, repairs and removals of nodes, incidents, and blocked inputs."""

    # Nodes

    def strikes(self, *, since: float, node: str | None = None) -> tuple[StrikeRecord, ...]:
        """Return strikes that were not cleared, oldest first."""
        found = self._select(record_rows.STRIKES, {"at >= ?": since, "node = ?": node}, order="at, strike_id")
        return tuple(strike for strike in found if strike.cleared_at is None)

    def add_strike(self, strike: Strike, at: float, job_id: int, uid: int) -> None:
        """Add a strike that is not part of a decision (save_judged adds those)."""
        self._strike(strike, at, job_id, uid, None)

    def _strike(self, strike: Strike, at: float, job_id: int, uid: int, attempt: RunKey | None) -> None:
        record = StrikeRecord(**to_json_dict(strike), at=at, job_id=job_id, uid=uid)
        key = {"cluster": None, "submit_time": None, **(to_json_dict(attempt) if attempt else {})}
        row = {**record_rows.row_from_record(record_rows.STRIKES, record), **key}
        self._write(record_rows.insert(record_rows.STRIKES, also=("cluster", "submit_time")), row)

    def clear_strikes(self, node: str, who: str, at: float) -> int:
        """Mark the strikes of a node up to `at` as void and return their number. Nothing is deleted."""
        sql = "UPDATE strikes SET cleared_at = :at, cleared_by = :who"
        with self.transaction():
            row = {"node": encode_sql_text(node), "who": encode_sql_text(who), "at": at}
            where = "WHERE node = :node AND at <= :at AND cleared_at IS NULL"
            count: int = self._rows(f"SELECT count(*) AS n FROM strikes {where}", row)[0]["n"]
            self._write(f"{sql} {where}", row)
        return count

    def add_repair(self, repair: Repair) -> None:
        """Add a repair mark of a node; adding the same mark twice has no further effect."""
        self._upsert(record_rows.REPAIRS, repair)

    def repairs(self, *, since: float) -> tuple[Repair, ...]:
        """Return the repair marks of nodes, oldest first."""
        return self._select(record_rows.REPAIRS, {"at >= ?": since}, extra=f"NOT ({_IS_CHECK})", order="at, node")

    def add_node_check(self, check: NodeCheck) -> None:
        """Add the result of a node's check."""
        self._upsert(record_rows.NODE_CHECKS, check)

    def node_checks(self, *, since: float) -> tuple[NodeCheck, ...]:
        """Return the checks of nodes, oldest first."""
        return self._select(record_rows.NODE_CHECKS, {"at >= ?": since}, extra=_IS_CHECK, order="at, node")

    def save_removal(self, removal: Removal) -> None:
        """Insert or replace by (node, began)."""
        self._upsert(record_rows.REMOVALS, removal)

    def removals(self) -> tuple[Removal, ...]:
        """Return the removals that have not ended."""
        return self._select(record_rows.REMOVALS, {}, extra="ended IS NULL", order="node, began")

    def node_history(self, since: float) -> NodeHistory:
        """Return all records about nodes since then, including cleared strikes; the database computes the sums."""
        return NodeHistory(
            strikes=self._select(record_rows.STRIKES, {"at >= ?": since}, order="at, strike_id"),
            gpu_faults=tuple(GpuFault(**row) for row in self._rows(GPU_FAULTS, [since])),
            failures=tuple(map(make_failure, self._rows(FAILURES, [since]))),
            removals=self._select(record_rows.REMOVALS, {"began >= ?": since}, order="began, node"),
            repairs=self.repairs(since=since),
            exposure=tuple(Exposure(**row) for row in self._rows(EXPOSURE, [since])),
        )

    # Incidents

    def save_incident(self, incident: Incident, members: Sequence[RunKey] = ()) -> None:
        """Insert or replace by id; mark `members` and their strikes as part of the incident, so that they do not count.

        A strike for a conclusive fault is certainly the node's own, whatever else happened, and is not changed.
        """
        with self.transaction():
            self._upsert(record_rows.INCIDENTS, incident)
            for attempt in members:
                row = {**to_json_dict(attempt), "incident": incident.incident_id}
                self._write(f"UPDATE attempts SET incident = :incident WHERE {OF_ATTEMPT}", row)
                self._write(f"UPDATE strikes SET incident = :incident WHERE {OF_ATTEMPT} AND NOT conclusive", row)

    def incidents(self, *, since: float | None = None, open_only: bool = False) -> tuple[Incident, ...]:
        """Return incidents, oldest first. `since`: those that are open, or ended at or after it."""
        extra = "over_at IS NULL" if open_only else ""
        where = {"(over_at IS NULL OR over_at >= ?)": since}
        return self._select(record_rows.INCIDENTS, where, extra=extra, order="began, incident_id")

    # Inputs

    def block_input(self, blocked: BlockedInput) -> None:
        """Block an input."""
        self._upsert(record_rows.BLOCKED_INPUTS, blocked)

    def blocked_inputs(self, uid: int | None = None) -> tuple[BlockedInput, ...]:
        """Return the inputs blocked for `uid` (the user's own and the site's), or all."""
        extra = f"uid IN (-1, {int(uid)})" if uid is not None else ""
        return self._select(record_rows.BLOCKED_INPUTS, {}, extra=extra, order="at, digest, uid")

    def clear_input(self, digest: str) -> bool:
        """Unblock an input; return False when it was not blocked."""
        return self._write("DELETE FROM blocked_inputs WHERE digest = :digest", {"digest": encode_sql_text(digest)})


_COUNTED_STEPS_SQL = """SELECT 1 FROM attempts
WHERE end_time >= :since AND gpus > 0 AND json_extract(measurement, '$.steps_per_s') > 0 LIMIT 1"""
# A job of gsub has one submission; its profile is stored under its owner's uid.
_SHARED_RUNS_SQL = """SELECT a.uid, a.nodes, a.gpus, a.partition, a.start_time, a.end_time,
    json_extract(a.measurement, '$.steps_per_s') AS steps_per_s,
    json_extract(a.measurement, '$.cpus_used') AS cpus_used,
    json_extract(a.measurement, '$.mem_peak_mib') AS mem_peak_mib,
    json_extract(a.measurement, '$.gpu_pcie') AS gpu_pcie, s.script_sha256,
    json_extract(s.more, '$.profile_variant') AS variant, json_extract(q.more, '$.sensitivity') AS sensitivity
FROM attempts a
LEFT JOIN submissions s ON s.cluster = a.cluster AND s.job_id = a.job_id AND a.submit_time >= s.at - :clocks_s
    AND s.slim = 0 AND s.script_sha256 <> ''
LEFT JOIN profiles q ON q.key = s.uid || ':' || s.profile_key AND s.profile_key <> ''
WHERE a.end_time >= :since AND a.start_time IS NOT NULL AND a.gpus > 0 AND a.nodes <> '[]'
ORDER BY a.end_time DESC LIMIT 10000"""


def _make_shared_run(row: Mapping[str, Any]) -> ComparedRun:
    counted = row["steps_per_s"] and row["script_sha256"]
    work = (row["script_sha256"], row["variant"] or "", str(row["gpus"]), row["partition"])
    return ComparedRun(
        uid=row["uid"],
        work=tuple(map(str, work)) if counted else (),
        nodes=tuple(json.loads(row["nodes"])),
        gpus=row["gpus"],
        start=float(row["start_time"]),
        end=float(row["end_time"]),
        steps_per_s=row["steps_per_s"],
        cpus_used=row["cpus_used"],
        mem_peak_mib=row["mem_peak_mib"],
        gpu_pcie=row["gpu_pcie"],
        sensitivity=json.loads(row["sensitivity"] or "{}"),
    )


class Database(UserReportTables, RunTimeTable, RunningJobTables, FaultTables):
    """An open database. Use `Database.open`, as a context manager if it must be closed early."""

    @classmethod
    def open(
        cls, path: Path | str, *, readonly: bool = False, clock: Clock | None = None, busy_s: float = BUSY_S
    ) -> Database:
        """Open the file, create it (mode 0600) if there is none, and migrate it to the newest schema. StoreError."""
        path = Path(path)
        with translate_os_errors(path), translate_sqlite_errors(path):
            if readonly:
                return cls._open_readonly(path, busy_s)
            if not path.exists():
                create(path, clock)
            connection = prepare(connect(path, busy_s=busy_s))
            try:
                if read_version(connection, path) < VERSION:
                    migrate(connection, path, clock)
            except BaseException:
                connection.close()
                raise
            return cls(path, connection)

    @classmethod
    def _open_readonly(cls, path: Path, busy_s: float) -> Database:
        if not path.exists():
            raise StoreError(f"there is no database at {path} yet", hint="it is made when the first job is seen")
        connection = prepare(connect_readonly(path, busy_s=busy_s), writable=False)
        try:
            read_version(connection, path)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    # Observations

    def ingest(self, observation: Observation) -> bool:
        """Store an observation; return False, and change nothing, when its nonce is already stored."""
        row = record_rows.row_from_record(record_rows.OBSERVATIONS, observation)
        with self.transaction():
            if self._rows("SELECT 1 FROM seen WHERE nonce = ?", [digest_nonce(observation.nonce)]):
                return False
            new = self._write(record_rows.insert(record_rows.OBSERVATIONS, "OR IGNORE"), row)
            for fault in list_gpu_faults(observation) if new else ():
                fault_row = {"node": fault.node, "at": fault.at, "cluster": encode_sql_text(observation.cluster)}
                fault_row |= {"job_id": fault.job_id, "uid": fault.uid, "text": encode_sql_text(fault.text)}
                self._write("INSERT INTO gpu_faults VALUES (:node, :at, :cluster, :job_id, :uid, :text)", fault_row)
        return new

    def save_rejected_entry(self, item: RejectedEntry, at: float) -> None:
        """Count a rejected spool file by owner and reason, so that a flood of them stays one row."""
        row = {
            "uid": item.uid,
            "reason": encode_sql_text(item.reason[:200]),
            "name": encode_sql_text(item.name[:255]),
            "at": at,
        }
        self._write(
            """INSERT INTO rejected_entries VALUES (:uid, :reason, 1, :at, :at, :name) ON CONFLICT (uid, reason)
            DO UPDATE SET count = count + 1, last_at = :at, last_name = :name""",
            row,
        )

    def count_rejected_entries(self) -> tuple[Mapping[str, Any], ...]:
        """Return counts of rejected files: dicts of uid, reason, count, first_at, last_at, last_name; most first."""
        return tuple(self._rows("SELECT * FROM rejected_entries ORDER BY count DESC, uid, reason"))

    def hooks_seen(
        self, cluster: str, *, since: float, jobs: int = 20_000
    ) -> dict[str, tuple[float, Mapping[str, Any]]]:
        """Return node → (time, fact `hooks`) of each node's newest Epilog at or after `since`.

        Only the newest `jobs` job ids are searched, because searching all would read the whole table.
        """
        sql = """SELECT node, max(at) AS at, json_extract(facts, '$.hooks') AS hooks FROM observations
        WHERE cluster = :cluster AND at >= :since AND context = 'epilog' AND job_id >
            (SELECT max(job_id) FROM observations WHERE cluster = :cluster) - :jobs GROUP BY node"""
        rows = self._rows(sql, {"cluster": encode_sql_text(cluster), "since": since, "jobs": jobs})
        rows_by_node = ((row["node"], row["at"], json.loads(row["hooks"] or "{}")) for row in rows)
        return {node: (at, hooks if isinstance(hooks, dict) else {}) for node, at, hooks in rows_by_node}

    def observations(self, cluster: str, job_id: int) -> tuple[Observation, ...]:
        """Return all observations of one raw job id, oldest first."""
        where = {"cluster = ?": cluster, "job_id = ?": job_id}
        return self._select(record_rows.OBSERVATIONS, where, order="at, nonce")

    def count_observations(self, cluster: str, job_id: int, uid: int) -> int:
        """Return how many observations of one raw job id this user wrote."""
        sql = "SELECT count(*) AS n FROM observations WHERE cluster = ? AND job_id = ? AND uid = ?"
        return int(self._rows(sql, [encode_sql_text(cluster), job_id, uid])[0]["n"])

    # Runs (table `attempts`)

    def save_attempt(self, run: JobRun) -> None:
        """Insert a run, or replace the one with the same key."""
        self._upsert(record_rows.ATTEMPTS, run)

    def attempt(self, attempt: RunKey) -> JobRun | None:
        """Return one run; None when it is unknown."""
        found = self._select(record_rows.ATTEMPTS, _make_run_key(attempt))
        return found[0] if found else None

    def attempts(
        self,
        *,
        cluster: str | None = None,
        job_id: int | None = None,
        user: str | None = None,
        since: float | None = None,
        unreconciled: bool = False,
    ) -> tuple[JobRun, ...]:
        """Return runs ordered by submit_time, oldest first. `since`: those not ended, or ended at or after it."""
        # The primary key begins with the cluster, so a job id alone needs the list of clusters.
        if job_id is not None and cluster is None:
            condition, clusters = make_cluster_condition(self)
            sql = f"SELECT * FROM attempts WHERE {condition} AND job_id = ? ORDER BY {_BY_SUBMIT}"
            found = self._read(record_rows.ATTEMPTS, sql, [*clusters, job_id])
            return tuple(r for r in found if _is_requested(r, user, since, unreconciled))
        where = {
            "cluster = ?": cluster,
            "job_id = ?": job_id,
            "user = ?": user,
            "(end_time IS NULL OR end_time >= ?)": since,
            "reconciled = ?": 0 if unreconciled else None,
        }
        return self._select(record_rows.ATTEMPTS, where, order=_BY_SUBMIT)

    def attempts_of(self, address: str) -> tuple[JobRun, ...]:
        """Return all runs of a job by its address: "81", "77_2", or "77" for all tasks of array 77; oldest first."""
        # "`" follows "_" in ASCII, so all texts that begin with "77_" are between "77_" and "77`".
        condition, clusters = make_cluster_condition(self)
        sql = f"""SELECT * FROM attempts WHERE {_IS_ARRAY_TASK} AND address = ?
            UNION ALL SELECT * FROM attempts WHERE {_IS_ARRAY_TASK} AND address >= ? AND address < ?
            UNION ALL SELECT * FROM attempts WHERE {condition} AND job_id = ? AND address = ?
            AND NOT ({_IS_ARRAY_TASK}) ORDER BY {_BY_SUBMIT}"""
        number = int(address) if address.isdecimal() and len(address) < 19 else -1
        return self._read(
            record_rows.ATTEMPTS, sql, [address, f"{address}_", f"{address}`", *clusters, number, address]
        )

    def failures(self, categories: Collection[str], *, since: float, limit: int) -> tuple[JobRun, ...]:
        """Return diagnosed runs of these categories that ended at or after `since`: newest `limit`, oldest first."""
        marks = ", ".join("?" * len(categories))
        sql = f"SELECT * FROM attempts WHERE end_time >= ? AND diagnosis_category IN ({marks}) "
        sql += "ORDER BY end_time DESC, submit_time, cluster, job_id LIMIT ?"
        return self._read(record_rows.ATTEMPTS, sql, [since, *sorted(categories), limit])[::-1]

    def save_judged(self, run: JobRun, decision: RetryDecision, at: float) -> None:
        """Store a run with its diagnosis, and the decision's strikes and blocked inputs, in one transaction.

        A repeated call replaces the strikes of the run.
        """
        attempt = run.attempt
        with self.transaction():
            self.save_attempt(run)
            self._write(f"DELETE FROM strikes WHERE {OF_ATTEMPT}", to_json_dict(attempt))
            for strike in decision.strikes:
                self._strike(strike, at, attempt.job_id, run.uid, attempt)
            for blocked in decision.blocked:
                self.block_input(blocked)

    def settle(self, run: JobRun) -> None:
        """Mark a stored run as reconciled.

        Besides `reconciled` only the fields in the column `more` are written, so that no index and no table that
        triggers maintain has to change.
        """
        row = {**to_json_dict(run.attempt), "more": record_rows.more_from_record(record_rows.ATTEMPTS, run)}
        self._write(f"UPDATE attempts SET reconciled = 1, more = :more WHERE {OF_ATTEMPT}", row)

    def _ensure(self, attempt: RunKey) -> None:
        row = record_rows.row_from_record(record_rows.ATTEMPTS, JobRun(attempt=attempt))
        self._write(record_rows.insert(record_rows.ATTEMPTS, "OR IGNORE"), row)

    def gpu_seconds(self, cluster: str, since: float) -> tuple[float, ...]:
        """Return GPUs times run time of the runs with GPUs that completed or were cut off since then."""
        sql = """SELECT gpus * run_s AS service FROM run_times
            WHERE cluster = (SELECT id FROM names WHERE name = ?) AND end_time >= ? AND gpus > 0"""
        return tuple(float(row["service"]) for row in self._rows(sql, (cluster, since)))

    # Actions

    def intend(self, attempt: RunKey | None, ruled: PlannedAction, mode: str, at: float, *, again: bool = False) -> int:
        """Store an action as intended and return its id.

        The same (run, rule, action) gives the same id; `again` marks that action as to be done once more. Without a run
        only an unfinished action counts as the same, because a node may be drained again next month. When this method
        returns, the row and everything written before it are on disk.
        """
        record = intended(attempt, ruled, mode, at)
        row = {**record_rows.row_from_record(record_rows.ACTIONS, record), "action_id": None}
        with self._write_durably(), self.transaction():
            action_id = self._find_same_action(attempt, ruled)
            if action_id is not None:
                if again:
                    self._write(
                        "UPDATE actions SET mode = :mode, reason = :reason, intended_at = :intended_at, "
                        "done_at = NULL, error = '', more = :more WHERE action_id = :action_id",
                        {**row, "action_id": action_id},
                    )
                return action_id
            if attempt is not None:
                self._ensure(attempt)
            with translate_sqlite_errors(self.path):
                cursor = self.connection.execute(record_rows.insert(record_rows.ACTIONS), row)
            return int(cursor.lastrowid or 0)

    def _find_same_action(self, attempt: RunKey | None, ruled: PlannedAction) -> int | None:
        where: dict[str, Any] = {"rule = ?": ruled.rule, **_make_action_key(ruled.action)}
        which = "submit_time IS NULL AND done_at IS NULL" if attempt is None else ""
        found = self._select(record_rows.ACTIONS, {**where, **(_make_run_key(attempt) if attempt else {})}, extra=which)
        return found[0].action_id if found else None

    def done(self, action_id: int, at: float, error: str = "") -> None:
        """Mark an action as done. StoreError when there is none with this id."""
        row = {"id": action_id, "at": at, "error": encode_sql_text(error)}
        if not self._write("UPDATE actions SET done_at = :at, error = :error WHERE action_id = :id", row):
            raise StoreError(f"{self.path}: there is no action {action_id}")

    def actions(self, attempt: RunKey | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        """Return actions in the order in which they were intended."""
        extra = "done_at IS NULL" if unfinished else ""
        return self._select(
            record_rows.ACTIONS, _make_run_key(attempt) if attempt else {}, extra=extra, order="action_id"
        )

    # Queue delays

    def save_delay(self, delay: QueueDelay) -> None:
        """Insert or replace by run."""
        self._upsert(record_rows.DELAYS, delay)

    def delays(
        self, *, job_id: int | None = None, since: float | None = None, open_only: bool = False
    ) -> tuple[QueueDelay, ...]:
        """Return delays by seen_at, oldest first. `since`: examined at or after it. () for an older file."""
        # A file that was opened read-only is not migrated, so the table may be missing.
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'delays'"):
            return ()
        extra = "over = 0" if open_only else ""
        if job_id is not None:
            condition, clusters = make_cluster_condition(self, "delays")
            sql = f"SELECT * FROM delays WHERE {condition} AND job_id = ? AND seen_at >= ?"
            sql += f" AND {extra}" * open_only + f" ORDER BY {_BY_SEEN_AT}"
            return self._read(record_rows.DELAYS, sql, [*clusters, job_id, since or 0.0])
        return self._select(record_rows.DELAYS, {"seen_at >= ?": since}, extra=extra, order=_BY_SEEN_AT)


_BY_SUBMIT = "submit_time, cluster, job_id"
_BY_SEEN_AT = "seen_at, job_id, cluster"
_IS_ARRAY_TASK = "address <> CAST(job_id AS TEXT)"  # attempts_of_arrays


def _is_requested(run: JobRun, user: str | None, since: float | None, unreconciled: bool) -> bool:
    ended = run.end_time is None or since is None or run.end_time >= since
    return ended and user in (None, run.user) and not (unreconciled and run.reconciled)


def _make_run_key(attempt: RunKey) -> dict[str, Any]:
    return {"cluster = ?": attempt.cluster, "job_id = ?": attempt.job_id, "submit_time = ?": attempt.submit_time}


def _make_action_key(action: SlurmAction) -> dict[str, Any]:
    return {
        "verb = ?": action.verb.value,
        "target = ?": action.target,
        "key = ?": action.key,
        "value = ?": action.value,
    }
