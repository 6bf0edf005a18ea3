"""Incident: one infrastructure cause that struck several jobs, users or nodes within minutes. Pure.

Philly's advice: observe related failures and act ahead. While an incident is open its retries wait, no node is blamed
for it, the report shows one line, and jobs about to start are warned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from slurmwrap.cluster.node import Topology
from slurmwrap.config import Incidents
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.retry.attempt import AttemptRecord

# Of domain AE only what a network, a fabric or a driver roll-out does to several jobs at once.
SHARED = frozenset(
    (
        *(c.id for c in CATEGORIES.values() if c.domain == "IF"),
        *("nccl_error", "mpi_runtime_failure", "cuda_init_failed", "cuda_version_mismatch"),
    )
)
# A file system that is away looks like a missing file: such a failure joins an open storage incident, and opens none.
_FOLLOW = {"storage_io": frozenset({"incorrect_inputs", "checkpoint_error"})}
_VOUCHED = ("kernel", "nvml", "slurm")
_PATH = re.compile(r"(?<![\w/.:])(/[\w.+@-]{1,64}(?:/[\w.+@-]{1,64}){0,1})")
_HOST = re.compile(r"\b((?:[a-z0-9-]{1,63}\.){1,5}[a-z]{2,24})\b")
_HOST_CATEGORY = "network_error"
_LOCAL = frozenset(
    (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc"),
        *("root", "run", "sbin", "snap", "sys", "tmp", "usr", "var"),
    )
)
_TEXT_CAP = 2000
_FILES = ("py", "so", "cc", "cpp", "cu", "h", "c", "rs", "go", "json", "yaml", "txt", "log", "out", "err")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """`scope` is what its failures share: "path /scratch", "switch leaf0", "host hub.example", or "cluster"."""

    incident_id: str  # of category, scope and beginning: the same incident always has the same
    category: str  # of taxonomy.py, domain IF or nccl_error
    scope: str
    began: float  # Unix seconds, end of the first failed run
    last: float  # end of the newest one
    over_at: float | None = None  # None: still open
    jobs: tuple[int, ...] = ()  # raw job ids
    users: int = 0
    nodes: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()  # nodes below the switch of `scope`
    quiet_s: float = 600.0  # it is over when no run failed of it for so long
    spread_s: float = 900.0  # then its retries start within so long


def find(
    attempts: Iterable[AttemptRecord], known: Iterable[Incident], *, now: float, topology: Topology, settings: Incidents
) -> tuple[Incident, ...]:
    """`known` brought up to `now`, and those that `attempts` show anew; oldest first. Known ones keep id and scope."""
    failed = [a for a in attempts if a.diagnosis is not None and a.end_time is not None and a.end_time <= now]
    grown = [_grown(incident, failed) if incident.over_at is None else incident for incident in known]
    taken = {a.attempt for a in failed if of_attempt(grown, a) is not None}
    rest = sorted((a for a in failed if a.attempt not in taken and _category(a) in SHARED), key=_end)
    fresh = [_opened(group, topology, settings) for group in _groups(rest, settings) if _is_one(group, settings)]
    grown_fresh = [_grown(incident, failed) for incident in fresh]
    return tuple(sorted((_closed(one, now) for one in (*grown, *grown_fresh)), key=lambda i: (i.began, i.incident_id)))


def of_attempt(incidents: Iterable[Incident], record: AttemptRecord) -> Incident | None:
    """The incident that a failed run, with its diagnosis, belongs to; None: to none."""
    return next((incident for incident in incidents if _belongs(record, incident)), None)


def wait_s(incident: Incident, job_id: int, now: float) -> int:
    """Whole seconds a retry waits: until the incident is over, as far as is known now, and its own share of the spread.

    The share is the same for a job whenever it is asked for, so that a reconciler that was killed decides the same.
    """
    over = incident.over_at if incident.over_at is not None else max(now, incident.last + incident.quiet_s)
    digest = sha256(f"{incident.incident_id}:{job_id}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64 * incident.spread_s
    return max(0, math.ceil(over + share - now))


def _belongs(record: AttemptRecord, incident: Incident) -> bool:
    category = _category(record)
    if record.end_time is None or not incident.began <= record.end_time <= incident.last + incident.quiet_s:
        return False
    followers = _FOLLOW.get(incident.category, frozenset()) if incident.scope.startswith("path ") else frozenset()
    return category in {incident.category, *followers} and _touches(record, incident)


def _touches(record: AttemptRecord, incident: Incident) -> bool:
    kind, _, what = incident.scope.partition(" ")
    if kind == "path":
        return any(path == what or path.startswith(f"{what}/") for path in _paths(record, believe_user=True))
    if kind == "switch":
        return bool(record.nodes) and set(record.nodes) <= set(incident.reach)
    if kind == "host":
        return what in _hosts(record)
    return True


def _grown(incident: Incident, failed: Sequence[AttemptRecord]) -> Incident:
    """With every failure that belongs to it; each lengthens it, so that the next one may belong too."""
    members = []
    for record in sorted(failed, key=_end):
        if _belongs(record, incident):
            members.append(record)
            incident = replace(incident, last=max(incident.last, _end(record)))
    return replace(
        incident,
        jobs=tuple(sorted({*incident.jobs, *(m.attempt.job_id for m in members)})),
        users=max(incident.users, len({m.uid for m in members})),
        nodes=tuple(sorted({*incident.nodes, *(node for m in members for node in m.nodes)})),
    )


def _closed(incident: Incident, now: float) -> Incident:
    ends = incident.last + incident.quiet_s
    return replace(incident, over_at=ends) if incident.over_at is None and now >= ends else incident


def _groups(records: Sequence[AttemptRecord], settings: Incidents) -> list[list[AttemptRecord]]:
    """Failures of one category, no two neighbours of which are further apart than the window."""
    groups: list[list[AttemptRecord]] = []
    newest: dict[str, list[AttemptRecord]] = {}
    for record in records:
        group = newest.get(_category(record))
        if group is None or _end(record) - _end(group[-1]) > settings.window_s:
            group = newest[_category(record)] = []
            groups.append(group)
        group.append(record)
    return groups


def _is_one(group: Sequence[AttemptRecord], settings: Incidents) -> bool:
    """Not one node failing its jobs, not one user's tasks failing alike, not one job failing again and again."""
    jobs = {record.attempt.job_id for record in group}
    alone = set.intersection(*(set(record.nodes) for record in group)) if group else set()
    if len(jobs) < settings.min_jobs or alone:
        return False
    if len({record.uid for record in group}) >= settings.min_users:
        return True
    seen = {node for record in group if _vouched_texts(record) for node in record.nodes}
    return len(seen) >= settings.min_nodes


