"""Find out for each pending job of a cluster whether it only waits for its turn, or what a person has to do. Pure.

Slurm shows one reason for a job, and often a passing one: a job that asks for more than its partition has may show
"Priority", and of a chain of dependent jobs each shows only "Dependency". Requests are therefore compared with the
partitions and nodes here, and dependencies are followed to the job that holds up the others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.model.job_record import JobRecord
from slurmwrap.report.pending_reasons import ReasonMeaning, explain_reason, is_never
from slurmwrap.report.text_format import count, duration, fit, in_order


class QueueProblem(Enum):
    """What keeps a pending job from starting, sorted by how much a person can do about it."""

    NEVER = "Cannot start as requested"
    CHAIN = "Wait for a job that will not end as required"
    HELD = "Held"
    NODES = "Wait for nodes that are down, drained or reserved"
    LIMIT = "Wait for a limit of a QOS or an account"
    LATER = "Wait for another job, a time, a reservation or a license"
    TURN = "Wait for their turn"


# Kinds that do not pass by themselves.
NEED_A_PERSON = (QueueProblem.NEVER, QueueProblem.CHAIN, QueueProblem.HELD, QueueProblem.NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A pending job, the jobs that it depends on as squeue prints them, and Slurm's forecast of its start."""

    record: JobRecord
    dependency: str = ""
    expected_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedJob:
    """A pending job with the reason why it waits, in words, and what to do; "" if it is enough to wait."""

    job: PendingJob
    problem: QueueProblem
    words: str
    way_out: str = ""


_HELD = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch_failed", "user_env", "job_requeued")
_NEVER = (
    *("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig", "BadConstraints", "MaxMemPerLimit", "DeadLine"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "ReservationDeleted", "ReservationInvalid"),
)
_NODES = ("ReqNodeNotAvail", "NodeDown", "Nodes_required", "PartitionDown", "PartitionInactive", "FrontEndDown")
_TURN = ("None", "Priority", "Resources", "SchedDefer", "Cleaning", "Prolog", "Constraints")
_DEPENDENCY_FREE = "scontrol update JobId={} Dependency="
_MOST_LINKS = 4


def explain_queue(jobs: Sequence[PendingJob], snapshot: Snapshot) -> tuple[ExplainedJob, ...]:
    """Explain each pending job: those first for which a person can do most, then those with most GPUs, then the oldest.

    `jobs`: the pending ones that the calling user may see.
    """
    alone = {job.record.address: _explain_alone(job, snapshot) for job in jobs}
    by_id: dict[str, list[str]] = {}
    for job in jobs:
        for name in {job.record.address, str(job.record.submitted_id), str(job.record.job_id)}:
            by_id.setdefault(name, []).append(job.record.address)
    held_up = _find_held_up(alone, by_id)
    roots = _find_roots(held_up)
    explained = [_explain_chain(one, alone, held_up, roots) for one in alone.values()]
    order = list(QueueProblem)
    return tuple(
        sorted(explained, key=lambda one: (order.index(one.problem), -one.job.record.gpus, one.job.record.submit_time))
    )


def _explain_alone(job: PendingJob, snapshot: Snapshot) -> ExplainedJob:
    record, reason = job.record, job.record.reason
    name = re.split(r"[,( ]", reason, maxsplit=1)[0]
    meaning = explain_reason(reason)
    fitting = _compare_with_cluster(record, snapshot)
    if name.startswith(_HELD) or reason.replace(" ", "_").startswith(_HELD):
        return _explain(job, QueueProblem.HELD, meaning)
    if fitting is not None and (name.startswith(_NEVER) or name in _TURN or name.startswith(_NODES)):
        return _explain(job, *fitting)
    if name == "DependencyNeverSatisfied":
        way_out = f"cancel it, or run it without: {_DEPENDENCY_FREE.format(record.address)}"
        return _explain(job, QueueProblem.CHAIN, ReasonMeaning(words=_describe_failed(job), way_out=way_out))
    if name.startswith(_NEVER) or is_never(meaning):
        return _explain(job, QueueProblem.NEVER, meaning)
    if name.startswith(_NODES) or reason.startswith("Nodes required"):
        return _explain(job, QueueProblem.NODES, _name_missing_nodes(reason, meaning, snapshot))
    if name in _TURN:
        return _explain(job, QueueProblem.TURN, meaning)
    limited = name.startswith(("QOS", "Assoc", "Accounting"))
    return _explain(job, QueueProblem.LIMIT if limited else QueueProblem.LATER, meaning)


