"""Incident: one infrastructure cause that struck several jobs, users or nodes within minutes. Pure.

Philly's advice: observe related failures and act ahead. While an incident is open its retries wait, no node is blamed
for it, the report shows one line, and jobs about to start are warned (docs/incidents.md).

A user writes what they like into their log. One user alone therefore neither opens an incident nor keeps one open: that
takes a second user who says the same, or a record of kernel, NVML or Slurm; and no incident lasts longer than max_s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from slurmwrap.config.load_config import Incidents
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_run import Incident, JobRun
from slurmwrap.model.topology import Topology
from slurmwrap.policy.retry_budget import compute_spread
from slurmwrap.policy.run_from_slurm import submitted_id

__all__ = [
    "FAILURES",
    "SHARED",
    "Incident",
    "Mounts",
    "can_be_of_incident",
    "close_incident",
    "find",
    "find_incident_of_run",
    "get_category",
    "get_first_component",
    "join_failures",
    "wait_s",
]  # fmt: skip

# A path -> the mount point below "/" that it lies on; "": none is known.
Mounts = Callable[[str], str]

# Of domain AE only what a network, a fabric or a driver roll-out does to several jobs at once.
SHARED = frozenset(
    (
        *(c.id for c in CATEGORIES.values() if c.domain == "IF"),
        *("nccl_error", "mpi_runtime_failure", "cuda_init_failed", "cuda_version_mismatch"),
    )
)
# A file system that is away looks like a missing file: such a failure joins an open storage incident, and opens none.
_FOLLOW = {"storage_io": frozenset({"incorrect_inputs", "checkpoint_error"})}
# That can belong to an incident.
FAILURES = SHARED.union(*_FOLLOW.values())
_VOUCHED = ("kernel", "nvml", "slurm")
_PATH = re.compile(r"(?<![\w/.:])(/[\w.+@-]{1,64}(?:/[\w.+@-]{1,64}){0,3})")
_HOST = re.compile(r"\b((?:[a-z0-9-]{1,63}\.){1,5}[a-z]{2,24})\b")
_HOST_CATEGORY = "network_error"
_LOCAL = frozenset(
    (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc"),
        *("root", "run", "sbin", "snap", "sys", "tmp", "usr", "var"),
    )
)
_TEXT_CAP = 2000
# Users who say the same.
_CONFIRMED = 2
_FILES = ("py", "so", "cc", "cpp", "cu", "h", "c", "rs", "go", "json", "yaml", "txt", "log", "out", "err")


def get_first_component(path: str) -> str:
    """ "/scratch/ada/x" -> "/scratch": the Mounts of anyone who knows no mount points."""
    return "/" + path.split("/")[1] if path.startswith("/") else ""


def find(
    attempts: Iterable[JobRun],
    known: Iterable[Incident],
    *,
    now: float,
    topology: Topology,
    settings: Incidents,
    mounts: Mounts = get_first_component,
) -> tuple[Incident, ...]:
    """`known` brought up to `now`, and those that `attempts` show anew; oldest first. Known ones keep their id, and
    their scope unless one that seemed a leaf switch's shows beyond it."""
    failed = [a for a in attempts if a.diagnosis is not None and a.end_time is not None and a.end_time <= now]
    grown = [join_failures(incident, failed) if incident.over_at is None else incident for incident in known]
    taken = {a.attempt for a in failed if find_incident_of_run(grown, a) is not None}
    rest = sorted((a for a in failed if a.attempt not in taken and get_category(a) in SHARED), key=_end)
    for group in _group_failures(rest, settings):
        while opening := _find_opening_failures(group, settings):
            _add(join_failures(_open_incident(opening, topology, settings, mounts), failed), grown, failed)
            group = [record for record in group[len(opening) :] if find_incident_of_run(grown, record) is None]
    return tuple(sorted((close_incident(one, now) for one in grown), key=lambda i: (i.began, i.incident_id)))


def can_be_of_incident(run: JobRun) -> bool:
    """Whether this failure can belong to an incident at all, so that no other need be looked at."""
    return get_category(run) in FAILURES


