"""CPUs and memory of the jobs that wait, divided anew in each pass of the site's reconciler (rule `tune`).

Slurm starts the head of the queue within a tenth of a second of a job's end, with what it asks for at that moment, and
takes nothing back later. So the jobs at the head must ask for the right thing before their turn comes: the joint
allocation (placement/allocate.py) says for all of them together what that is, and what differs is updated. A job whose
raised request does not fit, although it could start at its share, falls back in time (placement/graded.py).

What keeps it from doing harm: only jobs that gsub submitted with tuning on and that their user has not changed since;
only what differs, and only where it matters; never outside the bounds of tune_pending.py; a refusal is undone
(pending_jobs.py).
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
from slurmwrap.policy.run_from_slurm import key_of
from slurmwrap.profiling.job_key import profile_key_of
from slurmwrap.profiling.merge_profiles import adapt_profile
from slurmwrap.reconcile.pending_jobs import PendingGsubJob, list_pending_gsub_jobs, list_queue_head, make_changes
from slurmwrap.reconcile.reconcile_context import ReconcilePass, run_for_each_job
from slurmwrap.sbatch.job_request import MemUnit, ResourceShape


# What waiting jobs claim of the nodes, for the joint allocation: Claim per job, Server per node.
#
# Only jobs whose CPUs and memory may be changed while they wait get speeds: gsub's own with tuning on, asked for with
# -c and --mem and GPUs per node (the updates of other units kill every later srun: placement/retune.py). All others,
# other people's too, claim what they ask for as it is, so that nothing is given away that they are about to take.
def list_servers(snapshot: Snapshot) -> tuple[Server, ...]:
    """Nodes with GPUs that Slurm would start a job on; none that a reservation holds now: few jobs may go there, and
    what is free there must not look like a place that the others would have."""
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
    """Tasks on each node where the CPUs and memory of a waiting job may be updated; None where they may not."""
    plain = is_proven_shape(shape) and shape.mem_unit is MemUnit.PER_NODE
    told = shape.gpus_per_node and shape.mem_mib and shape.cpus
    tasks = count_fixed_tasks(shape) if plain and told else None
    # The shape is its user's claim.
    return tasks if tasks and tasks > 0 else None


def make_fixed_demand(record: JobRecord, snapshot: Snapshot) -> JobDemand | None:
    """A waiting job as it asks; None for one without GPUs or with numbers that are not known."""
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
    """A job whose CPUs and memory may be divided anew; None where its shape forbids that or its speed is unknown.

    Never below what tuning_bounds.py says. Raising ends where every node that may run it ends, and is none where Slurm
    preempts: no one's job shall be ended for a raise.
    """
    tasks, gpus = count_tasks_per_node(shape), shape.gpus_per_node
    if (shape.gpus_per_node or 0) * max(1, record.num_nodes) != record.gpus or (shape.nodes or 1) != record.num_nodes:
        # Its user changed it since, or named another one.
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
    """Nodes that may run it: of its partitions, of its list where it has one, not excluded, with GPU type and feature.

    An expression of several features is not understood: then all of them are taken to have it.
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
    """How many jobs a pending record stands for: "2-5,9" of an array are five."""
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
# Slurm looks at the head of its queue far more often.
_PASSES_S = 600.0
_BACK = "Slurm would not run it with what it was given: back to what was asked"
_SCARCE = "a limit of its account or QOS keeps others waiting: back to what was asked"
_NEEDED = "what was asked, or its peak with a margin where that is more"
_OFF = "tuning is off: back to what was asked"
_AT_LIMIT = re.compile(r"(QOS|Assoc)Grp(?:Cpu|CPU|Mem|Billing)")
# squeue(1), "JOB REASON CODES": it waits for its turn or its partition, for nothing else
_READY = frozenset({"Resources", "Priority", "None", "", "PartitionDown", "PartitionInactive"})


def tune_waiting(this_pass: ReconcilePass) -> None:
    """Divides CPUs and memory among the waiting jobs as things are now. Nothing in user mode: head() is empty there."""
    config = this_pass.edges.config.tuning
    off = not config.enabled or config.policy == "proportional"
    scarce = _scarce(this_pass.words.first.values())
    tuned = [w for w in list_queue_head(this_pass) if w.submission.tune and w.submission.shape is not None]
    ours = [w for w in tuned if _untouched(w)]
    for waiting in tuned:
        if _blocked(waiting) or ((off or waiting not in ours) and _by_us(waiting)):
            _give_back(waiting, this_pass, _OFF if off else _BACK)
        elif _limited(waiting.record, scarce) and _by_us(waiting):
            _give_back(waiting, this_pass, _SCARCE)
    ours = [w for w in ours if not _limited(w.record, scarce)]
    tunable = {w.record.waiting_address: w for w in ours if not any(action.reason == _BACK for action in w.known)}
    if not tunable or off:
        this_pass.book.startable = {}
        return
    servers = list_servers(this_pass.snapshot())
    claims = _claims(tunable, servers, this_pass)
    grants = allocate(claims, servers, config.policy, GradedSettings(assumed_run_s=config.assumed_run_s))
    given = {grant.job: (claim, grant) for claim, grant in zip(claims, grants, strict=True) if claim.speeds}
    # First those that could start.
    for claim, grant in sorted(given.values(), key=lambda one: not one[1].servers):
        waiting = tunable[claim.job]
        if grant.servers and _hopeless(waiting, claim, this_pass):
            _give_back(waiting, this_pass, _BACK)
            continue
        shape = waiting.submission.shape
        actions = updates(waiting.record, shape, claim, grant) if shape is not None else ()
        if actions and not make_changes(this_pass, waiting, "tune", actions, back(waiting.record)):
            # The next pass comes soon.
            return


