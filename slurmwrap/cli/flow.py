"""Wires gsub: opens the edges, calls submit's steps in order, and says what happened. Light imports only."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from slurmwrap import shipped, submit
from slurmwrap.cli.memory import HomeMemory
from slurmwrap.cli.voice import Voice
from slurmwrap.config import Config, user_state_dir
from slurmwrap.edges import Published, SbatchCall, SbatchResult
from slurmwrap.errors import PrerunFailed, PrerunInconclusive, SlurmError, SlurmwrapError, StoreError
from slurmwrap.host.clock import SystemClock
from slurmwrap.host.command import run as run_command
from slurmwrap.job.render import render
from slurmwrap.job.request import JobRequest
from slurmwrap.job.show import equivalent_script, explain
from slurmwrap.prerun import inputs, static
from slurmwrap.prerun.entry import entry_points
from slurmwrap.prerun.environment import passed_on
from slurmwrap.prerun.trial import (
    TrialSpec,
    exported_file,
    mem_shrunk,
    spec_to_json,
    trial_environ,
    trial_environment,
    trial_options,
    trial_shape,
)
from slurmwrap.prerun.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.plain import to_plain
from slurmwrap.store.published import read_published, trusted_uids
from slurmwrap.store.userstate import UserState
from slurmwrap.submit import Desk, Prepared, TrialJob, Trials


def open_desk(config: Config, environ: Mapping[str, str], voice: Voice) -> Desk:
    """The edges of one gsub call or one pre-run job."""
    slurm = SlurmCommands(timeout_s=config.slurm_timeout_s, environ=environ)
    uid = os.getuid()
    memory = HomeMemory(UserState(user_state_dir(environ)), uid, config)
    if memory.mark.exists():
        _catch_up(config, slurm, memory, voice)
    return Desk(
        slurm=slurm,
        clock=SystemClock(),
        memory=memory,
        config=config,
        trials=_trials(environ),
        uid=uid,
        user=_user_name(uid),
        environ=environ,
        published=_published(config, memory.state, uid),
        say=voice.say,
    )


def refresh(desk: Desk, voice: Voice) -> None:
    """Takes in what a pre-run has just left."""
    memory, slurm = desk.memory, desk.slurm
    if isinstance(memory, HomeMemory) and isinstance(slurm, SlurmCommands) and memory.mark.exists():
        _catch_up(desk.config, slurm, memory, voice)


def _catch_up(config: Config, slurm: SlurmCommands, memory: HomeMemory, voice: Voice) -> None:
    """A failure costs what the last pre-runs found, not the submission; the next call tries again."""
    from slurmwrap.cli.catch_up import catch_up

    done = False
    try:
        memory.mark.unlink(missing_ok=True)  # before reading: a pre-run that ends meanwhile leaves it anew
        done = catch_up(config, slurm, voice, memory.state.directory)
    except (SlurmwrapError, OSError) as error:
        voice.fault(error)
    if not done:
        with suppress(OSError):
            memory.mark.touch(mode=0o600)


def prepare(request: JobRequest, desk: Desk, voice: Voice) -> Prepared:
    """submit.prepare, with what the checks remarked on."""
    prepared = submit.prepare(request, desk)
    for warning in prepared.warnings:
        voice.say(f"warning: {submit.describe(warning)}")
    return prepared


def run(prepared: Prepared, desk: Desk, voice: Voice) -> int:
    """Everything after the preparation; returns the exit code."""
    own = prepared.request.own
    if own.dry_run:
        sys.stdout.buffer.write(equivalent_script(prepared.request, prepared.batch))
        voice.say(f"nothing submitted; pre-run: {prepared.prerun} ({prepared.prerun_reason})")
        return 0
    if own.explain:
        voice.block(explain(prepared.request, prepared.batch, colour=voice.colour))
    if prepared.prerun in ("wait", "only"):
        verdict = pre_run_first(prepared, desk, voice)
        if prepared.prerun == "only":
            return _verdict_alone(verdict, own.json)
        if verdict.outcome is Outcome.FAIL:
            raise PrerunFailed(f"the pre-run failed: {verdict.reason}", hint="nothing was submitted")
        refresh(desk, voice)
        prepared = submit.prepare(prepared.request, desk)  # again, on what was measured
        if own.explain:
            voice.say("planned again on what the pre-run measured:")
            voice.block(explain(prepared.request, prepared.batch, colour=voice.colour))
    return _send(replace(prepared, prerun="off") if prepared.prerun == "wait" else prepared, desk, voice)


def _send(prepared: Prepared, desk: Desk, voice: Voice) -> int:
    sent = submit.send(prepared, desk, partial(make_trial, desk=desk))
    result = sent.result
    sys.stdout.write(result.stdout)
    sys.stdout.flush()
    sys.stderr.write(result.stderr)
    if result.timed_out:
        voice.say("sbatch did not answer in time: it is not known whether the job was submitted; look with squeue --me")
        return result.exit_code or 1
    if result.job_id is None or prepared.request.setting("quiet") or prepared.request.setting("parsable"):
        return result.exit_code
    if prepared.prerun == "gate":
        voice.say(f"should its pre-run never start: scontrol update JobId={result.job_id} StartTime=now")
    if sent.trial is not None and sent.trial.job_id is not None:
        voice.say(
            f"job {result.job_id} waits for its pre-run on one GPU, job {sent.trial.job_id}; "
            f"slurmwrap why {result.job_id} tells how it went"
        )
    return result.exit_code


def _verdict_alone(verdict: Verdict, as_json: bool) -> int:
    if as_json:
        print(json.dumps(verdict_to_json(verdict), indent=1))
    else:
        print(f"{verdict.outcome.value}: {verdict.reason}")
    return {Outcome.PASS: 0, Outcome.FAIL: PrerunFailed.exit_code}.get(verdict.outcome, PrerunInconclusive.exit_code)


# --- the pre-run as a job --------------------------------------------------------------------------------------------


def make_trial(prepared: Prepared, job_id: int | None, release_at: str, *, desk: Desk) -> TrialJob:
    """Writes the trial's files and makes the call that submits it. OSError when they cannot be written."""
    request, settings = prepared.request, desk.config.prerun
    directory = Path(desk.memory.trial_dir())
    node = max((n for n in prepared.snapshot.nodes if n.usable), key=lambda n: n.gpus, default=None)
    cpus, mem_mib = trial_shape(request, node)
    spec = TrialSpec(
        trial_dir=str(directory),
        script=str(directory / "script"),
        script_name=request.script.path or request.script.name,
        args=request.args,
        chdir=request.chdir,
        steps=settings.steps,
        time_limit_s=float(settings.time_limit_s),
        environment=trial_environment(request),
        real_job=None if job_id is None else str(job_id),
        cluster=desk.cluster,
        mode=prepared.prerun,
        fingerprint=prepared.fingerprint,
        profile_key=prepared.profile_key,
        gpus=request.shape.gpus,
        nodes=prepared.plan.node_count or request.shape.nodes or 1,
        gpu_type=request.shape.gpu_type or "",
        cpus=cpus,
        mem_mib=mem_mib,
        mem_shrunk=mem_shrunk(request, mem_mib),
        inputs=prepared.inputs,
    )
    _write(directory / "script", request.script.content)
    (directory / "script").chmod(0o700)
    _write_json(directory / "spec.json", spec_to_json(spec))
    plain = {"request": to_plain(request), "plan": to_plain(prepared.plan), "release_at": release_at}
    _write_json(directory / "waiting.json", plain)
    options = trial_options(
        request,
        partition=settings.partition,
        time_limit_s=settings.time_limit_s + 60,  # the supervisor's own limit comes first, so that a verdict is written
        cpus=cpus,
        mem_mib=mem_mib,
        output=str(directory / "job.out"),
    )
    environ = {
        **trial_environ(desk.environ),
        "SLURMWRAP_PYTHON": sys.executable,
        "SLURMWRAP_TRIAL_DIR": str(directory),
        "SLURMWRAP_REAL_JOB": spec.real_job or "",
        "SLURMWRAP_RELEASE_AT": release_at,
    }
    if exported := request.value("export-file"):
        _write(directory / "environment", exported_file(Path(exported).read_bytes(), environ))
        options = (*options, f"--export-file={directory / 'environment'}")
    wrapper = shipped.shipped("templates") / "prerun" / "wrapper.sh"
    call = SbatchCall(options=("--parsable", *options), script_path=str(wrapper), environ=environ)
    return TrialJob(call=call, directory=str(directory))


