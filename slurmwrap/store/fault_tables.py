"""Edge: the part of the database that says what is held against nodes and inputs, and what was made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slurmwrap.model.blocked_input import BlockedInput
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.retry_decision import Strike
from slurmwrap.model.run import Incident, StrikeRecord
from slurmwrap.policy.node_history import Exposure, GpuFault, NodeFailure, NodeHistory, Removal, Repair
from slurmwrap.store import schema
from slurmwrap.store.schema import encode_sql_text
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.session import Session

# The three queries that nodes are judged by. Each is answered by an index of its own; ? is Unix seconds.
_TEXT_CAP = 500

GPU_FAULTS = """
SELECT node, at, job_id, uid, text,
    coalesce(
        (SELECT max(a.incident) FROM attempts a WHERE a.cluster = f.cluster AND a.job_id = f.job_id), ''
    ) AS incident
FROM gpu_faults f WHERE at >= ? ORDER BY at, rowid
"""

# A Prolog of slurmwrap's that refused the node is our own word, not Slurm's.
FAILURES = """
SELECT nodes, end_time, job_id, uid, diagnosis_node, diagnosis_evidence, incident
FROM attempts INDEXED BY attempts_node_failures
WHERE diagnosis_category = 'node_failure' AND end_time >= ? AND diagnosis_signature <> 'hook.refused'
ORDER BY end_time
"""

# Only runs that have their details: retention keeps them for longer than nodes are looked at (store/retention.py).
# Runs on the same nodes are summed before their list is taken apart.
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
    """One row of FAILURES."""
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


class FaultTables(Session):
    """Strikes and marks on nodes, incidents that took them back, inputs that are refused."""

    # Nodes

    def strikes(self, *, since: float, node: str | None = None) -> tuple[StrikeRecord, ...]:
        """Strikes that were not cleared, oldest first."""
        found = self._select(schema.STRIKES, {"at >= ?": since, "node = ?": node}, order="at, strike_id")
        return tuple(strike for strike in found if strike.cleared_at is None)

    def add_strike(self, strike: Strike, at: float, job_id: int, uid: int) -> None:
        """One more (save_judged does it for a decision's own)."""
        self._strike(strike, at, job_id, uid, None)

    def _strike(self, strike: Strike, at: float, job_id: int, uid: int, attempt: RunKey | None) -> None:
        record = StrikeRecord(**to_json_dict(strike), at=at, job_id=job_id, uid=uid)
        key = {"cluster": None, "submit_time": None, **(to_json_dict(attempt) if attempt else {})}
        row = {**schema.row_from_record(schema.STRIKES, record), **key}
        self._write(schema.insert(schema.STRIKES, also=("cluster", "submit_time")), row)

    def clear_strikes(self, node: str, who: str, at: float) -> int:
        """Marks the strikes of a node up to `at` as void; returns how many there were. Nothing is deleted."""
        sql = "UPDATE strikes SET cleared_at = :at, cleared_by = :who"
        with self.transaction():
            row = {"node": encode_sql_text(node), "who": encode_sql_text(who), "at": at}
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
        return NodeHistory(
            strikes=self._select(schema.STRIKES, {"at >= ?": since}, order="at, strike_id"),
            gpu_faults=tuple(GpuFault(**row) for row in self._rows(GPU_FAULTS, [since])),
            failures=tuple(map(make_failure, self._rows(FAILURES, [since]))),
            removals=self._select(schema.REMOVALS, {"began >= ?": since}, order="began, node"),
            repairs=self.repairs(since=since),
            exposure=tuple(Exposure(**row) for row in self._rows(EXPOSURE, [since])),
        )

    # Incidents

    def save_incident(self, incident: Incident, members: Sequence[RunKey] = ()) -> None:
        """Inserts or replaces by id, and marks `members` and their strikes as its own: both count no more.

        A strike for a conclusive fault is the very node's whatever else happened, and stays as it is.
        """
        with self.transaction():
            self._upsert(schema.INCIDENTS, incident)
            for attempt in members:
                row = {**to_json_dict(attempt), "incident": incident.incident_id}
                self._write(f"UPDATE attempts SET incident = :incident WHERE {OF_ATTEMPT}", row)
                self._write(f"UPDATE strikes SET incident = :incident WHERE {OF_ATTEMPT} AND NOT conclusive", row)

    def incidents(self, *, since: float | None = None, open_only: bool = False) -> tuple[Incident, ...]:
        """Oldest first. `since`: open, or over at or after."""
        extra = "over_at IS NULL" if open_only else ""
        where = {"(over_at IS NULL OR over_at >= ?)": since}
        return self._select(schema.INCIDENTS, where, extra=extra, order="began, incident_id")

    # Inputs

    def block_input(self, blocked: BlockedInput) -> None:
        """Blocks an input."""
        self._upsert(schema.BLOCKED_INPUTS, blocked)

    def blocked_inputs(self, uid: int | None = None) -> tuple[BlockedInput, ...]:
        """Inputs in force for `uid` (its own and the site's), or all."""
        extra = f"uid IN (-1, {int(uid)})" if uid is not None else ""
        return self._select(schema.BLOCKED_INPUTS, {}, extra=extra, order="at, digest, uid")

    def clear_input(self, digest: str) -> bool:
        """Frees an input; False when it was not blocked."""
        return self._write("DELETE FROM blocked_inputs WHERE digest = :digest", {"digest": encode_sql_text(digest)})
