"""The pre-run job's program, started by templates/prerun/wrapper.sh on the node: trial → verdict → the real job.

`python -I -m slurmwrap.gsub.prerun_job TRIAL_DIR`. Whatever of slurmwrap fails here releases the real job; nothing
here can hold it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from slurmwrap.config import load_config as configuration
from slurmwrap.console import Console
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import asdict, dataclass, replace
from slurmwrap.gsub.apply_verdict import PAUSES_S, HeldJob, apply_verdict, extend_grace
from slurmwrap.gsub.cancelled_notice import notify_of_cancelled_job, was_cancelled
from slurmwrap.gsub.prerun_sharing import GROUP
from slurmwrap.gsub.submit import clean_up_preruns, open_submit_context
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.gsub.waiting_job import JobIdentity, read_job_identity, start_action
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.trial_result import TrialProgress
from slurmwrap.model.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.prerun.verdict.judge_trial import judge
from slurmwrap.protocols import Slurm
from slurmwrap.sbatch.eligibility import DELAYED_NOW
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import prerun_registry
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.prerun_registry import WaitingJob

# Which job of a sweep is tried next, and for how long one goes on.
T = TypeVar("T")


def choose_next(waiting: Mapping[T, Sequence[str]], passed: Collection[str]) -> T:
    """The job with most words that no argument list of a passed one had; of several the first. `waiting`: job -> its
    arguments; not empty."""
    known = set(passed)
    return max(waiting, key=lambda job: len(set(waiting[job]) - known))


def has_time(elapsed_s: float, longest_s: float, budget_s: float) -> bool:
    """Whether another trial, as long as the longest so far, ends within the budget."""
    return elapsed_s + longest_s <= budget_s


LET_GO = 4  # not 1, which is the exit code of a Python that cannot import this module
WATCH_S = 10.0  # how often to ask whether the real job still waits; one squeue
AGAIN_S = 2.0  # where squeue knew no such job
_SURE = 3  # such answers in a row: squeue once missed a job that was there
_GIVEN_UP = "before its pre-run was done"
_MARGIN_S = 30.0  # before the end of this Slurm job, for the last act
_WORTH_S = 60.0  # less time is not worth another trial
_LONG_S = 240.0  # a trial that got so far without a word would not say more the next time


class PrerunTerminated(BaseException):
    """scancel, preemption or the time limit ends this job: what is left to do is to let the real one go."""


class JobGone(Exception):
    """The real job started, ended or was cancelled: a trial next to it would only write into its files."""

    # By the end of its grace, as far as is known.
    started = False


@dataclass(frozen=True, slots=True)
class PrerunFiles:
    """What gsub left in the trial's directory."""

    directory: Path
    spec: TrialSpec
    request: JobRequest
    plan: PlacementPlan
    release_at: str
    given: tuple[float, ...]  # the begin times that gsub may have given the job that waits
    job: JobIdentity | None  # that job
    grace_s: float  # how long it may be delayed

    @classmethod
    def read(cls, directory: Path) -> PrerunFiles:
        """OSError, ValueError, TypeError or KeyError when it is not what gsub writes."""
        waiting = json.loads((directory / "waiting.json").read_bytes())
        return cls(
            directory,
            spec_from_json(json.loads((directory / "spec.json").read_bytes())),
            record_from_json(JobRequest, waiting["request"]),
            record_from_json(PlacementPlan, waiting["plan"]),
            waiting["release_at"],
            # None in what an earlier version left.
            tuple(waiting.get("given", ())),
            read_job_identity(waiting.get("job")),
            float(waiting.get("grace_s", 0)),
        )

    def note_given(self, at: float) -> None:
        """Remembers another begin time as ours. OSError when it cannot be written."""
        path = self.directory / "waiting.json"
        plain = json.loads(path.read_bytes())
        replace_file(path, json.dumps({**plain, "given": [*plain.get("given", ()), at]}))


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of one trial. `if_delayed`: what a failure proves for a job that cannot start yet."""

    verdict: Verdict
    if_delayed: Verdict | None = None
    # Why the job could not start yet, where the trial was judged by that.
    delay: str = ""
    # The process was asked to end.
    stopped: bool = False


def main(argv: list[str] | None = None) -> int:
    """0 once the verdict is acted upon; LET_GO when slurmwrap failed and the real job was released. After any other
    exit code
    the wrapper does that."""
    directory = Path((sys.argv[1:] if argv is None else argv)[0])
    console = Console.of_terminal("slurmwrap")
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _run_prerun_job(directory, console)
    except (Exception, PrerunTerminated) as error:
        console.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
        return _release_after_fault(console, directory)


def _run_prerun_job(directory: Path, console: Console) -> int:
    began, trial = time.time(), PrerunFiles.read(directory)
    context = open_submit_context(configuration.load(), os.environ, console)
    # gsub writes it too, but it may have been killed before
    with suppress(OSError, ValueError):
        prerun_registry.mark_submitted(str(directory), int(os.environ["SLURM_JOB_ID"]))
    _renew_grace_periods(trial, context, console)
    trial = PrerunFiles.read(directory)  # with what that gave
    judged = _judge_prerun(trial)
    _apply_and_publish(_make_held_job(trial), trial.directory, judged, context, console)
    _judge_waiting_jobs(_Crowd(trial, context, console, began, _end_at(trial.spec, began)), judged)
    clean_up_preruns(context)
    return 0


def _renew_grace_periods(trial: PrerunFiles, context: SubmitContext, console: Console) -> None:
    """Where the dependency was met late, the job and those that attached wait for this pre-run from now on."""
    if trial.spec.mode == "gate" or not trial.request.value("dependency"):
        return
    others = (Path(guest.trial_dir) for guest in prerun_registry.list_waiting_jobs(trial.directory))
    for directory in (trial.directory, *others):
        try:
            one = PrerunFiles.read(directory)
            if until := extend_grace(_make_held_job(one), one.grace_s, context, one.note_given):
                console.say(f"job {one.spec.real_job} waits until {time.ctime(until)} at most: its dependency is met")
        except (SlurmError, OSError, ValueError, TypeError, KeyError) as error:
            console.say(f"job of {directory} is not asked to wait: {error}")


def _is_kept_from_starting(job: str) -> bool:
    """Whether Slurm holds this job, or it waits for others: its user may have said so after its submission. True also
    where Slurm does not answer for minutes: then nothing is cancelled."""
    for pause in (*PAUSES_S, 0.0):
        try:
            rows = SlurmCommands(timeout_s=30, environ=os.environ).watched(job)
            return any(row.dependency or row.record.reason.startswith("JobHeld") for row in rows if row.record.pending)
        except SlurmUnreachable:
            time.sleep(pause)
        except SlurmError:
            return False
    return True


def _apply_and_publish(
    waiting: HeldJob, directory: Path, judged: Judged, context: SubmitContext, console: Console
) -> None:
    """The verdict is acted upon and left for who follows. A signal does not interrupt it: it takes milliseconds."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        verdict = judged.verdict
        harmless = judged.if_delayed is not None and judged.if_delayed.outcome is not Outcome.FAIL
        if harmless and judged.if_delayed and waiting.job_id and _is_kept_from_starting(str(waiting.job_id)):
            verdict = judged.if_delayed
        if verdict.reason.startswith(judged.delay or DELAYED_NOW):
            # The same may end otherwise when the file is there.
            waiting = replace(waiting, fingerprint="")
        record = apply_verdict(waiting, verdict, context)
        try:
            replace_file(directory / prerun_registry.VERDICT, json.dumps(verdict_to_json(verdict)))
        except OSError as error:
            console.say(f"nobody can follow this: {error}")
        about = f"job {waiting.job_id}: " if waiting.borrowed else ""
        console.say(f"{about}{verdict.outcome.value}: {verdict.reason}")
        for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
            console.say(f"  {sentence}")
        for done in record.changes:
            console.say(f"  {done['verb']} {done['target']} {done['option']} {done['new']} {done['error'] or ''}")
    finally:
        signal.signal(signal.SIGTERM, before)
    if was_cancelled(record):
        _notify_of_cancelled_job(waiting, record, context, console)


