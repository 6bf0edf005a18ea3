"""Sample the trial's GPUs by NVML. A child process calls the driver, so that a hanging driver does not block the trial.

The child must be started before the ProcessTree is created, so that it does not count as a process of the trial.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.resource_profile import GPU_SHARES
from slurmwrap.prerun.trial.helper_process import HelperProcess, end, make_python_command

CONTROL = Path("/dev/nvidiactl")
PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment of CLOCK_MONOTONIC. `sm` and `mem` are shares of time, 0 to 1; None: not supported."""

    at: float
    sm: float | None = None
    mem: float | None = None
    mem_mib: float | None = None
    power_w: float | None = None
    pcie_mib_per_s: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)  # model.resource_profile.GPU_SHARES -> 0 to 1
    # Pids of programs that compute on the GPU; also () if the driver does not report them.
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanGpuUse:
    """Means over samples and GPUs. `mem_peak_mib` is the maximum of any GPU."""

    util: float | None = None
    mem_util: float | None = None
    power_w: float | None = None
    pcie_mib_per_s: float | None = None
    mem_peak_mib: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)  # of the names that are known


class GpuSampler:
    """Collects GPU samples from its child process. There are none if there is no driver."""

    def __init__(self, environ: Mapping[str, str], *, control: Path = CONTROL, dcgmi: str = "") -> None:
        self.samples: list[GpuSample] = []
        # PCI addresses of the job's GPUs, as in /sys/bus/pci/devices.
        self.buses: tuple[str, ...] = ()
        self._child: HelperProcess | None = None
        if control.exists():
            with suppress(OSError):
                program = Path(__file__).with_name("gpu_sampler_child.py")
                self._child = HelperProcess(
                    make_python_command(str(program), find_job_gpus(environ), str(PERIOD_S), str(os.getpid()), dcgmi)
                )

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> None:
        """Read the samples that the child has printed since the last call."""
        for line in self._child.lines() if self._child is not None else ():
            with suppress(ValueError, TypeError, KeyError):
                record = json.loads(line)
                self.buses = tuple(record.get("buses", self.buses))
                self.samples += [_sample(record["at"], gpu) for gpu in record.get("gpus", ())]

    def percent(self) -> float | None:
        """Return the mean use of the GPUs in the last sample, in percent; None if it is not known."""
        now = [s.sm for s in self.samples if s.at == self.samples[-1].at and s.sm is not None]
        return 100 * sum(now) / len(now) if now else None

    def close(self) -> None:
        """Kill the child. A child that is stuck in the driver is left behind."""
        self.look()
        if self._child is not None:
            end([self._child])
            self._child = None


def find_job_gpus(environ: Mapping[str, str]) -> str:
    """Return the job's GPUs by Slurm's variables, else by CUDA_VISIBLE_DEVICES; "" for all."""
    return environ.get("SLURM_JOB_GPUS") or environ.get("SLURM_STEP_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")


def summarize_gpu_use(samples: Iterable[GpuSample], first: float, last: float) -> MeanGpuUse:
    """Return the means of the samples between `first` and `last`, and the peak memory of all samples."""
    every = list(samples)
    inside = [sample for sample in every if first <= sample.at <= last]
    held = [sample.mem_mib for sample in every if sample.mem_mib is not None]
    return MeanGpuUse(
        util=_compute_mean(sample.sm for sample in inside),
        mem_util=_compute_mean(sample.mem for sample in inside),
        power_w=_compute_mean(sample.power_w for sample in inside),
        pcie_mib_per_s=_compute_mean(sample.pcie_mib_per_s for sample in inside),
        mem_peak_mib=int(max(held)) if held else None,
        shares={
            name: mean
            for name in GPU_SHARES
            if (mean := _compute_mean(sample.shares.get(name) for sample in inside)) is not None
        },
    )


def _sample(at: float, gpu: Mapping[str, Any]) -> GpuSample:
    return GpuSample(
        at=float(at),
        sm=_scale_value(gpu["sm"], 100),
        mem=_scale_value(gpu["mem"], 100),
        mem_mib=_scale_value(gpu["mib"], 1),
        power_w=_scale_value(gpu["w"], 1),
        pcie_mib_per_s=_scale_value(gpu["pcie"], 1024),
        shares={name: float(share) for name, share in gpu.get("shares", {}).items()},
        pids=tuple(map(int, gpu.get("pids", ()))),
    )


def _scale_value(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _compute_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None
