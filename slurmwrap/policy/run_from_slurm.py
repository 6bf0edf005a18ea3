"""Convert between Slurm's record of a job (JobRecord) and the stored run (JobRun). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission

if TYPE_CHECKING:
    from slurmwrap.model.resource_profile import Measurement

REQUEUED = "REQUEUED"  # sacct's state for a run that ended by a requeue; scontrol shows the next run instead.
# Largest difference between clocks. MUNGE refuses more, because its credentials live that long.
CLOCKS_S = 300.0
# For the clocks of the submit host and the controller, and the time that sbatch may wait.
_SUBMISSION_SLACK_S = 3600


def run_key_from_job(job: JobRecord, cluster: str) -> RunKey:
    """Return the key of the run that `job` shows."""
    return RunKey(cluster=cluster, job_id=job.job_id, submit_time=job.submit_time)


def record_of(job: JobRecord, cluster: str, before: JobRun | None = None) -> JobRun:
    """Return the run that `job` shows. From `before`, keep the judgement and what Slurm no longer shows.

    While a requeued run is COMPLETING, its start is not shown and its restarts are one less (JobRecord.requeueing).
    """
    fresh = JobRun(
        attempt=run_key_from_job(job, cluster),
        address=job.address,
        restarts=job.restarts - job.requeueing,
        name=job.name,
        user=job.user,
        uid=job.uid,
        account=job.account,
        partition=job.partition,
        state=job.state if job.ended else "",
        reason=job.reason,
        exit_code=job.exit_code if job.ended else None,
        signal=job.signal if job.ended else None,
        derived_exit_code=job.derived_exit_code if job.ended else None,
        nodes=job.nodes,
        gpus=job.gpus,
        cpus=job.cpus,
        eligible_time=job.eligible_time,
        start_time=None if job.requeueing else job.start_time,
        end_time=job.end_time if job.ended else None,
        time_limit_s=job.time_limit_s,
        mem_mib_per_node=job.mem_mib_per_node,
        mem_mib_per_cpu=job.mem_mib_per_cpu,
        std_out=job.std_out,
        std_err=job.std_err,
    )
    if before is None:
        return fresh
    return replace(
        fresh,
        # A user without a name any more (an LDAP entry that vanished) keeps the one that the run had before.
        user=before.user if job.user == str(job.uid) and before.user else job.user,
        restarts=before.restarts,
        nodes=job.nodes if len(job.nodes) > len(before.nodes) else before.nodes,  # with --no-kill NodeList shrinks
        start_time=before.start_time if _keeps_seen_start(before, job) else fresh.start_time,
        measurement=before.measurement,
        diagnosis=before.diagnosis,
        decision=before.decision,
        decision_reason=before.decision_reason,
        planned=before.planned,
        retry_at=before.retry_at,
        incident=before.incident,
        passed=before.passed,
        saved_after_s=before.saved_after_s,
        reconciled=before.reconciled,
    )


def _keeps_seen_start(before: JobRun, job: JobRecord) -> bool:
    return job.state == "COMPLETING" and before.start_time is not None


def is_next_run(job: JobRecord, before: JobRun) -> bool:
    """Return True if `job` shows the run after `before`, with the same SubmitTime.

    A requeued run that loses its node before it has ended starts again so (kill_running_job_by_node_name in slurmctld's
    job_mgr.c, 22.05).
    """
    if before.start_time is None or job.start_time is None or job.requeueing:
        return False
    return job.restarts > before.restarts and job.start_time > before.start_time and before.diagnosis is None


def set_earlier_key(run: JobRun, known: Iterable[JobRun]) -> JobRun:
    """Return `run` with the newest key before its own that no known run of the job has."""
    taken = {one.attempt.submit_time for one in known}
    key = run.attempt.submit_time - 1
    while key in taken:
        key -= 1
    return replace(run, attempt=replace(run.attempt, submit_time=key))


def make_previous_run(job: JobRecord, cluster: str) -> JobRun:
    """Return the run before the one that `job` shows, if nothing reported it because its launch failed.

    Its SubmitTime is lost with Slurm's record of it. The second before the present SubmitTime keeps the keys in order
    of time.
    """
    key = RunKey(cluster=cluster, job_id=job.job_id, submit_time=job.submit_time - 1)
    shown = record_of(job, cluster)
    return replace(shown, attempt=key, restarts=max(0, job.restarts - 1), nodes=(), start_time=None)


def remembered(run: JobRun, now: JobRecord | None = None) -> JobRecord:
    """Return a run as a JobRecord, as it was last seen, if Slurm has forgotten or overwritten its record.

    `now`: the record of the same job's present run, which has the same request (memory, command).
    """
    base = now if now is not None else JobRecord(job_id=run.attempt.job_id)
    return replace(
        base,
        name=run.name,
        user=run.user,
        uid=run.uid,
        account=run.account,
        partition=run.partition,
        state=run.state,
        reason=run.reason,
        restarts=run.restarts,
        exit_code=run.exit_code or 0,
        signal=run.signal or 0,
        derived_exit_code=run.derived_exit_code or 0,
        derived_signal=0,
        submit_time=run.attempt.submit_time,
        eligible_time=run.eligible_time,
        start_time=run.start_time,
        end_time=run.end_time,
        time_limit_s=run.time_limit_s,
        nodes=run.nodes,
        cpus=run.cpus,
        gpus=run.gpus,
        std_out=run.std_out,
        std_err=run.std_err,
    )


def ended(run: JobRun, job: JobRecord, measurement: Measurement | None) -> JobRun:
    """Return `run` with Slurm's final record of it."""
    return replace(
        run,
        state=job.state or run.state,
        reason=job.reason,
        exit_code=job.exit_code,
        signal=job.signal,
        derived_exit_code=job.derived_exit_code,
        end_time=job.end_time,
        measurement=measurement if measurement is not None else run.measurement,
    )


