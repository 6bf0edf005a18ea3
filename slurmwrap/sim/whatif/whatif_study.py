"""Study, the records of a what-if study: what a site's own dump shows, and what the model makes of the same
submissions.

Seconds and GPU-hours; moments are Unix seconds. Shares are 0 to 1. What was not measured is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.sim.failures.study_result import FailureStudy, Interval

# The arms, in the order in which they are shown.
REAL, PLAIN, OURS, ORDERED = "real", "slurm", "slurmwrap", "ordered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The period in which a job must be submitted for its delay and JCT to count. Earlier jobs are replayed only."""

    since: float
    until: float
    # Whether the begin was guessed, because it was not given.
    guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """A number of equal nodes."""

    nodes: int
    gpus: int
    cpus: int
    mem_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster on which the dump was replayed."""

    kinds: tuple[NodeClass, ...]  # the most GPUs first
    # "nodes": scontrol's list. "options": given on the command line. "dump": guessed from what jobs held.
    source: str

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.kinds)

    @property
    def gpus(self) -> int:
        return sum(kind.nodes * kind.gpus for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySpread:
    """Mean and percentiles in seconds."""

    mean: float
    median: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays of one class of jobs in one arm. `..._within`: the share of jobs that waited no longer than each of
    `GRID_S`.
    """

    # "1 GPU", "2–4 GPUs", …
    label: str
    jobs: int
    queueing: DelaySpread
    jct: DelaySpread
    queueing_within: tuple[float, ...]
    jct_within: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """Locality of the jobs of one class with more than one GPU, in one arm."""

    label: str
    jobs: int
    fewest: int  # jobs that ran on as few nodes as hold their GPUs
    nodes: float  # mean number of nodes
    fewest_nodes: float  # mean of the fewest possible


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWorld:
    """One arm: what really happened, the model of plain Slurm, or the model of slurmwrap."""

    name: str  # REAL, PLAIN, OURS, ORDERED
    all: Delays
    classes: tuple[Delays, ...]
    locality: tuple[Locality, ...]
    gpu_utilisation: float  # over the window
    # Share of the GPUs held in each of the equal parts of the window.
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayFit:
    """How far the model's delays of one class of GPUs differ from what happened."""

    label: str
    word: str
    gap: float
    mean_real_s: float
    mean_model_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far the model of plain Slurm differs from what happened.

    `gap`: the largest difference between the two distributions of queueing delay (Kolmogorov and Smirnov's distance, 0
    to 1). A model is "close" only if it is close for jobs of each size: if large jobs wait half as long as they did,
    the overall figures may not show it.
    """

    word: str  # "close", "fair", "far"
    gap: float
    # The class of GPUs that fits worst; None if each has too few jobs.
    worst: DelayFit | None
    mean_real_s: float
    mean_model_s: float
    utilisation_real: float
    utilisation_model: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Runs that ended in one state without a result, and the GPU-hours they had held by then."""

    state: str  # "FAILED", "TIMEOUT", …
    runs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLoss:
    """GPU-hours of one user's runs that ended without a result."""

    user: str
    # Number of the user's runs that ended without a result.
    runs: int
    gpu_hours: float
    # Share of all GPU-hours that the user held.
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """GPU-hours held by runs without a result."""

    gpu_hours: float  # held by all runs in the window
    lost: tuple[Lost, ...]  # most first
    users: tuple[UserLoss, ...]  # most first

    @property
    def lost_gpu_hours(self) -> float:
        return sum(one.gpu_hours for one in self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The whole report as numbers."""

    window: Window
    shape: Shape
    rows: int  # jobs of the dump
    jobs: int  # measured: with GPUs, submitted in the window, ended
    cpu_jobs: int  # without GPUs: neither replayed nor measured
    users: int
    profiled: int  # measured jobs whose profile is known
    grid_s: tuple[float, ...]  # where the distributions are sampled
    arms: tuple[StudyWorld, ...]  # REAL, PLAIN, OURS, ORDERED
    # Mean delay under slurmwrap less that under plain Slurm, both in the model; None: too few days for an interval.
    queueing_change_s: Interval | None
    # The same for the JCT.
    jct_change_s: Interval | None
    # The same for the JCT with the rules `order` and `limit` as well.
    ordered_jct_change_s: Interval | None
    trust: Trust
    waste: Waste
    # What slurmwrap would have done about the failures in the dump.
    failures: FailureStudy
    # What was guessed or left out, as text.
    remarks: tuple[str, ...] = field(default=())

    def arm(self, name: str) -> StudyWorld:
        return next(arm for arm in self.arms if arm.name == name)
