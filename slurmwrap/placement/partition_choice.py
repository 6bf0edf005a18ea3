"""Choose the partitions for a job that leaves the choice to gsub (--partition=auto). Pure.

A partition is left out if the user or the job may not use it, and if it could be to the user's or others' disadvantage
compared with the one that Slurm would take: jobs that are killed for those of other partitions, a higher price, a
higher PriorityTier (such partitions are for short tests, and their jobs may take nodes from others), a lower time limit
than the job needs, GPUs of another type, which may have less memory.

Of the others the job gets a list, not the one with the earliest forecast: Slurm starts the job in the first partition
that can, so a wrong forecast costs nothing (bench/partition_choice.py compares both).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node, Partition, Snapshot
    from slurmwrap.model.job_record import JobRecord

# Slurm's backfill scheduler tries a job in each of its partitions, so a list is short.
MOST_LISTED = 4
# A start that is expected so soon is at once.
AT_ONCE_S = 60.0
# A better partition is worth a sentence if the job starts so many seconds, and such a share of its wait, earlier.
_EARLIER_S, _EARLIER_SHARE = 600.0, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUser:
    """The user for whom a partition is chosen. `account`, `qos`: as requested; "": not known, Slurm decides."""

    groups: frozenset[str]
    account: str = ""
    qos: str = ""
    root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNeeds:
    """What a job requests of its partition. None: not requested, or not known."""

    nodes: int | None = None
    time_limit_s: int | None = None
    run_s: float | None = None  # nine of ten such jobs take less
    cpus_per_node: int | None = None
    mem_mib_per_node: int | None = None
    reservation: bool = False
    gpus: bool = False
    any_gpu_type: bool = False  # it requests GPUs and neither their type nor a feature of the node
    preemptible: bool = False  # its user agreed that it is stopped for other jobs (--preemptible)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitablePartitions:
    """The partitions that may be chosen for a job, in Slurm's order, and why each of the others is left out."""

    names: tuple[str, ...]
    left_out: Mapping[str, str]


def find_suitable_partitions(
    snapshot: Snapshot, needs: PartitionNeeds, user: PartitionUser, reserved: Iterable[str] = ()
) -> SuitablePartitions:
    """Return the partitions that may be chosen. `reserved`: those that the site uses for pre-runs.

    Whether the nodes of a partition can run the job, and what limits of associations and QOS allow, only Slurm knows
    for certain.
    """
    kept_free = frozenset(reserved)
    gpu_types = _list_gpu_types(snapshot) if needs.gpus else {}
    usual = next((one for one in snapshot.partitions if one.name == snapshot.default_partition), None)
    left_out: dict[str, str] = {}
    usable: list[Partition] = []
    for one in snapshot.partitions:
        reason = (
            _find_access_obstacle(one, user, needs)
            or _find_limit_obstacle(one, needs)
            or ("it has no GPUs" if needs.gpus and not gpu_types.get(one.name) else "")
            or _find_time_obstacle(one, needs, usual)
            or ("the site keeps it for pre-runs" if one.name in kept_free and one is not usual else "")
        )
        if reason:
            left_out[one.name] = reason
        else:
            usable.append(one)
    if not usable:
        return SuitablePartitions(names=(), left_out=left_out)
    reference = usual if usual in usable else min(usable, key=lambda one: _rank_reference(one, snapshot))
    names = []
    for one in usable:
        disadvantage = _find_disadvantage(one, reference, needs, preempts=snapshot.preempts)
        others = gpu_types.get(one.name, set()) - gpu_types.get(reference.name, set())
        if not disadvantage and needs.any_gpu_type and others:
            named = ", ".join(sorted(others)) or "an unknown type"
            disadvantage = (
                f"it has other GPUs than {reference.name} ({named}); a job that names their type may go there"
            )
        if disadvantage:
            left_out[one.name] = disadvantage
        else:
            names.append(one.name)
    return SuitablePartitions(names=tuple(names), left_out=left_out)


def _find_access_obstacle(one: Partition, user: PartitionUser, needs: PartitionNeeds) -> str:
    """Return why the user may not use the partition, by scontrol(1), "PARTITIONS"; "" if nothing is known against it.

    Slurm does not apply the lists of groups and RootOnly to root.
    """
    if one.state not in ("UP", ""):
        return f"its state is {one.state}"
    if one.hidden:
        return "it is hidden"
    if one.needs_reservation and not needs.reservation:
        return "its jobs need a reservation"
    if one.root_only and not user.root:
        return "it is for root only"
    if one.allow_groups and not user.root and user.groups.isdisjoint(one.allow_groups):
        return f"it is for the groups {', '.join(one.allow_groups)}"
    return _find_list_obstacle("account", user.account, one.allow_accounts, one.deny_accounts) or _find_list_obstacle(
        "QOS", user.qos, one.allow_qos, one.deny_qos
    )


def _find_list_obstacle(what: str, name: str, allowed: Sequence[str], denied: Sequence[str]) -> str:
    if not name:
        return ""
    if allowed and name.lower() not in map(str.lower, allowed):
        return f"it is not for the {what} {name}"
    return f"it is not for the {what} {name}" if name.lower() in map(str.lower, denied) else ""


def _find_limit_obstacle(one: Partition, needs: PartitionNeeds) -> str:
    if needs.nodes is not None and one.max_nodes is not None and needs.nodes > one.max_nodes:
        return f"a job gets at most {one.max_nodes} nodes there"
    if needs.nodes is not None and needs.nodes < one.min_nodes:
        return f"a job has at least {one.min_nodes} nodes there"
    if needs.cpus_per_node and one.max_cpus_per_node and needs.cpus_per_node > one.max_cpus_per_node:
        return f"a job gets at most {one.max_cpus_per_node} CPUs of a node there"
    if needs.mem_mib_per_node and one.max_mem_mib_per_node and needs.mem_mib_per_node > one.max_mem_mib_per_node:
        return f"a job gets at most {one.max_mem_mib_per_node} MiB of a node there"
    return ""


