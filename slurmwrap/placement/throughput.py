"""How fast a job is at so many CPUs and so much memory, from what its profile knows. Pure.

Where both were measured together (`surface`), exactly that. Where only the CPU curve was, a step takes the longer of
what the CPUs and what storage take (Synergy's assumption, OSDI'22), so the speed is the lesser of the curve's and the
memory model's (profiling/memory_model.py). Where storage is unknown too, the curve holds with the memory that was
asked for.

Nothing is guessed upwards but noise. It is levelled by the closest curve that never falls, since more CPUs do not slow
a job down. Between two measured points the straight line is taken where it lies below every concave curve through
the points around it, and only where they are no farther apart than WIDE times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cpu_curve import AGREE, WIDE
from slurmwrap.model.resource_profile import CurvePoint, ResourceProfile, SpeedPoint
from slurmwrap.profiling.memory_model import MemoryModel, find_needed_mib
from slurmwrap.profiling.memory_model import compute_speed as share_at

# Points at most between two that were measured.
BETWEEN = 4
# Of the best speed that memory allows: where the memory axis gets a point.
_PARTS = (0.5, 0.65, 0.8, 0.95)
_ROUNDING = 1e-9


def find_speed(points: Sequence[SpeedPoint], cpus: float, mem_mib: float) -> float:
    """At least so fast: the best point that needs no more of either. 0.0 where no point does.

    Sound without interpolation, since more of a resource never slows a job down.
    """
    within = (p.speed for p in points if p.cpus <= cpus + _ROUNDING and p.mem_mib <= mem_mib + _ROUNDING)
    return max(within, default=0.0)


def list_speed_points(
    profile: ResourceProfile, asked_mib: int, *, gpus: int = 1, storage_mib_per_s: float | None = None
) -> tuple[SpeedPoint, ...]:
    """Points per GPU; () where nothing is known of its CPUs.

    `asked_mib`: memory per GPU that the user asks for; `gpus`: of the job on one node; `storage_mib_per_s`: what
    storage gives the job on one node when nothing is cached, None where no one measured it.
    """
    if profile.surface or not profile.cpu_curve:
        return profile.surface
    curve = fill_curve(level_curve(profile.cpu_curve))
    model = _make_memory_model(profile, gpus, storage_mib_per_s)
    if model is None or share_at(model, model.floor_mib) is None:
        least = min(asked_mib, profile.mem_mib_per_gpu or asked_mib)
        return tuple(SpeedPoint(cpus=one.cpus, mem_mib=least, speed=one.steps_per_s) for one in curve)
    best = max(one.steps_per_s for one in curve)
    return tuple(
        SpeedPoint(cpus=one.cpus, mem_mib=memory, speed=min(one.steps_per_s, best * share))
        for memory, share in _list_memory_points(model, gpus)
        for one in curve
    )


def level_curve(curve: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The non-decreasing curve next to the points (least squares, by rounds): pool adjacent violators.

    What is as good as the best within AGREE counts as the best: two rounds of one point differ by so much.
    """
    blocks: list[tuple[float, int, list[CurvePoint]]] = []
    for point in sorted(curve, key=lambda point: point.cpus):
        mean, rounds, members = point.steps_per_s, point.rounds, [point]
        while blocks and blocks[-1][0] > mean:
            other, more, before = blocks.pop()
            mean, rounds = (mean * rounds + other * more) / (rounds + more), rounds + more
            members = before + members
        blocks.append((mean, rounds, members))
    best = blocks[-1][0] if blocks else 0.0
    return tuple(
        replace(point, steps_per_s=best if mean >= (1 - AGREE) * best else mean)
        for mean, _, members in blocks
        for point in members
    )


def fill_curve(curve: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """A non-decreasing curve with points between the measured ones, where the straight line is no more than the truth.

    A concave curve lies above its chords. Whether it is concave there show the chords on both sides: the one before
    (from no CPUs and no speed, at the first point) is at least as steep, the one behind at most.
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
    """Of the job's part on one node."""
    if profile.mem_mib_per_gpu is None or storage_mib_per_s is None:
        return None
    return MemoryModel(
        peak_mib=float(profile.mem_mib_per_gpu * gpus),
        read_mib_per_s=None if profile.read_mib_per_s is None else profile.read_mib_per_s * gpus,
        dataset_mib=profile.dataset_mib,
        storage_mib_per_s=storage_mib_per_s,
    )


def _list_memory_points(model: MemoryModel, gpus: int) -> list[tuple[int, float]]:
    """MiB per GPU and the share of the best speed there, from the floor to where more memory changes nothing."""
    wanted = {model.floor_mib, *(find_needed_mib(model, within=part) or model.floor_mib for part in _PARTS)}
    per_gpu = sorted({-(-mib // gpus) for mib in wanted})
    return [(mib, share_at(model, mib * gpus) or 0.0) for mib in per_gpu]
