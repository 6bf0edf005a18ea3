"""Wires gsub: opens the edges, calls submit's steps in order, and says what happened. Light imports only."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from slurmwrap import submit
from slurmwrap.cli.memory import HomeMemory
from slurmwrap.cli.trial_job import largest, make_trial, on_gpus, pre_run_first
from slurmwrap.cli.verdicts import print_alone
from slurmwrap.cli.voice import Voice
from slurmwrap.config import Config, user_state_dir
from slurmwrap.edges import Published
from slurmwrap.errors import PrerunFailed, SlurmwrapError
from slurmwrap.host.clock import SystemClock
from slurmwrap.host.command import run as run_command
from slurmwrap.job.request import JobRequest
from slurmwrap.job.show import equivalent_script, explain
from slurmwrap.prerun import inputs, static
from slurmwrap.prerun.codetree import code_files, installed_marks
from slurmwrap.prerun.environment import passed_on
from slurmwrap.prerun.trial import trial_gpus
from slurmwrap.prerun.verdict import Outcome
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.racks import SiteRacks
from slurmwrap.store.inflight import Flights
from slurmwrap.store.published import read_published, trusted_uids
from slurmwrap.store.userstate import UserState
from slurmwrap.submit import Desk, Prepared, Trials
from slurmwrap.submit.attach import OLD_S, live_trials, sweep

WATCHED_S = 60.0  # younger pre-runs are not asked after: most come to their end


def open_desk(config: Config, environ: Mapping[str, str], voice: Voice) -> Desk:
    """The edges of one gsub call or one pre-run job."""
    network = SiteRacks(config.placement.topology_file, config.placement.topology_features, voice.say)
    slurm = SlurmCommands(timeout_s=config.slurm_timeout_s, environ=environ, network=network)
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
        flights=Flights(user_state_dir(environ)),
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
    if prepared.prerun != "off":
        trial_gpus(request, largest(prepared))  # a --prerun-gpus that no node has is said before anything is submitted
    return prepared


def run(prepared: Prepared, desk: Desk, voice: Voice) -> int:
    """Everything after the preparation; returns the exit code."""
    own = prepared.request.own
    if own.explain:
        voice.block(_explained(prepared, voice))
    if own.dry_run:
        sys.stdout.buffer.write(equivalent_script(prepared.request, prepared.batch))
        voice.say(f"nothing submitted; pre-run: {prepared.prerun} ({prepared.prerun_reason})")
        return 0
    if prepared.prerun in ("wait", "only"):
        verdict = pre_run_first(prepared, desk, voice)
        if prepared.prerun == "only":
            remarks = tuple(f for f in prepared.warnings if f not in verdict.findings)
            return print_alone(replace(verdict, findings=(*verdict.findings, *remarks)), own.json)
        if verdict.outcome is Outcome.FAIL:
            raise PrerunFailed(f"the pre-run failed: {verdict.reason}", hint="nothing was submitted")
        refresh(desk, voice)
        prepared = submit.prepare(prepared.request, desk)  # again, on what was measured
        if own.explain:
            voice.say("planned again on what the pre-run measured:")
            voice.block(_explained(prepared, voice))
    code = _send(replace(prepared, prerun="off") if prepared.prerun == "wait" else prepared, desk, voice)
    watch_over(desk)
    return code


def _explained(prepared: Prepared, voice: Voice) -> str:
    remarks = (*prepared.plan.remarks, *prepared.snapshot.topology.remarks)
    return explain(prepared.request, prepared.batch, colour=voice.colour, remarks=remarks)


def watch_over(desk: Desk, older_than_s: float = WATCHED_S) -> None:
    """Lets go the jobs whose pre-run is gone without a word. Costs nothing where every pre-run came to its end."""
    if desk.flights is not None:
        with suppress(SlurmwrapError, OSError):  # the next call, a reconcile or the grace does it
            sweep(desk.flights, desk, older_than_s=older_than_s)


def tidy(desk: Desk) -> None:
    """The same for pre-runs of any age, and what old ones left is removed; never one in flight."""
    watch_over(desk, 0.0)
    if desk.flights is not None:
        with suppress(OSError):
            desk.flights.prune(OLD_S, keep=frozenset(str(path) for path in live_trials(desk)))


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
    if sent.attached_to is not None:
        which = f"job {sent.attached_to}" if sent.attached_to else "just submitted"
        voice.say(f"job {result.job_id} waits for the pre-run of an earlier one with the same script and code, {which}")
    elif sent.trial is not None and sent.trial.job_id is not None:
        voice.say(
            f"job {result.job_id} waits for its pre-run on {on_gpus(prepared)}, job {sent.trial.job_id}; "
            f"slurmwrap why {result.job_id} tells how it went"
        )
    return result.exit_code


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
    """What the script runs, as far as it can be read: path → content; its entry programs first, in its order."""
    text = request.script.content.decode("utf-8", "surrogateescape")  # as the file system spells names
    found = code_files(text, request.chdir, request.args, environ, inputs.named_files(request, environ))
    marks = "\n".join(installed_marks(environ))
    return {**found, "(installed)": marks.encode()} if found and marks else found


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


__all__ = ["make_trial", "open_desk", "pre_run_first", "prepare", "print_alone", "run"]