def _hopeless(waiting: PendingGsubJob, demand: JobDemand, this_pass: ReconcilePass) -> bool:
    """Slurm does not start it where we see room for it and for its share, for longer than all patience: then it knows
    of something that we do not (cores that are spared or bound to GPUs, part of a reservation)."""
    longest = _PASSES_S if demand.startable_s == inf else max(_PASSES_S, demand.run_s or 0.0)
    waited = this_pass.now - this_pass.book.startable.get(demand.job, this_pass.now)
    return waited > longest and waiting.record.reason == "Resources" and _by_us(waiting)


def updates(record: JobRecord, shape: ResourceShape, demand: JobDemand, grant: Allocation) -> tuple[SlurmAction, ...]:
    """What to ask of Slurm so that `record` asks for `grant`; () where it does already, or where that matters too
    little.

    In the order in which placement/retune.py found them to work: CPUsPerTask before MinCPUsNode.
    """
    tasks = count_tasks_per_node(shape)
    if not tasks or not _matters(record, demand, grant):
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


def back(record: JobRecord) -> Mapping[str, str]:
    """What the keys of `updates` had before."""
    return {
        "CPUsPerTask": str(record.cpus_per_task or 1),
        "MinCPUsNode": str(record.min_cpus or 1),
        "MinMemoryNode": str(record.mem_mib_per_node or 0),
    }


def _blocked(waiting: PendingGsubJob) -> bool:
    """Whether Slurm names a limit or a size where we changed the size: limits of others' accounts we do not see."""
    return bool(BLOCKED.search(waiting.record.reason)) and any(a.rule == "tune" and a.done_at for a in waiting.known)


def _scarce(jobs: Iterable[JobRecord]) -> Set[tuple[str, str]]:
    """Accounts and QOS whose CPUs or memory are all given away, as Slurm says of someone's job."""
    found = ((match[1], job) for job in jobs if job.pending and (match := _AT_LIMIT.match(job.reason)))
    return {(kind, job.qos if kind == "QOS" else job.account) for kind, job in found}


def _limited(record: JobRecord, scarce: Set[tuple[str, str]]) -> bool:
    return not scarce.isdisjoint({("QOS", record.qos), ("Assoc", record.account)})


def _give_back(waiting: PendingGsubJob, this_pass: ReconcilePass, reason: str) -> None:
    """What is as we left it; what its user changed since is theirs."""
    record, shape = waiting.record, waiting.submission.shape
    tasks = count_tasks_per_node(shape) if shape is not None else None
    if shape is None or not tasks or not shape.cpus or not shape.mem_mib:
        return
    asked = {"CPUsPerTask": shape.cpus, "MinCPUsNode": shape.cpus * tasks, "MinMemoryNode": shape.mem_mib}
    now, left = back(record), _as_we_left_it(waiting)
    actions = [
        SlurmAction(verb=Verb.UPDATE_JOB, target=record.waiting_address, key=key, value=str(value), reason=reason)
        for key, value in asked.items()
        if now[key] != str(value) and left[key]
    ]
    make_changes(this_pass, waiting, "tune", actions, now)


def _untouched(waiting: PendingGsubJob) -> bool:
    """Whether CPUs and memory are what was submitted or what we made of them last; else its user changed them."""
    return all(_as_we_left_it(waiting).values())


def _by_us(waiting: PendingGsubJob) -> bool:
    """Whether tuning changed any of it, in this run or an earlier one."""
    return any(a.rule == "tune" and a.done_at and not a.error for a in waiting.known)


def _as_we_left_it(waiting: PendingGsubJob) -> Mapping[str, bool]:
    record, shape = waiting.record, waiting.submission.shape
    wishes = {wish.option: wish.value for wish in waiting.plan.lines}
    # any of them, not only the last: a value that comes again keeps its first row
    said = {(action.key, action.value) for action in waiting.known if action.done_at is not None}
    memory = {str(shape.mem_mib) if shape else "", (wishes.get("mem") or "").removesuffix("M")}
    cpus = {str(shape.cpus) if shape else "", wishes.get("cpus-per-task")}
    now = back(record)
    cpus_left = str(record.cpus_per_task) in cpus or ("CPUsPerTask", now["CPUsPerTask"]) in said
    memory_left = str(record.mem_mib_per_node) in memory or ("MinMemoryNode", now["MinMemoryNode"]) in said
    return {"CPUsPerTask": cpus_left, "MinCPUsNode": cpus_left, "MinMemoryNode": memory_left}


