"""One gsub submission: open the adapters, prepare the job, submit it, and print what happened.

Every submission pays for the imports at the top of this module. What only some calls need is imported inside functions
(tests/gsub/test_fast_path.py lists the permitted modules).
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from slurmwrap import timing
from slurmwrap.config.load_config import Config, find_state_dir
from slurmwrap.errors import PrerunFailed, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub import process_env
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.gsub.prepare import describe, prepare
from slurmwrap.gsub.sbatch_call import WITH_TRIAL
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit_context import PreparedJob, PrerunChecks, SubmitContext, get_last_line
from slurmwrap.gsub.user_state import UserStateStore, touch
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.prerun.code_fingerprint import list_installation_marks, read_code_files
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.trial_environment import select_passed_on
from slurmwrap.protocols import Published
from slurmwrap.slurm.commands import AMBIGUOUS, SlurmCommands
from slurmwrap.store.prerun_registry import PrerunRegistry
from slurmwrap.store.user_state_files import UserState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurmwrap.console import Console
    from slurmwrap.gsub.submit_context import SubmitResult, TrialJob
    from slurmwrap.model.finding import Finding
    from slurmwrap.model.run_time import RunTimeEstimate
    from slurmwrap.placement.expected_start import ExpectedStart
    from slurmwrap.prerun.expected_saving import SavingEstimate
    from slurmwrap.protocols import SbatchResult
    from slurmwrap.sbatch.job_request import JobRequest


_MAX_NAMES = 2000  # maximum number of names read from one directory
_MAX_NOTICES = 3  # maximum number of cancelled jobs that one call reports
WATCHED_S = 60.0  # Slurm is not asked about pre-runs younger than this: most of them end normally


def open_submit_context(
    config: Config, environ: Mapping[str, str], console: Console, slurm: SlurmCommands | None = None
) -> SubmitContext:
    """Return the adapters for one gsub call or one pre-run job. Pass `slurm` if it has been opened already."""
    slurm = slurm or make_slurm_commands(config, environ, console)
    uid = os.getuid()
    memory = UserStateStore(UserState(find_state_dir(environ)), uid, config)
    if os.path.exists(memory.mark):
        _ingest_user_spool(config, slurm, memory, console)
    return SubmitContext(
        slurm=slurm,
        clock=SystemClock(),
        memory=memory,
        config=config,
        trials=_make_prerun_checks(environ, config),
        uid=uid,
        user=_get_user_name(uid),
        environ=environ,
        published=_read_published(config, memory.state, uid),
        say=console.say,
        flights=PrerunRegistry(find_state_dir(environ)),
        quotas=slurm.quotas,
        queue=slurm.queue,
    )


def refresh(context: SubmitContext, console: Console) -> None:
    """Store in the user's database what a pre-run has just recorded."""
    memory, slurm = context.memory, context.slurm
    if isinstance(memory, UserStateStore) and isinstance(slurm, SlurmCommands) and os.path.exists(memory.mark):
        _ingest_user_spool(context.config, slurm, memory, console)


def _ingest_user_spool(config: Config, slurm: SlurmCommands, memory: UserStateStore, console: Console) -> None:
    """Store the records of recent pre-runs in the user's database.

    A failure is reported and does not stop the submission; the next call tries again.
    """
    from slurmwrap.gsub.ingest_user_spool import ingest_user_spool

    done = False
    try:
        with suppress(FileNotFoundError):
            # Remove the mark before reading: a pre-run that ends in the meantime creates it again.
            os.unlink(memory.mark)
        done = ingest_user_spool(config, slurm, console, memory.state.directory)
    except (SlurmwrapError, OSError) as error:
        console.fault(error)
    if not done:
        with suppress(OSError):
            touch(memory.mark)


def prepare_and_warn(request: JobRequest, context: SubmitContext, console: Console) -> PreparedJob:
    """Prepare the submission; print what happened since the last call, then the warnings of the checks."""
    _report_news(request, context, console)
    prepared = prepare(request, context)
    for warning in prepared.warnings:
        console.say(f"warning: {describe(warning)}")
    if prepared.prerun != "off":
        from slurmwrap.gsub.prerun_submission import describe_many_steps, find_largest_node
        from slurmwrap.prerun.trial.trial_spec import count_trial_gpus

        if request.own.prerun_steps and (sentence := describe_many_steps(prepared, context.config.prerun)):
            console.say(sentence)
        # Raises for a --prerun-gpus that no node has, before anything is submitted.
        count_trial_gpus(request, find_largest_node(prepared))
    return prepared


