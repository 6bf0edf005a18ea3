"""Build the timeline of one job from its records: submission, pre-runs, runs, diagnoses. Pure.

What to do next is in next_step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.job_run import ActionRecord, Incident, JobRun, PrerunRecord, QueueDelay
from slurmwrap.model.running_job import EarlyFinding, LossCurve
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.retry_budget import runs_before

# Exported: all pages use the same definition of a failed run.
from slurmwrap.policy.run_filter import failed as failed
from slurmwrap.policy.run_from_slurm import CLOCKS_S, is_submission_of_run


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimeline:
    """All records of one job. `address` is the id that its user uses: "81", "77_2", or "77" for a whole array."""

    address: str
    submission: Submission | None = None
    preruns: tuple[PrerunRecord, ...] = ()
    attempts: tuple[JobRun, ...] = ()
    actions: tuple[ActionRecord, ...] = ()
    delays: tuple[QueueDelay, ...] = ()
    findings: tuple[EarlyFinding, ...] = ()  # of the rule `early`, about runs while they ran
    # Incidents to which its runs belong, if the reader may see them.
    incidents: tuple[Incident, ...] = ()
    # Loss curves of its runs, as far as they are known.
    curves: tuple[LossCurve, ...] = ()
    # Slurm's present state of a job that has not ended: "PENDING (Priority)".
    slurm_says: str = ""
    # Its class in the queue's order while it waits: "in class 2 of 6: usually runs 20 min on 4 GPUs".
    queue_order: str = ""
    # How it ran on the GPU of another job of its user (gsub --share); "": it did not.
    shared: str = ""
    # (file, line) of a finding -> text of that line.
    lines: Mapping[tuple[str, int], str] = field(default_factory=dict)

    @property
    def cluster(self) -> str:
        """Return the cluster of all its records; "" if there are none."""
        if self.submission is not None:
            return self.submission.cluster
        found = [run.attempt.cluster for run in self.attempts] or [record.cluster for record in self.preruns]
        return next(iter(found), "")

    @property
    def empty(self) -> bool:
        """Whether no record exists."""
        return self.submission is None and not self.preruns and not self.attempts


def build_timeline(
    address: str,
    submissions: Sequence[Submission],
    preruns: Sequence[PrerunRecord],
    attempts: Sequence[JobRun],
    actions: Sequence[ActionRecord],
    delays: Sequence[QueueDelay] = (),
    findings: Sequence[EarlyFinding] = (),
) -> JobTimeline:
    """Return the timeline of the newest job with this address.

    Slurm reuses ids after MaxJobId and in a new cluster of the same name, and clusters that share a home may each have
    a job with this id.
    """
    mine = [s for s in submissions if s.job_id == _parse_number(address) or s.prerun_job_id == _parse_number(address)]
    submission = max(mine, key=lambda s: s.at, default=None)
    number = submission.job_id if submission else _parse_number(address)
    since = submission.at - CLOCKS_S if submission else 0.0
    if submission is not None:
        preruns = [p for p in preruns if p.cluster == submission.cluster]
        attempts = [a for a in attempts if a.attempt.cluster == submission.cluster]
        delays = [d for d in delays if d.attempt.cluster == submission.cluster]
    tried = [p for p in preruns if p.at >= since and number in (p.job_id, p.prerun_job_id)]
    name = address if submission is None or "_" in address else str(number)
    runs = [a for a in attempts if _has_address(a, name) and a.attempt.submit_time >= since]
    if submission is None and runs:
        newest = max(runs, key=lambda a: a.attempt.submit_time)
        runs = [a for a in runs if (a.uid, a.attempt.cluster) == (newest.uid, newest.attempt.cluster)]
    runs, older = _split_newest_job(runs)
    # gsub's submission belongs to an older job with this id; the newest was not submitted by gsub.
    if submission is not None and _is_older(submission, runs, older):
        submission, tried = None, []
    keys, others = {a.attempt for a in runs}, {a.attempt for a in older}
    return JobTimeline(
        address=name,
        submission=submission,
        preruns=tuple(sorted({(p.prerun_job_id, p.at): p for p in tried}.values(), key=lambda p: p.at)),
        attempts=tuple(sorted({a.attempt: a for a in runs}.values(), key=_make_sort_key)),
        actions=tuple(action for action in actions if action.attempt in keys),
        findings=tuple(finding for finding in findings if finding.attempt in keys),
        delays=tuple(
            d
            for d in delays
            if _parse_number(d.address) == number and d.attempt.submit_time >= since and d.attempt not in others
        ),
    )


def _split_newest_job(runs: Sequence[JobRun]) -> tuple[list[JobRun], list[JobRun]]:
    """Return, for each raw id, the runs of its newest job, and those of older jobs with the same id."""
    last = {a.attempt.job_id: a for a in sorted(runs, key=lambda a: a.attempt.submit_time)}
    kept = {a.attempt for newest in last.values() for a in (newest, *runs_before(runs, newest))}
    return [a for a in runs if a.attempt in kept], [a for a in runs if a.attempt not in kept]


def _is_older(submission: Submission, runs: Sequence[JobRun], older: Sequence[JobRun]) -> bool:
    """Whether the submission belongs to one of the `older` runs and to none of the newest."""
    return any(is_submission_of_run(submission, a) for a in older) and not any(
        is_submission_of_run(submission, a) for a in runs
    )


def find_last_failure(attempts: Sequence[JobRun], preruns: Sequence[PrerunRecord]) -> tuple[str, str] | None:
    """Return (address, cluster) of the job that failed last, in a run or in its pre-run; None if none failed."""
    ran = [a for a in attempts if a.end_time and failed(a)]
    ends = [(float(a.end_time or 0), a.address or str(a.attempt.job_id), a.attempt.cluster) for a in ran]
    ends += [(p.at, str(p.job_id or p.prerun_job_id), p.cluster) for p in preruns if p.verdict.outcome is Outcome.FAIL]
    return max(ends)[1:] if ends else None


def list_stopped_jobs(preruns: Sequence[PrerunRecord]) -> frozenset[tuple[str, int]]:
    """Return (cluster, job id) of the jobs whose pre-run failed."""
    failures = [p for p in preruns if p.verdict.outcome is Outcome.FAIL]
    return frozenset((p.cluster, p.job_id) for p in failures if p.job_id is not None)


def has_never_run(run: JobRun, stopped: frozenset[tuple[str, int]]) -> bool:
    """Whether a pre-run stopped the job: Slurm then has a cancelled record of it, but it never ran."""
    return not run.nodes and (run.attempt.cluster, run.attempt.job_id) in stopped


def is_stopped_by_prerun(timeline: JobTimeline) -> bool:
    """Whether the newest pre-run failed and the job never started."""
    started = any(attempt.start_time is not None and attempt.run_s > 0 for attempt in timeline.attempts)
    return bool(timeline.preruns) and timeline.preruns[-1].verdict.outcome is Outcome.FAIL and not started


def list_tasks(timeline: JobTimeline) -> tuple[JobRun, ...]:
    """Return the last run of each task of a whole array, in order of the tasks; () for any other job."""
    if "_" in timeline.address or len({run.address for run in timeline.attempts if "_" in run.address}) < 2:
        return ()
    last = {run.address: run for run in sorted(timeline.attempts, key=lambda run: run.attempt.submit_time)}
    return tuple(sorted(last.values(), key=lambda run: (len(run.address), run.address)))


def _make_sort_key(run: JobRun) -> tuple[int, int, str]:
    return run.attempt.submit_time, len(run.address), run.address  # 77_2 before 77_10


def _parse_number(address: str) -> int:
    head = address.split("_")[0]
    return int(head) if head.isdecimal() else -1


def _has_address(run: JobRun, address: str) -> bool:
    """Whether a run belongs to an address: by its own address, its array, or its raw job id."""
    own = run.address or str(run.attempt.job_id)
    return own == address or own.split("_")[0] == address or str(run.attempt.job_id) == address