def _explain(job: PendingJob, problem: QueueProblem, meaning: ReasonMeaning) -> ExplainedJob:
    return ExplainedJob(job=job, problem=problem, words=meaning.words, way_out=meaning.way_out)


# --- what the partition and its nodes have ----------------------------------------------------------------------------


def _compare_with_cluster(record: JobRecord, snapshot: Snapshot) -> tuple[QueueProblem, ReasonMeaning] | None:
    """Return what makes the request impossible in each of its partitions; None if one of them can have it."""
    known = {partition.name: partition for partition in snapshot.partitions}
    names = record.partition.split(",")
    found = [_compare_with_partition(record, known[name], snapshot) for name in names if name in known]
    if not found or len(found) < len(names) or None in found:
        return None
    problems = [one for one in found if one is not None]
    # The smallest obstacle counts: nodes that may come back before requests that never fit.
    return min(problems, key=lambda one: one[0] is QueueProblem.NEVER)


def _compare_with_partition(
    record: JobRecord, partition: Partition, snapshot: Snapshot
) -> tuple[QueueProblem, ReasonMeaning] | None:
    if partition.state not in ("UP", ""):
        return None  # Slurm's own reason says so
    nodes = [node for node in snapshot.nodes if partition.name in node.partitions]
    if not nodes or (partition.total_nodes or 0) > len(nodes):  # hidden nodes
        return None
    if words := _find_excess(record, partition, nodes):
        return QueueProblem.NEVER, ReasonMeaning(words=words, way_out=_change(record))
    able = [node for node in nodes if _suits(node, record)]
    if len(able) < record.num_nodes:
        words = f"it asks for {count(record.num_nodes, 'node')} with {_describe_share(record)}; {partition.name} has "
        return QueueProblem.NEVER, ReasonMeaning(
            words=words + (str(len(able)) if able else "none"), way_out=_change(record)
        )
    missing = [node for node in able if not node.usable]
    if len(able) - len(missing) < record.num_nodes:
        return QueueProblem.NODES, ReasonMeaning(
            words=f"it needs {count(record.num_nodes, 'node')} with {_describe_share(record)}; of {len(able)} in "
            f"{partition.name} {_describe_states(missing)}",
            way_out="return nodes to service (scontrol update NodeName=... State=RESUME)",
        )
    return None


def _change(record: JobRecord) -> str:
    return f"ask for less (scontrol update JobId={record.address} ...), or cancel it"


def _find_excess(record: JobRecord, partition: Partition, nodes: Sequence[Node]) -> str:
    """Return how the request exceeds the partition as a whole; "" if it does not."""
    if partition.max_nodes is not None and record.num_nodes > partition.max_nodes:
        return f"it asks for {count(record.num_nodes, 'node')}; {partition.name} gives at most {partition.max_nodes}"
    limit = partition.max_time_s
    if limit is not None and record.time_limit_s is not None and record.time_limit_s > limit:
        return f"it asks for {duration(record.time_limit_s)}; {partition.name} gives at most {duration(limit)}"
    total = sum(node.gpus for node in nodes)
    if record.gpus > total:
        return f"it asks for {count(record.gpus, 'GPU')}; all nodes of {partition.name} together have {total}"
    return ""


def _suits(node: Node, record: JobRecord) -> bool:
    """Return whether an empty node has what the job needs on each of its nodes.

    Of features only a single one is compared, since Slurm's expressions may ask for different nodes.
    """
    if re.fullmatch(r"[\w.-]+", record.features) and record.features not in node.features:
        return False
    if record.req_nodes and record.num_nodes == 1 and node.name not in expand(record.req_nodes):
        return False
    gpus, cpus, memory = _compute_share(record)
    return node.gpus >= gpus and node.cpus >= cpus and node.mem_mib >= memory