def _find_time_obstacle(one: Partition, needs: PartitionNeeds, usual: Partition | None) -> str:
    """Return why the job may not end in time there. Without --time it gets the partition's default limit."""
    if needs.time_limit_s is not None:
        too_short = one.max_time_s is not None and needs.time_limit_s > one.max_time_s
        return f"its MaxTime is {_format_time(one.max_time_s or 0)}" if too_short else ""
    limit = one.default_time_s or one.max_time_s
    if limit is None:
        return ""
    if needs.run_s is not None:
        too_short = needs.run_s > limit
    else:
        expected = None if usual is None else usual.default_time_s or usual.max_time_s
        too_short = one is not usual and usual is not None and (expected is None or expected > limit)
    return f"without --time a job ends there after {_format_time(limit)}" if too_short else ""


def _format_time(seconds: float) -> str:
    return f"{seconds / 3600:.4g} h" if seconds >= 7200 else f"{seconds / 60:.4g} min"


def _list_gpu_types(snapshot: Snapshot) -> dict[str, set[str]]:
    """Return the types of the GPUs of each partition that has any; "" where gres.conf names no type."""
    found: dict[str, set[str]] = {}
    for node in snapshot.nodes:
        for name in node.partitions if node.gpus else ():
            found.setdefault(name, set()).update(node.gpu_type.split(","))
    return found


def _rank_reference(one: Partition, snapshot: Snapshot) -> tuple[bool, float, int]:
    """Return the order in which partitions are the measure for others, if the default partition is unusable."""
    preemptible = snapshot.preempts and one.preempt_mode != "OFF"
    return preemptible, sum(_weights(one).values()), one.priority_tier


def _find_disadvantage(one: Partition, reference: Partition, needs: PartitionNeeds, *, preempts: bool) -> str:
    """Return the disadvantage compared with `reference`, the partition that the job would have otherwise."""
    if one is reference:
        return ""
    less_safe = reference.preempt_mode == "OFF" or one.priority_tier < reference.priority_tier
    stopped = preempts and one.preempt_mode != "OFF" and less_safe
    requeued = one.preempt_mode == "REQUEUE"
    if stopped and not (needs.preemptible and requeued):
        way_out = "; --preemptible allows it" if requeued else ""
        return f"jobs there are stopped for others (PreemptMode={one.preempt_mode}){way_out}"
    if one.priority_tier > reference.priority_tier:
        return f"its PriorityTier is above that of {reference.name}"
    mine, theirs = _weights(one), _weights(reference)
    if any(weight > theirs.get(name, 0.0) for name, weight in mine.items()):
        return f"it is billed higher than {reference.name} (TRESBillingWeights)"
    return ""


def _weights(one: Partition) -> dict[str, float]:
    """Return what is billed; without TRESBillingWeights Slurm bills CPUs."""
    return dict(one.billing_weights) or {"cpu": 1.0}


def find_other_partitions(
    job: JobRecord, snapshot: Snapshot, user: PartitionUser, reserved: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the partitions that a pending job may be moved to, if it is in the default partition or in several.

    For an advice, without asking Slurm: only partitions with the same types of GPUs, and none if the job names nodes or
    features.
    """
    own = job.partition.split(",")
    if (len(own) == 1 and own[0] != snapshot.default_partition) or job.features or job.req_nodes or not job.gpus:
        return ()
    nodes, cpus, memory = max(1, job.num_nodes), max(job.min_cpus, job.cpus_per_task, 1), job.mem_mib_per_node or 0
    needs = PartitionNeeds(
        nodes=job.num_nodes or None,
        time_limit_s=job.time_limit_s,
        cpus_per_node=job.min_cpus or None,
        mem_mib_per_node=job.mem_mib_per_node,
        gpus=True,
    )
    suitable = find_suitable_partitions(snapshot, needs, user, reserved)
    types = _list_gpu_types(snapshot)
    asked = set().union(*(types.get(name, set()) for name in own))

    def holds(node: Node) -> bool:
        return node.gpus >= -(-job.gpus // nodes) and node.cpus >= cpus and node.mem_mib >= memory

    able = [node for node in snapshot.nodes if node.usable and holds(node)]
    return tuple(
        name
        for name in suitable.names
        if name not in own and types.get(name) == asked and sum(name in node.partitions for node in able) >= nodes
    )


def rank_partitions(names: Sequence[str], starts: Mapping[str, float], now: float) -> tuple[str, ...]:
    """Return the list for Slurm: the earliest expected start (Unix seconds) first, those without one last.

    Starts within a minute are equally good and keep the order of `names`.
    """

    def key(name: str) -> tuple[bool, float]:
        start = starts.get(name)
        return start is None, 0.0 if start is None or start - now < AT_ONCE_S else start

    return tuple(sorted(names, key=key))[:MOST_LISTED]


def find_earlier_partition(current: float, starts: Mapping[str, float], now: float) -> str:
    """Return the partition in which a job would start materially earlier than `current`; "" if there is none.

    All in Unix seconds.
    """
    name = min(starts, key=lambda one: starts[one], default="")
    if not name:
        return ""
    earlier = current - max(now, starts[name])
    return name if earlier > _EARLIER_S and earlier > _EARLIER_SHARE * (current - now) else ""
