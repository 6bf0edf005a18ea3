"""Pending jobs that were submitted with gsub: select those that may be changed in this pass, and change them safely.

Relaxing (reconcile/relax_pending.py) and tuning (reconcile/tune_pending.py) share the head of the queue and the rate
limit. A change is stored as intended before Slurm is asked, and as done afterwards. Slurm is asked in the name of the
job's owner if the service may do that, because a submission is its user's claim: so users get nothing that they could
not set themselves, and the limits of QOS and association still apply. In user mode nothing is changed; there Slurm's
own time-outs must suffice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import WAITING_RULES, ActionRecord, intended
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.placement.relaxation import SubmittedRequest, complete_cpu_updates, list_submitted_values, may_be_touched
from slurmwrap.placement.retune import group_calls
from slurmwrap.placement.token_bucket import fill_bucket, take
from slurmwrap.policy.run_from_slurm import is_submission_of_run, record_of, run_key_from_job
from slurmwrap.reconcile.reconcile_context import ReconcilePass, is_muted, mute_user, run_for_each_job
from slurmwrap.sbatch.begin import select_later_begin

UNDONE = "the update was refused, so what it had is put back"
# Largest difference between the clocks of the user's host and the controller.
_CLOCKS_S = 600.0
# Rules that change the head of the queue in its owners' names.
_OF_THE_HEAD = ("relax", "tune")
# Keys that are never put back after a refusal (see _undo).
_NEVER_PUT_BACK = frozenset(("ReqNodeList", "NumNodes"))
NO_LONGER_PENDING = re.compile(r"no longer pending|already finished|Invalid job id", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingGsubJob:
    """One pending job that its user submitted with gsub. `known`: what relaxing and tuning did or advised before."""

    record: JobRecord
    submission: Submission
    # The plan in force: the second one, if a pre-run made one.
    plan: PlacementPlan
    attempt: RunKey
    known: tuple[ActionRecord, ...] = ()

    @property
    def eligible_at(self) -> float:
        """Return since when it could have started, in Unix seconds."""
        return float(self.record.eligible_time or 0)

    @property
    def asked(self) -> SubmittedRequest:
        """Return the submitted request, as placement.relaxation takes it."""
        submission = self.submission
        assert submission.shape is not None
        return SubmittedRequest(
            plan=self.plan,
            own=submission.own,
            shape=submission.shape,
            place=submission.place,
            tune=submission.tune,
        )


def list_queue_head(this_pass: ReconcilePass) -> tuple[PendingGsubJob, ...]:
    """Return the first `placement.relax_jobs` gsub jobs, in Slurm's own order in each partition; () in user mode."""
    most = this_pass.services.config.placement.relax_jobs
    if this_pass.services.scope.user is not None or not most:
        return ()
    if this_pass.head is None:
        changeable = [job for job in list_pending_gsub_jobs(this_pass) if may_be_touched(job, this_pass.now)]
        pinned = frozenset(job.job_id for job in changeable if job.req_nodes and _is_own_node_list(job, this_pass))
        found = (
            run_for_each_job(job, this_pass, partial(_make_pending_job, job, this_pass), None)
            for job in select_first_jobs(changeable, most, pinned)
        )
        this_pass.head = tuple(filter(None, found))
    return this_pass.head


def list_pending_gsub_jobs(this_pass: ReconcilePass) -> tuple[JobRecord, ...]:
    """Return the pending jobs for which a submission of their own user is known."""
    if this_pass.ours is None:
        this_pass.ours = tuple(_filter_gsub_jobs(this_pass))
    return this_pass.ours


def _filter_gsub_jobs(this_pass: ReconcilePass) -> Iterator[JobRecord]:
    book, new = this_pass.book, this_pass.summary.ingested.submitted
    keys = {run_key_from_job(job, book.cluster): job for job in this_pass.words.first.values() if job.pending}
    # A submission may arrive after its job was seen.
    book.strangers = {key for key in book.strangers if key in keys and keys[key].submitted_id not in new}
    for gone in book.submitted.keys() - keys.keys():
        del book.submitted[gone]
    for key, job in keys.items():
        if key not in book.strangers and _find_submission(key, job, this_pass) is not None:
            yield job


