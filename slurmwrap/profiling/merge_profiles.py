"""Merge a measurement into a resource profile, without implausible values. Pure.

The rules (docs/profile.md gives the reasons):
- Memory: the highest peak per GPU of any run, whether it ended well or not. An imported profile has no peak. Sums of
  RSS are not used: they count shared pages once per process.
- CPUs from a curve: the least CPUs within 5 % of the best speed. A valid curve takes precedence over the mean.
- CPUs from the mean number of busy cores per GPU, times CPU_MARGIN, since a mean hides bursts. Complete runs take
  precedence over pre-runs, which see a few steps of one GPU. Among equals the higher need is kept. A run that kept all
  its CPUs busy shows only a lower bound of the need (`cpu_bound`); the next run with spare CPUs determines it.
- A new curve replaces an old one that agrees with it (the least CPUs differ by at most one), that is older than
  HALF_LIFE_S, or that is of another variant. Otherwise the new curve counts as an outlier until a second curve in a row
  contradicts the old one, too.
- A curve of another variant, one in doubt, and one older than HALF_LIFE_S can only raise the need found from the mean.
- Speed, reading, GPU use: the newest values; a pre-run does not replace values of complete runs. Model, its layers,
  skew, workers, data and sensitivity: the newest known values.
- Members side by side (gsub --pack): the newest table of a pre-run that tried it.
- A changed job (another variant, another GPU type): that table is dropped, and only one of its runs and one of its
  pre-runs still count. So the
  confidence falls, and memory is not reduced before runs of the changed job have shown that they need less.
- Confidence: 0 without any run. Each complete run halves the doubt, each of the first three pre-runs reduces it by a
  quarter. The confidence is halved while the curve is in doubt, and `adapt_profile` halves it with every HALF_LIFE_S of
  age.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from slurmwrap.fast_dataclasses import dataclass, fields, replace
from slurmwrap.model.cpu_sweep import least_cpus
from slurmwrap.model.resource_profile import (
    BY_FILES,
    BY_LOADER,
    GPU_SHARES,
    IMPORTED,
    PACK_ENDS,
    CurvePoint,
    DataLoading,
    Measurement,
    ModelLayer,
    PackPoint,
    ResourceProfile,
    SpeedPoint,
)

# Bounds of plausible measurements. A pre-run's measurement is a claim of its user, and the site stores it. A rate of
# 1e-320 or a memory of 2**63 MiB would harm other users as well: no process could merge it or read the database again.
#
# Largest number of seconds, steps, MiB or watts; a PiB of memory is 1e9 MiB.
MOST = 1e12
MOST_GPUS, MOST_CPUS = 1024, 65536  # of one node
MOST_POINTS, MOST_ROUNDS, MOST_LAYERS = 256, 1000, 256
SLOWEST, FASTEST = 1e-9, 1e9  # steps per second
_SHARE_FIELDS = tuple(f"gpu_{name}" for name in ("util", "mem_util", *GPU_SHARES))
_MEMORY_SOURCES = ("", "cgroup", "pss", "rss")
_CURVE_ENDS = ("", "allocation", "workers", "pinned", "time")
_MOST_PATH = 4096
_MOST_STRESSORS = 16  # resources with a sensitivity
_LAYER_NAME = re.compile(r"[A-Za-z0-9._()-]{1,120}")


def drop_implausible_values(measurement: Measurement) -> Measurement:
    """Return `measurement` without values that no run can have measured; the same object if all are plausible."""
    changed = {
        name: None for name in _OPTIONAL_FIELDS if not _is_amount(getattr(measurement, name), _get_upper_bound(name))
    }
    rate = measurement.steps_per_s
    if rate is not None and not SLOWEST <= rate <= FASTEST:
        changed["steps_per_s"] = None
    points = _drop_duplicate_points(measurement.cpu_curve)
    sound = replace(
        measurement,
        **changed,
        seconds=measurement.seconds if _is_amount(measurement.seconds, MOST) else 0.0,
        gpus=measurement.gpus if 1 <= measurement.gpus <= MOST_GPUS else 1,
        mem_source=measurement.mem_source if measurement.mem_source in _MEMORY_SOURCES else "",
        cpu_curve=points,
        # A share of a model says nothing without the rest of it.
        layers=measurement.layers if are_plausible_layers(measurement.layers) else (),
        cpu_curve_end=measurement.cpu_curve_end if points and measurement.cpu_curve_end in _CURVE_ENDS else "",
        sensitivity=_drop_implausible_sensitivity(measurement.sensitivity),
        pack_speeds=_drop_implausible_packs(measurement.pack_speeds),
        pack_end=measurement.pack_end if measurement.pack_end in PACK_ENDS else "",
        loading=measurement.loading if _is_plausible_loading(measurement.loading) else None,
        dataset_source=measurement.dataset_source if measurement.dataset_source in (BY_LOADER, BY_FILES) else "",
    )
    return measurement if sound == measurement else sound


# The fields that may be None; all of them are numbers of at least 0.
_OPTIONAL_FIELDS = tuple(f.name for f in fields(Measurement) if f.default is None and f.name != "loading")


def _is_plausible_loading(loading: DataLoading | None) -> bool:
    if loading is None:
        return True
    times = (loading.fetch_s, loading.cpu_s, loading.stall_s, loading.compute_s, loading.wait_s)
    return (
        0 <= loading.workers <= MOST_CPUS
        and all(_is_amount(amount, MOST) for amount in (*times, loading.batch_mib, loading.batches))
        and max(loading.cpu_s, loading.stall_s) <= loading.fetch_s
        and len(loading.mount) <= _MOST_PATH
        and loading.mount.isprintable()
    )


def _get_upper_bound(name: str) -> float:
    if name in _SHARE_FIELDS:
        return 1.0
    return MOST_CPUS if name in ("cpus_used", "cpus_allocated", "loader_workers") else MOST


def _is_amount(value: float | None, most: float) -> bool:
    return value is None or 0 <= value <= most


def _drop_duplicate_points(curve: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    """Return the plausible points of a curve, one per number of CPUs."""
    plausible = {
        point.cpus: point
        for point in curve[:MOST_POINTS]
        if 0 < point.cpus <= MOST_CPUS
        and SLOWEST <= point.steps_per_s <= FASTEST
        and 0 <= point.spread <= MOST
        and 0 < point.rounds <= MOST_ROUNDS
    }
    return tuple(plausible.values())


def _drop_implausible_packs(points: tuple[PackPoint, ...]) -> tuple[PackPoint, ...]:
    plausible = {
        point.members: point
        for point in points[:MOST_POINTS]
        if 0 < point.members <= MOST_CPUS and SLOWEST <= point.steps_per_s <= FASTEST
    }
    return tuple(plausible[members] for members in sorted(plausible))


def are_plausible_layers(layers: tuple[ModelLayer, ...]) -> bool:
    """Return whether all layers are plausible, and there are at most MOST_LAYERS. Their names are printed."""
    return len(layers) <= MOST_LAYERS and all(
        _LAYER_NAME.fullmatch(one.name)
        and (not one.kind or _LAYER_NAME.fullmatch(one.kind))
        and 0 <= one.largest_mib <= one.mib <= MOST
        and _is_amount(one.forward_s, MOST)
        for one in layers
    )


def is_plausible_surface(surface: tuple[SpeedPoint, ...]) -> bool:
    """Return whether the values of all points are plausible, and there are at most MOST_POINTS."""
    return len(surface) <= MOST_POINTS and all(
        0 < point.cpus <= MOST_CPUS and 0 < point.mem_mib <= MOST and SLOWEST <= point.speed <= FASTEST
        for point in surface
    )


def _drop_implausible_sensitivity(sensitivity: Mapping[str, float]) -> Mapping[str, float]:
    kept = [(name, factor) for name, factor in sensitivity.items() if name.isidentifier() and 0 <= factor <= MOST]
    return {name: factor for name, factor in kept if len(name) <= 32} if len(kept) <= _MOST_STRESSORS else {}


CPU_MARGIN = 1.25
# If a larger share of its CPUs was busy, more CPUs might have made the job faster.
BOUND_SHARE = 0.9
# A chosen value: code, libraries and data of an active project change within months.
HALF_LIFE_S = 90 * 86400.0
# The least CPUs of two curves of the same job on a shared node differ by up to this number (docs/profile.md).
AGREE_CPUS = 1
# Values of `cpu_curve_end` that mean that more CPUs would not change the speed of this job.
_SATURATED_ENDS = ("workers", "pinned")


@dataclass(frozen=True, slots=True)
class _Need:
    """CPUs per GPU; `bound`: they are only a lower bound of the need."""

    cpus: float
    bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A CPU curve per GPU. `at`: when it was measured, Unix seconds; `doubts`: curves that contradicted it."""

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
    """Return `old` with one more measurement.

    `measurement` is of one node with `measurement.gpus` GPUs. `complete`: it is of a run that ended well, not of a
    pre-run or a failure. `at`: Unix seconds. `variant`: the variant of the job that ran.
    """
    measurement = drop_implausible_values(measurement)
    old = _discount_changed_job(old or ResourceProfile(key=key), variant, gpu_type)
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
        _merge_newest_values(old, measurement, newer=newer, outranks=complete or not old.runs),
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
    """Return `profile` for a job of this variant at `now` (Unix seconds), with less confidence for age and changes."""
    adapted = _discount_changed_job(profile, variant, gpu_type)
    confidence = profile.confidence
    if adapted is not profile:
        confidence = min(confidence, _compute_confidence(adapted.runs, adapted.preruns, adapted.curve_doubts))
    age = max(0.0, now - profile.measured_at)
    return replace(adapted, confidence=round(confidence * 0.5 ** (age / HALF_LIFE_S), 3))


