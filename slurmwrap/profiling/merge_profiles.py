"""Turns a measurement into a better ResourceProfile. Pure.

The rules (docs/profile.md gives the reasons):
- Memory: the highest peak per GPU ever seen, of any run, ended well or not; what was imported is none. Sums of RSS are
  not taken: they count shared pages once per process.
- CPUs by a curve: the least that are within 5 % of the best. While the curve holds it outranks the mean.
- CPUs by mean cores busy per GPU, with CPU_MARGIN on top, since a mean hides bursts. Complete runs outrank pre-runs,
  which see a few steps of one GPU; among equals the higher need holds. A run that kept all its CPUs busy shows only
  that the need is at least that (`cpu_bound`); the next run with CPUs to spare settles it.
- A new curve replaces one that agrees with it (the least CPUs differ by one at most), one that is older than
  HALF_LIFE_S and one of another variant. Otherwise it is an outlier until a second one in a row contradicts the old
  curve too.
- A curve of another variant, one in doubt, and one older than HALF_LIFE_S only raise what the mean says.
- Speed, reading, GPU use: the newest; a pre-run does not replace what complete runs measured. Model, skew, workers and
  sensitivity: the newest that knows them.
- A changed job (another variant, another GPU type): of its runs and of its pre-runs one counts on, so the confidence
  falls, and memory is not taken away before the changed job has been seen to do with less.
- Confidence: 0 without any run; each complete run halves the doubt, each of the first three pre-runs takes a quarter;
  half of it while the curve is in doubt. Asked for later (`adapt_profile`) it halves with every HALF_LIFE_S of age.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass, fields, replace
from slurmwrap.model.cpu_curve import least_cpus
from slurmwrap.model.resource_profile import IMPORTED, CurvePoint, Measurement, ResourceProfile, SpeedPoint

if TYPE_CHECKING:
    from slurmwrap.model.resource_profile import CurvePoint, Measurement


# What of a measurement can be true. Pure. A pre-run's measurement is its user's claim, and a site keeps it.
#
# A rate of 1e-320 or 2**63 MiB would not harm its user alone: no one could merge it, or read the database again.
# Seconds, steps, MiB, watts; a PiB of memory is 1e9 MiB.
MOST = 1e12
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


CPU_MARGIN = 1.25
BOUND_SHARE = 0.9  # of the CPUs it had: busier than this, more of them might have made it faster
HALF_LIFE_S = 90 * 86400.0  # a choice: code, libraries and data of a living project move within months
AGREE_CPUS = 1  # least CPUs of two curves of the same job on a shared node differ by so much (docs/profile.md)
_SATURATED = ("workers", "pinned")  # ends beyond which more CPUs of the same job change nothing


@dataclass(frozen=True, slots=True)
class _Need:
    """CPUs per GPU, and whether that is only the least it can be."""

    cpus: float
    bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A CPU curve per GPU and what is thought of it."""

    points: tuple[CurvePoint, ...] = ()
    end: str = ""
    at: float = 0.0
    variant: str = ""
    doubts: int = 0


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
    variant: str = "",
) -> ResourceProfile:
    """`old` with one measurement more. `complete`: a run that ended well, not a pre-run and not a failure.

    `measurement` is of one node with `measurement.gpus` GPUs; `at` in Unix seconds; `variant`: of the job that ran.
    """
    measurement = drop_implausible_values(measurement)
    old = _carry_over(old or ResourceProfile(key=key), variant, gpu_type)
    runs = old.runs + complete
    preruns = old.preruns + (source == "prerun")
    busy = _merge_needs(
        _get_busy_need(old), _get_measured_need(measurement), old_complete=bool(old.runs), complete=complete
    )
    newer = at >= old.measured_at
    current = (variant or old.variant) if newer else old.variant
    curve = _merge_curves(_get_curve(old), _get_measured_curve(measurement, at, variant), at)
    need = _find_need(curve, busy, current, max(at, old.measured_at))
    return replace(
        _take_newest(old, measurement, newer=newer, outranks=complete or not old.runs),
        key=key,
        cpus_per_gpu=round(need.cpus, 2) if need else None,
        cpu_bound=need.bound if need else False,
        cpus_busy=round(busy.cpus, 2) if busy else None,
        cpus_busy_bound=busy.bound if busy else False,
        mem_mib_per_gpu=_find_highest(_get_peak(old), _get_measured_memory(measurement)),
        gpu_mem_mib=_find_highest(old.gpu_mem_mib, measurement.gpu_mem_peak_mib),
        gpu_type=gpu_type or old.gpu_type,
        gpus_per_node=gpus_per_node if 0 < gpus_per_node <= MOST_GPUS else old.gpus_per_node,
        runs=runs,
        preruns=preruns,
        confidence=_compute_confidence(runs, preruns, curve.doubts),
        source=source if newer else old.source,
        measured_at=max(at, old.measured_at),
        cpu_curve=curve.points,
        cpu_curve_end=curve.end,
        surface=old.surface if curve.points == old.cpu_curve else (),
        variant=current,
        curve_at=curve.at,
        curve_variant=curve.variant,
        curve_doubts=curve.doubts,
    )


