"""Measure a trial that goes on after its steps: its speed on fewer CPUs and under contention. Adapters are passed in.

The supervisor passes every reading of the step files to `Profiler.look`, which returns whether it is done. Speeds are
computed from (count, time of the last step) as recorded by the trial itself, never from the time of a reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.cpu_sweep import (
    choose_next_cpus,
    choose_uncertain_cpus,
    curve_of,
    least_cpus,
    list_unsettled_points,
)
from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.model.trial_result import StepReading

PREFETCH = 2  # DataLoader's default: prefetched batches per worker, which hide a change of speed for a while
SWEEP_SHARE = 0.75  # share of the time for the CPU curve; the rest is for contention
STEADY = 0.05  # the program is warm if the speeds of two windows of steps differ by less than this share
DRIFT = 0.10  # maximum difference between the speeds before and after a stressor
_WARM_WINDOW = 20  # steps


class CpuLimiter(Protocol):
    """Interface of cpu_affinity.AffinityLimiter: sets the CPU mask of all tasks of the trial."""

    def hold(self, cpus: frozenset[int]) -> None:
        """Set the mask of every task."""

    def strays(self, cpus: frozenset[int]) -> bool:
        """Return whether a process or a busy thread has another mask."""

    def workers(self) -> int:
        """Return the number of DataLoader workers that exist now."""


class Stressor(Protocol):
    """A load that contends for a resource until it is stopped."""

    def stop(self) -> None:
        """End the load reliably."""


# Starts a stressor on these CPUs.
Stress = Callable[[frozenset[int]], Stressor]


SETTLE_S, WINDOW_S, WINDOW_STEPS, CAP_S = 2.0, 10.0, 100, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """How long a point is measured: for `window_s` and `window_steps`, or for `cap_s` and `slow_steps` if it is slow.

    `settle_s`: seconds to wait after a change of the CPUs. `warm_steps`: steps after which the program is warm.
    """

    settle_s: float = SETTLE_S
    window_s: float = WINDOW_S
    window_steps: int = WINDOW_STEPS
    cap_s: float = CAP_S
    slow_steps: int = 20
    warm_steps: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The profile. `full`: (start, end) of the first measured window on all CPUs, in the clock of the steps."""

    curve: tuple[CurvePoint, ...] = ()
    end: str = ""  # see Measurement.cpu_curve_end
    workers: int | None = None
    full: tuple[float, float] | None = None
    sensitivity: Mapping[str, float] = field(default_factory=dict)

    @property
    def full_speed(self) -> float | None:
        """Steps per second on all CPUs; None if it was not measured."""
        return self.curve[-1].steps_per_s if self.curve else None


def make_measurement_window(seconds: float, sizes: int) -> MeasurementWindow:
    """Return the window with which two rounds of a search among `sizes` points take `seconds`."""
    points = math.log2(max(sizes, 1)) + 2
    each = seconds / (2.2 * points) - SETTLE_S
    window = min(WINDOW_S, max(3.0, each))
    steps = math.ceil(WINDOW_STEPS * window / WINDOW_S)
    return MeasurementWindow(window_s=window, window_steps=steps, cap_s=min(CAP_S, max(each, window)))


class _MeasurementEnd(Exception):
    """Raised to end the measurement. `why`: the reason, as in Profiled.end."""

    def __init__(self, why: str) -> None:
        self.why = why


@dataclass(frozen=True, slots=True)
class _TimedReading:
    """One reading of the step files."""

    now: float
    reading: StepReading


_Steps = Generator[None, _TimedReading, None]