def _compute_confidence(runs: int, preruns: int, doubts: int) -> float:
    confidence = 1 - 0.5**runs * 0.75 ** min(preruns, 3)
    return round(confidence * (0.5 if doubts else 1.0), 3)


def _discount_changed_job(old: ResourceProfile, variant: str, gpu_type: str) -> ResourceProfile:
    """Return `old` with at most one run and one pre-run if the variant or the GPU type has changed."""
    changed = _is_different(old.variant, variant) or _is_different(old.gpu_type, gpu_type)
    if not changed:
        return old
    runs, preruns = min(old.runs, 1), min(old.preruns, 1)
    return replace(old, runs=runs, preruns=preruns, saved_after_s=None, pack_speeds=(), pack_end="")


def _is_different(one: str, other: str) -> bool:
    return bool(one and other and one != other)


def _merge_newest_values(old: ResourceProfile, new: Measurement, *, newer: bool, outranks: bool) -> ResourceProfile:
    """Return `old` with the values of `new` for which the newest known measurement counts.

    `newer`: `new` was measured after `old`. `outranks`: it may replace speed, reading and GPU use, because it is of a
    complete run or there is no complete run yet.
    """
    gpus = max(1, new.gpus)

    def latest(known: float | None, measured: float | None, *, outranked: bool = True) -> float | None:
        """Return the value to keep. `outranked`: complete runs take precedence for this value."""
        replaces = measured is not None and (known is None or (newer and (outranks or not outranked)))
        return measured if replaces else known

    model = new.model_mib if new.model_mib else None
    skew = new.largest_tensor_mib / model if model and new.largest_tensor_mib is not None else None
    workers = None if new.loader_workers is None else ceil(new.loader_workers / gpus)
    known_workers = latest(old.loader_workers, workers, outranked=False)
    has_size = new.dataset_mib is not None and (newer or old.dataset_mib is None)
    sensitivity = {**old.sensitivity, **new.sensitivity} if newer else {**new.sensitivity, **old.sensitivity}
    packs = new if new.pack_end and (newer or not old.pack_end) else old
    return replace(
        old,
        pack_speeds=packs.pack_speeds,
        pack_end=packs.pack_end,
        steps_per_s=latest(old.steps_per_s, new.steps_per_s or None),
        read_mib_per_s=latest(
            old.read_mib_per_s, None if new.read_mib_per_s is None else max(0.0, new.read_mib_per_s / gpus)
        ),
        gpu_util=latest(old.gpu_util, new.gpu_util),
        gpu_mem_util=latest(old.gpu_mem_util, new.gpu_mem_util),
        gpu_sm_active=latest(old.gpu_sm_active, new.gpu_sm_active),
        gpu_dram=latest(old.gpu_dram, new.gpu_dram),
        gpu_pcie=latest(old.gpu_pcie, new.gpu_pcie),
        gpu_nvlink=latest(old.gpu_nvlink, new.gpu_nvlink),
        loader_workers=None if known_workers is None else int(known_workers),
        model_mib=latest(old.model_mib, model, outranked=False),
        loading=new.loading if new.loading is not None and (newer or old.loading is None) else old.loading,
        dataset_mib=new.dataset_mib if has_size else old.dataset_mib,
        dataset_source=new.dataset_source if has_size else old.dataset_source,
        layers=new.layers if new.layers and (newer or not old.layers) else old.layers,
        skew=latest(old.skew, None if skew is None else round(min(1.0, skew), 4), outranked=False),
        sensitivity=sensitivity,
    )


