"""What is seen of a job while it runs: findings of the rule `early`, use of its GPUs, and its loss curve."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.evidence import RunKey

# Values of EarlyFinding.kind.
DIVERGED = "diverged"  # the loss is NaN or infinite
PARTLY_DEAD = "partly_dead"  # one rank has ended with an error while the others wait for it
STUCK = "stuck"  # no step for much longer than usual, and no GPU is in use
IDLE = "idle"  # allocated GPUs on which no process runs
WILL_NOT_FINISH = "will_not_finish"  # the time limit comes before the predicted end, and no checkpoint was seen
FINDING_KINDS = (DIVERGED, PARTLY_DEAD, STUCK, IDLE, WILL_NOT_FINISH)
FINDING_TITLES = {
    DIVERGED: "diverged",
    PARTLY_DEAD: "partly dead",
    STUCK: "stuck",
    IDLE: "idle GPUs",
    WILL_NOT_FINISH: "will not finish",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyFinding:
    """One finding about a running job. A run has at most one of each kind."""

    attempt: RunKey
    kind: str  # one of FINDING_KINDS
    at: float  # when it was found, Unix seconds
    n: int  # how many times the evidence was seen: lines, ranks, seconds without a step, GPUs
    evidence: str  # the deciding line or figures, on one line
    uid: int
    address: str  # "77_2", "81"
    mode: str  # mode of the rule when it was found: observe, advise, act
    action: str = ""  # "" (nothing was done), "cancel", "signal" or "requeue"
    notified: bool = False  # a message about it, or about another task of its array, was sent
    gone_at: float | None = None  # when the evidence was gone although the job still ran, Unix seconds; None: never


# GpuUse.gpu of the row about the job's CPUs and memory on a node, which is no GPU: `use_pct` is 100 for each busy CPU,
# `mem_mib` anonymous and shared memory, `processes` unknown.
HOST = -1
# Reasons of NVML for a lowered clock that are not a limit which an administrator set.
CLOCK_REASONS = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Samples of one GPU of a job, oldest first, each for `interval_s` from `began` on. NaN-free; -1 where unknown.

    `use_pct` are means; `mem_mib` and `processes` are the highest values, so that a 0 means none in all of the
    interval. The last interval may not be over: `covered_s` says how much the samples cover.
    """

    attempt: RunKey
    node: str
    gpu: int  # device minor, as Slurm numbers it (SLURM_JOB_GPUS); or HOST
    began: float  # Unix seconds
    interval_s: float  # doubled when there are more than 256 samples
    use_pct: tuple[float, ...]  # 0 to 100
    mem_mib: tuple[int, ...]
    processes: tuple[int, ...]  # processes that compute on the GPU
    mem_total_mib: int = 0  # 0: unknown
    energy_j: float | None = None  # since `began`, all of the GPU; None where NVML does not count it
    mig: str = ""  # UUID of the MIG instance; "" for a whole GPU
    shares: Mapping[str, float] = field(default_factory=dict)  # resource_profile.GPU_SHARES -> mean, 0 to 1
    share_samples: int = 0  # number of samples in these means
    # What held its clock down: minutes of use ("busy"), those in which it was slowed down ("slowed") and by each of
    # CLOCK_REASONS, mean SM clock of the largest while busy ("sm"), seconds by heat ("thermal_s"). {}: unknown.
    clocks: Mapping[str, float] = field(default_factory=dict)
    covered_s: float = 0.0  # seconds from `began` to the end of the last sample; 0: all intervals are over
    # The last 90 samples as they were taken, one a minute, once `interval_s` is longer than that; () before.
    latest_use_pct: tuple[float, ...] = ()
    latest_processes: tuple[int, ...] = ()

    @property
    def ends_at(self) -> float:
        """Return the end of the last sample, Unix seconds."""
        return self.began + (self.covered_s or self.interval_s * len(self.use_pct))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSamples:
    """Samples `first`, `first` + 1, ... of one GPU, as a node's sampler reports them. -1 where unknown."""

    node: str
    gpu: int
    mig: str
    began: float  # start of sample 0, Unix seconds
    interval_s: float
    first: int
    use_pct: tuple[float, ...]
    mem_mib: tuple[int, ...]
    processes: tuple[int, ...]
    mem_total_mib: int = 0
    energy_j: float | None = None  # since `began`
    shares: Mapping[str, float] = field(default_factory=dict)  # means since `began`
    share_samples: int = 0
    clocks: Mapping[str, float] = field(default_factory=dict)  # as in GpuUse, since `began`


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """One value of a training's loss. What the output does not say is None."""

    at_s: float  # seconds since the start of the run; interpolated where the output has no clock
    step: float | None = None
    epoch: float | None = None  # may be fractional
    loss: float | None = None  # training loss
    validation_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The loss curve of one run: at most 256 points, in order of `at_s`."""

    attempt: RunKey
    source: str  # name of the format that was read: "transformers", "keras", "counter", ...
    points: tuple[LossPoint, ...]
    uid: int = -1
    end_time: int | None = None  # end of the run, Unix seconds; None while it runs
    # The next ones: by profiling/convergence.py; None: unknown, or too few points.

    lowest: float | None = None  # lowest smoothed loss
    time_share: float | None = None  # of the run's time, until the loss came within 0.1 % of the lowest one
    epoch_share: float | None = None  # of its epochs or steps, until the lowest loss


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLosses:
    """The losses that the step counter of a run has recorded (gsub --count-steps): the user's claim."""

    points: tuple[LossPoint, ...] = ()
    taken: int = 0  # losses that were read
    bad: int = 0  # NaN or infinite ones among them
    bad_at_end: int = 0  # those after the last finite one