def _report_news(request: JobRequest, context: SubmitContext, console: Console) -> None:
    """Print once which jobs their pre-runs have cancelled since the last call, unless a program reads the output."""
    memory = context.memory
    if not isinstance(memory, UserStateStore) or not os.path.exists(memory.news) or _is_terse(request):
        return
    from slurmwrap.store.job_notices import take_notices

    notices, in_all = take_notices(memory.state.place, _MAX_NOTICES)
    for one in notices:
        name = f" ({one.name})" if one.name else ""
        what = "was cancelled by its pre-run" if one.cancelled else "was not cancelled, but reads a broken file"
        console.say(f"since your last call: job {one.job_id}{name} {what}: {one.reason}")
    if len(notices) == 1:
        console.say(f"more: slurmwrap why {notices[0].job_id}")
    elif in_all > len(notices):
        console.say(f"and {in_all - len(notices)} more: slurmwrap history --prerun")
    elif notices:
        console.say("more: slurmwrap why JOBID")


# A short explanation of each pre-run mode, for users who see its name for the first time (docs/prerun.md).
_MODES = {
    "auto": ", a separate 1-GPU job; your job waits for it, 10 minutes at most",
    "gate": ", a separate 1-GPU job; your job waits for it without a limit",
    "wait": ", watched here before the job is submitted",
    "only": ", and no job after it",
    "profile": ", a separate 1-GPU job, which measures what your job needs",
    "off": "",
}
_KEEPS_PLACE = ", a separate 1-GPU job; too few GPUs are free for your job now, so it keeps its place in the queue"


def run(prepared: PreparedJob, context: SubmitContext, console: Console) -> int:
    """Explain, dry-run or submit the prepared job, with its pre-run as chosen. Return the exit code."""
    own = prepared.request.own
    if own.explain:
        console.block(_format_explanation(prepared, console))
        if prepared.run_time is not None:
            from slurmwrap.gsub.fitting_limit import describe_fitting_limit, find_fitting_limit
            from slurmwrap.report.run_time_text import describe_run_time

            console.say(f"it {describe_run_time(prepared.run_time, prepared.request.shape.gpus)}")
            prepared = replace(prepared, fits_s=find_fitting_limit(prepared, context.config.limit))
            if prepared.fits_s is not None:
                console.say(f"it {describe_fitting_limit(prepared, prepared.fits_s)}")
        if prepared.profile is not None and prepared.profile.saved_after_s is not None:
            from slurmwrap.gsub.fitting_limit import describe_time_min

            if advice := describe_time_min(prepared):
                console.say(f"it {advice}")
        if prepared.profile is not None and prepared.profile.loading is not None:
            from slurmwrap.profiling.storage_model import describe_staging

            if advice := describe_staging(prepared.profile):
                console.say(f"it {advice}")
        from slurmwrap.gsub.explain_gpus import explain_gpus

        if advice := explain_gpus(prepared, context):
            console.say(advice)
        prepared = _explain_start(prepared, context, console)
        if prepared.profile is not None and prepared.request.shape.gpus == 1:
            from slurmwrap.gsub.explain_share import explain_sharing

            if advice := explain_sharing(prepared, context):
                console.say(advice)
        if not own.dry_run:  # a dry run prints this line below
            console.say(f"its pre-run: {_describe_mode(prepared)} ({prepared.prerun_reason})")
    if own.dry_run:
        from slurmwrap.sbatch.explain import make_equivalent_script

        sys.stdout.buffer.write(make_equivalent_script(prepared.request, prepared.batch))
        if prepared.pack is not None and prepared.pack.is_folded:
            console.say("a program of gsub's starts the members: this script alone runs the first one of each task")
        if prepared.pack is not None and prepared.pack.parts:
            from slurmwrap.gsub.part_submission import describe_plan

            for line in describe_plan(prepared.pack, prepared.snapshot.max_array_size):
                console.say(line)
        console.say("nothing submitted")
        console.say(f"its pre-run would be: {_describe_mode(prepared)} ({prepared.prerun_reason})")
        if prepared.delay and prepared.prerun != "off":
            console.say(f"{prepared.delay}: no pre-run cancels it for a file that is missing now")
        if _has_job_dependency(prepared):
            console.say("its pre-run waits for the same jobs")
        return 0
    if prepared.prerun in ("wait", "only"):
        from slurmwrap.gsub.prerun_submission import run_prerun_first

        verdict = run_prerun_first(
            prepared, context, console, console.make_silent() if _is_terse(prepared.request) else console
        )
        if prepared.prerun == "only":
            from slurmwrap.gsub.verdict_output import print_alone

            remarks = tuple(f for f in prepared.warnings if f not in verdict.findings)
            return print_alone(replace(verdict, findings=(*verdict.findings, *remarks)), own.json)
        if verdict.outcome.value == "fail":
            # Unless the output is terse, the reason has just been printed.
            why = f": {verdict.reason}" if _is_terse(prepared.request) else ""
            raise PrerunFailed(f"nothing was submitted, since the pre-run failed{why}")
        refresh(context, console)
        # Plan again with the measured resource profile; nothing more is to be measured.
        pack = replace(context.config.pack, measure_s=0.0)
        prepared = prepare(prepared.request, replace(context, config=replace(context.config, pack=pack)))
        if own.explain:
            console.say("planned again on what the pre-run measured:")
            console.block(_format_explanation(prepared, console))
    code = _send(replace(prepared, prerun="off") if prepared.prerun == "wait" else prepared, context, console)
    timing.reached("remember")
    release_orphans(context)
    timing.reached("look after pre-runs")
    return code


