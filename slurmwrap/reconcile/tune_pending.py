"""CPUs and memory of the pending jobs, allocated anew in each pass of the site's reconciler (rule `tune`).

Slurm starts the head of the queue within a tenth of a second of a job's end, with what the job requests at that moment,
and takes nothing back later. So the jobs at the head must have the right request before their turn comes. The joint
allocation (placement/allocate.py) computes it for all of them together, and requests that differ are updated. A job
whose raised request does not fit, although it could start with its share, falls back in time (placement/graded.py).

Safeguards: only jobs that gsub submitted with tuning on and that their user has not changed since; only requests that
differ, and only if it matters; never outside the bounds of placement/tuning_bounds.py; a refusal is undone
(pending_job_updates.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import islice
from math import ceil, inf

from slurmwrap.config.load_config import Tuning
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Partition, Snapshot
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server, limit_to_request, make_job_demand
from slurmwrap.placement.relaxation import BLOCKED
from slurmwrap.placement.retune import (
    count_fixed_tasks,
    is_proven_shape,
    is_worth_an_update,
    limit_to_share_of_servers,
    list_hurried_jobs,
)
from slurmwrap.placement.tuning_bounds import make_least_node
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.profiling.merge_profiles import adapt_profile
from slurmwrap.reconcile.pending_job_updates import (
    PendingGsubJob,
    list_pending_gsub_jobs,
    list_queue_head,
    make_changes,
)
from slurmwrap.reconcile.reconcile_context import ReconcilePass, run_for_each_job
from slurmwrap.reconcile.run_time_lookup import find_run_time
from slurmwrap.sbatch.job_request import MemUnit, ResourceShape


# Demands of the pending jobs for the joint allocation: JobDemand per job, Server per node. Only jobs whose CPUs and
# memory may be changed while they wait have speeds: gsub's own with tuning on, requested with -c, --mem and GPUs per
# node (updates in other units kill every later srun: placement/retune.py). All other jobs, also those of users without
# gsub, demand what they request now, so that nothing is given away that they are about to take.
def list_servers(snapshot: Snapshot) -> tuple[Server, ...]:
    """Return the nodes with GPUs on which Slurm would start a job, without those that a reservation holds now.

    Few jobs may use reserved nodes, so what is free there must not count as capacity for the others.
    """
    return tuple(
        Server(
            name=node.name,
            gpus=node.gpus,
            cpus=node.cpus,
            mem_mib=node.mem_mib,
            gpus_free=node.gpus_free,
            cpus_free=node.cpus_free,
            mem_free_mib=node.mem_free_mib,
        )
        for node in snapshot.nodes
        if node.usable and node.gpus and "RESERVED" not in node.flags
    )


def count_tasks_per_node(shape: ResourceShape) -> int | None:
    """Return the tasks on each node if the CPUs and memory of a pending job may be updated; None if they may not."""
    plain = is_proven_shape(shape) and shape.mem_unit is MemUnit.PER_NODE
    complete = shape.gpus_per_node and shape.mem_mib and shape.cpus
    tasks = count_fixed_tasks(shape) if plain and complete else None
    # The shape is its user's claim, so the number may be anything.
    return tasks if tasks and tasks > 0 else None


def make_fixed_demand(record: JobRecord, snapshot: Snapshot) -> JobDemand | None:
    """Return a pending job's demand as it requests it; None without GPUs or if its numbers are unknown."""
    nodes = max(1, record.num_nodes)
    gpus = record.gpus // nodes
    if not gpus:
        return None
    memory = record.mem_mib_per_node or (record.mem_mib_per_cpu or 0) * record.cpus // nodes
    return JobDemand(
        job=record.waiting_address,
        gpus_per_node=gpus,
        nodes=nodes,
        cpus=record.cpus / nodes / gpus,
        mem_mib=memory // gpus,
        servers=find_allowed_nodes(record, snapshot),
    )


