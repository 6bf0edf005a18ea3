"""The three queries that nodes are judged by. Each is answered by an index of its own; ? is Unix seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurmwrap.policy.node_history import NodeFailure

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
