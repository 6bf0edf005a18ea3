"""Second step: the real job goes first, waiting; then its pre-run. Nothing is ever submitted twice by mistake."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, replace

from slurmwrap.config import Config
from slurmwrap.edges import SbatchCall, SbatchResult
from slurmwrap.errors import SlurmError, SlurmwrapError
from slurmwrap.job.begin import later_begin
from slurmwrap.job.render import render
from slurmwrap.job.request import BatchScript, JobRequest, Wish
from slurmwrap.placement.plan import PLACING, PlacementPlan
from slurmwrap.profiling.key import derive_variant
from slurmwrap.retry.attempt import Submission
from slurmwrap.store.inflight import Guest, submitted
from slurmwrap.submit.attach import attach_or_claim, unclaim
from slurmwrap.submit.count import counting
from slurmwrap.submit.desk import Desk, MakeTrial, Prepared, Sent
from slurmwrap.submit.release import start_action
from slurmwrap.submit.remember import keep, sha256_of

_LOUD = ("sbatch: error", "sbatch: fatal")
_UNBOUNDED_S = 365 * 86400  # --prerun=gate: as good as without bound, and Slurm still accepts it


def send(prepared: Prepared, desk: Desk, make_trial: MakeTrial) -> Sent:
    """Submits the real job, then its pre-run. An ambiguous or refused sbatch is returned as it is, never repeated."""
    now = desk.clock.now()
    prepared = counting(prepared, desk)
    begin, release_at = _gate(prepared, desk.config, now)
    gate = () if begin is None else (begin,)
    batch, result = _sbatch(prepared, (*prepared.added, *gate), desk)
    shown = _as_quiet(result) if is_quiet(prepared.request) else result
    if result.job_id is None:
        return Sent(result=shown, batch=batch)
    sent = Sent(result=shown, batch=batch)
    if begin is not None:
        sent = _start_trial(prepared, sent, result.job_id, release_at, desk, make_trial)
    submission = _submission(prepared, sent, result.job_id, desk, now)
    keep(lambda: desk.memory.remember_submission(submission), desk)
    return sent


def is_quiet(request: JobRequest) -> bool:
    """--quiet without --verbose, which sbatch refuses together and says so best itself."""
    return request.setting("quiet") is not None and request.setting("verbose") is None


def _as_quiet(result: SbatchResult) -> SbatchResult:
    """sbatch's words as --quiet leaves them: we take the option away, since with it nobody is told the job's id."""
    lines = result.stderr.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("sbatch: ") or line.startswith(_LOUD)]
    return replace(result, stdout="", stderr="".join(kept))


def _sbatch(prepared: Prepared, added: tuple[Wish, ...], desk: Desk) -> tuple[BatchScript, SbatchResult]:
    """Submits the planned job; one that Slurm clearly refuses goes once more as asked.

    A plan knows nothing of QOS and association limits, so it may ask for what the user may not have. An answer that
    leaves open whether the job was taken is never answered by submitting again.
    """
    request, lines = prepared.request, prepared.plan.lines
    batch, as_asked = (
        replace(one, environ={**one.environ, **prepared.job_environ})
        for one in (render(request, lines, added=added), render(request, (), added=added))
    )
    try:
        call = sbatch_call(request, batch, desk)
    except OSError as error:
        desk.say(f"the tuned script cannot be kept, so the job goes as you asked: {error}")
        return as_asked, desk.slurm.sbatch(sbatch_call(request, as_asked, desk))
    result = desk.slurm.sbatch(call)
    planned = any(line.value is not None for line in lines)
    if result.exit_code == 0 or result.job_id is not None or result.timed_out or not planned:
        return batch, result
    second = desk.slurm.sbatch(sbatch_call(request, as_asked, desk))
    if second.job_id is not None:
        desk.say(f"Slurm refused the tuned request, so the job goes as you asked: {_last_line(result.stderr)}")
    return as_asked, second


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")


def sbatch_call(request: JobRequest, batch: BatchScript, desk: Desk, extra: tuple[str, ...] = ()) -> SbatchCall:
    """The call that submits `batch`: the user's own file while its bytes are untouched, else a copy of its name."""
    script = request.script
    path, stdin, args = script.path, None, batch.args
    if request.value("wrap") is not None:
        path, args = None, ()
    elif path is None:
        stdin = batch.content
    elif batch.content != script.content:
        path = desk.memory.keep_script(script.name, batch.content)
    options = [option for option in batch.options if option != "--quiet" or not is_quiet(request)]
    return SbatchCall(
        options=(*options, *extra),
        script_path=path,
        args=args,
        stdin=stdin,
        environ={**desk.environ, **batch.environ},
        timeout_s=math.inf if request.setting("wait") else None,  # --wait lasts as long as the job
    )