def find_incident_of_run(incidents: Iterable[Incident], run: JobRun) -> Incident | None:
    """The incident that a failed run, with its diagnosis, belongs to; None: to none."""
    return next((incident for incident in incidents if _is_part_of_incident(run, incident)), None)


def wait_s(incident: Incident, job_id: int, now: float) -> int:
    """Whole seconds a retry waits: until the incident is over, as far as is known now, and its own share of the spread.

    The share is the same for a job whenever it is asked for, so that a reconciler that was killed decides the same.
    """
    over = incident.over_at if incident.over_at is not None else max(now, incident.ends)
    share = compute_spread(f"{incident.incident_id}:{job_id}") * incident.spread_s
    return max(0, math.ceil(over + share - now))


def _is_part_of_incident(run: JobRun, incident: Incident) -> bool:
    category = get_category(run)
    if run.end_time is None or not incident.began <= run.end_time <= incident.ends:
        return False
    followers = _FOLLOW.get(incident.category, frozenset()) if incident.scope.startswith("path ") else frozenset()
    return (category == incident.category or category in followers) and _is_within_scope(run, incident)


def _is_within_scope(run: JobRun, incident: Incident) -> bool:
    kind, _, what = incident.scope.partition(" ")
    if kind == "path":
        return any(path == what or path.startswith(f"{what}/") for path in _list_paths(run, believe_user=True))
    if kind == "switch":
        return bool(run.nodes) and set(run.nodes) <= set(incident.reach)
    if kind == "host":
        return what in _list_hosts(run)
    return True


def join_failures(incident: Incident, failed: Iterable[JobRun]) -> Incident:
    """With every failure that belongs to it. One that is believed lengthens it, so that the next may belong too.

    Believed is what kernel, NVML or Slurm speak of, and what two users wrote since; a missing file lengthens nothing.
    """
    members, said = [], set[int]()
    for record in sorted(failed, key=_end):
        if not _is_part_of_incident(record, incident):
            continue
        members.append(record)
        believable = incident.over_at is None and get_category(record) == incident.category
        if believable and _end(record) > incident.last:
            said.add(record.uid)
            if _list_verified_texts(record) or len(said) >= _CONFIRMED:
                incident, said = replace(incident, last=_end(record)), set()
    return _add_members(incident, members)


def _add_members(incident: Incident, members: Sequence[JobRun]) -> Incident:
    if not members:
        return incident
    return replace(
        incident,
        jobs=tuple(sorted({*incident.jobs, *(submitted_id(m) for m in members)})),
        uids=tuple(sorted({*incident.uids, *(m.uid for m in members)})),
        nodes=tuple(sorted({*incident.nodes, *(node for m in members for node in m.nodes)})),
    )


def close_incident(incident: Incident, now: float) -> Incident:
    """Over, if its time has come."""
    return replace(incident, over_at=incident.ends) if incident.over_at is None and now >= incident.ends else incident


def _add(fresh: Incident, grown: list[Incident], failed: Sequence[JobRun]) -> None:
    """What struck one leaf and then strikes beyond it is not that leaf's: the first one is widened, none is added."""
    for place, old in enumerate(grown):
        alike = old.category == fresh.category and old.over_at is None and fresh.began <= old.ends
        if alike and {old.scope.split()[0], fresh.scope.split()[0]} <= {"switch", "cluster"}:
            grown[place] = join_failures(replace(old, scope="cluster", reach=()), failed)
            return
    grown.append(fresh)


def _group_failures(records: Sequence[JobRun], settings: Incidents) -> list[list[JobRun]]:
    """Failures of one category, no two neighbours of which are further apart than the window."""
    groups: list[list[JobRun]] = []
    newest: dict[str, list[JobRun]] = {}
    for record in records:
        group = newest.get(get_category(record))
        if group is None or _end(record) - _end(group[-1]) > settings.window_s:
            group = newest[get_category(record)] = []
            groups.append(group)
        group.append(record)
    return groups


