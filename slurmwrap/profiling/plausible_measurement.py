"""What of a measurement can be true. Pure. A pre-run's measurement is its user's claim, and a site keeps it.

A rate of 1e-320 or 2**63 MiB would not harm its user alone: no one could merge it, or read the database again.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import fields, replace
from slurmwrap.model.measurement import CurvePoint, Measurement
from slurmwrap.model.resource_profile import SpeedPoint

MOST = 1e12  # seconds, steps, MiB, watts; a PiB of memory is 1e9 MiB
MOST_GPUS, MOST_CPUS = 1024, 65536  # of one node
MOST_POINTS, MOST_ROUNDS = 256, 1000
SLOWEST, FASTEST = 1e-9, 1e9  # steps per second
_SHARES = ("gpu_util", "gpu_mem_util")
_MEMORY = ("", "cgroup", "pss", "rss")
_ENDS = ("", "allocation", "workers", "pinned", "time")
_RESOURCES = 16  # kinds of stressors


def drop_implausible_values(measurement: Measurement) -> Measurement:
    """`measurement` without what no run can have measured; the very same where nothing is wrong with it."""
    changed = {name: None for name in _NUMBERS if not _is_amount(getattr(measurement, name), _get_upper_bound(name))}
    rate = measurement.steps_per_s
    if rate is not None and not SLOWEST <= rate <= FASTEST:
        changed["steps_per_s"] = None
    points = _drop_duplicate_points(measurement.cpu_curve)
    sound = replace(
        measurement,
        **changed,
        seconds=measurement.seconds if _is_amount(measurement.seconds, MOST) else 0.0,
        gpus=measurement.gpus if 1 <= measurement.gpus <= MOST_GPUS else 1,
        mem_source=measurement.mem_source if measurement.mem_source in _MEMORY else "",
        cpu_curve=points,
        cpu_curve_end=measurement.cpu_curve_end if points and measurement.cpu_curve_end in _ENDS else "",
        sensitivity=_select_plausible_sensitivity(measurement.sensitivity),
    )
    return measurement if sound == measurement else sound


# All that may be None: numbers that are 0 or more.
_NUMBERS = tuple(f.name for f in fields(Measurement) if f.default is None)


def _get_upper_bound(name: str) -> float:
    if name in _SHARES:
        return 1.0
    return MOST_CPUS if name in ("cpus_used", "cpus_allocated", "loader_workers") else MOST


def _is_amount(value: float | None, most: float) -> bool:
    return value is None or 0 <= value <= most


def _drop_duplicate_points(curve: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    """One point per count of CPUs."""
    sound = {
        point.cpus: point
        for point in curve[:MOST_POINTS]
        if 0 < point.cpus <= MOST_CPUS
        and SLOWEST <= point.steps_per_s <= FASTEST
        and 0 <= point.spread <= MOST
        and 0 < point.rounds <= MOST_ROUNDS
    }
    return tuple(sound.values())


def is_plausible_surface(surface: tuple[SpeedPoint, ...]) -> bool:
    """Whether every point can have been measured, and there are no more than someone would measure."""
    return len(surface) <= MOST_POINTS and all(
        0 < point.cpus <= MOST_CPUS and 0 < point.mem_mib <= MOST and SLOWEST <= point.speed <= FASTEST
        for point in surface
    )


def _select_plausible_sensitivity(told: Mapping[str, float]) -> Mapping[str, float]:
    kept = [(name, slower) for name, slower in told.items() if name.isidentifier() and 0 <= slower <= MOST]
    return {name: slower for name, slower in kept if len(name) <= 32} if len(kept) <= _RESOURCES else {}
