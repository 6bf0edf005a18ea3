"""Does what was decided about one run: intends, compares with Slurm, acts, ticks off, informs the owner."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import WAITING_RULES, ActionRecord, JobRun
from slurmwrap.policy import action_status, requeue
from slurmwrap.policy.action_status import ActionState
from slurmwrap.policy.strikes import fleet_of
from slurmwrap.reconcile.judge_run import find_submission
from slurmwrap.reconcile.reconcile_context import ReconcilePass, is_muted, mute_user

_UNDONE = "the update was refused, so what it had is put back"


def finish(record: JobRun, job: JobRecord | None, run: ReconcilePass) -> None:
    """Intends and does what was decided, informs the owner, and takes the run off the to-do list."""
    store = run.edges.store
    actions = _drop_waiting_actions(store.actions(record.attempt), run)
    if not any(action.done_at is not None for action in actions):
        # Being killed while intending leaves some unwritten: the plan was stored with the diagnosis and adds the rest.
        actions = _store_intentions(record, actions, run)
    open_ones = [action for action in actions if action.done_at is None and action.mode == "act"]
    if open_ones and not _execute_actions(record, open_ones, run):
        return
    if _was_refused(record, run):
        record = replace(record, resize_refused=True)
    record = replace(record, planned=())
    if not _publish_outcome(record, run):
        return
    store.settle(record)
    run.book.settled.add(record.attempt)


def _store_intentions(record: JobRun, known: Sequence[ActionRecord], run: ReconcilePass) -> tuple[ActionRecord, ...]:
    for ruled in record.planned:
        run.edges.store.intend(record.attempt, ruled, _get_mode(ruled, run), run.now)
    return _drop_waiting_actions(run.edges.store.actions(record.attempt), run) if record.planned else tuple(known)


def _drop_waiting_actions(actions: Sequence[ActionRecord], run: ReconcilePass) -> tuple[ActionRecord, ...]:
    """Without those that were about the job while it waited; what of them is not done is void now."""
    for action in actions:
        if action.rule in WAITING_RULES and action.done_at is None and action.mode == "act":
            _mark_done(action, "the job waits no longer", run)
    return tuple(action for action in actions if action.rule not in WAITING_RULES)


def _get_mode(ruled: PlannedAction, run: ReconcilePass) -> str:
    if ruled.rule == "gate":
        # The gate refused, so it did act: what it caused is put right whatever the rule says now.
        return "act"
    mode = run.edges.config.mode_of(ruled.rule)
    if mode == "act" and run.edges.scope.user is not None and ruled.action.verb is Verb.DRAIN:
        # For the administrator: a user cannot.
        return "advise"
    return mode


def _was_refused(record: JobRun, run: ReconcilePass) -> bool:
    """Whether an update was undone; what the world made void was not refused."""
    found = run.edges.store.actions(record.attempt) if record.decision == "resize" else ()
    return any(action.reason == _UNDONE for action in found)


def _execute_actions(record: JobRun, actions: Sequence[ActionRecord], run: ReconcilePass) -> bool:
    """Does the actions in order; False when some must wait for a later pass."""
    for action in actions:
        if action.verb == Verb.BLOCK_INPUT.value:
            # The block itself was stored with the diagnosis.
            _mark_done(action, "", run)
        elif action.verb == Verb.DRAIN.value:
            _drain(action, record, run)
    others = (Verb.BLOCK_INPUT.value, Verb.DRAIN.value)
    return _run_again(record, [action for action in actions if action.verb not in others], run)


def _drain(action: ActionRecord, record: JobRun, run: ReconcilePass) -> None:
    # The cap and other people's drains are looked at as they are now.
    run.forget_snapshot()
    fleet = fleet_of(run.snapshot(), record.partition)
    found = action_status.get_status_of_drain(action, fleet, run.edges.config.placement.exclude_cap)
    _settle_action(action, found, run)
    run.forget_snapshot()
    run.dirty = True


def _run_again(record: JobRun, steps: Sequence[ActionRecord], run: ReconcilePass) -> bool:
    """requeuehold, updates, release, StartTime. Only the first can have been done without being ticked off, and only
    it, and what a refusal of requeuehold makes void, is compared with Slurm."""
    check = True
    for step in steps:
        if check:
            found = action_status.get_status_of_job_action(
                step, record, run.edges.slurm.job(record.address), run.edges.clock.now()
            )
        else:
            found = action_status.ActionStatus(due=ActionState.NOW)
        if found.due is ActionState.LATER:
            run.summary.waiting += 1
            return False
        if found.due is ActionState.NOW and step.key in requeue.SIZES and is_muted(record.uid, run):
            return False
        error = _settle_action(step, found, run, record)
        if error is None:
            return False
        check = found.due is not ActionState.NOW or (bool(error) and step.verb == Verb.REQUEUEHOLD.value)
    return True


def _settle_action(
    action: ActionRecord, found: action_status.ActionStatus, run: ReconcilePass, record: JobRun | None = None
) -> str | None:
    """Does it if it is due, and ticks it off; returns Slurm's refusal. SlurmUnreachable leaves it for the next pass,
    and so does None: no one knows.

    A refused size is put back first, so that being killed in between cannot leave it with Slurm unnoticed.
    """
    error = _ask(action, record, run) if found.due is ActionState.NOW else ""
    if error and record is not None and action.key in requeue.SIZES and action.reason != _UNDONE:
        error = error if _undo(action, record, run) else None
    if error is not None:
        _mark_done(action, error or found.why, run)
    return error


def _ask(action: ActionRecord, record: JobRun | None, run: ReconcilePass) -> str | None:
    """Slurm's refusal, "" when it obeyed. A size is asked for in the name of the job's owner, since limits of QOS and
    association hold no more for what an administrator sets. None where they let no one through: then again later."""
    sized = record is not None and action.key in requeue.SIZES and run.edges.scope.user is None
    owner = record.uid if sized and record is not None else None
    try:
        run.edges.slurm.apply(_to_slurm_action(action), owner=owner)
    except SlurmUnreachable as away:
        if owner is None:
            raise
        # Raises where it is the controller that does not answer.
        run.edges.slurm.job(action.target)
        again = owner in run.book.muted
        mute_user(owner, run)
        return str(away) if again else None
    except SlurmError as refused:
        return str(refused) or "refused"
    return ""


def _undo(step: ActionRecord, record: JobRun, run: ReconcilePass) -> bool:
    """Puts back what a refused update left: the job could wait for ever for what it may not have. False: unknown."""
    value = requeue.undo(step.key, record)
    if not value or value == step.value:
        return True
    back = SlurmAction(verb=Verb.UPDATE_JOB, target=step.target, key=step.key, value=value, reason=_UNDONE)
    number = run.edges.store.intend(record.attempt, PlannedAction(rule=step.rule, action=back), "act", run.now)
    known = run.edges.store.actions(record.attempt)
    found = next(a for a in known if a.action_id == number)
    return _settle_action(found, action_status.ActionStatus(due=ActionState.NOW), run, record) is not None


def _mark_done(action: ActionRecord, error: str, run: ReconcilePass) -> None:
    now = run.edges.clock.now()
    run.edges.store.done(action.action_id, now, error)
    done = replace(action, done_at=now, error=error)
    (run.summary.given_up if error else run.summary.applied).append(done)


def _to_slurm_action(action: ActionRecord) -> SlurmAction:
    return SlurmAction(
        verb=Verb(action.verb), target=action.target, key=action.key, value=action.value, reason=action.reason
    )


def _publish_outcome(record: JobRun, run: ReconcilePass) -> bool:
    """Seals the outcome for its owner where there is one worth reporting; False to try again in the next pass."""
    publisher = run.edges.publisher
    assert record.diagnosis is not None
    if publisher is None or (record.diagnosis.category == "success" and find_submission(record, run) is None):
        return True
    if not run.telling:
        return False
    try:
        publisher.tell_owner(record, run.edges.store.actions(record.attempt))
    except SlurmwrapError as error:
        # One failure is enough for a pass.
        run.telling = False
        run.summary.errors.append(str(error))
        return False
    return True