def _notify_of_cancelled_job(waiting: HeldJob, record: PrerunRecord, context: SubmitContext, console: Console) -> None:
    """The user hears of a cancelled job; a fault of this changes nothing."""
    try:
        place, slurm = (
            str(configuration.find_user_state_dir(os.environ)),
            SlurmCommands(timeout_s=10, environ=os.environ),
        )
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        notify_of_cancelled_job(
            waiting, record, user=context.user, node=node, place=place, config=slurm.config, say=console.say
        )
    except Exception as error:
        console.fault(error)


# --- the jobs that attached -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The pre-run that others attached to, since when it runs and until when (Unix seconds) it may try them."""

    first: PrerunFiles
    context: SubmitContext
    console: Console
    began: float
    until: float


def _end_at(spec: TrialSpec, began: float) -> float:
    """When Slurm ends this job (SLURM_JOB_END_TIME, since 23.02; else by the limit that gsub set), less a margin."""
    try:
        return float(os.environ["SLURM_JOB_END_TIME"]) - _MARGIN_S
    except (KeyError, ValueError):
        return began + spec.time_limit_s + spec.profile_s


def _judge_waiting_jobs(crowd: _Crowd, first: Judged) -> None:
    """The jobs that wait for this pre-run. One whose arguments were tried has its own verdict at once.

    The others are tried here, one after the other: as long as all fail, and after a pass while pre-runs are short. A
    failure speaks for the same arguments alone; a pass and an inconclusive verdict speak for those that are left then,
    and they are released untried.
    """
    directory, console = crowd.first.directory, crowd.console
    tried = {crowd.first.spec.fingerprint: first}
    passed = set(crowd.first.spec.args) if first.verdict.outcome is Outcome.PASS else set()
    last, longest, speaks = first, time.time() - crowd.began, first.verdict
    try:
        while not last.stopped:
            waiting = _find_untried(tried, crowd)
            if not waiting or not _should_try_another(last.verdict, speaks, longest, crowd):
                break
            guest = choose_next({one: trial.spec.args for one, trial in waiting.items()}, passed)
            started = time.time()
            last = _try(guest, _cut(waiting[guest], speaks, crowd), tried, crowd)
            longest = max(longest, time.time() - started)
            if last.verdict.outcome is Outcome.PASS:
                passed |= set(waiting[guest].spec.args)
            if speaks.outcome is not Outcome.PASS:
                speaks = last.verdict
            prerun_registry.take(directory, guest)
    except (Exception, PrerunTerminated) as error:
        # Who is left is released.
        last = replace(last, stopped=last.stopped or isinstance(error, PrerunTerminated))
        console.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for guest in prerun_registry.close(directory):
        # KillWait leaves seconds for all of them.
        if last.stopped:
            _release(str(guest.job_id), guest.release_at, console)
        else:
            _settle_waiting_job(guest, tried, speaks, crowd)
        prerun_registry.take(directory, guest)
    if crowd.context.flights is not None:
        crowd.context.flights.drop(_read_text(directory / GROUP), str(directory))


