"""Turns a measurement into a better ResourceProfile. Pure.

The rules:
- Memory: the highest peak per GPU ever seen, of any run, ended well or not. Sums of RSS are not taken: they count
  shared pages once per process.
- CPUs: mean cores busy per GPU with CPU_MARGIN on top, since a mean hides bursts. Complete runs outrank pre-runs, which
  see a few steps of one GPU; among equals the higher need holds. A run that kept all its CPUs busy tells only that
  the need is at least that (`cpu_bound`); the next run with CPUs to spare settles it.
- Speed: the newest.
- Confidence: 0 without any run; each complete run halves the doubt, each of the first three pre-runs takes a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from slurmwrap.job.measurement import Measurement
from slurmwrap.profiling.profile import ResourceProfile

CPU_MARGIN = 1.25
BOUND_SHARE = 0.9  # of the CPUs it had: busier than this, more of them might have made it faster


@dataclass(frozen=True, slots=True)
class _Need:
    """CPUs per GPU, and whether that is only the least it can be."""

    cpus: float
    bound: bool


def merge(
    old: ResourceProfile | None,
    measurement: Measurement,
    *,
    key: str,
    source: str,
    at: float,
    gpu_type: str,
    gpus_per_node: int,
    complete: bool,
) -> ResourceProfile:
    """`old` with one measurement more. `complete`: a run that ended well, not a pre-run and not a failure.

    `measurement` is of one node with `measurement.gpus` GPUs; `at` in Unix seconds.
    """
    old = old or ResourceProfile(key=key)
    runs = old.runs + complete
    preruns = old.preruns + (source == "prerun")
    need = _merged_need(old, _measured_need(measurement), complete=complete)
    newer = at >= old.measured_at
    return ResourceProfile(
        key=key,
        cpus_per_gpu=round(need.cpus, 2) if need else None,
        cpu_bound=need.bound if need else False,
        mem_mib_per_gpu=_highest(old.mem_mib_per_gpu, _measured_memory(measurement)),
        steps_per_s=measurement.steps_per_s if newer and measurement.steps_per_s else old.steps_per_s,
        gpu_type=gpu_type or old.gpu_type,
        gpus_per_node=gpus_per_node or old.gpus_per_node,
        runs=runs,
        preruns=preruns,
        confidence=round(1 - 0.5**runs * 0.75 ** min(preruns, 3), 3),
        source=source if newer else old.source,
        measured_at=max(at, old.measured_at),
    )


def _measured_memory(measurement: Measurement) -> int | None:
    if measurement.mem_peak_mib is None or measurement.mem_source == "rss":
        return None
    return ceil(measurement.mem_peak_mib / max(1, measurement.gpus))


def _measured_need(measurement: Measurement) -> _Need | None:
    if measurement.cpus_used is None:
        return None
    had = measurement.cpus_allocated
    bound = had is not None and measurement.cpus_used >= BOUND_SHARE * had
    per_gpu = measurement.cpus_used / max(1, measurement.gpus)
    return _Need(cpus=per_gpu if bound else per_gpu * CPU_MARGIN, bound=bound)


def _merged_need(old: ResourceProfile, new: _Need | None, *, complete: bool) -> _Need | None:
    known = None if old.cpus_per_gpu is None else _Need(cpus=old.cpus_per_gpu, bound=old.cpu_bound)
    if known is None or new is None:
        return new or known
    if bool(old.runs) != complete:  # the one of complete runs outranks
        return known if old.runs else new
    if known.bound != new.bound:
        free, least = (new, known) if known.bound else (known, new)
        return least if least.cpus > free.cpus else free
    return max(known, new, key=lambda need: need.cpus)


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