def make_tuned_demand(
    record: JobRecord,
    shape: ResourceShape,
    profile: ResourceProfile,
    snapshot: Snapshot,
    tuning: Tuning,
) -> JobDemand | None:
    """Return the demand of a job whose CPUs and memory may be changed.

    None if its shape forbids that or its speed is unknown. The demand is never below the bounds of
    placement/tuning_bounds.py. A raise is limited by the smallest node that may run the job. If Slurm preempts, there
    is no raise at all, so that no job is preempted for one.
    """
    tasks, gpus = count_tasks_per_node(shape), shape.gpus_per_node
    if (shape.gpus_per_node or 0) * max(1, record.num_nodes) != record.gpus or (shape.nodes or 1) != record.num_nodes:
        # Its user changed it since, or the submission is of another job.
        return None
    names = find_allowed_nodes(record, snapshot, shape.gpu_type or "")
    nodes = [node for node in snapshot.nodes if node.name in names and node.gpus]
    if (
        not tasks
        or not nodes
        or not gpus
        or not shape.cpus
        or not shape.mem_mib
        or not _is_plain_feature(record.features)
    ):
        return None
    claim = make_job_demand(
        shape,
        profile,
        make_least_node(nodes, _list_partitions(record, snapshot)),
        tuning,
        job=record.waiting_address,
        nodes=shape.nodes or 1,
        servers=names,
    )
    return limit_to_request(claim) if claim is not None and snapshot.preempts else claim


def find_allowed_nodes(record: JobRecord, snapshot: Snapshot, gpu_type: str = "") -> frozenset[str]:
    """Return the nodes that may run the job.

    They are in its partitions and its node list, not excluded, and have its GPU type and feature. An expression of
    several features is not evaluated: then all nodes are taken to have it.
    """
    wanted, feature = set(record.partition.split(",")), record.features if _is_plain_feature(record.features) else ""
    names = {
        node.name
        for node in snapshot.nodes
        if not wanted.isdisjoint(node.partitions)
        and (not feature or feature in node.features)
        and (not gpu_type or gpu_type in node.gpu_type.split(","))
    }
    listed = frozenset(names_in(record.req_nodes))
    return frozenset((names & listed if listed else names) - frozenset(names_in(record.exc_nodes)))


def count_waiting_tasks(record: JobRecord) -> int:
    """Return how many jobs a pending record stands for: "2-5,9" of an array are five."""
    count = 0
    for part in record.array_tasks.split(","):
        ends, _, step = part.partition(":")
        low, _, high = ends.partition("-")
        if low.isdecimal() and (high or low).isdecimal():
            count += (int(high or low) - int(low)) // max(1, int(step) if step.isdecimal() else 1) + 1
    return max(1, count)


def _is_plain_feature(feature: str) -> bool:
    return not feature or feature.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _list_partitions(record: JobRecord, snapshot: Snapshot) -> list[Partition]:
    wanted = set(record.partition.split(","))
    return [partition for partition in snapshot.partitions if partition.name in wanted]


_ROUNDING = 1e-6
# Minimum patience before a job counts as hopeless. Slurm looks at the head of its queue far more often.
_MIN_PATIENCE_S = 600.0
_BACK = "Slurm would not run it with what it was given: back to what was asked"
_SCARCE = "a limit of its account or QOS keeps others waiting: back to what was asked"
_NEEDED = "what was asked, or its peak with a margin where that is more"
_OFF = "tuning is off: back to what was asked"
_LIMIT_REASON = re.compile(r"(QOS|Assoc)Grp(?:Cpu|CPU|Mem|Billing)")
# Reasons of squeue(1), "JOB REASON CODES", with which a job waits only for its turn or its partition.
_READY_REASONS = frozenset({"Resources", "Priority", "None", "", "PartitionDown", "PartitionInactive"})