def _gate(prepared: Prepared, config: Config, now: float) -> tuple[Wish | None, str]:
    """(--begin that lets the job wait for its pre-run or None, StartTime that ends the wait)."""
    if prepared.prerun not in ("auto", "gate", "profile"):
        return None, "now"
    grace = config.prerun.grace_s + math.ceil(prepared.profile_s)
    begin, release_at = later_begin(
        prepared.request.value("begin"), _UNBOUNDED_S if prepared.prerun == "gate" else grace, now
    )
    bound = "until its verdict" if prepared.prerun == "gate" else f"at most {math.ceil(grace / 60)} min"
    return Wish(option="begin", value=begin, reason=f"waits for its pre-run on one GPU, {bound}"), release_at


def _start_trial(
    prepared: Prepared, sent: Sent, job_id: int, release_at: str, desk: Desk, make_trial: MakeTrial
) -> Sent:
    """Attaches to a pre-run in flight, or submits one. If that fails in any way the real job is let go at once: it runs
    as without us."""
    directory = ""
    try:
        job = make_trial(prepared, job_id, release_at)
        directory = job.directory
        guest = Guest(job_id=job_id, release_at=release_at, trial_dir=directory)
        if host := attach_or_claim(prepared, guest, desk):
            return replace(sent, trial_dir=directory, attached_to=host.job_id or 0)
        result = desk.slurm.sbatch(job.call)
        why_not = "" if result.job_id is not None else _last_line(result.stderr)
    except (OSError, SlurmwrapError, KeyboardInterrupt) as error:
        why_not = str(error) or "interrupted"
    if why_not or result.job_id is None:
        desk.say(f"no pre-run: {why_not}; job {job_id} starts without")
        unclaim(prepared, directory, desk)
        _let_go(job_id, release_at, desk)
        return sent
    with suppress(OSError):
        submitted(directory, result.job_id)
    return replace(sent, trial=result, trial_dir=directory)


def _let_go(job_id: int, release_at: str, desk: Desk) -> None:
    action = start_action(str(job_id), release_at, "the pre-run could not be submitted")
    try:
        desk.slurm.apply(action)
    except SlurmError as error:
        desk.say(f"job {job_id} could not be released now ({error}); it starts by itself after the grace time")


def _submission(prepared: Prepared, sent: Sent, job_id: int, desk: Desk, now: float) -> Submission:
    request, trial = prepared.request, sent.trial
    return Submission(
        cluster=desk.cluster,
        job_id=job_id,
        uid=desk.uid,
        user=desk.user,
        at=now,
        name=request.job_name,
        script_path=request.script.path or "",
        script_sha256=sha256_of(request.script.content),
        work_dir=request.chdir,
        gpus=request.shape.gpus,
        nodes=prepared.plan.node_count or request.shape.nodes or 0,
        retry=prepared.retry,
        profile_key=prepared.profile_key,
        profile_variant=derive_variant(request),
        step_dir=prepared.step_dir,
        prerun_mode=prepared.prerun,
        prerun_job_id=trial.job_id if trial else sent.attached_to or None,
        fingerprint=prepared.fingerprint,
        inputs=prepared.inputs,
        output_appends=request.value("open-mode") == "append" or any(w.option == "open-mode" for w in prepared.added),
        plan=asdict(_went(prepared.plan, sent.batch)),
        changes=tuple(asdict(change) for change in sent.batch.changes),
        forced=prepared.forced,
        shape=request.shape,
        own={option: value for option in PLACING if (value := request.value(option)) is not None},
        # in a reservation it does not compete for what the reconciler divides
        tune=request.own.tune and desk.config.tuning.enabled and request.setting("reservation") is None,
        place=request.own.place and desk.config.placement.enabled,
    )


def _went(plan: PlacementPlan, batch: BatchScript) -> PlacementPlan:
    """The plan as it is in force: where Slurm refused it and the job went as asked, there is nothing to loosen."""
    changed = {change.option for change in batch.changes}
    taken = all(wish.option in changed for wish in plan.lines if wish.value is not None)
    return plan if taken else replace(plan, lines=(), levels=())
