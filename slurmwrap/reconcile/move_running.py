"""Move running jobs at a checkpoint, by their users' consent: rule `move`, and the ends of leases (docs/moving.md).

A move is a signal if the user named one, a checkpoint, and a requeue as of a retry, without the retry budget. It is
recorded before it begins, and each step of it before and after it is asked from Slurm: a reconciler that was killed at
any instruction goes on with what is recorded (policy/moved_run.py). A signal is never sent twice; if it is not known
whether it was sent, the job is requeued only if a checkpoint follows.

Checkpoints are those that the job's output or its working directory shows, read as its user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from slurmwrap.diagnosis.log_progress import find_last_progress, find_shown_progress
from slurmwrap.diagnosis.log_rows import read_log
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import MOVE_RULE, ActionRecord, JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.move_choice import (
    FEEDBACK,
    FRAGMENTATION,
    JobMove,
    MoveCandidate,
    classify_attained,
    find_move,
    find_successor,
)
from slurmwrap.policy.moved_run import (
    COST,
    GAINED,
    LEASE,
    LOST,
    ONE_SWITCH,
    REACHED,
    RESTARTED,
    SAVED,
    WAITS,
    RunMove,
    find_consent,
    find_lost_s,
    find_run_move,
    get_time_since_move,
    make_requeue_spec,
    sum_attained_s,
    sum_lost_s,
)
from slurmwrap.policy.requeue import RETRY_JOB_COMMENT, make_requeue_actions
from slurmwrap.policy.run_from_slurm import record_of, run_key_from_job
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.reconcile.judge_run import list_siblings, read_first_ends, read_output_ends
from slurmwrap.reconcile.move_view import (
    add_expected_starts,
    is_preempted_by_site,
    list_move_nodes,
    list_waiting_jobs,
    make_move_view,
)
from slurmwrap.reconcile.order_pending import find_order_settings
from slurmwrap.reconcile.reconcile_context import (
    MoveWatch,
    ReconcilePass,
    is_muted,
    mute_user,
    run_for_each_job,
    select_unwatched_jobs,
)
from slurmwrap.reconcile.run_time_lookup import find_run_time, find_submission
from slurmwrap.report.text_format import duration
from slurmwrap.sbatch.move_options import Preemptible

# Running jobs that are looked at in one pass, and new ones of which the submission is searched.
_LOOKS, _SEARCHED = 20, 500
# What a restart is assumed to take until a run of the job showed it, and at most. Seconds.
_RESTART_S, _LONGEST_RESTART_S = 180.0, 3600.0
# A checkpoint is seen so long after it was written.
_SEEN_S = 60.0
# A file is complete if it has not changed for so long.
_SETTLED_S = 5.0
# Runs that resumed, after which a job of --retry is known to resume.
_RESUMED_RUNS = 2
_PREEMPTION_S = 600.0


def move_running(this_pass: ReconcilePass) -> None:
    """Look at the running jobs whose users agreed, continue moves and begin new ones, end leases."""
    services, watches = this_pass.services, this_pass.book.moves
    site = services.scope.user is None
    if not site and services.config.site.published:
        # The site's reconciler does it.
        return
    running = {
        run_key_from_job(job, this_pass.book.cluster): job
        for job in this_pass.words.first.values()
        if job.state == "RUNNING" and job.start_time is not None and job.requeue and not job.het_job_id
        and job.comment != RETRY_JOB_COMMENT and (job.array_job_id is None or job.array_task_id is not None)
    }  # fmt: skip
    _update_watches(running, this_pass)
    looked = _look_at_due_jobs(running, this_pass)
    # What was moved or given up in this pass does not begin again before Slurm is read anew.
    settled = [(key, running[key]) for key in looked if watches[key].move is None]
    for key, job in running.items():
        if key in watches and watches[key].move is not None:
            run_for_each_job(job, this_pass, partial(_continue_move, key, job, this_pass), None)
    if not this_pass.off:
        _end_leases(settled, this_pass)
    mode = services.config.mode_of(MOVE_RULE)
    if site and mode != "observe" and looked:
        _begin_move(running, mode, this_pass)


# --- what is known of a job -------------------------------------------------------------------------------------------


def _update_watches(running: Mapping[RunKey, JobRecord], this_pass: ReconcilePass) -> None:
    watches = this_pass.book.moves
    for key, job in select_unwatched_jobs(running, watches, this_pass)[:_SEARCHED]:
        watches[key] = run_for_each_job(
            job, this_pass, partial(_make_watch, key, job, this_pass), MoveWatch(submission=None)
        )


def _make_watch(key: RunKey, job: JobRecord, this_pass: ReconcilePass) -> MoveWatch:
    store, submission = this_pass.services.store, find_submission(job, this_pass)
    if submission is None or not (submission.preemptible or submission.lease_s or (submission.retry and job.restarts)):
        return MoveWatch(submission=None)
    others = list_siblings(record_of(job, key.cluster), this_pass) if job.restarts else ()
    before = [one for one in others if one.uid == job.uid and one.attempt.submit_time < key.submit_time]
    earlier = [action for one in before for action in store.actions(one.attempt)]
    mine = store.actions(key)
    how = find_consent(submission)
    if how is None and submission.retry:
        resumed = sum(one.diagnosis is not None and one.diagnosis.resumed for one in before)
        how = Preemptible() if resumed >= _RESUMED_RUNS else None
    if how is None and not submission.lease_s:
        return MoveWatch(submission=None)
    move = find_run_move(mine)
    return MoveWatch(
        submission=submission,
        how=how or Preemptible(),
        agreed=how is not None,
        begins={**read_first_ends(submission.logs), **read_output_ends(before)},
        attained_s=sum_attained_s(before, key.submit_time),
        lost_s=sum_lost_s((*earlier, *mine)),
        moved_before_s=get_time_since_move((*earlier, *mine), this_pass.now),
        since=this_pass.now,
        last=_find_last_move(before, this_pass) if not any(one.key == RESTARTED for one in mine) else None,
        move=move if move is not None and move.begun.done_at is None else None,
    )


def _find_last_move(before: Sequence[JobRun], this_pass: ReconcilePass) -> RunMove | None:
    """Return the move that ended the run before this one; None if something else ended it."""
    if not before:
        return None
    last = max(before, key=lambda one: one.attempt.submit_time)
    found = find_run_move(this_pass.services.store.actions(last.attempt))
    return found if found is not None and not found.begun.error else None


def _look_at_due_jobs(running: Mapping[RunKey, JobRecord], this_pass: ReconcilePass) -> list[RunKey]:
    watches, now = this_pass.book.moves, this_pass.now
    due = sorted(
        (watch.looked_at, key.job_id, key)
        for key, watch in watches.items()
        if watch.submission is not None
        and not 0 <= now - watch.looked_at < (0 if _is_signalled(watch) else this_pass.services.config.move.look_s)
    )
    looked = [key for _, _, key in due[:_LOOKS]]
    for key in looked:
        run_for_each_job(running[key], this_pass, partial(_look, key, running[key], this_pass), None)
    return looked


def _is_signalled(watch: MoveWatch) -> bool:
    return watch.move is not None and watch.move.signal is not None


def _look(key: RunKey, job: JobRecord, this_pass: ReconcilePass) -> None:
    services, watch = this_pass.services, this_pass.book.moves[key]
    now = services.clock.now()
    watch.looked_at = now
    assert watch.submission is not None and job.start_time is not None
    run = replace(services.store.attempt(key) or record_of(job, key.cluster), output_begins=dict(watch.begins))
    logs = [read_log(tail) for tail in services.logs.tails(run, tuple(watch.submission.logs))]
    progress = find_last_progress(logs)
    shown = find_shown_progress(logs, now - job.start_time, resumed=job.restarts > 0)
    watch.left_s = shown.left_s if shown is not None else None
    watch.reached = progress.step if progress.step is not None else watch.reached
    if watch.first_step is None and progress.first_step is not None:
        watch.first_step, watch.first_at = progress.first_step, now
    if progress.checkpoint_step is not None and progress.checkpoint_step > watch.step:
        watch.step, watch.saved_at = progress.checkpoint_step, now
    written = services.saved_at(run, job.work_dir)
    if written is not None and max(watch.saved_at or 0.0, job.start_time) < written <= now - _SETTLED_S:
        watch.saved_at = written
    if watch.submission.step_dir and watch.agreed:
        watch.slowdown = _find_slowdown(run, watch.submission, this_pass)
    if watch.last is not None and watch.first_step is not None:
        _check_where_it_began(key, job, watch, watch.last, watch.first_step, this_pass)


def _find_slowdown(run: JobRun, submission: Submission, this_pass: ReconcilePass) -> float:
    """Return how many times slower the run makes steps than the fastest known run of its job with as many GPUs.

    The steps are those of the step counter. 1.0 if that is not known.
    """
    per_s = this_pass.services.steps(run, submission.step_dir).get("per_s")
    known = [
        one.measurement.steps_per_s
        for one in list_siblings(run, this_pass)
        if one.uid == run.uid and one.gpus == run.gpus and one.measurement and one.measurement.steps_per_s
    ]
    profile = this_pass.services.store.profile(derive_site_key(run.uid, submission.profile_key))
    if profile is not None and profile.steps_per_s and profile.source == "epilog" and run.gpus == profile.gpus_per_node:
        known.append(profile.steps_per_s)
    return max(known) / per_s if known and isinstance(per_s, float) and per_s > 0 else 1.0


def _check_where_it_began(
    key: RunKey, job: JobRecord, watch: MoveWatch, last: RunMove, first_step: int, this_pass: ReconcilePass
) -> None:
    """Record that the run began again from its start although its user said that it continues."""
    watch.last = None
    lost_s = find_lost_s(first_step, last, watch.attained_s)
    if not lost_s:
        return
    watch.lost_s += lost_s
    reached = dict(last.begun.figures).get(REACHED, 0.0)
    revoked = watch.lost_s >= this_pass.services.config.move.lost_s
    reason = (
        f"it began again at step {first_step:,} although it had reached step {reached:,.0f}: "
        f"{duration(lost_s)} of work were lost{', so it is no longer moved' if revoked else ''}"
    )
    action = SlurmAction(
        verb=Verb.MOVE,
        target=job.address,
        key=RESTARTED,
        value=str(int(lost_s)),
        reason=reason,
        figures=((LOST, round(lost_s * job.gpus)),),
    )
    number = this_pass.services.store.intend(key, PlannedAction(rule=MOVE_RULE, action=action), "act", this_pass.now)
    this_pass.services.store.done(number, this_pass.now)
    this_pass.services.say(f"job {job.address}: {reason}")


# --- begin a move -----------------------------------------------------------------------------------------------------


def _begin_move(running: Mapping[RunKey, JobRecord], mode: str, this_pass: ReconcilePass) -> None:
    watches, settings = this_pass.book.moves, this_pass.services.config.move
    by_address = {job.address: key for key, job in running.items()}
    found = (
        run_for_each_job(running[key], this_pass, partial(_make_candidate, running[key], watch, this_pass), None)
        for key, watch in watches.items()
        if watch.agreed and watch.submission is not None and watch.move is None and watch.looked_at
    )
    candidates = [one for one in found if one is not None]
    if not candidates:
        return
    moving = sum(running[key].gpus for key, watch in watches.items() if watch.move is not None)
    view = make_move_view(candidates, moving, this_pass)
    if find_move(view, settings) is None:
        return
    # The forecast is read only now, because it takes longest.
    move = find_move(add_expected_starts(view, this_pass), settings)
    if move is None:
        return
    slow = {one.job: one.slowdown for one in candidates}
    for address in move.jobs:
        key = by_address[address]
        reason = _format_move_reason(move, slow[address])
        share = 1 / len(move.jobs)
        figures = (
            (GAINED, round(move.gained_gpu_s * share)),
            (LOST, round(move.lost_gpu_s * share)),
            (WAITS, round(move.waits_s)),
            (COST, round(move.cost_s)),
        )
        value = ONE_SWITCH if move.one_switch else ",".join(move.avoid) or move.waiting
        action = SlurmAction(verb=Verb.MOVE, target=address, key=move.occasion, value=value, reason=reason)
        _record_begin(key, running[key], action, figures, mode, this_pass)


def _format_move_reason(move: JobMove, slowdown: float) -> str:
    cost = f"its restart costs about {duration(move.cost_s / len(move.jobs))}"
    if move.occasion == FEEDBACK:
        return f"job {move.waiting}, which needs less, waits {duration(move.gain_s)} less by that; {cost}"
    if move.occasion == FRAGMENTATION:
        several = f" and {len(move.jobs) - 1} more" if len(move.jobs) > 1 else ""
        return f"its GPU{several} makes scattered free GPUs usable for job {move.waiting}; {cost}"
    where = "below several switches" if move.one_switch else f"on {', '.join(move.avoid)}"
    return f"it runs {slowdown:.1f} times slower {where} than it could; {cost}"


def _record_begin(
    key: RunKey,
    job: JobRecord,
    action: SlurmAction,
    figures: tuple[tuple[str, float], ...],
    mode: str,
    this_pass: ReconcilePass,
) -> None:
    """Record that a move begins, or once in each run that it is advised."""
    store, watch = this_pass.services.store, this_pass.book.moves[key]
    figures = ((REACHED, float(watch.reached or 0)), (SAVED, float(watch.step)), *figures)
    action = replace(action, figures=figures)
    if mode != "act" and any(one.rule == MOVE_RULE and one.key == action.key for one in store.actions(key)):
        return
    with store.transaction():
        if store.attempt(key) is None:
            store.save_attempt(record_of(job, key.cluster))
        number = store.intend(key, PlannedAction(rule=MOVE_RULE, action=action), mode, this_pass.now, again=True)
    this_pass.services.say(
        f"job {job.address}: {'to be moved' if mode == 'act' else 'a move is advised'}: {action.reason}"
    )
    watch.moved_before_s, watch.since = 0.0, this_pass.now
    if mode == "act":
        found = find_run_move(one for one in store.actions(key) if one.action_id == number)
        watch.move = found
        run_for_each_job(job, this_pass, partial(_continue_move, key, job, this_pass), None)


def _make_candidate(job: JobRecord, watch: MoveWatch, this_pass: ReconcilePass) -> MoveCandidate | None:
    """Return the job as a candidate; None if it may not be moved, or its checkpoints cannot be seen."""
    settings, book = this_pass.services.config.move, this_pass.book
    if watch.lost_s >= settings.lost_s or (not watch.how.signal and watch.saved_at is None) or not job.nodes:
        return None
    if book.preemption is None or not 0 <= this_pass.now - book.preemption_at < _PREEMPTION_S:
        book.preemption, book.preemption_at = this_pass.services.preemption(), this_pass.now
    if is_preempted_by_site(job, this_pass.snapshot().partitions, book.preemption):
        return None
    attained_s = watch.attained_s + this_pass.now - float(job.start_time or this_pass.now)
    per_node = max(1, job.gpus // len(job.nodes))
    cpus = job.cpus // len(job.nodes)
    thresholds = find_order_settings(this_pass).thresholds
    return MoveCandidate(
        job=job.address,
        gpus=tuple((node, per_node) for node in job.nodes) if job.gpus else (),
        attained_s=attained_s,
        remaining_s=_expect_remaining_s(job, watch, attained_s, this_pass),
        unsaved_s=float(watch.how.seconds) if watch.how.signal else _SEEN_S,
        restart_s=_find_restart_s(job, watch) + settings.headstart_s,
        order_class=classify_attained(attained_s * max(1, job.gpus), thresholds),
        moved_before_s=watch.moved_before_s + this_pass.now - watch.since,
        slowdown=watch.slowdown,
        partitions=tuple(job.partition.split(",")),
        cpus=cpus,
        mem_mib=job.mem_mib_per_node or (job.mem_mib_per_cpu or 0) * cpus,
    ) if job.gpus else None  # fmt: skip


def _expect_remaining_s(job: JobRecord, watch: MoveWatch, attained_s: float, this_pass: ReconcilePass) -> float:
    """Return the expected remaining run time: by the job's progress, else by earlier runs, else as long as it ran."""
    left_s = watch.left_s
    if left_s is None:
        estimate = find_run_time(job, this_pass)
        left_s = estimate.expect_remaining_s(attained_s) if estimate is not None else None
    left_s = attained_s if left_s is None else left_s
    if job.time_limit_s is not None and job.start_time is not None:
        left_s = min(left_s, max(0.0, job.start_time + job.time_limit_s - this_pass.now))
    return left_s


