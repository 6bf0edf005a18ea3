"""DecisionContext: all facts on which one decision may be based, and the checks whether the job may run again. Pure."""

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
from slurmwrap.sbatch import retry_on


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFailure:
    """A failure of another user's job because of the same content: the user, and the nodes."""

    uid: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """One run that ended, with the facts that the decision about it needs."""

    diagnosis: Diagnosis
    record: JobRun
    # Slurm's present record; None: Slurm has forgotten the job
    job: JobRecord | None
    submission: Submission | None  # the submission of this job (run_from_slurm.py checks that)
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    limits: tuple[Partition, ...] = ()  # limits of the job's partitions; () if unknown
    digest: str = ""  # digest of diagnosis.input_path, read as the user; "" if it could not be read
    fault: str = ""  # fault that slurmwrap found in the input; "" if only the log names it
    theirs: bool = False  # another user owns the file (model.decision.InputRead)
    also_failed: tuple[InputFailure, ...] = ()  # earlier failures because of the same digest
    incident: Incident | None = None  # the incident that this failure belongs to
    starts: tuple[float, ...] = ()  # starts of slurmwrap's retries, of the last hour and planned; Unix seconds
    # The cause for which the Prolog gate refused a node, so that the launch failed; "" if it did not.
    gate: str = ""
    gate_nodes: tuple[str, ...] = ()  # the nodes that the gate refused
    stopped: str = ""  # why slurmwrap stopped the run at its user's --stop-at or --stop-when; "" if it did not
    site: bool = True  # False in user mode: then a block applies to that user only
    now: float = 0.0


# Checks whether a job may be run again, each with the reason in words for its user.
def is_requeued(context: DecisionContext) -> bool:
    """Return True if Slurm shows a later run already, because Slurm, the user or an administrator requeued the job."""
    return context.job is not None and context.job.submit_time > context.record.attempt.submit_time


def find_owner_refusal(context: DecisionContext) -> str:
    """Return why the user has not agreed to a retry; "" if they have."""
    if context.submission is None:
        return "it was not submitted by gsub"
    agreed = context.submission.retry or find_agreed_ending(context)
    return "" if agreed else "it was submitted without --retry"


def find_agreed_ending(context: DecisionContext) -> str:
    """Return the ending of this run that its user named with --retry-on, e.g. "exit code 93"; "" if there is none.

    Only a run that Slurm calls FAILED has an ending of its own: in any other state Slurm or a person ended it.
    """
    submission, run = context.submission, context.record
    if submission is None or not submission.retry_on or run.state != "FAILED":
        return ""
    return retry_on.find_named_ending(submission.retry_on, run.exit_code or 0, run.signal or 0)


def find_refusal(context: DecisionContext) -> str:
    """Return why slurmwrap may not run the job again, by the user's consent and Slurm's record; "" if it may."""
    if refusal := find_owner_refusal(context):
        return refusal
    if context.job is None:
        return "Slurm has forgotten it"
    if context.job.uid != context.record.uid:
        return "the job id belongs to another user's job now"
    if not context.job.requeue:
        return "it is not requeueable (Requeue=0)"
    if "CANCELLED" in (context.record.state, context.job.state):
        # scontrol would requeue it without an error (facts/slurm.md 3).
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


def find_exhausted_budget(context: DecisionContext, spent: int, limit: int, config: Config, cause: str = "") -> str:
    """Return which retry budget is used up; "" if none is. An incident's failures do not count for their root cause.

    `cause`: what is counted, if it is not the category of the diagnosis.
    """
    settings, ledger = config.retry, context.ledger
    if context.incident is None and spent >= limit:
        ended = f"ended {spent + 1} times with {cause}" if cause else ""
        return f"{ended or f'failed {spent + 1} times of {context.diagnosis.category}'}; the limit is {limit} retries"
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