def adapt_profile(profile: ResourceProfile, now: float, *, variant: str = "", gpu_type: str = "") -> ResourceProfile:
    """`profile` as it counts at `now` (Unix seconds) for a job of this variant: confidence less its age and changes."""
    carried = _carry_over(profile, variant, gpu_type)
    confidence = profile.confidence
    if carried is not profile:
        confidence = min(confidence, _compute_confidence(carried.runs, carried.preruns, carried.curve_doubts))
    age = max(0.0, now - profile.measured_at)
    return replace(carried, confidence=round(confidence * 0.5 ** (age / HALF_LIFE_S), 3))


def _compute_confidence(runs: int, preruns: int, doubts: int) -> float:
    told = 1 - 0.5**runs * 0.75 ** min(preruns, 3)
    return round(told * (0.5 if doubts else 1.0), 3)


def _carry_over(old: ResourceProfile, variant: str, gpu_type: str) -> ResourceProfile:
    """What of `old` still counts for a job of this variant on this GPU type."""
    changed = _is_different(old.variant, variant) or _is_different(old.gpu_type, gpu_type)
    return replace(old, runs=min(old.runs, 1), preruns=min(old.preruns, 1)) if changed else old


def _is_different(one: str, other: str) -> bool:
    return bool(one and other and one != other)


def _take_newest(old: ResourceProfile, new: Measurement, *, newer: bool, outranks: bool) -> ResourceProfile:
    """What is simply the newest."""
    gpus = max(1, new.gpus)

    def latest(known: float | None, measured: float | None, *, outranked: bool = True) -> float | None:
        wins = measured is not None and (known is None or (newer and (outranks or not outranked)))
        return measured if wins else known

    model = new.model_mib if new.model_mib else None
    skew = new.largest_tensor_mib / model if model and new.largest_tensor_mib is not None else None
    workers = None if new.loader_workers is None else ceil(new.loader_workers / gpus)
    known_workers = latest(old.loader_workers, workers, outranked=False)
    sensitivity = {**old.sensitivity, **new.sensitivity} if newer else {**new.sensitivity, **old.sensitivity}
    return replace(
        old,
        steps_per_s=latest(old.steps_per_s, new.steps_per_s or None),
        read_mib_per_s=latest(
            old.read_mib_per_s, None if new.read_mib_per_s is None else max(0.0, new.read_mib_per_s / gpus)
        ),
        gpu_util=latest(old.gpu_util, new.gpu_util),
        gpu_mem_util=latest(old.gpu_mem_util, new.gpu_mem_util),
        loader_workers=None if known_workers is None else int(known_workers),
        model_mib=latest(old.model_mib, model, outranked=False),
        skew=latest(old.skew, None if skew is None else round(min(1.0, skew), 4), outranked=False),
        sensitivity=sensitivity,
    )


