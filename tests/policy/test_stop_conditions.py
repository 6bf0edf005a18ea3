"""When a running job has reached the plateau that its user named, and when its loss has diverged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from slurmwrap.model.running_job import CountedLosses, LossPoint
from slurmwrap.policy.stop_conditions import (
    find_plateau,
    format_diverged_reason,
    format_plateau_reason,
    is_diverged,
)
from slurmwrap.sbatch.stop_option import Plateau

DEFAULT = Plateau()


def make_points(
    loss: Callable[[float], float], steps: int = 10_000, noise: float = 0.0, seed: int = 1, count: int = 200
) -> tuple[LossPoint, ...]:
    draw = random.Random(seed)
    xs = [steps * (number + 1) / count for number in range(count)]
    return tuple(LossPoint(at_s=x, step=x, loss=loss(x) + noise * draw.gauss(0, 1)) for x in xs)


def settled(k: float) -> float:
    return 2.0 + 3.0 * math.exp(-k / 600)


def falling(k: float) -> float:
    return 5.0 - 2.0 * k / 10_000


def test_a_run_whose_loss_has_settled_is_on_a_plateau() -> None:
    reached = find_plateau(make_points(settled), DEFAULT)
    assert reached is not None
    assert reached.gain < 1e-3 and reached.loss == pytest.approx(2.0, rel=1e-3) and reached.steps == 10_000
    assert format_plateau_reason("plateau:0.1%/20%", DEFAULT, reached, 9500) == (
        "stopped at your --stop-at=plateau:0.1%/20%: its loss fell by 0.00035 % in the last 20 % of its 10,000 steps, "
        "to 2; its checkpoint of step 9,500 was seen before"
    )


@pytest.mark.parametrize(
    "points",
    [
        make_points(falling),
        make_points(falling, noise=0.5),
        make_points(settled, steps=2000),
        make_points(settled, noise=0.3),  # the noise hides more than 0.1 %
        make_points(lambda k: 2.0),  # it never fell
        make_points(lambda k: 2.0 + k / 10_000),  # it rises
        make_points(settled, count=90),  # too few
        (),
        tuple(LossPoint(at_s=float(i), loss=1.0) for i in range(300)),  # without steps
    ],
)
def test_other_runs_are_on_no_plateau(points: tuple[LossPoint, ...]) -> None:
    assert find_plateau(points, DEFAULT) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_fall_below_the_noise_is_no_plateau(seed: int) -> None:
    slow = make_points(lambda k: 2.0 + 3.0 * math.exp(-k / 600) - 0.4 * k / 10_000, noise=0.1, seed=seed)
    assert find_plateau(slow, DEFAULT) is None
    # It falls by 4 % in a fifth of the run.
    assert find_plateau(slow, Plateau(gain=0.02, share=0.2)) is None


def test_noise_needs_a_greater_gain() -> None:
    noisy = make_points(settled, noise=0.01)
    assert find_plateau(noisy, DEFAULT) is None
    assert find_plateau(noisy, Plateau(gain=0.01, share=0.2)) is not None


def test_the_share_is_one_of_the_whole_run_if_its_steps_are_known() -> None:
    points = make_points(settled)
    assert find_plateau(points, DEFAULT, total=10_000.0) is not None
    assert find_plateau(points, DEFAULT, total=20_000.0) is not None  # the last 4,000 steps
    # The last 8,000 steps contain the fall, and before a second fifth nothing is decided.
    assert find_plateau(points, DEFAULT, total=40_000.0) is None
    assert find_plateau(points, DEFAULT, total=5000.0) is not None  # it makes more steps than that


def test_spikes_do_not_end_a_plateau() -> None:
    points = list(make_points(settled, noise=1e-4))
    for i in (165, 180, 195):
        points[i] = LossPoint(at_s=points[i].at_s, step=points[i].step, loss=90.0)
    assert find_plateau(points, DEFAULT) is not None


def test_ten_losses_that_are_no_numbers_are_a_divergence() -> None:
    assert not is_diverged(CountedLosses(taken=500, bad=400, bad_at_end=9))
    diverged = CountedLosses(taken=500, bad=12, bad_at_end=10)
    assert is_diverged(diverged)
    assert format_diverged_reason(diverged) == (
        "stopped at your --stop-when=diverged: its last 10 recorded losses are NaN or infinite"
    )
