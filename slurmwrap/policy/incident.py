"""Incidents: one infrastructure cause that made several jobs, users or nodes fail within minutes. Pure.

Philly's advice is to observe related failures and to react early. While an incident is open its retries wait, no node
is blamed for it, the report shows it as one line, and users of new jobs are warned (docs/incidents.md).

Users can write anything into a log, and several of them can agree on it. So an incident is unconfirmed until kernel,
NVML, Slurm or slurmwrap's own hooks report its failure on two nodes. Unconfirmed, it concerns only users who have
enough failed jobs of their own in it. What is confirmed follows the trusted failures alone: its scope, and how long it
lasts. No incident lasts longer than max_s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain

from slurmwrap.config.load_config import Incidents
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation
from slurmwrap.model.job_run import PROVING_NODES, Incident, JobRun
from slurmwrap.model.topology import Topology
from slurmwrap.policy.retry_budget import compute_spread
from slurmwrap.policy.run_from_slurm import submitted_id

__all__ = [
    "FAILURES",
    "LOST_NODE",
    "SHARED",
    "Incident",
    "Mounts",
    "can_be_of_incident",
    "close_incident",
    "find",
    "find_incident_of_run",
    "get_category",
    "get_first_component",
    "has_trusted_evidence",
    "is_affected",
    "is_proof",
    "join_failures",
    "wait_s",
]  # fmt: skip

# Type of a function: path -> the mount point below "/" on which it lies; "" if none is known.
Mounts = Callable[[str], str]

# Categories that can open an incident. Of domain AE only those that a network, a fabric or a driver update causes in
# several jobs at once.
SHARED = frozenset(
    (
        *(c.id for c in CATEGORIES.values() if c.domain == "IF"),
        *("nccl_error", "mpi_runtime_failure", "cuda_init_failed", "cuda_version_mismatch"),
    )
)
_STORAGE = "storage_io"
# An unreachable file system looks like a missing file. Such a failure can join an open storage incident, but not open
# one.
_FOLLOWING_CATEGORIES = {_STORAGE: frozenset({"incorrect_inputs", "checkpoint_error"})}
# Categories that can belong to an incident.
FAILURES = SHARED.union(*_FOLLOWING_CATEGORIES.values())
_TRUSTED_SOURCES = ("kernel", "nvml", "network", "slurm")
# Records of trusted sources that users can cause: a task that hangs on the user's own FUSE file system, and a batch
# script that cannot be started.
_CAUSED_BY_USERS = re.compile(r"INFO: task .{1,16}:\d+ blocked for more than|Reason JobLaunchFailure")
# What the hooks found out themselves (node_facts.py): a driver that is not loaded, or not of its library's version.
# That NVML is missing is no evidence, since on some sites it is nowhere installed.
_HOOK_PROOF = re.compile(r"(?:prolog|epilog) on \S+: (?:refused: |GPUs could not be read: NVML: (?:Driver|RM ))")
# A fabric that fails also loses nodes. These categories have no trusted evidence of their own.
_FABRIC = frozenset({"nccl_error", "mpi_runtime_failure", "network_error"})
LOST_NODE = "node_failure"
_PATH = re.compile(r"(?<![\w/.:])(/[\w.+@-]{1,64}(?:/[\w.+@-]{1,64}){0,3})")
_HOST = re.compile(r"\b((?:[a-z0-9-]{1,63}\.){1,5}[a-z]{2,24})\b")
_HOST_CATEGORY = "network_error"
# Top-level directories that every node has of its own.
_LOCAL_DIRECTORIES = frozenset(
    (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc"),
        *("root", "run", "sbin", "snap", "sys", "tmp", "usr", "var"),
    )
)
_TEXT_CAP = 2000
# Number of users whose logs must agree.
_CONFIRMED = 2
# Last parts of file names, which look like host names.
_FILE_SUFFIXES = ("py", "so", "cc", "cpp", "cu", "h", "c", "rs", "go", "json", "yaml", "txt", "log", "out", "err")


def get_first_component(path: str) -> str:
    """Return "/scratch" for "/scratch/ada/x": a Mounts function for callers that know no mount points."""
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
    """Return `known`, updated to `now`, with the new incidents that `attempts` show; oldest first.

    A known incident keeps its id. It also keeps its scope, unless one that seemed to affect a single leaf switch shows
    beyond it.
    """
    failed = [a for a in attempts if a.diagnosis is not None and a.end_time is not None and a.end_time <= now]
    confirm = partial(_confirm, failed=failed, topology=topology, mounts=mounts)
    grown = [confirm(join_failures(incident, failed)) if incident.over_at is None else incident for incident in known]
    taken = {a.attempt for a in failed if find_incident_of_run(grown, a) is not None}
    rest = sorted((a for a in failed if a.attempt not in taken and get_category(a) in SHARED), key=_end)
    for group in _group_failures(rest, settings):
        while opening := _find_opening_failures(group, settings):
            fresh = join_failures(_open_incident(opening, topology, settings, mounts), failed)
            _add_or_widen(confirm(fresh), grown, failed)
            group = [record for record in group[len(opening) :] if find_incident_of_run(grown, record) is None]
    return tuple(sorted((close_incident(confirm(one), now) for one in grown), key=lambda i: (i.began, i.incident_id)))


def can_be_of_incident(run: JobRun) -> bool:
    """Return True if this failure can belong to an incident at all."""
    return get_category(run) in FAILURES


def find_incident_of_run(incidents: Iterable[Incident], run: JobRun) -> Incident | None:
    """Return the incident that a failed run with a diagnosis belongs to, preferably a confirmed one; None if none."""
    found = [incident for incident in incidents if _is_part_of_incident(run, incident)]
    return next((incident for incident in found if incident.confirmed), found[0] if found else None)


def is_affected(incident: Incident, run: JobRun, failures: Iterable[JobRun], min_jobs: int) -> bool:
    """Return whether the incident excuses and delays this run of it.

    An unconfirmed one does so only if the logs of other users are not needed for it: at least `min_jobs` jobs of the
    run's own user failed of it, among `failures` and the run itself. A trusted failure is then judged by itself.
    """
    if incident.confirmed:
        return True
    if has_trusted_evidence(run):
        return False
    jobs = set[int]()
    for other in chain((run,), failures):
        # The texts are searched last, and for one task of an array only.
        if other.uid == run.uid and submitted_id(other) not in jobs and _is_part_of_incident(other, incident):
            jobs.add(submitted_id(other))
            if len(jobs) >= min_jobs:
                return True
    return False


def has_trusted_evidence(run: JobRun) -> bool:
    """Return whether kernel, NVML, Slurm or a hook reported the cause of the run's failure."""
    return bool(_list_verified_texts(run))


