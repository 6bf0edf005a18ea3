"""Measurement: what one run of a job, or its pre-run, really used. Record only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the trial or an Epilog measured. None: not measured. Memory in MiB, of the whole tree on one node."""

    seconds: float = 0.0
    steps: int | None = None
    steps_per_s: float | None = None
    cpu_s: float | None = None  # user + system CPU time
    cpus_used: float | None = None  # mean cores busy over the measured window
    cpus_allocated: int | None = None
    mem_peak_mib: int | None = None  # anonymous + shared memory where the kernel tells, else PSS/RSS
    mem_source: str = ""  # "cgroup" | "pss" | "rss"
    gpus: int = 1
    gpu_mem_peak_mib: int | None = None
