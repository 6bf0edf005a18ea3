"""The predicted loss curve: known curves, noise, outliers, odd input; the dominated members of a sweep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from slurmwrap.model.running_job import LossPoint
from slurmwrap.profiling.loss_fit import LAST, OPTIMUS, LossFit, find_dominated, fit_loss, list_values, smooth


def make_points(
    loss: Callable[[float], float], steps: int = 5000, noise: float = 0.0, seed: int = 1, total: int = 200
) -> tuple[LossPoint, ...]:
    """`total` points of a curve up to `steps`."""
    draw = random.Random(seed)
    xs = [steps * (number + 1) / total for number in range(total)]
    return tuple(LossPoint(at_s=x / 10, step=x, loss=loss(x) * (1 + noise * draw.gauss(0, 1))) for x in xs)


def inverse(k: float) -> float:
    return 1 / (0.002 * k + 0.4) + 1.5


def decay(k: float) -> float:
    return 2.0 * math.exp(-k / 2500) + 1.5


def settled(k: float) -> float:
    return 1.5 + 2.0 * math.exp(-k / 200)


@pytest.mark.parametrize("curve", [inverse, decay, settled])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_final_loss_of_a_known_curve_is_predicted(curve: Callable[[float], float], noise: float) -> None:
    fit = fit_loss(make_points(curve, noise=noise), 10_000)
    assert fit is not None
    true = curve(9750)
    assert fit.final == pytest.approx(true, rel=0.025)
    assert fit.low <= fit.final <= fit.high
    assert fit.low - 0.01 <= true <= fit.high + 0.01
    assert fit.now == pytest.approx(curve(4900), rel=0.03)


def test_the_family_that_predicted_best_is_named() -> None:
    flat = fit_loss(make_points(lambda k: 2.0, noise=0.05), 10_000)
    falling = fit_loss(make_points(inverse), 10_000)
    assert (flat and flat.family, falling and falling.family) == (LAST, OPTIMUS)
    assert flat is not None and abs(flat.improvement) < 0.01
    assert falling is not None
    assert falling.improvement == pytest.approx((inverse(4900) - inverse(9750)) / inverse(4900), abs=0.01)


def test_the_remaining_steps_to_a_loss_near_the_final_one() -> None:
    fit = fit_loss(make_points(inverse), 10_000)
    assert fit is not None
    left = fit.find_steps_to(0.02)
    assert left is not None and 0 < left < 5000
    assert inverse(5000 + left) == pytest.approx(1.02 * fit.final, rel=0.01)
    assert fit.find_steps_to(0.5) == 0
    assert fit.find_steps_to(-0.01) is None


def test_more_noise_and_a_longer_rest_widen_the_band() -> None:
    def width(noise: float, total: float) -> float:
        fits = [fit_loss(make_points(decay, noise=noise, seed=seed), total) for seed in range(5)]
        return sum(fit.high - fit.low for fit in fits if fit is not None)

    assert width(0.0, 10_000) < width(0.05, 10_000)
    assert width(0.02, 6000) < width(0.02, 40_000)


def test_spikes_do_not_change_the_prediction() -> None:
    points = list(make_points(decay, noise=0.01))
    clean = fit_loss(points, 10_000)
    for i in (30, 77, 120, 190):
        points[i] = LossPoint(at_s=points[i].at_s, step=points[i].step, loss=80.0)
    spiky = fit_loss(points, 10_000)
    assert clean is not None and spiky is not None
    assert spiky.final == pytest.approx(clean.final, rel=0.02)
    assert max(smooth([1.0] * 20 + [50.0] + [1.0] * 20)) == 50.0  # without any spread there is no outlier


def test_losses_below_zero_and_rising_ones_are_fitted() -> None:
    below = fit_loss(make_points(lambda k: decay(k) - 10), 10_000)
    rising = fit_loss(make_points(lambda k: 1 + k / 5000), 10_000)
    assert below is not None and below.final == pytest.approx(decay(9750) - 10, rel=0.02)
    # No family rises: the last value is all that is known, and the band is wide.
    assert rising is not None and rising.family == LAST and rising.high - rising.low > 0.5


def test_a_loss_that_cannot_be_negative_has_no_band_below_zero() -> None:
    fit = fit_loss(make_points(lambda k: 1e-3 * math.exp(-k / 900), noise=0.1), 20_000)
    assert fit is not None and fit.low >= 0


@pytest.mark.parametrize(
    ("points", "total"),
    [
        ((), 100.0),
        (make_points(decay, total=15), 10_000.0),
        (make_points(decay), 5000.0),
        (make_points(decay), math.nan),
        (tuple(LossPoint(at_s=1.0, loss=1.0) for _ in range(50)), 100.0),
        (tuple(LossPoint(at_s=float(i), step=3.0, loss=1.0) for i in range(50)), 100.0),
        (tuple(LossPoint(at_s=float(i), step=float(i), loss=math.nan) for i in range(50)), 100.0),
    ],
)
def test_nothing_is_predicted_from_too_little(points: tuple[LossPoint, ...], total: float) -> None:
    assert fit_loss(points, total) is None


@pytest.mark.parametrize("loss", [0.0, 1e-30, 1e30, -1e12])
def test_constant_losses_of_any_size_are_predicted_as_they_are(loss: float) -> None:
    fit = fit_loss(make_points(lambda k: loss), 10_000)
    assert fit is not None and fit.final == pytest.approx(loss, abs=1e-300)


def test_points_are_ordered_by_the_unit_and_a_step_back_drops_the_older_ones() -> None:
    points = [LossPoint(at_s=float(i), step=s, loss=y) for i, (s, y) in enumerate([(1, 9), (2, 8), (3, 7), (2, 6)])]
    assert list_values(points) == ([1, 2], [9, 6])
    assert list_values(points, "at_s") == ([0, 1, 2, 3], [9, 8, 7, 6])
    assert list_values([LossPoint(at_s=0.0, epoch=0.5, loss=2.0)], "epoch") == ([0.5], [2.0])
    by_time = fit_loss(make_points(decay), 1000.0, "at_s")
    by_step = fit_loss(make_points(decay), 10_000.0)
    assert by_time is not None and by_step is not None and by_time.final == pytest.approx(by_step.final)


def make_fit(final: float, spread: float = 0.05, step: float = 500.0) -> LossFit:
    return LossFit(
        final=final, low=final - spread, high=final + spread, now=final + 0.1, step=step, total=1000.0, family=LAST,
        curve=(),
    )  # fmt: skip


def test_members_that_will_hardly_become_the_best_are_dominated() -> None:
    fits = {"77_1": make_fit(1.8), "77_2": make_fit(2.6), "77_3": make_fit(1.85), "77_4": make_fit(1.95), "77_5": None}
    found = find_dominated(fits)
    assert [(one.name, one.best) for one in found] == [("77_2", "77_1"), ("77_4", "77_1")]
    assert found[0].probability > 0.999 and 0.95 <= found[1].probability < 1
    assert find_dominated({}) == find_dominated({"77_5": None}) == find_dominated({"77_1": make_fit(1.8)}) == ()


def test_uncertain_and_young_members_are_not_judged() -> None:
    assert find_dominated({"a": make_fit(1.8), "b": make_fit(2.6, spread=1.5)}) == ()
    assert find_dominated({"a": make_fit(1.8, spread=1.5), "b": make_fit(2.6)}) == ()
    assert find_dominated({"a": make_fit(1.8), "b": make_fit(2.6, step=100.0)}) == ()
    assert find_dominated({"a": make_fit(1.8), "b": make_fit(1.9)}, certainty=0.5) != ()
