"""Restore the time limits that rule `limit` lowered: first thing in each pass, when the service ends, by the watchdog.

What was lowered is in a file of its own (store/lowered_limits.py), so none of this needs the database. If that file is
lost or damaged, the recorded changes in the database replace it. Not the Comments of jobs: their users can write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from math import ceil

from slurmwrap.errors import SlurmError, SlurmUnreachable, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, intended
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.policy.run_from_slurm import record_of, run_key_from_job
from slurmwrap.policy.time_limit import (
    LIMIT_COMMENT,
    RESTORED,
    SETTLED_S,
    cap_by_partition,
    choose_running_limit,
    is_lowered,
    is_settled,
    select_jobs_of,
)
from slurmwrap.protocols import Slurm, Store
from slurmwrap.reconcile.reconcile_context import (
    ReconcilePass,
    Services,
    is_muted,
    mute_user,
    run_for_each_job,
)

_STARTED = f"it started: {RESTORED}"
_EXTENDED = "its time limit is extended, up to its user's"
_REQUEUED = f"it was requeued: {RESTORED}"
_NOT_LOWERED = f"time limits are not lowered now: {RESTORED}"
# Slurm's answers about a job that needs no limit any more.
_GONE = re.compile(r"already finished|Invalid job id|being? complet", re.IGNORECASE)


def restore_limits(this_pass: ReconcilePass) -> None:
    """Give started jobs their user's limit, or the next step up to it; also pending jobs if limits are not lowered now.

    Forget jobs that have their user's limit or one that someone else set. An error is reported and tried again in the
    next pass.
    """
    services = this_pass.services
    lowered = _read_lowered_limits(this_pass)
    if not lowered:
        return
    lowers, kept = may_lower(services, this_pass.now), list[LoweredLimit]()
    ordered = sorted(lowered, key=lambda one: one.set_s)
    for one in ordered:
        jobs = select_jobs_of(one, this_pass.words.first.values())
        if one.time_min:
            kept += filter(None, (_check_time_min(job, one, lowers, this_pass) for job in jobs[:1]))
            continue
        open_ones = [job for job in jobs if not _is_done(job, one, lowers, this_pass)]
        if open_ones:
            kept.append(one)
    if kept != ordered:
        services.limits.write(kept)


def _read_lowered_limits(this_pass: ReconcilePass) -> tuple[LoweredLimit, ...]:
    """Return what is lowered by the file, in the first pass of a process also by the database. Write what was missing.

    () if neither can be read: that is reported, and the next pass tries again.
    """
    services, book, known = this_pass.services, this_pass.book, tuple[LoweredLimit, ...]()
    try:
        known = services.limits.read()
    except StoreError as error:
        this_pass.summary.errors.append(str(error))
        book.limits_compared = False
    if book.limits_compared or services.scope.user is not None:
        return known
    damaged, missing = bool(this_pass.summary.errors), tuple[LoweredLimit, ...]()
    try:
        for job in this_pass.words.first.values():
            find = partial(find_forgotten_limits, (*known, *missing), (job,), services.store, book.cluster)
            missing += run_for_each_job(job, this_pass, find, tuple[LoweredLimit, ...]())
        if missing or damaged:
            services.limits.write((*known, *missing))
    except StoreError as error:
        this_pass.summary.errors.append(f"lowered time limits are not compared with the records: {error}")
        return known
    book.limits_compared = True
    return (*known, *missing)


def find_forgotten_limits(
    known: Sequence[LoweredLimit], jobs: Iterable[JobRecord], store: Store, cluster: str
) -> tuple[LoweredLimit, ...]:
    """Return the lowered limits that the recorded changes show and that `known` lacks. StoreError without the records.

    Of a job that has a limit that someone else set, nothing was forgotten.
    """
    found: dict[tuple[int, bool], LoweredLimit] = {}
    for job in jobs:
        if job.ended or any(select_jobs_of(one, (job,)) for one in known):
            continue
        job_id = job.submitted_id
        keys = {run.attempt for run in store.attempts(cluster=cluster, job_id=job.job_id) if run.uid == job.uid}
        keys.add(RunKey(cluster=cluster, job_id=job_id, submit_time=job.submit_time))
        changes = [a for key in keys for a in store.actions(key) if (a.rule, a.mode, a.error) == ("limit", "act", "")]
        for key in ("TimeLimit", "TimeMin"):
            newest = max(
                (a for a in changes if a.key == key and (a.own or a.reason.endswith(RESTORED))),
                key=lambda a: (a.intended_at, a.action_id),
                default=None,
            )
            if newest is None or newest.reason.endswith(RESTORED):
                continue
            one = LoweredLimit(
                job_id=job_id,
                uid=job.uid,
                submit_time=job.submit_time,
                at=newest.intended_at,
                user_s=60 * int(newest.own),
                set_s=60 * int(newest.value),
                time_min=key == "TimeMin",
            )
            if one.time_min or is_lowered(job, one):
                found[job_id, one.time_min] = one
    return tuple(found.values())


def may_lower(services: Services, now: float) -> bool:
    """Return True if limits may be lowered: by the rule's mode, and only if they will certainly be restored.

    Where limits of QOS and associations are enforced, only root may lower them, in the name of the job's owner.
    """
    acts = services.scope.user is None and services.config.mode_of("limit") == "act"
    return acts and services.may_extend() and services.may_resize() and services.is_watched(now)


def _is_done(job: JobRecord, lowered: LoweredLimit, lowers: bool, this_pass: ReconcilePass) -> bool:
    """Make what is due for one job; return True if it needs nothing any more."""
    if job.state == "TIMEOUT" and is_lowered(job, lowered):
        this_pass.summary.errors.append(f"job {job.address} reached a time limit that slurmwrap had lowered")
    if is_settled(job, lowered, this_pass.now):
        return True
    if job.pending:
        if lowers or not is_lowered(job, lowered):
            return False
        limit, reason = lowered.user_s, _NOT_LOWERED
    else:
        chosen = choose_running_limit(job, lowered, this_pass.now)
        if chosen is None:
            return False
        limit, reason = chosen, _STARTED if chosen == lowered.user_s else _EXTENDED
    restore_one(job, limit, reason, this_pass)
    return False


def _check_time_min(
    job: JobRecord, set_one: LoweredLimit, lowers: bool, this_pass: ReconcilePass
) -> LoweredLimit | None:
    """Make what is due for a job with slurmwrap's --time-min; return what must be remembered of it, None for nothing.

    Slurm keeps both values when the job is requeued, so it gets its user's limit again each time.
    """
    if job.ended or job.state == "COMPLETING":
        return set_one
    # A pending job may have been moved to another partition or QOS: then its user gets what they may set there.
    if not job.pending:
        if not lowers and is_lowered(job, set_one):
            limit_s = cap_by_partition(job, set_one.user_s, this_pass.snapshot().partitions)
            if limit_s > (job.time_limit_s or 0):
                restore_one(job, limit_s, _NOT_LOWERED, this_pass)
        # It keeps its --time-min: Slurm removes it only from pending jobs (measured, 22.05.8).
        return set_one
    if not lowers:
        undone = restore_one(job, set_one.user_s, _NOT_LOWERED, this_pass, time_min=True, owner=job.uid)
        # The call that set it may still be under way.
        return None if undone and not 0 <= this_pass.now - set_one.at < SETTLED_S else set_one
    if job.restarts <= set_one.restarts:
        return set_one
    if is_lowered(job, set_one):
        restore_one(job, set_one.user_s, _REQUEUED, this_pass, owner=job.uid)
        if is_muted(job.uid, this_pass):
            return set_one
    return replace(set_one, restarts=job.restarts)


def restore_one(
    job: JobRecord,
    limit_s: int,
    reason: str,
    this_pass: ReconcilePass,
    *,
    time_min: bool = False,
    owner: int | None = None,
) -> bool:
    """Set one job's limit, and record it. Return False if Slurm refused it, or is not asked now in the owner's name.

    `time_min`: remove its --time-min too. `owner`: uid in whose name Slurm is asked; None: slurmwrap's own.
    """
    if owner is not None and is_muted(owner, this_pass):
        return False
    actions = make_restoring_actions(job, limit_s, reason, time_min=time_min)
    action = actions[0]
    try:
        this_pass.services.slurm.apply(action, owner=owner, also=actions[1:])
    except SlurmUnreachable as away:
        if owner is None:
            raise
        # Raises SlurmUnreachable if the controller itself does not answer.
        this_pass.services.slurm.job(job.address)
        mute_user(owner, this_pass)
        this_pass.summary.errors.append(f"job {job.address}: {away}")
        return False
    except SlurmError as error:
        if not _GONE.search(str(error)):
            this_pass.summary.errors.append(_format_error(action, error))
        return False
    try:
        this_pass.summary.applied += _record(job, actions, this_pass)
    except StoreError as error:
        this_pass.summary.errors.append(str(error))
    return True


def make_restoring_actions(
    job: JobRecord, limit_s: int, reason: str, *, time_min: bool = False
) -> tuple[SlurmAction, ...]:
    """Return the updates of one call. The Comment that explained the lower limit is removed, any other one stays.

    `time_min`: remove its --time-min too. Slurm accepts that for pending jobs only.
    """
    target = job.waiting_address or job.address if job.pending else job.address
    limit = SlurmAction(
        verb=Verb.UPDATE_JOB, target=target, key="TimeLimit", value=str(ceil(limit_s / 60)), reason=reason
    )
    also = [replace(limit, key="TimeMin", value="0")] if time_min else []
    if job.comment.startswith(LIMIT_COMMENT) and reason != _REQUEUED:
        also.append(replace(limit, key="Comment", value=""))
    return (limit, *also)


def _record(job: JobRecord, actions: Sequence[SlurmAction], this_pass: ReconcilePass) -> list[ActionRecord]:
    key, store, now = run_key_from_job(job, this_pass.book.cluster), this_pass.services.store, this_pass.now
    made = list[ActionRecord]()
    with store.transaction():
        if store.attempt(key) is None:
            store.save_attempt(record_of(job, key.cluster))
        for action in actions:
            ruled = PlannedAction(rule="limit", action=action)
            number = store.intend(key, ruled, "act", now, again=True)
            store.done(number, now)
            made.append(replace(intended(key, ruled, "act", now, action_id=number), done_at=now))
    return made


def restore_all_limits(slurm: Slurm, lowered: Sequence[LoweredLimit]) -> tuple[list[str], list[str]]:
    """Restore the limits of all these jobs, started or not, without a pass. Return what was done, and errors.

    The soonest to end come first. SlurmUnreachable if the controller does not answer. The file is left as it is: the
    next pass of the reconciler clears it.
    """
    jobs = slurm.jobs() if lowered else ()
    due = list_lowered_jobs(lowered, jobs)
    done, errors = list[str](), list[str]()
    # As in a pass: the jobs with a --time-min may have been moved to another partition or QOS since.
    moved = any(one.time_min and not job.pending for job, one in due)
    partitions = slurm.snapshot().partitions if moved else ()
    for job, one in sorted(due, key=lambda pair: (pair[0].pending, pair[0].start_time or 0, pair[1].set_s)):
        waits = one.time_min and job.pending
        limit_s = cap_by_partition(job, one.user_s, partitions) if one.time_min and not waits else one.user_s
        action, *also = make_restoring_actions(job, limit_s, _NOT_LOWERED, time_min=waits)
        try:
            slurm.apply(action, owner=job.uid if waits else None, also=also)
            done.append(f"job {action.target} has its time limit of {action.value} minutes again")
        except SlurmUnreachable as away:
            if not waits:
                raise
            # The owner may have stopped scontrol. Raises SlurmUnreachable if the controller itself does not answer.
            slurm.job(job.address)
            errors.append(_format_error(action, away))
        except SlurmError as error:
            if not _GONE.search(str(error)):
                errors.append(_format_error(action, error))
    return done, errors


def list_lowered_jobs(
    lowered: Iterable[LoweredLimit], jobs: Sequence[JobRecord]
) -> list[tuple[JobRecord, LoweredLimit]]:
    """Return the jobs that do not have their user's limit now, each with what was set."""
    return [(job, one) for one in lowered for job in select_jobs_of(one, jobs) if _is_due(job, one)]


def _format_error(action: SlurmAction, error: SlurmError) -> str:
    return f"job {action.target}: its time limit of {action.value} minutes could not be restored: {error}"


def _is_due(job: JobRecord, lowered: LoweredLimit) -> bool:
    if job.ended or job.state == "COMPLETING":
        return False
    return is_lowered(job, lowered) or (lowered.time_min and job.pending)
