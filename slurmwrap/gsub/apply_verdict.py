"""Apply a pre-run's verdict to the job that waits for it: release it with an updated plan, or explain and cancel it.

Runs on the pre-run's node, as the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import localtime, strftime
from typing import TYPE_CHECKING, TypeVar

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.escape import comment
from slurmwrap.fast_dataclasses import asdict, dataclass, replace
from slurmwrap.gsub.planning_inputs import find_known_profile, find_run_time, keep, read_planning_facts
from slurmwrap.gsub.waiting_job import has_user_changed_start_time, is_as_given, is_eligible, start_action
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.retune import make_retune_actions, undo
from slurmwrap.profiling.job_key import derive_length, derive_variant
from slurmwrap.profiling.merge_profiles import merge
from slurmwrap.profiling.run_time import compute_run_s_by_prerun
from slurmwrap.store.site_switch import read_site_switch

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.gsub.waiting_job import JobIdentity
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.sbatch.job_request import JobRequest


# Seconds between attempts while the controller does not answer. A restart of it takes less than all of them, and a job
# submitted with --prerun=gate starts only if the pre-run releases it.
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
# Seconds to wait before asking again when squeue did not know the job.
AGAIN_S = 2.0
# Number of equal consecutive answers that are accepted as final.
_CONFIRMATIONS = 3

# Options that can keep a job from starting at once when its pre-run releases it.
_DELAYING_OPTIONS = ("dependency", "hold")

T = TypeVar("T")
# The actions sent to Slurm, as dictionaries with the key `error`: Slurm's error message, or None.
Applied = tuple[Mapping[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """The real job that waits for a pre-run, as it was submitted. `job_id` None: no job waits."""

    request: JobRequest
    plan: PlacementPlan
    job_id: int | None
    prerun_job_id: int
    release_at: str
    profile_key: str
    fingerprint: str
    cluster: str = ""  # "": ask Slurm
    given: tuple[float, ...] = ()  # the begin times that gsub may have set, Unix seconds (gsub/waiting_job.py)
    job: JobIdentity | None = None  # distinguishes it from a later job with the same id; None: not known
    output: str = ""  # the file that the script wrote to in the pre-run
    pack_dir: str = ""  # of an array that its pre-run may fold (gsub/fold_array.py); "": none
    borrowed: bool = False  # the verdict is that of a job with the same script and code but other arguments


def apply_verdict(
    waiting: HeldJob, verdict: Verdict, context: SubmitContext, released: PrerunRecord | None = None
) -> PrerunRecord:
    """Act on a verdict, as the user: for `fail` cancel the waiting job with the reason, else tune and release it.

    `released`: the record of an earlier verdict of the same pre-run, which released the job. The new record replaces
    it, and the job is cancelled also if it runs meanwhile.

    The verdict is recorded before any change in Slurm, and again with the results. So nothing is lost if this process
    is killed in between, and a user who sees a cancelled job finds the reason.
    """
    record = _build_prerun_record(waiting, verdict, context)
    if released is not None:
        record = replace(record, at=released.at, plan=released.plan, changes=released.changes, released=True)
    keep(lambda: context.memory.remember_prerun(record), context)
    if waiting.job_id is None:
        return record
    switch = read_site_switch(context.config)
    if switch is not None:
        context.say(f"slurmwrap is switched off ({switch.describe()}): the verdict changes nothing")
        applied, starts = ((), True) if released is not None else _release_as_submitted(waiting, context)
        final = replace(record, changes=(*record.changes, *applied), released=starts)
    elif verdict.outcome is Outcome.FAIL and not waiting.borrowed:
        cancelled = _cancel(waiting, waiting.job_id, verdict, context, may_run=released is not None)
        final = replace(record, changes=(*record.changes, *cancelled))
    elif released is not None:
        return record
    else:
        chosen, applied, starts = _plan_again(
            waiting, read_measured_profile(waiting, verdict, context), verdict.measurement, context
        )
        final = replace(record, plan=asdict(chosen), changes=applied, released=starts)
    keep(lambda: context.memory.remember_prerun(final), context)
    return final


def _build_prerun_record(waiting: HeldJob, verdict: Verdict, context: SubmitContext) -> PrerunRecord:
    return PrerunRecord(
        cluster=waiting.cluster or context.cluster,
        job_id=waiting.job_id,
        prerun_job_id=waiting.prerun_job_id,
        uid=context.uid,
        at=context.clock.now(),
        # Borrowed: these arguments were never tried. The measurement is stored only with the job it was made for.
        verdict=replace(verdict, measurement=None) if waiting.borrowed else verdict,
        fingerprint="" if waiting.borrowed else waiting.fingerprint,
        profile_key=waiting.profile_key,
        profile_variant=derive_variant(waiting.request),
        gpus=waiting.request.shape.gpus,
        plan=asdict(waiting.plan),
        user=context.user,
        name=waiting.request.job_name,
        script_path=waiting.request.script.path or "",
        work_dir=waiting.request.chdir,
        output=waiting.output,
    )


def read_measured_profile(waiting: HeldJob, verdict: Verdict, context: SubmitContext) -> ResourceProfile | None:
    """Return the job's resource profile, merged with the measurement of the pre-run unless that failed."""
    old = find_known_profile(waiting.profile_key, context)
    if verdict.measurement is None or verdict.outcome is Outcome.FAIL:
        return old
    return merge(
        old,
        verdict.measurement,
        key=waiting.profile_key,
        source="prerun",
        at=context.clock.now(),
        gpu_type=waiting.request.shape.gpu_type or "",
        gpus_per_node=waiting.request.shape.gpus_per_node or 0,
        complete=False,
        variant=derive_variant(waiting.request),
    )


