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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from slurmwrap import config as configuration
from slurmwrap import submit
from slurmwrap.cli.flow import open_desk
from slurmwrap.cli.voice import Voice
from slurmwrap.diagnosis.classify import classifier
from slurmwrap.edges import Slurm
from slurmwrap.errors import SlurmError
from slurmwrap.job.request import JobRequest
from slurmwrap.placement.plan import PlacementPlan
from slurmwrap.prerun.judge import judge
from slurmwrap.prerun.supervisor import Progress, run_trial
from slurmwrap.prerun.trial import TrialSpec, spec_from_json
from slurmwrap.prerun.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.plain import from_plain
from slurmwrap.submit.conclude import Waiting, conclude

WATCH_S = 10.0  # how often to ask whether the real job still waits; one squeue


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
        return _let_go(voice)


def _main(directory: Path, voice: Voice) -> int:
    trial = Trial.read(directory)
    verdict = _verdict(trial)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the last act takes milliseconds, KillWait leaves seconds
    desk = open_desk(configuration.load(), os.environ, voice)
    record = conclude(_waiting(trial), verdict, desk)
    try:
        _publish(directory / "verdict.json", verdict_to_json(verdict))
    except OSError as error:
        voice.say(f"nobody can follow this: {error}")
    voice.say(f"{verdict.outcome.value}: {verdict.reason}")
    for change in record.changes:
        voice.say(f"  {change['verb']} {change['target']} {change['option']} {change['new']} {change['error'] or ''}")
    return 0


def _let_go(voice: Voice) -> int:
    """Ours failed: the real job must not wait for it. Needs nothing but the environment and scontrol."""
    real_job = os.environ.get("SLURMWRAP_REAL_JOB")
    if real_job:
        start = submit.start_action(
            real_job, os.environ.get("SLURMWRAP_RELEASE_AT", "now"), "the pre-run failed to run"
        )
        try:
            SlurmCommands(timeout_s=30, environ=os.environ).apply(start)
        except SlurmError as error:
            voice.say(f"job {real_job} starts after its grace time: {error}")
    return 1


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _verdict(trial: Trial) -> Verdict:
    watch = Watch(trial.spec.real_job, SlurmCommands(timeout_s=5, environ=os.environ))
    classify = classifier(configuration.load(os.environ).diagnosis.signatures)
    try:
        watch.look()
        report = _Reporter(trial.directory, watch)
        return judge(trial.spec, run_trial(trial.spec, environ=os.environ, on_progress=report), classify)
    except Stopped:
        reason = "the pre-run was stopped (cancelled, preempted or out of time) before it could tell"
    except NobodyWaits as why:
        reason = f"{why} before its pre-run was done"
    return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)


@dataclass(slots=True)
class Watch:
    """Looks now and then whether the real job still waits. An answer that does not come changes nothing."""

    job: str | None
    slurm: Slurm
    clock: Callable[[], float] = time.monotonic
    next_at: float = 0.0

    def look(self) -> None:
        """Asks Slurm if it is time to. Raises NobodyWaits."""
        if self.job is None or self.clock() < self.next_at:
            return
        with suppress(SlurmError):
            record = self.slurm.job(self.job)
            if record is None or not record.pending:
                raise NobodyWaits(f"job {self.job} {_became('' if record is None else record.state)}")
        self.next_at = self.clock() + WATCH_S  # after the answer: a slow controller is not asked more often


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
        shown = {"steps": progress.steps, "seconds": progress.seconds, "last_line": progress.last_line}
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
