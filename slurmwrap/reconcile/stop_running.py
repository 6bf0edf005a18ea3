"""Stop running jobs at what their user named: `--stop-at` after a checkpoint, `--stop-when=diverged` at once.

Only jobs of gsub whose user asked for it, in the user's name. A job with sbatch's --signal gets that signal, as Slurm
would send it before the time limit; any other one is cancelled. The losses are those that the job's own step counter
recorded, never text of its output; the output only shows whether a checkpoint was written. It is read as the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slurmwrap.diagnosis.log_progress import find_last_progress, find_shown_progress
from slurmwrap.diagnosis.log_rows import LogRows
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import STOP_RULE
from slurmwrap.model.running_job import CountedLosses
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import is_submission_of_run, record_of, run_key_from_job
from slurmwrap.policy.stop_conditions import (
    REQUEUED_REASON,
    REQUEUED_WITHIN_S,
    find_plateau,
    format_diverged_reason,
    format_plateau_reason,
    is_diverged,
)
from slurmwrap.reconcile.limit_running import read_running_output
from slurmwrap.reconcile.reconcile_context import ReconcilePass, StopWatch, is_muted, mute_user, run_for_each_job
from slurmwrap.sbatch.stop_option import DIVERGED, parse_plateau, parse_signal

# Seconds between two looks at a job, and most jobs per pass.
_LOOK_S, _LOOKS = 60.0, 20
# Steps of the output and of the counter are the same if they differ by less than this share, or so many steps.
_SAME_SHARE, _SAME_STEPS = 0.05, 20


def stop_running(this_pass: ReconcilePass) -> None:
    """Look at the losses of the jobs that are to be stopped some time, and stop those whose time has come."""
    watches = this_pass.book.stops
    jobs = {
        run_key_from_job(job, this_pass.book.cluster): job
        for job in this_pass.words.first.values()
        if (job.state == "RUNNING" or (job.pending and job.restarts)) and not job.het_job_id
    }
    for gone in watches.keys() - jobs.keys():
        del watches[gone]
    new = this_pass.summary.ingested.submitted
    for key, job in jobs.items():
        # gsub reports a submission after the job may have started.
        late = key in watches and watches[key].submission is None and job.submitted_id in new
        if key not in watches or late:
            found = run_for_each_job(job, this_pass, partial(_find_watched_submission, job, this_pass), None)
            watches[key] = StopWatch(submission=found)
    due = sorted(
        (watches[key].looked_at, key.job_id, job)
        for key, job in jobs.items()
        if watches[key].submission is not None and not 0 <= this_pass.now - watches[key].looked_at < _LOOK_S
    )
    for _, _, job in due[:_LOOKS]:
        run_for_each_job(job, this_pass, partial(_look, job, this_pass), None)


def _find_watched_submission(job: JobRecord, this_pass: ReconcilePass) -> Submission | None:
    """Return the job's submission if its user named a condition and this run was not stopped before; else None."""
    store, cluster = this_pass.services.store, this_pass.book.cluster
    found = store.submission(cluster, job.submitted_id)
    if (
        found is None
        or not (found.stop_at or found.stop_when)
        or not is_submission_of_run(found, record_of(job, cluster))
    ):
        return None
    if found.stop_at and not _is_plateau(found.stop_at):
        return None
    done = [action for action in store.actions(run_key_from_job(job, cluster)) if action.rule == STOP_RULE]
    return None if any(action.done_at is not None for action in done) else found


def _is_plateau(text: str) -> bool:
    """Return whether gsub could have written this: the record is the user's."""
    try:
        parse_plateau(text)
    except ValueError:
        return False
    return True


