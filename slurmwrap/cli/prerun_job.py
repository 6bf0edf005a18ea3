"""The pre-run job's program, started by templates/prerun/wrapper.sh on the node: trial → verdict → the real job.

`python -I -m slurmwrap.cli.prerun_job TRIAL_DIR`. Whatever of ours fails here lets the real job go; nothing here can
hold it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from slurmwrap import config as configuration
from slurmwrap.cli.flow import open_desk, tidy
from slurmwrap.cli.voice import Voice
from slurmwrap.diagnosis.classify import classifier
from slurmwrap.edges import Slurm
from slurmwrap.errors import SlurmError
from slurmwrap.job.request import JobRequest
from slurmwrap.placement.plan import PlacementPlan
from slurmwrap.prerun.failed_commands import describe_failed_commands
from slurmwrap.prerun.judge import judge
from slurmwrap.prerun.result import Progress
from slurmwrap.prerun.supervisor import run_trial
from slurmwrap.prerun.trial import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import inflight
from slurmwrap.store.from_plain import from_plain
from slurmwrap.store.inflight import Guest
from slurmwrap.submit import Desk
from slurmwrap.submit.attach import GROUP
from slurmwrap.submit.conclude import Waiting, conclude
from slurmwrap.submit.release import start_action
from slurmwrap.submit.same_job import Submitted, submitted_from

WATCH_S = 10.0  # how often to ask whether the real job still waits; one squeue
AGAIN_S = 2.0  # where squeue knew no such job
_SURE = 3  # such answers in a row: squeue once missed a job that was there
_GIVEN_UP = "before its pre-run was done"
_MARGIN_S = 30.0  # before the end of this Slurm job, for the last act
_WORTH_S = 60.0  # less time is not worth another trial


class Stopped(BaseException):
    """scancel, preemption or the time limit ends this job: what is left to do is to let the real one go."""


class NobodyWaits(Exception):
    """The real job started, ended or was cancelled: a trial beside it would only write into its files."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What gsub left in the trial's directory."""

    directory: Path
    spec: TrialSpec
    request: JobRequest
    plan: PlacementPlan
    release_at: str
    given: tuple[float, ...]  # the begin times that gsub may have given the job that waits
    job: Submitted | None  # that job

    @classmethod
    def read(cls, directory: Path) -> Trial:
        """OSError, ValueError, TypeError or KeyError when it is not what gsub writes."""
        waiting = json.loads((directory / "waiting.json").read_bytes())
        return cls(
            directory,
            spec_from_json(json.loads((directory / "spec.json").read_bytes())),
            from_plain(JobRequest, waiting["request"]),
            from_plain(PlacementPlan, waiting["plan"]),
            waiting["release_at"],
            tuple(waiting.get("given", ())),  # none in what an earlier version left
            submitted_from(waiting.get("job")),
        )


def main(argv: list[str] | None = None) -> int:
    """0 once the verdict is acted upon; 1 when ours failed (the wrapper then lets the real job go)."""
    directory = Path((sys.argv[1:] if argv is None else argv)[0])
    voice = Voice.of_terminal("slurmwrap")
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _main(directory, voice)
    except (Exception, Stopped) as error:
        voice.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
        return _let_go(voice, directory)


def _main(directory: Path, voice: Voice) -> int:
    began, trial = time.time(), Trial.read(directory)
    desk = open_desk(configuration.load(), os.environ, voice)
    with suppress(OSError, ValueError):  # gsub writes it too, but it may have been killed before
        inflight.submitted(str(directory), int(os.environ["SLURM_JOB_ID"]))
    verdict, stopped = _verdict(trial)
    _conclude(_waiting(trial), trial.directory, verdict, desk, voice)
    _guests(_Crowd(trial, desk, voice, _end_at(trial.spec, began)), verdict, stopped)
    tidy(desk)
    return 0


