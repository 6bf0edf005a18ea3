"""Time limits of the pending jobs by their earlier runs, in each pass of the site's reconciler (rule `limit`).

Backfill starts a job in a gap only if its time limit fits. The limit returns to its user's when the job starts
(reconcile/restore_limits.py), so it never ends a job. A job that resumes from checkpoints gets a --time-min instead.
In mode `act` a limit is lowered only if it will certainly be restored: this process may raise the limits of running
jobs, its passes are on time, and the watchdog runs.
"""

from __future__ import annotations

from functools import partial

from slurmwrap.errors import StoreError
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.relaxation import may_be_touched
from slurmwrap.policy.checkpoint_limit import choose_time_min
from slurmwrap.policy.run_from_slurm import CLOCKS_S, run_key_from_job
from slurmwrap.policy.time_limit import (
    LIMIT_COMMENT,
    RESTORED,
    compute_lower_limit,
    find_conflict,
    find_reason_to_keep,
    format_limit,
    is_lowered,
    select_jobs_of,
)
from slurmwrap.reconcile.pending_job_updates import (
    PendingGsubJob,
    list_pending_gsub_jobs,
    make_changes,
    make_unplanned_job,
    select_first_jobs,
)
from slurmwrap.reconcile.reconcile_context import ReconcilePass, run_for_each_job
from slurmwrap.reconcile.restore_limits import may_lower, restore_one
from slurmwrap.reconcile.run_time_lookup import find_run_time

# No limit is lowered by a pass that has taken so long: its view of the jobs is old, and the next pass is not near.
_LONG_PASS_S = 60.0


def limit_waiting(this_pass: ReconcilePass) -> None:
    """Lower the limits of the first jobs of the queue to what their earlier runs needed, or record this as advice."""
    services = this_pass.services
    most, mode = services.config.placement.relax_jobs, services.config.mode_of("limit")
    if services.scope.user is not None or not most:
        return
    if mode == "act":
        try:
            restore_conflicting(this_pass)
        except StoreError as error:
            this_pass.summary.errors.append(str(error))
            return
        if not may_lower(services, this_pass.now):
            mode = "advise"
    if services.clock.now() - this_pass.now > _LONG_PASS_S:
        return
    ours = list_pending_gsub_jobs(this_pass)
    fitted = this_pass.book.fitted
    fitted &= {run_key_from_job(job, this_pass.book.cluster) for job in ours}
    changeable = [
        job
        for job in ours
        if run_key_from_job(job, this_pass.book.cluster) not in fitted and may_be_touched(job, this_pass.now)
    ]
    for job in select_first_jobs(changeable, most):
        if not run_for_each_job(job, this_pass, partial(_limit_job, job, mode, this_pass), True):
            return


def restore_conflicting(this_pass: ReconcilePass) -> None:
    """Restore the limits of pending jobs that meanwhile would evade a rule of the site, such as a new reservation."""
    for one in this_pass.services.limits.read():
        for job in select_jobs_of(one, this_pass.words.first.values()):
            if (
                job.pending
                and not one.time_min
                and is_lowered(job, one)
                and (reason := find_conflict(job, one.user_s, this_pass.snapshot()))
            ):
                restore_one(job, one.user_s, f"{reason}: {RESTORED}", this_pass)


def _limit_job(job: JobRecord, mode: str, this_pass: ReconcilePass) -> bool:
    """Lower the limit of one job if it is worth it. Return False if the rate limit is reached."""
    waiting = make_unplanned_job(job, this_pass)
    if waiting is None:
        return True
    if _is_finished(waiting, mode, this_pass):
        if this_pass.services.config.mode_of("limit") != "act":
            this_pass.book.fitted.add(waiting.attempt)
        return True
    if job.restarts:
        return _set_time_min(waiting, mode, this_pass)
    request, estimate = waiting.submission.time, find_run_time(job, this_pass)
    if estimate is None or job.time_limit_s is None or request is None:
        return True
    settings = this_pass.services.config.limit
    limit = compute_lower_limit(estimate, job.time_limit_s, settings, warn_s=request.warn_s)
    if limit is None or find_reason_to_keep(job, request, this_pass.snapshot()):
        return True
    return _lower(waiting, limit, job.time_limit_s, estimate, mode, this_pass)


