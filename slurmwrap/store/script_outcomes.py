"""SQL and conversion of ScriptOutcome: what became of the newest submissions, from a user's or the site's database."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.prerun.expected_saving import ScriptOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OUTCOMES_SQL = """SELECT s.uid, s.profile_key, s.fingerprint, p.verdict_outcome, p.verdict_seconds,
    a.diagnosis_category, a.diagnosis_decision, a.diagnosis_domain
FROM (SELECT cluster, job_id, at, uid, profile_key, fingerprint, prerun_job_id FROM submissions
    ORDER BY at DESC LIMIT {limit:d}) s
LEFT JOIN preruns p ON p.cluster = s.cluster AND p.prerun_job_id = s.prerun_job_id AND p.job_id = s.job_id
LEFT JOIN attempts a ON a.cluster = s.cluster AND a.job_id = s.job_id AND a.submit_time >= s.at - {clocks_s:f}
WHERE s.fingerprint <> '' AND s.profile_key <> '' ORDER BY s.at, a.submit_time"""


def make_outcomes_sql(limit: int, clocks_s: float) -> str:
    """Return the query for the newest `limit` submissions, oldest first. `clocks_s`: tolerated difference of clocks."""
    return _OUTCOMES_SQL.format(limit=limit, clocks_s=clocks_s)


def outcome_from_row(row: Mapping[str, Any], *, own: bool, by_user: bool = False) -> ScriptOutcome:
    """Return the outcome of one run with its pre-run. `own`: it failed by a fault of the script (is_fault_of_script()).

    `by_user`: the key begins with the uid.

    A pre-run shows itself whether it stops the script. Without one, the run's end tells: it completed, or failed by a
    fault of the script; any other end is not known.
    """
    completed = row["diagnosis_category"] == "success"
    failed: bool | None = row["verdict_outcome"] == "fail"
    if row["verdict_outcome"] is None:
        failed = own if own or completed else None
    return ScriptOutcome(
        key=f"{row['uid']} {row['profile_key']}" if by_user else row["profile_key"],
        fingerprint=row["fingerprint"],
        failed=failed,
        prerun_s=float(row["verdict_seconds"] or 0.0),
    )
