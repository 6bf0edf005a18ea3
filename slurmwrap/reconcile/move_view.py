"""The cluster as policy/move_choice.py takes it: free nodes, waiting jobs in Slurm's order, and what preempts whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Partition, Preemption, Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.placement.expected_start import find_expected_starts
from slurmwrap.placement.fragmentation import make_node_filter
from slurmwrap.placement.relaxation import is_waiting
from slurmwrap.policy.move_choice import MoveCandidate, MoveNode, MoveView, PendingRequest
from slurmwrap.policy.queue_order import OrderSettings, classify_job
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.reconcile.order_pending import find_order_settings, make_pending_order
from slurmwrap.reconcile.pending_job_updates import list_pending_gsub_jobs
from slurmwrap.reconcile.reconcile_context import ReconcilePass, run_for_each_job
from slurmwrap.reconcile.run_time_lookup import find_run_time
from slurmwrap.sbatch.job_request import GpuUnit

# Waiting jobs that are considered, the first ones in Slurm's order.
_WAITING = 50
# Reasons of squeue(1) with which a job waits only for resources or for its turn.
_READY = frozenset({"Resources", "Priority", "None", ""})


def make_move_view(candidates: Sequence[MoveCandidate], moving_gpus: int, this_pass: ReconcilePass) -> MoveView:
    """Return the view with these candidates. Expected starts are added by add_expected_starts()."""
    snapshot = this_pass.snapshot()
    return MoveView(
        nodes=list_move_nodes(snapshot),
        candidates=tuple(candidates),
        waiting=list_waiting_jobs(this_pass.words.first.values(), this_pass),
        total_gpus=sum(node.gpus for node in snapshot.nodes),
        moving_gpus=moving_gpus,
    )


def list_move_nodes(snapshot: Snapshot) -> tuple[MoveNode, ...]:
    """Return the usable nodes with GPUs."""
    switches = {name: domain.name for domain in snapshot.topology.domains if domain.level == 0 for name in domain.nodes}
    return tuple(
        MoveNode(
            node=node.name,
            free=node.gpus_free,
            partitions=node.partitions,
            switch=switches.get(node.name, ""),
            cpus_free=node.cpus_free,
            mem_free_mib=node.mem_free_mib,
        )
        for node in snapshot.nodes
        if node.gpus and node.usable
    )


def list_waiting_jobs(jobs: Iterable[JobRecord], this_pass: ReconcilePass) -> tuple[PendingRequest, ...]:
    """Return the jobs that wait only for GPUs, in Slurm's order. Jobs of others than gsub are in the last class."""

    ready = [one for one in jobs if one.gpus and _is_ready(one) and is_waiting(one, this_pass.now)]
    ready.sort(key=lambda one: (-one.priority, one.job_id))
    ours = {one.job_id for one in list_pending_gsub_jobs(this_pass)}
    settings = find_order_settings(this_pass)
    found = (
        run_for_each_job(one, this_pass, partial(_make_waiting_job, one, one.job_id in ours, settings, this_pass), None)
        for one in ready[:_WAITING]
    )
    return tuple(one for one in found if one is not None)


def _is_ready(job: JobRecord) -> bool:
    """Return whether the job waits only for GPUs. Slurm calls nodes that are merely busy not available, too (22.05)."""
    busy = job.reason.startswith("ReqNodeNotAvail") and "eserved" not in job.reason
    return job.reason in _READY or busy


def _make_waiting_job(job: JobRecord, ours: bool, settings: OrderSettings, this_pass: ReconcilePass) -> PendingRequest:
    key = run_key_from_job(job, this_pass.book.cluster)
    submission = this_pass.book.submitted.get(key) if ours else None
    whole = submission is not None and submission.shape is not None and submission.shape.gpu_unit is GpuUnit.GPUS
    nodes = max(1, job.num_nodes)
    cpus = -(-job.cpus // nodes)
    estimate = find_run_time(job, this_pass)
    limit_s = float(job.time_limit_s or 86400)
    last = settings.classes - 1
    return PendingRequest(
        job=job.waiting_address or job.address,
        gpus=job.gpus,
        nodes=None if whole and nodes == 1 else nodes,
        run_s=min(limit_s, estimate.p80_s) if estimate is not None else limit_s,
        order_class=_find_class(job, settings, this_pass) if ours else last,
        partitions=tuple(job.partition.split(",")),
        cpus=cpus,
        mem_mib=job.mem_mib_per_node or (job.mem_mib_per_cpu or 0) * cpus,
        allowed=_list_allowed(job, this_pass),
    )


def _find_class(job: JobRecord, settings: OrderSettings, this_pass: ReconcilePass) -> int:
    known = this_pass.book.order.classes.get(run_key_from_job(job, this_pass.book.cluster))
    return classify_job(make_pending_order(job, this_pass), settings) if known is None else known


def _list_allowed(job: JobRecord, this_pass: ReconcilePass) -> frozenset[str]:
    if not (job.req_nodes or job.exc_nodes or job.features):
        return frozenset()
    may_use = make_node_filter(job)
    return frozenset(node.name for node in this_pass.snapshot().nodes if may_use(node))


def add_expected_starts(view: MoveView, this_pass: ReconcilePass) -> MoveView:
    """Return the view with the expected start of each waiting job. A job without a forecast keeps `inf`."""
    starts = find_expected_starts(
        dict.fromkeys((one.job for one in view.waiting), None),
        this_pass.snapshot().nodes,
        this_pass.words.first.values(),
        lambda one: find_run_time(one, this_pass),
        this_pass.now,
    )
    waiting = (
        replace(one, starts_s=max(0.0, starts[one.job].at - this_pass.now) if one.job in starts else inf)
        for one in view.waiting
    )
    return replace(view, waiting=tuple(waiting))


def is_preempted_by_site(job: JobRecord, partitions: Sequence[Partition], preemption: Preemption) -> bool:
    """Return whether Slurm itself may preempt this running job, so that the site has decided who gives way to whom."""
    if not preemption.by:
        return False
    if preemption.by == "partition_prio":
        mine = [one for one in partitions if one.name == job.partition]
        tiers = [one.priority_tier for one in partitions]
        return not mine or any(one.preempt_mode != "OFF" and one.priority_tier < max(tiers) for one in mine)
    return preemption.preempted_qos is None or job.qos in preemption.preempted_qos
