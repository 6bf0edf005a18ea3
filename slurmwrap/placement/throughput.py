"""Estimate the speed of a job by CPUs and memory, from its resource profile. Pure.

If both were measured together (`surface`), exactly these points are used. If only the CPU curve was, a step takes the
longer of what the CPUs and what storage take (Synergy's assumption, OSDI'22), so the speed is the lesser of the curve's
and the memory model's (profiling/memory_model.py). If storage is unknown too, the curve holds with the memory that the
user asked for. A curve that was measured while the loader waited for storage is lower than the CPUs allow, so its flat
top is raised to what they do without the waiting (profiling/storage_model.py).

The estimate is never optimistic, except for noise: noise is levelled by the closest curve that never decreases, since
more CPUs do not slow a job down. Between two measured points the straight line is used only where it lies below every
concave curve through the points around it, and only where the numbers of CPUs differ by at most a factor of WIDE.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cpu_sweep import AGREE, GOOD, WIDE, pool_rates
from slurmwrap.model.resource_profile import CurvePoint, DataLoading, ResourceProfile, SpeedPoint
from slurmwrap.profiling.memory_model import MemoryModel, find_needed_mib
from slurmwrap.profiling.memory_model import compute_speed as share_at
from slurmwrap.profiling.storage_model import (
    compute_batch_s,
    compute_full_read_mib_per_s,
    compute_storage_mib_per_s,
)

# Greatest number of points between two measured ones.
BETWEEN = 4
# Parts of the best speed for which the memory axis gets a point.
_PARTS = (0.5, 0.65, 0.8, 0.95)
_ROUNDING = 1e-9


def find_speed(points: Sequence[SpeedPoint], cpus: float, mem_mib: float) -> float:
    """Return a speed that the job reaches at least: the best of the points that need no more of either; 0.0 if none
    does.

    Correct without interpolation, since more of a resource never slows a job down.
    """
    within = (p.speed for p in points if p.cpus <= cpus + _ROUNDING and p.mem_mib <= mem_mib + _ROUNDING)
    return max(within, default=0.0)


def list_speed_points(
    profile: ResourceProfile, asked_mib: int, *, gpus: int = 1, storage_mib_per_s: float | None = None
) -> tuple[SpeedPoint, ...]:
    """Return the points per GPU; () if nothing is known of the job's CPUs.

    `asked_mib`: memory per GPU that the user asks for; `gpus`: GPUs of the job on one node; `storage_mib_per_s`: what
    storage gives the job on one node when nothing is cached, None for what the profile's loader measured.
    """
    if profile.surface or not profile.cpu_curve:
        return profile.surface
    curve = fill_curve(level_curve(profile.cpu_curve))
    model = _make_memory_model(profile, gpus, storage_mib_per_s)
    if model is None or share_at(model, model.floor_mib) is None:
        least = min(asked_mib, profile.mem_mib_per_gpu or asked_mib)
        return tuple(SpeedPoint(cpus=one.cpus, mem_mib=least, speed=one.steps_per_s) for one in curve)
    best = max(one.steps_per_s for one in curve)
    speeds = {one.cpus: _remove_stalls(one, best, profile.loading) for one in curve}
    full = max(speeds.values())
    return tuple(
        SpeedPoint(cpus=one.cpus, mem_mib=memory, speed=min(speeds[one.cpus], full * share))
        for memory, share in _list_memory_points(model, gpus)
        for one in curve
    )


def _remove_stalls(point: CurvePoint, best: float, loading: DataLoading | None) -> float:
    """Return the speed of a point of the CPU curve if the loader did not wait for storage."""
    if loading is None or point.steps_per_s < GOOD * best:
        return point.steps_per_s
    stalled, free = (compute_batch_s(loading, stall_s, cpus=point.cpus) for stall_s in (loading.stall_s, 0.0))
    return point.steps_per_s * stalled / free if free > 0 else point.steps_per_s


def level_curve(curve: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Return the closest non-decreasing curve (pool_rates).

    A speed within AGREE of the best counts as the best, because two measurements of one point differ by that much.
    """
    blocks = pool_rates(curve)
    best = blocks[-1][0] if blocks else 0.0
    return tuple(
        replace(point, steps_per_s=best if mean >= (1 - AGREE) * best else mean)
        for mean, _, members in blocks
        for point in members
    )


def fill_curve(curve: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Return a non-decreasing curve with points between the measured ones, where the straight line is no optimistic
    estimate.

    A concave curve lies above its chords. The chords on both sides show whether it is concave there: the one before
    (from no CPUs and no speed, at the first point) is at least as steep, the one after at most.
    """
    ends = [(0, 0.0), *((point.cpus, point.steps_per_s) for point in curve)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(ends)]
    points = list(curve[:1])
    for number, (low, high) in enumerate(pairwise(curve), start=1):
        concave = slopes[number - 1] >= slopes[number] and (
            number + 1 == len(slopes) or slopes[number] >= slopes[number + 1]
        )
        if concave and slopes[number] > 0 and high.cpus <= WIDE * low.cpus:
            points += [
                CurvePoint(cpus=cpus, steps_per_s=low.steps_per_s + slopes[number] * (cpus - low.cpus))
                for cpus in _list_points_between(low.cpus, high.cpus)
            ]
        points.append(high)
    return tuple(points)


def _list_points_between(low: int, high: int) -> list[int]:
    count = min(BETWEEN, high - low - 1)
    return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low, high})


def _make_memory_model(profile: ResourceProfile, gpus: int, storage_mib_per_s: float | None) -> MemoryModel | None:
    """Return the memory model of the job's part on one node; None if memory or storage was not measured."""
    loading = profile.loading
    if storage_mib_per_s is None and (measured := compute_storage_mib_per_s(loading)) is not None:
        storage_mib_per_s = measured * gpus
    if profile.mem_mib_per_gpu is None or storage_mib_per_s is None:
        return None
    read = profile.read_mib_per_s
    if loading is not None and loading.batch_mib:
        read = compute_full_read_mib_per_s(loading)
    return MemoryModel(
        peak_mib=float(profile.mem_mib_per_gpu * gpus),
        read_mib_per_s=None if read is None else read * gpus,
        dataset_mib=profile.dataset_mib,
        storage_mib_per_s=storage_mib_per_s,
    )


def _list_memory_points(model: MemoryModel, gpus: int) -> list[tuple[int, float]]:
    """Return MiB per GPU and the part of the best speed there, from the least memory to where more changes nothing."""
    wanted = {model.floor_mib, *(find_needed_mib(model, within=part) or model.floor_mib for part in _PARTS)}
    per_gpu = sorted({-(-mib // gpus) for mib in wanted})
    return [(mib, share_at(model, mib * gpus) or 0.0) for mib in per_gpu]