def _find_restart_s(job: JobRecord, watch: MoveWatch) -> float:
    """Return how long this run took until its first step was seen; a usual time if that is not known."""
    start = float(job.start_time or 0)
    if watch.first_at is None or watch.since - start > _RESTART_S:
        return _RESTART_S
    return min(max(0.0, watch.first_at - start), _LONGEST_RESTART_S)


# --- leases -----------------------------------------------------------------------------------------------------------


def _end_leases(looked: Sequence[tuple[RunKey, JobRecord]], this_pass: ReconcilePass) -> None:
    """Begin to end the leases that are over and for whose GPUs another job waits. All others are extended.

    The user's own choice is the switch, whatever the mode of the rule.
    """
    over = [(key, job) for key, job in looked if _is_lease_over(job, this_pass.book.moves[key], this_pass.now)]
    if not over:
        return
    # A user's own reconciler otherwise reads that user's jobs alone.
    everyone: Iterable[JobRecord] = this_pass.words.first.values()
    if this_pass.services.scope.user is not None:
        everyone = this_pass.services.slurm.jobs()
    waiting, nodes = list_waiting_jobs(everyone, this_pass), list_move_nodes(this_pass.snapshot())
    for key, job in over:
        candidate = _make_lease_holder(job)
        successor = find_successor(candidate, waiting, nodes)
        if successor is None:
            continue
        waiting = tuple(one for one in waiting if one is not successor)
        reason = f"its --lease is over, and job {successor.job} waits for its GPUs"
        action = SlurmAction(verb=Verb.MOVE, target=job.address, key=LEASE, value=successor.job, reason=reason)
        _record_begin(key, job, action, (), "act", this_pass)


