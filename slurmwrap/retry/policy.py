"""Turns a Diagnosis into a RetryDecision: what to do about the job, its nodes and its inputs. Pure.

Every job gets a decision; Slurm is asked to change only the jobs of gsub whose user agreed to retries, and only after
the ledger of the job's earlier failures was asked too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slurmwrap.cluster.job import JobRecord
from slurmwrap.config import Config
from slurmwrap.diagnosis.evidence import Diagnosis
from slurmwrap.retry import requeue
from slurmwrap.retry.attempt import AttemptRecord, Submission
from slurmwrap.retry.decision import BlockedInput, RetryDecision
from slurmwrap.retry.ledger import Ledger
from slurmwrap.retry.requeue import Again
from slurmwrap.retry.strikes import Fleet, blamed_node, drains_of, strikes_of

REQUEUED_ALREADY = "Slurm requeued it already, nothing is added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that one decision may know."""

    diagnosis: Diagnosis
    record: AttemptRecord
    job: JobRecord | None  # Slurm's word now; None: forgotten
    submission: Submission | None  # of this very job (record.speaks_for)
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    digest: str = ""  # of diagnosis.input_path, read as the user; "" when it could not be read
    fault: str = ""  # what our own read of the input said; "" when only the log names it
    now: float = 0.0


def decide(case: Case, config: Config) -> RetryDecision:
    """The decision with its reason, the actions it asks for, strikes and blocked inputs."""
    about_job = _ABOUT.get(case.diagnosis.decision, _stop)(case, config)
    strikes = strikes_of(case.diagnosis, case.record)
    drains = drains_of(case.diagnosis, case.record)
    return RetryDecision(
        decision=about_job.decision,
        reason=about_job.reason,
        actions=(*drains, *about_job.actions),
        strikes=strikes,
        blocked=about_job.blocked,
    )


def _none(case: Case, config: Config) -> RetryDecision:
    reason = "it was cancelled" if case.record.state == "CANCELLED" else "nothing failed"
    return RetryDecision(decision="none", reason=reason)


def _stop(case: Case, config: Config) -> RetryDecision:
    return RetryDecision(decision="stop", reason=case.diagnosis.advice or "the same would happen again")


def _retry(case: Case, config: Config) -> RetryDecision:
    category = case.diagnosis.category
    limit = 1 if category == "no_signature" else config.retry.per_root_cause
    spent = case.ledger.spent(category)
    delay = requeue.back_off(config.retry.backoff_s, spent)
    return _again(case, spent, limit, Again(rule="retry", delay_s=delay))


def _retry_elsewhere(case: Case, config: Config) -> RetryDecision:
    blamed = blamed_node(case.diagnosis, case.record)
    # Where only the log speaks of the node, one confirmation tells whether the node or the job is at fault.
    limit = config.retry.per_root_cause if blamed else config.retry.confirmations
    spent = case.ledger.spent(case.diagnosis.category)
    return _again(case, spent, limit, Again(rule="retry_elsewhere", avoid=_avoid(case, config)))


def _resize(case: Case, config: Config) -> RetryDecision:
    if case.diagnosis.category != "cpu_oom":
        # More time would be lost again unless the job resumes, which nothing here shows.
        return _stop(case, config)
    memory = requeue.more_memory(
        case.job or JobRecord(job_id=0),
        case.record.measurement.mem_peak_mib if case.record.measurement else None,
        factor=config.retry.resize_memory_factor,
        cap_mib=case.fleet.largest_mem_mib,
    )
    if memory is None and not _refusal(case):
        return RetryDecision(decision="stop", reason="it ran out of host memory, and no node of its partition has more")
    again = Again(rule="resize", memory=memory)
    return _again(case, case.ledger.spent("cpu_oom"), config.retry.per_root_cause, again)


def _blacklist_input(case: Case, config: Config) -> RetryDecision:
    path = case.diagnosis.input_path
    confirmed = case.ledger.confirmations(case.diagnosis.category, path) >= config.retry.confirmations
    possible = not _refusal(case) and config.mode_of("retry_elsewhere") == "act"
    if path and not case.fault and not confirmed and possible:
        avoid = _avoid(case, config)
        because = f"once more elsewhere, to tell a bad file from a bad mount: {path}"
        return _granted(case, Again(rule="retry_elsewhere", because=because, avoid=avoid))
    return RetryDecision(decision="blacklist_input", reason=_input_reason(case), blocked=_blocked(case, config))


