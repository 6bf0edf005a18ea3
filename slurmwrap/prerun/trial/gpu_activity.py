"""Whether a trial has its GPU at work, by NVML: the weakest sign that training goes on. Pure.

It says "started", never how many steps: a process of the trial is on the GPU, and its SMs were busy in five looks. The
looks are handed in (gpu_sampler.py takes them, about one a second).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial.gpu_sampler import GpuSample

BUSY_LOOKS = 5


def read_gpu_activity(samples: Iterable[GpuSample], pids: Collection[int]) -> StepReading:
    """Source "gpu" with the number of looks at which a GPU with a trial's process was busy; empty below BUSY_LOOKS.

    `pids`: every process that the trial has had. A driver that names no processes (MIG, a container's own pids) is
    believed as it is, since Slurm gave these GPUs to no one else.
    """
    times = sorted({one.at for one in samples if (one.sm or 0) > 0 and _is_own(one, pids)})
    if len(times) < BUSY_LOOKS:
        return StepReading()
    return StepReading(count=len(times), source="gpu", first=times[0], last=times[-1])


def _is_own(sample: GpuSample, pids: Collection[int]) -> bool:
    return not sample.pids or not set(sample.pids).isdisjoint(pids)
