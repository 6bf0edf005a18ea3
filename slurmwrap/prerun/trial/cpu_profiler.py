"""Measures a trial that goes on after its steps: its speed on fewer CPUs, and under contention. Edges are handed in.

The supervisor feeds every look at the step files to `Profiler.look`, which answers whether it is done. Speeds come from
(count, time of the last step) as the trial itself noted them, never from the time of a look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.cpu_curve import curve_of, gap, least_cpus, next_cpus, unsettled
from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.model.trial_result import StepReading

PREFETCH = 2  # DataLoader's default: batches that wait per worker and hide a change of speed
SWEEP_SHARE = 0.75  # of the time: what is left is for contention
STEADY = 0.05  # two windows of steps that differ by less: warmed up
DRIFT = 0.10  # the speeds before and after a stressor may differ so much
_WARM_WINDOW = 20


class CpuLimiter(Protocol):
    """affinity.Grip: a hold on every task of the trial."""

    def hold(self, cpus: frozenset[int]) -> None:
        """Sets the mask of every task."""

    def strays(self, cpus: frozenset[int]) -> bool:
        """True when something that works has set another mask."""

    def workers(self) -> int:
        """DataLoader's workers there are now."""


class Stressor(Protocol):
    """Something that contends for a resource until it is stopped."""

    def stop(self) -> None:
        """Ends it for sure."""


# Starts one on these CPUs.
Stress = Callable[[frozenset[int]], Stressor]


SETTLE_S, WINDOW_S, WINDOW_STEPS, CAP_S = 2.0, 10.0, 100, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """How long a point is measured: `window_s` and `window_steps` both, at most `cap_s` for `slow_steps`."""

    settle_s: float = SETTLE_S
    window_s: float = WINDOW_S
    window_steps: int = WINDOW_STEPS
    cap_s: float = CAP_S
    slow_steps: int = 20
    warm_steps: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What came out. `full`: (start, end) of the first measured window on all CPUs, in the clock of the steps."""

    curve: tuple[CurvePoint, ...] = ()
    end: str = ""  # as Measurement.cpu_curve_end
    workers: int | None = None
    full: tuple[float, float] | None = None
    sensitivity: Mapping[str, float] = field(default_factory=dict)

    @property
    def full_speed(self) -> float | None:
        """Steps per second on all CPUs."""
        return self.curve[-1].steps_per_s if self.curve else None


def make_measurement_window(seconds: float, sizes: int) -> MeasurementWindow:
    """The pace at which two rounds of a search among `sizes` points fit into `seconds`."""
    points = math.log2(max(sizes, 1)) + 2
    each = seconds / (2.2 * points) - SETTLE_S
    window = min(WINDOW_S, max(3.0, each))
    steps = math.ceil(WINDOW_STEPS * window / WINDOW_S)
    return MeasurementWindow(window_s=window, window_steps=steps, cap_s=min(CAP_S, max(each, window)))


class _Ends(Exception):
    """`why` is the curve's end."""

    def __init__(self, why: str) -> None:
        self.why = why


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    reading: StepReading


_Looks = Generator[None, _Look, None]


