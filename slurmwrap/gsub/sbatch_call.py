"""Call sbatch for a planned job, and record the submission.

No job is submitted again unless Slurm has clearly refused it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from slurmwrap import timing
from slurmwrap.digest import sha256_hex
from slurmwrap.fast_dataclasses import asdict, replace
from slurmwrap.gsub.planning_inputs import keep
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext, SubmitResult, get_last_line
from slurmwrap.gsub.time_request import make_time_request
from slurmwrap.model.placement_plan import PLACING, PlacementPlan
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.sbatch.command_line import add_plugin_names, remove_quiet
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange
from slurmwrap.sbatch.option_table import OWN, SBATCH
from slurmwrap.sbatch.rewrite import list_submitted_options, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.submission import PackedArray, Submission, SubmittedCall


_Accepted = Callable[[BatchScript, SbatchResult], None]

# Maximum number of warnings stored with a submission for `slurmwrap why`.
WARNINGS = 20
_ERROR_PREFIXES = ("sbatch: error", "sbatch: fatal")


def start_own_retry_job(prepared: PreparedJob, result: SbatchResult, context: SubmitContext) -> None:
    """Submit the retry job of a job that Slurm has accepted, if its user agreed to retries."""
    if (prepared.retry or prepared.retry_on) and result.job_id is not None:
        from slurmwrap.gsub.retry_submission import start_retry_job

        start_retry_job(prepared, result.job_id, context)


def remember(prepared: PreparedJob, sent: SubmitResult, context: SubmitContext, now: float) -> None:
    """Record the submission, unless Slurm refused it. A failure to record it is reported."""
    if sent.result.job_id is not None:
        job_id = sent.result.job_id
        if prepared.share_dir:
            from slurmwrap.gsub.share_submission import mark_waiting

            mark_waiting(prepared.share_dir, job_id)
        keep(
            lambda: context.memory.remember_submission(_build_submission(prepared, sent, job_id, context, now)), context
        )


def select_shown_result(prepared: PreparedJob, result: SbatchResult) -> SbatchResult:
    """Return the part of sbatch's output that the user asked to see."""
    return _remove_notices(result) if is_quiet(prepared.request) else result


def is_quiet(request: JobRequest) -> bool:
    """Return whether --quiet was given without --verbose. sbatch itself refuses both together."""
    return request.setting("quiet") is not None and request.setting("verbose") is None


def _remove_notices(result: SbatchResult) -> SbatchResult:
    """Return sbatch's output as --quiet would print it.

    gsub does not pass --quiet to sbatch, because sbatch would then not print the job id.
    """
    lines = result.stderr.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("sbatch: ") or line.startswith(_ERROR_PREFIXES)]
    return replace(result, stdout="", stderr="".join(kept))


def call_sbatch(
    prepared: PreparedJob,
    added: tuple[OptionChange, ...],
    context: SubmitContext,
    accepted: _Accepted | None,
    meanwhile: Callable[[], None] | None,
) -> tuple[BatchScript, SbatchResult]:
    """Submit the planned job. If Slurm clearly refuses it, submit it once more as the user asked.

    A plan does not know QOS and association limits, so it may request what the user may not have. If the answer leaves
    open whether Slurm accepted the job, it is never submitted again.
    """
    request, lines = prepared.request, prepared.plan.lines
    batch = render(request, lines, added=added)

    def called(one: BatchScript) -> SbatchResult:
        call = replace(make_sbatch_call(request, one, context, environ=prepared.job_environ), meanwhile=meanwhile)
        if prepared.wrapper_script:
            call = replace(call, script_path=prepared.wrapper_script, stdin=None)
        timing.reached("render")
        result = context.slurm.sbatch(call if accepted is None else replace(call, accepted=partial(accepted, one)))
        timing.reached("sbatch")
        return result

    result = called(batch)
    planned = any(line.value is not None for line in lines)
    if result.exit_code == 0 or result.job_id is not None or result.timed_out or not planned:
        return batch, result
    as_asked = render(request, (), added=added)
    second = called(as_asked)
    if second.job_id is not None:
        context.say(f"Slurm refused the tuned request, so the job goes as you asked: {get_last_line(result.stderr)}")
    return as_asked, second