def _cancel(
    waiting: HeldJob, job_id: int, verdict: Verdict, context: SubmitContext, *, may_run: bool = False
) -> Applied:
    """Set the job's Comment to the reason, then cancel it. The comment comes first, so that it survives the job.

    A job that has already started is left alone unless it `may_run`. If Slurm does not answer, the job is neither
    cancelled nor released: it starts when its grace period is over.
    """
    try:
        find = find_unfinished_job if may_run else find_waiting_job
        record = _retry_while_unreachable(lambda: find(job_id, context, waiting.job), context)
    except SlurmError as error:
        context.say(f"job {job_id} could not be cancelled: {error}")
        refused = SlurmAction(verb=Verb.CANCEL, target=str(job_id), reason=verdict.reason)
        return (_describe_action(refused, str(error)),)
    if record is None:
        return ()
    text = comment(f"slurmwrap: pre-run failed: {verdict.reason}", record.comment)
    target = str(job_id)
    actions = (
        SlurmAction(verb=Verb.UPDATE_JOB, target=target, key="Comment", value=text, reason="the reason stays visible"),
        SlurmAction(verb=Verb.CANCEL, target=target, reason=verdict.reason),
    )
    return _apply_each(actions, context)


def find_waiting_job(job_id: int, context: SubmitContext, meant: JobIdentity | None = None) -> JobRecord | None:
    """Return the job's record while the whole job waits; None once it started, ended or was cancelled.

    For an array, return None as soon as one task has started or ended: its id addresses all tasks, and a running task
    must not be changed (Slurm 22.05: the last task to start keeps the array's id as its own). Return None also if the
    id no longer belongs to the job `meant`.
    """
    record = _read_job_record(job_id, context)
    if record is not None and meant is not None and meant.is_not(record):
        context.say(f"job {job_id} is left alone: Slurm gave the id to another job since")
        return None
    if record is None or record.array_job_id is None:
        return record if record is not None and record.pending else None
    tasks = [one for one in context.slurm.jobs(context.user) if one.array_job_id == record.array_job_id]
    started = [one for one in tasks if one.state not in ("PENDING", "CANCELLED")]
    return record if record.pending and not started else None


def find_unfinished_job(job_id: int, context: SubmitContext, meant: JobIdentity | None = None) -> JobRecord | None:
    """Return the job's record while it waits or runs; None once it ended, or if its id belongs to another job."""
    record = _read_job_record(job_id, context)
    if record is None or record.state not in ("PENDING", "CONFIGURING", "RUNNING"):
        return None
    return None if meant is not None and meant.is_not(record) else record


def _read_job_record(job_id: int, context: SubmitContext) -> JobRecord | None:
    """Return Slurm's record of the job; None only if several queries in a row did not find it.

    squeue has been observed to miss a job that existed.
    """
    for _ in range(_CONFIRMATIONS - 1):
        record = context.slurm.job(str(job_id))
        if record is not None:
            return record
        context.clock.sleep(AGAIN_S)
    return context.slurm.job(str(job_id))