def _is_finished(waiting: PendingGsubJob, mode: str, this_pass: ReconcilePass) -> bool:
    """Return True if no more is done about this job: it was lowered, refused or advised, or its user changed it."""
    if waiting.record.restarts:
        return mode != "act" and any(action.key == "TimeMin" for action in waiting.known)
    known = [action for action in waiting.known if action.rule == "limit" and action.key == "TimeLimit"]
    if not known:
        return False
    now = str((waiting.record.time_limit_s or 0) // 60)
    for begun in known:
        if begun.done_at is None and begun.mode == "act" and begun.value == now:
            # Slurm accepted it, and the reconciler was killed before it could record that.
            this_pass.services.store.done(begun.action_id, this_pass.now)
            return True
    if mode != "act":
        return True
    made = sorted((a for a in known if a.done_at is not None), key=lambda action: action.done_at or 0)
    if any(action.error for action in made):
        return True
    # Only a limit that was restored while the job was pending may be lowered once more.
    return bool(made) and not (made[-1].value == now and made[-1].reason.endswith(RESTORED))


def _lower(
    waiting: PendingGsubJob,
    limit: int,
    user_s: int,
    estimate: RunTimeEstimate,
    mode: str,
    this_pass: ReconcilePass,
) -> bool:
    job = waiting.record
    reason = (
        f"{estimate.n} runs of it: 9 of 10 ended within {format_limit(estimate.p90_s)}; "
        f"its own limit is {format_limit(user_s)}"
    )
    lower = SlurmAction(
        verb=Verb.UPDATE_JOB,
        target=job.waiting_address,
        key="TimeLimit",
        value=str(limit // 60),
        reason=reason,
        own=str(-(-user_s // 60)),
    )
    actions, back = [lower], {"TimeLimit": str(user_s // 60), "Comment": job.comment}
    if mode == "act":
        if not job.comment or job.comment.startswith(LIMIT_COMMENT):
            text = f"{LIMIT_COMMENT}{format_limit(limit)} until it starts, then {format_limit(user_s)}"
            actions.append(SlurmAction(verb=Verb.UPDATE_JOB, target=lower.target, key="Comment", value=text))
        _remember(waiting, limit, user_s, this_pass)
    return make_changes(this_pass, waiting, "limit", actions, back, mode=mode)


def _set_time_min(waiting: PendingGsubJob, mode: str, this_pass: ReconcilePass) -> bool:
    """Let Slurm start a job that resumes in a gap in which it saves at least once; its limit stays while it waits.

    Only for a job whose user consented to retries: it is requeued at the end of the shorter limit. The time in which it
    saves is that of its own earlier runs. Return False if the rate limit is reached.
    """
    job, request = waiting.record, waiting.submission.time
    consents = waiting.submission.retry and job.requeue and job.array_job_id is None
    if not consents or job.time_limit_s is None or request is None or request.warn_s:
        return True
    known = this_pass.services.limits.read() if mode == "act" else ()
    set_before = next((one for one in known if one.time_min and select_jobs_of(one, (job,))), None)
    runs = [run for run in _list_earlier_runs(waiting, this_pass) if run.restarts < job.restarts]
    last = max(runs, key=lambda run: run.restarts, default=None)
    saves = last is not None and last.saved_after_s is not None
    if set_before is not None and last is not None and not saves:
        # It has run since then and did not save: it may need longer than before.
        _withdraw_time_min(job, set_before, this_pass)
        return True
    # This pass's record may be older than the limit that restore_limits() has just restored.
    user_s = max(job.time_limit_s, set_before.user_s if set_before is not None else 0)
    time_min = choose_time_min([run.saved_after_s for run in runs if run.saved_after_s is not None], user_s)
    if not saves or time_min is None or find_reason_to_keep(job, request, this_pass.snapshot(), resumes=True):
        return True
    reason = f"it resumes from checkpoints, and saves within {format_limit(time_min)}"
    # Its own is the time limit up to which Slurm may extend it; it had no --time-min.
    action = SlurmAction(
        verb=Verb.UPDATE_JOB,
        target=job.address,
        key="TimeMin",
        value=str(time_min // 60),
        reason=reason,
        own=str(-(-user_s // 60)),
    )
    actions = [action]
    if mode == "act":
        if not job.comment or job.comment.startswith(LIMIT_COMMENT):
            text = f"{LIMIT_COMMENT}{format_limit(time_min)} to {format_limit(user_s)}: it resumes from checkpoints"
            actions.append(SlurmAction(verb=Verb.UPDATE_JOB, target=action.target, key="Comment", value=text))
        if set_before is None or set_before.set_s != time_min:
            _remember(waiting, time_min, user_s, this_pass, time_min=True)
    return make_changes(this_pass, waiting, "limit", actions, {"TimeMin": "0", "Comment": job.comment}, mode=mode)


def _list_earlier_runs(waiting: PendingGsubJob, this_pass: ReconcilePass) -> list[JobRun]:
    """Return the runs of this job itself. Job ids are reused."""
    job, since = waiting.record, waiting.submission.at - CLOCKS_S
    runs = this_pass.services.store.attempts(cluster=this_pass.book.cluster, job_id=job.job_id)
    return [run for run in runs if run.uid == job.uid and run.attempt.submit_time >= since]


def _withdraw_time_min(job: JobRecord, set_one: LoweredLimit, this_pass: ReconcilePass) -> None:
    reason = f"it did not save in its last run: {RESTORED}"
    if restore_one(job, set_one.user_s, reason, this_pass, time_min=True, owner=job.uid):
        limits = this_pass.services.limits
        limits.write([one for one in limits.read() if not (one.time_min and select_jobs_of(one, (job,)))])


def _remember(
    waiting: PendingGsubJob, limit: int, user_s: int, this_pass: ReconcilePass, *, time_min: bool = False
) -> None:
    """Store what must be restored, before Slurm is asked. An entry whose job was not changed does no harm."""
    job, limits = waiting.record, this_pass.services.limits
    request = waiting.submission.time
    one = LoweredLimit(
        job_id=job.submitted_id,
        uid=job.uid,
        submit_time=job.submit_time,
        at=this_pass.services.clock.now(),
        user_s=user_s,
        set_s=limit,
        keep=this_pass.services.config.limit.at_start == "keep",
        warn_s=request.warn_s if request is not None else 0,
        time_min=time_min,
        restarts=job.restarts,
    )

    def is_replaced(old: LoweredLimit) -> bool:
        """Return True for an entry of the same job; a requeued one has another SubmitTime."""
        same = (old.job_id, old.uid) == (one.job_id, one.uid)
        return same and (old.submit_time == one.submit_time or (old.time_min and time_min))

    limits.write([*(old for old in limits.read() if not is_replaced(old)), one])