def _get_peak(old: ResourceProfile) -> int | None:
    """Memory of an imported profile is what makes a job fast, page cache included: no peak."""
    return None if old.source == IMPORTED else old.mem_mib_per_gpu


def _get_measured_memory(measurement: Measurement) -> int | None:
    if measurement.mem_peak_mib is None or measurement.mem_source == "rss":
        return None
    return ceil(measurement.mem_peak_mib / max(1, measurement.gpus))


# ------------------------------------------------------------------------------------------- CPUs by mean


def _get_busy_need(old: ResourceProfile) -> _Need | None:
    """The need by the mean alone; profiles of before there were curves have only that."""
    if old.cpus_busy is not None:
        return _Need(cpus=old.cpus_busy, bound=old.cpus_busy_bound)
    if old.cpus_per_gpu is not None and not old.cpu_curve:
        return _Need(cpus=old.cpus_per_gpu, bound=old.cpu_bound)
    return None


def _get_measured_need(measurement: Measurement) -> _Need | None:
    if measurement.cpus_used is None:
        return None
    had = measurement.cpus_allocated
    bound = had is not None and measurement.cpus_used >= BOUND_SHARE * had
    per_gpu = measurement.cpus_used / max(1, measurement.gpus)
    return _Need(cpus=per_gpu if bound else per_gpu * CPU_MARGIN, bound=bound)


def _merge_needs(known: _Need | None, new: _Need | None, *, old_complete: bool, complete: bool) -> _Need | None:
    if known is None or new is None:
        return new or known
    # The one of complete runs outranks.
    if old_complete != complete:
        return known if old_complete else new
    return _take_greater(known, new)


def _take_greater(known: _Need, new: _Need) -> _Need:
    if known.bound != new.bound:
        free, least = (new, known) if known.bound else (known, new)
        return least if least.cpus > free.cpus else free
    return max(known, new, key=lambda need: need.cpus)


# ------------------------------------------------------------------------------------------- CPUs by a curve


def _get_curve(old: ResourceProfile) -> _Curve:
    return _Curve(
        points=old.cpu_curve,
        end=old.cpu_curve_end,
        at=old.curve_at,
        variant=old.curve_variant,
        doubts=old.curve_doubts,
    )


def _get_measured_curve(measurement: Measurement, at: float, variant: str) -> _Curve:
    """Per GPU. Of a trial on several GPUs only the counts that every GPU gets the same share of."""
    gpus = max(1, measurement.gpus)
    points = tuple(
        replace(point, cpus=point.cpus // gpus)
        for point in sorted(measurement.cpu_curve, key=lambda p: p.cpus)
        if point.cpus >= gpus and point.cpus % gpus == 0 and point.steps_per_s > 0
    )
    return _Curve(points=points, end=measurement.cpu_curve_end if points else "", at=at, variant=variant)


def _merge_curves(old: _Curve, new: _Curve, at: float) -> _Curve:
    """`new`, unless it is the first to contradict an `old` one that still holds."""
    if not new.points:
        return old
    if not old.points:
        return new
    if new.at < old.at:
        return old
    stale = at - old.at > HALF_LIFE_S or _is_different(old.variant, new.variant)
    agrees = abs((least_cpus(old.points) or 0) - (least_cpus(new.points) or 0)) <= AGREE_CPUS
    return new if stale or agrees or old.doubts else replace(old, doubts=1)


def _find_need(curve: _Curve, busy: _Need | None, variant: str, now: float) -> _Need | None:
    least = least_cpus(curve.points)
    if least is None:
        return busy
    top = max(point.cpus for point in curve.points)
    by_curve = _Need(cpus=float(least), bound=least == top and len(curve.points) > 1 and curve.end not in _SATURATED)
    holds = not curve.doubts and not _is_different(curve.variant, variant) and now - curve.at <= HALF_LIFE_S
    return by_curve if holds or busy is None else _take_greater(by_curve, busy)


def _find_highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