def is_proof(run: JobRun, incident: Incident) -> bool:
    """Return whether `run` is a failure that no user can write, of the same cause as the incident.

    A lost node below the incident's switch, or one on which its jobs failed, proves a failure of the fabric.
    """
    if not has_trusted_evidence(run):
        return False
    if get_category(run) == incident.category:
        return _is_part_of_incident(run, incident)
    of_fabric = incident.category in _FABRIC and get_category(run) == LOST_NODE
    near = incident.began - incident.quiet_s <= _end(run) <= incident.ends
    return of_fabric and near and bool(set(run.nodes) & set(incident.reach or incident.nodes))


def wait_s(incident: Incident, job_id: int, now: float) -> int:
    """Return how long a retry waits, in whole seconds: until the incident ends, plus its share of the spread.

    The end is estimated from what is known now. The share of a job is always the same, so that a reconciler that was
    killed decides the same again.
    """
    over = incident.over_at if incident.over_at is not None else max(now, incident.ends)
    share = compute_spread(f"{incident.incident_id}:{job_id}") * incident.spread_s
    return max(0, math.ceil(over + share - now))


def _is_part_of_incident(run: JobRun, incident: Incident) -> bool:
    category = get_category(run)
    if run.end_time is None or not incident.began <= run.end_time <= incident.ends:
        return False
    followers = (
        _FOLLOWING_CATEGORIES.get(incident.category, frozenset()) if incident.scope.startswith("path ") else frozenset()
    )
    return (category == incident.category or category in followers) and _is_within_scope(run, incident)


