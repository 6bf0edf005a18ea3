"""Checks of the nodes, by what the site's database has of them: do the hooks run, which, are clocks and drivers well.

Nothing is asked of a node: what it sent, next to what Slurm says that ran there, is enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult, fold_nodes
from slurmwrap.cli.doctor.database_checks import out_of_sight
from slurmwrap.cli.doctor.slurm_checks import hooks_directory
from slurmwrap.install.hook_versions import OTHER, SILENT, UNSAID, NodeHooks, list_node_hooks, read_checksum
from slurmwrap.store.database import Database
from slurmwrap.store.sqlite_connection import connect_readonly, translate_sqlite_errors

WINDOW_D = 7
_ON_ITS_WAY_S = 60.0  # an Epilog may take its time, and the reconciler
_JOBS = 20_000  # the newest, so that a year of them is not walked through
_BEHIND_S = -2.0  # Slurm gives whole seconds, cut off
_AHEAD_S = 30.0  # a Prolog may take so long
_LEAST_RUNS = 3
# MUNGE refuses credentials of clocks that are further apart, and the node is down by that.
_NEARLY_S = 600.0


def check_hooks_on_nodes(context: CheckContext) -> CheckResult:
    """Nodes that ran jobs, and whose Epilog was not heard."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("hooks on nodes")
    if not context.nodes:
        return CheckResult(name="hooks on nodes", state=SKIP, text="Slurm does not answer")
    since = context.now - WINDOW_D * 86400
    names = [node.name for node in context.nodes if node.state != "DOWN" and "NOT_RESPONDING" not in node.flags]
    with Database.open(path, readonly=True) as store:
        seen = store.hooks_seen(context.setting("ClusterName"), since=since)
    ran = set(_read_column(path, _RAN, {"since": since, "until": context.now - _ON_ITS_WAY_S}))
    directory = hooks_directory(context)
    expected = read_checksum(directory) if directory else ""
    rows = [
        (one.node, _SAID[one.state]) for one in list_node_hooks(names, seen, expected) if _is_silent(one, ran, expected)
    ]
    heard = sum(1 for name in names if name in seen)
    worked = len(ran.intersection(names))
    text = f"{heard} of the {len(names)} nodes that are up sent records in {WINDOW_D} days; {worked} ran jobs"
    if not rows:
        return CheckResult(name="hooks on nodes", state=OK, text=text)
    hint = "`slurmwrap hooks check` compares a node's files; `failed` in its /run/slurmwrap holds the last failure."
    silent = any(said == _SAID[SILENT] for _, said in rows)
    return CheckResult(
        name="hooks on nodes", state=FAIL if silent else WARN, text=text, hint=hint, details=fold_nodes(rows)
    )


_SAID = {
    SILENT: f"ran jobs in the last {WINDOW_D} days, and no Epilog sent a record",
    OTHER: "other hooks than the controller's: `slurmwrap hooks install --nodes` updates them",
    UNSAID: "hooks of an older release, which do not report their version",
}


def _is_silent(one: NodeHooks, ran: set[str], expected: str) -> bool:
    """A silent node that ran nothing is well; without files here there is nothing to compare with."""
    return one.node in ran if one.state == SILENT else bool(expected) and one.state in (OTHER, UNSAID)