class Profiler:
    """Measures the CPU curve and the effect of contention while the trial runs.

    The measurement is a generator: it waits at each `yield` for the next reading, which `look` sends to it. `masks`:
    number of CPUs -> mask, ascending. `full`: the mask with which the trial started. All times are those of one
    monotonic clock.
    """

    def __init__(
        self,
        grip: CpuLimiter,
        masks: Mapping[int, frozenset[int]],
        *,
        full: frozenset[int],
        start: float,
        deadline: float,
        stress: Mapping[str, Stress] | None = None,
        pace: MeasurementWindow | None = None,
    ) -> None:
        self._grip, self._masks, self._full = grip, masks, full
        self._start, self._deadline = start, deadline
        self._stress = stress or {}
        self._rounds: dict[int, list[float]] = {}
        self._workers = 0
        self._window: tuple[float, float] | None = None
        self._end = ""
        self._sensitivity: dict[str, float] = {}
        self._until = self._start + (deadline - start) * (SWEEP_SHARE if stress else 1.0)
        self._pace = pace or make_measurement_window(self._until - start, len(masks))
        self._looks = self._run()
        next(self._looks)

    def look(self, now: float, reading: StepReading) -> bool:
        """Process a reading of the step files. Return True if the measurement is done and all CPUs restored."""
        try:
            self._looks.send(_TimedReading(now, reading))
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """Stop the measurement: stressors end, and the trial has all its CPUs again."""
        self._looks.close()

    def result(self) -> Profiled:
        """Return what has been measured so far."""
        curve = curve_of(self._rounds)
        return Profiled(
            curve=curve,
            end=self._end or ("time" if curve else ""),
            workers=self._workers if self._window else None,
            full=self._window,
            sensitivity=dict(self._sensitivity),
        )

    def _run(self) -> _Steps:
        look = yield
        try:
            yield from self._warm_up(look)
            if self._grip.strays(self._full):
                raise _MeasurementEnd("pinned")
            yield from self._run_whole_sweep()
            yield from self._measure_contention()
        except _MeasurementEnd as ends:
            self._end = self._end or ends.why
        finally:
            self._grip.hold(self._full)

    def _run_whole_sweep(self) -> _Steps:
        """Measure the CPU curve. If the time is up after the search had its answer, keep the curve.

        Such a curve only lacks repeated rounds, which its number of rounds shows.
        """
        try:
            yield from self._run_sweep()
        except _MeasurementEnd as ends:
            curve = curve_of(self._rounds)
            if ends.why != "time" or not curve or choose_next_cpus(curve, sorted(self._masks)) is not None:
                raise
        self._end = find_curve_end(curve_of(self._rounds), self._workers)

    def _warm_up(self, look: _TimedReading) -> _Steps:
        seen = [look.reading]
        while not is_warm(seen, self._pace.warm_steps):
            look = yield
            if look.now - self._start > (self._until - self._start) / 4:
                return
            seen.append(look.reading)

    def _run_sweep(self) -> _Steps:
        """Search downwards until the answer is found, measure the same points again upwards, then the doubtful ones.

        Repeat this if the answer has changed.
        """
        sizes = sorted(self._masks)
        while True:
            curve = curve_of(self._rounds)
            if (cpus := choose_next_cpus(curve, sizes)) is not None:
                yield from self._measure_point(cpus)
            elif list_unsettled_points(self._rounds):
                for again in self._list_in_opposite_order():
                    yield from self._measure_point(again)
            elif (cpus := choose_uncertain_cpus(curve, sizes)) is not None:
                yield from self._measure_point(cpus)
            else:
                return

    def _list_in_opposite_order(self) -> Sequence[int]:
        """Return the points that need another round, beginning at the end where the last one was measured."""
        ordered, last = sorted(self._rounds), next(reversed(self._rounds))
        return sorted(list_unsettled_points(self._rounds), reverse=2 * ordered.index(last) >= len(ordered))

    def _measure_point(self, cpus: int) -> _Steps:
        rate, window = yield from self._measure_speed(self._masks[cpus], self._until)
        # Reinsert the point at the end: the order of the dict is the order of the measurements.
        rounds = self._rounds.pop(cpus, [])
        self._rounds[cpus] = [*rounds, rate]
        if cpus == max(self._masks) and self._window is None:
            self._window = window

    def _measure_speed(
        self, mask: frozenset[int], until: float
    ) -> Generator[None, _TimedReading, tuple[float, tuple[float, float]]]:
        self._grip.hold(mask)
        yield from self._wait_for_settling(until)
        # Set the mask again for processes that were started in the meantime.
        self._grip.hold(mask)
        self._workers = max(self._workers, self._grip.workers())
        seen: list[StepReading] = []
        while not self._is_enough(seen):
            look = yield
            if look.now > until:
                raise _MeasurementEnd("time")
            if seen and 0 < look.reading.count < seen[-1].count:
                # The count decreased: another program, or a better source of steps, counts from the beginning.
                seen.clear()
            if look.reading.count > (seen[-1].count if seen else 0):
                seen.append(look.reading)
        if self._grip.strays(mask):
            raise _MeasurementEnd("pinned")
        return compute_rate(seen, self._workers), (seen[0].last, seen[-1].last)

    def _wait_for_settling(self, until: float) -> _Steps:
        look = yield
        start, count = look.now, look.reading.count
        steps = 2 * self._workers * PREFETCH
        while look.now - start < self._pace.settle_s or look.reading.count - count < steps:
            look = yield
            if look.now - start > self._pace.settle_s + self._pace.cap_s:
                return
            if look.now > until:
                raise _MeasurementEnd("time")

    def _is_enough(self, seen: Sequence[StepReading]) -> bool:
        if len(seen) < 2:
            return False
        pace, seconds, steps = self._pace, seen[-1].last - seen[0].last, seen[-1].count - seen[0].count
        return (
            (seconds >= pace.window_s and steps >= pace.window_steps)
            or (seconds >= pace.cap_s and steps >= pace.slow_steps)
            or (seconds >= 2 * pace.cap_s and steps >= 3)
        )

    def _measure_contention(self) -> _Steps:
        for resource, stress in self._stress.items():
            trial_cpus, stress_cpus = split_stress_masks(resource, self._masks, least_cpus(curve_of(self._rounds)))
            if not stress_cpus:
                continue
            yield from self._measure_under_stress(resource, stress, trial_cpus, stress_cpus)

    def _measure_under_stress(
        self, resource: str, stress: Stress, trial_cpus: frozenset[int], stress_cpus: frozenset[int]
    ) -> _Steps:
        before, _ = yield from self._measure_speed(trial_cpus, self._deadline)
        stressor = stress(stress_cpus)
        try:
            under, _ = yield from self._measure_speed(trial_cpus, self._deadline)
        finally:
            stressor.stop()
        after, _ = yield from self._measure_speed(trial_cpus, self._deadline)
        found = compute_slowdown(before, under, after)
        if found is not None:
            self._sensitivity[resource] = found


