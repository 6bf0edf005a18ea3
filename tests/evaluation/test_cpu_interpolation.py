"""Interpolated speeds between measured points: known shapes, and the profiles that Synergy's authors published."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cpu_interpolation import fit, predict

from slurmwrap.model.cpu_sweep import choose_next_cpus, choose_uncertain_cpus, curve_of
from slurmwrap.model.resource_profile import CurvePoint

# Speed by CPUs relative to 3 of them, hand-rounded, V100: msr-fiddle/synergy 1bb2bed6 simulator/models/*_1.py (MIT).
CPUS = (1, 2, 3, 4, 5, 6, 9, 12, 24)
SYNERGY = {
    "alexnet, 62.5 GB": (0.3, 0.66, 1.0, 1.25, 1.53, 1.75, 2.0, 2.0, 2.0),
    "alexnet, 125 GB": (0.3, 0.66, 1.0, 1.25, 1.53, 1.75, 2.0, 2.94, 2.94),
    "res18": (0.37, 0.72, 1.0, 1.3, 1.53, 1.75, 2.4, 2.4, 2.4),
    "res50": (0.4, 0.74, 1.0, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15),
    "mobilenet": (0.37, 0.72, 1.0, 1.3, 1.49, 1.55, 1.55, 1.55, 1.55),
    "m5, 187.5 GB": (0.3, 0.66, 1.0, 1.2, 1.4, 2.5, 2.5, 2.5, 2.5),
    "deepspeech": (0.3, 0.66, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "lstm": (1.0,) * 9,
}
SHAPES: dict[str, Callable[[int], float]] = {
    "amdahl": lambda k: 1 / (0.01 + 0.05 / k),
    "roofline": lambda k: min(27.0 * k, 66.0),
    "round corner": lambda k: (0.015**4 + (0.06 / k) ** 4) ** -0.25,
    "very round corner": lambda k: (0.015**2 + (0.2 / k) ** 2) ** -0.5,
    "flat": lambda k: 5.0,
    "linear": lambda k: 3.0 * k,
}


def sweep_curve(truth: dict[int, float]) -> tuple[CurvePoint, ...]:
    """Return the curve that a sweep measures, without noise."""
    sizes, rounds = sorted(truth), {}
    while (
        cpus := choose_next_cpus(curve_of(rounds), sizes) or choose_uncertain_cpus(curve_of(rounds), sizes)
    ) is not None:
        rounds[cpus] = [truth[cpus]]
    return curve_of(rounds)


def compute_errors(curve: tuple[CurvePoint, ...], truth: dict[int, float]) -> dict[int, float]:
    measured = {point.cpus for point in curve}
    return {k: abs((predict(curve, k) or 0.0) / rate - 1) for k, rate in truth.items() if k not in measured}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("top", [4, 8, 16, 64])
def test_usual_shapes_are_predicted_within_one_percent(shape: str, top: int) -> None:
    truth = {k: SHAPES[shape](k) for k in range(1, top + 1)}
    assert max(compute_errors(sweep_curve(truth), truth).values(), default=0.0) < 0.01


@pytest.mark.parametrize("model", SYNERGY)
def test_published_profiles_are_predicted_within_five_percent_from_a_sweep(model: str) -> None:
    truth = dict(zip(CPUS, SYNERGY[model], strict=True))
    assert max(compute_errors(sweep_curve(truth), truth).values(), default=0.0) < 0.05


def test_prediction_at_measured_points_is_the_measurement() -> None:
    truth = dict(zip(CPUS, SYNERGY["alexnet, 125 GB"], strict=True))
    curve = curve_of({k: [rate] for k, rate in truth.items()})
    assert {k: predict(curve, k) for k in truth} == pytest.approx(truth)


def test_prediction_between_two_points_is_between_their_speeds() -> None:
    curve = curve_of({2: [10.0], 4: [10.5], 8: [30.0]})
    assert 10.0 <= (predict(curve, 3) or 0.0) <= 10.5
    assert 10.5 <= (predict(curve, 6) or 0.0) <= 30.0
    dip = curve_of({2: [30.0], 4: [10.0]})
    assert 10.0 <= (predict(dip, 3) or 0.0) <= 30.0


def test_prediction_above_the_last_point_is_constant() -> None:
    assert predict(curve_of({1: [10.0], 4: [40.0]}), 8) == 40.0


def test_prediction_below_the_first_point_follows_the_fit_and_is_not_faster() -> None:
    assert predict(curve_of({4: [40.0], 8: [80.0]}), 1) == pytest.approx(10.0)
    assert predict(curve_of({4: [40.0]}), 1) == pytest.approx(40.0)


def test_without_a_point_there_is_no_prediction() -> None:
    assert predict((), 4) is None
    assert predict(curve_of({4: [0.0]}), 4) is None
    assert predict(curve_of({4: [1.0]}), 0) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_fit_recovers_the_times_in_any_unit(scale: float) -> None:
    points = curve_of({k: [scale * (0.02**4 + (0.1 / k) ** 4) ** -0.25] for k in (1, 2, 3, 4, 6, 8, 16)})
    found = fit(points)
    assert (found.device_s * scale, found.cpu_s * scale, found.sharpness) == pytest.approx((0.02, 0.1, 4.0), rel=1e-6)
