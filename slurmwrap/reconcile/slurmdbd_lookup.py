"""slurmdbd's record of runs that slurmctld shows no longer: forgotten (MinJobAge), or replaced by the next run.

Asked once per pass for all of them. Without slurmdbd there is no such word, and the hooks' records and the log decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.run_from_slurm import key_of, record_of
from slurmwrap.reconcile.reconcile_context import ReconcilePass

_EVERY_S = 3600.0
_LOOK_BACK_S = 30 * 86400.0
_MOST = 1000  # jobs that are asked after at once
_CLOCKS_S = 3600.0  # that the clocks of the submit host and the controller may differ
_SLACK_S = 5  # a run that only its hooks reported has a start by the node's clock, and no SubmitTime of Slurm's


def is_gone(record: JobRun, job: JobRecord | None) -> bool:
    """Whether `job`, Slurm's record now, says nothing of this run."""
    return job is None or job.submit_time != record.attempt.submit_time


def past_of(record: JobRun, run: ReconcilePass) -> JobRecord | None:
    """How it ended; None where no one remembers. SlurmError where slurmdbd does not answer."""
    if run.past is None:
        gone = [one.attempt.job_id for one in run.to_do if one.diagnosis is None and is_gone(one, _shown(one, run))]
        run.past = run.edges.accounting.runs(sorted({*gone, record.attempt.job_id}))
    return matching(run.past, record)


def _shown(record: JobRun, run: ReconcilePass) -> JobRecord | None:
    return run.words.first.get(record.attempt.job_id)


def matching(runs: Iterable[JobRecord], record: JobRun) -> JobRecord | None:
    """The run of `runs` that `record` is about, if it ended. Pure.

    Ids come back, so uid and time must fit: SubmitTime, or for a run that Slurm never showed us its start.
    """
    key = record.attempt
    mine = [one for one in runs if one.job_id == key.job_id and one.ended and record.uid in (-1, one.uid)]
    exact = next((one for one in mine if one.submit_time == key.submit_time), None)
    return exact or next((one for one in mine if _same_start(one, record)), None)


def _same_start(one: JobRecord, record: JobRun) -> bool:
    if one.start_time is None or record.start_time is None:
        return False
    return abs(one.start_time - record.start_time) <= _SLACK_S


def completed(record: JobRun, past: JobRecord) -> JobRun:
    """`record` with what only slurmdbd knows: where and when it ran, if we never saw it run."""
    return replace(
        record,
        address=record.address or past.address,
        user=record.user or past.user,
        uid=record.uid if record.uid >= 0 else past.uid,
        nodes=record.nodes or past.nodes,
        gpus=record.gpus or past.gpus,
        cpus=record.cpus or past.cpus,
        start_time=record.start_time if record.start_time is not None else past.start_time,
        eligible_time=record.eligible_time if record.eligible_time is not None else past.eligible_time,
        time_limit_s=record.time_limit_s if record.time_limit_s is not None else past.time_limit_s,
    )


def told_by(past: JobRecord, base: JobRecord) -> JobRecord:
    """`base`, the run as it was last seen, with slurmdbd's record of its end."""
    return replace(
        base,
        state=past.state,
        reason=past.reason,
        exit_code=past.exit_code,
        signal=past.signal,
        derived_exit_code=past.derived_exit_code,
        derived_signal=past.derived_signal,
        end_time=past.end_time,
    )


def recall(run: ReconcilePass) -> None:
    """Opens attempts for submissions of slurmwrap's that ran, ended and were forgotten by Slurm while no one looked.

    Looked for by a process's first pass and every hour: what happens in between is seen as it happens.
    """
    if 0 <= run.now - run.book.recalled_at < _EVERY_S:
        return
    run.book.recalled_at = run.now
    store, cluster = run.edges.store, run.book.cluster
    unseen = [job for job in store.unseen(cluster, run.now - _LOOK_BACK_S) if run.words.owner(job) is None]
    if not unseen:
        return
    try:
        past = [one for one in run.edges.accounting.runs(unseen[-_MOST:]) if one.ended and one.start_time is not None]
    except SlurmError as error:
        run.summary.errors.append(f"runs that ended unseen are looked for later: {error}")
        return
    for one in past:
        if store.attempt(key_of(one, cluster)) is None and _is_ours(one, run):
            store.save_attempt(record_of(one, cluster))


def _is_ours(one: JobRecord, run: ReconcilePass) -> bool:
    """Ids come back: the run is of the submission, or of a task of its array."""
    found = run.edges.store.submission(run.book.cluster, one.array_job_id or one.job_id)
    return found is not None and found.uid == one.uid and one.submit_time > found.at - _CLOCKS_S
