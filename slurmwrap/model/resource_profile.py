"""ResourceProfile and Measurement: what a job needs, how certain that is, and when it was measured."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field

# Names of the shares of a GPU, 0 to 1: busy multiprocessors, and the bandwidth in use of its memory, PCIe and NVLink.
# Hardware counters: by GPM of NVML from Hopper on, else by DCGM (node_hooks/gpu_shares.py).
GPU_SHARES = ("sm_active", "dram", "pcie", "nvlink")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Speed of one running trial on a number of CPUs (whole cores if the machine has hardware threads)."""

    cpus: int
    steps_per_s: float  # median of its rounds
    # Half the difference between slowest and fastest round, relative to the median.
    spread: float = 0.0
    rounds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPoint:
    """Speed of each of several members of an array that ran side by side on one GPU in a pre-run."""

    members: int
    steps_per_s: float  # mean over the members


# Why a measurement of members side by side did not go on to more of them (Measurement.pack_end).
PACK_ENDS = {
    "fit": "more do not fit",
    "slower": "more were slower together",
    "exit": "with more of them one ended",
    "first_exit": "the script ended before its speed was known",
    "steps": "no training steps were counted",
    "slow": "the steps are too long to be measured in the time",
    "time": "the time was up",
    "files": "the user's files could not be protected from several at the same time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoading:
    """What one batch of a job's torch DataLoader costs, in seconds per batch (inject/slurmwrap_loader_times.py).

    One training process has `workers` processes that fetch batches beside it, or fetches them itself (0).
    """

    workers: int
    fetch_s: float  # for which one process fetches a batch
    cpu_s: float  # part of fetch_s on a CPU
    # Part of fetch_s in which it neither ran nor could run: it waited for storage, the network or a lock.
    stall_s: float
    compute_s: float  # from one batch until the program asks for the next
    wait_s: float  # from asking for a batch until it is there
    batch_mib: float  # read with read(2), from caches as well; mapped files are not counted
    batches: int | None = None  # of an epoch in one process: len(loader); None: the loader does not know it
    mount: str = ""  # mount point of most of the files that were read; "": not known
    is_local: bool = False  # it is a disk or the memory of the node, not a network file system


# Values of dataset_source: the loader's length times what a batch reads, or the sizes of files.
BY_LOADER, BY_FILES = "loader", "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayer:
    """A layer of a model: a module that owns parameters, or several of them below one part of the model."""

    name: str  # path in the model
    mib: float  # size of its parameters that get gradients; 0: they belong to an earlier layer (tied weights)
    largest_mib: float = 0.0  # size of the largest of them
    kind: str = ""  # class of the module; "" if there are several
    forward_s: float | None = None  # time of its forward pass in one step of the pre-run; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the trial or an Epilog measured in one run. None: not measured.

    Memory is in MiB, over all processes on one node.
    """

    seconds: float = 0.0
    steps: int | None = None
    steps_per_s: float | None = None
    # Steps of the whole training in one process, where the program shows it in a pre-run.
    total_steps: int | None = None
    # Whether several processes divide these steps among them, because their number comes from the data; None: unknown.
    total_is_shared: bool | None = None
    steps_until_s: float | None = None  # from the start of the run to its last counted step
    cpu_s: float | None = None  # user + system CPU time
    cpus_used: float | None = None  # mean number of busy cores in the measured window
    cpus_allocated: int | None = None
    # Anonymous and shared memory where the kernel reports it, else PSS or RSS.
    mem_peak_mib: int | None = None
    mem_source: str = ""  # "cgroup", "pss" or "rss"
    gpus: int = 1
    gpu_mem_peak_mib: int | None = None
    cpu_curve: tuple[CurvePoint, ...] = ()  # ascending by CPUs; () if it was not measured
    # Why the curve ends where it does: "allocation", "workers", "pinned" or "time"; "" without a curve.
    cpu_curve_end: str = ""
    loader_workers: int | None = None  # number of DataLoader workers seen
    read_mib_per_s: float | None = None  # read by all processes from storage or network file systems
    loading: DataLoading | None = None
    dataset_mib: float | None = None  # read by one epoch of one process that has all data
    dataset_source: str = ""  # BY_LOADER, BY_FILES, or "" if it is not known
    model_mib: float | None = None  # size of the optimizer's parameters
    largest_tensor_mib: float | None = None  # largest of them: skew is largest / model (Tiresias, NSDI'19)
    layers: tuple[ModelLayer, ...] = ()  # in the order in which they run; () if they were not measured
    gpu_util: float | None = None  # 0..1, mean share of time with a kernel running (NVML)
    gpu_mem_util: float | None = None  # 0..1, mean share of time with device memory busy (NVML)
    gpus_unused: int | None = None  # GPUs on which no process was seen during the whole run (NVML)
    gpu_power_w: float | None = None
    pcie_mib_per_s: float | None = None
    gpu_sm_active: float | None = None  # the next four: means of GPU_SHARES over the GPUs
    gpu_dram: float | None = None
    gpu_pcie: float | None = None
    gpu_nvlink: float | None = None
    # Resource -> slow-down under a stressor, at least 1.
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    pack_speeds: tuple[PackPoint, ...] = ()  # ascending by members; () if it was not measured (gsub --pack)
    pack_end: str = ""  # of PACK_ENDS; "" if it was not tried


# A job is sensitive to a resource if a stressor on it made its steps take this many times as long.
_SENSITIVE = 1.05
# A job that uses a smaller share of its GPUs' PCIe does not depend on it.
MOST_PCIE_UNUSED = 0.05


def is_sensitive(sensitivity: Mapping[str, float], resource: str) -> bool:
    """Return whether the pre-run showed that the job is slower when others use `resource`."""
    return sensitivity.get(resource, 1.0) >= _SENSITIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpeed:
    """How fast complete runs of the same work were on so many GPUs: means over its last runs."""

    work: str  # digest of the settings that change the cost of a step and the length of the training
    gpus: int
    nodes: int
    runs: int = 1
    run_s: float = 0.0
    steps_per_s: float | None = None  # of one process (--count-steps); None: not counted
    at: float = 0.0  # end of the newest run, Unix seconds
    # Whether the settings give the length in steps: then the work of a run grows with its GPUs if each keeps its batch.
    by_steps: bool = False


# Value of ResourceProfile.source for a profile that was measured on another site.
IMPORTED = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPoint:
    """Speed at a number of CPUs and an amount of memory per GPU.

    The unit is arbitrary, but the same for all points of one job.
    """

    cpus: int
    mem_mib: int
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceProfile:
    """Expected need of the jobs with one profile key, per GPU. Memory in MiB; None: unknown."""

    key: str  # --resource-profile NAME, or profiling.key.derive_key()
    cpus_per_gpu: float | None = None  # least CPUs within 5 % of the best throughput, or mean number of busy cores
    cpu_bound: bool = False  # it used all CPUs that it had: the need is at least cpus_per_gpu
    mem_mib_per_gpu: int | None = None  # peak anonymous + shared memory
    steps_per_s: float | None = None  # per GPU
    gpu_type: str = ""
    gpus_per_node: int = 0
    runs: int = 0  # number of complete successful runs that were merged
    preruns: int = 0  # number of pre-runs that were merged
    confidence: float = 0.0  # 0..1
    source: str = ""  # "prerun", "epilog", "user" or IMPORTED
    measured_at: float = 0.0  # Unix seconds, of the newest measurement
    cpu_curve: tuple[CurvePoint, ...] = ()  # per GPU, ascending by CPUs; () if it was never measured
    cpu_curve_end: str = ""  # as in Measurement
    loader_workers: int | None = None  # per GPU
    read_mib_per_s: float | None = None  # per GPU, at full speed
    loading: DataLoading | None = None
    dataset_mib: float | None = None  # size of the data that one epoch reads, where it is known
    dataset_source: str = ""  # as in Measurement
    model_mib: float | None = None
    skew: float | None = None  # largest tensor / model size, 0..1
    layers: tuple[ModelLayer, ...] = ()  # as in Measurement, of the newest pre-run that has them
    gpu_mem_mib: int | None = None  # most memory that was reserved on one GPU
    gpu_util: float | None = None  # 0..1
    gpu_mem_util: float | None = None  # 0..1
    gpu_sm_active: float | None = None  # the next four: GPU_SHARES
    gpu_dram: float | None = None
    gpu_pcie: float | None = None
    gpu_nvlink: float | None = None
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # resource -> slow-down under a stressor, at least 1
    variant: str = ""  # profiling.key.derive_variant() of the newest run; "" if unknown
    # Need by mean busy cores alone, per GPU. It applies where no curve is valid.
    cpus_busy: float | None = None
    cpus_busy_bound: bool = False  # as cpu_bound, for cpus_busy
    curve_at: float = 0.0  # when cpu_curve was measured, Unix seconds
    curve_variant: str = ""  # variant of the run on which the curve was measured
    curve_doubts: int = 0  # number of later curves in a row that contradict it
    # Longest time from the start of a run that resumed until it had written a further checkpoint, seconds.
    saved_after_s: float | None = None
    speeds: tuple[RunSpeed, ...] = ()  # newest first; of runs on as many GPUs per node as the key says
    # Points over CPUs and memory, from the same runs as cpu_curve; () if unknown.
    surface: tuple[SpeedPoint, ...] = ()
    # As in Measurement, of the newest pre-run that tried it; dropped when the variant or the GPU type changes.
    pack_speeds: tuple[PackPoint, ...] = ()
    pack_end: str = ""
