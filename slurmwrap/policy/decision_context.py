"""Case: all that one decision may know. Record only."""

from __future__ import annotations

from slurmwrap.config.load_config import Config
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.cluster import Partition
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.incident import Incident
from slurmwrap.policy.retry_budget import Ledger
from slurmwrap.policy.strikes import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFailure:
    """A job of someone that failed of the same content: who, and on which nodes."""

    uid: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """One run that ended, and what surrounds it."""

    diagnosis: Diagnosis
    record: JobRun
    # Slurm's record now; None: forgotten.
    job: JobRecord | None
    # Of this very job (record.speaks_for).
    submission: Submission | None
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    limits: tuple[Partition, ...] = ()  # of the job's partitions; () when unknown
    digest: str = ""  # of diagnosis.input_path, read as the user; "" when it could not be read
    fault: str = ""  # what our own read of the input said; "" when only the log names it
    theirs: bool = False  # the file that we read is not the job's user's own (decision.InputRead)
    also_failed: tuple[InputFailure, ...] = ()  # of the same digest, before
    incident: Incident | None = None  # that this failure belongs to
    starts: tuple[float, ...] = ()  # of all our retries of the last hour and to come, Unix seconds
    gate: str = ""  # the cause for which our own Prolog gate refused a node, so that the launch failed; "" for none
    gate_nodes: tuple[str, ...] = ()  # the nodes that it refused
    site: bool = True  # the site's reconciler; a user's own binds no one else
    now: float = 0.0


# Whether a job may be run again at all, and why not, in words for its user.
def is_requeued(context: DecisionContext) -> bool:
    """Slurm shows a later run already: it, or someone else, requeued the job."""
    return context.job is not None and context.job.submit_time > context.record.attempt.submit_time


def find_owner_refusal(context: DecisionContext) -> str:
    """Why its user did not agree; "" when they did."""
    if context.submission is None:
        return "it was not submitted by gsub"
    return "" if context.submission.retry else "it was submitted without --retry"


def find_refusal(context: DecisionContext) -> str:
    """Why the job may not be run again by us, by its user's and Slurm's record; "" when it may."""
    if unwilling := find_owner_refusal(context):
        return unwilling
    if context.job is None:
        return "Slurm has forgotten it"
    if context.job.uid != context.record.uid:
        return "the job id belongs to another user's job now"
    if not context.job.requeue:
        return "it is not requeueable (Requeue=0)"
    if "CANCELLED" in (context.record.state, context.job.state):
        # scontrol would requeue it without complaint (facts/slurm.md 3)
        return "it was cancelled"
    if _is_bare_array(context):
        return f"Slurm gives no task of array {context.job.array_job_id}, and its bare id would mean every task"
    if context.record.state == "COMPLETED":
        return "Slurm counts it as COMPLETED, and jobs that depend on it may have started"
    if context.record.state == "PREEMPTED":
        return "Slurm preempted it for good (PreemptMode), which is respected"
    if not context.job.ended:
        return f"Slurm says it is {context.job.state}"
    return ""


def find_exhausted_budget(context: DecisionContext, spent: int, limit: int, config: Config) -> str:
    """Which budget is used up; "" when none is. An incident's failures cost their root cause nothing."""
    settings, ledger = config.retry, context.ledger
    if context.incident is None and spent >= limit:
        return f"failed {spent + 1} times of {context.diagnosis.category}; the limit is {limit} retries"
    if 0 < settings.max_restarts <= ledger.failures:
        times = ledger.failures + 1
        return f"failed {times} times in all; after {settings.max_restarts} a person decides (retry.max_restarts)"
    if 0 < settings.max_lost_gpu_hours <= ledger.lost_gpu_hours:
        lost = f"its failed runs lost {ledger.lost_gpu_hours:,.0f} GPU-hours"
        return f"{lost}; from {settings.max_lost_gpu_hours:,.0f} on a person decides (retry.max_lost_gpu_hours)"
    return ""


def _is_bare_array(context: DecisionContext) -> bool:
    job = context.job
    return job is not None and job.array_job_id is not None and job.array_task_id is None