def _plan_again(
    waiting: HeldJob, profile: ResourceProfile | None, measurement: Measurement | None, context: SubmitContext
) -> tuple[PlacementPlan, Applied, bool]:
    """Plan again with the measurement and a new snapshot, apply the changes one key per call, then set StartTime.

    If Slurm refuses one update, all are undone: Slurm may refuse an update and keep its value (placement/retune.py). A
    job that has started, ended or been cancelled is left alone, and so is a StartTime that the user has changed. A job
    that was not held for its pre-run needs no StartTime.
    Return (plan in force, applied actions, whether the job was released).
    """
    target, chosen = str(waiting.job_id), waiting.plan
    applied: Applied = ()
    eligible = False
    try:
        record = _retry_while_unreachable(lambda: find_waiting_job(int(target), context, waiting.job), context)
        if record is None:
            return (chosen, *_release_rest_of_array(waiting, context))
        eligible = is_eligible(record, context.clock.now())
        if has_user_changed_start_time(record, waiting.given, context.clock.now()):
            context.say(f"job {target} keeps the start time that its user has set meanwhile")
            waiting = replace(waiting, release_at="")
        if not waiting.request.hetjob:
            chosen, applied = _apply_second_plan(waiting, profile, measurement, record, context)
        if waiting.pack_dir and eligible:
            context.say("--pack=auto: the array may start at any moment, so it is not folded")
        elif waiting.pack_dir:
            applied = (*applied, *_fold_array(waiting, profile, record, context))
    except (SlurmError, ValueError) as error:
        # The job passed its pre-run, so a failure to plan must not keep it waiting.
        context.say(f"not tuned again: {error}")
    if eligible:
        return chosen, applied, True
    if not waiting.release_at:
        return chosen, applied, False
    start = start_action(target, waiting.release_at, "its pre-run found no error that stops it")
    release = _apply_each((start,), context)
    return chosen, (*applied, *release), bool(release) and release[0]["error"] is None


def _release_as_submitted(waiting: HeldJob, context: SubmitContext) -> tuple[Applied, bool]:
    """Release the job without any other change. Return the applied actions, and whether the job may start."""
    record = _retry_while_unreachable(lambda: find_waiting_job(int(waiting.job_id or 0), context, waiting.job), context)
    if record is None:
        return _release_rest_of_array(waiting, context)
    if is_eligible(record, context.clock.now()):
        return (), True
    if not waiting.release_at or has_user_changed_start_time(record, waiting.given, context.clock.now()):
        return (), False
    release = _apply_each(
        (start_action(str(waiting.job_id), waiting.release_at, "slurmwrap is switched off"),), context
    )
    return release, release[0]["error"] is None


def _fold_array(
    waiting: HeldJob, profile: ResourceProfile | None, record: JobRecord, context: SubmitContext
) -> Applied:
    """Fold the waiting array by the measured speeds. If anything is refused, its tasks keep one member each."""
    from slurmwrap.gsub import fold_array
    from slurmwrap.gsub.pack_submission import find_speed_alone

    plan = fold_array.plan_fold(waiting.request, profile, context.slurm.snapshot(), context)
    address = record.waiting_address
    if plan is None or not address:
        return ()
    hold = fold_array.make_hold(address, record.eligible_time, context.clock.now())
    held = _apply_each(hold, context)
    if any(one["error"] for one in held) or find_waiting_job(int(waiting.job_id or 0), context, waiting.job) is None:
        return held
    updates = fold_array.make_fold_updates(address, waiting.request, plan)
    try:
        # In one call: either the tasks get all of it or, if Slurm refuses, it is undone.
        _retry_while_unreachable(lambda: context.slurm.apply(updates[0], also=updates[1:]), context)
        fold_array.write_members(waiting.pack_dir, plan.members, find_speed_alone(profile))
    except (SlurmError, OSError, ValueError) as error:
        context.say(f"--pack=auto: the array is not folded: {error}")
        refused = tuple(_describe_action(one, str(error)) for one in updates)
        back = _apply_each(fold_array.undo_fold_updates(updates, waiting.request), context)
        return (*held, *refused, *back)
    done = tuple(_describe_action(one, None) for one in updates)
    return (*held, *done, *_apply_each(fold_array.make_throttle_update(address, waiting.request, plan), context))


def _release_rest_of_array(waiting: HeldJob, context: SubmitContext) -> tuple[Applied, bool]:
    """Release the waiting tasks of an array of which a task has started because its user released it."""
    record = _retry_while_unreachable(lambda: context.slurm.job(str(waiting.job_id)), context)
    if record is None or record.array_job_id is None or not record.pending or not record.waiting_address:
        return (), False
    if has_user_changed_start_time(record, waiting.given, context.clock.now()):
        return (), False
    start = start_action(record.waiting_address, waiting.release_at, "its pre-run found no error that stops it")
    release = _apply_each((start,), context)
    return release, release[0]["error"] is None


