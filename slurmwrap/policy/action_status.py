"""Decide whether an intended action is still to be done, by comparing it with Slurm's present state. Pure.

A reconciler can be killed between asking Slurm and marking the action as done. So an intended action is compared with
Slurm's present state before it is done: nothing is done twice, and nothing is done to a job or node whose state has
changed.
"""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.decision import DRAIN_PREFIX, Verb
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import MOVE_RULE, ActionRecord, JobRun
from slurmwrap.policy.moved_run import MOVED
from slurmwrap.policy.requeue import HELD_LAUNCH
from slurmwrap.policy.strikes import Fleet, is_drained_by_slurmwrap

_ROUNDED_S = 2  # tolerance, because Slurm's times are whole seconds
# Reasons of a held job (squeue(1), "JOB REASON CODES").
HELD = frozenset({"job_requeued_in_held_state", "JobHeldAdmin", "JobHeldUser", HELD_LAUNCH})


class ActionState(Enum):
    """What to do with an intended action. VOID: the job or node changed, and the action is given up."""

    NOW = "now"
    LATER = "later"
    DONE = "done"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStatus:
    """The state of an intended action; `why` is the reason for VOID."""

    due: ActionState
    why: str = ""


_NOW, _LATER, _DONE = (
    ActionStatus(due=ActionState.NOW),
    ActionStatus(due=ActionState.LATER),
    ActionStatus(due=ActionState.DONE),
)


def get_status_of_job_action(action: ActionRecord, run: JobRun, job: JobRecord | None, now: float) -> ActionStatus:
    """Return the status of an action that runs `run`'s job again. `job` is Slurm's record at this moment."""
    if job is None:
        return _make_void_status("Slurm has forgotten the job")
    if job.uid != run.uid:
        return _make_void_status("the job id belongs to another user's job now")
    if job.state == "CANCELLED":
        return _make_void_status("it was cancelled meanwhile")
    if action.verb == Verb.REQUEUEHOLD.value:
        return _get_status_of_requeuehold(action.rule, run, job)
    # Compared for equality, not order: the controller's clock may have been set back meanwhile.
    if job.submit_time == run.attempt.submit_time or job.restarts != run.restarts + 1:
        return _make_void_status("the job is not in the run that this belongs to")
    if action.verb == Verb.RELEASE.value:
        return _NOW if _is_held(job) else _DONE
    if action.key == "StartTime":
        return _get_status_of_start_time(action, job, now)
    if not job.pending:
        return _make_void_status("the next run has started already")
    return _DONE if _is_set_already(action, job) else _NOW


def get_status_of_drain(action: ActionRecord, fleet: Fleet, share: float) -> ActionStatus:
    """Return the status of a drain.

    `fleet` is the job's partition at this moment, `share` the largest share of its nodes that slurmwrap may drain.
    """
    node = next((node for node in fleet.nodes if node.name == action.target), None)
    if node is None:
        return _make_void_status(f"Slurm knows no node {action.target}")
    if is_drained_by_slurmwrap(node):
        return _DONE
    # The node is drained already; only the Reason is replaced by slurmwrap's own.
    if action.rule == "gate":
        return (
            _NOW
            if node.prolog_failed
            else _make_void_status(f"node {node.name} is not drained for a Prolog error any more")
        )
    if "DRAIN" in node.flags or (_is_down(node) and node.reason and not node.reason.startswith(DRAIN_PREFIX)):
        return _make_void_status(f"node {node.name} was already taken out of service by someone else")
    own_drains = sum(is_drained_by_slurmwrap(other) for other in fleet.nodes)
    if own_drains >= fleet.allowance(share):
        return _make_void_status(
            f"{own_drains} of {len(fleet.nodes)} nodes are already drained by slurmwrap: "
            "placement.exclude_cap is used up"
        )
    return _NOW


def _get_status_of_requeuehold(rule: str, run: JobRun, job: JobRecord) -> ActionStatus:
    if job.submit_time == run.attempt.submit_time:
        if job.state == "COMPLETING":
            return _LATER
        if rule == "early" or (rule == MOVE_RULE and not run.decision_reason.startswith(MOVED)):
            # These rules requeue running jobs. The decision about the end of the run is that of other rules.
            return _make_void_status("the run ended by itself")
        return _NOW if job.ended else _make_void_status(f"Slurm says it is {job.state}")
    held_requeue = job.pending and job.restarts == run.restarts + 1 and _is_held(job)
    return _DONE if held_requeue else _make_void_status("it was requeued already")


def _get_status_of_start_time(action: ActionRecord, job: JobRecord, now: float) -> ActionStatus:
    """Return DONE as soon as the job starts neither later nor sooner than intended.

    "now+60" counts from the moment of the request. Without this action a requeued job starts two minutes after its
    SubmitTime, which is sooner than a long delay asks for.
    """
    if not job.pending:
        return _DONE
    delay, eligible = int(action.value.partition("+")[2] or 0), job.eligible_time or 0
    asked = job.submit_time + delay - _ROUNDED_S <= eligible <= now + delay
    return _DONE if asked and not _is_held(job) else _NOW


def _is_set_already(action: ActionRecord, job: JobRecord) -> bool:
    """Return True if Slurm shows the intended value.

    False for a size: it is requested again even if Slurm shows it, because 22.05 also shows what it refused
    (requeue.undo).
    """
    shown = {
        "ExcNodeList": lambda: _is_same_hosts(job.exc_nodes, action.value),
        "ReqNodeList": lambda: _is_same_hosts(job.req_nodes, action.value),
        "StdOut": lambda: job.std_out == action.value,
        "Comment": lambda: job.comment == action.value,
    }
    return action.key in shown and shown[action.key]()


def _is_same_hosts(one: str, other: str) -> bool:
    try:
        return set(expand(one)) == set(expand(other))
    except ValueError:
        return one == other


def _is_held(job: JobRecord) -> bool:
    # squeue prints blanks, scontrol underscores.
    return job.pending and job.reason.replace(" ", "_") in HELD


def _is_down(node: Node) -> bool:
    return node.state in {"DOWN", "FAIL", "ERROR"}


def _make_void_status(why: str) -> ActionStatus:
    return ActionStatus(due=ActionState.VOID, why=why)