def _get_peak(old: ResourceProfile) -> int | None:
    """Return the peak memory per GPU; None for an imported profile.

    The memory of an imported profile is what makes a job fast, including the page cache. It is no peak.
    """
    return None if old.source == IMPORTED else old.mem_mib_per_gpu


def _get_measured_memory(measurement: Measurement) -> int | None:
    if measurement.mem_peak_mib is None or measurement.mem_source == "rss":
        return None
    return ceil(measurement.mem_peak_mib / max(1, measurement.gpus))


# ------------------------------------------------------------------------------------------- CPUs by mean


def _get_busy_need(old: ResourceProfile) -> _Need | None:
    """Return the need found from the mean alone. Older profiles without curves have it in `cpus_per_gpu`."""
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
    # The need of complete runs takes precedence.
    if old_complete != complete:
        return known if old_complete else new
    return _choose_greater_need(known, new)


def _choose_greater_need(known: _Need, new: _Need) -> _Need:
    """Return the greater need. An exact need replaces a lower bound, unless the bound is higher."""
    if known.bound != new.bound:
        exact, bound = (new, known) if known.bound else (known, new)
        return bound if bound.cpus > exact.cpus else exact
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
    """Return the measured curve per GPU.

    Of a pre-run on several GPUs only the points are used whose CPUs are divisible by the number of GPUs.
    """
    gpus = max(1, measurement.gpus)
    points = tuple(
        replace(point, cpus=point.cpus // gpus)
        for point in sorted(measurement.cpu_curve, key=lambda p: p.cpus)
        if point.cpus >= gpus and point.cpus % gpus == 0 and point.steps_per_s > 0
    )
    return _Curve(points=points, end=measurement.cpu_curve_end if points else "", at=at, variant=variant)


def _merge_curves(old: _Curve, new: _Curve, at: float) -> _Curve:
    """Return `new`, unless it is older than `old` or the first curve that contradicts a valid `old` one."""
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
    """Return the need from the curve if it is valid for this variant at `now`; otherwise the greater of both needs.

    If the least sufficient CPUs are the most that were measured, the curve gives only a lower bound of the need, unless
    it ended because more CPUs would change nothing.
    """
    least = least_cpus(curve.points)
    if least is None:
        return busy
    top = max(point.cpus for point in curve.points)
    by_curve = _Need(
        cpus=float(least), bound=least == top and len(curve.points) > 1 and curve.end not in _SATURATED_ENDS
    )
    holds = not curve.doubts and not _is_different(curve.variant, variant) and now - curve.at <= HALF_LIFE_S
    return by_curve if holds or busy is None else _choose_greater_need(by_curve, busy)


def _find_highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