def _is_within_scope(run: JobRun, incident: Incident) -> bool:
    kind, _, what = incident.scope.partition(" ")
    if kind == "path":
        return any(path == what or path.startswith(f"{what}/") for path in _list_paths(run, trust_user=True))
    if kind == "switch":
        return bool(run.nodes) and set(run.nodes) <= set(incident.reach)
    if kind == "host":
        return what in _list_hosts(run)
    return True


def join_failures(incident: Incident, failed: Iterable[JobRun]) -> Incident:
    """Return the incident with every failure that belongs to it.

    Trusted failures prolong it, so that later ones may join. An unconfirmed one is also prolonged by what two users'
    logs have reported since. A missing file prolongs nothing.
    """
    members, users = [], set[int]()
    for record in sorted(failed, key=_end):
        if not _is_part_of_incident(record, incident):
            if incident.over_at is None and _end(record) > incident.last and is_proof(record, incident):
                incident = replace(incident, last=_end(record))
            continue
        members.append(record)
        can_prolong = incident.over_at is None and get_category(record) == incident.category
        if can_prolong and _end(record) > incident.last:
            users.add(record.uid)
            agreed = not incident.confirmed and len(users) >= _CONFIRMED
            if has_trusted_evidence(record) or agreed:
                incident, users = replace(incident, last=_end(record)), set()
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


def _confirm(incident: Incident, failed: Sequence[JobRun], topology: Topology, mounts: Mounts) -> Incident:
    """Return the incident, confirmed if trusted failures on two nodes prove it, no further apart than quiet_s.

    Then its scope and its time are those of the proofs, whatever the users' logs say. One node proves nothing: it may
    be the cause itself. Nor do two that fail hours apart, while users keep the incident open.
    """
    if incident.confirmed or incident.over_at is not None:
        return incident
    proofs = sorted((record for record in failed if is_proof(record, incident)), key=_end)
    proofs = [record for record in proofs if _end(record) >= _end(proofs[-1]) - incident.quiet_s]
    nodes = {_find_proving_node(record) for record in proofs} - {""}
    if len(nodes) < PROVING_NODES:
        return incident
    scope, reach = incident.scope, incident.reach
    if scope.partition(" ")[0] not in ("path", "host"):
        scope, reach = _find_scope(proofs, topology, mounts)
    proven = replace(
        incident,
        scope=scope,
        reach=reach,
        proof=tuple(sorted(nodes)),
        began=max(incident.began, _end(proofs[0]) - incident.quiet_s),
        last=_end(proofs[-1]),
        jobs=(),
        uids=(),
        nodes=(),
    )
    return _add_members(proven, [record for record in failed if _is_part_of_incident(record, proven)])


def _find_proving_node(run: JobRun) -> str:
    """Return the node that the trusted evidence is about; "" if unknown."""
    named = (c.source.partition(":")[2] for c in _list_verified(run))
    found = (*named, run.diagnosis.node if run.diagnosis is not None else "", *run.nodes)
    return next((node for node in found if node in run.nodes), "")


def close_incident(incident: Incident, now: float) -> Incident:
    """Return the incident as over, if its time has come."""
    return replace(incident, over_at=incident.ends) if incident.over_at is None and now >= incident.ends else incident


def _add_or_widen(fresh: Incident, grown: list[Incident], failed: Sequence[JobRun]) -> None:
    """Add a new incident, or widen an open one from one leaf switch to the cluster.

    An incident that began on one leaf switch and then shows beyond it was not caused by that switch. Logs alone widen
    no confirmed incident.
    """
    for index, old in enumerate(grown):
        alike = old.category == fresh.category and old.over_at is None and fresh.began <= old.ends
        alike = alike and old.confirmed == fresh.confirmed
        if alike and {old.scope.split()[0], fresh.scope.split()[0]} <= {"switch", "cluster"}:
            proof = tuple(sorted({*old.proof, *fresh.proof}))
            grown[index] = join_failures(replace(old, scope="cluster", reach=(), proof=proof), failed)
            return
    grown.append(fresh)


