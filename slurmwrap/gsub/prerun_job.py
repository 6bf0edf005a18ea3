"""The program of the pre-run's Slurm job: run the trial, judge it, and apply the verdict to the real job.

templates/prerun/wrapper.sh starts it on the node: `python -I -m slurmwrap.gsub.prerun_job TRIAL_DIR`. If any part of
slurmwrap fails here, the real job is released.
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
from slurmwrap.fast_dataclasses import asdict, dataclass, field, replace
from slurmwrap.gsub.apply_verdict import PAUSES_S, HeldJob, apply_verdict, extend_grace
from slurmwrap.gsub.cancelled_notice import notify_of_cancelled_job, was_cancelled
from slurmwrap.gsub.input_check import note_same_arguments, start_input_check
from slurmwrap.gsub.prerun_sharing import GROUP
from slurmwrap.gsub.submit import clean_up_preruns, open_submit_context
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.gsub.waiting_job import JobIdentity, read_job_identity, start_action
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.trial_result import TrialProgress, TrialResult
from slurmwrap.model.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_containers import map_paths
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict import python_traceback
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

T = TypeVar("T")


def choose_next(waiting: Mapping[T, Sequence[str]], passed: Collection[str]) -> T:
    """Return the job of a sweep to try next: the one with the most arguments that no passed job had.

    Of equal ones the first is returned. `waiting`: job -> its arguments; not empty.
    """
    known = set(passed)
    return max(waiting, key=lambda job: len(set(waiting[job]) - known))


def has_time(elapsed_s: float, longest_s: float, budget_s: float) -> bool:
    """Return whether another trial, if it takes as long as the longest so far, ends within the budget."""
    return elapsed_s + longest_s <= budget_s


# Exit code after slurmwrap failed and released the real job. Not 1, with which Python exits if it cannot import this
# module.
LET_GO = 4
WATCH_S = 10.0  # seconds between two checks whether the real job still waits; each is one squeue
AGAIN_S = 2.0  # seconds to wait before asking again when squeue did not know the job
# Consecutive answers that the job does not exist before they are accepted: squeue has been observed to miss a job.
_CONFIRMATIONS = 3
_GIVEN_UP = "before its pre-run was done"
_MARGIN_S = 30.0  # seconds kept before the end of this Slurm job, to apply the last verdict
_MIN_TRIAL_S = 60.0  # minimum seconds for another trial
_LASTING_AFTER_S = 240.0  # a trial that ran for so long without a verdict would not reach one the next time either


class PrerunTerminated(BaseException):
    """Raised on SIGTERM (scancel, preemption or time limit): all that is left to do is to release the real job."""


class JobGone(Exception):
    """The real job started, ended or was cancelled: a trial that ran next to it would only write into its files."""

    # Whether the job has started, probably because its grace period was over.
    started = False


@dataclass(frozen=True, slots=True)
class PrerunFiles:
    """The content of the files that gsub wrote to the trial's directory."""

    directory: Path
    spec: TrialSpec
    request: JobRequest
    plan: PlacementPlan
    release_at: str
    given: tuple[float, ...]  # the begin times that gsub may have set for the waiting job, Unix seconds
    job: JobIdentity | None  # the waiting job
    grace_s: float  # grace period: how long the job may be delayed

    @classmethod
    def read(cls, directory: Path) -> PrerunFiles:
        """Read the files. Raise OSError, ValueError, TypeError or KeyError if they are not as gsub writes them."""
        waiting = json.loads((directory / "waiting.json").read_bytes())
        return cls(
            directory,
            spec_from_json(json.loads((directory / "spec.json").read_bytes())),
            record_from_json(JobRequest, waiting["request"]),
            record_from_json(PlacementPlan, waiting["plan"]),
            waiting["release_at"],
            # Files of an earlier version lack these keys.
            tuple(waiting.get("given", ())),
            read_job_identity(waiting.get("job")),
            float(waiting.get("grace_s", 0)),
        )

    def note_given(self, at: float) -> None:
        """Record another begin time as set by slurmwrap. Raise OSError if it cannot be written."""
        path = self.directory / "waiting.json"
        plain = json.loads(path.read_bytes())
        replace_file(path, json.dumps({**plain, "given": [*plain.get("given", ()), at]}))


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of one trial. `if_delayed`: the verdict for a job that cannot start yet, if the trial failed."""

    verdict: Verdict
    if_delayed: Verdict | None = None
    # Why the job could not start yet, if the trial was judged for a delayed job.
    delay: str = ""
    # Whether this process got SIGTERM during the trial.
    stopped: bool = False


def main(argv: list[str] | None = None) -> int:
    """Run the pre-run. Return 0 once the verdict was applied; LET_GO if slurmwrap failed and released the real job.

    After any other exit code the wrapper releases the real job.
    """
    directory = Path((sys.argv[1:] if argv is None else argv)[0])
    console = Console.of_terminal("slurmwrap")
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        return _run_prerun_job(directory, console)
    except (Exception, PrerunTerminated) as error:
        console.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
        return _release_after_fault(console, directory)


def _run_prerun_job(directory: Path, console: Console) -> int:
    began, trial = time.time(), PrerunFiles.read(directory)
    context = open_submit_context(configuration.load(), os.environ, console)
    # gsub writes this too, but it may have been killed before that.
    with suppress(OSError, ValueError):
        prerun_registry.mark_submitted(str(directory), int(os.environ["SLURM_JOB_ID"]))
    _renew_grace_periods(trial, context, console)
    trial = PrerunFiles.read(directory)  # again, to include the new begin time
    early = EarlyRelease(trial, context, console) if _may_release_early(trial) else None
    judged = _judge_prerun(trial, early)
    released = None if early is None else early.record
    apply_and_publish(make_held_job(trial), trial.directory, judged, context, console, released)
    if not judged.stopped:
        start_input_check(trial.spec, trial.request, judged.verdict, context)
    _judge_waiting_jobs(_SharedPrerun(trial, context, console, began, _compute_end_time(trial.spec, began)), judged)
    clean_up_preruns(context)
    return 0


def _renew_grace_periods(trial: PrerunFiles, context: SubmitContext, console: Console) -> None:
    """Extend the grace periods of the job and of those that attached if their dependency was met only now."""
    if trial.spec.mode == "gate" or not trial.request.value("dependency"):
        return
    others = (Path(guest.trial_dir) for guest in prerun_registry.list_waiting_jobs(trial.directory))
    for directory in (trial.directory, *others):
        try:
            one = PrerunFiles.read(directory)
            if until := extend_grace(make_held_job(one), one.grace_s, context, one.note_given):
                console.say(f"job {one.spec.real_job} waits until {time.ctime(until)} at most: its dependency is met")
        except (SlurmError, OSError, ValueError, TypeError, KeyError) as error:
            console.say(f"the grace period of the job in {directory} is not extended: {error}")


def is_kept_from_starting(job: str) -> bool:
    """Return whether the job is held or has a dependency, which its user may have set after its submission.

    Return True also if Slurm does not answer for minutes, so that the job is not cancelled.
    """
    for pause in (*PAUSES_S, 0.0):
        try:
            rows = SlurmCommands(timeout_s=30, environ=os.environ).watched(job)
            return any(row.dependency or row.record.reason.startswith("JobHeld") for row in rows if row.record.pending)
        except SlurmUnreachable:
            time.sleep(pause)
        except SlurmError:
            return False
    return True


def _may_release_early(trial: PrerunFiles) -> bool:
    """Return whether the job need not wait for the rehearsal: once a task of an array runs, none can be stopped."""
    request = trial.request
    return trial.spec.mode == "auto" and not request.value("array") and not request.hetjob


@dataclass(slots=True)
class EarlyRelease:
    """Releases the job when the steps have passed, while its pre-run goes on with the rehearsal.

    If the rehearsal finds an error, the job is cancelled, also if it runs by then.
    """

    trial: PrerunFiles
    context: SubmitContext
    console: Console
    verdict: Verdict | None = None  # that of the steps
    record: PrerunRecord | None = None  # None: not released

    def __call__(self, verdict: Verdict) -> None:
        """Release the job by the verdict of the steps. SIGTERM is ignored meanwhile."""
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            record = apply_verdict(make_held_job(self.trial), verdict, self.context)
            self.verdict, self.record = verdict, record if record.released else None
            self.console.say(f"{verdict.reason}; job {record.job_id} need not wait for the rest of the pre-run")
        finally:
            signal.signal(signal.SIGTERM, before)


def _has_started(job: str) -> bool:
    """Return whether the job runs; False also if Slurm does not answer."""
    with suppress(SlurmError):
        record = SlurmCommands(timeout_s=30, environ=os.environ).job(job)
        return record is not None and not record.pending
    return False


def apply_and_publish(
    waiting: HeldJob,
    directory: Path,
    judged: Judged,
    context: SubmitContext,
    console: Console,
    released: PrerunRecord | None = None,
) -> None:
    """Apply the verdict to the waiting job and write it to verdict.json for `gsub` calls that follow the pre-run.

    SIGTERM is ignored meanwhile, which takes milliseconds. `released`: see apply_verdict().
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        verdict = judged.verdict
        harmless = judged.if_delayed is not None and judged.if_delayed.outcome is not Outcome.FAIL
        if harmless and judged.if_delayed and waiting.job_id:
            # The files that a running job has written may be what its pre-run tripped over.
            runs = released is not None and _has_started(str(waiting.job_id))
            if runs or is_kept_from_starting(str(waiting.job_id)):
                verdict = judged.if_delayed
        if verdict.reason.startswith(judged.delay or DELAYED_NOW):
            # The verdict depends on a file that is missing now, so it must not be stored for this fingerprint.
            waiting = replace(waiting, fingerprint="")
        record = apply_verdict(waiting, verdict, context, released)
        try:
            replace_file(directory / prerun_registry.VERDICT, json.dumps(verdict_to_json(verdict)))
        except OSError as error:
            console.say(f"the verdict could not be written for `slurmwrap prerun show`: {error}")
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
    """Notify the user of the cancelled job. An error here is only reported."""
    try:
        state_dir, slurm = (
            str(configuration.find_user_state_dir(os.environ)),
            SlurmCommands(timeout_s=10, environ=os.environ),
        )
        node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        notify_of_cancelled_job(
            waiting, record, user=context.user, node=node, place=state_dir, config=slurm.config, say=console.say
        )
    except Exception as error:
        console.fault(error)


