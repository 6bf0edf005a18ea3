"""Compute how much more memory or time the next run requests, in the job's own unit and the site's limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from slurmwrap.diagnosis.build_evidence import compute_memory_limit_mib
from slurmwrap.model.cluster import Partition
from slurmwrap.model.job_record import JobRecord

# Factor on estimates from the job's progress, which is never even.
MARGIN = 1.2
# (limit in seconds below which it applies, multiple of seconds to which the limit is rounded up).
_ROUNDED = ((600, 60), (2 * 3600, 300), (12 * 3600, 900))


def compute_memory_cap(job: JobRecord, largest_mib: int, limits: Iterable[Partition]) -> int:
    """Return the MiB that the job may have on one node: limited by the largest node and its partitions.

    MaxMemPerCPU allows itself times the CPUs; beyond that Slurm would allocate more CPUs for the memory
    (slurm.conf(5)).
    """
    caps = [largest_mib]
    for partition in limits:
        if partition.max_mem_mib_per_node:
            caps.append(partition.max_mem_mib_per_node)
        if partition.max_mem_mib_per_cpu:
            caps.append(partition.max_mem_mib_per_cpu * _cpus_per_node(job))
    return min(caps)


def compute_larger_memory(
    job: JobRecord, peak_mib: int | None, *, factor: float, cap_mib: int
) -> tuple[str, int] | None:
    """Return (scontrol's key in the job's own unit, MiB) with more than it had; None if it cannot have more.

    Both keys were seen to reach the next run's srun (Slurm 22.05). The other unit's key would break it.
    """
    limit = compute_memory_limit_mib(job)
    if limit is None or cap_mib <= limit:
        return None
    wanted = min(cap_mib, math.ceil(max(limit, peak_mib or 0) * factor))
    if job.mem_mib_per_node:
        return ("MinMemoryNode", wanted) if wanted > limit else None
    per_cpu = wanted // _cpus_per_node(job)
    return ("MinMemoryCPU", per_cpu) if per_cpu > (job.mem_mib_per_cpu or 0) else None


def compute_longer_time_limit(
    limit_s: int | None, limits: Iterable[Partition], *, factor: float, remaining_s: float | None = None
) -> int | None:
    """Return a longer time limit in minutes, Slurm's resolution; None without a limit or if no more is allowed.

    `remaining_s`: seconds of work left by the job's own progress; None: unknown.
    """
    if not limit_s:
        return None
    caps = [cap // 60] if (cap := get_longest_time_limit_s(limits)) else []
    wanted = min([math.ceil(max(limit_s * factor, (remaining_s or 0) * MARGIN) / 60), *caps])
    return wanted if wanted * 60 > limit_s else None


def get_longest_time_limit_s(limits: Iterable[Partition]) -> int | None:
    """Return the longest time limit of the job's partition, of several the shortest; None without a limit."""
    return min((partition.max_time_s for partition in limits if partition.max_time_s), default=None)


def compute_time_needed_s(run_s: float, remaining_s: float) -> int:
    """Return the time limit for a complete new run: with a margin, rounded up to what a person would write. Seconds."""
    return round_up_time((run_s + remaining_s) * MARGIN)


def round_up_time(wanted: float) -> int:
    """Return a time limit in seconds, rounded up to what a person would write."""
    unit = next((unit for below, unit in _ROUNDED if wanted < below), 3600)
    return math.ceil(wanted / unit) * unit


def _cpus_per_node(job: JobRecord) -> int:
    return max(1, job.cpus // max(1, len(job.nodes)))
