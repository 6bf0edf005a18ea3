"""Relax the jobs at the head of the queue, in each pass of the site's reconciler (rule `relax`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import ceil

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Node
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import WAITING_RULES
from slurmwrap.placement.expected_start import find_closeness
from slurmwrap.placement.locality_wait import keeps_waiting
from slurmwrap.placement.relaxation import (
    Group,
    Urgent,
    find_blocking_reason,
    is_same_value,
    list_submitted_values,
    list_values_in_force,
    relax,
)
from slurmwrap.policy import requeue
from slurmwrap.reconcile.pending_job_updates import PendingGsubJob, list_queue_head, make_changes
from slurmwrap.reconcile.reconcile_context import ReconcilePass, run_for_each_job
from slurmwrap.reconcile.run_time_lookup import find_run_time

# Pending reasons that name a limit of QOS or association on something that a retry raises (squeue(1), "JOB REASON
# CODES").
_LIMIT_REASON = re.compile(
    r"(QOS|Assoc)(Max|Grp)(Mem|Wall|CpuMin|CPUMin|GRESMin|GRESRunMin|CpuRunMin|CPURunMin|Billing)"
)
_TUNED_KEYS = frozenset(("MinMemoryNode", "CPUsPerTask", "MinCPUsNode"))


def relax_waiting(this_pass: ReconcilePass) -> None:
    """Make the changes that are due at the head of the queue. The next pass continues where the rate limit ends it."""
    nothing: tuple[Group, ...] = ()
    head = list_queue_head(this_pass)
    present, since = {waiting.attempt for waiting in head}, this_pass.book.startable_apart
    for gone in since.keys() - present:
        del since[gone]
    for waiting in head:
        for group in run_for_each_job(
            waiting.record, this_pass, partial(_list_change_groups, waiting, this_pass), nothing
        ):
            if not make_changes(this_pass, waiting, "relax", group, _list_keys_in_force(waiting)):
                return


def _list_change_groups(waiting: PendingGsubJob, this_pass: ReconcilePass) -> tuple[Group, ...]:
    return (*_restore_too_large(waiting, this_pass), *_list_due_groups(waiting, this_pass))


def _restore_too_large(waiting: PendingGsubJob, this_pass: ReconcilePass) -> tuple[Group, ...]:
    """Return the changes that restore the previous run's size, if a limit keeps the job from starting with more.

    Slurm does not refuse an update because of a limit that only holds the job back (22.05.8), so the job would wait
    forever.
    """
    record, store = waiting.record, this_pass.services.store
    if not record.restarts or not _LIMIT_REASON.search(record.reason):
        return ()
    runs = store.attempts(cluster=waiting.attempt.cluster, job_id=record.job_id)
    before = next((one for one in runs if one.uid == record.uid and one.restarts == record.restarts - 1), None)
    if before is None:
        return ()
    asked = {
        a.key: a.value for a in store.actions(before.attempt) if a.key in requeue.SIZES and a.rule not in WAITING_RULES
    }
    back = {
        key: value
        for key in asked
        if (value := requeue.undo(key, before)) and _format_size(key, record) == asked[key] != value
    }
    if back and not before.resize_refused and this_pass.services.config.mode_of("relax") == "act":
        store.save_attempt(replace(before, resize_refused=True))
    reason = f"Slurm says {record.reason[:60]}: back to what it ran with"
    target = record.waiting_address
    return tuple(
        (SlurmAction(verb=Verb.UPDATE_JOB, target=target, key=key, value=value, reason=reason),)
        for key, value in back.items()
    )


def _format_size(key: str, record: JobRecord) -> str:
    """Return the job's value of one of requeue.SIZES, as scontrol update takes it."""
    minutes = (record.time_limit_s or 0) // 60
    values = {"MinMemoryNode": record.mem_mib_per_node, "MinMemoryCPU": record.mem_mib_per_cpu, "TimeLimit": minutes}
    return str(values[key] or "")


