"""What the trial's GPUs do, by NVML, without any risk of hanging with the driver: a child asks, this only reads.

The child must be started before the trial's tree is distinguished from other processes (tree.Tree): it is none of the
trial's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.trial.helper_process import HelperProcess, end, make_python_command

CONTROL = Path("/dev/nvidiactl")
PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment of CLOCK_MONOTONIC. Shares of time 0..1; None: not supported."""

    at: float
    sm: float | None = None
    mem: float | None = None
    mem_mib: float | None = None
    power_w: float | None = None
    pcie_mib_per_s: float | None = None
    # Of programs that compute on it; () as well where the driver names none.
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanGpuUse:
    """Means over samples and GPUs; memory is the most that one GPU held."""

    util: float | None = None
    mem_util: float | None = None
    power_w: float | None = None
    pcie_mib_per_s: float | None = None
    mem_peak_mib: int | None = None


class GpuSampler:
    """Samples since the start; all empty where there is no driver."""

    def __init__(self, environ: Mapping[str, str], *, control: Path = CONTROL) -> None:
        self.samples: list[GpuSample] = []
        # PCI addresses as in /sys/bus/pci/devices.
        self.buses: tuple[str, ...] = ()
        self._child: HelperProcess | None = None
        if control.exists():
            with suppress(OSError):
                program = Path(__file__).with_name("gpu_sampler_child.py")
                self._child = HelperProcess(
                    make_python_command(str(program), find_job_gpus(environ), str(PERIOD_S), str(os.getpid()))
                )

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> None:
        """Takes in what the child has said by now."""
        for line in self._child.lines() if self._child is not None else ():
            with suppress(ValueError, TypeError, KeyError):
                said = json.loads(line)
                self.buses = tuple(said.get("buses", self.buses))
                self.samples += [_sample(said["at"], gpu) for gpu in said.get("gpus", ())]

    def percent(self) -> float | None:
        """Mean use of the GPUs at the last look."""
        now = [s.sm for s in self.samples if s.at == self.samples[-1].at and s.sm is not None]
        return 100 * sum(now) / len(now) if now else None

    def close(self) -> None:
        """Ends the child; one that is stuck in the driver is left behind."""
        self.look()
        if self._child is not None:
            end([self._child])
            self._child = None


def find_job_gpus(environ: Mapping[str, str]) -> str:
    """The job's GPUs: by Slurm, else by what CUDA is given; "" for all."""
    return environ.get("SLURM_JOB_GPUS") or environ.get("SLURM_STEP_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")


def use_between(samples: Iterable[GpuSample], first: float, last: float) -> MeanGpuUse:
    """The sum of the samples; means are of those between `first` and `last`, the memory's peak of all."""
    every = list(samples)
    inside = [sample for sample in every if first <= sample.at <= last]
    held = [sample.mem_mib for sample in every if sample.mem_mib is not None]
    return MeanGpuUse(
        util=_compute_mean(sample.sm for sample in inside),
        mem_util=_compute_mean(sample.mem for sample in inside),
        power_w=_compute_mean(sample.power_w for sample in inside),
        pcie_mib_per_s=_compute_mean(sample.pcie_mib_per_s for sample in inside),
        mem_peak_mib=int(max(held)) if held else None,
    )


def _sample(at: float, gpu: Mapping[str, Any]) -> GpuSample:
    return GpuSample(
        at=float(at),
        sm=_scale_value(gpu["sm"], 100),
        mem=_scale_value(gpu["mem"], 100),
        mem_mib=_scale_value(gpu["mib"], 1),
        power_w=_scale_value(gpu["w"], 1),
        pcie_mib_per_s=_scale_value(gpu["pcie"], 1024),
        pids=tuple(map(int, gpu.get("pids", ()))),
    )


def _scale_value(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _compute_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None