def tune_waiting(this_pass: ReconcilePass) -> None:
    """Allocate CPUs and memory to the pending jobs for the present state; no effect in user mode (empty queue head)."""
    config = this_pass.services.config.tuning
    off = not config.enabled or config.policy == "proportional"
    scarce = _find_exhausted_limits(this_pass.words.first.values())
    tuned = [w for w in list_queue_head(this_pass) if w.submission.tune and w.submission.shape is not None]
    unchanged = [w for w in tuned if _is_unchanged_by_user(w)]
    for waiting in tuned:
        if _is_blocked_by_size(waiting) or ((off or waiting not in unchanged) and _was_tuned(waiting)):
            _restore_submitted_size(waiting, this_pass, _OFF if off else _BACK)
        elif _is_under_limit(waiting.record, scarce) and _was_tuned(waiting):
            _restore_submitted_size(waiting, this_pass, _SCARCE)
    unchanged = [w for w in unchanged if not _is_under_limit(w.record, scarce)]
    tunable = {w.record.waiting_address: w for w in unchanged if not any(action.reason == _BACK for action in w.known)}
    if not tunable or off:
        this_pass.book.startable = {}
        return
    servers = list_servers(this_pass.snapshot())
    claims = _make_demands(tunable, servers, this_pass)
    grants = allocate(claims, servers, config.policy, GradedSettings(assumed_run_s=config.assumed_run_s))
    given = {grant.job: (claim, grant) for claim, grant in zip(claims, grants, strict=True) if claim.speeds}
    # Jobs that could start come first.
    for claim, grant in sorted(given.values(), key=lambda one: not one[1].servers):
        waiting = tunable[claim.job]
        if grant.servers and _is_hopeless(waiting, claim, this_pass):
            _restore_submitted_size(waiting, this_pass, _BACK)
            continue
        shape = waiting.submission.shape
        actions = list_size_updates(waiting.record, shape, claim, grant) if shape is not None else ()
        if actions and not make_changes(this_pass, waiting, "tune", actions, list_present_values(waiting.record)):
            # The rate limit is reached; the next pass comes soon.
            return


def _is_hopeless(waiting: PendingGsubJob, demand: JobDemand, this_pass: ReconcilePass) -> bool:
    """Return True if Slurm has not started a job for too long although it should fit, as it is and with its share.

    Then Slurm knows of something that slurmwrap does not: cores that are spared or bound to GPUs, part of a
    reservation.
    """
    longest = _MIN_PATIENCE_S if demand.startable_s == inf else max(_MIN_PATIENCE_S, demand.run_s or 0.0)
    waited = this_pass.now - this_pass.book.startable.get(demand.job, this_pass.now)
    return waited > longest and waiting.record.reason == "Resources" and _was_tuned(waiting)


def list_size_updates(
    record: JobRecord, shape: ResourceShape, demand: JobDemand, grant: Allocation
) -> tuple[SlurmAction, ...]:
    """Return the updates after which `record` requests `grant`.

    () if it does already, or if the difference is too small. CPUsPerTask comes before MinCPUsNode: placement/retune.py
    found that this order works.
    """
    tasks = count_tasks_per_node(shape)
    if not tasks or not _is_worth_update(record, demand, grant):
        return ()
    cpus, memory = ceil(grant.cpus * demand.gpus_per_node / tasks - _ROUNDING), grant.mem_mib * demand.gpus_per_node
    values: dict[str, tuple[int, str]] = {}
    if cpus * tasks * demand.nodes != record.cpus:
        values |= {"CPUsPerTask": (cpus, grant.cpu_reason), "MinCPUsNode": (cpus * tasks, grant.cpu_reason)}
    if memory != record.mem_mib_per_node:
        raised = memory > (record.mem_mib_per_node or 0)
        values["MinMemoryNode"] = (memory, grant.mem_reason or (_NEEDED if raised else ""))
    return tuple(
        SlurmAction(
            verb=Verb.UPDATE_JOB,
            target=record.waiting_address,
            key=key,
            value=str(value),
            reason=reason or "back to its share, so that it can start",
        )
        for key, (value, reason) in values.items()
    )


def list_present_values(record: JobRecord) -> Mapping[str, str]:
    """Return the present values of the keys that list_size_updates() sets."""
    return {
        "CPUsPerTask": str(record.cpus_per_task or 1),
        "MinCPUsNode": str(record.min_cpus or 1),
        "MinMemoryNode": str(record.mem_mib_per_node or 0),
    }


def _is_blocked_by_size(waiting: PendingGsubJob) -> bool:
    """Return True if tuning changed the size and Slurm now names a limit or the size as the reason.

    It may be a limit on another account, which slurmwrap does not see.
    """
    return bool(BLOCKED.search(waiting.record.reason)) and any(a.rule == "tune" and a.done_at for a in waiting.known)


