"""Results of a trial, the one-GPU run of a pre-run: StepReading, TrialProgress, TrialResult."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.resource_profile import Measurement, ModelLayer
from slurmwrap.model.verdict import FailedCommand

# Sources that count something other than training steps: backward passes, batches, printed numbers, GPU activity.
SIGNS = frozenset({"backward", "dataloader", "text", "gpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReading:
    """Steps that the injected counter wrote, of the process with the most. Times in seconds of CLOCK_MONOTONIC."""

    count: int = 0
    # One of RANKS in inject/slurmwrap_counter.py, "text" or "gpu"; "" if nothing was counted.
    source: str = ""
    first: float = 0.0
    last: float = 0.0
    gpu_mem_mib: int = 0
    parked: bool = False
    model_mib: float | None = None  # size of the optimizers' parameters, as far as this process holds them
    largest_tensor_mib: float | None = None  # size of the largest of them
    layers: tuple[ModelLayer, ...] = ()
    world: int = 1  # number of processes of torch.distributed
    # Measurement.total_steps and total_is_shared: steps of the whole training.
    total: int | None = None
    total_is_shared: bool | None = None

    @property
    def exact(self) -> bool:
        """Return True if `count` counts training steps; other sources only show some sign of training."""
        return self.source not in SIGNS and self.source != ""

    @property
    def steps(self) -> int:
        """Return the number of counted training steps; 0 if there are only indirect signs of training."""
        return self.count if self.exact else 0

    @property
    def per_s(self) -> float | None:
        """Return the steps per second between the first and the last step; None with fewer than two steps."""
        span = self.last - self.first
        return (self.count - 1) / span if self.count > 1 and span > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgress:
    """State of a trial that is still running, for display."""

    seconds: float
    steps: int
    last_line: str = ""
    # "profiles" while the CPU curve is measured, "rehearses" after the steps that count as a pass.
    stage: str = ""
    gpu_percent: float | None = None  # mean utilisation of the trial's GPUs, if NVML reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The shortened rest of the program, which a trial runs after the steps that count as a pass."""

    # Loaders, loops and epochs of a framework that were ended early, in total.
    endings: int = 0
    # Whether the first step of the next epoch was made.
    next_epoch: bool = False
    # Hosts to which a connection was refused.
    refused: tuple[str, ...] = ()
    # What ended the rehearsal before the script: "time", "loop" (a loop that cannot be ended), "no_activity", "disk".
    stopped_by: str = ""
    # Whether the script was started a second time, as Slurm does after a requeue.
    resumed: bool = False
    # How many blocks that run only every N iterations were entered.
    intervals: int = 0
    # Files that the trial wrote into the overlay, by their paths for the user; at most some thousand.
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCall:
    """A call of exit with a code other than 0 in a program of the trial, or an `exit` of bash."""

    file: str
    line: int
    in_bash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How the trial ended. `layer` names what ended it: "step", "exit", "timeout", "no_training", "no_activity" or
    "supervisor".
    """

    layer: str
    exit_code: int | None = None  # exit code of the user's script; None if slurmwrap ended it
    signal: int | None = None  # signal that killed the script
    steps: int = 0
    step_source: str = ""
    seconds: float = 0.0
    logs: tuple[LogTail, ...] = ()
    measurement: Measurement = field(default_factory=Measurement)
    # The last Python process that started ended with an exception, whatever the exit code of the script is.
    crashed: bool = False
    exits: tuple[ExitCall, ...] = ()  # calls of exit, in order
    oom_kills: int | None = None  # OOM kills in the job's cgroup; None if they cannot be read
    gpu_shared: bool = False  # a process of someone else was on the trial's GPU
    refused: tuple[str, ...] = ()  # Slurm commands of the script that the shims did not carry out
    # Files of the user that the script would have changed; the trial was stopped before.
    touched: tuple[str, ...] = ()
    no_training: str = ""  # why no training step is expected any more
    last_line: str = ""  # the last line of the output when it stood still
    unproven: str = ""  # why a script that ended with exit code 0 proved nothing
    uncounted: str = ""  # why the steps of a program that the script starts cannot be counted
    failed_commands: tuple[FailedCommand, ...] = ()  # commands of the script that failed, as its shell reported them
    error: str = ""  # why the trial could not be run at all, "" if it could
    rehearsal: Rehearsal | None = None  # None: the trial did not go beyond its steps

    @property
    def timed_out(self) -> bool:
        """Return True if the time limit ended the trial."""
        return self.layer == "timeout"
