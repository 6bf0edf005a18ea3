"""What a trial gave: records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.verdict import FailedCommand

# Sources of something else than training steps: backward passes, batches, printed numbers, busy samples of the GPU.
SIGNS = frozenset({"backward", "dataloader", "text", "gpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReading:
    """What the injected counter wrote, of the busiest process. Times in seconds of CLOCK_MONOTONIC."""

    count: int = 0
    # Of inject/slurmwrap_counter.py's RANKS, "text" or "gpu"; "" when nothing was counted.
    source: str = ""
    first: float = 0.0
    last: float = 0.0
    gpu_mem_mib: int = 0
    parked: bool = False
    model_mib: float | None = None  # the optimizers' parameters, as far as this process holds them
    largest_tensor_mib: float | None = None  # the largest of them
    world: int = 1  # processes of torch.distributed

    @property
    def exact(self) -> bool:
        """`count` is of training steps; the other sources only show that something like training goes on."""
        return self.source not in SIGNS and self.source != ""

    @property
    def steps(self) -> int:
        """Training steps that were counted; 0 where there are only signs of them."""
        return self.count if self.exact else 0

    @property
    def per_s(self) -> float | None:
        """Steps per second between the first and the last; None below two steps."""
        span = self.last - self.first
        return (self.count - 1) / span if self.count > 1 and span > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgress:
    """A live view of the trial."""

    seconds: float
    steps: int
    last_line: str = ""
    # "profiles" while the CPU curve is measured
    stage: str = ""
    # Of the trial's GPUs, where NVML says it.
    gpu_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How the trial ended. `layer` names what ended it: "step", "exit", "timeout", "no_training" or "supervisor"."""

    layer: str
    # Of the user's script; None when we ended it.
    exit_code: int | None = None
    signal: int | None = None  # that killed the script
    steps: int = 0
    step_source: str = ""
    seconds: float = 0.0
    logs: tuple[LogTail, ...] = ()
    measurement: Measurement = field(default_factory=Measurement)
    crashed: bool = False  # the last Python that started died of an exception, whatever the script's exit code says
    oom_kills: int | None = None  # of the job's cgroup; None when it cannot be read
    refused: tuple[str, ...] = ()  # Slurm commands of the script that were left out
    touched: tuple[str, ...] = ()  # files of the user's that the script would have changed; it was stopped before
    no_training: str = ""  # why no step was waited for any longer
    unproven: str = ""  # why a script that ended with 0 showed nothing
    failed_commands: tuple[FailedCommand, ...] = ()  # of the script, by what its shell printed
    error: str = ""  # why the trial could not be run at all, "" when it could

    @property
    def timed_out(self) -> bool:
        """The time limit ended it."""
        return self.layer == "timeout"