def _find_exhausted_limits(jobs: Iterable[JobRecord]) -> Set[tuple[str, str]]:
    """Return the accounts and QOS whose CPUs or memory are exhausted, by Slurm's reasons for any pending job."""
    found = ((match[1], job) for job in jobs if job.pending and (match := _LIMIT_REASON.match(job.reason)))
    return {(kind, job.qos if kind == "QOS" else job.account) for kind, job in found}


def _is_under_limit(record: JobRecord, scarce: Set[tuple[str, str]]) -> bool:
    return not scarce.isdisjoint({("QOS", record.qos), ("Assoc", record.account)})


def _restore_submitted_size(waiting: PendingGsubJob, this_pass: ReconcilePass, reason: str) -> None:
    """Restore the submitted values, for the keys that have what slurmwrap set. What the user changed since stays."""
    record, shape = waiting.record, waiting.submission.shape
    tasks = count_tasks_per_node(shape) if shape is not None else None
    if shape is None or not tasks or not shape.cpus or not shape.mem_mib:
        return
    asked = {"CPUsPerTask": shape.cpus, "MinCPUsNode": shape.cpus * tasks, "MinMemoryNode": shape.mem_mib}
    now, left_unchanged = list_present_values(record), _find_keys_left_unchanged(waiting)
    actions = [
        SlurmAction(verb=Verb.UPDATE_JOB, target=record.waiting_address, key=key, value=str(value), reason=reason)
        for key, value in asked.items()
        if now[key] != str(value) and left_unchanged[key]
    ]
    make_changes(this_pass, waiting, "tune", actions, now)


def _is_unchanged_by_user(waiting: PendingGsubJob) -> bool:
    """Return True if CPUs and memory are as submitted or as slurmwrap set them last; False if the user changed them."""
    return all(_find_keys_left_unchanged(waiting).values())


def _was_tuned(waiting: PendingGsubJob) -> bool:
    """Return True if tuning changed the request, in this run or an earlier one."""
    return any(a.rule == "tune" and a.done_at and not a.error for a in waiting.known)


def _find_keys_left_unchanged(waiting: PendingGsubJob) -> Mapping[str, bool]:
    """Return, for each key, whether the value is as submitted, as planned, or as slurmwrap once set it."""
    record, shape = waiting.record, waiting.submission.shape
    planned = {line.option: line.value for line in waiting.plan.lines}
    # Any value that was set, not only the last one: an intention that is repeated keeps its first row.
    values_set = {(action.key, action.value) for action in waiting.known if action.done_at is not None}
    memory = {str(shape.mem_mib) if shape else "", (planned.get("mem") or "").removesuffix("M")}
    cpus = {str(shape.cpus) if shape else "", planned.get("cpus-per-task")}
    now = list_present_values(record)
    cpus_left = str(record.cpus_per_task) in cpus or ("CPUsPerTask", now["CPUsPerTask"]) in values_set
    memory_left = str(record.mem_mib_per_node) in memory or ("MinMemoryNode", now["MinMemoryNode"]) in values_set
    return {"CPUsPerTask": cpus_left, "MinCPUsNode": cpus_left, "MinMemoryNode": memory_left}


def _is_worth_update(record: JobRecord, demand: JobDemand, grant: Allocation) -> bool:
    gpus = demand.gpus_per_node
    return is_worth_an_update(demand, grant, record.cpus / demand.nodes / gpus, (record.mem_mib_per_node or 0) / gpus)