def _look(job: JobRecord, this_pass: ReconcilePass) -> None:
    watch = this_pass.book.stops[run_key_from_job(job, this_pass.book.cluster)]
    watch.looked_at = this_pass.services.clock.now()
    submission = watch.submission
    assert submission is not None
    if job.restarts and _is_requeued_by_program(job, this_pass):
        # Lightning, for one, requeues its job when it gets the signal. The user asked for the end.
        _stop(job, REQUEUED_REASON, None, this_pass)
        return
    run = this_pass.services.store.attempt(run_key_from_job(job, this_pass.book.cluster)) or record_of(
        job, this_pass.book.cluster
    )
    if job.state != "RUNNING" or run.start_time is None:
        return
    losses = this_pass.services.losses(run, submission.step_dir)
    if losses is None:
        return
    signal = parse_signal(submission.stop_signal)
    if submission.stop_when == DIVERGED and is_diverged(losses):
        # A further checkpoint would only hold NaN.
        _stop(job, format_diverged_reason(losses), signal, this_pass)
        return
    if not submission.stop_at:
        return
    plateau = parse_plateau(submission.stop_at)
    logs = read_running_output(job, tuple(submission.logs), this_pass)
    reached = find_plateau(
        losses.points, plateau, _find_total_steps(losses, logs, job, watch.looked_at - run.start_time)
    )
    if reached is None:
        watch.step = None
        return
    step = find_last_progress(logs).checkpoint_step
    if watch.step is None:
        # Only a checkpoint that is written from now on holds the plateau.
        watch.step = -1 if step is None else step
    elif step is not None and step > watch.step:
        _stop(job, format_plateau_reason(submission.stop_at, plateau, reached, step), signal, this_pass)


def _find_total_steps(losses: CountedLosses, logs: Sequence[LogRows], job: JobRecord, run_s: float) -> float | None:
    """Return the steps of the whole run: by its output if that counts as the counter does, else up to its time limit.

    None for a job without a time limit.
    """
    shown, done = find_shown_progress(logs, run_s), losses.points[-1].step if losses.points else None
    if done is None or run_s <= 0:
        return None
    if shown is not None and shown.total and shown.unit == "step" and _is_same(shown.done, done):
        return float(shown.total)
    return done * job.time_limit_s / run_s if job.time_limit_s else None


def _is_same(shown: float, counted: float) -> bool:
    return abs(shown - counted) <= max(_SAME_STEPS, _SAME_SHARE * counted)


def _is_requeued_by_program(job: JobRecord, this_pass: ReconcilePass) -> bool:
    """Return whether an earlier run of the job was stopped here, and requeued soon after that."""
    store, key = this_pass.services.store, run_key_from_job(job, this_pass.book.cluster)
    earlier = [run for run in store.attempts(cluster=key.cluster, job_id=job.job_id) if run.attempt != key]
    stops = [
        action.done_at
        for run in earlier
        for action in store.actions(run.attempt)
        if action.rule == STOP_RULE and action.done_at is not None and not action.error
    ]
    return any(0 <= key.submit_time - at < REQUEUED_WITHIN_S for at in map(int, stops))


def _stop(job: JobRecord, reason: str, signal: tuple[str, bool] | None, this_pass: ReconcilePass) -> None:
    """Send the signal to the job, or cancel it without one, in its user's name; a refusal is not repeated."""
    services, key = this_pass.services, run_key_from_job(job, this_pass.book.cluster)
    watch = this_pass.book.stops[key]
    if is_muted(job.uid, this_pass):
        return
    action = SlurmAction(verb=Verb.CANCEL, target=job.address, reason=reason)
    if signal is not None:
        name, batch = signal
        value = "batch" if batch else ""
        action = SlurmAction(verb=Verb.SIGNAL, target=job.address, key=name, value=value, reason=reason)
    number = services.store.intend(key, PlannedAction(rule=STOP_RULE, action=action), "act", this_pass.now)
    error = ""
    try:
        services.slurm.apply(action, owner=job.uid)
    except SlurmUnreachable as away:
        # Raises SlurmUnreachable if the controller itself does not answer.
        services.slurm.job(job.address)
        mute_user(job.uid, this_pass)
        this_pass.summary.errors.append(f"job {job.address}: {away}")
        return
    except SlurmError as refused:
        error = str(refused)
    services.store.done(number, this_pass.now, error)
    watch.submission = None
    services.say(f"job {job.address}: {reason}{f', refused: {error}' if error else ''}")
