"""ResourceProfile: what a job needs, how sure we are and since when. Record only."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field


# Measurement: what one run of a job, or its pre-run, really used.
@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Speed of one running trial on so many CPUs (whole cores where the machine has hardware threads)."""

    cpus: int
    steps_per_s: float  # median of its rounds
    # Half the distance between slowest and fastest round, as a share of the median.
    spread: float = 0.0
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
    # Anonymous + shared memory where the kernel gives it, else PSS/RSS.
    mem_peak_mib: int | None = None
    # "cgroup" | "pss" | "rss"
    mem_source: str = ""
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
    # Resource -> slow-down under a stressor, >= 1.
    sensitivity: Mapping[str, float] = field(default_factory=dict)


# ResourceProfile.source: measured elsewhere, by someone else.
IMPORTED = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPoint:
    """Speed at so many CPUs and so much memory per GPU, in any unit that is the same for all points of one job."""

    cpus: int
    mem_mib: int
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceProfile:
    """Expected need of one job key, per GPU. Memory in MiB; None: unknown."""

    key: str  # --resource-profile NAME, or profiling.key.derive_key()
    cpus_per_gpu: float | None = None  # least CPUs within 5 % of the best throughput, or mean cores busy
    cpu_bound: bool = False  # it used all CPUs it had: the need is at least cpus_per_gpu
    mem_mib_per_gpu: int | None = None  # peak anonymous + shared memory
    steps_per_s: float | None = None  # per GPU
    gpu_type: str = ""
    gpus_per_node: int = 0
    runs: int = 0  # complete successful runs that went into it
    preruns: int = 0  # pre-runs that went into it
    confidence: float = 0.0  # 0..1
    source: str = ""  # "prerun" | "epilog" | "user" | IMPORTED
    measured_at: float = 0.0  # Unix seconds, the newest
    cpu_curve: tuple[CurvePoint, ...] = ()  # per GPU, by CPUs; () when it was never measured
    cpu_curve_end: str = ""  # as in Measurement
    loader_workers: int | None = None  # per GPU
    read_mib_per_s: float | None = None  # per GPU, at full speed
    dataset_mib: float | None = None  # size of what one epoch reads, where it is known
    model_mib: float | None = None
    skew: float | None = None  # largest tensor / model size, 0..1
    gpu_mem_mib: int | None = None  # most that was reserved on one GPU
    gpu_util: float | None = None  # 0..1
    gpu_mem_util: float | None = None  # 0..1
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # resource -> slow-down under a stressor, >= 1
    variant: str = ""  # profiling.key.derive_variant() of the newest run; "" where no one said
    cpus_busy: float | None = None  # need by mean cores busy alone, per GPU: what holds where no curve does
    cpus_busy_bound: bool = False  # as cpu_bound, of cpus_busy
    curve_at: float = 0.0  # when cpu_curve was measured, Unix seconds
    curve_variant: str = ""  # of the run that it was measured on
    curve_doubts: int = 0  # later curves in a row that contradict it
    surface: tuple[SpeedPoint, ...] = ()  # over CPUs and memory, of the same runs as cpu_curve; () where not known
