"""Predict how two jobs that share one GPU slow each other down, from what a pre-run measured of each alone. Pure.

The GPU slows both jobs by `product` x u1 u2 + `overload` x max(0, u1 + u2 - `free`), u being their GPU utilizations:
kernels of two processes take turns, more so when together they ask for more than the GPU has. This is multiplied by
the similarity of their steps, (shorter / longer GPU time of a step) ^ `similarity`: a job with short bursts on the
GPU fits into the gaps of one with long bursts. CPUs, PCIe and memory bandwidth can be used up: two jobs that together
ask for more than all of one run at most at the share of it that there is.

What is unknown about the GPU counts as the worst case, so that jobs are put together on knowledge alone; CPUs, PCIe
and memory bandwidth count only where both jobs' are known. docs/colocation.md has the figures.
"""

from __future__ import annotations

import math

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.resource_profile import ResourceProfile

# A pair is bad if the slower job runs below this speed, relative to alone.
BAD_SPEED = 0.67
# Jobs share a GPU only if together they do so much more than one after the other.
MIN_THROUGHPUT = 1.2
# The share of a GPU's memory that the peaks of its jobs may fill: two peaks seldom fall together, but fragmentation and
# the context of each process come on top.
MEMORY_SHARE = 0.85

# What limits a pair (PairForecast.limit).
GPU, MEMORY_BANDWIDTH, PCIE, CPUS = "GPU", "memory bandwidth", "PCIe", "CPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationModel:
    """Coefficients of the slow-down that two jobs cause each other on the GPU. All are at least 0."""

    product: float
    overload: float
    free: float  # sum of the two utilizations from which on `overload` counts
    similarity: float
    alarm: float  # slow-down (1 / speed - 1) from which on a pair is called bad


# By `bench/colocation.py --fit`, on the 1,388 pairs that Lucid's authors measured (Hu et al., ASPLOS 2023).
MEASURED = ColocationModel(product=0.3719, overload=0.3330, free=1.1, similarity=0.3, alarm=0.1698)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """What a job uses when it has its GPU alone. None, NaN or infinite: unknown."""

    gpu_util: float | None = None  # share of the time in which a kernel ran (NVML's utilization.gpu), 0 to 1
    gpu_s_per_step: float | None = None  # seconds of that time in one step of the program
    gpu_mem_util: float | None = None  # share of the memory bandwidth, or of the time in which it was used, 0 to 1
    gpu_mem_mib: float | None = None  # peak
    pcie: float | None = None  # share of the bandwidth, 0 to 1
    cpus: float | None = None  # busy cores


@dataclass(frozen=True, slots=True, kw_only=True)
class PairForecast:
    """How two jobs are expected to run together on one GPU. Speeds are relative to alone."""

    speed: float  # of each of the two, 0 to 1
    slowdown: float  # 1 / speed - 1
    limit: str  # what slows them most: GPU, MEMORY_BANDWIDTH, PCIE or CPUS
    bad: bool  # the slower one probably runs below BAD_SPEED; decided cautiously, so that most bad pairs are found
    fits: bool | None  # into MEMORY_SHARE of the GPU's memory; None: not known
    unknown: tuple[str, ...]  # fields of GpuDemand that are not known of both jobs

    @property
    def throughput(self) -> float:
        """Return the sum of both speeds: 1 is one job after the other, 2 is no slow-down at all."""
        return 2 * self.speed

    @property
    def worthwhile(self) -> bool:
        """Return whether the two should be put together: all that decides it is known, and none suffers much."""
        known = self.fits is True and "gpu_util" not in self.unknown
        return known and not self.bad and self.throughput >= MIN_THROUGHPUT


def read_demand(profile: ResourceProfile) -> GpuDemand:
    """Return what a job of this profile uses on its one GPU.

    Hardware counters of memory bandwidth and PCIe take precedence: NVML's utilization.memory is the time in which
    memory was used at all. Where there are none, PCIe is unknown.
    """
    util, rate = _at_least_0(profile.gpu_util), _at_least_0(profile.steps_per_s)
    return GpuDemand(
        gpu_util=util,
        gpu_s_per_step=util / rate if util and rate else None,
        gpu_mem_util=profile.gpu_mem_util if profile.gpu_dram is None else profile.gpu_dram,
        pcie=profile.gpu_pcie,
        gpu_mem_mib=profile.gpu_mem_mib,
        cpus=profile.cpus_busy if profile.cpus_busy is not None else profile.cpus_per_gpu,
    )


def predict_pair(
    one: GpuDemand,
    other: GpuDemand,
    *,
    cpus: float | None = None,
    gpu_mem_mib: float | None = None,
    model: ColocationModel = MEASURED,
) -> PairForecast:
    """Return how two jobs run together on a GPU with this memory and, for both of them, this many CPUs.

    The order of the two does not matter. Time slicing is assumed, as without MPS. None: the CPUs or the memory are not
    compared.
    """
    slowdowns = {
        GPU: _slow_on_gpu(one, other, model),
        MEMORY_BANDWIDTH: _slow_if_used_up(one.gpu_mem_util, other.gpu_mem_util, 1.0),
        PCIE: _slow_if_used_up(one.pcie, other.pcie, 1.0),
        CPUS: _slow_if_used_up(one.cpus, other.cpus, cpus),
    }
    limit = max(slowdowns, key=slowdowns.__getitem__)
    slowdown = slowdowns[limit]
    need = _add(one.gpu_mem_mib, other.gpu_mem_mib)
    room = _at_least_0(gpu_mem_mib)
    return PairForecast(
        speed=1 / (1 + slowdown),
        slowdown=slowdown,
        limit=limit,
        bad=slowdowns[GPU] >= model.alarm or 1 / (1 + slowdown) < BAD_SPEED,
        fits=None if need is None or room is None else need <= MEMORY_SHARE * room,
        unknown=_list_unknown(one, other),
    )


def _slow_on_gpu(one: GpuDemand, other: GpuDemand, model: ColocationModel) -> float:
    use, other_use = (_read_util(job.gpu_util) for job in (one, other))
    together = model.product * (use * other_use) + model.overload * max(0.0, use + other_use - model.free)
    return together * math.pow(_compare_steps(one, other), model.similarity)


def _compare_steps(one: GpuDemand, other: GpuDemand) -> float:
    """Return the shorter GPU time of a step over the longer one; 1 where one is unknown."""
    times = [_at_least_0(job.gpu_s_per_step) for job in (one, other)]
    known = [seconds for seconds in times if seconds]
    return min(known) / max(known) if len(known) == 2 else 1.0


def _slow_if_used_up(one: float | None, other: float | None, there_is: float | None) -> float:
    need, most = _add(one, other), _at_least_0(there_is)
    return max(0.0, need / most - 1) if need is not None and most else 0.0


def _add(one: float | None, other: float | None) -> float | None:
    one, other = _at_least_0(one), _at_least_0(other)
    return None if one is None or other is None else one + other


def _at_least_0(value: float | None) -> float | None:
    return max(0.0, value) if value is not None and math.isfinite(value) else None


def _read_util(value: float | None) -> float:
    known = _at_least_0(value)
    return 1.0 if known is None else min(1.0, known)


_FIELDS = ("gpu_util", "gpu_s_per_step", "gpu_mem_util", "gpu_mem_mib", "pcie", "cpus")


def _list_unknown(one: GpuDemand, other: GpuDemand) -> tuple[str, ...]:
    return tuple(name for name in _FIELDS if None in (_at_least_0(getattr(job, name)) for job in (one, other)))
