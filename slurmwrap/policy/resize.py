"""How much more memory or time the next run asks for, in the job's own unit and within what the site allows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from slurmwrap.diagnosis.build_evidence import compute_memory_limit_mib
from slurmwrap.model.cluster import Partition
from slurmwrap.model.job_record import JobRecord

# Over what progress says: it is never even.
MARGIN = 1.2
# (below so many seconds, to multiples of)
_ROUNDED = ((600, 60), (2 * 3600, 300), (12 * 3600, 900))


def memory_cap(job: JobRecord, largest_mib: int, limits: Iterable[Partition]) -> int:
    """MiB that the job may have on one node: the largest node's, and what its partition allows.

    MaxMemPerCPU caps CPUs times it; beyond that Slurm would take more CPUs for the memory (slurm.conf(5)).
    """
    caps = [largest_mib]
    for partition in limits:
        if partition.max_mem_mib_per_node:
            caps.append(partition.max_mem_mib_per_node)
        if partition.max_mem_mib_per_cpu:
            caps.append(partition.max_mem_mib_per_cpu * _cpus_per_node(job))
    return min(caps)


def more_memory(job: JobRecord, peak_mib: int | None, *, factor: float, cap_mib: int) -> tuple[str, int] | None:
    """(scontrol's key in the job's own unit, MiB) beyond what it had; None when it cannot have more.

    Both keys were seen to reach the next run's srun (Slurm 22.05); the other unit's key would break it.
    """
    limit = compute_memory_limit_mib(job)
    if limit is None or cap_mib <= limit:
        return None
    wanted = min(cap_mib, math.ceil(max(limit, peak_mib or 0) * factor))
    if job.mem_mib_per_node:
        return ("MinMemoryNode", wanted) if wanted > limit else None
    per_cpu = wanted // _cpus_per_node(job)
    return ("MinMemoryCPU", per_cpu) if per_cpu > (job.mem_mib_per_cpu or 0) else None


def more_time(
    limit_s: int | None, limits: Iterable[Partition], *, factor: float, remaining_s: float | None = None
) -> int | None:
    """Minutes (Slurm's resolution) beyond what it had; None when it has no limit, or the partition gives no more.

    `remaining_s`: what is left to do by the job's own progress; None: not known.
    """
    if not limit_s:
        return None
    caps = [cap // 60] if (cap := time_cap_s(limits)) else []
    wanted = min([math.ceil(max(limit_s * factor, (remaining_s or 0) * MARGIN) / 60), *caps])
    return wanted if wanted * 60 > limit_s else None


def time_cap_s(limits: Iterable[Partition]) -> int | None:
    """The longest that a job may run in its partition, of several the shortest; None where there is no limit."""
    return min((partition.max_time_s for partition in limits if partition.max_time_s), default=None)


def time_needed_s(run_s: float, remaining_s: float) -> int:
    """What to ask for when the whole job runs again: with a margin, and rounded up to what a person would write."""
    wanted = (run_s + remaining_s) * MARGIN
    unit = next((unit for below, unit in _ROUNDED if wanted < below), 3600)
    return math.ceil(wanted / unit) * unit


def _cpus_per_node(job: JobRecord) -> int:
    return max(1, job.cpus // max(1, len(job.nodes)))