def is_warm(seen: Sequence[StepReading], steps: int) -> bool:
    """Return whether compilation, cuDNN's search and cold caches no longer slow down the steps.

    That is so after `steps` steps, or if the speeds of the last two windows of steps agree.
    """
    first, last = seen[0], seen[-1]
    if last.count - first.count >= steps:
        return True
    middle = next((r for r in reversed(seen) if last.count - r.count >= _WARM_WINDOW), None)
    start = middle and next((r for r in reversed(seen) if middle.count - r.count >= _WARM_WINDOW), None)
    if middle is None or start is None or start.last >= middle.last or middle.last >= last.last:
        return False
    early = (middle.count - start.count) / (middle.last - start.last)
    late = (last.count - middle.count) / (last.last - middle.last)
    return abs(late - early) < STEADY * early


def compute_rate(seen: Sequence[StepReading], workers: int) -> float:
    """Return the steps per second over the readings, without pauses such as a validation or a checkpoint.

    A loader with W workers delivers W batches at once and then none for the same time. So only a gap that is far longer
    is a pause.
    """
    pairs = [(b.count - a.count, b.last - a.last) for a, b in pairwise(seen) if b.count > a.count and b.last > a.last]
    steps, seconds = sum(n for n, _ in pairs), sum(s for _, s in pairs)
    for n, s in sorted(pairs, key=lambda pair: -pair[1]):
        if steps == n or s < max(2.0, 4 * max(1, workers) * PREFETCH * (seconds - s) / (steps - n)):
            break
        steps, seconds = steps - n, seconds - s
    return steps / seconds if seconds > 0 else 0.0


def find_curve_end(curve: Sequence[CurvePoint], workers: int) -> str:
    """Return why a complete curve ends: "workers" if more CPUs than the loader workers can use were measured.

    Then the curve says nothing about more workers. Otherwise the end is the "allocation".
    """
    enough = least_cpus(curve)
    return "workers" if workers and enough and enough <= workers + 2 <= curve[-1].cpus else "allocation"


def split_stress_masks(
    resource: str, masks: Mapping[int, frozenset[int]], least: int | None
) -> tuple[frozenset[int], frozenset[int]]:
    """Return (the trial's CPUs, the stressor's CPUs).

    Contention for CPU time needs the same CPUs; for all other resources the stressor runs on other CPUs.
    """
    top = masks[max(masks)]
    if resource == "cpu":
        return top, top
    free = [cpus for cpus in masks if cpus < max(masks)]
    kept = max((cpus for cpus in free if cpus <= (least or 0)), default=max(free, default=0))
    return (masks[kept], top - masks[kept]) if kept else (top, frozenset())


def compute_slowdown(before: float, under: float, after: float) -> float | None:
    """Return how many times slower the trial was, at least 1; None if its own speed drifted too much to tell."""
    base = (before + after) / 2
    if under <= 0 or base <= 0:
        return None
    found = base / under
    drift = abs(after - before) / base
    return None if drift > max(DRIFT, (found - 1) / 2) else round(max(1.0, found), 3)