# --- the jobs that attached -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SharedPrerun:
    """A pre-run that other jobs may have attached to. It runs since `began` and must end by `until` (Unix seconds)."""

    first: PrerunFiles
    context: SubmitContext
    console: Console
    began: float
    until: float


def _compute_end_time(spec: TrialSpec, began: float) -> float:
    """Return when this Slurm job must be done: its end time less a margin, in Unix seconds.

    The end time is SLURM_JOB_END_TIME (since Slurm 23.02), else it is computed from the time limit that gsub set.
    """
    try:
        return float(os.environ["SLURM_JOB_END_TIME"]) - _MARGIN_S
    except (KeyError, ValueError):
        return began + spec.time_limit_s + spec.profile_s + spec.pack_limit_s


def _judge_waiting_jobs(shared: _SharedPrerun, first: Judged) -> None:
    """Give every job that attached to this pre-run a verdict. A job whose arguments were tried gets it at once.

    The other jobs are tried here one after the other: as long as all fail, and after a pass while the time budget for
    the sweep lasts. A failure counts only for jobs with the same arguments. A pass or an inconclusive verdict counts
    for all jobs that remain then, and they are released untried.
    """
    directory, console = shared.first.directory, shared.console
    tried = {shared.first.spec.fingerprint: first}
    passed = set(shared.first.spec.args) if first.verdict.outcome is Outcome.PASS else set()
    last, longest, untried_verdict = first, time.time() - shared.began, first.verdict
    try:
        while not last.stopped:
            waiting = _find_untried(tried, shared)
            if not waiting or not _should_try_another(last.verdict, untried_verdict, longest, shared):
                break
            guest = choose_next({one: trial.spec.args for one, trial in waiting.items()}, passed)
            started = time.time()
            last = _try_waiting_job(guest, _limit_trial_time(waiting[guest], untried_verdict, shared), tried, shared)
            longest = max(longest, time.time() - started)
            if last.verdict.outcome is Outcome.PASS:
                passed |= set(waiting[guest].spec.args)
            if untried_verdict.outcome is not Outcome.PASS:
                untried_verdict = last.verdict
            prerun_registry.take(directory, guest)
    except (Exception, PrerunTerminated) as error:
        # The remaining jobs are released below.
        last = replace(last, stopped=last.stopped or isinstance(error, PrerunTerminated))
        console.fault(error if isinstance(error, Exception) else RuntimeError("stopped"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for guest in prerun_registry.close(directory):
        # After SIGTERM, Slurm's KillWait leaves only seconds for all of them, so release them without planning.
        if last.stopped:
            _release(str(guest.job_id), guest.release_at, console)
        else:
            _settle_waiting_job(guest, tried, untried_verdict, shared)
        prerun_registry.take(directory, guest)
    if shared.context.flights is not None:
        shared.context.flights.drop(_read_text(directory / GROUP), str(directory))


def _should_try_another(last: Verdict, untried_verdict: Verdict, longest_s: float, shared: _SharedPrerun) -> bool:
    """Return whether to try another job: while all have failed, or after a pass within the site's time budget."""
    now = time.time()
    if shared.until - now < _MIN_TRIAL_S:
        return False
    if untried_verdict.outcome is Outcome.PASS:
        return has_time(now - shared.began, longest_s, shared.context.config.prerun.sweep_s)
    return last.outcome is Outcome.FAIL or _is_given_up(last)


def _limit_trial_time(trial: PrerunFiles, untried_verdict: Verdict, shared: _SharedPrerun) -> PrerunFiles:
    """Return the trial with its time reduced to that of this Slurm job and, after a pass, to the sweep's budget."""
    spec, now = trial.spec, time.time()
    if untried_verdict.outcome is not Outcome.PASS:
        return replace(trial, spec=replace(spec, time_limit_s=min(spec.time_limit_s, shared.until - now)))
    left = min(spec.time_limit_s, shared.until - now, shared.began + shared.context.config.prerun.sweep_s - now)
    # The first job's pre-run rehearsed the same program; the time is better spent on other arguments.
    return replace(trial, spec=replace(spec, time_limit_s=left, profile_s=0.0, rehearse_s=0.0, pack_most=0))


def _find_untried(tried: Mapping[str, Judged], shared: _SharedPrerun) -> dict[WaitingJob, PrerunFiles]:
    """Return the attached jobs with untried arguments. Apply the known verdict to those whose arguments were tried."""
    waiting: dict[WaitingJob, PrerunFiles] = {}
    for guest in prerun_registry.list_waiting_jobs(shared.first.directory):
        trial = PrerunFiles.read(Path(guest.trial_dir))
        known = tried.get(trial.spec.fingerprint)
        if known is None or _is_given_up(known.verdict):
            waiting[guest] = trial
        else:
            _settle_waiting_job(guest, tried, known.verdict, shared)
            prerun_registry.take(shared.first.directory, guest)
    return waiting


def _try_waiting_job(guest: WaitingJob, trial: PrerunFiles, tried: dict[str, Judged], shared: _SharedPrerun) -> Judged:
    """Run a trial of its own for an attached job and apply the verdict."""
    shared.console.say(f"job {guest.job_id} is tried next: its arguments differ")
    judged = _judge_prerun(trial)
    # Its time was reduced. With the full time another trial might reach a verdict, so this one is not final.
    if judged.verdict.layer == "timeout":
        judged = replace(judged, verdict=replace(judged.verdict, lasting=False))
    tried[trial.spec.fingerprint] = judged
    apply_and_publish(make_held_job(trial), trial.directory, judged, shared.context, shared.console)
    if not judged.stopped:
        start_input_check(trial.spec, trial.request, judged.verdict, shared.context)
    return judged


def _settle_waiting_job(
    guest: WaitingJob, tried: Mapping[str, Judged], untried_verdict: Verdict, shared: _SharedPrerun
) -> None:
    """Apply the pre-run's verdict to an attached job that was not tried itself. On any error, release the job."""
    try:
        trial = PrerunFiles.read(Path(guest.trial_dir))
        judged = tried.get(trial.spec.fingerprint) or Judged(_derive_verdict(untried_verdict))
        borrowed = judged.verdict.outcome is not Outcome.FAIL
        if trial.spec.fingerprint == shared.first.spec.fingerprint:
            note_same_arguments(shared.first.directory, trial.directory)
        apply_and_publish(
            replace(make_held_job(trial), borrowed=borrowed), trial.directory, judged, shared.context, shared.console
        )
    except Exception as error:
        shared.console.fault(error)
        _release(str(guest.job_id), guest.release_at, shared.console)


def _derive_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict for an untried job with other arguments: a failure proves nothing about it."""
    if verdict.outcome is Outcome.FAIL:
        reason = f"not tried: the pre-run of the same script with other arguments failed ({verdict.reason})"
        return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)
    return replace(verdict, reason=f"with other arguments of the same script: {verdict.reason}")


def _is_given_up(verdict: Verdict) -> bool:
    """Return whether the trial was given up because its job had gone; then it proves nothing about other jobs."""
    return verdict.layer == "supervisor" and verdict.reason.endswith(_GIVEN_UP)


def _release(job: str, release_at: str, console: Console) -> None:
    start = start_action(job, release_at, "the pre-run failed to run")
    try:
        SlurmCommands(timeout_s=30, environ=os.environ).apply(start)
    except SlurmError as error:
        console.say(f"job {job} starts after its grace time: {error}")


def _release_after_fault(console: Console, directory: Path) -> int:
    """Release all jobs that wait for this pre-run after slurmwrap failed.

    Uses only the environment, the files of the trial and scontrol.
    """
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


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise PrerunTerminated


def _judge_prerun(trial: PrerunFiles, early: EarlyRelease | None = None) -> Judged:
    """Run and judge the trial, and set the verdict's duration, whatever ended the trial."""
    began = time.monotonic()
    judged = _run_and_judge(trial, began, early)
    seconds = judged.verdict.seconds or round(time.monotonic() - began, 3)
    return replace(judged, verdict=replace(judged.verdict, seconds=seconds))


def _run_and_judge(trial: PrerunFiles, began: float, early: EarlyRelease | None) -> Judged:
    """Run the trial while watching the real job, and judge it. `began`: the start by time.monotonic().

    Without a verdict of the rehearsal, that of the steps stands if the job was released by it.
    """
    spec = trial.spec
    reached: list[Verdict] = []  # before the members are measured
    watch = RealJobWatcher(spec.real_job, SlurmCommands(timeout_s=5, environ=os.environ))
    classify = make_classifier(configuration.load(os.environ).diagnosis.signatures)
    try:
        watch.look()
        report = _ProgressWriter(trial.directory, watch)
        looks = [map_paths(spec.trial_dir, look) for look in (job_inputs.inspect, python_traceback.read)]

        def release(steps: TrialResult) -> None:
            if early is not None:
                early(judge(spec, steps, classify, *looks))
                watch.released = early.record is not None

        environ = _read_slurm_environment()
        result = run_trial(spec, environ=environ, on_progress=report, on_steps=release)
        verdict = judge(spec, result, classify, *looks)
        reached.append(verdict)
        if verdict.outcome is not Outcome.FAIL:
            if spec.pack_most:
                from slurmwrap.gsub.fold_array import measure_packing  # few pre-runs use it

                verdict = measure_packing(spec, trial.request, verdict, watch.slurm.snapshot, environ, report)
            return Judged(verdict, delay=spec.delay)
        if_delayed = judge(replace(spec, delay=DELAYED_NOW), result, classify, *looks)
        return Judged(verdict, replace(if_delayed, measurement=None))
    except PrerunTerminated:
        if reached:
            return Judged(reached[0], stopped=True)
        if early is not None and early.record is not None and early.verdict is not None:
            return Judged(early.verdict, stopped=True)
        reason = "the pre-run was stopped (cancelled, preempted or out of time) before it reached a verdict"
        return Judged(Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason), stopped=True)
    except JobGone as why:
        if reached:
            return Judged(reached[0])
        if early is not None and early.record is not None and early.verdict is not None:
            return Judged(early.verdict)
        lasting = time.monotonic() - began >= _LASTING_AFTER_S and why.started
        reason = f"{why} {_GIVEN_UP}"
        return Judged(Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason, lasting=lasting))


