"""SimOutcome, a run's result for each job, and its summary: JCT, makespan, queueing delay, utilisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean, median

from slurmwrap.placement.demand import Server
from slurmwrap.policy.finish_time_fairness import JobStay, compute_part_times, compute_user_rho
from slurmwrap.sim.sim_job import SimJob

# (jobs that have ended or never can start, all jobs)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOutcome:
    """One entry per job, in the order of the trace. Seconds on the trace's clock; None: did not happen."""

    # "rounds": leases end. "slurm": a running job keeps what it has.
    mode: str
    began_s: tuple[float | None, ...]  # first start
    ended_s: tuple[float | None, ...]
    held_s: tuple[float, ...]  # how long the job held GPUs, in all its runs
    servers: tuple[int, ...]  # on how many servers it ran the last time; 0: never
    preemptions: int = 0  # runs that were interrupted
    updates: int = 0  # updates of pending requests
    steps: int = 0  # rounds or events that were simulated
    packed: int = 0  # jobs that joined another one on its GPU
    # How long each job waited although as many GPUs were free, where that was measured.
    scattered_s: tuple[float, ...] = ()
    shared_s: float = 0.0  # GPU-seconds in which two jobs had one GPU


# The measures that the papers report: JCT, makespan, queueing delay, utilisation.
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """Times in seconds. JCT (job completion time): from submission to end. Queueing: the part of it without GPUs."""

    # Number of measured jobs that ended.
    jobs: int
    # From the first submission to the last end, of all jobs that ended.
    makespan_s: float
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    mean_queueing_s: float
    p99_queueing_s: float
    # GPU-seconds held over GPU-seconds available, from first submission to last end.
    gpu_utilisation: float
    preemptions: int


def summarize_outcome(
    jobs: Sequence[SimJob], outcome: SimOutcome, servers: Sequence[Server], window: range | None = None
) -> TimeSummary:
    """Return the measures of a run. ValueError if no measured job ended.

    `window`: the numbers of the jobs whose JCT is measured; None: all.
    """
    ended = [(job, end) for job in jobs if (end := outcome.ended_s[job.number]) is not None]
    measured = [(job, end) for job, end in ended if window is None or job.number in window]
    if not measured:
        raise ValueError("no job ended: there is nothing to measure")
    jcts = sorted(end - job.submit_s for job, end in measured)
    waits = sorted(end - job.submit_s - outcome.held_s[job.number] for job, end in measured)
    span = max(end for _, end in ended) - min(job.submit_s for job, _ in ended)
    held = sum(outcome.held_s[job.number] * job.gpus for job in jobs) - outcome.shared_s
    return TimeSummary(
        jobs=len(measured),
        makespan_s=span,
        mean_jct_s=fmean(jcts),
        median_jct_s=median(jcts),
        p95_jct_s=compute_percentile(jcts, 95),
        p99_jct_s=compute_percentile(jcts, 99),
        mean_queueing_s=fmean(waits),
        p99_queueing_s=compute_percentile(waits, 99),
        gpu_utilisation=held / max(1e-9, span * sum(server.gpus for server in servers)),
        preemptions=outcome.preemptions,
    )


def compute_fairness(jobs: Sequence[SimJob], outcome: SimOutcome, servers: Sequence[Server]) -> dict[str, float]:
    """Return user -> finish-time fairness of the user's jobs together, worst first (policy/finish_time_fairness.py).

    Jobs without a user are left out.
    """
    stays = [
        JobStay(job.user, job.submit_s, end, job.work_s, job.gpus)
        for job in jobs
        if job.user and (end := outcome.ended_s[job.number]) is not None
    ]
    return compute_user_rho(stays, compute_part_times(stays, sum(server.gpus for server in servers)).part_s)


def compute_percentile(ordered: Sequence[float], part: float) -> float:
    """Return a percentile of sorted values.

    Linear between the two closest ranks, as numpy.percentile does by default (Synergy's way).
    """
    at = (len(ordered) - 1) * part / 100
    low = floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