def _group_failures(records: Sequence[JobRun], settings: Incidents) -> list[list[JobRun]]:
    """Return groups of failures of one category, in which neighbours are no further apart than the window."""
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
    """Return the first failures of `group` that form an incident together; () if they do not.

    Tasks of one user that fail alike are none, nor is one job that fails repeatedly, nor one node that fails its jobs:
    enough of the jobs must have run without the node that most of them share.
    """
    jobs, uids, trusted_nodes = set[tuple[int, int]](), set[int](), set[str]()
    jobs_on_node: dict[str, set[tuple[int, int]]] = {}
    # The largest number of jobs that share one node.
    worst = 0
    for count, record in enumerate(group, start=1):
        job = (submitted_id(record), record.uid)
        jobs.add(job)
        uids.add(record.uid)
        for node in record.nodes:
            jobs_on_node.setdefault(node, set()).add(job)
            worst = max(worst, len(jobs_on_node[node]))
        trusted_nodes.update(record.nodes if _list_verified_texts(record) else ())
        seen = len(uids) >= settings.min_users or len(trusted_nodes) >= settings.min_nodes
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
    """Return the narrowest scope that all failures share, and the nodes that it covers if it is a switch.

    A path or host from users' logs counts only if two users' logs name it.
    """
    several = len({record.uid for record in group}) >= 2
    paths = set.intersection(*(_list_prefixes(_list_paths(record, trust_user=several)) for record in group))
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
    """Return each path and its parents: "/scratch/ada" is also in "/scratch"."""
    parts = [path.split("/") for path in paths]
    return {"/".join(words[:count]) for words in parts for count in range(2, len(words) + 1)}


def _list_paths(run: JobRun, *, trust_user: bool) -> set[str]:
    """Return the first components of the paths in the evidence, without directories that every node has of its own."""
    texts = _list_root_texts(run) if trust_user else _list_verified_texts(run)
    found = {match for text in texts for match in _PATH.findall(text)}
    return {path for path in found if path.split("/")[1] not in _LOCAL_DIRECTORIES}


def _list_hosts(run: JobRun) -> set[str]:
    found = {host for text in _list_root_texts(run) for host in _HOST.findall(text.lower())}
    return {host for host in found if host.rpartition(".")[2] not in _FILE_SUFFIXES}


def _list_root_texts(run: JobRun) -> tuple[str, ...]:
    """Return the texts of the evidence, except consequences, and the input that is blamed.

    What a log shows of a file system that the kernel reports is cited as a consequence, and names the path.
    """
    found = run.diagnosis
    if found is None:
        return ()
    whole = found.category == _STORAGE and has_trusted_evidence(run)
    return (*(c.text[:_TEXT_CAP] for c in found.evidence if whole or c.role != "cascade"), found.input_path)


def _list_verified_texts(run: JobRun) -> tuple[str, ...]:
    return tuple(c.text[:_TEXT_CAP] for c in _list_verified(run))


def _list_verified(run: JobRun) -> tuple[Citation, ...]:
    """Return the citations that no user can write or cause."""
    evidence = run.diagnosis.evidence if run.diagnosis is not None else ()
    return tuple(c for c in evidence if c.role != "cascade" and _is_verified(c))


def _is_verified(citation: Citation) -> bool:
    source = citation.source.partition(":")[0].lower()
    if source == "hook":
        return bool(_HOOK_PROOF.match(citation.text))
    return source in _TRUSTED_SOURCES and not _CAUSED_BY_USERS.match(citation.text)


def get_category(run: JobRun) -> str:
    """Return the category of the run's diagnosis; "" without one."""
    return run.diagnosis.category if run.diagnosis is not None else ""


def _end(run: JobRun) -> float:
    return float(run.end_time or 0)
