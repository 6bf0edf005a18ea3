"""Speed by CPUs and memory: measured points are kept, and interpolated speeds are not too high."""

from __future__ import annotations

from itertools import pairwise

import pytest
from allocate_cases import points
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model.resource_profile import CurvePoint, DataLoading, ResourceProfile
from slurmwrap.placement.throughput import fill_curve, find_speed, level_curve, list_speed_points


def make_curve(*rates: tuple[int, float]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(cpus=cpus, steps_per_s=rate) for cpus, rate in rates)


def get_rates(points: tuple[CurvePoint, ...]) -> dict[int, float]:
    return {point.cpus: round(point.steps_per_s, 6) for point in points}


@pytest.mark.parametrize(
    ("cpus", "mem_mib", "speed"),
    [(1, 9, 0.0), (1, 10, 1.0), (1.9, 99, 1.0), (2, 10, 2.0), (5, 10, 2.0), (4, 20, 3.0), (0.5, 99, 0.0)],
)
def test_the_speed_is_that_of_the_best_point_within_the_resources(cpus: float, mem_mib: int, speed: float) -> None:
    assert find_speed(points((1, 10, 1.0), (2, 10, 2.0), (4, 20, 3.0)), cpus, mem_mib) == speed


def test_a_measured_surface_is_used_unchanged() -> None:
    known = points((1, 10, 1.0), (2, 10, 0.5))
    assert list_speed_points(ResourceProfile(key="k", surface=known, cpu_curve=make_curve((1, 9.0))), 64_000) == known


def test_no_speed_points_without_a_curve() -> None:
    assert list_speed_points(ResourceProfile(key="k", mem_mib_per_gpu=5_000), 64_000) == ()


def test_a_curve_applies_from_the_measured_memory_peak() -> None:
    profile = ResourceProfile(key="k", mem_mib_per_gpu=5_000, cpu_curve=make_curve((1, 10.0), (2, 15.0)))
    assert list_speed_points(profile, 64_000) == points((1, 5_000, 10.0), (2, 5_000, 15.0))
    assert list_speed_points(profile, 4_000) == points((1, 4_000, 10.0), (2, 4_000, 15.0))


def test_memory_counts_as_a_cache_if_storage_speed_is_known() -> None:
    """The job reads 10,000 MiB per epoch at 500 MiB/s. Storage delivers 100 MiB/s.

    The job has a fifth of its speed without a cache and its full speed with all data cached.
    """
    profile = ResourceProfile(
        key="k",
        mem_mib_per_gpu=5_000,
        cpu_curve=make_curve((1, 10.0), (2, 20.0)),
        read_mib_per_s=500.0,
        dataset_mib=1e4,
    )
    found = list_speed_points(profile, 64_000, storage_mib_per_s=100.0)
    assert find_speed(found, 2, 7_024) == pytest.approx(4.0)
    assert find_speed(found, 1, 7_024) == pytest.approx(4.0)  # storage limits the speed, not CPUs
    assert find_speed(found, 2, 17_024) >= 0.95 * 20.0
    assert find_speed(found, 1, 17_024) == 10.0
    assert find_speed(found, 2, 7_023) == 0.0


def test_a_loader_that_waited_is_faster_with_memory_for_its_data() -> None:
    """The curve was measured while the loader waited: 10 MiB per batch take two workers 100 ms, the device 20 ms."""
    loading = DataLoading(
        workers=2, fetch_s=0.2, cpu_s=0.02, stall_s=0.18, compute_s=0.02, wait_s=0.08, batch_mib=10.0, batches=1000
    )
    profile = ResourceProfile(
        key="k", mem_mib_per_gpu=5_000, cpu_curve=make_curve((1, 10.0), (2, 10.0)), loading=loading, dataset_mib=1e4
    )
    found = list_speed_points(profile, 64_000)
    assert find_speed(found, 2, 7_024) == pytest.approx(10.0, rel=0.15)  # as it was measured
    assert find_speed(found, 2, 17_024) >= 0.95 * 50.0
    # Without stalls the CPU time of a batch, 20 ms, is no limit on one CPU either.
    assert find_speed(found, 1, 17_024) >= 0.95 * 50.0


def test_fixed_memory_of_a_node_counts_once_for_several_gpus() -> None:
    profile = ResourceProfile(key="k", mem_mib_per_gpu=5_000, cpu_curve=make_curve((1, 10.0)), read_mib_per_s=1.0)
    (point,) = list_speed_points(profile, 64_000, gpus=4, storage_mib_per_s=100.0)
    assert point.mem_mib == -(-(5_000 * 4 * 12 // 10 + 1024) // 4)


def test_a_dip_in_the_curve_is_levelled() -> None:
    assert get_rates(level_curve(make_curve((1, 10.0), (2, 21.0), (4, 19.0), (8, 30.0)))) == {
        1: 10,
        2: 20,
        4: 20,
        8: 30,
    }


def test_rates_within_the_noise_of_the_best_rate_count_as_the_best() -> None:
    assert get_rates(level_curve(make_curve((1, 9.6), (2, 9.8), (4, 10.0)))) == {1: 9.6, 2: 10.0, 4: 10.0}


def test_a_concave_curve_is_interpolated_along_its_chords() -> None:
    assert get_rates(fill_curve(make_curve((1, 10.0), (2, 20.0), (4, 30.0), (8, 34.0)))) == {
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
        ((2, 10.0), (4, 12.0), (6, 20.0)),  # convex at 4: neither side is known
        ((1, 10.0), (8, 30.0)),  # too far apart
        ((4, 10.0), (8, 10.0)),  # flat
    ],
)
def test_no_interpolation_where_the_chord_may_exceed_the_curve(points: tuple[tuple[int, float], ...]) -> None:
    assert fill_curve(make_curve(*points)) == make_curve(*points)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=40), st.data())
def test_interpolation_never_exceeds_a_concave_curve(gains: list[float], draw: st.DataObject) -> None:
    """Any concave curve, measured at any of its points."""
    truth = {0: 0.0}
    for cpus, gain in enumerate(sorted(gains, reverse=True), start=1):
        truth[cpus] = truth[cpus - 1] + gain
    seen = sorted(draw.draw(st.sets(st.integers(1, len(gains)), min_size=1)))
    found = fill_curve(make_curve(*((cpus, truth[cpus]) for cpus in seen)))
    assert all(point.steps_per_s <= truth[point.cpus] * (1 + 1e-9) for point in found)
    assert {point.cpus for point in found} >= set(seen)
    assert all(a.cpus < b.cpus and a.steps_per_s <= b.steps_per_s * (1 + 1e-9) for a, b in pairwise(found))