def _should_try_another(last: Verdict, speaks: Verdict, longest_s: float, crowd: _Crowd) -> bool:
    """Whether one more is tried: as long as all failed; once one has passed, within the time that the site gives."""
    now = time.time()
    if crowd.until - now < _WORTH_S:
        return False
    if speaks.outcome is Outcome.PASS:
        return has_time(now - crowd.began, longest_s, crowd.context.config.prerun.sweep_s)
    return last.outcome is Outcome.FAIL or _is_given_up(last)


def _cut(trial: PrerunFiles, speaks: Verdict, crowd: _Crowd) -> PrerunFiles:
    """The trial of one that attached, within this Slurm job's time and, once one has passed, that of the sweep."""
    spec, now = trial.spec, time.time()
    if speaks.outcome is not Outcome.PASS:
        return replace(trial, spec=replace(spec, time_limit_s=min(spec.time_limit_s, crowd.until - now)))
    left = min(spec.time_limit_s, crowd.until - now, crowd.began + crowd.context.config.prerun.sweep_s - now)
    return replace(trial, spec=replace(spec, time_limit_s=left, profile_s=0.0))


def _find_untried(tried: Mapping[str, Judged], crowd: _Crowd) -> dict[WaitingJob, PrerunFiles]:
    """Who waits with arguments that were not tried yet; of those that were, each has its verdict now."""
    waiting: dict[WaitingJob, PrerunFiles] = {}
    for guest in prerun_registry.list_waiting_jobs(crowd.first.directory):
        trial = PrerunFiles.read(Path(guest.trial_dir))
        known = tried.get(trial.spec.fingerprint)
        if known is None or _is_given_up(known.verdict):
            waiting[guest] = trial
        else:
            _settle_waiting_job(guest, tried, known.verdict, crowd)
            prerun_registry.take(crowd.first.directory, guest)
    return waiting