_ABOUT: dict[str, Callable[[Case, Config], RetryDecision]] = {
    "none": _none,
    "stop": _stop,
    "retry": _retry,
    "retry_elsewhere": _retry_elsewhere,
    "resize": _resize,
    "blacklist_input": _blacklist_input,
}


def _again(case: Case, spent: int, limit: int, again: Again) -> RetryDecision:
    """`again` if Slurm, the ledger and the user's consent allow it, else `stop` or `none` with the reason."""
    category = case.diagnosis.category
    if _requeued(case):
        return RetryDecision(decision=again.rule, reason=f"{category}; {REQUEUED_ALREADY}")
    if case.record.state == "CANCELLED":
        return RetryDecision(decision="none", reason="it was cancelled: a cancelled job is never requeued")
    if spent >= limit:
        reason = f"failed {spent + 1} times of {category}; the limit is {limit} retries"
        return RetryDecision(decision="stop", reason=reason)
    if refusal := _refusal(case):
        return RetryDecision(decision="stop", reason=f"{category}; not run again: {refusal}")
    return _granted(case, replace(again, because=f"{category}, retry {spent + 1} of {limit}"))


def _granted(case: Case, again: Again) -> RetryDecision:
    assert case.job is not None and case.submission is not None
    if not case.submission.output_appends:
        again = replace(again, std_out=requeue.retry_output(case.record.std_out, case.record.restarts))
    return RetryDecision(decision=again.rule, reason=_told(again), actions=requeue.actions(again, case.job))


def _told(again: Again) -> str:
    details = [again.because]
    if again.avoid:
        details.append(f"away from {', '.join(again.avoid)}")
    if again.memory:
        details.append(f"with {again.memory[0]}={again.memory[1]}M")
    if again.delay_s:
        details.append(f"after {again.delay_s} s")
    return "; ".join(details)


def _requeued(case: Case) -> bool:
    return case.job is not None and case.job.submit_time > case.record.attempt.submit_time


def _refusal(case: Case) -> str:
    """Why the job may not be run again by us; "" when it may."""
    if case.submission is None:
        return "it was not submitted by gsub"
    if not case.submission.retry:
        return "it was submitted without --retry"
    if case.job is None:
        return "Slurm has forgotten it"
    if not case.job.requeue:
        return "it is not requeueable (Requeue=0)"
    if case.record.state == "CANCELLED":
        return "it was cancelled"
    if case.record.state == "COMPLETED":
        return "Slurm counts it as COMPLETED, and jobs that depend on it may have started"
    if case.record.state == "PREEMPTED":
        return "Slurm preempted it for good (PreemptMode), which is respected"
    if not case.job.ended:
        return f"Slurm says it is {case.job.state}"
    return ""


def _avoid(case: Case, config: Config) -> tuple[str, ...]:
    """Nodes the next run should leave, within the share that may be excluded."""
    blamed = blamed_node(case.diagnosis, case.record)
    nodes = requeue.suspects(case.diagnosis, case.record, blamed)
    if not case.fleet.nodes:
        return nodes
    allowed = case.fleet.allowance(config.placement.exclude_cap)
    return nodes if len(case.ledger.nodes | set(nodes)) <= allowed else ()


def _input_reason(case: Case) -> str:
    path = case.diagnosis.input_path
    if not path:
        return case.diagnosis.advice or "an input is missing or broken"
    return f"{path}: {case.fault}" if case.fault else f"the log blames {path}"


def _blocked(case: Case, config: Config) -> tuple[BlockedInput, ...]:
    """Binds the owner of the job alone: a log, and a pre-run too, is his word."""
    if not case.digest or case.record.uid < 0 or config.mode_of("block_input") != "act":
        return ()
    blocked = BlockedInput(
        digest=case.digest,
        path=case.diagnosis.input_path,
        uid=case.record.uid,
        reason=_input_reason(case),
        at=case.now,
        job_id=case.record.attempt.job_id,
    )
    return (blocked,)
