"""Last step, on the node, as the user: a pre-run's verdict becomes the waiting job's fate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import localtime, strftime
from typing import TYPE_CHECKING, TypeVar

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.escape import comment
from slurmwrap.fast_dataclasses import asdict, dataclass, replace
from slurmwrap.gsub.planning_inputs import find_known_profile, keep, read_planning_facts
from slurmwrap.gsub.waiting_job import has_user_changed_start_time, is_as_given, start_action
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.retune import make_retune_actions, undo
from slurmwrap.profiling.job_key import derive_variant
from slurmwrap.profiling.merge_profiles import merge

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.gsub.waiting_job import JobIdentity
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.sbatch.job_request import JobRequest


# Between two questions while the controller is away: a restart takes less, and a gated job waits for our word alone.
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
# Where squeue knew no such job.
AGAIN_S = 2.0
# Such answers in a row are believed.
_SURE = 3

# It may not start when its pre-run releases it.
_HELD = ("dependency", "hold")

T = TypeVar("T")
# What was asked of Slurm, each with its error or None.
Applied = tuple[Mapping[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """The real job that a pre-run speaks for, as its submission left it. `job_id` None: nothing waits."""

    request: JobRequest
    plan: PlacementPlan
    job_id: int | None
    prerun_job_id: int
    release_at: str
    profile_key: str
    fingerprint: str
    cluster: str = ""  # "": ask Slurm
    given: tuple[float, ...] = ()  # the begin times that gsub may have given it (gsub/waiting_job.py)
    job: JobIdentity | None = None  # which distinguishes it from another one of its id; None: not known
    output: str = ""  # the file that the script wrote to in the pre-run
    borrowed: bool = False  # the verdict is of another job of the same script and code, with other arguments


def apply_verdict(waiting: HeldJob, verdict: Verdict, context: SubmitContext) -> PrerunRecord:
    """Acts on a verdict, as the user: `fail` cancels the waiting job with the reason; else it is tuned and released.

    The verdict is remembered before Slurm is touched, and again with what became of it: being killed in between loses
    nothing, and who sees the job cancelled finds the reason.
    """
    record = _build_prerun_record(waiting, verdict, context)
    keep(lambda: context.memory.remember_prerun(record), context)
    if waiting.job_id is None:
        return record
    if verdict.outcome is Outcome.FAIL and not waiting.borrowed:
        final = replace(record, changes=_cancel(waiting, waiting.job_id, verdict, context))
    else:
        chosen, applied, released = _plan_again(waiting, read_measured_profile(waiting, verdict, context), context)
        final = replace(record, plan=asdict(chosen), changes=applied, released=released)
    keep(lambda: context.memory.remember_prerun(final), context)
    return final


def _build_prerun_record(waiting: HeldJob, verdict: Verdict, context: SubmitContext) -> PrerunRecord:
    return PrerunRecord(
        cluster=waiting.cluster or context.cluster,
        job_id=waiting.job_id,
        prerun_job_id=waiting.prerun_job_id,
        uid=context.uid,
        at=context.clock.now(),
        # borrowed: these arguments were never tried; what was measured is counted once, where it was measured
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
    """What is known of this job after its pre-run; a failed one teaches nothing about needs."""
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


def _cancel(waiting: HeldJob, job_id: int, verdict: Verdict, context: SubmitContext) -> Applied:
    """Comment first, so that the reason is there when the job is gone. A job that already started is left alone.

    Where Slurm cannot be asked the job is neither cancelled nor released: it starts after its grace.
    """
    try:
        record = _retry_while_unreachable(lambda: find_waiting_job(job_id, context, waiting.job), context)
    except SlurmError as error:
        context.say(f"job {job_id} could not be cancelled: {error}")
        refused = SlurmAction(verb=Verb.CANCEL, target=str(job_id), reason=verdict.reason)
        return (_describe_action(refused, str(error)),)
    if record is None:
        return ()
    told = comment(f"slurmwrap: pre-run failed: {verdict.reason}", record.comment)
    target = str(job_id)
    actions = (
        SlurmAction(verb=Verb.UPDATE_JOB, target=target, key="Comment", value=told, reason="the reason stays visible"),
        SlurmAction(verb=Verb.CANCEL, target=target, reason=verdict.reason),
    )
    return _apply_each(actions, context)


def find_waiting_job(job_id: int, context: SubmitContext, meant: JobIdentity | None = None) -> JobRecord | None:
    """The job's record while all of it waits. None when it started, ended or was cancelled; of an array, as soon as
    one task did: its bare id means every task, and one that runs must not be touched (facts of Slurm 22.05: the last
    task to start keeps the array's id as its own). None also where the id is no more that of the job `meant`."""
    record = _read_job_record(job_id, context)
    if record is not None and meant is not None and meant.is_not(record):
        context.say(f"job {job_id} is left alone: Slurm gave the id to another job since")
        return None
    if record is None or record.array_job_id is None:
        return record if record is not None and record.pending else None
    tasks = [one for one in context.slurm.jobs(context.user) if one.array_job_id == record.array_job_id]
    started = [one for one in tasks if one.state not in ("PENDING", "CANCELLED")]
    return record if record.pending and not started else None


def _read_job_record(job_id: int, context: SubmitContext) -> JobRecord | None:
    """Slurm's record on the job; None only after several such answers: squeue once missed a job that was there."""
    for _ in range(_SURE - 1):
        record = context.slurm.job(str(job_id))
        if record is not None:
            return record
        context.clock.sleep(AGAIN_S)
    return context.slurm.job(str(job_id))


def _plan_again(
    waiting: HeldJob, profile: ResourceProfile | None, context: SubmitContext
) -> tuple[PlacementPlan, Applied, bool]:
    """A second plan on what was measured and a fresh snapshot, applied one key per call; then StartTime.

    A refused update takes the others back: Slurm may refuse one and keep its value all the same (placement/retune.py).
    A job that runs, ended or was cancelled meanwhile is left alone, and so is a start that its user has moved.
    """
    target, chosen = str(waiting.job_id), waiting.plan
    applied: Applied = ()
    try:
        record = _retry_while_unreachable(lambda: find_waiting_job(int(target), context, waiting.job), context)
        if record is None:
            return (chosen, *_release_rest_of_array(waiting, context))
        if has_user_changed_start_time(record, waiting.given, context.clock.now()):
            context.say(f"job {target} starts when its user has said meanwhile")
            waiting = replace(waiting, release_at="")
        if not waiting.request.hetjob:
            chosen, applied = _apply_second_plan(waiting, profile, record, context)
    except (SlurmError, ValueError) as error:
        # The job is good; a plan we cannot make must not hold it.
        context.say(f"not tuned again: {error}")
    if not waiting.release_at:
        return chosen, applied, False
    start = start_action(target, waiting.release_at, "its pre-run found no error that stops it")
    went = _apply_each((start,), context)
    return chosen, (*applied, *went), bool(went) and went[0]["error"] is None


def _release_rest_of_array(waiting: HeldJob, context: SubmitContext) -> tuple[Applied, bool]:
    """Releases what still waits of an array of which a task has begun, since its user released that one."""
    record = _retry_while_unreachable(lambda: context.slurm.job(str(waiting.job_id)), context)
    if record is None or record.array_job_id is None or not record.pending or not record.waiting_address:
        return (), False
    if has_user_changed_start_time(record, waiting.given, context.clock.now()):
        return (), False
    start = start_action(record.waiting_address, waiting.release_at, "its pre-run found no error that stops it")
    went = _apply_each((start,), context)
    return went, went[0]["error"] is None


def _apply_second_plan(
    waiting: HeldJob, profile: ResourceProfile | None, record: JobRecord, context: SubmitContext
) -> tuple[PlacementPlan, Applied]:
    # Tasks of an array would all want the same nodes.
    alone = record.array_job_id is None
    at_once = alone and waiting.release_at == "now" and not any(waiting.request.setting(one) for one in _HELD)
    known = read_planning_facts(context, starts_now=at_once)
    seen = replace(known, qos=record.qos, account=record.account)
    second = plan(
        *(waiting.request, profile, context.slurm.snapshot(), context.published.health, context.config, seen),
        before=waiting.plan,
    )
    updates = make_retune_actions(waiting.plan, second, waiting.request, record)
    applied = _apply_each(updates, context)
    if any(change["error"] for change in applied):
        return waiting.plan, (*applied, *_apply_each(undo(updates, waiting.plan, waiting.request, record), context))
    return replace(second, profile_key=waiting.profile_key), applied


def _apply_each(actions: Sequence[SlurmAction], context: SubmitContext) -> Applied:
    """Applies in order; a refusal is kept next to its action and does not stop the rest."""
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
    """Asks again while the controller does not answer. Only for what may be said twice: reads and updates."""
    for pause in PAUSES_S:
        try:
            return ask()
        except SlurmUnreachable:
            context.clock.sleep(pause)
    return ask()


# A pre-run that waited for its job's dependency speaks first all the same.
#
# Both are eligible from the moment at which the dependency is met. Where the job's grace was over by then, its pre-
# run's first act is to give it a new one, counted from that moment: so the job is never delayed by more than its
# grace.
# Of a grace: less is not worth another update.
_WORTH = 0.1


def extend_grace(
    waiting: HeldJob, grace_s: float, context: SubmitContext, note: Callable[[float], None]
) -> float | None:
    """Moves the job's StartTime; returns it (Unix seconds), or None where the job is left as it is.

    A start that its user has moved stays, and so does a job that has started. `note` gets the new time before Slurm
    is: anyone who releases the job must know it for ours. SlurmError when Slurm does not answer or refuses.
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
    if record is None or record.eligible_time is None or until - record.eligible_time < _WORTH * grace_s:
        return None
    if not is_as_given(record.eligible_time, waiting.given, own.eligible_time):
        return None
    note(until)
    start = strftime("%Y-%m-%dT%H:%M:%S", localtime(until))
    address = record.waiting_address or str(waiting.job_id)
    context.slurm.apply(start_action(address, start, "its dependency is met: the pre-run goes first"))
    return until
