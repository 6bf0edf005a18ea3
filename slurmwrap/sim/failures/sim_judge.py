"""What slurmwrap makes of a simulated run that failed: production's records, and production's decision. Pure.

Nothing is decided here. A run becomes an JobRun, a JobRecord and a Diagnosis as the reconciler would hold them;
retry.ledger.ledger_of counts, retry.policy.decide decides.
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
from slurmwrap.policy.retry_budget import ledger_of
from slurmwrap.policy.retry_decision import decide
from slurmwrap.policy.strikes import Fleet
from slurmwrap.sim.sim_job import SimJob

# Slurm's times are Unix seconds; nothing depends on it.
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
    # The category that slurmwrap finds: the classifier may be wrong.
    told: str
    # That kernel or Slurm blame.
    node: str = ""
    conclusive: bool = False
    input_path: str = ""
    digest: str = ""
    fault: str = ""  # what our own read of the input says
    mem_mib: int = 0  # that it had, on each node
    resumed: bool = False  # it went on from a checkpoint
    progress_s: float = 0.0  # how far it came, of its work
    kept_s: float = 0.0  # up to its newest checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFate:
    """What follows for the job."""

    decision: RetryDecision
    again: bool
    delay_s: float = 0.0
    mem_mib: int | None = None
    avoid: tuple[str, ...] = ()


def switch_rules_on(config: Config) -> Config:
    """`config` with every rule switched on: the study asks what acting would save."""
    return replace(config, rules=dict.fromkeys(RULES, "act"))


def diagnosis_of(failed: FailedRun) -> Diagnosis:
    """As the classifier would give it."""
    told = CATEGORIES[failed.told]
    source = _VOUCHED.get(failed.told, "stdout") if failed.node else "stdout"
    return Diagnosis(
        category=told.id,
        domain=told.domain,
        decision=told.decision,
        confidence=1.0,
        signature="",
        evidence=(Citation(source=source, line=0, text=told.meaning),),
        advice=told.advice,
        node=failed.node,
        conclusive=failed.conclusive,
        input_path=failed.input_path,
        step=int(failed.progress_s) if failed.kept_s else None,
        resumed=failed.resumed,
        checkpoint_step=int(failed.kept_s) if failed.kept_s else None,
    )


def record_of(failed: FailedRun, diagnosis: Diagnosis) -> JobRun:
    """As the reconciler would store it."""
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
    """Production's decision about the job after this run. `before`: its earlier runs, with what was decided."""
    case = case_of(failed, before, fleet)
    found = decide(case, config)
    actions = [ruled.action for ruled in found.actions]
    requeued = case.job is not None and case.job.submit_time > case.record.attempt.submit_time
    again = found.decision in AGAIN and (requeued or any(a.verb is Verb.REQUEUEHOLD for a in actions))
    delay = found.start_at - case.now if found.start_at is not None else 0.0
    memory = next((int(a.value) for a in actions if a.key == "MinMemoryNode"), None)
    excluded = next((a.value for a in actions if a.key == "ExcNodeList"), "")
    return JobFate(
        decision=found, again=again, delay_s=delay, mem_mib=memory, avoid=expand(excluded) if excluded else ()
    )


def case_of(failed: FailedRun, before: Sequence[JobRun], fleet: Fleet) -> DecisionContext:
    """All that the decision may know: its user agreed to retries, and one output file serves all runs."""
    record = record_of(failed, diagnosis_of(failed))
    assert record.diagnosis is not None
    return DecisionContext(
        diagnosis=record.diagnosis,
        record=record,
        job=_make_job_record(record, requeued=failed.told in _REQUEUED_BY_SLURM),
        submission=_make_consent(record),
        ledger=ledger_of(before, record),
        fleet=fleet,
        digest=failed.digest,
        fault=failed.fault,
        now=EPOCH_S + failed.ended_s,
    )


def _get_submit_time(failed: FailedRun) -> int:
    """Strictly later with each run, as Slurm's is."""
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
