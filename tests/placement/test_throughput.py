"""Speed over CPUs and memory: what is measured holds, what lies between is never promised too much."""

from __future__ import annotations

from itertools import pairwise

import pytest
from allocate_cases import points
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model.resource_profile import CurvePoint, ResourceProfile
from slurmwrap.placement.throughput import fill_curve, find_speed, level_curve, list_speed_points


def curve(*rates: tuple[int, float]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(cpus=cpus, steps_per_s=rate) for cpus, rate in rates)


def rates(points: tuple[CurvePoint, ...]) -> dict[int, float]:
    return {point.cpus: round(point.steps_per_s, 6) for point in points}


@pytest.mark.parametrize(
    ("cpus", "mem_mib", "speed"),
    [(1, 9, 0.0), (1, 10, 1.0), (1.9, 99, 1.0), (2, 10, 2.0), (5, 10, 2.0), (4, 20, 3.0), (0.5, 99, 0.0)],
)
def test_the_best_point_that_needs_no_more_counts(cpus: float, mem_mib: int, speed: float) -> None:
    assert find_speed(points((1, 10, 1.0), (2, 10, 2.0), (4, 20, 3.0)), cpus, mem_mib) == speed


def test_a_measured_surface_is_taken_as_it_is() -> None:
    known = points((1, 10, 1.0), (2, 10, 0.5))
    assert list_speed_points(ResourceProfile(key="k", surface=known, cpu_curve=curve((1, 9.0))), 64_000) == known


def test_without_a_curve_nothing_is_known() -> None:
    assert list_speed_points(ResourceProfile(key="k", mem_mib_per_gpu=5_000), 64_000) == ()


def test_a_curve_alone_holds_from_the_memory_that_the_job_was_seen_to_need() -> None:
    profile = ResourceProfile(key="k", mem_mib_per_gpu=5_000, cpu_curve=curve((1, 10.0), (2, 15.0)))
    assert list_speed_points(profile, 64_000) == points((1, 5_000, 10.0), (2, 5_000, 15.0))
    assert list_speed_points(profile, 4_000) == points((1, 4_000, 10.0), (2, 4_000, 15.0))


def test_where_storage_is_known_memory_counts_as_a_cache() -> None:
    """10,000 MiB per epoch at 500 MiB/s; storage gives 100: a fifth of the speed uncached, all of it cached."""
    profile = ResourceProfile(
        key="k", mem_mib_per_gpu=5_000, cpu_curve=curve((1, 10.0), (2, 20.0)), read_mib_per_s=500.0, dataset_mib=1e4
    )
    found = list_speed_points(profile, 64_000, storage_mib_per_s=100.0)
    assert find_speed(found, 2, 7_024) == pytest.approx(4.0)
    assert find_speed(found, 1, 7_024) == pytest.approx(4.0)  # storage binds, not CPUs
    assert find_speed(found, 2, 17_024) >= 0.95 * 20.0
    assert find_speed(found, 1, 17_024) == 10.0
    assert find_speed(found, 2, 7_023) == 0.0


def test_on_several_gpus_of_a_node_the_node_s_share_of_memory_counts_once() -> None:
    profile = ResourceProfile(key="k", mem_mib_per_gpu=5_000, cpu_curve=curve((1, 10.0)), read_mib_per_s=1.0)
    (point,) = list_speed_points(profile, 64_000, gpus=4, storage_mib_per_s=100.0)
    assert point.mem_mib == -(-(5_000 * 4 * 12 // 10 + 1024) // 4)


def test_a_dip_of_noise_is_levelled() -> None:
    assert rates(level_curve(curve((1, 10.0), (2, 21.0), (4, 19.0), (8, 30.0)))) == {1: 10, 2: 20, 4: 20, 8: 30}


def test_what_differs_from_the_best_by_no_more_than_two_rounds_do_is_the_best() -> None:
    assert rates(level_curve(curve((1, 9.6), (2, 9.8), (4, 10.0)))) == {1: 9.6, 2: 10.0, 4: 10.0}


def test_between_measured_points_a_concave_curve_is_filled_along_its_chord() -> None:
    assert rates(fill_curve(curve((1, 10.0), (2, 20.0), (4, 30.0), (8, 34.0)))) == {
        1: 10,
        2: 20,
        3: 25,
        4: 30,
        5: 31,
        6: 32,
        7: 33,
        8: 34,
    }


@pytest.mark.parametrize(
    "points",
    [
        ((2, 10.0), (4, 12.0), (6, 20.0)),  # it bends upwards at 4: neither side is known
        ((1, 10.0), (8, 30.0)),  # too far apart
        ((4, 10.0), (8, 10.0)),  # flat
    ],
)
def test_nothing_is_put_where_the_chord_may_lie_above_the_curve(points: tuple[tuple[int, float], ...]) -> None:
    assert fill_curve(curve(*points)) == curve(*points)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=40), st.data())
def test_a_concave_job_is_never_promised_more_than_it_gives(gains: list[float], draw: st.DataObject) -> None:
    """Any concave curve, seen at any of its points."""
    truth = {0: 0.0}
    for cpus, gain in enumerate(sorted(gains, reverse=True), start=1):
        truth[cpus] = truth[cpus - 1] + gain
    seen = sorted(draw.draw(st.sets(st.integers(1, len(gains)), min_size=1)))
    found = fill_curve(curve(*((cpus, truth[cpus]) for cpus in seen)))
    assert all(point.steps_per_s <= truth[point.cpus] * (1 + 1e-9) for point in found)
    assert {point.cpus for point in found} >= set(seen)
    assert all(a.cpus < b.cpus and a.steps_per_s <= b.steps_per_s * (1 + 1e-9) for a, b in pairwise(found))
