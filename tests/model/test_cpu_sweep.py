"""The CPU sweep: which point is measured next, which points are unsettled, and how many CPUs are enough."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model.cpu_sweep import (
    best_rate,
    bound_rate,
    choose_next_cpus,
    choose_uncertain_cpus,
    curve_of,
    least_cpus,
    list_unsettled_points,
)
from slurmwrap.model.resource_profile import CurvePoint


def make_curve(**rates: float) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(cpus=int(k[1:]), steps_per_s=rate) for k, rate in rates.items())


def list_searched_cpus(rate: Callable[[int], float], sizes: list[int]) -> list[int]:
    rounds: dict[int, list[float]] = {}
    while (cpus := choose_next_cpus(curve_of(rounds), sizes)) is not None:
        rounds[cpus] = [rate(cpus)]
    return list(rounds)


def test_a_curve_point_is_the_median_of_its_rounds() -> None:
    assert curve_of({4: [10.0, 12.0, 11.0], 2: [6.0], 1: []}) == (
        CurvePoint(cpus=2, steps_per_s=6.0, spread=0.0, rounds=1),
        CurvePoint(cpus=4, steps_per_s=11.0, spread=0.0909, rounds=3),
    )


def test_least_cpus_are_within_five_percent_of_the_best_rate() -> None:
    assert least_cpus(make_curve(c1=50.0, c2=94.9, c3=95.0, c4=100.0)) == 3
    assert least_cpus(make_curve(c1=100.0, c2=100.0)) == 1
    assert least_cpus(()) is None
    assert least_cpus(make_curve(c1=0.0)) is None


def test_only_a_deep_dip_at_more_cpus_changes_least_cpus() -> None:
    assert least_cpus(make_curve(c2=96.0, c3=94.0, c4=100.0)) == 2
    assert least_cpus(make_curve(c2=96.0, c3=92.0, c4=100.0)) == 4


def test_least_cpus_is_the_fastest_point_if_more_cpus_are_slower() -> None:
    assert least_cpus(make_curve(c1=97.0, c2=100.0, c4=80.0)) == 2


@pytest.mark.parametrize(
    ("rate", "sizes", "points"),
    [
        (lambda k: min(k, 10), range(1, 65), [64, 32, 16, 8, 12, 10, 9]),
        (lambda k: min(k, 3), range(1, 5), [4, 2, 3]),
        (lambda k: k, range(1, 9), [8, 4, 6, 7]),
        (lambda k: 1, range(1, 9), [8, 4, 2, 1]),
        (lambda k: min(k, 3), range(2, 17, 2), [16, 8, 4, 2]),  # cores with two threads
        (lambda k: 1, [6], [6]),
    ],
)
def test_the_search_halves_the_cpus_and_then_bisects(
    rate: Callable[[int], float], sizes: range, points: list[int]
) -> None:
    assert list_searched_cpus(rate, list(sizes)) == points


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(1, 64), st.integers(1, 64))
def test_the_search_finds_the_corner_of_any_roofline(top: int, corner: int) -> None:
    sizes = list(range(1, top + 1))
    points = list_searched_cpus(lambda k: float(min(k, corner)), sizes)
    whole = curve_of({k: [float(min(k, corner))] for k in sizes})
    found = curve_of({k: [float(min(k, corner))] for k in points})
    assert least_cpus(found) == least_cpus(whole)
    assert len(points) == len(set(points)) <= 2 + 2 * top.bit_length()


def test_best_rate_of_noisy_points_is_not_their_maximum() -> None:
    assert best_rate(make_curve(c1=50.0, c2=99.0, c3=104.0, c4=97.0)) == 100.5
    assert best_rate(make_curve(c1=50.0, c2=90.0, c4=100.0)) == 100.0
    assert best_rate(()) == 0.0


def sweep_with_noise(rate: Callable[[int], float], top: int, chance: random.Random) -> int | None:
    """least_cpus after a whole sweep with 2 % noise; one window in ten also loses 5 % to a third of its rate."""
    sizes, rounds = list(range(1, top + 1)), {}
    while True:
        again = list_unsettled_points(rounds)
        wanted = [found] if (found := choose_next_cpus(curve_of(rounds), sizes)) is not None else again
        if not wanted:
            return least_cpus(curve_of(rounds))
        for cpus in wanted:
            dip = chance.uniform(0.67, 0.95) if chance.random() < 0.1 else 1.0
            rounds.setdefault(cpus, []).append(rate(cpus) * dip * math.exp(chance.gauss(0, 0.02)))


@pytest.mark.parametrize("top", [4, 16, 64])
def test_noise_and_dips_change_least_cpus_by_at_most_one_in_90_percent_of_sweeps(top: int) -> None:
    chance = random.Random(11)
    found = [sweep_with_noise(lambda k: min(27.0 * k, 66.0), top, chance) for _ in range(80)]
    assert sum(cpus in (2, 3, 4) for cpus in found) >= 72


def test_a_dip_is_measured_again_even_if_its_rounds_agree() -> None:
    assert list_unsettled_points({4: [100.0, 100.0], 3: [80.0, 80.0], 2: [98.0, 98.0]}) == (3,)
    assert list_unsettled_points({4: [100.0, 100.0], 3: [80.0] * 7, 2: [98.0, 98.0]}) == ()
    # one more CPU cannot raise the rate by a quarter
    assert list_unsettled_points({64: [100.0] * 2, 33: [100.0] * 2, 32: [80.0] * 2}) == (32,)


def test_no_search_if_the_rate_is_zero() -> None:
    assert list_searched_cpus(lambda k: 0.0, [1, 2, 4]) == [4]


def test_wide_gaps_below_least_cpus_and_the_smallest_size_are_measured() -> None:
    sizes = list(range(1, 25))
    known = {24: 24.0, 16: 16.0}
    found = []
    while (cpus := choose_uncertain_cpus(curve_of({k: [v] for k, v in known.items()}), sizes)) is not None:
        known[cpus] = float(cpus)
        found.append(cpus)
    assert found == [1, 4]


def test_a_size_is_measured_if_the_points_around_it_leave_its_speed_open() -> None:
    # Up to 2 CPUs the speed may rise as steeply as from none, or be as flat as from 2 to 4: 25.3 to 46.1 on 1 CPU.
    measured = make_curve(c2=50.6, c3=55.1, c4=56.5)
    assert bound_rate(measured, 1) == pytest.approx((25.3, 46.1))
    assert choose_uncertain_cpus(measured, [1, 2, 3, 4]) == 1
    assert choose_uncertain_cpus(measured, [2, 3, 4]) is None
    # A knee between 4 and 8 CPUs; between 1 and 4 the points are on one line.
    knee = make_curve(c1=10.0, c4=40.0, c8=60.0, c16=60.0)
    assert bound_rate(knee, 2) == pytest.approx((20.0, 20.0))
    assert bound_rate(knee, 6) == pytest.approx((50.0, 60.0))
    assert choose_uncertain_cpus(knee, range(1, 17)) in (5, 6, 7)


def test_the_smallest_size_is_not_measured_if_twice_the_size_was_on_a_line() -> None:
    assert choose_uncertain_cpus(make_curve(c2=2.0, c3=3.0, c4=3.0), [1, 2, 3, 4], unsure=math.inf) is None
    assert choose_uncertain_cpus(make_curve(c2=2.0, c3=3.0, c4=4.0), [1, 2, 3, 4]) is None
    assert choose_uncertain_cpus(make_curve(c3=3.0, c4=3.0), [1, 2, 3, 4]) == 1
    assert choose_uncertain_cpus((), [1, 2]) is None


def test_points_with_one_round_or_two_different_rounds_are_unsettled() -> None:
    assert list_unsettled_points({4: [100.0, 101.0], 2: [50.0], 1: [20.0, 22.0]}) == (2, 1)
    assert list_unsettled_points({4: [100.0, 101.0], 1: [30.0, 32.0, 31.0]}) == ()


def test_a_borderline_point_gets_more_rounds_up_to_a_limit() -> None:
    assert list_unsettled_points({4: [100.0, 100.0], 2: [90.0, 94.0, 98.0]}) == (2,)
    # Two of three agree, but their mean is at the limit of 95.
    agree = {4: [100.0, 100.0], 2: [90.0, 97.0, 98.0]}
    assert list_unsettled_points(agree) == (4, 2)
    assert list_unsettled_points(agree, near_limit=False) == ()
    assert list_unsettled_points({4: [100.0] * 3, 2: [97.0, 98.0, 97.5]}) == ()
    noisy = {4: [100.0] * 7, 2: [88.0, 91.0, 84.0, 94.2, 98.0, 102.0, 106.0]}
    assert list_unsettled_points(noisy) == ()
    assert list_unsettled_points({**noisy, 4: [100.0] * 2}) == (4,)  # with this noise the best speed is uncertain