def _try(guest: WaitingJob, trial: PrerunFiles, tried: dict[str, Judged], crowd: _Crowd) -> Judged:
    """The fate of one that attached, by a trial of its own."""
    crowd.console.say(f"job {guest.job_id} is tried next: its arguments are others")
    judged = _judge_prerun(trial)
    # Its time was cut: with all of it, there may be a verdict.
    if judged.verdict.layer == "timeout":
        judged = replace(judged, verdict=replace(judged.verdict, lasting=False))
    tried[trial.spec.fingerprint] = judged
    _apply_and_publish(_make_held_job(trial), trial.directory, judged, crowd.context, crowd.console)
    return judged


def _settle_waiting_job(guest: WaitingJob, tried: Mapping[str, Judged], speaks: Verdict, crowd: _Crowd) -> None:
    """What the pre-run says of one that it did not try; whatever of slurmwrap's fails releases it."""
    try:
        trial = PrerunFiles.read(Path(guest.trial_dir))
        judged = tried.get(trial.spec.fingerprint) or Judged(_derive_verdict(speaks))
        borrowed = judged.verdict.outcome is not Outcome.FAIL
        _apply_and_publish(
            replace(_make_held_job(trial), borrowed=borrowed), trial.directory, judged, crowd.context, crowd.console
        )
    except Exception as error:
        crowd.console.fault(error)
        _release(str(guest.job_id), guest.release_at, crowd.console)


def _derive_verdict(verdict: Verdict) -> Verdict:
    """`verdict` for a job with other arguments that was not tried itself: a failure proves nothing about it."""
    if verdict.outcome is Outcome.FAIL:
        reason = f"not tried: the pre-run of the same script with other arguments failed ({verdict.reason})"
        return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)
    return replace(verdict, reason=f"with other arguments of the same script: {verdict.reason}")


def _is_given_up(verdict: Verdict) -> bool:
    """The trial was given up since its job was gone: it says nothing about the others."""
    return verdict.layer == "supervisor" and verdict.reason.endswith(_GIVEN_UP)


def _release(job: str, release_at: str, console: Console) -> None:
    start = start_action(job, release_at, "the pre-run failed to run")
    try:
        SlurmCommands(timeout_s=30, environ=os.environ).apply(start)
    except SlurmError as error:
        console.say(f"job {job} starts after its grace time: {error}")


def _release_after_fault(console: Console, directory: Path) -> int:
    """Ours failed: no job must wait for it. Needs nothing but the environment, its files and scontrol."""
    real_job = os.environ.get("SLURMWRAP_REAL_JOB")
    if real_job:
        _release(real_job, os.environ.get("SLURMWRAP_RELEASE_AT", "now"), console)
    for guest in prerun_registry.close(directory):
        _release(str(guest.job_id), guest.release_at, console)
    return LET_GO


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _stop(number: int, frame: FrameType | None) -> None:
    raise PrerunTerminated