def _opened(group: Sequence[AttemptRecord], topology: Topology, settings: Incidents) -> Incident:
    scope, reach = _scope(group, topology)
    category, began = _category(group[0]), _end(group[0])
    digest = sha256(f"{category}|{scope}|{began:.0f}".encode("utf-8", "surrogateescape")).hexdigest()
    return Incident(
        incident_id=digest[:12],
        category=category,
        scope=scope,
        began=began,
        last=_end(group[-1]),
        reach=reach,
        quiet_s=settings.quiet_s,
        spread_s=settings.spread_s,
        jobs=tuple(sorted({record.attempt.job_id for record in group})),
        users=len({record.uid for record in group}),
        nodes=tuple(sorted({node for record in group for node in record.nodes})),
    )


def _scope(group: Sequence[AttemptRecord], topology: Topology) -> tuple[str, tuple[str, ...]]:
    """The narrowest thing that all of them share. Users' text names a path or a host only if two users wrote it."""
    several = len({record.uid for record in group}) >= 2
    paths = set.intersection(*(_prefixes(_paths(record, believe_user=several)) for record in group))
    if paths:
        return f"path {max(paths, key=lambda path: (path.count('/'), path))}", ()
    nodes = {node for record in group for node in record.nodes}
    for leaf in topology.leaves if len(topology.leaves) > 1 else ():
        if nodes and nodes <= set(leaf.nodes):
            return f"switch {leaf.name}", leaf.nodes
    if several and _category(group[0]) == _HOST_CATEGORY:
        hosts = set.intersection(*(_hosts(record) for record in group))
        if hosts:
            return f"host {min(hosts)}", ()
    return "cluster", ()


def _prefixes(paths: Iterable[str]) -> set[str]:
    """Each path and its first component: "/scratch/ada" also is "/scratch"."""
    return {prefix for path in paths for prefix in (path, "/" + path.split("/")[1])}


def _paths(record: AttemptRecord, *, believe_user: bool) -> set[str]:
    """The first two components of the paths that the evidence names, but for those that every node has its own of."""
    texts = _texts(record) if believe_user else _vouched_texts(record)
    found = {match for text in texts for match in _PATH.findall(text)}
    return {path for path in found if path.split("/")[1] not in _LOCAL}


def _hosts(record: AttemptRecord) -> set[str]:
    found = {host for text in _texts(record) for host in _HOST.findall(text.lower())}
    return {host for host in found if host.rpartition(".")[2] not in _FILES}


def _texts(record: AttemptRecord) -> tuple[str, ...]:
    """The root's lines, and the input that they name."""
    found = record.diagnosis
    if found is None:
        return ()
    return (*(c.text[:_TEXT_CAP] for c in found.evidence if c.role != "cascade"), found.input_path)


def _vouched_texts(record: AttemptRecord) -> tuple[str, ...]:
    evidence = record.diagnosis.evidence if record.diagnosis is not None else ()
    return tuple(c.text[:_TEXT_CAP] for c in evidence if c.source.partition(":")[0].lower() in _VOUCHED)


def _category(record: AttemptRecord) -> str:
    return record.diagnosis.category if record.diagnosis is not None else ""


def _end(record: AttemptRecord) -> float:
    return float(record.end_time or 0)