def make_sbatch_call(
    request: JobRequest,
    batch: BatchScript,
    context: SubmitContext,
    extra: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> SbatchCall:
    """Return the sbatch call for `batch`: the user's own options, script and environment, then the added options.

    `environ`: variables that are added to the job's environment.
    """
    script = request.script
    wrapped = request.value("wrap") is not None
    path = None if wrapped else script.word or script.path
    options = (*list_submitted_options(request, batch), *extra)
    options = remove_quiet(options, add_plugin_names(request.plugin_options)) if is_quiet(request) else options
    return SbatchCall(
        options=(*options, "--") if path and path.startswith("-") else options,
        script_path=path,
        args=() if wrapped else batch.args,
        stdin=script.content if path is None and not wrapped else None,
        environ={**context.environ, **(environ or {})},
        # With --wait, sbatch runs as long as the job.
        timeout_s=math.inf if request.setting("wait") else None,
    )


# Modes in which a job is submitted before its pre-run.
WITH_TRIAL = ("auto", "gate", "profile")


def make_gate(prepared: PreparedJob, config: Config, now: float) -> tuple[OptionChange | None, str]:
    """Return (the --begin that makes the job wait for its pre-run, or None; the StartTime that releases it)."""
    if prepared.prerun not in WITH_TRIAL or prepared.keeps_place:
        return None, "now"
    from slurmwrap.sbatch.begin import select_later_begin

    grace = config.prerun.grace_s + math.ceil(prepared.measuring_s)
    # With --prerun=gate the wait is bounded too at first; start_trial removes the bound once there is a pre-run.
    begin, release_at = select_later_begin(prepared.request.value("begin"), grace, now)
    bound = "until its verdict" if prepared.prerun == "gate" else f"at most {math.ceil(grace / 60)} min"
    return OptionChange(option="begin", value=begin, reason=f"waits for its pre-run on one GPU, {bound}"), release_at


def _build_submission(
    prepared: PreparedJob, sent: SubmitResult, job_id: int, context: SubmitContext, now: float
) -> Submission:
    from slurmwrap.model.submission import Submission

    request, trial = prepared.request, sent.trial
    return Submission(
        cluster=context.cluster,
        job_id=job_id,
        uid=context.uid,
        user=context.user,
        at=now,
        name=request.job_name,
        script_path=request.script.path or "",
        script_sha256=sha256_hex(request.script.content),
        work_dir=request.chdir,
        gpus=request.shape.gpus,
        nodes=prepared.plan.node_count or request.shape.nodes or 0,
        retry=prepared.retry,
        retry_on=prepared.retry_on,
        profile_key=_make_own_profile_key(prepared),
        profile_variant=prepared.profile_variant,
        length=prepared.length,
        expected_p50_s=None if prepared.run_time is None else round(prepared.run_time.p50_s),
        expected_p90_s=None if prepared.run_time is None else round(prepared.run_time.p90_s),
        expected_source="" if prepared.run_time is None else prepared.run_time.source,
        step_dir=prepared.step_dir,
        prerun_mode=prepared.prerun,
        prerun_job_id=trial.job_id if trial else sent.attached_to or None,
        fingerprint=prepared.fingerprint,
        inputs=prepared.inputs,
        logs=prepared.logs,
        output_appends=request.value("open-mode") == "append" or any(w.option == "open-mode" for w in prepared.added),
        plan=asdict(_get_plan_in_force(prepared.plan, sent.batch)),
        changes=tuple(asdict(change) for change in sent.batch.changes),
        forced=prepared.forced,
        warnings=prepared.warnings[:WARNINGS],
        shape=prepared.planned_request.shape,
        own={option: value for option in PLACING if (value := request.value(option)) is not None},
        # A job in a reservation does not compete for the resources that the reconciler distributes.
        tune=prepared.planned_request.own.tune
        and prepared.share is None
        and context.config.tuning.enabled
        and request.setting("reservation") is None,
        place=request.own.place and context.config.placement.enabled,
        time=None if (prepared.pack and prepared.pack.is_folded) or prepared.share else make_time_request(request),
        stop_at=request.own.stop_at,
        stop_when=request.own.stop_when,
        stop_signal=(request.value("signal") or "") if request.own.stop_at or request.own.stop_when else "",
        preemptible=request.own.preemptible,
        lease_s=request.own.lease_s,
        holdout_group=prepared.holdout_group,
        held_out=prepared.held_out,
        pack=_make_packed_array(prepared),
        share=prepared.share_dir,
        call=make_submitted_call(request, context.environ),
    )


def _make_own_profile_key(prepared: PreparedJob) -> str:
    """Return the key for what the job needs. What programs on one GPU need together is not what one of them needs."""
    pack = prepared.pack
    if prepared.share is not None:
        return f"{prepared.profile_key}+share"
    if pack is None or not pack.is_folded:
        return prepared.profile_key
    return f"{prepared.profile_key}+pack{'auto' if pack.measured_up_to else pack.members}"


def _make_packed_array(prepared: PreparedJob) -> PackedArray | None:
    if prepared.pack is None:
        return None
    from slurmwrap.model.submission import PackedArray

    return PackedArray(
        directory=prepared.pack_dir,
        members=prepared.pack.members,
        array=prepared.request.value("array") or "",
    )


# A script from standard input that is longer is not kept for `gsub --again`.
_KEPT_SCRIPT_BYTES = 1 << 18


def make_submitted_call(request: JobRequest, environ: Mapping[str, str]) -> SubmittedCall | None:
    """Return the call, for the user's own records; None if it cannot be repeated."""
    from slurmwrap.model.submission import SubmittedCall

    content = request.script.content if request.script.from_stdin else b""
    if request.hetjob or not request.argv or len(content) > _KEPT_SCRIPT_BYTES:
        return None
    names = {variable for option in SBATCH for variable in option.variables} | {one.variable for one in OWN}
    variables = {name: value for name, value in environ.items() if name in names}
    return SubmittedCall(
        words=request.argv, cwd=request.cwd, variables=variables, script=content.decode("utf-8", "surrogateescape")
    )


def _get_plan_in_force(plan: PlacementPlan, batch: BatchScript) -> PlacementPlan:
    """Return the plan that is in force. If Slurm refused it and the job was submitted as asked, it has no lines."""
    changed = {change.option for change in batch.changes}
    taken = all(wish.option in changed for wish in plan.lines if wish.value is not None)
    return plan if taken else replace(plan, lines=(), levels=())