def _find_opening_failures(group: Sequence[JobRun], settings: Incidents) -> Sequence[JobRun]:
    """The first failures of `group` that are an incident together; () when all of them are none.

    Not one user's tasks failing alike, not one job failing again and again, and not one node failing its jobs: enough
    of them ran without the node that most of them share.
    """
    jobs, uids, vouched = set[tuple[int, int]](), set[int](), set[str]()
    on: dict[str, set[tuple[int, int]]] = {}
    # Jobs that share one node, at most.
    worst = 0
    for count, record in enumerate(group, start=1):
        job = (submitted_id(record), record.uid)
        jobs.add(job)
        uids.add(record.uid)
        for node in record.nodes:
            on.setdefault(node, set()).add(job)
            worst = max(worst, len(on[node]))
        vouched.update(record.nodes if _list_verified_texts(record) else ())
        seen = len(uids) >= settings.min_users or len(vouched) >= settings.min_nodes
        if seen and len(jobs) >= settings.min_jobs and len(jobs) - worst >= settings.min_jobs - 1:
            return group[:count]
    return ()


def _open_incident(group: Sequence[JobRun], topology: Topology, settings: Incidents, mounts: Mounts) -> Incident:
    scope, reach = _find_scope(group, topology, mounts)
    category, began = get_category(group[0]), _end(group[0])
    digest = sha256(f"{category}|{scope}|{began:.0f}".encode("utf-8", "surrogateescape")).hexdigest()
    found = Incident(
        incident_id=digest[:12],
        category=category,
        scope=scope,
        began=began,
        last=_end(group[-1]),
        reach=reach,
        quiet_s=settings.quiet_s,
        spread_s=settings.spread_s,
        max_s=settings.max_s,
    )
    return _add_members(found, group)


def _find_scope(group: Sequence[JobRun], topology: Topology, mounts: Mounts) -> tuple[str, tuple[str, ...]]:
    """The narrowest thing that all of them share. Users' text names a path or a host only if two users wrote it."""
    several = len({record.uid for record in group}) >= 2
    paths = set.intersection(*(_list_prefixes(_list_paths(record, believe_user=several)) for record in group))
    if paths:
        longest = max(paths, key=lambda path: (path.count("/"), path))
        return f"path {mounts(longest) or get_first_component(longest)}", ()
    nodes = {node for record in group for node in record.nodes}
    for leaf in topology.leaves if len(topology.leaves) > 1 else ():
        if nodes and nodes <= set(leaf.nodes):
            return f"switch {leaf.name}", leaf.nodes
    if several and get_category(group[0]) == _HOST_CATEGORY:
        hosts = set.intersection(*(_list_hosts(record) for record in group))
        if hosts:
            return f"host {min(hosts)}", ()
    return "cluster", ()


def _list_prefixes(paths: Iterable[str]) -> set[str]:
    """Each path and those above it: "/scratch/ada" also is "/scratch"."""
    parts = [path.split("/") for path in paths]
    return {"/".join(words[:count]) for words in parts for count in range(2, len(words) + 1)}


def _list_paths(run: JobRun, *, believe_user: bool) -> set[str]:
    """The first components of the paths that the evidence names, but for those that every node has its own of."""
    texts = _list_root_texts(run) if believe_user else _list_verified_texts(run)
    found = {match for text in texts for match in _PATH.findall(text)}
    return {path for path in found if path.split("/")[1] not in _LOCAL}


def _list_hosts(run: JobRun) -> set[str]:
    found = {host for text in _list_root_texts(run) for host in _HOST.findall(text.lower())}
    return {host for host in found if host.rpartition(".")[2] not in _FILES}


def _list_root_texts(run: JobRun) -> tuple[str, ...]:
    """The root's lines, and the input that they name."""
    found = run.diagnosis
    if found is None:
        return ()
    return (*(c.text[:_TEXT_CAP] for c in found.evidence if c.role != "cascade"), found.input_path)


def _list_verified_texts(run: JobRun) -> tuple[str, ...]:
    evidence = run.diagnosis.evidence if run.diagnosis is not None else ()
    vouched = (c for c in evidence if c.source.partition(":")[0].lower() in _VOUCHED and c.role != "cascade")
    return tuple(c.text[:_TEXT_CAP] for c in vouched)


def get_category(run: JobRun) -> str:
    """Of its diagnosis; "" while there is none."""
    return run.diagnosis.category if run.diagnosis is not None else ""


def _end(run: JobRun) -> float:
    return float(run.end_time or 0)