def _explain_start(prepared: PreparedJob, context: SubmitContext, console: Console) -> PreparedJob:
    """Print when a job that cannot start at once is expected to start, and return it with that."""
    from slurmwrap.gsub.explain_start import explain_start

    start, sentence = explain_start(prepared, context)
    if sentence:
        console.say(sentence)
        from slurmwrap.gsub.choose_partition import advise_partition

        if advice := advise_partition(prepared.request, prepared.snapshot, prepared.run_time, context):
            console.say(advice)
    return replace(prepared, start=start)


def _describe_mode(prepared: PreparedJob) -> str:
    return f"{prepared.prerun}{_KEEPS_PLACE if prepared.keeps_place else _MODES[prepared.prerun]}"


def _format_explanation(prepared: PreparedJob, console: Console) -> str:
    from slurmwrap.sbatch.explain import explain

    remarks = (*prepared.plan.remarks, *prepared.snapshot.topology.remarks)
    return explain(prepared.request, prepared.batch, colour=console.colour, remarks=remarks)


def release_orphans(context: SubmitContext, older_than_s: float = WATCHED_S) -> None:
    """Release the jobs whose pre-run has disappeared without a verdict. Costs nothing if all pre-runs have ended."""
    if context.flights is not None and context.flights.trials():
        from slurmwrap.gsub.prerun_sharing import release_all_orphans

        # On failure, the next call, a reconcile or the end of the grace period releases them.
        with suppress(Exception):
            release_all_orphans(context.flights, context, older_than_s=older_than_s)


def clean_up_preruns(context: SubmitContext) -> None:
    """Release the jobs of lost pre-runs of any age, and remove the files of old pre-runs, never of one in flight."""
    from slurmwrap.gsub.prerun_sharing import OLD_S, list_live_trials

    release_orphans(context, 0.0)
    if context.flights is not None:
        with suppress(OSError):
            context.flights.prune(OLD_S, keep=frozenset(str(path) for path in list_live_trials(context)))


def _send(prepared: PreparedJob, context: SubmitContext, console: Console) -> int:
    def trial(of: PreparedJob, job_id: int | None, release_at: str) -> TrialJob:
        from slurmwrap.gsub.prerun_submission import make_trial

        return make_trial(of, job_id, release_at, context=context)

    meanwhile = context.memory.expect_submission if isinstance(context.memory, UserStateStore) else None
    as_json = prepared.request.own.json
    sent = send(prepared, context, trial, _show_errors if as_json else _show, meanwhile)
    result = sent.result
    if as_json:
        _show_errors(result)
        process_env.write_stdout(format_submission_json(prepared, sent, context.cluster) + "\n")
    else:
        _show(result)
    if sent.jobs and (result.exit_code or not _is_terse(prepared.request)):
        _describe_split(prepared, sent, console)
    if result.timed_out and sent.jobs:
        return result.exit_code or 1
    if result.timed_out:
        console.say(f"{_describe_lost_answer(result)}: it is not known whether the job was submitted")
        console.say("look with squeue --me before you try again")
        return result.exit_code or 1
    if result.job_id is None or _is_terse(prepared.request):
        return result.exit_code
    if (pack := prepared.pack) is not None and pack.measured_up_to and prepared.prerun in WITH_TRIAL:
        console.say(f"--pack=auto: its pre-run measures how many of the {len(pack.indices)} members share a GPU")
    elif pack is not None and pack.is_folded:
        tasks = f"{pack.tasks} array task{'s' if pack.tasks != 1 else ''}"
        console.say(
            f"job {result.job_id} runs {len(pack.indices)} members in {tasks}; "
            f"slurmwrap why {result.job_id}_{pack.indices[-1]} shows one member"
        )
    if prepared.held_out:
        console.say(f"job {result.job_id} has no pre-run, chosen at random: the site measures what pre-runs save")
    if sent.attached_to is not None:
        which = f"job {sent.attached_to}" if sent.attached_to else "just submitted"
        console.say(
            f"job {result.job_id} waits for the pre-run of an earlier one with the same script and code, {which}"
        )
    elif sent.trial is not None and sent.trial.job_id is not None:
        from slurmwrap.gsub.prerun_submission import format_gpu_count

        where = f"its pre-run on {format_gpu_count(prepared)}, job {sent.trial.job_id}"
        if prepared.keeps_place:
            console.say(f"job {result.job_id} keeps its place in the queue; meanwhile runs {where}")
        else:
            console.say(f"job {result.job_id} waits for {where}")
        if _has_job_dependency(prepared):
            console.say("both wait for the jobs of --dependency first")
        console.say(f"watch it: slurmwrap watch {result.job_id}")
    if prepared.prerun == "gate":
        console.say(f"should its pre-run never start: scontrol update JobId={result.job_id} StartTime=now")
    return result.exit_code


