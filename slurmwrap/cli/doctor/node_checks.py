"""Checks of the nodes from the site's database: whether hooks run and are current, and the state of clocks and drivers.

No node is contacted. The records that a node sent are compared with Slurm's records of the jobs that ran on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult, fold_nodes
from slurmwrap.cli.doctor.database_checks import explain_unreadable_path
from slurmwrap.cli.doctor.slurm_checks import find_hooks_directory
from slurmwrap.install.hook_versions import (
    OTHER,
    SILENT,
    UNSAID,
    NodeHooks,
    describe_release,
    list_node_hooks,
    read_checksum,
)
from slurmwrap.store.database import Database
from slurmwrap.store.sqlite_connection import connect_readonly, translate_sqlite_errors

WINDOW_D = 7
_RECORD_DELAY_S = 60.0  # time that an Epilog and the reconciler may take until a record is in the database
_NEWEST_JOBS = 20_000  # only the newest jobs are read, not those of a year
_BEHIND_S = -2.0  # Slurm gives whole seconds, rounded down
_AHEAD_S = 30.0  # a Prolog may take this long
_LEAST_RUNS = 3
# MUNGE refuses credentials if the clocks differ by more, and Slurm then sets the node DOWN.
_LARGEST_DELAY_S = 600.0


def check_hooks_on_nodes(context: CheckContext) -> CheckResult:
    """Check for nodes that ran jobs without a record of their Epilog, and for nodes with outdated hooks."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("hooks on nodes")
    if not context.nodes:
        return CheckResult(name="hooks on nodes", state=SKIP, text="Slurm does not answer")
    since = context.now - WINDOW_D * 86400
    names = [node.name for node in context.nodes if node.state != "DOWN" and "NOT_RESPONDING" not in node.flags]
    with Database.open(path, readonly=True) as store:
        seen = store.hooks_seen(context.setting("ClusterName"), since=since)
    ran = set(_read_column(path, _RAN, {"since": since, "until": context.now - _RECORD_DELAY_S}))
    directory = find_hooks_directory(context)
    expected = read_checksum(directory) if directory else ""
    rows = [
        (one.node, _describe_fault(one))
        for one in list_node_hooks(names, seen, expected)
        if _is_faulty(one, ran, expected)
    ]
    reporting = sum(1 for name in names if name in seen)
    busy = len(ran.intersection(names))
    text = f"{reporting} of the {len(names)} nodes that are up sent records in {WINDOW_D} days; {busy} ran jobs"
    if not rows:
        return CheckResult(name="hooks on nodes", state=OK, text=text)
    hint = "`slurmwrap hooks check` compares a node's files; `failed` in its /run/slurmwrap holds the last failure."
    silent = any(text == _FAULT_TEXTS[SILENT] for _, text in rows)
    return CheckResult(
        name="hooks on nodes", state=FAIL if silent else WARN, text=text, hint=hint, details=fold_nodes(rows)
    )


_FAULT_TEXTS = {
    SILENT: f"ran jobs in the last {WINDOW_D} days, and no Epilog sent a record",
    OTHER: "other hooks than the controller's: `slurmwrap hooks install --nodes` updates them",
    UNSAID: "hooks of an older release, which do not report their version",
}


def _describe_fault(one: NodeHooks) -> str:
    other = f" ({describe_release(one.release)})" if one.state == OTHER and one.release else ""
    return _FAULT_TEXTS[one.state] + other


def _is_faulty(one: NodeHooks, ran: set[str], expected: str) -> bool:
    """Return whether the node's hooks have a fault that is reported.

    A node without records that ran no job is healthy. Without hook files on this host, versions cannot be compared.
    """
    return one.node in ran if one.state == SILENT else bool(expected) and one.state in (OTHER, UNSAID)


def check_node_clocks(context: CheckContext) -> CheckResult:
    """Compare each node's clock with the controller's: a Prolog must end after its job's start, but soon after it."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("clocks of nodes")
    rows = _read_rows(
        path, _DELAYS, {"since": context.now - WINDOW_D * 86400, "jobs": _NEWEST_JOBS, "near": _LARGEST_DELAY_S}
    )
    odd = [(row[0], text) for row in rows if (text := _describe_skew(float(row[1]), int(row[2])))]
    if odd:
        hint = "`chronyc tracking` on these nodes: MUNGE refuses credentials of clocks that are 5 minutes apart."
        text = f"{len(odd)} of {len(rows)} nodes differ from slurmctld's clock"
        return CheckResult(
            name="clocks of nodes", state=WARN, text=text, hint=hint, details=fold_nodes(_sort_by_node(odd, context))
        )
    return CheckResult(
        name="clocks of nodes", state=OK, text=f"{len(rows)} nodes have records, no clock differs from slurmctld's"
    )


def _describe_skew(least: float, runs: int) -> str:
    """Describe a clock by the shortest time from a job's start to the end of its Prolog; "" if it is right.

    `least`: that time in seconds; `runs`: the number of runs that it was taken from.
    """
    if least < _BEHIND_S:
        return f"at least {-least:.0f} s behind"
    return f"up to {least:.0f} s ahead" if least > _AHEAD_S and runs >= _LEAST_RUNS else ""


def check_node_drivers(context: CheckContext) -> CheckResult:
    """Check the NVML errors in the newest Epilog with GPUs on each node."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("GPUs of nodes")
    rows = _read_rows(path, _GPU_ERRORS, {"since": context.now - WINDOW_D * 86400, "jobs": _NEWEST_JOBS})
    odd = [(str(node), str(error)) for node, error, _ in rows if error]
    if odd:
        hint = "`nvidia-smi` on the node, and `driver.stuck` in its /run/slurmwrap; `slurmwrap nodes` has its history."
        text = f"NVML did not report the state of GPUs on {len(odd)} of {len(rows)} nodes"
        return CheckResult(
            name="GPUs of nodes", state=WARN, text=text, hint=hint, details=fold_nodes(_sort_by_node(odd, context))
        )
    return CheckResult(name="GPUs of nodes", state=OK, text=f"{len(rows)} nodes reported the state of their GPUs")