def _read_slurm_environment() -> dict[str, str]:
    """Return this job's environment as Slurm set it.

    The wrapper's sh may drop entries whose names are no identifiers. dash does so with functions exported by bash, for
    example Lmod's `module`.
    """
    given = b""
    with suppress(OSError):
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    pairs = (os.fsdecode(entry).partition("=") for entry in given.split(b"\0"))
    dropped = {name: value for name, equals, value in pairs if equals and not name.isidentifier()}
    return {**dropped, **os.environ}


@dataclass(slots=True)
class RealJobWatcher:
    """Checks at intervals whether the real job still waits. A query without an answer is ignored.

    `missed`: number of consecutive answers that did not know the job; a single one may be wrong. `released`: the job
    may run, but not on this node, where both may need the same port.
    """

    job: str | None
    slurm: Slurm
    clock: Callable[[], float] = time.monotonic
    next_at: float = 0.0
    missed: int = 0
    released: bool = False
    node: str = field(default_factory=lambda: os.environ.get("SLURMD_NODENAME", ""))

    def look(self) -> None:
        """Ask Slurm if the interval is over. Raise JobGone if the job no longer waits."""
        if self.job is None or self.clock() < self.next_at:
            return
        wait = WATCH_S
        with suppress(SlurmError):
            record = self.slurm.job(self.job)
            self.missed = 0 if record is not None else self.missed + 1
            if self.missed >= _CONFIRMATIONS or (record is not None and not self._may_go_on(record)):
                became = _describe_end_state("" if record is None else record.state)
                gone = JobGone(f"job {self.job} {became}")
                gone.started = became == "started"
                raise gone
            wait = AGAIN_S if self.missed or self.released else WATCH_S
        # The interval begins after the answer, so that a slow controller is not asked more often.
        self.next_at = self.clock() + wait

    def _may_go_on(self, record: JobRecord) -> bool:
        """Return whether the pre-run may go on next to a job in this state."""
        runs = record.state in ("CONFIGURING", "RUNNING") and self.node not in record.nodes
        return record.pending or (self.released and runs)


def _describe_end_state(state: str) -> str:
    return {"": "ended", "CANCELLED": "was cancelled"}.get(state, "started")


def make_held_job(trial: PrerunFiles) -> HeldJob:
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
        pack_dir=spec.pack_dir,
    )


@dataclass(frozen=True, slots=True)
class _ProgressWriter:
    """Writes progress.json for users who follow the pre-run, and gives up a trial whose job no longer waits."""

    directory: Path
    watch: RealJobWatcher

    def __call__(self, progress: TrialProgress) -> None:
        shown = asdict(progress)
        # If the disk is full, only the live view fails, not the trial.
        with suppress(OSError):
            replace_file(self.directory / "progress.json", json.dumps(shown))
        self.watch.look()


if __name__ == "__main__":
    sys.exit(main())
