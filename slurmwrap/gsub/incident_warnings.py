"""Which open incidents may hit a job that is about to be submitted. It is warned about, never held back.

Paths are compared as they are written: a file system that hangs would hang anyone who resolved a link on it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from time import localtime, strftime

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.hostlist import expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.node import Snapshot
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.protocols import OpenIncident, Published
    from slurmwrap.sbatch.request import JobRequest

STALE_S = 1800.0  # the reconciler publishes every five minutes: older word is of one that no longer runs


def find_incident_warnings(
    published: Published,
    request: JobRequest,
    plan: PlacementPlan,
    inputs: Sequence[str],
    snapshot: Snapshot,
    now: float,
) -> tuple[Finding, ...]:
    """One warning per open incident that may hit the job."""
    if now > published.at + STALE_S:
        return ()
    hits = (one for one in published.incidents if _may_hit(one, request, plan, inputs, snapshot))
    return tuple(Finding(severity=Severity.WARNING, message=_describe_incident(one, now)) for one in hits)


def _may_hit(
    one: OpenIncident, request: JobRequest, plan: PlacementPlan, inputs: Sequence[str], snapshot: Snapshot
) -> bool:
    kind, _, what = one.scope.partition(" ")
    if kind == "path":
        return bool(what) and any(path == what or path.startswith(f"{what}/") for path in _list_paths(request, inputs))
    if kind == "switch":
        return _may_be_below(what, request, plan, snapshot)
    return kind in ("cluster", "host")


def _list_paths(request: JobRequest, inputs: Sequence[str]) -> set[str]:
    named = (request.chdir, request.script.path or request.chdir, *inputs)
    return {posixpath.normpath(posixpath.join(request.chdir, path)) for path in named}


def _may_be_below(switch: str, request: JobRequest, plan: PlacementPlan, snapshot: Snapshot) -> bool:
    """By what the job asked for, else by where it would start now; unknown is yes."""
    leaf = next((one for one in snapshot.topology.leaves if one.name == switch), None)
    below = set(leaf.nodes) if leaf is not None else set()
    wanted = set((request.value("partition") or snapshot.default_partition).split(","))
    if below and any(wanted):
        below = {node.name for node in snapshot.nodes if node.name in below and wanted & set(node.partitions)}
    below -= _expand_node_option(request, "exclude")
    asked = _expand_node_option(request, "nodelist") or set(plan.candidates)
    return bool(below & asked) if asked else bool(below)


def _expand_node_option(request: JobRequest, option: str) -> set[str]:
    try:
        return set(expand(request.value(option) or ""))
    except ValueError:  # a file of names, or what sbatch will refuse
        return set()


def _describe_incident(one: OpenIncident, now: float) -> str:
    kind, _, what = one.scope.partition(" ")
    where = {"path": f" on {what}", "switch": f" below switch {what}", "host": " with a host outside"}.get(kind, "")
    clock = "%H:%M" if now - one.since < 12 * 3600 else "%Y-%m-%d %H:%M"
    struck = f"{one.jobs} job{'s' * (one.jobs != 1)} of {one.users} user{'s' * (one.users != 1)}"
    since = strftime(clock, localtime(one.since))
    return f"{one.category}{where} since {since} ({struck}): the job may fail the same way; it is submitted anyway"