def _matters(record: JobRecord, demand: JobDemand, grant: Allocation) -> bool:
    gpus = demand.gpus_per_node
    return is_worth_an_update(demand, grant, record.cpus / demand.nodes / gpus, (record.mem_mib_per_node or 0) / gpus)


def _claims(
    tunable: Mapping[str, PendingGsubJob], servers: Sequence[Server], this_pass: ReconcilePass
) -> tuple[JobDemand, ...]:
    """Of everybody's jobs that only wait for their turn, in Slurm's order; far behind the head no one counts.

    A pending array stands for several jobs with one request, so it has several claims, and the last one's grant holds:
    what all of them may have side by side. No job gets more than its share, nor waits for it, in front of a job that is
    not tuned: that job gains nothing by it, but GPUs without CPUs next to them are none to it (docs/placement.md).
    """
    ready = [job for job in this_pass.words.first.values() if job.pending and job.priority and job.reason in _READY]
    ready.sort(key=lambda job: (-job.priority, job.job_id))
    most = 2 * this_pass.edges.config.placement.relax_jobs
    gpus = max((server.gpus for server in servers), default=0) * len(servers)
    found = (claim for job in ready[:most] for claim in _of(job, tunable.get(job.waiting_address), this_pass, gpus))
    asked = [*islice(found, most)]
    plain = [replace(claim, speeds=()) for claim in asked]
    could = {grant.job for grant in allocate(plain, servers, "proportional") if grant.servers}
    this_pass.book.startable = {
        job: min(this_pass.book.startable.get(job, this_pass.now), this_pass.now) for job in could
    }
    soon = _hurried(ready[:most], asked, tunable, {server.name for server in servers}, this_pass)
    asked = [limit_to_share_of_servers(claim, servers) if claim.job in soon else claim for claim in asked]
    for_s = {job: this_pass.now - since for job, since in this_pass.book.startable.items()} | dict.fromkeys(soon, inf)
    return tuple(replace(claim, startable_s=for_s.get(claim.job, 0.0)) for claim in asked)


def _hurried(
    ready: Sequence[JobRecord],
    claims: Sequence[JobDemand],
    tunable: Collection[str],
    servers: Set[str],
    this_pass: ReconcilePass,
) -> Set[str]:
    """Jobs of gsub's with a job behind them that wants the same servers and is not tuned: of someone who does not use
    gsub, without GPUs, or so far unknown."""
    ours = {
        job.waiting_address
        for job in list_pending_gsub_jobs(this_pass)
        if this_pass.book.submitted[key_of(job, this_pass.book.cluster)].tune
    }
    ours -= {claim.job for claim in claims if claim.job in tunable and not claim.speeds}
    may_run = {claim.job: claim.servers for claim in claims}

    def names_of(job: JobRecord) -> frozenset[str]:
        names = may_run.get(job.waiting_address)
        return (find_allowed_nodes(job, this_pass.snapshot()) if names is None else names) & servers

    return list_hurried_jobs(
        (job.waiting_address, names_of(job), job.waiting_address in ours) for job in reversed(ready)
    )


def _of(job: JobRecord, waiting: PendingGsubJob | None, this_pass: ReconcilePass, gpus: int) -> Sequence[JobDemand]:
    """As many as it stands for, and as `gpus` could hold."""
    claim = run_for_each_job(job, this_pass, lambda: _claim(job, waiting, this_pass), None)
    if claim is None:
        return ()
    return [claim] * max(1, min(count_waiting_tasks(job), gpus // claim.gpus))


def _claim(job: JobRecord, waiting: PendingGsubJob | None, this_pass: ReconcilePass) -> JobDemand | None:
    snapshot = this_pass.snapshot()
    if waiting is not None and waiting.submission.shape is not None and (profile := _profile(waiting, this_pass)):
        claim = make_tuned_demand(job, waiting.submission.shape, profile, snapshot, this_pass.edges.config.tuning)
        if claim is not None:
            return replace(claim, run_s=_run_s(job, this_pass))
    return make_fixed_demand(job, snapshot)


def _run_s(job: JobRecord, this_pass: ReconcilePass) -> float:
    """No run is longer than its limit: what could be saved, and so the patience for it, is less then."""
    assumed = this_pass.edges.config.tuning.assumed_run_s
    return assumed if job.time_limit_s is None else min(assumed, float(job.time_limit_s))


def _profile(waiting: PendingGsubJob, this_pass: ReconcilePass) -> ResourceProfile | None:
    """What the site knows of its user's job by this key, as it counts today."""
    submission = waiting.submission
    found = this_pass.edges.store.profile(profile_key_of(submission.uid, submission.profile_key))
    return adapt_profile(found, this_pass.now, variant=submission.profile_variant) if found is not None else None
