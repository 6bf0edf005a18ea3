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


def is_gone(run: JobRun, job: JobRecord | None) -> bool:
    """Whether `job`, Slurm's record now, says nothing of this run."""
    return job is None or job.submit_time != run.attempt.submit_time


def past_of(run: JobRun, this_pass: ReconcilePass) -> JobRecord | None:
    """How it ended; None where no one remembers. SlurmError where slurmdbd does not answer."""
    if this_pass.past is None:
        gone = [
            one.attempt.job_id
            for one in this_pass.to_do
            if one.diagnosis is None and is_gone(one, _shown(one, this_pass))
        ]
        this_pass.past = this_pass.edges.accounting.runs(sorted({*gone, run.attempt.job_id}))
    return matching(this_pass.past, run)


def _shown(run: JobRun, this_pass: ReconcilePass) -> JobRecord | None:
    return this_pass.words.first.get(run.attempt.job_id)


def matching(runs: Iterable[JobRecord], run: JobRun) -> JobRecord | None:
    """The run of `runs` that `run` is about, if it ended. Pure.

    Ids come back, so uid and time must fit: SubmitTime, or for a run that Slurm never showed us its start.
    """
    key = run.attempt
    mine = [one for one in runs if one.job_id == key.job_id and one.ended and run.uid in (-1, one.uid)]
    exact = next((one for one in mine if one.submit_time == key.submit_time), None)
    return exact or next((one for one in mine if _same_start(one, run)), None)


def _same_start(one: JobRecord, run: JobRun) -> bool:
    if one.start_time is None or run.start_time is None:
        return False
    return abs(one.start_time - run.start_time) <= _SLACK_S


def completed(run: JobRun, past: JobRecord) -> JobRun:
    """`run` with what only slurmdbd knows: where and when it ran, if we never saw it run."""
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


def recall(this_pass: ReconcilePass) -> None:
    """Opens attempts for submissions of slurmwrap's that ran, ended and were forgotten by Slurm while no one looked.

    Looked for by a process's first pass and every hour: what happens in between is seen as it happens.
    """
    if 0 <= this_pass.now - this_pass.book.recalled_at < _EVERY_S:
        return
    this_pass.book.recalled_at = this_pass.now
    store, cluster = this_pass.edges.store, this_pass.book.cluster
    unseen = [job for job in store.unseen(cluster, this_pass.now - _LOOK_BACK_S) if this_pass.words.owner(job) is None]
    if not unseen:
        return
    try:
        past = [
            one for one in this_pass.edges.accounting.runs(unseen[-_MOST:]) if one.ended and one.start_time is not None
        ]
    except SlurmError as error:
        this_pass.summary.errors.append(f"runs that ended unseen are looked for later: {error}")
        return
    for one in past:
        if store.attempt(key_of(one, cluster)) is None and _is_ours(one, this_pass):
            store.save_attempt(record_of(one, cluster))


def _is_ours(one: JobRecord, this_pass: ReconcilePass) -> bool:
    """Ids come back: the run is of the submission, or of a task of its array."""
    found = this_pass.edges.store.submission(this_pass.book.cluster, one.array_job_id or one.job_id)
    return found is not None and found.uid == one.uid and one.submit_time > found.at - _CLOCKS_S