def check_rejected_records(context: CheckContext) -> CheckResult:
    """Check for rejected records, and report the reasons."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("rejected")
    since = context.now - WINDOW_D * 86400
    with Database.open(path, readonly=True) as store:
        rows = [row for row in store.count_rejected_entries() if row["last_at"] >= since]
    if not rows:
        return CheckResult(name="rejected", state=OK, text=f"no record was rejected in {WINDOW_D} days")
    reasons = tuple(f"{row['count']} of uid {row['uid']}: {row['reason']}" for row in rows[:10])
    hint = "They are in `rejected` of the spool. A wrong address: munged's --origin must be the node's (docs/hooks.md)."
    text = f"{sum(row['count'] for row in rows)} records were rejected"
    return CheckResult(name="rejected", state=WARN, text=text, hint=hint, details=reasons)


def check_controllers(context: CheckContext) -> CheckResult:
    """Check, on a cluster with backup controllers, for jobs whose end no EpilogSlurmctld recorded where it is read."""
    hosts = [host.partition("(")[0] for host in context.setting("SlurmctldHost").split(",") if host]
    if len(hosts) < 2:
        return CheckResult(name="controllers", state=SKIP, text="there is no backup controller")
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("controllers")
    values = {"since": context.now - WINDOW_D * 86400, "until": context.now - _RECORD_DELAY_S, "jobs": _NEWEST_JOBS}
    ((jobs, missing),) = _read_rows(path, _WITHOUT_CONTROLLER, values)
    names = ", ".join(hosts)
    if missing:
        hint = (
            "They ended while a backup was the controller, whose records lie on its own disk, or EpilogSlurmctld is "
            "missing there: docs/install.md, Backup controllers. Array ids and names are unknown for these jobs."
        )
        text = f"{names}: {missing} of {jobs} jobs have no record of EpilogSlurmctld"
        return CheckResult(name="controllers", state=WARN, text=text, hint=hint)
    return CheckResult(name="controllers", state=OK, text=f"{names}: all {jobs} jobs have a record of EpilogSlurmctld")


class _Skipped(str):
    """The reason why there is no database to check."""

    __slots__ = ()

    def named(self, name: str) -> CheckResult:
        """Return the skipped result of the check with this name."""
        return CheckResult(name=name, state=SKIP, text=str(self))


def _find_database(context: CheckContext) -> Path | _Skipped:
    path = context.site_database
    if path is None:
        return _Skipped("site.state_dir is not configured")
    if not os.access(path, os.R_OK):
        return _Skipped(explain_unreadable_path(path))
    return path


def _read_rows(path: Path, sql: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with translate_sqlite_errors(path), closing(connect_readonly(path, busy_s=5.0)) as connection:
        return connection.execute(sql, values).fetchall()


def _read_column(path: Path, sql: str, values: dict[str, Any]) -> list[str]:
    return [row[0] for row in _read_rows(path, sql, values)]


def _sort_by_node(rows: Iterable[tuple[str, str]], context: CheckContext) -> list[tuple[str, str]]:
    position = {node.name: at for at, node in enumerate(context.nodes)}
    return sorted(rows, key=lambda row: position.get(row[0], len(position)))


_RAN = """SELECT DISTINCT node.value FROM attempts, json_each(attempts.nodes) AS node
WHERE end_time BETWEEN :since AND :until AND start_time IS NOT NULL"""
_NEWEST = "(SELECT max(job_id) - :jobs FROM observations)"
# The unary plus keeps SQLite from searching the attempts by `job_id > ...` (20,000 rows for each observation) instead
# of by `job_id = ...`.
_DELAYS = f"""SELECT o.node, min(o.at - a.start_time), count(*) FROM observations o
JOIN attempts a ON a.cluster = o.cluster AND a.job_id = o.job_id
WHERE o.context = 'prolog' AND o.at >= :since AND +o.job_id > {_NEWEST} AND abs(o.at - a.start_time) < :near
GROUP BY o.node"""
# The plus keeps SQLite from using the index by time for each job.
_WITHOUT_CONTROLLER = f"""SELECT count(*), coalesce(sum(NOT EXISTS (SELECT 1 FROM observations c
WHERE c.cluster = o.cluster AND c.job_id = o.job_id AND +c.context = 'epilog_slurmctld')), 0)
FROM (SELECT DISTINCT cluster, job_id FROM observations
    WHERE context = 'epilog' AND at BETWEEN :since AND :until AND +job_id > {_NEWEST}) o"""
# In a query with max(at), SQLite takes the other columns from the row with the greatest `at`.
_GPU_ERRORS = f"""SELECT node, json_extract(facts, '$.gpu_error'), max(at) FROM observations
WHERE context = 'epilog' AND at >= :since AND job_id > {_NEWEST}
AND (json_type(facts, '$.gpu') IS NOT NULL OR json_type(facts, '$.gpu_error') IS NOT NULL)
GROUP BY node"""
