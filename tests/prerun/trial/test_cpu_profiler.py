"""The CPU sweep of a running trial, with a fake trial whose speed depends on its CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial.cpu_profiler import (
    MeasurementWindow,
    Profiled,
    Profiler,
    compute_rate,
    compute_slowdown,
    find_curve_end,
    is_warm,
    make_measurement_window,
    split_stress_masks,
)

ALL = frozenset(range(64))


class Trial:
    """Trains at `rate(CPUs)` steps per second; is also the limiter, the clock and the stressors of a Profiler."""

    def __init__(self, rate: Callable[[int], float], *, cpus: int = 64, workers: int = 0) -> None:
        self.rate, self.count_of_workers = rate, workers
        self.now, self.steps, self.last = 100.0, 3.0, 100.0
        self.full = frozenset(range(cpus))
        self.mask = self.full
        self.pins_itself_on: frozenset[int] | None = None
        self.stressed: str = ""
        self.slower: Mapping[str, float] = {}
        self.history: list[int] = []
        self.pause: tuple[float, float] = (0.0, 0.0)  # no training between these two times

    def hold(self, cpus: frozenset[int]) -> None:
        self.mask = cpus
        if not self.history or self.history[-1] != len(cpus):
            self.history.append(len(cpus))

    def strays(self, cpus: frozenset[int]) -> bool:
        return self.pins_itself_on is not None and self.mask == self.pins_itself_on

    def workers(self) -> int:
        return self.count_of_workers

    def stress(self, resource: str) -> Callable[[frozenset[int]], Trial]:
        def start(cpus: frozenset[int]) -> Trial:
            self.stressed = resource
            return self

        return start

    def stop(self) -> None:
        self.stressed = ""

    def reading(self) -> StepReading:
        return StepReading(count=int(self.steps), source="optimizer", first=99.0, last=self.last)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        if self.pause[0] <= self.now < self.pause[1]:
            return
        speed = self.rate(len(self.mask)) / self.slower.get(self.stressed, 1.0)
        before, self.steps = int(self.steps), self.steps + speed * seconds
        if int(self.steps) > before:
            self.last = self.now - (self.steps - int(self.steps)) / speed

    def make_profiler(self, seconds: float = 3600.0, *, stress: tuple[str, ...] = (), **pace: float) -> Profiler:
        return Profiler(
            self,
            {k: frozenset(range(k)) for k in range(1, len(self.full) + 1)},
            full=self.full,
            start=self.now,
            deadline=self.now + seconds,
            stress={resource: self.stress(resource) for resource in stress},
            pace=MeasurementWindow(**pace) if pace else None,  # type: ignore[arg-type]
        )


def run_profiler(trial: Trial, seconds: float = 3600.0, **given: object) -> Profiled:
    profiler = trial.make_profiler(seconds, **given)  # type: ignore[arg-type]
    for _ in range(200_000):
        trial.advance(0.05)
        if profiler.look(trial.now, trial.reading()):
            return profiler.result()
    raise AssertionError("it never ended")


def speeds(found: Profiled) -> dict[int, float]:
    return {point.cpus: round(point.steps_per_s) for point in found.curve}


def test_the_search_halves_then_narrows_and_measures_each_point_twice() -> None:
    trial = Trial(lambda k: min(10.0 * k, 60.0))
    found = run_profiler(trial)
    assert speeds(found) == {1: 10, 4: 40, 5: 50, 6: 60, 8: 60, 16: 60, 32: 60, 64: 60}
    assert trial.history == [64, 32, 16, 8, 4, 6, 5, 4, 5, 6, 8, 16, 32, 64, 1, 64]
    assert {point.rounds for point in found.curve} == {2}
    assert found.end == "allocation"


def test_the_trial_gets_all_its_cpus_back_at_the_end() -> None:
    trial = Trial(lambda k: 10.0 * k, cpus=4)
    run_profiler(trial)
    assert trial.mask == trial.full


def test_closing_during_the_sweep_restores_the_cpus_and_stops_a_stressor() -> None:
    trial = Trial(lambda k: 10.0 * k, cpus=4)
    profiler = trial.make_profiler(stress=("cpu",))
    while not trial.stressed:
        trial.advance(0.05)
        profiler.look(trial.now, trial.reading())
    profiler.close()
    assert (trial.stressed, trial.mask) == ("", trial.full)


def test_a_job_that_needs_one_cpu_is_measured_by_halving_only() -> None:
    trial = Trial(lambda k: 40.0)
    assert speeds(run_profiler(trial)) == {1: 40, 2: 40, 4: 40, 8: 40, 16: 40, 32: 40, 64: 40}


def test_a_job_with_one_cpu_has_a_curve_of_one_point() -> None:
    found = run_profiler(Trial(lambda k: 40.0, cpus=1))
    assert (speeds(found), found.end) == ({1: 40}, "allocation")


def test_the_speed_on_all_cpus_and_its_window_are_reported() -> None:
    found = run_profiler(Trial(lambda k: min(10.0 * k, 60.0), cpus=8))
    assert found.full_speed == pytest.approx(60.0, rel=0.01)
    assert found.full is not None
    assert found.full[1] - found.full[0] >= 10.0


def test_two_different_measurements_get_a_third_and_the_median_is_used() -> None:
    trial = Trial(lambda k: 40.0, cpus=4)
    noisy = iter([0.5] + [1.0] * 100)  # something else runs while 2 CPUs are measured for the first time
    factor = {"now": 1.0}

    def hold(cpus: frozenset[int]) -> None:
        if cpus != trial.mask:
            factor["now"] = next(noisy) if len(cpus) == 2 else 1.0
        Trial.hold(trial, cpus)

    trial.hold = hold  # type: ignore[method-assign]
    trial.rate = lambda k: 40.0 * factor["now"]
    found = run_profiler(trial)
    assert [(point.cpus, round(point.steps_per_s), point.rounds) for point in found.curve][1] == (2, 40, 3)


def test_points_measured_before_the_time_is_up_are_kept() -> None:
    trial = Trial(lambda k: min(10.0 * k, 300.0))
    found = run_profiler(trial, 20.0, settle_s=2.0, window_s=5.0, window_steps=20)
    assert (sorted(speeds(found), reverse=True)[0], found.end) == (64, "time")
    assert trial.mask == trial.full


def test_a_search_that_was_finished_when_the_time_was_up_is_complete() -> None:
    trial = Trial(lambda k: min(10.0 * k, 30.0), cpus=4)
    # 32 s are enough for a little more than three points
    found = run_profiler(trial, 32.0, settle_s=2.0, window_s=5.0, window_steps=20)
    assert (speeds(found), found.end) == ({2: 20, 3: 30, 4: 30}, "allocation")


def test_a_job_too_slow_for_the_time_limit_has_no_curve() -> None:
    found = run_profiler(Trial(lambda k: 0.01), 60.0)
    assert (found.curve, found.end, found.full) == ((), "time", None)


def test_code_that_already_set_its_own_cpu_mask_is_not_measured() -> None:
    trial = Trial(lambda k: 40.0)
    trial.pins_itself_on = trial.full
    assert run_profiler(trial) == Profiled(end="pinned", workers=None)


def test_code_that_sets_its_own_cpu_mask_during_the_sweep_ends_the_curve() -> None:
    trial = Trial(lambda k: 40.0)
    trial.pins_itself_on = frozenset(range(16))
    found = run_profiler(trial)
    assert (speeds(found), found.end) == ({32: 40, 64: 40}, "pinned")


def test_the_curve_ends_at_the_number_of_loader_workers() -> None:
    found = run_profiler(Trial(lambda k: min(10.0 * k, 40.0), workers=4))
    assert (found.end, found.workers) == ("workers", 4)


@pytest.mark.parametrize(
    ("workers", "cpus", "least", "end"),
    [(4, 16, 5, "workers"), (4, 16, 9, "allocation"), (0, 16, 1, "allocation"), (4, 5, 4, "allocation")],
)
def test_loader_workers_end_a_curve_only_if_they_limit_the_speed(workers: int, cpus: int, least: int, end: str) -> None:
    curve = [CurvePoint(cpus=k, steps_per_s=float(min(k, least))) for k in range(1, cpus + 1)]
    assert find_curve_end(curve, workers) == end


def test_sensitivity_is_the_slowdown_under_each_stressor() -> None:
    trial = Trial(lambda k: min(10.0 * k, 30.0), cpus=8)
    trial.slower = {"cpu": 2.0, "mem_bw": 1.25, "gpu": 0.9}
    found = run_profiler(trial, stress=("cpu", "mem_bw", "gpu"))
    assert found.sensitivity == pytest.approx({"cpu": 2.0, "mem_bw": 1.25, "gpu": 1.0}, rel=0.02)
    assert (trial.stressed, trial.mask) == ("", trial.full)


def test_measurements_that_never_agree_leave_time_for_the_stressors() -> None:
    trial, looks = Trial(lambda k: 40.0, cpus=4), iter(range(10_000))
    factor = {"now": 1.0}

    def hold(cpus: frozenset[int]) -> None:
        factor["now"] = 0.7 + 0.3 * (next(looks) % 4 // 2) if len(cpus) == 2 else 1.0
        Trial.hold(trial, cpus)

    trial.hold = hold  # type: ignore[method-assign]
    trial.rate = lambda k: 40.0 * factor["now"]
    trial.slower = {"cpu": 2.0}
    found = run_profiler(trial, 96.0, stress=("cpu",), settle_s=2.0, window_s=5.0, window_steps=20)
    assert (found.end, found.curve[0].rounds > 2) == ("allocation", True)
    assert found.sensitivity == pytest.approx({"cpu": 2.0}, rel=0.02)


def test_the_curve_is_complete_if_no_time_is_left_for_the_stressors() -> None:
    trial = Trial(lambda k: min(10.0 * k, 30.0), cpus=4)
    found = run_profiler(trial, 34.0, stress=("cpu",), settle_s=1.0, window_s=3.0, window_steps=20)
    assert (found.end, found.sensitivity, trial.stressed) == ("allocation", {}, "")


def test_slowdown_is_unknown_if_the_speed_also_changes_without_a_stressor() -> None:
    assert compute_slowdown(10.0, 8.0, 6.0) is None
    assert compute_slowdown(10.0, 4.0, 9.5) == pytest.approx(2.4, abs=0.1)
    assert compute_slowdown(10.0, 11.0, 10.0) == 1.0
    assert compute_slowdown(10.0, 0.0, 10.0) is None


def test_the_cpu_stressor_shares_the_cpus_and_the_memory_stressor_uses_others() -> None:
    masks = {k: frozenset(range(k)) for k in (1, 2, 3, 4)}
    four = masks[4]
    assert split_stress_masks("cpu", masks, 2) == (four, four)
    assert split_stress_masks("mem_bw", masks, 2) == (masks[2], frozenset({2, 3}))
    assert split_stress_masks("mem_bw", masks, 4) == (masks[3], frozenset({3}))
    assert split_stress_masks("mem_bw", masks, None) == (masks[3], frozenset({3}))
    assert split_stress_masks("mem_bw", {4: four}, 1) == (four, frozenset())
    assert split_stress_masks("mem_bw", {1: masks[1]}, 1) == (masks[1], frozenset())


def test_a_restarted_step_count_restarts_the_measurement_window() -> None:
    trial = Trial(lambda k: 20.0, cpus=1)
    profiler = trial.make_profiler()
    for look in range(2000):
        trial.advance(0.05)
        if look == 150:  # 7.5 s: within the first window
            trial.steps = 0.0
        done = profiler.look(trial.now, StepReading() if look % 50 == 0 else trial.reading())
        if done:
            break
    assert [point.steps_per_s for point in profiler.result().curve] == pytest.approx([20.0], rel=0.01)


def readings(*pairs: tuple[int, float]) -> list[StepReading]:
    return [StepReading(count=count, last=last) for count, last in pairs]


def test_the_rate_is_computed_from_the_times_of_steps() -> None:
    assert compute_rate(readings((10, 1.0), (30, 2.0), (50, 3.0)), workers=0) == pytest.approx(20.0)
    assert compute_rate(readings((10, 1.0)), workers=0) == 0.0


def test_a_validation_pause_does_not_lower_the_rate() -> None:
    steps = readings(*((n, n / 10) for n in range(100)), *((100 + n, 40 + n / 10) for n in range(100)))
    assert compute_rate(steps, workers=2) == pytest.approx(10.0, rel=0.02)


def test_bursts_of_a_data_loader_are_included_in_the_rate() -> None:
    bursts = readings(*((8 * burst + n, burst * 4.0 + n * 0.01) for burst in range(6) for n in range(8)))
    assert compute_rate(bursts, workers=8) == pytest.approx(47 / 20.07, rel=0.01)


def test_a_trial_is_warm_after_enough_steps_or_two_equal_windows() -> None:
    compiling = [(n, 30.0 + n * 0.1 if n else 0.0) for n in range(51)]
    assert not is_warm(readings(*compiling[:30]), 50)
    assert is_warm(readings(*compiling[:45]), 50)  # neither window contains the first step, which compiled
    slowing = [(n, (n / 10) ** 2) for n in range(60)]
    assert not is_warm(readings(*slowing[:50]), 50)
    assert is_warm(readings(*slowing), 50)


def test_windows_are_short_if_time_is_short_and_otherwise_of_normal_length() -> None:
    assert make_measurement_window(10_000.0, 64) == MeasurementWindow()
    short = make_measurement_window(60.0, 4)
    assert 3.0 <= short.window_s < 10.0
    assert short.window_steps < 100
    assert make_measurement_window(1.0, 64).window_s == 3.0


@pytest.mark.parametrize("rate", [0.1, 10.0])
def test_a_trial_is_warm_if_its_speed_changes_by_less_than_a_twentieth_at_any_speed(rate: float) -> None:
    def two_windows(change: float) -> list[StepReading]:
        middle = 20 / rate
        return readings((0, 0.0), (20, middle), (40, middle + 20 / (rate * change)))

    assert is_warm(two_windows(1.03), 50)
    assert not is_warm(two_windows(1.08), 50)