def _make_demands(
    tunable: Mapping[str, PendingGsubJob], servers: Sequence[Server], this_pass: ReconcilePass
) -> tuple[JobDemand, ...]:
    """Return the demands of all users' jobs that wait only for their turn, in Slurm's order, up to twice relax_jobs.

    A pending array stands for several jobs with one request, so it has several demands. The last one's grant holds: it
    is what all of them may have side by side. A job that is followed by a job without tuning gets no more than its
    share and does not wait for more: the other job would gain nothing by it, and GPUs without CPUs next to them are
    useless to it (docs/placement.md).
    """
    ready = [
        job for job in this_pass.words.first.values() if job.pending and job.priority and job.reason in _READY_REASONS
    ]
    ready.sort(key=lambda job: (-job.priority, job.job_id))
    most = 2 * this_pass.services.config.placement.relax_jobs
    gpus = max((server.gpus for server in servers), default=0) * len(servers)
    found = (
        claim
        for job in ready[:most]
        for claim in _make_demands_of_job(job, tunable.get(job.waiting_address), this_pass, gpus)
    )
    asked = [*islice(found, most)]
    plain = [replace(claim, speeds=()) for claim in asked]
    could = {grant.job for grant in allocate(plain, servers, "proportional") if grant.servers}
    # A job is startable if it fits with its share. Remember since when, to limit how long it waits for more.
    this_pass.book.startable = {
        job: min(this_pass.book.startable.get(job, this_pass.now), this_pass.now) for job in could
    }
    soon = _find_hurried_jobs(ready[:most], asked, tunable, {server.name for server in servers}, this_pass)
    asked = [limit_to_share_of_servers(claim, servers) if claim.job in soon else claim for claim in asked]
    for_s = {job: this_pass.now - since for job, since in this_pass.book.startable.items()} | dict.fromkeys(soon, inf)
    return tuple(replace(claim, startable_s=for_s.get(claim.job, 0.0)) for claim in asked)


def _find_hurried_jobs(
    ready: Sequence[JobRecord],
    claims: Sequence[JobDemand],
    tunable: Collection[str],
    servers: Set[str],
    this_pass: ReconcilePass,
) -> Set[str]:
    """Return the gsub jobs with a job after them that wants the same servers and is not tuned.

    The other job belongs to a user without gsub, has no GPUs, or its speed is not known yet.
    """
    tuned = {
        job.waiting_address
        for job in list_pending_gsub_jobs(this_pass)
        if this_pass.book.submitted[run_key_from_job(job, this_pass.book.cluster)].tune
    }
    tuned -= {claim.job for claim in claims if claim.job in tunable and not claim.speeds}
    may_run = {claim.job: claim.servers for claim in claims}

    def names_of(job: JobRecord) -> frozenset[str]:
        names = may_run.get(job.waiting_address)
        return (find_allowed_nodes(job, this_pass.snapshot()) if names is None else names) & servers

    return list_hurried_jobs(
        (job.waiting_address, names_of(job), job.waiting_address in tuned) for job in reversed(ready)
    )


def _make_demands_of_job(
    job: JobRecord, waiting: PendingGsubJob | None, this_pass: ReconcilePass, gpus: int
) -> Sequence[JobDemand]:
    """Return as many demands as the record stands for, but no more than `gpus` could hold."""
    claim = run_for_each_job(job, this_pass, lambda: _make_demand(job, waiting, this_pass), None)
    if claim is None:
        return ()
    return [claim] * max(1, min(count_waiting_tasks(job), gpus // claim.gpus))


def _make_demand(job: JobRecord, waiting: PendingGsubJob | None, this_pass: ReconcilePass) -> JobDemand | None:
    snapshot = this_pass.snapshot()
    if waiting is not None and waiting.submission.shape is not None and (profile := _find_profile(waiting, this_pass)):
        claim = make_tuned_demand(job, waiting.submission.shape, profile, snapshot, this_pass.services.config.tuning)
        if claim is not None:
            return replace(claim, run_s=_estimate_run_s(job, this_pass))
    return make_fixed_demand(job, snapshot)


def _estimate_run_s(job: JobRecord, this_pass: ReconcilePass) -> float:
    """Return the median of the expected run time in seconds, at most the time limit; the assumed one if unknown.

    It limits what can be saved, and so how long the job waits for more. If the assumed one is 0, no job waits.
    """
    assumed = this_pass.services.config.tuning.assumed_run_s
    known = find_run_time(job, this_pass) if assumed else None
    expected = known.p50_s if known is not None else assumed
    return expected if job.time_limit_s is None else min(expected, float(job.time_limit_s))


def _find_profile(waiting: PendingGsubJob, this_pass: ReconcilePass) -> ResourceProfile | None:
    """Return the site's profile for this job's key, with the weight that it has today; None if there is none."""
    submission = waiting.submission
    found = this_pass.services.store.profile(derive_site_key(submission.uid, submission.profile_key))
    return adapt_profile(found, this_pass.now, variant=submission.profile_variant) if found is not None else None
