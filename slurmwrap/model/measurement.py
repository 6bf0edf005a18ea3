"""Measurement: what one run of a job, or its pre-run, really used. Record only."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Speed of one running trial on so many CPUs (whole cores where the machine has hardware threads)."""

    cpus: int
    steps_per_s: float  # median of its rounds
    spread: float = 0.0  # half the distance between slowest and fastest round, as a share of the median
    rounds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the trial or an Epilog measured. None: not measured. Memory in MiB, of the whole tree on one node."""

    seconds: float = 0.0
    steps: int | None = None
    steps_per_s: float | None = None
    steps_until_s: float | None = None  # from the run's start to its last counted step
    cpu_s: float | None = None  # user + system CPU time
    cpus_used: float | None = None  # mean cores busy over the measured window
    cpus_allocated: int | None = None
    mem_peak_mib: int | None = None  # anonymous + shared memory where the kernel tells, else PSS/RSS
    mem_source: str = ""  # "cgroup" | "pss" | "rss"
    gpus: int = 1
    gpu_mem_peak_mib: int | None = None
    cpu_curve: tuple[CurvePoint, ...] = ()  # by CPUs, ascending; () when it was not measured
    cpu_curve_end: str = ""  # why it goes no further: "allocation" | "workers" | "pinned" | "time"; "" without a curve
    loader_workers: int | None = None  # DataLoader workers seen
    read_mib_per_s: float | None = None  # what the tree read, from storage or network file systems
    model_mib: float | None = None  # the optimizer's parameters
    largest_tensor_mib: float | None = None  # largest of them: skew is largest / model (Tiresias, NSDI'19)
    gpu_util: float | None = None  # 0..1, mean share of time with a kernel running (NVML)
    gpu_mem_util: float | None = None  # 0..1, mean share of time with device memory busy (NVML)
    gpus_unused: int | None = None  # GPUs of the whole run on which no process was ever seen (NVML's accounting)
    gpu_power_w: float | None = None
    pcie_mib_per_s: float | None = None
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # resource -> slow-down under a stressor, >= 1
