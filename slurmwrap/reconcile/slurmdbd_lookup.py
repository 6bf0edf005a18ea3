"""slurmdbd's records of runs that slurmctld no longer shows: forgotten (MinJobAge), or replaced by the next run.

slurmdbd is asked once per pass for all of them. Without slurmdbd, the hooks' records and the log decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.run_from_slurm import record_of, run_key_from_job
from slurmwrap.reconcile.reconcile_context import ReconcilePass

_EVERY_S = 3600.0
_LOOK_BACK_S = 30 * 86400.0
_MOST = 1000  # jobs in one query
# Largest difference between the clocks of the submit host and the controller.
_CLOCKS_S = 3600.0
# Largest difference between two start times of one run. A run that only its hooks reported has a start by the node's
# clock, and no SubmitTime of Slurm.
_SLACK_S = 5


def is_gone(run: JobRun, job: JobRecord | None) -> bool:
    """Return True if `job`, Slurm's present record, does not show this run."""
    return job is None or job.submit_time != run.attempt.submit_time


def find_slurmdbd_record(run: JobRun, this_pass: ReconcilePass) -> JobRecord | None:
    """Return slurmdbd's record of the run; None if there is none. Raises SlurmError if slurmdbd does not answer."""
    if this_pass.past is None:
        gone = [
            one.attempt.job_id
            for one in this_pass.to_do
            if one.diagnosis is None and is_gone(one, _find_shown_record(one, this_pass))
        ]
        this_pass.past = this_pass.services.accounting.runs(sorted({*gone, run.attempt.job_id}))
    return matching(this_pass.past, run)


def _find_shown_record(run: JobRun, this_pass: ReconcilePass) -> JobRecord | None:
    return this_pass.words.first.get(run.attempt.job_id)


def matching(runs: Iterable[JobRecord], run: JobRun) -> JobRecord | None:
    """Return the record in `runs` of the run `run`, if it ended; else None. Pure.

    Job ids are reused, so uid and time must match: SubmitTime, or the start for a run that Slurm never showed.
    """
    key = run.attempt
    mine = [one for one in runs if one.job_id == key.job_id and one.ended and run.uid in (-1, one.uid)]
    exact = next((one for one in mine if one.submit_time == key.submit_time), None)
    return exact or next((one for one in mine if _has_same_start(one, run)), None)


def _has_same_start(record: JobRecord, run: JobRun) -> bool:
    if record.start_time is None or run.start_time is None:
        return False
    return abs(record.start_time - run.start_time) <= _SLACK_S


def completed(run: JobRun, past: JobRecord) -> JobRun:
    """Return `run` with what only slurmdbd knows: where and when it ran, if it was never seen running."""
    return replace(
        run,
        address=run.address or past.address,
        user=run.user or past.user,
        uid=run.uid if run.uid >= 0 else past.uid,
        nodes=run.nodes or past.nodes,
        gpus=run.gpus or past.gpus,
        cpus=run.cpus or past.cpus,
        start_time=run.start_time if run.start_time is not None else past.start_time,
        eligible_time=run.eligible_time if run.eligible_time is not None else past.eligible_time,
        time_limit_s=run.time_limit_s if run.time_limit_s is not None else past.time_limit_s,
    )


def add_slurmdbd_record(past: JobRecord, base: JobRecord) -> JobRecord:
    """Return `base`, the run as it was last seen, with slurmdbd's record of its end."""
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


def recall(this_pass: ReconcilePass) -> None:
    """Store runs of gsub jobs that started, ended and were forgotten by Slurm while no reconciler was looking.

    A process searches for them in its first pass and then every hour. Between these, runs are seen while they happen.
    """
    if 0 <= this_pass.now - this_pass.book.recalled_at < _EVERY_S:
        return
    this_pass.book.recalled_at = this_pass.now
    store, cluster = this_pass.services.store, this_pass.book.cluster
    unseen = [job for job in store.unseen(cluster, this_pass.now - _LOOK_BACK_S) if this_pass.words.owner(job) is None]
    if not unseen:
        return
    try:
        past = [
            record
            for record in this_pass.services.accounting.runs(unseen[-_MOST:])
            if record.ended and record.start_time is not None
        ]
    except SlurmError as error:
        this_pass.summary.errors.append(f"runs that ended unseen are looked for later: {error}")
        return
    for record in past:
        if store.attempt(run_key_from_job(record, cluster)) is None and _belongs_to_submission(record, this_pass):
            store.save_attempt(record_of(record, cluster))


def _belongs_to_submission(one: JobRecord, this_pass: ReconcilePass) -> bool:
    """Return True if the record belongs to the submission, or to a task of its array. Job ids are reused."""
    found = this_pass.services.store.submission(this_pass.book.cluster, one.array_job_id or one.job_id)
    return found is not None and found.uid == one.uid and one.submit_time > found.at - _CLOCKS_S