def _judge_prerun(trial: PrerunFiles) -> Judged:
    """The verdict says how long was tried, whatever ended the trial."""
    began = time.monotonic()
    judged = _run_and_judge(trial, began)
    seconds = judged.verdict.seconds or round(time.monotonic() - began, 3)
    return replace(judged, verdict=replace(judged.verdict, seconds=seconds))


def _run_and_judge(trial: PrerunFiles, began: float) -> Judged:
    """`began`: of time.monotonic()."""
    spec = trial.spec
    watch = RealJobWatcher(spec.real_job, SlurmCommands(timeout_s=5, environ=os.environ))
    classify = make_classifier(configuration.load(os.environ).diagnosis.signatures)
    try:
        watch.look()
        report = _Reporter(trial.directory, watch)
        result = run_trial(spec, environ=_read_slurm_environment(), on_progress=report)
        verdict = judge(spec, result, classify)
        if verdict.outcome is not Outcome.FAIL:
            return Judged(verdict, delay=spec.delay)
        if_delayed = judge(replace(spec, delay=DELAYED_NOW), result, classify)
        return Judged(verdict, replace(if_delayed, measurement=None))
    except PrerunTerminated:
        reason = "the pre-run was stopped (cancelled, preempted or out of time) before it could tell"
        return Judged(Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason), stopped=True)
    except JobGone as why:
        lasting = time.monotonic() - began >= _LONG_S and why.started
        reason = f"{why} {_GIVEN_UP}"
        return Judged(Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason, lasting=lasting))


def _read_slurm_environment() -> dict[str, str]:
    """This job's environment as Slurm gave it: the wrapper's sh may drop what is no name of a variable, as dash does
    with the functions that bash exports, `module` of Lmod among them."""
    given = b""
    with suppress(OSError):
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    pairs = (os.fsdecode(entry).partition("=") for entry in given.split(b"\0"))
    dropped = {name: value for name, equals, value in pairs if equals and not name.isidentifier()}
    return {**dropped, **os.environ}


@dataclass(slots=True)
class RealJobWatcher:
    """Looks now and then whether the real job still waits. An answer that does not come changes nothing.

    `missed`: answers in a row that knew no such job; a single one may be wrong.
    """

    job: str | None
    slurm: Slurm
    clock: Callable[[], float] = time.monotonic
    next_at: float = 0.0
    missed: int = 0

    def look(self) -> None:
        """Asks Slurm if it is time to. Raises JobGone."""
        if self.job is None or self.clock() < self.next_at:
            return
        wait = WATCH_S
        with suppress(SlurmError):
            record = self.slurm.job(self.job)
            self.missed = 0 if record is not None else self.missed + 1
            if self.missed >= _SURE or (record is not None and not record.pending):
                became = _describe_end_state("" if record is None else record.state)
                nobody = JobGone(f"job {self.job} {became}")
                nobody.started = became == "started"
                raise nobody
            wait = AGAIN_S if self.missed else WATCH_S
        # After the answer: a slow controller is not asked more often.
        self.next_at = self.clock() + wait


def _describe_end_state(state: str) -> str:
    return {"": "ended", "CANCELLED": "was cancelled"}.get(state, "started")


def _make_held_job(trial: PrerunFiles) -> HeldJob:
    spec = trial.spec
    return HeldJob(
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
        output=spec.output,
    )


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Leaves progress.json for who follows, and gives up a trial for which no one waits."""

    directory: Path
    watch: RealJobWatcher

    def __call__(self, progress: TrialProgress) -> None:
        shown = asdict(progress)
        # A full disk costs the live view, not the trial.
        with suppress(OSError):
            replace_file(self.directory / "progress.json", json.dumps(shown))
        self.watch.look()


if __name__ == "__main__":
    sys.exit(main())
