"""Turns Synergy's throughput matrices (model, cpus, mem_gb, throughput) into ResourceProfiles. Pure.

CSV with a head; `cpus` and `mem_gb` are per GPU, `throughput` is per GPU and relative to the speed at the authors'
share of 3 CPUs and 62.5 GB (Synergy, OSDI'22; its simulator's models/*_1.py). So the curve's rates are relative as
well, and `steps_per_s` stays unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, isfinite

from slurmwrap.model.cpu_curve import GOOD, least_cpus
from slurmwrap.model.measurement import CurvePoint
from slurmwrap.model.resource_profile import IMPORTED, ResourceProfile, SpeedPoint

NEEDED = ("model", "cpus", "mem_gb", "throughput")
CONFIDENCE = 0.25  # as much as one pre-run: measured, though on someone else's machine
_MIB = 1024  # the authors' servers have 500 "GB" of 1024^3

_Grid = dict[tuple[int, float], float]  # (CPUs, GB) -> throughput


def parse_profiles(lines: Iterable[str], *, at: float) -> tuple[ResourceProfile, ...]:
    """One profile per model, in the file's order. `at`: Unix seconds of the import. ValueError names the line."""
    rows = csv.DictReader(lines)
    missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"line 1: there is no column '{missing[0]}'")
    grids: dict[str, _Grid] = {}
    for row in rows:
        model, cpus, memory, rate = _read(row, rows.line_num)
        grids.setdefault(model, {})[cpus, memory] = rate
    return tuple(_profile(model, grid, at) for model, grid in grids.items())


def _read(row: Mapping[str, str | None], line: int) -> tuple[str, int, float, float]:
    model = (row["model"] or "").strip()
    try:
        cpus, memory, rate = float(row["cpus"] or ""), float(row["mem_gb"] or ""), float(row["throughput"] or "")
    except ValueError:
        raise ValueError(f"line {line}: cpus, mem_gb and throughput must be numbers") from None
    if not model or not model.isprintable():
        raise ValueError(f"line {line}: it names no model")
    if not cpus.is_integer() or not 0 < cpus <= 100_000 or not 0 < memory <= 1e9 or not isfinite(rate) or rate < 0:
        raise ValueError(f"line {line}: a number is out of range")
    return model, int(cpus), memory, rate


def _profile(model: str, grid: _Grid, at: float) -> ResourceProfile:
    """CPUs by the curve at the most memory; memory: the least within 5 % of the best at those CPUs."""
    most = max(memory for _, memory in grid)
    curve = tuple(
        CurvePoint(cpus=cpus, steps_per_s=rate)
        for (cpus, memory), rate in sorted(grid.items())
        if memory == most and rate > 0
    )
    least = least_cpus(curve)
    if least is None:
        return ResourceProfile(key=model, source=IMPORTED, measured_at=at)
    return ResourceProfile(
        key=model,
        cpus_per_gpu=float(least),
        mem_mib_per_gpu=_least_memory(sorted((memory, rate) for (cpus, memory), rate in grid.items() if cpus == least)),
        confidence=CONFIDENCE,
        source=IMPORTED,
        measured_at=at,
        cpu_curve=curve,
        surface=_surface(grid),
        cpu_curve_end="allocation",  # no curve_at: one of other machines gives way to the first that is measured here
    )


def _surface(grid: _Grid) -> tuple[SpeedPoint, ...]:
    return tuple(
        SpeedPoint(cpus=cpus, mem_mib=floor(memory * _MIB), speed=rate)
        for (cpus, memory), rate in sorted(grid.items())
        if rate > 0
    )


def _least_memory(rates: Sequence[tuple[float, float]]) -> int:
    best = max(rate for _, rate in rates)
    return ceil(next(memory for memory, rate in rates if rate >= GOOD * best) * _MIB)