def _conclude(waiting: Waiting, directory: Path, verdict: Verdict, desk: Desk, voice: Voice) -> None:
    """The verdict is acted upon and left for who follows. A signal does not interrupt it: it takes milliseconds."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        record = conclude(waiting, verdict, desk)
        try:
            _publish(directory / inflight.VERDICT, verdict_to_json(verdict))
        except OSError as error:
            voice.say(f"nobody can follow this: {error}")
        about = f"job {waiting.job_id}: " if waiting.borrowed else ""
        voice.say(f"{about}{verdict.outcome.value}: {verdict.reason}")
        for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
            voice.say(f"  {sentence}")
        for done in record.changes:
            voice.say(f"  {done['verb']} {done['target']} {done['option']} {done['new']} {done['error'] or ''}")
    finally:
        signal.signal(signal.SIGTERM, before)


# --- the jobs that attached -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The pre-run that others attached to, and until when (Unix seconds) it may try them."""

    first: Trial
    desk: Desk
    voice: Voice
    until: float


def _end_at(spec: TrialSpec, began: float) -> float:
    """When Slurm ends this job (SLURM_JOB_END_TIME, since 23.02; else by the limit that gsub set), less a margin."""
    try:
        return float(os.environ["SLURM_JOB_END_TIME"]) - _MARGIN_S
    except (KeyError, ValueError):
        return began + spec.time_limit_s + spec.profile_s


def _guests(crowd: _Crowd, verdict: Verdict, stopped: bool) -> None:
    """The jobs that wait for this pre-run: a pass and an inconclusive verdict speak for all of them.

    A failure speaks for the same arguments alone. Each of the others gets a trial of its own here, one after the other,
    until one passes or the time of this Slurm job is up; then those that are left are let go untried.
    """
    directory, voice = crowd.first.directory, crowd.voice
    tried = {crowd.first.spec.fingerprint: verdict}
    try:
        while not stopped and (verdict.outcome is Outcome.FAIL or _nobody_waited(verdict)):
            guest = next(iter(inflight.guests(directory)), None)
            if guest is None or crowd.until - time.time() < _WORTH_S:
                break
            verdict, stopped = _try(guest, tried, crowd)
            inflight.take(directory, guest)
    except (Exception, Stopped) as error:  # who is left is let go
        stopped = stopped or isinstance(error, Stopped)
        voice.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for guest in inflight.close(directory):
        if stopped:  # KillWait leaves seconds for all of them
            _release(str(guest.job_id), guest.release_at, voice)
        else:
            _settle(guest, tried, verdict, crowd)
        inflight.take(directory, guest)
    if crowd.desk.flights is not None:
        crowd.desk.flights.drop(_read_text(directory / GROUP), str(directory))


def _try(guest: Guest, tried: dict[str, Verdict], crowd: _Crowd) -> tuple[Verdict, bool]:
    """The fate of one that attached, by a trial of its own unless the same arguments were tried already."""
    trial = Trial.read(Path(guest.trial_dir))
    verdict, stopped = tried.get(trial.spec.fingerprint), False
    if verdict is None or _nobody_waited(verdict):
        crowd.voice.say(f"job {guest.job_id} is tried next: its arguments are others")
        left = min(trial.spec.time_limit_s, crowd.until - time.time())
        verdict, stopped = _verdict(replace(trial, spec=replace(trial.spec, time_limit_s=left)))
        tried[trial.spec.fingerprint] = verdict
    _conclude(_waiting(trial), trial.directory, verdict, crowd.desk, crowd.voice)
    return verdict, stopped


def _settle(guest: Guest, tried: Mapping[str, Verdict], speaks: Verdict, crowd: _Crowd) -> None:
    """What the pre-run says of one that it did not try; whatever of ours fails lets it go."""
    try:
        trial = Trial.read(Path(guest.trial_dir))
        own = tried.get(trial.spec.fingerprint)
        verdict = _borrowed(speaks) if own is None else own
        borrowed = verdict.outcome is not Outcome.FAIL
        _conclude(replace(_waiting(trial), borrowed=borrowed), trial.directory, verdict, crowd.desk, crowd.voice)
    except Exception as error:
        crowd.voice.fault(error)
        _release(str(guest.job_id), guest.release_at, crowd.voice)


def _borrowed(verdict: Verdict) -> Verdict:
    """`verdict` for a job with other arguments that was not tried itself: a failure proves nothing about it."""
    if verdict.outcome is Outcome.FAIL:
        reason = f"not tried: the pre-run of the same script with other arguments failed ({verdict.reason})"
        return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)
    return replace(verdict, reason=f"with other arguments of the same script: {verdict.reason}")