def _describe_split(prepared: PreparedJob, sent: SubmitResult, console: Console) -> None:
    from slurmwrap.gsub.part_submission import describe_parts

    assert prepared.pack is not None
    reason = get_last_line(sent.result.stderr)
    for line in describe_parts(prepared.pack, sent, prepared.snapshot.max_array_size, reason):
        console.say(line)


def _has_job_dependency(prepared: PreparedJob) -> bool:
    """Return whether the pre-run has the same dependency as its job."""
    if prepared.prerun not in ("auto", "gate", "profile") or not (dependency := prepared.request.value("dependency")):
        return False
    from slurmwrap.sbatch.eligibility import can_share_dependency

    return can_share_dependency(dependency)


def _is_terse(request: JobRequest) -> bool:
    """Return whether to print nothing about the pre-run: the user asked for short output, or a program reads it."""
    return bool(request.setting("quiet") or request.setting("parsable")) or process_env.is_one_stream()


def _describe_lost_answer(result: SbatchResult) -> str:
    """Return why it is unknown whether the job was submitted. sbatch's own messages have been shown already."""
    from re import search

    if result.exit_code < 0:
        return f"sbatch was ended by signal {-result.exit_code}"
    if search(AMBIGUOUS, result.stderr):
        return "Slurm's answer to sbatch was lost"
    return "sbatch did not answer in time"


def _show(result: SbatchResult) -> None:
    """Print the output of sbatch, stderr first."""
    _show_errors(result)
    process_env.write_stdout(result.stdout)


def _show_errors(result: SbatchResult) -> None:
    sys.stderr.write(result.stderr)
    sys.stderr.flush()


# --- wiring ----------------------------------------------------------------------------------------------------------


def _make_prerun_checks(environ: Mapping[str, str], config: Config) -> PrerunChecks:
    cwd = os.getcwd()

    def check(request: JobRequest) -> tuple[Finding, ...]:
        from slurmwrap.host.run_command import run
        from slurmwrap.prerun.static import static_stage

        return static_stage.check(request, run=run, environ=select_passed_on(request, environ, cwd))

    return PrerunChecks(
        check=check,
        named_files=lambda request: job_inputs.list_named_files(request, select_passed_on(request, environ, cwd)),
        log_files=lambda request: _find_log_files(request, select_passed_on(request, environ, cwd)),
        digest=_digest,
        entry_files=lambda request: _read_entry_files(request, select_passed_on(request, environ, cwd)),
        holder=lambda request: _find_holder(request, select_passed_on(request, environ, cwd), config),
        changed_at=_get_change_time,
        files_in=_list_files,
    )


def _get_change_time(path: str) -> float | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return max(found.st_mtime, found.st_ctime)


def _list_files(folder: str) -> tuple[str, ...]:
    try:
        return tuple(islice(os.listdir(folder), _MAX_NAMES))
    except OSError:
        return ()


def _find_log_files(request: JobRequest, environ: Mapping[str, str]) -> Mapping[str, list[int | str]]:
    from slurmwrap.prerun.static import job_logs

    return job_logs.find_log_ends(job_logs.list_log_files(request, environ), os.geteuid())