def pre_run_first(prepared: Prepared, desk: Desk, voice: Voice) -> Verdict:
    """--prerun=wait and only: the request is validated, then the pre-run goes alone and is followed live."""
    from slurmwrap.cli.follow import follow

    as_asked = render(prepared.request, (), added=prepared.added)  # a refused plan is no reason to refuse the job
    tested = desk.slurm.sbatch(submit.sbatch_call(prepared.request, as_asked, desk, ("--test-only",)))
    if tested.exit_code != 0:
        raise SlurmError(_last(tested), exit_code=tested.exit_code)
    try:
        job = make_trial(prepared, None, "now", desk=desk)
    except OSError as error:
        raise StoreError(
            f"no pre-run: its files cannot be written: {error}", hint="make room there, or go without: --prerun=off"
        ) from error
    result = desk.slurm.sbatch(job.call)
    if result.job_id is None:
        raise SlurmError(f"the pre-run was refused: {_last(result)}", hint="submit without it: --prerun=off")
    voice.say(f"pre-run on one GPU is job {result.job_id}; Ctrl-C stops watching, not the pre-run")
    return follow(Path(job.directory), result.job_id, desk, voice)


def _last(result: SbatchResult) -> str:
    return "; ".join(line.removeprefix("sbatch: error: ") for line in result.stderr.strip().splitlines()) or "no answer"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _write_json(path: Path, plain: object) -> None:
    _write(path, json.dumps(plain).encode())


# --- wiring ----------------------------------------------------------------------------------------------------------


def _trials(environ: Mapping[str, str]) -> Trials:
    here = str(Path.cwd())
    return Trials(
        check=lambda request: static.check(request, run=run_command, environ=passed_on(request, environ, here)),
        named_files=lambda request: inputs.named_files(request, passed_on(request, environ, here)),
        digest=_digest,
        entry_files=lambda request: _entry_files(request, passed_on(request, environ, here)),
    )


def _digest(path: str) -> str | None:
    try:
        return inputs.digest(path)
    except OSError:
        return None


def _entry_files(request: JobRequest, environ: Mapping[str, str]) -> dict[str, bytes]:
    """The programs that the script starts, as far as they can be read: path → content, in the script's order."""
    text = request.script.content.decode("utf-8", "surrogateescape")  # as the file system spells names
    found = {}
    for entry in entry_points(text, request.chdir, request.args, environ):
        with suppress(OSError):
            found[entry.path] = Path(entry.path).read_bytes() if Path(entry.path).is_file() else b""
    return {path: content for path, content in found.items() if path}


def _published(config: Config, state: UserState, uid: int) -> Published:
    """What the site says, less the user's own inputs that he freed since (`slurmwrap inputs clear`)."""
    if not config.site.published:
        return Published()
    found = read_published(Path(config.site.published), trusted_uids(config)) or Published()
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


__all__ = ["SlurmwrapError", "make_trial", "open_desk", "pre_run_first", "prepare", "run"]
