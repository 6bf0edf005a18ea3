"""Does what was decided about one run: intends, compares with Slurm, acts, ticks off, tells the owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurmwrap.cluster.action import SlurmAction, Verb
from slurmwrap.cluster.job import JobRecord
from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.reconcile.desk import Pass
from slurmwrap.reconcile.judge import case_of, siblings, submission_of
from slurmwrap.retry import standing
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord
from slurmwrap.retry.policy import decide
from slurmwrap.retry.standing import Due
from slurmwrap.retry.strikes import fleet_of


def finish(record: AttemptRecord, job: JobRecord | None, run: Pass) -> None:
    """Intends and does what was decided, tells the owner, and takes the run off the to-do list."""
    store = run.edges.store
    actions = store.actions(record.attempt)
    if not any(action.done_at is not None for action in actions):
        # Being killed while intending leaves some unwritten: deciding again gives the same ones and adds the rest.
        actions = _intend(record, job, actions, run)
    open_ones = [action for action in actions if action.done_at is None and action.mode == "act"]
    if open_ones and not _act(record, open_ones, run):
        return
    if not _tell(record, run):
        return
    store.save_attempt(replace(record, reconciled=True))
    run.book.settled.add(record.attempt)


def _intend(
    record: AttemptRecord, job: JobRecord | None, known: Sequence[ActionRecord], run: Pass
) -> tuple[ActionRecord, ...]:
    assert record.diagnosis is not None
    if record.decision in ("none", "stop", "blacklist_input") and not record.diagnosis.conclusive:
        return tuple(known)
    others = siblings(record, run) if record.restarts else ()
    submission = submission_of(record, run)
    decision = decide(case_of(record, record.diagnosis, submission, job, others, run), run.edges.config)
    for ruled in decision.actions:
        mode = run.edges.config.mode_of(ruled.rule)
        if mode == "act" and run.edges.scope.user is not None and ruled.action.verb is Verb.DRAIN:
            mode = "advise"  # for the administrator: a user cannot
        run.edges.store.intend(record.attempt, ruled, mode, run.now)
    return run.edges.store.actions(record.attempt) if decision.actions else tuple(known)


def _act(record: AttemptRecord, actions: Sequence[ActionRecord], run: Pass) -> bool:
    """Does the actions in order; False when some must wait for a later pass."""
    drains = [action for action in actions if action.verb == Verb.DRAIN.value]
    steps = [action for action in actions if action.verb != Verb.DRAIN.value]
    for drain in drains:
        _drain(drain, record, run)
    return _run_again(record, steps, run)


def _drain(action: ActionRecord, record: AttemptRecord, run: Pass) -> None:
    run.forget_snapshot()  # the cap and other people's drains are looked at as they are now
    fleet = fleet_of(run.snapshot(), record.partition)
    found = standing.of_drain(action, fleet, run.edges.config.placement.exclude_cap)
    _settle(action, found, run)
    run.forget_snapshot()
    run.dirty = True


def _run_again(record: AttemptRecord, steps: Sequence[ActionRecord], run: Pass) -> bool:
    """requeuehold, updates, release, StartTime. Only the first can have been done without being ticked off, and only
    it, and what a refusal of requeuehold makes void, is compared with Slurm."""
    check = True
    for step in steps:
        if check:
            found = standing.of_job(step, record, run.edges.slurm.job(record.address), run.edges.clock.now())
        else:
            found = standing.Standing(due=Due.NOW)
        if found.due is Due.LATER:
            run.summary.waiting += 1
            return False
        error = _settle(step, found, run)
        check = found.due is not Due.NOW or (bool(error) and step.verb == Verb.REQUEUEHOLD.value)
    return True


def _settle(action: ActionRecord, found: standing.Standing, run: Pass) -> str:
    """Does it if it is due, and ticks it off; returns Slurm's refusal. SlurmUnreachable leaves it for the next pass."""
    store, clock, error = run.edges.store, run.edges.clock, ""
    if found.due is Due.NOW:
        try:
            run.edges.slurm.apply(_as_action(action))
        except SlurmUnreachable:
            raise
        except SlurmError as refused:
            error = str(refused)
    store.done(action.action_id, clock.now(), error or found.why)
    done = replace(action, done_at=clock.now(), error=error or found.why)
    (run.summary.given_up if done.error else run.summary.applied).append(done)
    return error


def _as_action(action: ActionRecord) -> SlurmAction:
    return SlurmAction(
        verb=Verb(action.verb), target=action.target, key=action.key, value=action.value, because=action.because
    )


def _tell(record: AttemptRecord, run: Pass) -> bool:
    """Seals the outcome for its owner where there is one worth telling; False to try again in the next pass."""
    publisher = run.edges.publisher
    assert record.diagnosis is not None
    if publisher is None or (record.diagnosis.category == "success" and submission_of(record, run) is None):
        return True
    if not run.telling:
        return False
    try:
        publisher.tell_owner(record, run.edges.store.actions(record.attempt))
    except SlurmwrapError as error:
        run.telling = False  # one failure is enough for a pass
        run.summary.errors.append(str(error))
        return False
    return True
