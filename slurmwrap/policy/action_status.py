"""Whether an intended action is still to be done, looking at what Slurm says now. Pure.

A reconciler can be killed between asking Slurm and ticking off. What was intended is therefore compared with Slurm's
present state before it is done: nothing is done twice, and nothing is done to a job or node that moved on.
"""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.decision import DRAIN_PREFIX, Verb
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.policy.requeue import HELD_LAUNCH
from slurmwrap.policy.strikes import Fleet, drained_by_us

_ROUNDED_S = 2  # Slurm's times are whole seconds
# squeue(1), JOB REASON CODES
HELD = frozenset({"job_requeued_in_held_state", "JobHeldAdmin", "JobHeldUser", HELD_LAUNCH})


class ActionState(Enum):
    """`VOID`: the world moved on and the action is given up."""

    NOW = "now"
    LATER = "later"
    DONE = "done"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStatus:
    """Whether, and for VOID why not."""

    due: ActionState
    why: str = ""


_NOW, _LATER, _DONE = (
    ActionStatus(due=ActionState.NOW),
    ActionStatus(due=ActionState.LATER),
    ActionStatus(due=ActionState.DONE),
)


def get_status_of_job_action(action: ActionRecord, run: JobRun, job: JobRecord | None, now: float) -> ActionStatus:
    """Of an action that runs `run`'s job again; `job` is Slurm's record at this moment."""
    if job is None:
        return _make_void_status("Slurm has forgotten the job")
    if job.uid != run.uid:
        return _make_void_status("the job id belongs to another user's job now")
    if job.state == "CANCELLED":
        return _make_void_status("it was cancelled meanwhile")
    if action.verb == Verb.REQUEUEHOLD.value:
        return _get_status_of_requeuehold(run, job)
    # Not "later than": the controller's clock may have been put back meanwhile.
    if job.submit_time == run.attempt.submit_time or job.restarts != run.restarts + 1:
        return _make_void_status("the job is not in the run that this belongs to")
    if action.verb == Verb.RELEASE.value:
        return _NOW if _is_held(job) else _DONE
    if action.key == "StartTime":
        return _start_time(action, job, now)
    if not job.pending:
        return _make_void_status("the next run has started already")
    return _DONE if _set_already(action, job) else _NOW


def get_status_of_drain(action: ActionRecord, fleet: Fleet, share: float) -> ActionStatus:
    """Of a drain; `fleet` is the job's partition at this moment, `share` the cap on nodes drained by us."""
    node = next((node for node in fleet.nodes if node.name == action.target), None)
    if node is None:
        return _make_void_status(f"Slurm knows no node {action.target}")
    if drained_by_us(node):
        return _DONE
    # It is out already; only the Reason becomes ours.
    if action.rule == "gate":
        return (
            _NOW
            if node.prolog_failed
            else _make_void_status(f"node {node.name} is not drained for a Prolog error any more")
        )
    if "DRAIN" in node.flags or (_is_down(node) and node.reason and not node.reason.startswith(DRAIN_PREFIX)):
        return _make_void_status(f"node {node.name} was taken out by somebody else already")
    ours = sum(drained_by_us(other) for other in fleet.nodes)
    if ours >= fleet.allowance(share):
        return _make_void_status(
            f"{ours} of {len(fleet.nodes)} nodes are drained by us already: placement.exclude_cap is used up"
        )
    return _NOW


def _get_status_of_requeuehold(run: JobRun, job: JobRecord) -> ActionStatus:
    if job.submit_time == run.attempt.submit_time:
        if job.state == "COMPLETING":
            return _LATER
        return _NOW if job.ended else _make_void_status(f"Slurm says it is {job.state}")
    ours = job.pending and job.restarts == run.restarts + 1 and _is_held(job)
    return _DONE if ours else _make_void_status("it was requeued already")


def _start_time(action: ActionRecord, job: JobRecord, now: float) -> ActionStatus:
    """Done as soon as it starts neither later nor sooner than asked for; "now+60" counts from the moment of asking.

    Without it a requeued job starts two minutes after its SubmitTime: sooner than a long delay asks for.
    """
    if not job.pending:
        return _DONE
    delay, eligible = int(action.value.partition("+")[2] or 0), job.eligible_time or 0
    asked = job.submit_time + delay - _ROUNDED_S <= eligible <= now + delay
    return _DONE if asked and not _is_held(job) else _NOW


def _set_already(action: ActionRecord, job: JobRecord) -> bool:
    """A size is asked for again even where Slurm shows it: 22.05 shows what it refused, too (requeue.undo)."""
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
    # squeue prints blanks, scontrol underscores
    return job.pending and job.reason.replace(" ", "_") in HELD


def _is_down(node: Node) -> bool:
    return node.state in {"DOWN", "FAIL", "ERROR"}


def _make_void_status(why: str) -> ActionStatus:
    return ActionStatus(due=ActionState.VOID, why=why)
