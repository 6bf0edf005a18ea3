"""Wires gsub: opens the edges, calls submit's steps in order, and says what happened.

Every submission pays for what is imported here at the top: what only some calls need is imported where they need it
(tests/gsub/test_fast_path.py holds the list).
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from slurmwrap import timing
from slurmwrap.config import Config, state_dir
from slurmwrap.errors import PrerunFailed, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub import process_env
from slurmwrap.gsub.prefetch import slurm_of
from slurmwrap.gsub.prepare import describe, prepare
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit_context import PreparedJob, PrerunChecks, SubmitContext
from slurmwrap.gsub.user_state import UserStateStore, touch
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.prerun.code_fingerprint import code_files, installed_marks
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.trial_environment import passed_on
from slurmwrap.protocols import Published
from slurmwrap.slurm.commands import AMBIGUOUS, SlurmCommands
from slurmwrap.store.prerun_registry import PrerunRegistry
from slurmwrap.store.user_state_files import UserState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.console import Console
    from slurmwrap.gsub.submit_context import TrialJob
    from slurmwrap.model.finding import Finding
    from slurmwrap.protocols import SbatchResult
    from slurmwrap.sbatch.request import JobRequest

_LISTED = 2000  # names of one directory
_NEWS = 3  # cancelled jobs that one call reports
WATCHED_S = 60.0  # younger pre-runs are not asked after: most come to their end


def open_desk(
    config: Config, environ: Mapping[str, str], voice: Console, slurm: SlurmCommands | None = None
) -> SubmitContext:
    """The edges of one gsub call or one pre-run job. `slurm`: where it is asked already."""
    slurm = slurm or slurm_of(config, environ, voice)
    uid = os.getuid()
    memory = UserStateStore(UserState(state_dir(environ)), uid, config)
    if os.path.exists(memory.mark):
        _catch_up(config, slurm, memory, voice)
    return SubmitContext(
        slurm=slurm,
        clock=SystemClock(),
        memory=memory,
        config=config,
        trials=_trials(environ, config),
        uid=uid,
        user=_user_name(uid),
        environ=environ,
        published=_published(config, memory.state, uid),
        say=voice.say,
        flights=PrerunRegistry(state_dir(environ)),
        quotas=slurm.quotas,
    )


def refresh(desk: SubmitContext, voice: Console) -> None:
    """Takes in what a pre-run has just left."""
    memory, slurm = desk.memory, desk.slurm
    if isinstance(memory, UserStateStore) and isinstance(slurm, SlurmCommands) and os.path.exists(memory.mark):
        _catch_up(desk.config, slurm, memory, voice)


def _catch_up(config: Config, slurm: SlurmCommands, memory: UserStateStore, voice: Console) -> None:
    """A failure costs what the last pre-runs found, not the submission; the next call tries again."""
    from slurmwrap.gsub.ingest_user_spool import catch_up

    done = False
    try:
        with suppress(FileNotFoundError):
            os.unlink(memory.mark)  # before reading: a pre-run that ends meanwhile leaves it anew
        done = catch_up(config, slurm, voice, memory.state.directory)
    except (SlurmwrapError, OSError) as error:
        voice.fault(error)
    if not done:
        with suppress(OSError):
            touch(memory.mark)


def prepare_and_warn(request: JobRequest, desk: SubmitContext, voice: Console) -> PreparedJob:
    """Prepare the submission; print what happened since the last call, then the warnings of the checks."""
    _tell_news(request, desk, voice)
    prepared = prepare(request, desk)
    for warning in prepared.warnings:
        voice.say(f"warning: {describe(warning)}")
    if prepared.prerun != "off":
        from slurmwrap.gsub.prerun_submission import largest, many_steps
        from slurmwrap.prerun.trial.trial_spec import trial_gpus

        if request.own.prerun_steps and (told := many_steps(prepared, desk.config.prerun)):
            voice.say(told)
        trial_gpus(request, largest(prepared))  # a --prerun-gpus that no node has is said before anything is submitted
    return prepared


def _tell_news(request: JobRequest, desk: SubmitContext, voice: Console) -> None:
    """Jobs that their pre-run cancelled since the last call: once, where a person reads it."""
    memory = desk.memory
    if not isinstance(memory, UserStateStore) or not os.path.exists(memory.news) or _tells_little(request):
        return
    from slurmwrap.store.news import take_news

    told, in_all = take_news(memory.state.place, _NEWS)
    for one in told:
        name = f" ({one.name})" if one.name else ""
        voice.say(f"since your last call: job {one.job_id}{name} was cancelled by its pre-run: {one.reason}")
    if len(told) == 1:
        voice.say(f"more: slurmwrap why {told[0].job_id}")
    elif in_all > len(told):
        voice.say(f"and {in_all - len(told)} more: slurmwrap history --prerun")
    elif told:
        voice.say("more: slurmwrap why JOBID")


_MODES = {  # what each is, for who reads its name for the first time (docs/prerun.md)
    "auto": ", a separate 1-GPU job; your job waits for it, 10 minutes at most",
    "gate": ", a separate 1-GPU job; your job waits for it without a limit",
    "wait": ", watched here before the job is submitted",
    "only": ", and no job after it",
    "profile": ", a separate 1-GPU job, which measures what your job needs",
    "off": "",
}


def run(prepared: PreparedJob, desk: SubmitContext, voice: Console) -> int:
    """Everything after the preparation; returns the exit code."""
    own = prepared.request.own
    if own.explain:
        voice.block(_explained(prepared, voice))
        if not own.dry_run:  # which says it below
            voice.say(f"its pre-run: {prepared.prerun}{_MODES[prepared.prerun]} ({prepared.prerun_reason})")
    if own.dry_run:
        from slurmwrap.sbatch.explain import equivalent_script

        sys.stdout.buffer.write(equivalent_script(prepared.request, prepared.batch))
        voice.say("nothing submitted")
        voice.say(f"its pre-run would be: {prepared.prerun}{_MODES[prepared.prerun]} ({prepared.prerun_reason})")
        if prepared.delay and prepared.prerun != "off":
            voice.say(f"{prepared.delay}: no pre-run cancels it for a file that is missing now")
        if _waits_too(prepared):
            voice.say("its pre-run waits for the same jobs")
        return 0
    if prepared.prerun in ("wait", "only"):
        from slurmwrap.gsub.prerun_submission import pre_run_first

        verdict = pre_run_first(prepared, desk, voice, voice.hushed() if _tells_little(prepared.request) else voice)
        if prepared.prerun == "only":
            from slurmwrap.gsub.verdict_output import print_alone

            remarks = tuple(f for f in prepared.warnings if f not in verdict.findings)
            return print_alone(replace(verdict, findings=(*verdict.findings, *remarks)), own.json)
        if verdict.outcome.value == "fail":
            why = f": {verdict.reason}" if _tells_little(prepared.request) else ""  # else it was just said
            raise PrerunFailed(f"nothing was submitted, since the pre-run failed{why}")
        refresh(desk, voice)
        prepared = prepare(prepared.request, desk)  # again, on what was measured
        if own.explain:
            voice.say("planned again on what the pre-run measured:")
            voice.block(_explained(prepared, voice))
    code = _send(replace(prepared, prerun="off") if prepared.prerun == "wait" else prepared, desk, voice)
    timing.reached("remember")
    watch_over(desk)
    timing.reached("look after pre-runs")
    return code


def _explained(prepared: PreparedJob, voice: Console) -> str:
    from slurmwrap.sbatch.explain import explain

    remarks = (*prepared.plan.remarks, *prepared.snapshot.topology.remarks)
    return explain(prepared.request, prepared.batch, colour=voice.colour, remarks=remarks)


def watch_over(desk: SubmitContext, older_than_s: float = WATCHED_S) -> None:
    """Lets go the jobs whose pre-run is gone without a word. Costs nothing where every pre-run came to its end."""
    if desk.flights is not None and desk.flights.trials():
        from slurmwrap.gsub.prerun_sharing import sweep

        with suppress(Exception):  # the next call, a reconcile or the grace does it
            sweep(desk.flights, desk, older_than_s=older_than_s)


def tidy(desk: SubmitContext) -> None:
    """The same for pre-runs of any age, and what old ones left is removed; never one in flight."""
    from slurmwrap.gsub.prerun_sharing import OLD_S, live_trials

    watch_over(desk, 0.0)
    if desk.flights is not None:
        with suppress(OSError):
            desk.flights.prune(OLD_S, keep=frozenset(str(path) for path in live_trials(desk)))


def _send(prepared: PreparedJob, desk: SubmitContext, voice: Console) -> int:
    def trial(of: PreparedJob, job_id: int | None, release_at: str) -> TrialJob:
        from slurmwrap.gsub.prerun_submission import make_trial

        return make_trial(of, job_id, release_at, desk=desk)

    meanwhile = desk.memory.expect_submission if isinstance(desk.memory, UserStateStore) else None
    as_json = prepared.request.own.json
    sent = send(prepared, desk, trial, _show_errors if as_json else _show, meanwhile)
    result = sent.result
    if as_json:
        from slurmwrap.gsub.submission_json import submission_json

        _show_errors(result)
        process_env.say(submission_json(prepared, sent, desk.cluster) + "\n")
    else:
        _show(result)
    if result.timed_out:
        voice.say(f"{_no_answer(result)}: it is not known whether the job was submitted")
        voice.say("look with squeue --me before you try again")
        return result.exit_code or 1
    if result.job_id is None or _tells_little(prepared.request):
        return result.exit_code
    if prepared.held_out:
        voice.say(f"job {result.job_id} has no pre-run, chosen at random: the site measures what pre-runs save")
    if sent.attached_to is not None:
        which = f"job {sent.attached_to}" if sent.attached_to else "just submitted"
        voice.say(f"job {result.job_id} waits for the pre-run of an earlier one with the same script and code, {which}")
    elif sent.trial is not None and sent.trial.job_id is not None:
        from slurmwrap.gsub.prerun_submission import on_gpus

        voice.say(f"job {result.job_id} waits for its pre-run on {on_gpus(prepared)}, job {sent.trial.job_id}")
        if _waits_too(prepared):
            voice.say("both wait for the jobs of --dependency first")
        voice.say(f"watch it: slurmwrap watch {result.job_id}")
    if prepared.prerun == "gate":
        voice.say(f"should its pre-run never start: scontrol update JobId={result.job_id} StartTime=now")
    return result.exit_code


def _waits_too(prepared: PreparedJob) -> bool:
    """The pre-run has the job's dependency."""
    if prepared.prerun not in ("auto", "gate", "profile") or not (dependency := prepared.request.value("dependency")):
        return False
    from slurmwrap.sbatch.eligibility import can_share_dependency

    return can_share_dependency(dependency)