def _apply_second_plan(
    waiting: HeldJob,
    profile: ResourceProfile | None,
    measurement: Measurement | None,
    record: JobRecord,
    context: SubmitContext,
) -> tuple[PlacementPlan, Applied]:
    # All tasks of an array would get the same nodes, so only a job that is no array is planned as starting at once.
    alone = record.array_job_id is None
    at_once = (
        alone and waiting.release_at == "now" and not any(waiting.request.setting(one) for one in _DELAYING_OPTIONS)
    )
    snapshot = context.slurm.snapshot()
    prerun_s = compute_run_s_by_prerun(measurement, waiting.request.shape.gpus) if measurement is not None else None
    variant, length = derive_variant(waiting.request), derive_length(waiting.request, context.environ)
    run_time = find_run_time(waiting.request, waiting.profile_key, variant, length, snapshot, context, prerun_s)
    known = read_planning_facts(context, starts_now=at_once, run_time=run_time)
    seen = replace(known, qos=record.qos, account=record.account)
    second = plan(
        *(waiting.request, profile, snapshot, context.published.health, context.config, seen),
        before=waiting.plan,
    )
    updates = make_retune_actions(waiting.plan, second, waiting.request, record)
    applied = _apply_each(updates, context)
    if any(change["error"] for change in applied):
        return waiting.plan, (*applied, *_apply_each(undo(updates, waiting.plan, waiting.request, record), context))
    return replace(second, profile_key=waiting.profile_key), applied


def _apply_each(actions: Sequence[SlurmAction], context: SubmitContext) -> Applied:
    """Apply the actions in order. A refused action is reported in the result and does not stop the others."""
    outcome: list[Mapping[str, str | None]] = []
    for action in actions:
        error = None
        try:
            _retry_while_unreachable(partial(context.slurm.apply, action), context)
        except SlurmError as refused:
            error = str(refused)
        outcome.append(_describe_action(action, error))
    return tuple(outcome)


def _describe_action(action: SlurmAction, error: str | None) -> Mapping[str, str | None]:
    shown = {"verb": action.verb.value, "target": action.target, "option": action.key, "new": action.value}
    return {**shown, "reason": action.reason, "error": error}


def _retry_while_unreachable(ask: Callable[[], T], context: SubmitContext) -> T:
    """Call `ask`, and again while the controller does not answer. Only for calls that may be repeated safely."""
    for pause in PAUSES_S:
        try:
            return ask()
        except SlurmUnreachable:
            context.clock.sleep(pause)
    return ask()


# A job and its pre-run that wait for the same dependency become eligible at the same moment. If the job's grace period
# is over by then, the pre-run first sets a new one, counted from that moment. So the pre-run still runs first, and the
# job is never delayed by more than its grace period.

# Minimum extension as a share of the grace period; a shorter one is not worth an update.
_MIN_EXTENSION_SHARE = 0.1


def extend_grace(
    waiting: HeldJob, grace_s: float, context: SubmitContext, note: Callable[[float], None]
) -> float | None:
    """Extend the job's grace period and return its new StartTime (Unix seconds); None if the job is not changed.

    A StartTime that the user has changed is kept, and a job that has started is left alone. `note` is called with the
    new time before Slurm is updated, so that a later release recognizes the time as slurmwrap's own. Raise SlurmError
    if Slurm does not answer or refuses.
    """
    if waiting.job_id is None or not waiting.request.value("dependency"):
        return None
    own = context.slurm.job(str(waiting.prerun_job_id))
    if own is None or own.eligible_time is None:
        return None
    until = own.eligible_time + grace_s
    if until <= context.clock.now():
        return None
    record = find_waiting_job(waiting.job_id, context, waiting.job)
    if record is None or record.eligible_time is None or until - record.eligible_time < _MIN_EXTENSION_SHARE * grace_s:
        return None
    if not is_as_given(record.eligible_time, waiting.given, own.eligible_time):
        return None
    note(until)
    start = strftime("%Y-%m-%dT%H:%M:%S", localtime(until))
    address = record.waiting_address or str(waiting.job_id)
    context.slurm.apply(start_action(address, start, "its dependency is met: the pre-run goes first"))
    return until
