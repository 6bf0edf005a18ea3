"""Apply production's retry decision to a simulated run that failed. Pure.

Nothing is decided here. A run becomes a JobRun, a JobRecord and a Diagnosis as the reconciler would have them;
policy.retry_budget.make_ledger counts, policy.retry_decision.decide decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurmwrap.config.load_config import RULES, Config
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.decision import RetryDecision, Verb
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.decision_context import DecisionContext
from slurmwrap.policy.retry_budget import make_ledger
from slurmwrap.policy.retry_decision import decide
from slurmwrap.policy.strikes import Fleet
from slurmwrap.sim.sim_job import SimJob

# Offset of the trace's clock, because Slurm's times are Unix seconds; nothing depends on its value.
EPOCH_S = 1_600_000_000
AGAIN = ("retry", "retry_elsewhere", "resize")
_STATES = {"cpu_oom": "OUT_OF_MEMORY", "node_failure": "NODE_FAIL", "time_limit": "TIMEOUT"}
# JobRequeue=1, and preemption by requeue.
_REQUEUED_BY_SLURM = ("node_failure", "job_preempted")
_VOUCHED = {"node_failure": "slurm", "gpu_hardware": "kernel", "gpu_ecc_error": "kernel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """One run that failed, as it happened. Seconds on the trace's clock."""

    job: SimJob
    uid: int
    run: int  # from 0
    began_s: float
    ended_s: float
    nodes: tuple[str, ...]
    # The category that slurmwrap diagnoses; the classifier may be wrong.
    told: str
    # The node that the kernel log or Slurm blames.
    node: str = ""
    conclusive: bool = False
    input_path: str = ""
    digest: str = ""
    fault: str = ""  # what slurmwrap's own read of the input found
    mem_mib: int = 0  # memory that it had on each node
    resumed: bool = False  # whether it resumed from a checkpoint
    progress_s: float = 0.0  # seconds of its work that it had reached
    kept_s: float = 0.0  # seconds of its work in its newest checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFate:
    """What happens to the job next."""

    decision: RetryDecision
    again: bool
    delay_s: float = 0.0
    mem_mib: int | None = None
    avoid: tuple[str, ...] = ()


def switch_rules_on(config: Config) -> Config:
    """Return `config` with every rule in mode `act`, because the study asks what acting would save."""
    return replace(config, rules=dict.fromkeys(RULES, "act"))


def diagnosis_of(failed: FailedRun) -> Diagnosis:
    """Return the diagnosis as the classifier would give it."""
    category = CATEGORIES[failed.told]
    source = _VOUCHED.get(failed.told, "stdout") if failed.node else "stdout"
    return Diagnosis(
        category=category.id,
        domain=category.domain,
        decision=category.decision,
        confidence=1.0,
        signature="",
        evidence=(Citation(source=source, line=0, text=category.meaning),),
        advice=category.advice,
        node=failed.node,
        conclusive=failed.conclusive,
        input_path=failed.input_path,
        step=int(failed.progress_s) if failed.kept_s else None,
        resumed=failed.resumed,
        checkpoint_step=int(failed.kept_s) if failed.kept_s else None,
    )


def record_of(failed: FailedRun, diagnosis: Diagnosis) -> JobRun:
    """Return the run as the reconciler would store it."""
    job = failed.job
    return JobRun(
        attempt=RunKey(cluster="sim", job_id=job.number + 1, submit_time=_get_submit_time(failed)),
        address=str(job.number + 1),
        restarts=failed.run,
        uid=failed.uid,
        state=_STATES.get(failed.told, "FAILED"),
        exit_code=1,
        nodes=failed.nodes,
        gpus=job.gpus,
        cpus=job.cpus or job.gpus,
        start_time=EPOCH_S + int(failed.began_s),
        end_time=EPOCH_S + int(failed.ended_s),
        time_limit_s=int(job.limit_s) if job.limit_s else None,
        mem_mib_per_node=failed.mem_mib or None,
        diagnosis=diagnosis,
    )


def judge_failed_run(failed: FailedRun, before: Sequence[JobRun], fleet: Fleet, config: Config) -> JobFate:
    """Return production's decision about the job after this run. `before`: its earlier runs, with their decisions."""
    context = make_retry_context(failed, before, fleet)
    found = decide(context, config)
    actions = [ruled.action for ruled in found.actions]
    requeued = context.job is not None and context.job.submit_time > context.record.attempt.submit_time
    again = found.decision in AGAIN and (requeued or any(a.verb is Verb.REQUEUEHOLD for a in actions))
    delay = found.start_at - context.now if found.start_at is not None else 0.0
    memory = next((int(a.value) for a in actions if a.key == "MinMemoryNode"), None)
    excluded = next((a.value for a in actions if a.key == "ExcNodeList"), "")
    return JobFate(
        decision=found, again=again, delay_s=delay, mem_mib=memory, avoid=expand(excluded) if excluded else ()
    )


def make_retry_context(failed: FailedRun, before: Sequence[JobRun], fleet: Fleet) -> DecisionContext:
    """Return all that the decision may know: the user agreed to retries, and one output file serves all runs."""
    record = record_of(failed, diagnosis_of(failed))
    assert record.diagnosis is not None
    return DecisionContext(
        diagnosis=record.diagnosis,
        record=record,
        job=_make_job_record(record, requeued=failed.told in _REQUEUED_BY_SLURM),
        submission=_make_consent(record),
        ledger=make_ledger(before, record),
        fleet=fleet,
        digest=failed.digest,
        fault=failed.fault,
        now=EPOCH_S + failed.ended_s,
    )


def _get_submit_time(failed: FailedRun) -> int:
    """Return a time that is strictly later with each run, as Slurm's SubmitTime is."""
    return EPOCH_S + int(failed.began_s) + failed.run


def _make_job_record(run: JobRun, *, requeued: bool) -> JobRecord:
    return JobRecord(
        job_id=run.attempt.job_id,
        uid=run.uid,
        state="PENDING" if requeued else run.state,
        requeue=True,
        restarts=run.restarts + requeued,
        exit_code=1,
        submit_time=run.attempt.submit_time + requeued,
        end_time=run.end_time,
        nodes=run.nodes,
        cpus=run.cpus,
        gpus=run.gpus,
        mem_mib_per_node=run.mem_mib_per_node,
    )


def _make_consent(run: JobRun) -> Submission:
    return Submission(
        cluster=run.attempt.cluster,
        job_id=run.attempt.job_id,
        uid=run.uid,
        user="",
        at=float(run.attempt.submit_time),
        gpus=run.gpus,
        retry=True,
        output_appends=True,
    )
