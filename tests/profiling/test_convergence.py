"""When a training stopped to improve, on generated curves whose answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest

from slurmwrap.model.running_job import LossPoint
from slurmwrap.profiling.convergence import NEAR, measure_convergence

RUN_S = 36_000.0
Curve = Callable[[float], float]  # loss at a share of the run
CURVES: dict[str, Curve] = {
    "exponential": lambda x: 1 + 2 * math.exp(-20 * x),
    "power": lambda x: 2 + 3 / (1 + 300 * x),
    "learning rate drops": lambda x: 1 + 0.5 * math.exp(-30 * x) + (0.2 if x < 0.4 else 0.05 if x < 0.7 else 0),
    "rises again": lambda x: 1 + 0.6 * math.exp(-12 * x) + max(0.0, 0.5 * (x - 0.6)),
    "negative": lambda x: -3 + 2 * math.exp(-15 * x),
}


def points(values: Iterable[float | None], per_step: float = 10.0) -> list[LossPoint]:
    values = list(values)
    return [
        LossPoint(at_s=RUN_S * (i + 1) / len(values), step=per_step * (i + 1), loss=value)
        for i, value in enumerate(values)
    ]


def truth(values: list[float]) -> tuple[float, float]:
    """Return the share of the time until 0.1 % above the lowest value, and of the steps until the lowest one."""
    lowest = min(values)
    near = next(i for i, value in enumerate(values) if value <= lowest + NEAR * abs(lowest))
    return (near + 1) / len(values), (values.index(lowest) + 1) / len(values)


@pytest.mark.parametrize("n", [50, 256, 4000])
@pytest.mark.parametrize("name", CURVES)
def test_both_shares_of_a_curve_without_noise_are_right(name: str, n: int) -> None:
    values = [CURVES[name]((i + 1) / n) for i in range(n)]
    found = measure_convergence(points(values), RUN_S)
    assert found is not None and found.epoch_share is not None
    time_share, epoch_share = truth(values)
    assert found.time_share == pytest.approx(time_share, abs=0.02)
    # Where the last values are equal but for their rounding, any of them may be the lowest one.
    assert (
        found.epoch_share == pytest.approx(epoch_share, abs=0.02)
        or values[int(found.epoch_share * n) - 1] < min(values) + 1e-6
    )


@pytest.mark.parametrize("trouble", ["noise", "spikes", "nan at the end", "resumed"])
@pytest.mark.parametrize("name", CURVES)
def test_noise_spikes_and_restarts_change_the_share_of_time_by_at_most_two_points(name: str, trouble: str) -> None:
    generator = random.Random(name + trouble)
    n = 4000
    clean = [CURVES[name]((i + 1) / n) for i in range(n)]
    order = [*range(n // 2), *range(n // 2 - n // 10, n)] if trouble == "resumed" else list(range(n))
    if trouble == "nan at the end":
        order = order[: int(0.9 * n)]
    noisy: list[float | None] = [clean[i] * (1 + generator.gauss(0, 0.0005)) for i in order]
    if trouble == "spikes":
        noisy = [one * generator.uniform(1, 9) if generator.random() < 0.01 and one else one for one in noisy]
    expected, _ = truth([clean[i] for i in order])
    share = len(order) / n
    if trouble == "nan at the end":
        noisy += [None] * (n - len(order))
    else:
        share = 1.0
    found = measure_convergence(points(noisy), RUN_S)
    assert found is not None
    assert found.time_share == pytest.approx(expected * share, abs=0.02)


def test_the_lowest_loss_is_that_of_the_curve_and_not_of_its_luckiest_value() -> None:
    generator = random.Random(7)
    values = [1 + generator.gauss(0, 0.02) for _ in range(5000)]
    found = measure_convergence(points(values), RUN_S)
    assert found is not None
    assert min(values) < 0.94
    assert found.lowest == pytest.approx(1.0, abs=0.005)


def test_epochs_count_for_a_run_that_shows_no_steps() -> None:
    losses = [3.0, 2.0, 1.0, 1.5, 1.6]
    found = measure_convergence(
        [LossPoint(at_s=100.0 * (i + 1), epoch=float(i), loss=loss) for i, loss in enumerate(losses)], 500.0
    )
    assert found is not None
    # Epochs that count from 0: the third one of five.
    assert found.epoch_share == pytest.approx(0.6)
    # Straight lines are drawn between the points, from 2.0 at 200 s to 1.0 at 300 s.
    assert found.time_share == pytest.approx((299.9) / 500)


def test_the_steps_of_a_resumed_run_count_from_where_it_began() -> None:
    losses = [3.0, 2.0, 1.0, 1.5, 1.6]
    resumed = [LossPoint(at_s=1.0 + i, step=5000.0 + 10 * i, loss=loss) for i, loss in enumerate(losses)]
    found = measure_convergence(resumed, 5.0)
    assert found is not None
    assert found.epoch_share == pytest.approx(0.6)


def test_steps_with_a_loss_of_nan_were_done_as_well() -> None:
    found = measure_convergence(points([5.0, 4.0, 3.0, 2.0, 1.0, *[None] * 5]), RUN_S)
    assert found is not None
    assert (found.epoch_share, found.time_share) == (0.5, pytest.approx(0.5, abs=0.001))


def test_a_training_without_training_losses_is_measured_by_its_validation() -> None:
    losses = [3.0, 2.0, 1.0, 1.5, 1.6]
    shown = [LossPoint(at_s=float(i), validation_loss=loss) for i, loss in enumerate(losses)]
    found = measure_convergence(shown, 4.0)
    assert found is not None
    assert (found.lowest, found.epoch_share) == (1.0, None)


@pytest.mark.parametrize("values", [[], [1.0] * 4, [None] * 9])
def test_too_few_values_say_nothing(values: list[float | None]) -> None:
    assert measure_convergence(points(values), RUN_S) is None


def test_odd_values_are_no_error() -> None:
    for values in ([0.0] * 300, [1e300, -1e300] * 200, [1.0] * 300, [5.0, 0.0, *[1e-9] * 50]):
        found = measure_convergence(points(values), RUN_S)
        assert found is None or 0 <= found.time_share <= 1
    same_time = [LossPoint(at_s=1.0, loss=float(i % 7)) for i in range(90)]
    assert measure_convergence(same_time, 1.0) is not None
    assert measure_convergence(same_time, 0.0) is None