def _is_lease_over(job: JobRecord, watch: MoveWatch, now: float) -> bool:
    lease_s = watch.submission.lease_s if watch.submission is not None else 0
    return bool(job.gpus and job.nodes and lease_s and job.start_time is not None and now - job.start_time >= lease_s)


def _make_lease_holder(job: JobRecord) -> MoveCandidate:
    cpus = job.cpus // len(job.nodes)
    return MoveCandidate(
        job=job.address,
        gpus=tuple((node, max(1, job.gpus // len(job.nodes))) for node in job.nodes),
        attained_s=0.0,
        remaining_s=0.0,
        unsaved_s=0.0,
        restart_s=0.0,
        cpus=cpus,
        mem_mib=job.mem_mib_per_node or (job.mem_mib_per_cpu or 0) * cpus,
    )


# --- carry a move out -------------------------------------------------------------------------------------------------


def _continue_move(key: RunKey, job: JobRecord, this_pass: ReconcilePass) -> None:
    """Take the next step of a move: the signal, the wait for the checkpoint, the requeue; or give it up."""
    watch, settings, now = this_pass.book.moves[key], this_pass.services.config.move, this_pass.now
    move = watch.move
    assert move is not None
    signal, how = move.signal, watch.how
    if signal is None and (why := _find_obstacle(move, watch, this_pass)):
        _give_up(watch, move, why, this_pass)
        return
    if how.signal and signal is None:
        _send_signal(key, job, watch, move, this_pass)
        this_pass.summary.waiting += 1
        return
    if signal is not None and signal.error:
        _give_up(watch, move, f"the signal was refused: {signal.error}", this_pass)
        return
    since = move.begun.intended_at if signal is None else signal.intended_at
    waited, bound = now - since, float(how.seconds) if signal is not None else settings.wait_s
    saved = watch.step > dict(move.begun.figures).get(SAVED, -1.0) or (watch.saved_at or 0.0) > since
    if saved or (waited >= bound and signal is not None and signal.done_at is not None and not _shows_saves(watch)):
        _requeue(key, job, watch, move, this_pass)
    elif waited >= bound:
        what = "its signal" if signal is not None else "the move began"
        _give_up(watch, move, f"no checkpoint within {duration(bound)} after {what}", this_pass)
    else:
        this_pass.summary.waiting += signal is not None


def _shows_saves(watch: MoveWatch) -> bool:
    """Return whether this run has shown a checkpoint: then one that is not seen was not written."""
    return watch.saved_at is not None


def _find_obstacle(move: RunMove, watch: MoveWatch, this_pass: ReconcilePass) -> str:
    """Return why a move that has changed nothing yet is not right any more; "" if it is."""
    begun = move.begun
    if begun.key != LEASE and this_pass.services.config.mode_of(MOVE_RULE) != "act":
        return "the rule move does not act any more"
    if begun.key in (FEEDBACK, FRAGMENTATION, LEASE) and this_pass.services.scope.user is None:
        waits = {one.waiting_address or one.address for one in this_pass.words.first.values() if one.pending}
        if begun.value not in waits:
            return f"job {begun.value} no longer waits"
    return ""


def _give_up(watch: MoveWatch, move: RunMove, why: str, this_pass: ReconcilePass) -> None:
    this_pass.services.store.done(move.begun.action_id, this_pass.now, why)
    this_pass.services.say(f"job {move.begun.target}: not moved: {why}")
    watch.move = None


def _send_signal(key: RunKey, job: JobRecord, watch: MoveWatch, move: RunMove, this_pass: ReconcilePass) -> None:
    services, how = this_pass.services, watch.how
    if is_muted(job.uid, this_pass):
        return
    action = SlurmAction(
        verb=Verb.SIGNAL,
        target=job.address,
        key=how.signal,
        value="batch" if how.batch else "",
        reason=f"it has {duration(how.seconds)} for a checkpoint",
    )
    number = services.store.intend(key, PlannedAction(rule=MOVE_RULE, action=action), "act", this_pass.now, again=True)
    try:
        services.slurm.apply(action, owner=job.uid)
    except SlurmUnreachable as away:
        # It stays open: the signal may have been sent. Raises SlurmUnreachable if the controller does not answer.
        watch.move = replace(move, signal=_find_action(key, number, this_pass))
        services.slurm.job(job.address)
        mute_user(job.uid, this_pass)
        this_pass.summary.errors.append(f"job {job.address}: {away}")
        return
    except SlurmError as refused:
        services.store.done(number, services.clock.now(), str(refused) or "refused")
    else:
        services.store.done(number, services.clock.now())
    watch.move = replace(move, signal=_find_action(key, number, this_pass))


def _find_action(key: RunKey, number: int, this_pass: ReconcilePass) -> ActionRecord:
    return next(one for one in this_pass.services.store.actions(key) if one.action_id == number)


def _requeue(key: RunKey, job: JobRecord, watch: MoveWatch, move: RunMove, this_pass: ReconcilePass) -> None:
    """Requeue the job. The steps after that follow once its run has ended (execute_actions.finish)."""
    services, store = this_pass.services, this_pass.services.store
    assert watch.submission is not None
    shown = services.slurm.job(job.address)
    if shown is None or shown.state != "RUNNING" or shown.submit_time != key.submit_time:
        # It ends by itself. What follows is decided when its run is judged.
        this_pass.summary.waiting += 1
        return
    spec = make_requeue_spec(move, job, services.config.move, output_appends=watch.submission.output_appends)
    first, *rest = make_requeue_actions(spec, job)
    with store.transaction():
        number = store.intend(key, first, "act", this_pass.now, again=True)
        numbers = [store.intend(key, one, "act", this_pass.now, again=True) for one in rest]
    error = ""
    try:
        services.slurm.apply(first.action)
    except SlurmUnreachable:
        raise
    except SlurmError as refused:
        error = str(refused) or "refused"
    store.done(number, services.clock.now(), error)
    if error:
        for one in numbers:
            store.done(one, this_pass.now, "the requeue was refused")
        _give_up(watch, move, error, this_pass)
        return
    services.say(f"job {job.address}: {spec.reason}")
    # This run is over; its record in this pass is older.
    watch.move = watch.submission = None
    this_pass.summary.waiting += 1