class Profiler:
    """`masks`: CPUs -> mask, ascending; `full`: the mask that the trial started with; times of one monotonic clock."""

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
        """One look at the step files. True: nothing is left to measure, and the trial has its CPUs back."""
        try:
            self._looks.send(_Look(now, reading))
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """Stops wherever it is; stressors end and the trial has its CPUs back."""
        self._looks.close()

    def result(self) -> Profiled:
        """What is known by now."""
        curve = curve_of(self._rounds)
        return Profiled(
            curve=curve,
            end=self._end or ("time" if curve else ""),
            workers=self._workers if self._window else None,
            full=self._window,
            sensitivity=dict(self._sensitivity),
        )

    def _run(self) -> _Looks:
        look = yield
        try:
            yield from self._warm_up(look)
            if self._grip.strays(self._full):
                raise _Ends("pinned")
            yield from self._run_whole_sweep()
            yield from self._measure_contention()
        except _Ends as ends:
            self._end = self._end or ends.why
        finally:
            self._grip.hold(self._full)

    def _run_whole_sweep(self) -> _Looks:
        """A search that had its answer when time was up lacks nothing but certainty, and its rounds show that."""
        try:
            yield from self._run_sweep()
        except _Ends as ends:
            curve = curve_of(self._rounds)
            if ends.why != "time" or not curve or next_cpus(curve, sorted(self._masks)) is not None:
                raise
        self._end = find_curve_end(curve_of(self._rounds), self._workers)

    def _warm_up(self, look: _Look) -> _Looks:
        seen = [look.reading]
        while not is_warm(seen, self._pace.warm_steps):
            look = yield
            if look.now - self._start > (self._until - self._start) / 4:
                return
            seen.append(look.reading)

    def _run_sweep(self) -> _Looks:
        """Down to the answer, the same points up again, then whatever is in doubt; and again when the answer moved."""
        sizes = sorted(self._masks)
        while True:
            curve = curve_of(self._rounds)
            if (cpus := next_cpus(curve, sizes)) is not None:
                yield from self._measure_point(cpus)
            elif unsettled(self._rounds):
                for again in self._list_in_opposite_order():
                    yield from self._measure_point(again)
            elif (cpus := gap(curve, sizes)) is not None:
                yield from self._measure_point(cpus)
            else:
                return

    def _list_in_opposite_order(self) -> Sequence[int]:
        """Points that want a round more, away from the end where the last one was measured."""
        ordered, last = sorted(self._rounds), next(reversed(self._rounds))
        return sorted(unsettled(self._rounds), reverse=2 * ordered.index(last) >= len(ordered))

    def _measure_point(self, cpus: int) -> _Looks:
        rate, window = yield from self._measure_speed(self._masks[cpus], self._until)
        # The order of the dict is the order of measuring.
        rounds = self._rounds.pop(cpus, [])
        self._rounds[cpus] = [*rounds, rate]
        if cpus == max(self._masks) and self._window is None:
            self._window = window

    def _measure_speed(
        self, mask: frozenset[int], until: float
    ) -> Generator[None, _Look, tuple[float, tuple[float, float]]]:
        self._grip.hold(mask)
        yield from self._wait_for_settling(until)
        # Who was born in between.
        self._grip.hold(mask)
        self._workers = max(self._workers, self._grip.workers())
        seen: list[StepReading] = []
        while not self._is_enough(seen):
            look = yield
            if look.now > until:
                raise _Ends("time")
            if seen and 0 < look.reading.count < seen[-1].count:
                # Another program, or a better source of steps: it counts anew.
                seen.clear()
            if look.reading.count > (seen[-1].count if seen else 0):
                seen.append(look.reading)
        if self._grip.strays(mask):
            raise _Ends("pinned")
        return compute_rate(seen, self._workers), (seen[0].last, seen[-1].last)

    def _wait_for_settling(self, until: float) -> _Looks:
        look = yield
        start, count = look.now, look.reading.count
        steps = 2 * self._workers * PREFETCH
        while look.now - start < self._pace.settle_s or look.reading.count - count < steps:
            look = yield
            if look.now - start > self._pace.settle_s + self._pace.cap_s:
                return
            if look.now > until:
                raise _Ends("time")

    def _is_enough(self, seen: Sequence[StepReading]) -> bool:
        if len(seen) < 2:
            return False
        pace, seconds, steps = self._pace, seen[-1].last - seen[0].last, seen[-1].count - seen[0].count
        return (
            (seconds >= pace.window_s and steps >= pace.window_steps)
            or (seconds >= pace.cap_s and steps >= pace.slow_steps)
            or (seconds >= 2 * pace.cap_s and steps >= 3)
        )

    def _measure_contention(self) -> _Looks:
        for resource, stress in self._stress.items():
            ours, theirs = split_stress_masks(resource, self._masks, least_cpus(curve_of(self._rounds)))
            if not theirs:
                continue
            yield from self._measure_under_stress(resource, stress, ours, theirs)

    def _measure_under_stress(
        self, resource: str, stress: Stress, ours: frozenset[int], theirs: frozenset[int]
    ) -> _Looks:
        before, _ = yield from self._measure_speed(ours, self._deadline)
        stressor = stress(theirs)
        try:
            under, _ = yield from self._measure_speed(ours, self._deadline)
        finally:
            stressor.stop()
        after, _ = yield from self._measure_speed(ours, self._deadline)
        found = compute_slowdown(before, under, after)
        if found is not None:
            self._sensitivity[resource] = found


def is_warm(seen: Sequence[StepReading], steps: int) -> bool:
    """Compiling, cuDNN's search and cold caches are over: `steps` more were counted, or two windows agree."""
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
    """Steps per second over the readings, without pauses that are no training (a validation, a checkpoint).

    A loader with W workers gives W batches and then none for as long: only a gap far longer than that is a pause.
    """
    pairs = [(b.count - a.count, b.last - a.last) for a, b in pairwise(seen) if b.count > a.count and b.last > a.last]
    steps, seconds = sum(n for n, _ in pairs), sum(s for _, s in pairs)
    for n, s in sorted(pairs, key=lambda pair: -pair[1]):
        if steps == n or s < max(2.0, 4 * max(1, workers) * PREFETCH * (seconds - s) / (steps - n)):
            break
        steps, seconds = steps - n, seconds - s
    return steps / seconds if seconds > 0 else 0.0


def find_curve_end(curve: Sequence[CurvePoint], workers: int) -> str:
    """Why a whole curve goes no further. More CPUs than the workers can use say nothing about more workers."""
    enough = least_cpus(curve)
    return "workers" if workers and enough and enough <= workers + 2 <= curve[-1].cpus else "allocation"


def split_stress_masks(
    resource: str, masks: Mapping[int, frozenset[int]], least: int | None
) -> tuple[frozenset[int], frozenset[int]]:
    """(the trial's CPUs, the stressor's). CPU time is contended on the same CPUs, everything else from other ones."""
    top = masks[max(masks)]
    if resource == "cpu":
        return top, top
    free = [cpus for cpus in masks if cpus < max(masks)]
    ours = max((cpus for cpus in free if cpus <= (least or 0)), default=max(free, default=0))
    return (masks[ours], top - masks[ours]) if ours else (top, frozenset())


def compute_slowdown(before: float, under: float, after: float) -> float | None:
    """How many times slower, at least 1; None when the speed moved by itself so much that it says nothing."""
    base = (before + after) / 2
    if under <= 0 or base <= 0:
        return None
    found = base / under
    drift = abs(after - before) / base
    return None if drift > max(DRIFT, (found - 1) / 2) else round(max(1.0, found), 3)