def select_first_jobs(jobs: Sequence[JobRecord], most: int, pinned: Collection[int] = ()) -> list[JobRecord]:
    """Return the jobs of the head of the queue that are considered in this pass.

    A tenth of the `most` places is for jobs with priority 0, which Slurm sets for a job that fits nowhere; they would
    never reach the head otherwise. The newest come first, since the older ones were relaxed before. Another tenth is
    for the `pinned`: ids of jobs that may only start on nodes that slurmwrap named. However far back they are, they
    must not wait for these nodes. In both groups each user gets one place before any user gets a second.
    """
    tenth = max(1, most // 10)
    without_priority = _order_by_user_turn(
        sorted((job for job in jobs if job.priority == 0), key=lambda job: -job.job_id)
    )[:tenth]
    with_priority = [job for job in jobs if job.priority]
    pinned_jobs = _order_by_user_turn(
        sorted((job for job in with_priority if job.job_id in pinned), key=lambda job: job.job_id)
    )[:tenth]
    taken = {job.job_id for job in pinned_jobs}
    return [
        *without_priority,
        *pinned_jobs,
        *(job for job in order_by_partition_turn(with_priority) if job.job_id not in taken),
    ][:most]


def _order_by_user_turn(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the first job of each user, then the second of each, and so on."""
    turns: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for job in jobs:
        ranks[job.job_id] = turns[job.uid] = turns.get(job.uid, -1) + 1
    return sorted(jobs, key=lambda job: ranks[job.job_id])


def order_by_partition_turn(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the first job of each partition, then the second of each, and so on.

    So a long queue does not hide the head of a short one. A job that names several partitions takes a place in each of
    them; a list of partitions is not a queue of its own.
    """
    ranked = sorted(jobs, key=lambda job: (-job.priority, job.job_id))
    places: Counter[str] = Counter()
    ranks: dict[int, int] = {}
    for job in ranked:
        names = set(job.partition.split(","))
        ranks[job.job_id] = min(places[name] for name in names)
        places.update(names)
    return sorted(ranked, key=lambda job: ranks[job.job_id])


def make_changes(
    this_pass: ReconcilePass,
    waiting: PendingGsubJob,
    rule: str,
    actions: Sequence[SlurmAction],
    back: Mapping[str, str],
    *,
    mode: str = "",
) -> bool:
    """Make changes that belong together, all or none of them. Return False if they must wait for a later pass.

    If the rule's mode is not `act`, they are recorded once as observed or advised. What was done or refused before is
    not repeated. `back`: key -> value to restore when Slurm refuses one of them. `mode`: "" for the rule's own one.
    """
    left = _list_undone_actions(actions, rule, waiting)
    if not left:
        return True
    mode = mode or this_pass.services.config.mode_of(rule)
    if mode != "act":
        recorded = {(known.key, known.value) for known in waiting.known if known.rule == rule}
        for action in left:
            if (action.key, action.value) not in recorded:
                store_intention(action, rule, mode, waiting.record, this_pass)
        return True
    if is_muted(waiting.record.uid, this_pass):
        return True
    if not take_tokens(len(left), this_pass):
        return False
    _apply_changes(left, rule, back, waiting, this_pass)
    return True


def _is_own_node_list(job: JobRecord, this_pass: ReconcilePass) -> bool:
    """Return True if slurmwrap set the job's node list, not its user."""
    return not this_pass.book.submitted[run_key_from_job(job, this_pass.book.cluster)].own.get("nodelist")


def take_tokens(count: int, this_pass: ReconcilePass) -> bool:
    """Return True if so many updates may be made now; False, and count it, if the rate limit holds them back."""
    if this_pass.unheard:
        return False
    per_s = this_pass.services.config.placement.relax_updates_per_s
    rest = take(fill_bucket(this_pass.book.bucket, this_pass.services.clock.now(), per_s), count, per_s)
    if rest is None:
        this_pass.summary.held_back += 1
        return False
    this_pass.book.bucket = rest
    return True


def make_unplanned_job(job: JobRecord, this_pass: ReconcilePass) -> PendingGsubJob | None:
    """Return a pending job for a rule that needs no plan, so that jobs without GPUs have one too."""
    key = run_key_from_job(job, this_pass.book.cluster)
    submission = _find_submission(key, job, this_pass)
    if submission is None:
        return None
    known = list_known_actions(key, job, submission, this_pass)
    return PendingGsubJob(record=job, submission=submission, plan=PlacementPlan(), attempt=key, known=known)


def _make_pending_job(job: JobRecord, this_pass: ReconcilePass) -> PendingGsubJob | None:
    waiting = make_unplanned_job(job, this_pass)
    plan = _plan_in_force(waiting.submission, this_pass) if waiting is not None else None
    if waiting is None or waiting.submission.shape is None or plan is None:
        return None
    waiting = replace(waiting, plan=plan)
    return None if _finish_begun_changes(waiting, this_pass) else waiting


def list_known_actions(
    key: RunKey, job: JobRecord, submission: Submission, this_pass: ReconcilePass
) -> tuple[ActionRecord, ...]:
    """Return the earlier actions on this job: also of earlier runs, and of the array from which a task was split.

    Slurm keeps what was changed then.
    """
    store, runs = this_pass.services.store, list[RunKey]()
    if job.restarts or job.array_task_id is not None:
        for job_id in {job.job_id, job.submitted_id}:
            before = [
                known.attempt for known in store.attempts(cluster=key.cluster, job_id=job_id) if known.uid == job.uid
            ]
            runs += [one for one in before if one != key and one.submit_time >= submission.at - _CLOCKS_S]
    return tuple(a for one in (*runs, key) for a in store.actions(one) if a.rule in WAITING_RULES)


def _finish_begun_changes(waiting: PendingGsubJob, this_pass: ReconcilePass) -> bool:
    """Return True if a change was begun and not finished, because the reconciler was killed in between. Make it again.

    That changes nothing if Slurm had accepted it. If Slurm refuses it now, the submitted values are restored. Nothing
    else of the job is changed in this pass.
    """
    begun = [
        a
        for a in waiting.known
        if a.done_at is None and a.mode == "act" and a.attempt == waiting.attempt and a.rule in _OF_THE_HEAD
    ]
    begun = [
        a
        for a in begun
        if this_pass.services.config.mode_of(a.rule) == "act" and not is_muted(waiting.record.uid, this_pass)
    ]
    for rule in {a.rule for a in begun}:
        actions = complete_cpu_updates(
            [_to_slurm_action(a) for a in begun if a.rule == rule], waiting.asked.shape, waiting.record
        )
        if take_tokens(len(actions), this_pass):
            _apply_changes(actions, rule, list_submitted_values(waiting.asked, waiting.record), waiting, this_pass)
    return bool(begun)


def _to_slurm_action(known: ActionRecord) -> SlurmAction:
    return SlurmAction(verb=Verb.UPDATE_JOB, target=known.target, key=known.key, value=known.value, reason=known.reason)


def _find_submission(key: RunKey, job: JobRecord, this_pass: ReconcilePass) -> Submission | None:
    found = this_pass.book.submitted.get(key)
    if found is None:
        found = this_pass.services.store.submission(key.cluster, job.submitted_id)
        if found is None or not is_submission_of_run(found, record_of(job, key.cluster)):
            this_pass.book.strangers.add(key)
            return None
        this_pass.book.submitted[key] = found
    return found


def _plan_in_force(submission: Submission, this_pass: ReconcilePass) -> PlacementPlan | None:
    """Return the newest plan that was applied; None if it cannot be read as a plan."""
    preruns = this_pass.services.store.preruns(job_id=submission.job_id) if submission.prerun_job_id is not None else ()
    own = (submission.cluster, submission.uid)
    later = [p.plan for p in preruns if (p.cluster, p.uid) == own and p.verdict.outcome is not Outcome.FAIL and p.plan]
    try:
        return this_pass.services.unpack(PlacementPlan, (later or [submission.plan])[-1])
    except ValueError:
        return None


def _list_undone_actions(actions: Sequence[SlurmAction], rule: str, waiting: PendingGsubJob) -> tuple[SlurmAction, ...]:
    """Return the actions that are still to be made; () if one of them was refused before.

    The other actions are not made without a refused one. If the last value that slurmwrap set for a key is no longer in
    force, someone changed it since, and it stays as it is.
    """
    tried = sorted((a for a in waiting.known if a.rule == rule and a.done_at is not None), key=lambda a: a.done_at or 0)
    if any((one.key, one.value) in {(a.key, a.value) for a in actions} and one.error for one in tried):
        return ()
    last = {a.key: a.value for a in tried if not a.error}
    return tuple(action for action in actions if last.get(action.key) != action.value)


def store_intention(action: SlurmAction, rule: str, mode: str, record: JobRecord, this_pass: ReconcilePass) -> int:
    """Store a change of a pending job as intended, with its run if that is new, and return the action's id."""
    store, attempt = this_pass.services.store, run_key_from_job(record, this_pass.book.cluster)
    with store.transaction():
        if store.attempt(attempt) is None:
            store.save_attempt(record_of(record, attempt.cluster))
        # The value may repeat: 6 CPUs, 12, and 6 once more are three changes, and the third one may be interrupted too.
        return store.intend(attempt, PlannedAction(rule=rule, action=action), mode, this_pass.now, again=mode == "act")


def _apply_changes(
    actions: Sequence[SlurmAction],
    rule: str,
    back: Mapping[str, str],
    waiting: PendingGsubJob,
    this_pass: ReconcilePass,
) -> None:
    """Make the changes in order. All are stored as intended before the first one is made, so that none is forgotten.

    A refusal ends the sequence. It is marked only after everything was put back: then a reconciler killed in between
    cannot leave in Slurm what Slurm refused.
    """
    rows = [store_intention(action, rule, "act", waiting.record, this_pass) for action in actions]
    made = 0
    for call in group_calls(actions):
        error = _apply_to_slurm(call, waiting, this_pass)
        if error is None:
            return
        made += len(call)
        if error and not NO_LONGER_PENDING.search(error):
            _undo(actions[:made], rule, back, waiting, this_pass)
        for row, action in zip(rows[made - len(call) : made], call, strict=True):
            mark_done(row, action, rule, error, waiting.record, this_pass)
        if error:
            for row, left in zip(rows[made:], actions[made:], strict=True):
                mark_done(row, left, rule, f"not made: {call[0].key} was refused", waiting.record, this_pass)
            return


def _undo(
    actions: Sequence[SlurmAction],
    rule: str,
    back: Mapping[str, str],
    waiting: PendingGsubJob,
    this_pass: ReconcilePass,
) -> None:
    """Put back the changes in reverse order: Slurm may keep what it refused, and checks the whole job after each key.

    See placement/retune.py. A node list or a number of nodes is never put back: the looser value does no harm, and a
    job that has just started would be shrunk to the old one.
    """
    job = this_pass.services.slurm.job(waiting.record.address)
    if job is None or not job.pending:
        return
    undone = [
        replace(action, value=back[action.key], reason=UNDONE)
        for action in reversed(actions)
        if action.key not in _NEVER_PUT_BACK and back.get(action.key) not in (None, action.value)
    ]
    for call in group_calls(undone):
        rows = [store_intention(again, rule, "act", waiting.record, this_pass) for again in call]
        error = _apply_to_slurm(call, waiting, this_pass)
        if error is not None:
            for row, again in zip(rows, call, strict=True):
                mark_done(row, again, rule, error, waiting.record, this_pass)


def _apply_to_slurm(call: Sequence[SlurmAction], waiting: PendingGsubJob, this_pass: ReconcilePass) -> str | None:
    """Apply one call in the owner's name. Return Slurm's refusal, "" if it succeeded, None if the result is unknown.

    With None the actions stay begun, and are made again in a later pass.
    """
    try:
        this_pass.services.slurm.apply(call[0], owner=waiting.record.uid, also=call[1:])
    except SlurmUnreachable as away:
        # Raises SlurmUnreachable if the controller itself does not answer.
        this_pass.services.slurm.job(waiting.record.address)
        mute_user(waiting.record.uid, this_pass)
        this_pass.unheard = True
        this_pass.summary.errors.append(f"job {call[0].target}: {away}")
        return None
    except SlurmError as refused:
        return str(refused) or "refused"
    return ""


def mark_done(
    number: int, action: SlurmAction, rule: str, error: str, record: JobRecord, this_pass: ReconcilePass
) -> None:
    """Mark a change of a pending job as done. `error`: Slurm's refusal, "" if there was none."""
    now = this_pass.services.clock.now()
    this_pass.services.store.done(number, now, error)
    attempt = run_key_from_job(record, this_pass.book.cluster)
    begun = intended(attempt, PlannedAction(rule=rule, action=action), "act", this_pass.now, action_id=number)
    done = replace(begun, done_at=now, error=error)
    (this_pass.summary.given_up if error else this_pass.summary.applied).append(done)


# A begin time this far after the submission was set by gsub for --prerun=gate (gsub/sbatch_call.py: one year).
_FAR_S = 180 * 86400
# Seconds after its end during which a pre-run may still report.
_SETTLE_S = 60


def release_gates(this_pass: ReconcilePass) -> None:
    """Release the jobs that wait for a pre-run which is gone; all that wait for one if slurmwrap is switched off."""
    reason = "slurmwrap is switched off" if this_pass.off else "its pre-run is gone without a verdict"
    is_due = _is_held_for_prerun if this_pass.off else _is_gate_without_prerun
    for job in this_pass.words.first.values():
        if not job.pending or job.reason != "BeginTime" or not (this_pass.off or _is_far(job)):
            continue
        submission = this_pass.services.store.submission(this_pass.book.cluster, job.job_id)
        if submission is None or submission.uid != job.uid or not is_due(job, submission, this_pass):
            continue
        action = SlurmAction(
            verb=Verb.UPDATE_JOB,
            # For an array, its pending tasks: its user may have started some.
            target=job.waiting_address or str(submission.job_id),
            key="StartTime",
            value=release_at(submission),
            reason=reason,
        )
        try:
            this_pass.services.slurm.apply(action)
            this_pass.services.say(f"job {submission.job_id} was released: {action.reason}")
        except SlurmUnreachable:
            raise
        except SlurmError as error:
            this_pass.summary.errors.append(f"job {submission.job_id}: {error}")


def release_at(submission: Submission) -> str:
    """Return the StartTime that the job would have had without a pre-run."""
    changed = next((change for change in submission.changes if change.get("option") == "begin"), None)
    own = changed.get("old") if changed else None
    return select_later_begin(str(own) if own else None, 0, submission.at)[1]


def _is_gate_without_prerun(job: JobRecord, submission: Submission, this_pass: ReconcilePass) -> bool:
    return submission.prerun_mode == "gate" and _is_prerun_gone(submission, this_pass)


def _is_held_for_prerun(job: JobRecord, submission: Submission, this_pass: ReconcilePass) -> bool:
    """Return whether the begin time is gsub's: as a gate, or the end of the grace period. Not one of the user's."""
    if not any(change.get("option") == "begin" for change in submission.changes):
        return False
    grace_s = this_pass.services.config.prerun.grace_s + _SETTLE_S
    return _is_far(job) or (job.eligible_time or 0) <= submission.at + grace_s


def _is_far(job: JobRecord) -> bool:
    return job.eligible_time is None or job.eligible_time > job.submit_time + _FAR_S


def _is_prerun_gone(submission: Submission, this_pass: ReconcilePass) -> bool:
    if submission.prerun_job_id is None:
        return this_pass.now > submission.at + _SETTLE_S
    prerun = this_pass.words.first.get(submission.prerun_job_id)
    if prerun is None:
        return this_pass.now > submission.at + _SETTLE_S
    return prerun.ended and this_pass.now > (prerun.end_time or prerun.submit_time) + _SETTLE_S
