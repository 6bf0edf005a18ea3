"""The order of steps from a request to its submission, its pre-run and its release.

    prepare   request + memory + snapshot        → Prepared   nothing outside has changed yet
    send      Prepared                            → Sent       the real job first, then its pre-run
    conclude  the pre-run's Verdict, on the node  → PrerunRecord: plan again, apply, let the job go; or cancel it

Edges are handed in as a Desk. Whatever of ours fails in `prepare` leaves the user's job unharmed: the caller submits
it unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurmwrap.cluster.action import SlurmAction, Verb
from slurmwrap.cluster.node import Snapshot
from slurmwrap.config import Config
from slurmwrap.edges import Clock, Memory, Published, SbatchCall, SbatchResult, Slurm
from slurmwrap.errors import PrerunFailed, RefusedError, SlurmError, StoreError
from slurmwrap.job.begin import later_begin
from slurmwrap.job.render import render
from slurmwrap.job.request import BatchScript, JobRequest, Wish
from slurmwrap.placement.place import plan
from slurmwrap.placement.plan import PlacementPlan
from slurmwrap.placement.retune import retune, undo
from slurmwrap.prerun.verdict import Finding, Outcome, Severity, Verdict
from slurmwrap.profiling.key import derive_key, fingerprint
from slurmwrap.profiling.merge import merge
from slurmwrap.profiling.profile import ResourceProfile
from slurmwrap.retry.attempt import PrerunRecord, Submission
from slurmwrap.retry.record import profile_key_of

_UNBOUNDED_S = 365 * 86400  # --prerun=gate: as good as without bound, and Slurm still accepts it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What the pre-run stage gives to a submission; the caller wires the real functions."""

    check: Callable[[JobRequest], tuple[Finding, ...]]
    named_files: Callable[[JobRequest], tuple[str, ...]]
    digest: Callable[[str], str | None]  # None: cannot be read
    entry_files: Callable[[JobRequest], Mapping[str, bytes]]  # path -> content of the programs the script starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The edges and the caller's identity."""

    slurm: Slurm
    clock: Clock
    memory: Memory
    config: Config
    trials: Trials
    uid: int
    user: str
    environ: Mapping[str, str]
    published: Published = field(default_factory=Published)
    say: Callable[[str], None] = lambda line: None

    @property
    def cluster(self) -> str:
        """ClusterName; after a snapshot it costs no further question."""
        return self.slurm.cluster_name()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request with everything decided about it, before anything outside has changed."""

    request: JobRequest
    batch: BatchScript  # without the pre-run's gate
    plan: PlacementPlan
    snapshot: Snapshot
    added: tuple[Wish, ...]
    profile: ResourceProfile | None
    profile_key: str
    fingerprint: str
    inputs: tuple[str, ...]
    warnings: tuple[Finding, ...]
    prerun: str  # "auto" | "wait" | "gate" | "off" | "only": what will be done
    prerun_reason: str
    retry: bool


def prepare(request: JobRequest, desk: Desk) -> Prepared:
    """Checks, looks up, places and renders. Raises RefusedError or PrerunFailed when the job should not run."""
    entry_files = desk.trials.entry_files(request)
    mark = fingerprint(request, entry_files)
    inputs = desk.trials.named_files(request)
    findings = _checked(request, desk, mark, inputs)
    snapshot = desk.slurm.snapshot()
    key = request.own.resource_profile or derive_key(
        request, next(iter(entry_files), request.script.name), request.shape.gpu_type or ""
    )
    profile = _known_profile(key, desk)
    chosen = plan(request, profile, snapshot, desk.published.health, desk.config)
    retry = desk.config.retry.default if request.own.retry is None else request.own.retry
    added = _retry_wishes(request) if retry else ()
    prerun, reason = choose_prerun(request, snapshot, desk, mark)
    return Prepared(
        request=request,
        batch=render(request, chosen.lines, added=added),
        plan=replace(chosen, profile_key=key),
        snapshot=snapshot,
        added=added,
        profile=profile,
        profile_key=key,
        fingerprint=mark,
        inputs=inputs,
        warnings=tuple(f for f in findings if f.severity is Severity.WARNING),
        prerun=prerun,
        prerun_reason=reason,
        retry=retry,
    )


def _checked(request: JobRequest, desk: Desk, mark: str, inputs: Sequence[str]) -> tuple[Finding, ...]:
    """Findings of the static stage. Errors, blocked inputs and a script that failed twice unchanged refuse the job."""
    if not request.own.force:
        _refuse_blocked(inputs, desk)
        _refuse_repeated(desk.memory.failures(_sha256(request.script.content), mark))
    mode = request.own.prerun if request.own.prerun != "auto" else desk.config.prerun.mode
    if mode == "off":
        return ()
    findings = desk.trials.check(request)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors and not request.own.force:
        raise PrerunFailed("\n".join(describe(f) for f in errors), hint="mend it, or submit as it is with --force")
    return findings


def describe(finding: Finding) -> str:
    """One finding in one line: where, what, and the fix."""
    where = f"{finding.file}:{finding.line}: " if finding.line else f"{finding.file}: " if finding.file else ""
    return f"{where}{finding.message}" + (f" ({finding.fix})" if finding.fix else "")


def _refuse_blocked(inputs: Sequence[str], desk: Desk) -> None:
    everyone = {-1, desk.uid}  # what one user's log says binds him alone
    blocked = {b.digest: b for b in desk.published.blocked if b.uid in everyone}
    blocked |= {b.digest: b for b in desk.memory.blocked_inputs()}
    if not blocked:
        return
    for path in inputs:
        found = blocked.get(desk.trials.digest(path) or "")
        if found is not None:
            raise RefusedError(
                f"input {path} is blocked: {found.reason}"
                + (f" (it made job {found.job_id} fail)" if found.job_id else ""),
                hint="replace or mend the file (a changed file is free again), or submit anyway with --force",
            )


def _refuse_repeated(failures: Sequence[str]) -> None:
    """Two failures of the very same script, code and arguments are proof enough (Philly: retried blindly)."""
    if len(failures) >= 2:
        raise RefusedError(
            f"this very script failed {len(failures)} times, unchanged: {failures[0]}",
            hint="change the script, its code or its arguments, or submit anyway with --force",
        )


def _known_profile(key: str, desk: Desk) -> ResourceProfile | None:
    """The user's own, or the site's of the same user (a key is a user's word): the one that rests on more runs."""
    site_key = profile_key_of(desk.uid, key)
    found = [p for p in desk.published.profiles if p.key == site_key]
    own = desk.memory.profile(key)
    known = [replace(p, key=key) for p in found] + ([own] if own else [])
    return max(known, key=lambda p: (p.runs, p.measured_at), default=None)


def _retry_wishes(request: JobRequest) -> tuple[Wish, ...]:
    """A retry needs Requeue=1 before the job ends, and must not truncate what the first run wrote (facts: requeue)."""
    wishes = []
    if request.setting("requeue") is None:
        wishes.append(Wish(option="requeue", value="", reason="--retry: Slurm can only requeue a job that allows it"))
    if request.setting("open-mode") is None and output_is_own(request):
        reason = "--retry: a second run adds to the output file instead of truncating it"
        wishes.append(Wish(option="open-mode", value="append", reason=reason))
    return tuple(wishes)


def output_is_own(request: JobRequest) -> bool:
    """True when no other job writes this job's output file: the pattern has the job id, or is Slurm's default."""
    patterns = [request.value("output"), request.value("error")]
    return all(p is None or any(mark in p for mark in ("%j", "%A", "%J")) for p in patterns)


def choose_prerun(request: JobRequest, snapshot: Snapshot, desk: Desk, mark: str) -> tuple[str, str]:
    """(what will be done, why). A forced mode is kept; `auto` skips what would prove nothing new."""
    settings, mode = desk.config.prerun, request.own.prerun
    if mode == "auto":
        mode = settings.mode
    if mode not in ("auto", "gate"):
        return mode, "as asked"
    if request.shape.gpus < settings.min_gpus:
        return "off", f"fewer than {settings.min_gpus} GPUs"
    if desk.memory.passed(mark):
        return "off", "this script, its code and its arguments passed a pre-run before"
    if request.shape.gpus == 1 and any(n.usable and n.gpus_free for n in snapshot.nodes):
        return "off", "a 1-GPU job that can start now is its own pre-run"
    return mode, "first run of this script, code and arguments"


# --- sending ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """The pre-run as a Slurm job, made by the caller for a given real job."""

    call: SbatchCall
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one submission. `result` is sbatch's own word on the real job."""

    result: SbatchResult
    batch: BatchScript
    trial: SbatchResult | None = None
    trial_dir: str = ""


MakeTrial = Callable[[Prepared, int | None, str], TrialJob]  # (prepared, real job id, StartTime that releases it)


def send(prepared: Prepared, desk: Desk, make_trial: MakeTrial) -> Sent:
    """Submits the real job, then its pre-run. An ambiguous or refused sbatch is returned as it is, never repeated."""
    now = desk.clock.now()
    begin, release_at = _gate(prepared, desk.config, now)
    gate = () if begin is None else (begin,)
    batch, result = _sbatch(prepared, (*prepared.added, *gate), desk)
    if result.job_id is None or result.exit_code != 0:
        return Sent(result=result, batch=batch)
    trial, directory = (
        (None, "") if begin is None else _start_trial(prepared, result.job_id, release_at, desk, make_trial)
    )
    submission = _submission(prepared, batch, result.job_id, trial, desk, now)
    _keep(lambda: desk.memory.remember_submission(submission), desk)
    return Sent(result=result, batch=batch, trial=trial, trial_dir=directory)


def _sbatch(prepared: Prepared, added: tuple[Wish, ...], desk: Desk) -> tuple[BatchScript, SbatchResult]:
    """Submits the planned job; one that Slurm clearly refuses goes once more as asked.

    A plan knows nothing of QOS and association limits, so it may ask for what the user may not have. An answer that
    leaves open whether the job was taken is never answered by submitting again.
    """
    request, lines = prepared.request, prepared.plan.lines
    batch = render(request, lines, added=added)
    result = desk.slurm.sbatch(sbatch_call(request, batch, desk))
    planned = any(line.value is not None for line in lines)
    if result.job_id is not None or result.timed_out or not planned:
        return batch, result
    as_asked = render(request, (), added=added)
    second = desk.slurm.sbatch(sbatch_call(request, as_asked, desk))
    if second.job_id is not None:
        desk.say(f"Slurm refused the tuned request, so the job goes as you asked: {_last_line(result.stderr)}")
    return as_asked, second


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")


def _keep(write: Callable[[], None], desk: Desk) -> None:
    """What cannot be remembered (a full disk, no home) must not cost a job that Slurm already has."""
    try:
        write()
    except (OSError, StoreError) as error:
        desk.say(f"this is not remembered for `slurmwrap why`: {error}")


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
    return SbatchCall(
        options=(*batch.options, *extra),
        script_path=path,
        args=args,
        stdin=stdin,
        environ={**desk.environ, **batch.environ},
        timeout_s=math.inf if request.setting("wait") else None,  # --wait lasts as long as the job
    )


def _gate(prepared: Prepared, config: Config, now: float) -> tuple[Wish | None, str]:
    """(--begin that lets the job wait for its pre-run or None, StartTime that ends the wait)."""
    if prepared.prerun not in ("auto", "gate"):
        return None, "now"
    grace = config.prerun.grace_s if prepared.prerun == "auto" else _UNBOUNDED_S
    begin, release_at = later_begin(prepared.request.value("begin"), grace, now)
    bound = f"at most {config.prerun.grace_s // 60} min" if prepared.prerun == "auto" else "until its verdict"
    return Wish(option="begin", value=begin, reason=f"waits for its pre-run on one GPU, {bound}"), release_at


def _start_trial(
    prepared: Prepared, job_id: int, release_at: str, desk: Desk, make_trial: MakeTrial
) -> tuple[SbatchResult | None, str]:
    """Submits the pre-run. If that fails in any way the real job is let go at once: it runs as without us."""
    try:
        job = make_trial(prepared, job_id, release_at)
        result = desk.slurm.sbatch(job.call)
    except (OSError, SlurmError) as error:
        desk.say(f"no pre-run: {error}; job {job_id} starts without")
        _let_go(job_id, release_at, desk)
        return None, ""
    if result.job_id is None:
        desk.say(f"no pre-run: {_last_line(result.stderr)}; job {job_id} starts without")
        _let_go(job_id, release_at, desk)
        return None, ""
    return result, job.directory


def _let_go(job_id: int, release_at: str, desk: Desk) -> None:
    action = start_action(str(job_id), release_at, "the pre-run could not be submitted")
    try:
        desk.slurm.apply(action)
    except SlurmError as error:
        desk.say(f"job {job_id} could not be released now ({error}); it starts by itself after the grace time")


def start_action(address: str, release_at: str, because: str) -> SlurmAction:
    """The update that makes a waiting job eligible."""
    return SlurmAction(verb=Verb.UPDATE_JOB, target=address, key="StartTime", value=release_at, because=because)


def _submission(
    prepared: Prepared, batch: BatchScript, job_id: int, trial: SbatchResult | None, desk: Desk, now: float
) -> Submission:
    request = prepared.request
    return Submission(
        cluster=desk.cluster,
        job_id=job_id,
        uid=desk.uid,
        user=desk.user,
        at=now,
        name=request.job_name,
        script_path=request.script.path or "",
        script_sha256=_sha256(request.script.content),
        work_dir=request.chdir,
        gpus=request.shape.gpus,
        nodes=prepared.plan.node_count or request.shape.nodes or 0,
        retry=prepared.retry,
        profile_key=prepared.profile_key,
        prerun_mode=prepared.prerun,
        prerun_job_id=trial.job_id if trial else None,
        fingerprint=prepared.fingerprint,
        inputs=prepared.inputs,
        output_appends=request.value("open-mode") == "append" or any(w.option == "open-mode" for w in prepared.added),
        plan=plan_plain(prepared.plan),
        changes=tuple(_change_plain(c.option, c.old, c.new, c.where, c.reason) for c in batch.changes),
    )


def _sha256(content: bytes) -> str:
    from hashlib import sha256

    return sha256(content).hexdigest()


def plan_plain(chosen: PlacementPlan) -> dict[str, object]:
    """A plan as JSON types, for people and the store."""
    return {
        "lines": [{"option": w.option, "value": w.value, "reason": w.reason} for w in chosen.lines],
        "node_count": chosen.node_count,
        "gpus_per_node": chosen.gpus_per_node,
        "candidates": list(chosen.candidates),
        "switch": chosen.switch,
        "locality": chosen.locality,
        "levels": [{"name": level.name, "wait_s": level.wait_s} for level in chosen.levels],
        "cpus_per_gpu": chosen.cpus_per_gpu,
        "mem_mib_per_gpu": chosen.mem_mib_per_gpu,
        "profile_key": chosen.profile_key,
    }


def _change_plain(option: str, old: str | None, new: str | None, where: str, reason: str) -> dict[str, str | None]:
    return {"option": option, "old": old, "new": new, "where": where, "reason": reason}


# --- the pre-run's last act ------------------------------------------------------------------------------------------


Applied = tuple[Mapping[str, str | None], ...]  # what was asked of Slurm, each with its error or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The real job that a pre-run speaks for, as its submission left it. `job_id` None: nothing waits."""

    request: JobRequest
    plan: PlacementPlan
    job_id: int | None
    prerun_job_id: int
    release_at: str
    profile_key: str
    fingerprint: str


def conclude(waiting: Waiting, verdict: Verdict, desk: Desk) -> PrerunRecord:
    """Acts on a verdict, as the user: `fail` cancels the waiting job with the reason; else it is tuned and let go.

    The verdict is remembered before Slurm is touched, and again with what became of it: being killed in between loses
    nothing, and who sees the job cancelled finds the reason.
    """
    record = _prerun_record(waiting, verdict, desk)
    _keep(lambda: desk.memory.remember_prerun(record), desk)
    if waiting.job_id is None:
        return record
    if verdict.outcome is Outcome.FAIL:
        final = replace(record, changes=_cancel(waiting.job_id, verdict, desk))
    else:
        chosen, applied, released = _plan_again(waiting, measured_profile(waiting, verdict, desk), desk)
        final = replace(record, plan=plan_plain(chosen), changes=applied, released=released)
    _keep(lambda: desk.memory.remember_prerun(final), desk)
    return final


def _prerun_record(waiting: Waiting, verdict: Verdict, desk: Desk) -> PrerunRecord:
    return PrerunRecord(
        cluster=desk.cluster,
        job_id=waiting.job_id,
        prerun_job_id=waiting.prerun_job_id,
        uid=desk.uid,
        at=desk.clock.now(),
        verdict=verdict,
        fingerprint=waiting.fingerprint,
        profile_key=waiting.profile_key,
        gpus=waiting.request.shape.gpus,
        plan=plan_plain(waiting.plan),
    )


def measured_profile(waiting: Waiting, verdict: Verdict, desk: Desk) -> ResourceProfile | None:
    """What is known of this job after its pre-run; a failed one teaches nothing about needs."""
    old = _known_profile(waiting.profile_key, desk)
    if verdict.measurement is None or verdict.outcome is Outcome.FAIL:
        return old
    return merge(
        old,
        verdict.measurement,
        key=waiting.profile_key,
        source="prerun",
        at=desk.clock.now(),
        gpu_type=waiting.request.shape.gpu_type or "",
        gpus_per_node=waiting.request.shape.gpus_per_node or 0,
        complete=False,
    )


def _cancel(job_id: int, verdict: Verdict, desk: Desk) -> Applied:
    """Comment first, so that the reason is there when the job is gone. A job that already started is left alone."""
    record = desk.slurm.job(str(job_id))
    if record is None or not record.pending:
        return ()
    reason = f"slurmwrap: pre-run failed: {verdict.reason}"[:400]
    comment = f"{record.comment} | {reason}" if record.comment else reason
    target = str(job_id)
    actions = (
        SlurmAction(
            verb=Verb.UPDATE_JOB, target=target, key="Comment", value=comment, because="the reason stays visible"
        ),
        SlurmAction(verb=Verb.CANCEL, target=target, because=verdict.reason),
    )
    return _apply_each(actions, desk)


def _plan_again(waiting: Waiting, profile: ResourceProfile | None, desk: Desk) -> tuple[PlacementPlan, Applied, bool]:
    """A second plan on what was measured and a fresh snapshot, applied one key per call; then StartTime.

    A refused update takes the others back: Slurm may refuse one and keep its value all the same (placement/retune.py).
    """
    target, chosen = str(waiting.job_id), waiting.plan
    applied: Applied = ()
    try:
        record = desk.slurm.job(target)
        if record is not None and record.pending:
            second = plan(waiting.request, profile, desk.slurm.snapshot(), desk.published.health, desk.config)
            updates = retune(waiting.plan, second, waiting.request, record)
            applied = _apply_each(updates, desk)
            if any(change["error"] for change in applied):
                applied = (*applied, *_apply_each(undo(updates, waiting.plan, waiting.request, record), desk))
            else:
                chosen = replace(second, profile_key=waiting.profile_key)
    except (SlurmError, ValueError) as error:  # the job is good; a plan we cannot make must not hold it
        desk.say(f"not tuned again: {error}")
    start = start_action(target, waiting.release_at, "the pre-run found nothing wrong")
    went = _apply_each((start,), desk)
    return chosen, (*applied, *went), bool(went) and went[0]["error"] is None


def _apply_each(actions: Sequence[SlurmAction], desk: Desk) -> Applied:
    """Applies in order; a refusal is kept beside its action and does not stop the rest."""
    outcome: list[Mapping[str, str | None]] = []
    for action in actions:
        error = None
        try:
            desk.slurm.apply(action)
        except SlurmError as refused:
            error = str(refused)
        shown = {"verb": action.verb.value, "target": action.target, "option": action.key, "new": action.value}
        outcome.append({**shown, "reason": action.because, "error": error})
    return tuple(outcome)