def check_node_clocks(context: CheckContext) -> CheckResult:
    """A node's clock next to the controller's: a Prolog ends after its job began, and soon."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("clocks of nodes")
    rows = _read_rows(path, _DELAYS, {"since": context.now - WINDOW_D * 86400, "jobs": _JOBS, "near": _NEARLY_S})
    odd = [(row[0], said) for row in rows if (said := _describe_skew(float(row[1]), int(row[2])))]
    if odd:
        hint = "`chronyc tracking` on these nodes: MUNGE refuses credentials of clocks that are 5 minutes apart."
        text = f"{len(odd)} of {len(rows)} nodes differ from slurmctld's clock"
        return CheckResult(
            name="clocks of nodes", state=WARN, text=text, hint=hint, details=fold_nodes(_in_order(odd, context))
        )
    return CheckResult(
        name="clocks of nodes", state=OK, text=f"{len(rows)} nodes have records, no clock differs from slurmctld's"
    )


def _describe_skew(least: float, runs: int) -> str:
    """What is to be said of the shortest time from a job's start to its Prolog's end."""
    if least < _BEHIND_S:
        return f"at least {-least:.0f} s behind"
    return f"up to {least:.0f} s ahead" if least > _AHEAD_S and runs >= _LEAST_RUNS else ""


def check_node_drivers(context: CheckContext) -> CheckResult:
    """What the newest Epilog with GPUs said of NVML on each node."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("GPUs of nodes")
    rows = _read_rows(path, _GPU_ERRORS, {"since": context.now - WINDOW_D * 86400, "jobs": _JOBS})
    odd = [(str(node), str(error)) for node, error, _ in rows if error]
    if odd:
        hint = "`nvidia-smi` on the node, and `driver.stuck` in its /run/slurmwrap; `slurmwrap nodes` has its history."
        text = f"NVML did not report the state of GPUs on {len(odd)} of {len(rows)} nodes"
        return CheckResult(
            name="GPUs of nodes", state=WARN, text=text, hint=hint, details=fold_nodes(_in_order(odd, context))
        )
    return CheckResult(name="GPUs of nodes", state=OK, text=f"{len(rows)} nodes reported the state of their GPUs")


def check_rejected_records(context: CheckContext) -> CheckResult:
    """Records that were not believed, with the reasons."""
    path = _find_database(context)
    if isinstance(path, _Skipped):
        return path.named("rejected")
    since = context.now - WINDOW_D * 86400
    with Database.open(path, readonly=True) as store:
        rows = [row for row in store.count_rejected_entries() if row["last_at"] >= since]
    if not rows:
        return CheckResult(name="rejected", state=OK, text=f"no record was rejected in {WINDOW_D} days")
    told = tuple(f"{row['count']} of uid {row['uid']}: {row['reason']}" for row in rows[:10])
    hint = "They are in `rejected` of the spool. A wrong address: munged's --origin must be the node's (docs/hooks.md)."
    text = f"{sum(row['count'] for row in rows)} records were rejected"
    return CheckResult(name="rejected", state=WARN, text=text, hint=hint, details=told)


class _Skipped(str):
    """Why there is no database to look into."""

    __slots__ = ()

    def named(self, name: str) -> CheckResult:
        return CheckResult(name=name, state=SKIP, text=str(self))


def _find_database(context: CheckContext) -> Path | _Skipped:
    path = context.site_database
    if path is None:
        return _Skipped("site.state_dir is not configured")
    if not os.access(path, os.R_OK):
        return _Skipped(out_of_sight(path))
    return path


def _read_rows(path: Path, sql: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with translate_sqlite_errors(path), closing(connect_readonly(path, busy_s=5.0)) as connection:
        return connection.execute(sql, values).fetchall()


def _read_column(path: Path, sql: str, values: dict[str, Any]) -> list[str]:
    return [row[0] for row in _read_rows(path, sql, values)]


def _in_order(rows: Iterable[tuple[str, str]], context: CheckContext) -> list[tuple[str, str]]:
    place = {node.name: at for at, node in enumerate(context.nodes)}
    return sorted(rows, key=lambda row: place.get(row[0], len(place)))


_RAN = """SELECT DISTINCT node.value FROM attempts, json_each(attempts.nodes) AS node
WHERE end_time BETWEEN :since AND :until AND start_time IS NOT NULL"""
_NEWEST = "(SELECT max(job_id) - :jobs FROM observations)"
# The plus: SQLite would look for the attempts by job_id > ..., 20,000 of them for each observation, instead of by =.
_DELAYS = f"""SELECT o.node, min(o.at - a.start_time), count(*) FROM observations o
JOIN attempts a ON a.cluster = o.cluster AND a.job_id = o.job_id
WHERE o.context = 'prolog' AND o.at >= :since AND +o.job_id > {_NEWEST} AND abs(o.at - a.start_time) < :near
GROUP BY o.node"""
# SQLite takes the other columns from the row of the greatest `at`.
_GPU_ERRORS = f"""SELECT node, json_extract(facts, '$.gpu_error'), max(at) FROM observations
WHERE context = 'epilog' AND at >= :since AND job_id > {_NEWEST}
AND (json_type(facts, '$.gpu') IS NOT NULL OR json_type(facts, '$.gpu_error') IS NOT NULL)
GROUP BY node"""
