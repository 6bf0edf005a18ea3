"""Carry out what was decided about one run: store intentions, compare with Slurm, act, mark as done, notify."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import MOVE_RULE, WAITING_RULES, ActionRecord, JobRun
from slurmwrap.policy import action_status, requeue
from slurmwrap.policy.action_status import ActionState
from slurmwrap.policy.moved_run import MOVED
from slurmwrap.policy.strikes import make_fleet
from slurmwrap.reconcile.ingest_gpu_samples import list_published_use
from slurmwrap.reconcile.judge_run import find_submission
from slurmwrap.reconcile.reconcile_context import ReconcilePass, is_muted, mute_user

_UNDONE = "the update was refused, so what it had is put back"


def finish(run: JobRun, job: JobRecord | None, this_pass: ReconcilePass) -> None:
    """Store and carry out the run's actions, inform the owner, and take the run off the to-do list.

    Returns early, with the run still on the list, if an action or the publishing must wait for a later pass.
    """
    store = this_pass.services.store
    actions = _drop_waiting_actions(store.actions(run.attempt), this_pass)
    if not any(action.done_at is not None and action.rule not in ("early", MOVE_RULE) for action in actions):
        # A reconciler that was killed while storing intentions left some out. The plan was stored with the diagnosis,
        # so the missing ones are added.
        actions = _store_intentions(run, actions, this_pass)
    open_ones = [action for action in actions if action.done_at is None and action.mode == "act"]
    if open_ones and not _execute_actions(run, open_ones, this_pass):
        return
    if _was_refused(run, this_pass):
        run = replace(run, resize_refused=True)
    run = replace(run, planned=())
    if not _publish_outcome(run, this_pass):
        return
    store.settle(run)
    this_pass.book.settled.add(run.attempt)


def _store_intentions(run: JobRun, known: Sequence[ActionRecord], this_pass: ReconcilePass) -> tuple[ActionRecord, ...]:
    for ruled in run.planned:
        this_pass.services.store.intend(run.attempt, ruled, _get_mode(ruled, this_pass), this_pass.now)
    return (
        _drop_waiting_actions(this_pass.services.store.actions(run.attempt), this_pass) if run.planned else tuple(known)
    )


def _drop_waiting_actions(actions: Sequence[ActionRecord], this_pass: ReconcilePass) -> tuple[ActionRecord, ...]:
    """Return the actions without those that changed the job while it was pending.

    Those that are unfinished are marked as void.
    """
    for action in actions:
        if action.rule in WAITING_RULES and action.done_at is None and action.mode == "act":
            _mark_done(action, "the job is no longer pending", this_pass)
    return tuple(action for action in actions if action.rule not in WAITING_RULES)


def _get_mode(ruled: PlannedAction, this_pass: ReconcilePass) -> str:
    if ruled.rule == "gate":
        # The gate refused the job, so it did act. Its consequences are repaired whatever mode the rule has now.
        return "act"
    if ruled.rule == MOVE_RULE:
        # The job got the signal, and ended. A lease acts in every mode.
        return "act"
    mode = this_pass.services.config.mode_of(ruled.rule)
    if mode == "act" and this_pass.services.scope.user is not None and ruled.action.verb is Verb.DRAIN:
        # Only an administrator can drain a node; in user mode the drain is advice.
        return "advise"
    return mode


def _was_refused(run: JobRun, this_pass: ReconcilePass) -> bool:
    """Return True if Slurm refused an update, so that it was undone. Actions that became void were not refused."""
    found = this_pass.services.store.actions(run.attempt) if run.decision == "resize" else ()
    return any(action.reason == _UNDONE for action in found)


def _execute_actions(run: JobRun, actions: Sequence[ActionRecord], this_pass: ReconcilePass) -> bool:
    """Carry out the actions in order. Return False if some must wait for a later pass."""
    for action in actions:
        if action.verb == Verb.BLOCK_INPUT.value:
            # The block was stored with the diagnosis; only the record of the action is completed here.
            _mark_done(action, "", this_pass)
        elif action.verb == Verb.DRAIN.value:
            _drain(action, run, this_pass)
    others = (Verb.BLOCK_INPUT.value, Verb.DRAIN.value, Verb.MOVE.value, Verb.SIGNAL.value)
    if not _requeue_and_update(run, [action for action in actions if action.verb not in others], this_pass):
        return False
    for action in actions:
        if action.verb in (Verb.MOVE.value, Verb.SIGNAL.value):
            moved = run.decision_reason.startswith(MOVED)
            _mark_done(action, "" if moved else "the run ended by itself", this_pass)
    return True


def _drain(action: ActionRecord, run: JobRun, this_pass: ReconcilePass) -> None:
    # Read the nodes anew: the cap and drains by other people must be judged by their present state.
    this_pass.forget_snapshot()
    fleet = make_fleet(this_pass.snapshot(), run.partition)
    found = action_status.get_status_of_drain(action, fleet, this_pass.services.config.placement.exclude_cap)
    _settle_action(action, found, this_pass)
    this_pass.forget_snapshot()
    this_pass.dirty = True


def _requeue_and_update(run: JobRun, steps: Sequence[ActionRecord], this_pass: ReconcilePass) -> bool:
    """Carry out requeuehold, updates, release and StartTime, in this order. Return False if some must wait.

    Only the first open step can have been done without being marked. So only that step is compared with Slurm, and the
    next ones as long as steps turn out done or void, or after a refused requeuehold.
    """
    check = True
    for step in steps:
        if check:
            found = action_status.get_status_of_job_action(
                step, run, this_pass.services.slurm.job(run.address), this_pass.services.clock.now()
            )
        else:
            found = action_status.ActionStatus(due=ActionState.NOW)
        if found.due is ActionState.LATER:
            this_pass.summary.waiting += 1
            return False
        if found.due is ActionState.NOW and step.key in requeue.SIZES and is_muted(run.uid, this_pass):
            return False
        error = _settle_action(step, found, this_pass, run)
        if error is None:
            return False
        check = found.due is not ActionState.NOW or (bool(error) and step.verb == Verb.REQUEUEHOLD.value)
    return True


def _settle_action(
    action: ActionRecord, found: action_status.ActionStatus, this_pass: ReconcilePass, run: JobRun | None = None
) -> str | None:
    """Carry out the action if it is due, and mark it as done. Return Slurm's refusal, "" if there was none.

    None: the result is unknown, and the action stays open for the next pass. SlurmUnreachable leaves it open too. A
    refused size is undone before the action is marked, so that a reconciler killed in between cannot leave the refused
    size in Slurm unnoticed.
    """
    error = _apply_to_slurm(action, run, this_pass) if found.due is ActionState.NOW else ""
    if error and run is not None and action.key in requeue.SIZES and action.reason != _UNDONE:
        error = error if _undo(action, run, this_pass) else None
    if error is not None:
        _mark_done(action, error or found.why, this_pass)
    return error


def _apply_to_slurm(action: ActionRecord, run: JobRun | None, this_pass: ReconcilePass) -> str | None:
    """Apply the action in Slurm. Return Slurm's refusal, "" if it succeeded, None if it must be tried again later.

    The site's reconciler asks for a size in the name of the job's owner, because Slurm exempts what an administrator
    sets from the limits of QOS and association. None: Slurm could not be reached in the owner's name. If that happens a
    second time, it counts as a refusal.
    """
    sized = run is not None and action.key in requeue.SIZES and this_pass.services.scope.user is None
    owner = run.uid if sized and run is not None else None
    try:
        this_pass.services.slurm.apply(_to_slurm_action(action), owner=owner)
    except SlurmUnreachable as away:
        if owner is None:
            raise
        # Raises SlurmUnreachable if the controller itself does not answer.
        this_pass.services.slurm.job(action.target)
        again = owner in this_pass.book.muted
        mute_user(owner, this_pass)
        return str(away) if again else None
    except SlurmError as refused:
        return str(refused) or "refused"
    return ""


def _undo(step: ActionRecord, run: JobRun, this_pass: ReconcilePass) -> bool:
    """Restore the value that a refused update may have changed. Return False if the result is unknown.

    Otherwise the job could wait forever for what it may not have.
    """
    value = requeue.undo(step.key, run)
    if not value or value == step.value:
        return True
    back = SlurmAction(verb=Verb.UPDATE_JOB, target=step.target, key=step.key, value=value, reason=_UNDONE)
    number = this_pass.services.store.intend(
        run.attempt, PlannedAction(rule=step.rule, action=back), "act", this_pass.now
    )
    known = this_pass.services.store.actions(run.attempt)
    found = next(a for a in known if a.action_id == number)
    return _settle_action(found, action_status.ActionStatus(due=ActionState.NOW), this_pass, run) is not None


def _mark_done(action: ActionRecord, error: str, this_pass: ReconcilePass) -> None:
    now = this_pass.services.clock.now()
    this_pass.services.store.done(action.action_id, now, error)
    done = replace(action, done_at=now, error=error)
    (this_pass.summary.given_up if error else this_pass.summary.applied).append(done)


def _to_slurm_action(action: ActionRecord) -> SlurmAction:
    return SlurmAction(
        verb=Verb(action.verb), target=action.target, key=action.key, value=action.value, reason=action.reason
    )


def _publish_outcome(run: JobRun, this_pass: ReconcilePass) -> bool:
    """Publish the sealed outcome for its owner, if it is worth reporting. Return False to try again next time."""
    publisher = this_pass.services.publisher
    assert run.diagnosis is not None
    if publisher is None or (run.diagnosis.category == "success" and find_submission(run, this_pass) is None):
        return True
    if not this_pass.telling:
        return False
    try:
        store = this_pass.services.store
        publisher.tell_owner(run, store.actions(run.attempt), list_published_use(run, store))
    except SlurmwrapError as error:
        # Do not try again in this pass after one failure.
        this_pass.telling = False
        this_pass.summary.errors.append(str(error))
        return False
    return True
