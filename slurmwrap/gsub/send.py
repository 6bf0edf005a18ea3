"""Second step of a submission: submit the real job so that it waits, then its pre-run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.sbatch_call import (
    WITH_TRIAL,
    call_sbatch,
    make_gate,
    remember,
    select_shown_result,
    start_own_retry_job,
)
from slurmwrap.gsub.submit_context import MakeTrial, PreparedJob, SubmitContext, SubmitResult
from slurmwrap.protocols import SbatchResult
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


# --count-steps adds the step counter to the real job through environment variables. The script is not changed.
#
# The counter and its files are in the user's state directory, which nodes and containers can read if they can read the
# home directory. If the counter cannot be enabled, the job is submitted without it.
_COUNTER_VARIABLES = ("SLURMWRAP_STEP_DIR", "SLURMWRAP_STEP_NAMED")
_EXPORT_REASON = "--count-steps: the step counter is found by these variables"


def enable_step_counting(prepared: PreparedJob, context: SubmitContext) -> PreparedJob:
    """Return `prepared` with the environment of the step counter, if --count-steps was given and it is possible."""
    request = prepared.request
    stops = request.own.stop_at or request.own.stop_when
    if not (request.own.count_steps or stops):
        return prepared
    why = find_step_counting_obstacle(request)
    if why:
        context.say(f"its steps are not counted{', so it is never stopped by its loss' if stops else ''}: {why}")
        return prepared
    try:
        directory, counter = context.memory.step_dir(), context.memory.keep_counter()
    except OSError as error:
        context.say(f"its steps are not counted: {error}")
        return prepared
    environ = {
        "SLURMWRAP_STEP_DIR": directory,
        "SLURMWRAP_STEP_NAMED": "1",
        "PYTHONPATH": prepend_to_pythonpath(counter, context.environ.get("PYTHONPATH", "")),
    }
    exported = add_counter_to_export(request.value("export"), counter)
    if exported is not None:
        context.say("its --export gets the step counter's variables: --count-steps")
    wishes = () if exported is None else (OptionChange(option="export", value=exported, reason=_EXPORT_REASON),)
    return replace(prepared, job_environ=environ, step_dir=directory, added=(*prepared.added, *wishes))


def find_step_counting_obstacle(request: JobRequest) -> str:
    """Return why the counter's variables cannot reach the job; "" if they can (sbatch(1), --export)."""
    if request.setting("export-file"):
        return "--export-file alone says what the job's environment is"
    value = request.value("export")
    if value is None:
        return ""
    if value.upper() in ("NONE", "NIL"):
        # srun inside the job would not pass the variables on either: sbatch sets SLURM_EXPORT_ENV=NONE for it.
        return f"--export={value} keeps the counter's variables from the job; name the ones it needs instead"
    return "--export has a quoted value" if set(value) & set("'\"") else ""


def add_counter_to_export(value: str | None, counter: str) -> str | None:
    """Return the value of --export with the counter's variables added; None if the value need not change.

    A PYTHONPATH=… that the user set in it follows the counter's directory. A PYTHONPATH that the user did not export is
    not exported.
    """
    if value is None:
        return None
    words = value.split(",")
    every = "ALL" in (word.upper() for word in words)
    chosen = [_add_counter(word, counter) for word in words]
    if not every:
        chosen += [name for name in _COUNTER_VARIABLES if name not in words]
        chosen += [] if _sets_pythonpath(words) else [f"PYTHONPATH={counter}"]
    return None if chosen == words else ",".join(chosen)


def prepend_to_pythonpath(counter: str, path: str) -> str:
    """Return a PYTHONPATH that begins with the counter's directory."""
    return f"{counter}:{path}" if path else counter


def _add_counter(word: str, counter: str) -> str:
    name, equals, value = word.partition("=")
    return f"PYTHONPATH={prepend_to_pythonpath(counter, value)}" if equals and name == "PYTHONPATH" else word


def _sets_pythonpath(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "PYTHONPATH" for word in words)


def send(
    prepared: PreparedJob,
    context: SubmitContext,
    make_trial: MakeTrial,
    show: Callable[[SbatchResult], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> SubmitResult:
    """Submit the real job, then its pre-run. An ambiguous or refused answer of sbatch is returned, never repeated.

    `show`: with --wait it gets sbatch's output as soon as Slurm has accepted the job, and the submission is recorded
    then; the returned result holds the rest of the output, after the job has ended. `meanwhile`: is called while sbatch
    runs, at most twice.
    """
    now = context.clock.now()
    prepared = enable_step_counting(prepared, context)
    if prepared.pack is not None:
        from slurmwrap.gsub.pack_submission import write_pack  # few calls use it

        prepared = write_pack(prepared, context)
        if prepared.pack is not None and prepared.pack.parts:
            from slurmwrap.gsub.part_submission import send_parts

            return send_parts(prepared, context, make_trial, now, meanwhile)
    if prepared.share is not None:
        from slurmwrap.gsub.share_submission import write_share  # few calls use it

        prepared = write_share(prepared, context)
    begin, release_at = make_gate(prepared, context.config, now)
    gate = () if begin is None else (begin,)
    early: list[SubmitResult] = []

    def accepted(batch: BatchScript, result: SbatchResult) -> None:
        early.append(SubmitResult(result=select_shown_result(prepared, result), batch=batch))
        if show is not None:
            show(early[0].result)
        remember(prepared, early[0], context, now)
        start_own_retry_job(prepared, result, context)

    waits = show is not None and prepared.request.setting("wait") is not None
    batch, result = call_sbatch(prepared, (*prepared.added, *gate), context, accepted if waits else None, meanwhile)
    sent = SubmitResult(result=select_shown_result(prepared, result), batch=batch)
    if result.job_id is None or early:
        return sent
    if prepared.prerun in WITH_TRIAL:
        # Imported only here, because most calls start no pre-run.
        from slurmwrap.gsub.start_prerun import start_trial

        sent = start_trial(prepared, sent, result.job_id, release_at, context, make_trial)
    remember(prepared, sent, context, now)
    start_own_retry_job(prepared, result, context)
    return sent