def _tells_little(request: JobRequest) -> bool:
    """Nothing is said of a pre-run: the caller wants few words, or a program reads them."""
    return bool(request.setting("quiet") or request.setting("parsable")) or process_env.reads_one_stream()


def _no_answer(result: SbatchResult) -> str:
    """What hides the fate of a submission. sbatch's own words, where it had any, were shown."""
    from re import search

    if result.exit_code < 0:
        return f"sbatch was ended by signal {-result.exit_code}"
    if search(AMBIGUOUS, result.stderr):
        return "Slurm's answer to sbatch was lost"
    return "sbatch did not answer in time"


def _show(result: SbatchResult) -> None:
    """sbatch's own words."""
    _show_errors(result)
    process_env.say(result.stdout)


def _show_errors(result: SbatchResult) -> None:
    sys.stderr.write(result.stderr)
    sys.stderr.flush()


# --- wiring ----------------------------------------------------------------------------------------------------------


def _trials(environ: Mapping[str, str], config: Config) -> PrerunChecks:
    here = os.getcwd()

    def check(request: JobRequest) -> tuple[Finding, ...]:
        from slurmwrap.host.run_command import run
        from slurmwrap.prerun.static import static_stage

        return static_stage.check(request, run=run, environ=passed_on(request, environ, here))

    return PrerunChecks(
        check=check,
        named_files=lambda request: job_inputs.named_files(request, passed_on(request, environ, here)),
        digest=_digest,
        entry_files=lambda request: _entry_files(request, passed_on(request, environ, here)),
        holder=lambda request: _holder(request, passed_on(request, environ, here), config),
        changed_at=_changed_at,
        files_in=_files_in,
    )


