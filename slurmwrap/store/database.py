"""Edge: the database, the site's or a user's own. Implements edges.Store on SQLite by sqlite-utils.

Every public method is one transaction; BEGIN IMMEDIATE takes the writer's place before anything is read, so that two
processes never overwrite each other's work. What a method raises is a StoreError that names the file and the way out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmwrap.cluster.action import SlurmAction
from slurmwrap.diagnosis.collected import SetAside
from slurmwrap.diagnosis.evidence import Attempt, Diagnosis
from slurmwrap.diagnosis.observation import Observation
from slurmwrap.edges import Clock
from slurmwrap.errors import StoreError
from slurmwrap.retry.attempt import (
    ActionRecord,
    AttemptRecord,
    Incident,
    QueueDelay,
    StrikeRecord,
)
from slurmwrap.retry.blocked import BlockedInput
from slurmwrap.retry.decision import RetryDecision, Ruled, Strike
from slurmwrap.retry.history import Exposure, GpuFault, NodeHistory, Removal, Repair, gpu_faults_of
from slurmwrap.store import history_sql, schema
from slurmwrap.store.connection import connect, connect_readonly, explained, reachable, version_of
from slurmwrap.store.creation import BUSY_S, create, migrate, wrap
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.plain import to_plain
from slurmwrap.store.reports import Reports
from slurmwrap.store.schema import sql_text


class Database(Reports):
    """An open database. Use `Database.open`, and as a context manager where it should be closed early."""

    @classmethod
    def open(
        cls, path: Path | str, *, readonly: bool = False, clock: Clock | None = None, busy_s: float = BUSY_S
    ) -> Database:
        """Opens the file, makes it (mode 0600) where there is none, and migrates it forward. StoreError."""
        path = Path(path)
        with reachable(path), explained(path):
            if readonly:
                return cls._open_readonly(path, busy_s)
            if not path.exists():
                create(path, clock)
            tables = wrap(connect(path, busy_s=busy_s))
            try:
                if version_of(tables.conn, path) < VERSION:
                    migrate(tables, path, clock)
            except BaseException:
                tables.conn.close()
                raise
            return cls(path, tables)

    @classmethod
    def _open_readonly(cls, path: Path, busy_s: float) -> Database:
        if not path.exists():
            raise StoreError(f"there is no database at {path} yet", hint="it is made when the first job is seen")
        tables = wrap(connect_readonly(path, busy_s=busy_s), writable=False)
        try:
            version_of(tables.conn, path)
        except BaseException:
            tables.conn.close()
            raise
        return cls(path, tables)

    # Observations

    def ingest(self, observation: Observation) -> bool:
        """Keeps it; False when its nonce is known (then nothing changed)."""
        row = schema.to_row(schema.OBSERVATIONS, observation)
        with self.transaction():
            new = self._write(schema.insert(schema.OBSERVATIONS, "OR IGNORE"), row)
            for fault in gpu_faults_of(observation) if new else ():
                about = {"node": fault.node, "at": fault.at, "cluster": sql_text(observation.cluster)}
                about |= {"job_id": fault.job_id, "uid": fault.uid, "text": sql_text(fault.text)}
                self._write("INSERT INTO gpu_faults VALUES (:node, :at, :cluster, :job_id, :uid, :text)", about)
        return new

    def set_aside(self, item: SetAside, at: float) -> None:
        """Counts a refused spool file by whose it was and why, so that a flood of them stays one row."""
        row = {"uid": item.uid, "reason": sql_text(item.reason[:200]), "name": sql_text(item.name[:255]), "at": at}
        self._write(
            """INSERT INTO set_aside VALUES (:uid, :reason, 1, :at, :at, :name) ON CONFLICT (uid, reason)
            DO UPDATE SET count = count + 1, last_at = :at, last_name = :name""",
            row,
        )

    def set_aside_counts(self) -> tuple[Mapping[str, Any], ...]:
        """Refused spool files: dicts of uid, reason, count, first_at, last_at, last_name; most frequent first."""
        return tuple(self._rows("SELECT * FROM set_aside ORDER BY count DESC, uid, reason"))

    def observations(self, cluster: str, job_id: int) -> tuple[Observation, ...]:
        """All of one raw job id, oldest first."""
        where = {"cluster = ?": cluster, "job_id = ?": job_id}
        return self._select(schema.OBSERVATIONS, where, order="at, nonce")

    # Attempts

    def save_attempt(self, record: AttemptRecord) -> None:
        """Inserts or replaces by key."""
        self._upsert(schema.ATTEMPTS, record)

    def attempt(self, attempt: Attempt) -> AttemptRecord | None:
        """One attempt."""
        found = self._select(schema.ATTEMPTS, _key(attempt))
        return found[0] if found else None

    def attempts(
        self,
        *,
        cluster: str | None = None,
        job_id: int | None = None,
        user: str | None = None,
        since: float | None = None,
        unreconciled: bool = False,
    ) -> tuple[AttemptRecord, ...]:
        """By submit_time, oldest first. `since`: ended (or not ended yet) at or after."""
        where = {
            "cluster = ?": cluster,
            "job_id = ?": job_id,
            "user = ?": user,
            "(end_time IS NULL OR end_time >= ?)": since,
            "reconciled = ?": 0 if unreconciled else None,
        }
        return self._select(schema.ATTEMPTS, where, order=_BY_SUBMIT)

    def attempts_of(self, address: str) -> tuple[AttemptRecord, ...]:
        """All runs of one job as people name it: "81", "77_2", or "77" for every task of array 77; oldest first."""
        # "`" follows "_" in ASCII: what begins with "77_" lies between the two.
        sql = f"SELECT * FROM attempts WHERE address = ? OR address >= ? AND address < ? ORDER BY {_BY_SUBMIT}"
        return self._read(schema.ATTEMPTS, sql, [address, f"{address}_", f"{address}`"])

    def failures(self, categories: Collection[str], *, since: float, limit: int) -> tuple[AttemptRecord, ...]:
        """Judged runs of these categories that ended at or after `since`, the newest `limit` of them; oldest first."""
        marks = ", ".join("?" * len(categories))
        sql = f"SELECT * FROM attempts WHERE end_time >= ? AND diagnosis_category IN ({marks}) "
        sql += "ORDER BY end_time DESC, submit_time, cluster, job_id LIMIT ?"
        return self._read(schema.ATTEMPTS, sql, [since, *sorted(categories), limit])[::-1]

    def save_diagnosis(self, attempt: Attempt, diagnosis: Diagnosis, decision: RetryDecision, at: float) -> None:
        """Stores both with strikes and blocked inputs, in one transaction. Judging again replaces the strikes."""
        judged = {
            **schema.diagnosis_row(diagnosis),
            "decision": decision.decision,
            "decision_reason": sql_text(decision.reason),
        }
        key = to_plain(attempt)
        with self.transaction():
            self._ensure(attempt)
            assignments = ", ".join(f"{name} = :{name}" for name in judged)
            self._write(f"UPDATE attempts SET {assignments} WHERE {_KEY}", {**judged, **key})
            self._write(f"DELETE FROM strikes WHERE {_KEY}", key)
            uid = next(iter(self._rows(f"SELECT uid FROM attempts WHERE {_KEY}", key)))["uid"]
            for strike in decision.strikes:
                self._strike(strike, at, attempt.job_id, uid, attempt)
            for blocked in decision.blocked:
                self.block_input(blocked)

    def _ensure(self, attempt: Attempt) -> None:
        row = schema.to_row(schema.ATTEMPTS, AttemptRecord(attempt=attempt))
        self._write(schema.insert(schema.ATTEMPTS, "OR IGNORE"), row)

    # Actions

    def intend(self, attempt: Attempt | None, ruled: Ruled, mode: str, at: float, *, again: bool = False) -> int:
        """Writes an action as intended; returns its id. The same (attempt, rule, action) gives the same id; with
        `again` it is then to be done once more.

        Without an attempt only an unfinished one counts as the same: a node may be drained again next month. The row,
        and all that was written before it, is on the disk when this returns.
        """
        with self._durable(), self.transaction():
            known = self._same_action(attempt, ruled)
            if known is not None:
                if again:
                    self._write(
                        "UPDATE actions SET mode = :mode, intended_at = :at, done_at = NULL, error = '' "
                        "WHERE action_id = :id",
                        {"id": known, "mode": mode, "at": at},
                    )
                return known
            if attempt is not None:
                self._ensure(attempt)
            record = _intended(attempt, ruled, mode, at)
            row = {**schema.to_row(schema.ACTIONS, record), "action_id": None}
            with explained(self.path):
                cursor = self._tables.execute(schema.insert(schema.ACTIONS), row)
            return int(cursor.lastrowid or 0)

    def _same_action(self, attempt: Attempt | None, ruled: Ruled) -> int | None:
        where: dict[str, Any] = {"rule = ?": ruled.rule, **_action_key(ruled.action)}
        which = "submit_time IS NULL AND done_at IS NULL" if attempt is None else ""
        found = self._select(schema.ACTIONS, {**where, **(_key(attempt) if attempt else {})}, extra=which)
        return found[0].action_id if found else None

    def done(self, action_id: int, at: float, error: str = "") -> None:
        """Ticks an action off. StoreError when there is none of this id."""
        row = {"id": action_id, "at": at, "error": sql_text(error)}
        if not self._write("UPDATE actions SET done_at = :at, error = :error WHERE action_id = :id", row):
            raise StoreError(f"{self.path}: there is no action {action_id}")

    def actions(self, attempt: Attempt | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        """In the order they were intended."""
        extra = "done_at IS NULL" if unfinished else ""
        return self._select(schema.ACTIONS, _key(attempt) if attempt else {}, extra=extra, order="action_id")

    # Waiting

    def save_delay(self, delay: QueueDelay) -> None:
        """Inserts or replaces by attempt."""
        self._upsert(schema.DELAYS, delay)

    def delays(
        self, *, job_id: int | None = None, since: float | None = None, open_only: bool = False
    ) -> tuple[QueueDelay, ...]:
        """By seen_at, oldest first. `since`: looked at at or after. A file of an older version has none."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'delays'"):  # opened to read: not migrated
            return ()
        extra = "over = 0" if open_only else ""
        where = {"job_id = ?": job_id, "seen_at >= ?": since}
        return self._select(schema.DELAYS, where, extra=extra, order="seen_at, job_id")

    # Nodes and inputs

    def strikes(self, *, since: float, node: str | None = None) -> tuple[StrikeRecord, ...]:
        """Strikes that were not cleared, oldest first."""
        found = self._select(schema.STRIKES, {"at >= ?": since, "node = ?": node}, order="at, strike_id")
        return tuple(strike for strike in found if strike.cleared_at is None)

    def add_strike(self, strike: Strike, at: float, job_id: int, uid: int) -> None:
        """One more (save_diagnosis does it for a decision's own)."""
        self._strike(strike, at, job_id, uid, None)

    def _strike(self, strike: Strike, at: float, job_id: int, uid: int, attempt: Attempt | None) -> None:
        record = StrikeRecord(**to_plain(strike), at=at, job_id=job_id, uid=uid)
        key = {"cluster": None, "submit_time": None, **(to_plain(attempt) if attempt else {})}
        row = {**schema.to_row(schema.STRIKES, record), **key}
        self._write(schema.insert(schema.STRIKES, also=("cluster", "submit_time")), row)

    # Incidents

    def save_incident(self, incident: Incident, members: Sequence[Attempt] = ()) -> None:
        """Inserts or replaces by id, and marks `members` and their strikes as its own: both count no more.

        A strike for a conclusive fault is the very node's whatever else happened, and stays as it is.
        """
        with self.transaction():
            self._upsert(schema.INCIDENTS, incident)
            for attempt in members:
                row = {**to_plain(attempt), "incident": incident.incident_id}
                self._write(f"UPDATE attempts SET incident = :incident WHERE {_KEY}", row)
                self._write(f"UPDATE strikes SET incident = :incident WHERE {_KEY} AND NOT conclusive", row)

    def incidents(self, *, since: float | None = None, open_only: bool = False) -> tuple[Incident, ...]:
        """Oldest first. `since`: open, or over at or after."""
        extra = "over_at IS NULL" if open_only else ""
        where = {"(over_at IS NULL OR over_at >= ?)": since}
        return self._select(schema.INCIDENTS, where, extra=extra, order="began, incident_id")

    def clear_strikes(self, node: str, who: str, at: float) -> int:
        """Marks the strikes of a node up to `at` as void; returns how many there were. Nothing is deleted."""
        sql = "UPDATE strikes SET cleared_at = :at, cleared_by = :who"
        with self.transaction():
            row = {"node": sql_text(node), "who": sql_text(who), "at": at}
            where = "WHERE node = :node AND at <= :at AND cleared_at IS NULL"
            count: int = self._rows(f"SELECT count(*) AS n FROM strikes {where}", row)[0]["n"]
            self._write(f"{sql} {where}", row)
        return count

    def add_repair(self, repair: Repair) -> None:
        """A mark on a node; the same one twice is one."""
        self._upsert(schema.REPAIRS, repair)

    def repairs(self, *, since: float) -> tuple[Repair, ...]:
        """Marks on nodes, oldest first."""
        return self._select(schema.REPAIRS, {"at >= ?": since}, order="at, node")

    def save_removal(self, removal: Removal) -> None:
        """Inserts or replaces by (node, began)."""
        self._upsert(schema.REMOVALS, removal)

    def removals(self) -> tuple[Removal, ...]:
        """Those that have not ended."""
        return self._select(schema.REMOVALS, {}, extra="ended IS NULL", order="node, began")

    def node_history(self, since: float) -> NodeHistory:
        """All that speaks about nodes since then, cleared strikes too; sums are made by the database."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'repairs'"):  # opened to read: not migrated
            raise StoreError(f"{self.path} is of an older version", hint="the next 'slurmwrap reconcile' migrates it")
        return NodeHistory(
            strikes=self._select(schema.STRIKES, {"at >= ?": since}, order="at, strike_id"),
            gpu_faults=tuple(GpuFault(**row) for row in self._rows(history_sql.GPU_FAULTS, [since])),
            failures=tuple(map(history_sql.failure, self._rows(history_sql.FAILURES, [since]))),
            removals=self._select(schema.REMOVALS, {"began >= ?": since}, order="began, node"),
            repairs=self.repairs(since=since),
            exposure=tuple(Exposure(**row) for row in self._rows(history_sql.EXPOSURE, [since])),
        )

    def block_input(self, blocked: BlockedInput) -> None:
        """Blocks an input."""
        self._upsert(schema.BLOCKED_INPUTS, blocked)

    def blocked_inputs(self, uid: int | None = None) -> tuple[BlockedInput, ...]:
        """Inputs in force for `uid` (its own and the site's), or all."""
        extra = f"uid IN (-1, {int(uid)})" if uid is not None else ""
        return self._select(schema.BLOCKED_INPUTS, {}, extra=extra, order="at, digest, uid")

    def clear_input(self, digest: str) -> bool:
        """Frees an input; False when it was not blocked."""
        return self._write("DELETE FROM blocked_inputs WHERE digest = :digest", {"digest": sql_text(digest)})


_BY_SUBMIT = "submit_time, cluster, job_id"
_KEY = "cluster = :cluster AND job_id = :job_id AND submit_time = :submit_time"


def _key(attempt: Attempt) -> dict[str, Any]:
    return {"cluster = ?": attempt.cluster, "job_id = ?": attempt.job_id, "submit_time = ?": attempt.submit_time}


def _action_key(action: SlurmAction) -> dict[str, Any]:
    return {
        "verb = ?": action.verb.value,
        "target = ?": action.target,
        "key = ?": action.key,
        "value = ?": action.value,
    }


def _intended(attempt: Attempt | None, ruled: Ruled, mode: str, at: float) -> ActionRecord:
    action = ruled.action
    return ActionRecord(
        action_id=0,
        attempt=attempt,
        rule=ruled.rule,
        mode=mode,
        verb=action.verb.value,
        target=action.target,
        key=action.key,
        value=action.value,
        because=action.because,
        intended_at=at,
    )