def _compute_share(record: JobRecord) -> tuple[int, int, int]:
    """Return the GPUs, CPUs and MiB that the job needs at least on its best node."""
    nodes = max(1, record.num_nodes)
    cpus = max(record.min_cpus, record.cpus_per_task, 1)
    memory = record.mem_mib_per_node or (record.mem_mib_per_cpu or 0) * cpus
    return -(-record.gpus // nodes), cpus, memory


def _describe_share(record: JobRecord) -> str:
    gpus, cpus, memory = _compute_share(record)
    parts = [count(gpus, "GPU")] if gpus else []
    parts.append(count(cpus, "CPU"))
    parts += [f"{memory:,} MiB"] if memory else []
    parts += [f"feature {record.features}"] if record.features else []
    parts += [f"the name {record.req_nodes}"] if record.req_nodes and record.num_nodes == 1 else []
    return ", ".join(parts)


def _describe_states(nodes: Sequence[Node]) -> str:
    states: dict[str, list[str]] = {}
    for node in nodes:
        state = "drained" if "DRAIN" in node.flags else "reserved" if "MAINTENANCE" in node.flags else "down"
        because = f' ("{fit(node.reason.partition(" [")[0], 40)}")' if node.reason else ""
        states.setdefault(f"{state}{because}", []).append(node.name)
    return "; ".join(
        f"{fit(fold(in_order(names)), 60)} {'is' if len(names) == 1 else 'are'} {state}"
        for state, names in states.items()
    )


def _name_missing_nodes(reason: str, meaning: ReasonMeaning, snapshot: Snapshot) -> ReasonMeaning:
    found = re.search(r"UnavailableNodes:(\S+)", reason)
    try:
        names = set(expand(found[1])) if found else set()
    except ValueError:
        return meaning
    nodes = [node for node in snapshot.nodes if node.name in names and not node.usable]
    if not nodes:
        return meaning
    return ReasonMeaning(words=f"{meaning.words}: {_describe_states(nodes)}", way_out=meaning.way_out)


# --- dependencies -----------------------------------------------------------------------------------------------------

_LINK = re.compile(r"(?P<type>after[a-z]{0,12}):(?P<job>\d+(?:_(?:\d+|\*))?)(?:\+\d+)?(?:\((?P<state>\w+)\))?")


def _describe_failed(job: PendingJob) -> str:
    failed = [found for found in _LINK.finditer(job.dependency) if found["state"] == "failed"]
    if not failed:
        return explain_reason("DependencyNeverSatisfied").words
    named = ", ".join(f"{found['job']} did not end as {found['type']} asks" for found in failed[:_MOST_LINKS])
    return f"job {named}"


def _find_held_up(alone: Mapping[str, ExplainedJob], by_id: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Return, for each job that waits for one that needs a person, the job that it waits for; chains may be long.

    With alternatives ("?") a job is held up only if all of its links are.
    """
    links = {address: _list_links(one, by_id) for address, one in alone.items()}
    waiting_for: dict[str, set[str]] = {}
    for address, targets in links.items():
        for target in targets:
            waiting_for.setdefault(target, set()).add(address)
    held_up: dict[str, str] = {}
    found = deque(address for address, one in alone.items() if one.problem in NEED_A_PERSON)
    blocked = set(found)
    while found:
        target = found.popleft()
        for address in sorted(waiting_for.get(target, ())):
            either = "?" in alone[address].job.dependency
            if address not in blocked and (not either or links[address] <= blocked):
                held_up[address] = target
                blocked.add(address)
                found.append(address)
    return held_up


def _list_links(one: ExplainedJob, by_id: Mapping[str, Sequence[str]]) -> set[str]:
    if not one.job.record.reason.startswith("Dependency"):
        return set()
    jobs = [found["job"] for found in _LINK.finditer(one.job.dependency) if found["state"] in (None, "unfulfilled")]
    return {address for job in jobs for address in by_id.get(job.removesuffix("_*"), ())} - {one.job.record.address}


def _find_roots(held_up: Mapping[str, str]) -> Mapping[str, tuple[str, int]]:
    """Return, for each job that is held up, the first job of its chain and how many jobs away it is.

    `held_up` names a job only after the job that it waits for.
    """
    roots: dict[str, tuple[str, int]] = {}
    for address, target in held_up.items():
        root, distance = roots.get(target, (target, 0))
        roots[address] = (root, distance + 1)
    return roots


def _explain_chain(
    one: ExplainedJob,
    alone: Mapping[str, ExplainedJob],
    held_up: Mapping[str, str],
    roots: Mapping[str, tuple[str, int]],
) -> ExplainedJob:
    """Replace the reason of a job that is held up by the reason of the first job of its chain."""
    address = one.job.record.address
    if address not in roots:
        return one
    name, distance = roots[address]
    links = [held_up[address]]
    while links[-1] != name and distance < _MOST_LINKS:
        links.append(held_up[links[-1]])
    if distance >= _MOST_LINKS:
        links += [f"{distance - 2} more", name]
    root = alone[name]
    return ExplainedJob(
        job=one.job,
        problem=QueueProblem.CHAIN,
        words=f"it waits for {', which waits for '.join(links)}: {root.words}",
        way_out=f"for {name}: {root.way_out}" if root.way_out else "",
    )