def _changed_at(path: str) -> float | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return max(found.st_mtime, found.st_ctime)


def _files_in(folder: str) -> tuple[str, ...]:
    try:
        return tuple(islice(os.listdir(folder), _LISTED))
    except OSError:
        return ()


def _digest(path: str) -> str | None:
    try:
        return job_inputs.digest(path)
    except OSError:
        return None


def _entry_files(request: JobRequest, environ: Mapping[str, str]) -> dict[str, bytes]:
    """What the script runs, as far as it can be read: path → content; its entry programs first, in its order."""
    text = request.script.content.decode("utf-8", "surrogateescape")  # as the file system spells names
    found = code_files(text, request.chdir, request.args, environ, job_inputs.named_files(request, environ))
    marks = "\n".join(installed_marks(environ))
    return {**found, "(installed)": marks.encode()} if found and marks else found


def _holder(request: JobRequest, environ: Mapping[str, str], config: Config) -> str:
    from slurmwrap.prerun.static.non_training_programs import holder_of

    text = request.script.content.decode("utf-8", "surrogateescape")
    return holder_of(text, request.chdir, request.args, environ, config.prerun.no_training_programs)


def _published(config: Config, state: UserState, uid: int) -> Published:
    """What the site says, less the user's own inputs that he freed since (`slurmwrap inputs clear`)."""
    if not config.site.published:
        return Published()
    from slurmwrap.store.published import read_published, trusted_uids

    found = read_published(config.site.published, trusted_uids(config)) or Published()
    if not any(block.uid == uid for block in found.blocked):
        return found
    freed = state.freed_inputs()
    standing = tuple(b for b in found.blocked if b.uid != uid or freed.get(b.digest, 0.0) < b.at)
    return replace(found, blocked=standing)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