def _nobody_waited(verdict: Verdict) -> bool:
    """The trial was given up since its job was gone: it says nothing about the others."""
    return verdict.layer == "supervisor" and verdict.reason.endswith(_GIVEN_UP)


def _release(job: str, release_at: str, voice: Voice) -> None:
    start = start_action(job, release_at, "the pre-run failed to run")
    try:
        SlurmCommands(timeout_s=30, environ=os.environ).apply(start)
    except SlurmError as error:
        voice.say(f"job {job} starts after its grace time: {error}")


def _let_go(voice: Voice, directory: Path) -> int:
    """Ours failed: no job must wait for it. Needs nothing but the environment, its files and scontrol."""
    real_job = os.environ.get("SLURMWRAP_REAL_JOB")
    if real_job:
        _release(real_job, os.environ.get("SLURMWRAP_RELEASE_AT", "now"), voice)
    for guest in inflight.close(directory):
        _release(str(guest.job_id), guest.release_at, voice)
    return 1


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _verdict(trial: Trial) -> tuple[Verdict, bool]:
    """(the verdict, whether we were told to stop)."""
    watch = Watch(trial.spec.real_job, SlurmCommands(timeout_s=5, environ=os.environ))
    classify = classifier(configuration.load(os.environ).diagnosis.signatures)
    try:
        watch.look()
        report = _Reporter(trial.directory, watch)
        return judge(trial.spec, run_trial(trial.spec, environ=_environment(), on_progress=report), classify), False
    except Stopped:
        reason = "the pre-run was stopped (cancelled, preempted or out of time) before it could tell"
        return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason), True
    except NobodyWaits as why:
        reason = f"{why} {_GIVEN_UP}"
        return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason), False


def _environment() -> dict[str, str]:
    """This job's environment as Slurm gave it: the wrapper's sh may drop what is no name of a variable, as dash does
    with the functions that bash exports, `module` of Lmod among them."""
    given = b""
    with suppress(OSError):
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    pairs = (os.fsdecode(entry).partition("=") for entry in given.split(b"\0"))
    dropped = {name: value for name, equals, value in pairs if equals and not name.isidentifier()}
    return {**dropped, **os.environ}


@dataclass(slots=True)
class Watch:
    """Looks now and then whether the real job still waits. An answer that does not come changes nothing.

    `missed`: answers in a row that knew no such job; a single one may be wrong.
    """

    job: str | None
    slurm: Slurm
    clock: Callable[[], float] = time.monotonic
    next_at: float = 0.0
    missed: int = 0

    def look(self) -> None:
        """Asks Slurm if it is time to. Raises NobodyWaits."""
        if self.job is None or self.clock() < self.next_at:
            return
        wait = WATCH_S
        with suppress(SlurmError):
            record = self.slurm.job(self.job)
            self.missed = 0 if record is not None else self.missed + 1
            if self.missed >= _SURE or (record is not None and not record.pending):
                raise NobodyWaits(f"job {self.job} {_became('' if record is None else record.state)}")
            wait = AGAIN_S if self.missed else WATCH_S
        self.next_at = self.clock() + wait  # after the answer: a slow controller is not asked more often


def _became(state: str) -> str:
    return {"": "ended", "CANCELLED": "was cancelled"}.get(state, "started")


def _waiting(trial: Trial) -> Waiting:
    spec = trial.spec
    return Waiting(
        request=trial.request,
        plan=trial.plan,
        job_id=int(spec.real_job) if spec.real_job else None,
        prerun_job_id=int(os.environ.get("SLURM_JOB_ID", "0")),
        release_at=trial.release_at,
        given=trial.given,
        job=trial.job,
        profile_key=spec.profile_key,
        fingerprint=spec.fingerprint,
        cluster=spec.cluster,
    )


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Leaves progress.json for who follows, and gives up a trial for which nobody waits."""

    directory: Path
    watch: Watch

    def __call__(self, progress: Progress) -> None:
        shown = asdict(progress)
        with suppress(OSError):  # a full disk costs the live view, not the trial
            _publish(self.directory / "progress.json", shown)
        self.watch.look()


def _publish(path: Path, plain: dict[str, Any]) -> None:
    """Replaced whole, so that a reader never sees half of it."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(plain), encoding="utf-8")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
