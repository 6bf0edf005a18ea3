"""Turns what is remembered of one job into its Story: asked, tried, run, judged, and what to do next. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slurmwrap.cluster.action import Verb
from slurmwrap.prerun.verdict import Outcome
from slurmwrap.report.actions import REQUEUES, scontrol_line
from slurmwrap.retry.attempt import WAITING_RULES, ActionRecord, AttemptRecord, PrerunRecord, QueueDelay
from slurmwrap.retry.policy import REQUEUED_ALREADY
from slurmwrap.retry.submission import Submission

_SLACK_S = 3600.0  # clocks of the submit host and the controller may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One job. `address` is what its user calls it: "81", "77_2", or "77" for a whole array."""

    address: str
    submission: Submission | None = None
    preruns: tuple[PrerunRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    actions: tuple[ActionRecord, ...] = ()
    delays: tuple[QueueDelay, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing at all is known."""
        return self.submission is None and not self.preruns and not self.attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What the researcher can do: a sentence, and a command where there is one."""

    sentence: str
    command: str = ""


def story_of(
    address: str,
    submissions: Sequence[Submission],
    preruns: Sequence[PrerunRecord],
    attempts: Sequence[AttemptRecord],
    actions: Sequence[ActionRecord],
    delays: Sequence[QueueDelay] = (),
) -> Story:
    """The newest job of this name: ids come back after MaxJobId, and with a new cluster of the same name."""
    mine = [s for s in submissions if s.job_id == _number(address) or s.prerun_job_id == _number(address)]
    submission = max(mine, key=lambda s: s.at, default=None)
    number = submission.job_id if submission else _number(address)
    since = submission.at - _SLACK_S if submission else 0.0
    tried = [p for p in preruns if p.at >= since and number in (p.job_id, p.prerun_job_id)]
    name = address if submission is None or "_" in address else str(number)
    runs = [a for a in attempts if _is_of(a, name) and a.attempt.submit_time >= since]
    if submission is None and runs:
        newest = max(runs, key=lambda a: a.attempt.submit_time)
        runs = [a for a in runs if (a.uid, a.attempt.cluster) == (newest.uid, newest.attempt.cluster)]
    keys = {a.attempt for a in runs}
    return Story(
        address=name,
        submission=submission,
        preruns=tuple(sorted({(p.prerun_job_id, p.at): p for p in tried}.values(), key=lambda p: p.at)),
        attempts=tuple(sorted({a.attempt: a for a in runs}.values(), key=lambda a: (a.attempt.submit_time, a.address))),
        actions=tuple(action for action in actions if action.attempt in keys),
        delays=tuple(d for d in delays if _number(d.address) == number and d.attempt.submit_time >= since),
    )


def last_failure(attempts: Sequence[AttemptRecord], preruns: Sequence[PrerunRecord]) -> str | None:
    """Address of the job that failed last, in a run or in its pre-run; None when none did."""
    ends = [(float(a.end_time), a.address or str(a.attempt.job_id)) for a in attempts if a.end_time and failed(a)]
    ends += [(p.at, str(p.job_id or p.prerun_job_id)) for p in preruns if p.verdict.outcome is Outcome.FAIL]
    return max(ends)[1] if ends else None


def stopped_jobs(preruns: Sequence[PrerunRecord]) -> frozenset[tuple[str, int]]:
    """(cluster, job id) of jobs whose pre-run failed."""
    failures = [p for p in preruns if p.verdict.outcome is Outcome.FAIL]
    return frozenset((p.cluster, p.job_id) for p in failures if p.job_id is not None)


def never_ran(record: AttemptRecord, stopped: frozenset[tuple[str, int]]) -> bool:
    """A job that its pre-run stopped: Slurm has a cancelled record of it, yet no run."""
    return not record.nodes and (record.attempt.cluster, record.attempt.job_id) in stopped


def failed(record: AttemptRecord) -> bool:
    """Judged, and neither a success nor cancelled."""
    return record.diagnosis is not None and record.diagnosis.category not in ("success", "cancelled")


def stopped_by_prerun(story: Story) -> bool:
    """The newest pre-run failed and the job never started."""
    started = any(attempt.start_time is not None and attempt.run_s > 0 for attempt in story.attempts)
    return bool(story.preruns) and story.preruns[-1].verdict.outcome is Outcome.FAIL and not started


def next_step(story: Story) -> Next:
    """The one thing to try next."""
    last = story.attempts[-1] if story.attempts else None
    if stopped_by_prerun(story):
        return Next(
            sentence="Mend what the pre-run found, try it on one GPU, then submit again.",
            command=_gsub(story, "--prerun=only"),
        )
    if last is not None and last.diagnosis is not None:
        return _after_run(story, last)
    if last is not None and last.state:
        return Next(sentence="It ended and is not judged yet; the reconciler does that within a minute.")
    return Next(sentence="It has not ended.", command=f"squeue -j {shlex.quote(story.address)}")


def _after_run(story: Story, last: AttemptRecord) -> Next:
    assert last.diagnosis is not None
    mine = [action for action in story.actions if action.attempt == last.attempt]
    if not failed(last):
        return Next(sentence="Nothing: it was cancelled." if last.diagnosis.category == "cancelled" else "Nothing.")
    again = any(a.verb in _LETS_GO and a.mode == "act" and not a.error for a in mine)
    if again or last.decision_reason.endswith(REQUEUED_ALREADY):
        return Next(sentence="Nothing: it runs again by itself.", command=f"squeue -j {shlex.quote(last.address)}")
    advised = [a for a in mine if a.mode == "advise" and a.verb not in _NOT_ABOUT_JOBS]
    advised = [a for a in advised if a.rule not in WAITING_RULES]
    if advised:
        return Next(sentence="It can be run again:", command=" && ".join(scontrol_line(action) for action in advised))
    release = f"scontrol release {last.address}"
    if last.decision == "stop" and f"'{release}'" in last.decision_reason:  # its launch failed, and Slurm holds it
        return Next(sentence="Slurm holds it: let it start again, or cancel it.", command=release)
    if last.decision == "blacklist_input" and last.decision_reason.endswith(": does not exist"):
        return Next(sentence="Put the file there, or mend its path; then submit again.", command=_gsub(story, ""))
    if last.decision in _STEPS:
        sentence, option = _STEPS[last.decision]
        return Next(sentence=sentence, command=_gsub(story, option))
    return Next(sentence=last.diagnosis.advice or "Submit it again.", command=_gsub(story, ""))


_LETS_GO = {
    *REQUEUES,
    Verb.RELEASE.value,
}  # a release alone follows a launch that failed: Slurm requeued the job itself
_NOT_ABOUT_JOBS = (Verb.DRAIN.value, Verb.RESUME.value, Verb.BLOCK_INPUT.value)
_STEPS = {
    "stop": ("Mend it, try it on one GPU, then submit again.", "--prerun=only"),
    "blacklist_input": (
        "Mend or replace the file: a changed file is free again (--force runs the job with it as it is).",
        "",
    ),
}


def _gsub(story: Story, option: str) -> str:
    """gsub with the script; "" when its path is not known. Arguments and options are not: they may hold secrets."""
    submission = story.submission
    if submission is None or not submission.script_path:
        return ""
    script = posixpath.join(submission.work_dir, submission.script_path)
    return " ".join(word for word in ("gsub", option, shlex.quote(script)) if word)


def _number(address: str) -> int:
    head = address.split("_")[0]
    return int(head) if head.isdecimal() else -1


def _is_of(record: AttemptRecord, address: str) -> bool:
    """By name, by array, or by raw job id."""
    own = record.address or str(record.attempt.job_id)
    return own == address or own.split("_")[0] == address or str(record.attempt.job_id) == address
