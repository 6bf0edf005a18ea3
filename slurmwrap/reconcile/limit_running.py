"""Running jobs that resume from checkpoints: end them after their last one, or extend them to the next (rule `limit`).

Only jobs whose user consented to retries (gsub --retry) and whose output shows that they resume: ended at their time
limit, such a job would be requeued as well (policy/retry_decision.py), only later. Of their output, the reconciler
reads the end about once a minute in the second half of their time limit, and until the first checkpoint: how long that
took is what --time-min must allow when the job waits once more (reconcile/limit_pending.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slurmwrap.diagnosis.log_progress import find_last_progress, find_remaining
from slurmwrap.diagnosis.log_rows import LogRows, read_log
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.checkpoint_limit import ENDED, EXTENDED, CheckpointRun, LimitChange, choose_checkpoint_limit
from slurmwrap.policy.resize import get_longest_time_limit_s
from slurmwrap.policy.run_from_slurm import is_submission_of_run, record_of, run_key_from_job
from slurmwrap.policy.time_limit import is_lowered, select_jobs_of
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.reconcile.reconcile_context import CheckpointWatch, ReconcilePass, is_muted, mute_user, run_for_each_job

# Seconds between two looks at the output of a job, and most jobs per pass.
_LOOK_S, _LOOKS = 60.0, 20
# Share of the limit after which its output is read: at the end some intervals between checkpoints must be known.
_FROM = 0.5


def limit_running(this_pass: ReconcilePass) -> None:
    """Look at the checkpoints of the jobs that resume, and change the limits that would lose work."""
    services, watches = this_pass.services, this_pass.book.checkpoints
    mode = services.config.mode_of("limit")
    if services.scope.user is not None or mode == "observe":
        return
    running = {
        run_key_from_job(job, this_pass.book.cluster): job
        for job in this_pass.words.first.values()
        if job.state == "RUNNING" and job.restarts
    }
    for gone in watches.keys() - running.keys():
        del watches[gone]
    for key, job in running.items():
        if key not in watches:
            found = run_for_each_job(job, this_pass, partial(_find_watched_submission, job, this_pass), None)
            run = this_pass.services.store.attempt(key)
            watches[key] = CheckpointWatch(
                named=tuple(found.logs) if found is not None else None,
                extended=found is not None and EXTENDED in _list_reasons(job, this_pass),
                saved=run is not None and run.saved_after_s is not None,
            )
    due = sorted(
        (watches[key].looked_at, key.job_id, job)
        for key, job in running.items()
        if watches[key].named is not None
        and not 0 <= this_pass.now - watches[key].looked_at < _LOOK_S
        and (not watches[key].saved or _is_in_second_part(job, this_pass.now))
    )
    for _, _, job in due[:_LOOKS]:
        run_for_each_job(job, this_pass, partial(_look, job, mode, this_pass), None)


def _is_in_second_part(job: JobRecord, now: float) -> bool:
    return (
        job.start_time is not None and job.time_limit_s is not None and now - job.start_time > _FROM * job.time_limit_s
    )


def _find_watched_submission(job: JobRecord, this_pass: ReconcilePass) -> Submission | None:
    """Return the job's submission if it consents to retries, and nothing speaks against another limit; else None."""
    store, cluster = this_pass.services.store, this_pass.book.cluster
    found = store.submission(cluster, job.submitted_id)
    if found is None or not is_submission_of_run(found, record_of(job, cluster)):
        return None
    fits = found.retry and job.requeue and found.time is not None and not (found.time.fixed or found.time.warn_s)
    return found if fits and ENDED not in _list_reasons(job, this_pass) else None


def _list_reasons(job: JobRecord, this_pass: ReconcilePass) -> tuple[str, ...]:
    """Return the reasons of what rule `limit` did or advised for this run."""
    actions = this_pass.services.store.actions(run_key_from_job(job, this_pass.book.cluster))
    return tuple(action.reason for action in actions if action.rule == "limit")