def _list_due_groups(waiting: PendingGsubJob, this_pass: ReconcilePass) -> tuple[Group, ...]:
    config, urgent = this_pass.services.config, find_urgency(waiting, this_pass)
    groups = relax(
        waiting.asked,
        waiting.record,
        now=this_pass.now,
        unseen=_list_unseen_keys(waiting),
        urgent=urgent,
        pin_s=config.placement.pin_s,
        keeps=None if urgent is not None else find_whether_to_wait(waiting, this_pass),
    )
    if config.mode_of("tune") != "act" or (urgent is not None and urgent.everything):
        return groups
    # Tuning weighs CPUs and memory of the whole queue in each pass. Two rules that set the same keys would undo each
    # other.
    return tuple(group for group in groups if group[0].key not in _TUNED_KEYS)


def find_whether_to_wait(waiting: PendingGsubJob, this_pass: ReconcilePass) -> bool | None:
    """Return whether the job goes on insisting on few nodes; None if its deadline decides.

    Forecasts decide if the plan knows what the job loses on more nodes, and it insists on few of them now.
    """
    record, lost_s, since = waiting.record, waiting.plan.lost_s, this_pass.book.startable_apart
    submitted = list_submitted_values(waiting.asked, record).get("NumNodes", "")
    in_force = list_values_in_force(record)["NumNodes"]
    insists = bool(submitted) and is_same_value("NumNodes", submitted, in_force)
    if lost_s is None or not insists:
        since.pop(waiting.attempt, None)
        return None
    nodes = this_pass.snapshot().nodes
    if sum(node.gpus_free for node in nodes if node.usable) < record.gpus:
        since.pop(waiting.attempt, None)
        return True
    forecast = find_closeness(
        record,
        record.num_nodes,
        nodes,
        this_pass.words.first.values(),
        lambda job: find_run_time(job, this_pass),
        this_pass.now,
    )
    if forecast is None:
        return None
    if forecast.spread_s > 0:
        since.pop(waiting.attempt, None)
    else:
        since.setdefault(waiting.attempt, this_pass.now)
    return keeps_waiting(forecast, lost_s, this_pass.now - since.get(waiting.attempt, this_pass.now))


def find_urgency(waiting: PendingGsubJob, this_pass: ReconcilePass) -> Urgent | None:
    """Return why the job must be relaxed before its deadline; None if it need not be.

    Slurm names something that slurmwrap requested as the reason, or a node that slurmwrap named is no longer free.
    """
    record = waiting.record
    if reason := find_blocking_reason(waiting.asked, record):
        return Urgent(reason=f"Slurm says {reason[:60]}: back to what was asked for")
    if record.req_nodes and "ReqNodeList" in list_submitted_values(waiting.asked, record):
        nodes = {node.name: node for node in this_pass.snapshot().nodes}
        if taken := [name for name in names_in(record.req_nodes) if not _has_free_share(nodes.get(name), record)]:
            return Urgent(reason=f"{taken[0]} is not free any more", everything=False)
    return None


def _has_free_share(node: Node | None, record: JobRecord) -> bool:
    """Return True if the job's share of a node fits there now."""
    gpus = ceil(record.gpus / max(1, record.max_nodes or record.num_nodes))
    return (
        node is not None
        and node.usable
        and node.gpus_free >= gpus
        and node.cpus_free >= record.min_cpus
        and node.mem_free_mib >= (record.mem_mib_per_node or 0)
    )


def _list_unseen_keys(waiting: PendingGsubJob) -> Mapping[str, str]:
    """Return what slurmwrap set for the keys that squeue does not show."""
    done = [a for a in waiting.known if a.done_at is not None and not a.error and a.key == "Switches"]
    return {action.key: action.value for action in sorted(done, key=lambda action: action.done_at or 0)}


def _list_keys_in_force(waiting: PendingGsubJob) -> Mapping[str, str]:
    return {
        **list_submitted_values(waiting.asked, waiting.record),
        **_list_unseen_keys(waiting),
        **list_values_in_force(waiting.record),
    }
