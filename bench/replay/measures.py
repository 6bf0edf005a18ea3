"""Compute figures from runs: makespan, JCT, idle GPUs, and the time from a GPU's release to its next start. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from replay.records import Run
from slurmwrap.sim.sim_outcome import compute_percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one arm of one replay, in real seconds since the partition came up."""

    jobs: int
    makespan_s: float
    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    mean_queue_s: float
    gpu_idle_share: float  # while jobs were waiting
    gpu_use: float  # of all GPUs until the last end
    mean_cpus: float  # per GPU that ran, by time
    mean_speed: float  # by time; 1: the proportional share
    gap_median_s: float  # from the end of a job to the next start on its node
    gap_p90_s: float
    work_s: float  # GPU-seconds that all jobs would take at speed 1

    def plain(self) -> dict[str, float]:
        """Return the figures as a JSON object."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The allocation that one run found, and its speed with it."""

    cpus: int
    mem_mib: int
    speed: float


def figures(
    runs: Sequence[Run], given: Mapping[int, Given], arrivals: Mapping[int, float], *, up: float, gpus: int
) -> Figures:
    """`arrivals`: job id → Unix seconds from which on its JCT counts; one GPU per job."""
    last = max(run.end for run in runs)
    jcts = sorted(run.end - max(up, arrivals[run.job_id]) for run in runs)
    busy = sum(run.end - run.start for run in runs)
    gaps = start_gaps(runs)
    waiting_until = max(run.start for run in runs)
    held = sum((run.end - run.start) * given[run.job_id].cpus for run in runs)
    work = sum((run.end - run.start) * given[run.job_id].speed for run in runs)
    used = sum(min(run.end, waiting_until) - run.start for run in runs)
    return Figures(
        jobs=len(runs),
        makespan_s=last - up,
        mean_jct_s=fmean(jcts),
        median_jct_s=median(jcts),
        p99_jct_s=compute_percentile(jcts, 99),
        mean_queue_s=fmean(run.start - max(up, arrivals[run.job_id]) for run in runs),
        gpu_idle_share=1 - used / (gpus * max(1e-9, waiting_until - up)),
        gpu_use=busy / (gpus * (last - up)),
        mean_cpus=held / busy,
        mean_speed=work / busy,
        gap_median_s=median(gaps) if gaps else 0.0,
        gap_p90_s=compute_percentile(gaps, 90) if gaps else 0.0,
        work_s=work,
    )


def start_gaps(runs: Sequence[Run]) -> list[float]:
    """Return the sorted seconds from each end on a node to the next start in its place, while jobs were waiting."""
    gaps = []
    for node in {name for run in runs for name in run.nodes}:
        here = [run for run in runs if node in run.nodes]
        starts = sorted(run.start for run in here)
        ends = sorted(run.end for run in here)
        first = sum(1 for start in starts if start < ends[0])  # those before any end found the node empty
        gaps += [start - end for start, end in zip(starts[first:], ends, strict=False) if start >= end]
    return sorted(gaps)