def _look(job: JobRecord, mode: str, this_pass: ReconcilePass) -> None:
    services, now = this_pass.services, this_pass.services.clock.now()
    watch = this_pass.book.checkpoints[run_key_from_job(job, this_pass.book.cluster)]
    watch.looked_at = now
    lowered = [low for low in services.limits.read() if not low.time_min]
    if any(is_lowered(one, low) for low in lowered for one in select_jobs_of(low, (job,))):
        return
    logs = read_running_output(job, watch.named or (), this_pass)
    shown = find_last_progress(logs)
    if not watch.saved and shown.resumed:
        watch.saved = _store_first_save(_find_run(job, this_pass), shown.checkpoint_step, job, this_pass)
    if not _is_in_second_part(job, now):
        return
    if shown.checkpoint_step is not None and shown.checkpoint_step > watch.step:
        # The first one may have been written at any time before.
        watch.saves = [*watch.saves, now] if watch.step >= 0 else []
        watch.step = shown.checkpoint_step
    if not shown.resumed or job.start_time is None or job.time_limit_s is None:
        return
    # Steps of earlier runs count here as if this run had made them: so this is the least time that may be left.
    remaining = find_remaining(logs, now - job.start_time)
    change = choose_checkpoint_limit(
        CheckpointRun(
            start=job.start_time,
            limit_s=job.time_limit_s,
            saves=watch.saves,
            remaining_s=remaining,
            longest_s=0.0 if watch.extended else _find_longest_limit_s(job, this_pass),
        ),
        now,
    )
    if change is not None and _change(job, change, mode, this_pass):
        watch.extended = True
        watch.named = None if change.ends else watch.named


def _store_first_save(run: JobRun, step: int | None, job: JobRecord, this_pass: ReconcilePass) -> bool:
    """Store how long the run took until it saved, also in the job's profile. Return False if it has not saved yet.

    An output file that is appended to, or is not read from its start, may show a checkpoint of an earlier run.
    """
    store, now = this_pass.services.store, this_pass.services.clock.now()
    before = [
        one.diagnosis.checkpoint_step or 0
        for one in store.attempts(cluster=run.attempt.cluster, job_id=run.attempt.job_id)
        if one.diagnosis is not None and one.uid == run.uid and one.restarts < job.restarts
    ]
    if step is None or step <= max(before, default=0) or job.start_time is None:
        return False
    took_s = now - job.start_time
    store.save_attempt(replace(run, saved_after_s=took_s))
    submission = store.submission(run.attempt.cluster, job.submitted_id)
    profile = store.profile(derive_site_key(run.uid, submission.profile_key)) if submission is not None else None
    if profile is not None:
        store.save_profile(replace(profile, saved_after_s=max(took_s, profile.saved_after_s or 0.0)))
    return True


def read_running_output(job: JobRecord, named: Sequence[str], this_pass: ReconcilePass) -> list[LogRows]:
    """Return the end of each log of a running job, read as its user. `named`: its programs' logs (Submission.logs)."""
    return [read_log(tail) for tail in this_pass.services.logs.tails(_find_run(job, this_pass), named)]


def _find_run(job: JobRecord, this_pass: ReconcilePass) -> JobRun:
    cluster = this_pass.book.cluster
    return this_pass.services.store.attempt(run_key_from_job(job, cluster)) or record_of(job, cluster)


def _find_longest_limit_s(job: JobRecord, this_pass: ReconcilePass) -> float:
    """Return up to which limit the job may be extended: the site's maximum, its partition's, and no reservation."""
    extension = this_pass.services.config.limit.extend_s
    if not extension or job.start_time is None or not this_pass.services.may_extend():
        return 0.0
    snapshot = this_pass.snapshot()
    partitions = [one for one in snapshot.partitions if one.name == job.partition]
    begins = [
        one.start - job.start_time
        for one in snapshot.reservations
        if one.start > this_pass.now and not set(job.nodes).isdisjoint(one.nodes)
    ]
    return min(((job.time_limit_s or 0) + extension, get_longest_time_limit_s(partitions) or float("inf"), *begins))


def _change(job: JobRecord, change: LimitChange, mode: str, this_pass: ReconcilePass) -> bool:
    """Set the limit, or record it as advice. Return False if it must wait.

    The owner may lower the limit of their running job, only an administrator may raise it.
    """
    services, key = this_pass.services, run_key_from_job(job, this_pass.book.cluster)
    if mode == "act" and change.ends and is_muted(job.uid, this_pass):
        return False
    action = SlurmAction(
        verb=Verb.UPDATE_JOB, target=job.address, key="TimeLimit", value=str(change.limit_s // 60), reason=change.reason
    )
    number = services.store.intend(key, PlannedAction(rule="limit", action=action), mode, this_pass.now)
    if mode != "act":
        return True
    error = ""
    try:
        services.slurm.apply(action, owner=job.uid if change.ends else None)
    except SlurmUnreachable as away:
        # Raises SlurmUnreachable if the controller itself does not answer.
        services.slurm.job(job.address)
        mute_user(job.uid, this_pass)
        this_pass.summary.errors.append(f"job {job.address}: {away}")
        return False
    except SlurmError as refused:
        error = str(refused)
    services.store.done(number, this_pass.now, error)
    services.say(f"job {job.address}: {change.reason}{f', refused: {error}' if error else ''}")
    return True