def _digest(path: str) -> str | None:
    try:
        return job_inputs.digest(path)
    except OSError:
        return None


def _read_entry_files(request: JobRequest, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Return path → content of the code that the script runs, as far as it is readable.

    The entry programs come first, in the script's order. "(installed)" stands for the marks of installed packages.
    """
    # surrogateescape: file names need not be valid UTF-8.
    text = request.script.content.decode("utf-8", "surrogateescape")
    found = read_code_files(text, request.chdir, request.args, environ, job_inputs.list_named_files(request, environ))
    marks = "\n".join(list_installation_marks(environ))
    return {**found, "(installed)": marks.encode()} if found and marks else found


def _find_holder(request: JobRequest, environ: Mapping[str, str], config: Config) -> str:
    from slurmwrap.prerun.static.training_expected import find_known_program_of_script

    text = request.script.content.decode("utf-8", "surrogateescape")
    return find_known_program_of_script(text, request.chdir, request.args, environ, config.prerun.no_training_programs)


def _read_published(config: Config, state: UserState, uid: int) -> Published:
    """Return what the site publishes, without inputs that the user has unblocked since (`slurmwrap inputs clear`)."""
    if not config.site.published:
        return Published()
    from slurmwrap.store.published_files import list_trusted_uids, read_published

    found = read_published(config.site.published, list_trusted_uids(config)) or Published()
    if not any(block.uid == uid for block in found.blocked):
        return found
    freed = state.freed_inputs()
    standing = tuple(b for b in found.blocked if b.uid != uid or freed.get(b.digest, 0.0) < b.at)
    return replace(found, blocked=standing)


def _get_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# The JSON object that `gsub --json` prints instead of sbatch's line. Standard library only.


def format_submission_json(prepared: PreparedJob, sent: SubmitResult, cluster: str) -> str:
    """Return one JSON object. `job_id` is null if Slurm refused the job or its answer was lost (see `error`)."""
    from slurmwrap.json_output import format_json_document

    return format_json_document("submission", _submission_to_json_dict(prepared, sent, cluster))


def _submission_to_json_dict(prepared: PreparedJob, sent: SubmitResult, cluster: str) -> dict[str, Any]:
    trial_id = sent.attached_to or (sent.trial.job_id if sent.trial is not None else None)
    result = sent.result
    return {
        "job_id": result.job_id,
        "jobs": list(sent.jobs) or ([] if result.job_id is None else [result.job_id]),
        "cluster": cluster,
        "exit_code": result.exit_code,
        "error": "" if result.job_id is not None and not result.exit_code else get_last_line(result.stderr),
        "prerun": {
            "mode": prepared.prerun,
            "reason": prepared.prerun_reason,
            "job_id": trial_id,
            "shared": sent.attached_to is not None,
            "keeps_place": prepared.keeps_place,
            "estimate": None if prepared.estimate is None else _estimate_to_json_dict(prepared.estimate),
        },
        "start": None if prepared.start is None else _start_to_json_dict(prepared.start),
        "run_time": None if prepared.run_time is None else _run_time_to_json_dict(prepared.run_time),
        "fitting_time_limit_s": prepared.fits_s,
        "changes": [
            {"option": c.option, "old": c.old, "new": c.new, "reason": c.reason}
            for c in sent.batch.changes
            if c.old != c.new
        ],
        "warnings": [_finding_to_json_dict(one) for one in prepared.warnings],
        "forced": list(prepared.forced),
    }


def _estimate_to_json_dict(estimate: SavingEstimate) -> dict[str, Any]:
    """Return why the job has a pre-run or none; savings and costs in GPU-seconds."""
    from slurmwrap.fast_dataclasses import asdict

    return {**asdict(estimate), "worthwhile": estimate.worthwhile}


def _start_to_json_dict(start: ExpectedStart) -> dict[str, Any]:
    """Return when the job is expected to start, in Unix seconds."""
    return {"at": round(start.at), "by": round(start.by), "jobs": start.jobs, "predicted": start.predicted}


def _run_time_to_json_dict(found: RunTimeEstimate) -> dict[str, Any]:
    """Return the expected run time in seconds, and where it comes from."""
    times = {"p10_s": found.p10_s, "p50_s": found.p50_s, "p90_s": found.p90_s}
    return {**{name: round(time) for name, time in times.items()}, "source": found.source, "runs": found.n}


def _finding_to_json_dict(one: Finding) -> dict[str, Any]:
    return {"message": one.message, "file": one.file, "line": one.line, "fix": one.fix}