def run_from_hooks(cluster: str, job_id: int, seen: Sequence[Observation], *, before: int | None = None) -> JobRun:
    """Return a run that Slurm never showed, from its hooks' observations alone; its key is its first sign of life.

    The true SubmitTime is lost with Slurm's record. The first sign is after it and before the next run's SubmitTime, so
    the keys of one job still rise with time. `before` is the next run's SubmitTime; a failed launch may fall into the
    same second. `seen`: at least one observation of a hook.
    """
    facts: dict[str, object] = {}
    for observation in sorted(seen, key=lambda o: o.context is Context.EPILOG_SLURMCTLD):
        facts.update(observation.facts)
    start = int(min(_get_start(o) for o in seen))
    return JobRun(
        attempt=RunKey(cluster=cluster, job_id=job_id, submit_time=min(start, before - 1) if before else start),
        address=_format_address(job_id, facts),
        restarts=min(_parse_int(o.facts.get("restarts"), 0) for o in seen),
        name=str(facts.get("name", "")),
        user=str(facts.get("user", "")),
        uid=_parse_int(facts.get("uid"), -1),
        account=str(facts.get("account", "")),
        partition=str(facts.get("partition", "")),
        nodes=tuple(dict.fromkeys(o.node for o in seen if o.node)),
        gpus=sum(_count_gpus(str(o.facts["gpus"])) for o in _select_one_per_node(seen)),
        start_time=start,
    )


def complete_run_from_hooks(run: JobRun, seen: Sequence[Observation]) -> JobRun:
    """Return `run` with the fields that are still unknown, taken from its hooks."""
    if run.user or not seen:
        return run
    from_hooks = run_from_hooks(run.attempt.cluster, run.attempt.job_id, seen)
    return replace(
        run,
        address=from_hooks.address,
        name=from_hooks.name,
        user=from_hooks.user,
        uid=from_hooks.uid if run.uid < 0 else run.uid,
        account=from_hooks.account,
        partition=from_hooks.partition,
        nodes=run.nodes if len(run.nodes) > len(from_hooks.nodes) else from_hooks.nodes,
        gpus=max(run.gpus, from_hooks.gpus),
    )


def submitted_id(run: JobRun) -> int:
    """Return the job id that sbatch printed.

    Array tasks have raw ids of their own, and the array's id in their address.
    """
    head = run.address.split("_")[0]
    return int(head) if head.isdecimal() else run.attempt.job_id


def is_submission_of_run(submission: Submission, run: JobRun) -> bool:
    """Return True if `submission` is of this very job.

    The owner must be the same, the run must not be before the submission, and a first run not long after it either,
    because job ids are reused.
    """
    if submission.cluster != run.attempt.cluster or submission.uid != run.uid:
        return False
    later = run.attempt.submit_time - submission.at
    return later >= -CLOCKS_S and (run.restarts > 0 or later <= _SUBMISSION_SLACK_S)


def _get_start(observation: Observation) -> float:
    started = observation.facts.get("started_at")
    return float(started) if isinstance(started, int | float) and started else observation.at


def _select_one_per_node(observations: Sequence[Observation]) -> Sequence[Observation]:
    return tuple({o.node: o for o in observations if o.node and o.facts.get("gpus")}.values())


def _count_gpus(indices: str) -> int:
    """Return the number of GPUs in SLURM_JOB_GPUS: "0,2" and "0-3,6" both occur."""
    ranges = [part.partition("-") for part in indices.split(",")]
    pairs = [(first, last or first) for first, _, last in ranges]
    return sum(int(last) - int(first) + 1 for first, last in pairs if first.isdecimal() and last.isdecimal())


def _format_address(job_id: int, facts: dict[str, object]) -> str:
    array, task = _parse_int(facts.get("array_job_id"), -1), _parse_int(facts.get("array_task_id"), -1)
    return f"{array}_{task}" if array > 0 and task >= 0 else str(job_id)


def _parse_int(value: object, default: int) -> int:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else default
