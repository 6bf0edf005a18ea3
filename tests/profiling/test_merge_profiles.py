"""How measurements are merged into a resource profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.model.resource_profile import IMPORTED, CurvePoint, Measurement, PackPoint, ResourceProfile
from slurmwrap.profiling.merge_profiles import HALF_LIFE_S, adapt_profile, merge


def make_measurement(used: float | None = None, had: int | None = 8, **values: Any) -> Measurement:
    return Measurement(cpus_used=used, cpus_allocated=had, **values)


def merge_into(
    old: ResourceProfile | None, new: Measurement, complete: bool = False, at: float = 10.0
) -> ResourceProfile:
    source = "epilog" if complete else "prerun"
    return merge(old, new, key="k", source=source, at=at, gpu_type="a100", gpus_per_node=8, complete=complete)


FIRST = make_measurement(2.0, mem_peak_mib=9001, mem_source="cgroup", steps_per_s=4.0, gpus=1)


def test_the_first_prerun_creates_a_profile_per_gpu_with_a_margin() -> None:
    assert merge_into(None, FIRST) == ResourceProfile(
        key="k",
        cpus_per_gpu=2.5,
        cpus_busy=2.5,
        mem_mib_per_gpu=9001,
        steps_per_s=4.0,
        gpu_type="a100",
        gpus_per_node=8,
        preruns=1,
        confidence=0.25,
        source="prerun",
        measured_at=10.0,
    )


def test_a_complete_run_replaces_cpus_of_the_prerun_but_not_a_higher_memory_peak() -> None:
    run = make_measurement(12.0, 64, mem_peak_mib=40_000, mem_source="cgroup", gpus=8)
    found = merge_into(merge_into(None, FIRST), run, complete=True, at=20.0)
    assert (found.cpus_per_gpu, found.mem_mib_per_gpu, found.runs, found.preruns, found.source) == (
        *(1.88, 9001, 1, 1, "epilog"),
    )
    assert (found.confidence, found.measured_at, found.steps_per_s) == (0.625, 20.0, 4.0)


def test_a_later_prerun_does_not_replace_cpus_of_complete_runs() -> None:
    known = ResourceProfile(key="k", cpus_per_gpu=3.0, runs=2, mem_mib_per_gpu=5000, measured_at=5.0)
    found = merge_into(known, make_measurement(7.0, 32, mem_peak_mib=6000, mem_source="pss"))
    assert (found.cpus_per_gpu, found.mem_mib_per_gpu, found.runs) == (3.0, 6000, 2)


def test_imported_memory_is_dropped_at_the_first_measurement() -> None:
    known = ResourceProfile(key="k", cpus_per_gpu=3.0, mem_mib_per_gpu=250_000, source=IMPORTED, measured_at=5.0)
    assert merge_into(known, make_measurement(2.0, mem_peak_mib=6000, mem_source="pss")).mem_mib_per_gpu == 6000
    assert merge_into(known, make_measurement(2.0, mem_peak_mib=6000, mem_source="rss")).mem_mib_per_gpu is None


def test_a_sum_of_rss_is_not_a_memory_peak() -> None:
    assert merge_into(None, make_measurement(mem_peak_mib=70_000, mem_source="rss")).mem_mib_per_gpu is None


@pytest.mark.parametrize(
    ("runs", "need", "bound"),
    [
        ([(8.0, 8)], 8.0, True),  # all CPUs were busy
        ([(7.2, 8)], 7.2, True),
        ([(7.0, 8)], 8.75, False),
        ([(8.0, 8), (8.0, 16)], 10.0, False),  # with idle CPUs the need is known
        ([(8.0, 16), (4.0, 4)], 10.0, False),  # a later run with few CPUs does not change it
        ([(2.0, 8), (8.0, 8)], 8.0, True),
        ([(2.0, 8), (3.0, 8)], 3.75, False),
        ([(3.0, 8), (2.0, 8)], 3.75, False),
        ([(3.0, None)], 3.75, False),
    ],
)
def test_cpus_that_were_all_busy_are_only_a_lower_bound(
    runs: list[tuple[float, int | None]], need: float, bound: bool
) -> None:
    profile = None
    for used, had in runs:
        profile = merge_into(profile, make_measurement(used, had), complete=True)
    assert profile is not None
    assert (profile.cpus_per_gpu, profile.cpu_bound) == (need, bound)


def test_a_failed_run_updates_the_memory_peak_but_is_not_counted() -> None:
    failed = Measurement(mem_peak_mib=12_000, mem_source="cgroup", gpus=2)
    found = merge(None, failed, key="k", source="epilog", at=1.0, gpu_type="", gpus_per_node=2, complete=False)
    assert (found.mem_mib_per_gpu, found.runs, found.preruns, found.confidence) == (6000, 0, 0, 0.0)


def test_an_older_measurement_does_not_replace_newer_values() -> None:
    newer = ResourceProfile(key="k", steps_per_s=9.0, source="epilog", measured_at=50.0, gpu_type="h100")
    found = merge(newer, FIRST, key="k", source="prerun", at=10.0, gpu_type="", gpus_per_node=0, complete=False)
    assert (found.steps_per_s, found.source, found.measured_at, found.gpu_type) == (9.0, "epilog", 50.0, "h100")


def test_preruns_alone_do_not_reach_full_confidence() -> None:
    profile = None
    for _ in range(20):
        profile = merge_into(profile, FIRST)
    assert profile is not None
    assert profile.confidence == 0.578


# --- CPU curves


def make_curve(*rates: float, **values: Any) -> Measurement:
    """Rates at 1, 2, 3, … CPUs."""
    points = tuple(CurvePoint(cpus=cpus, steps_per_s=rate, rounds=2) for cpus, rate in enumerate(rates, 1))
    return Measurement(**{"cpu_curve": points, "cpu_curve_end": "workers", **values})


def merge_all(*measurements: Measurement, every: float = 10.0, **values: Any) -> ResourceProfile:
    profile = None
    for index, measurement in enumerate(measurements, 1):
        given = {"source": "prerun", "gpu_type": "", "complete": False, **values}
        profile = merge(profile, measurement, key="k", at=index * every, gpus_per_node=1, **given)
    assert profile is not None
    return profile


THREE, FOUR, SIX = (
    make_curve(10, 20, 30, 30.5, 30),
    make_curve(10, 20, 28, 31, 31),
    make_curve(5, 10, 15, 20, 25, 30, 30),
)


def test_a_cpu_curve_outranks_busy_cpus_of_complete_runs() -> None:
    busy = make_measurement(6.0, 16)
    profile = merge_into(merge_into(merge_all(THREE), busy, complete=True), busy, complete=True)
    assert (profile.cpus_per_gpu, profile.cpus_busy, profile.cpu_bound, profile.cpu_curve) == (
        *(3.0, 7.5, False),
        THREE.cpu_curve,
    )


@pytest.mark.parametrize(
    ("end", "bound"), [("allocation", True), ("time", True), ("workers", False), ("pinned", False)]
)
def test_a_curve_that_still_rises_at_its_end_is_a_lower_bound(end: str, bound: bool) -> None:
    profile = merge_all(make_curve(10, 20, 30, cpu_curve_end=end))
    assert (profile.cpus_per_gpu, profile.cpu_bound) == (3.0, bound)


def test_a_curve_is_replaced_after_two_contradicting_curves_not_after_one() -> None:
    doubted = merge_all(THREE, FOUR, SIX)
    assert (doubted.cpu_curve, doubted.curve_at, doubted.curve_doubts) == (FOUR.cpu_curve, 20.0, 1)
    assert doubted.confidence == round(merge_all(THREE, FOUR, FOUR).confidence / 2, 3)
    replaced = merge_all(THREE, FOUR, SIX, SIX)
    assert (replaced.cpu_curve, replaced.cpus_per_gpu, replaced.curve_doubts) == (SIX.cpu_curve, 6.0, 0)
    confirmed = merge_all(THREE, SIX, FOUR)
    assert (confirmed.cpu_curve, confirmed.curve_doubts) == (FOUR.cpu_curve, 0)


def test_a_measurement_without_a_curve_keeps_the_known_curve() -> None:
    profile = merge_all(THREE, Measurement(steps_per_s=1.0))
    assert (profile.cpu_curve, profile.curve_at, profile.cpus_per_gpu) == (THREE.cpu_curve, 10.0, 3.0)


def test_an_old_curve_is_replaced_at_once_and_until_then_only_raises_cpus() -> None:
    assert merge_all(THREE, SIX, every=HALF_LIFE_S + 1).cpu_curve == SIX.cpu_curve
    busy = merge(
        merge_all(THREE),
        make_measurement(6.0, 16),
        key="k",
        source="epilog",
        at=2 * HALF_LIFE_S,
        gpu_type="",
        gpus_per_node=1,
        complete=True,
    )
    assert busy.cpus_per_gpu == 7.5
    idle = merge(
        merge_all(THREE),
        make_measurement(0.5, 16),
        key="k",
        source="epilog",
        at=2 * HALF_LIFE_S,
        gpu_type="",
        gpus_per_node=1,
        complete=True,
    )
    assert idle.cpus_per_gpu == 3.0


def test_an_older_curve_does_not_replace_a_newer_curve() -> None:
    late = merge(merge_all(THREE), SIX, key="k", source="prerun", at=1.0, gpu_type="", gpus_per_node=1, complete=False)
    assert late.cpu_curve == THREE.cpu_curve


def test_a_curve_of_several_gpus_is_stored_per_gpu() -> None:
    profile = merge_all(make_curve(5, 10, 15, 20, gpus=2))
    assert [(point.cpus, point.steps_per_s) for point in profile.cpu_curve] == [(1, 10), (2, 20)]


# --- another variant or GPU type


@pytest.mark.parametrize("change", [{"variant": "bs64"}, {"gpu_type": "h100"}])
def test_another_variant_or_gpu_type_reduces_the_run_count_to_one(change: dict[str, str]) -> None:
    known = ResourceProfile(
        key="k", runs=4, preruns=2, variant="bs32", gpu_type="a100", confidence=0.965, mem_mib_per_gpu=9000,
        measured_at=1.0,
    )  # fmt: skip
    seen = adapt_profile(known, 1.0, **change)
    assert (seen.runs, seen.preruns, seen.confidence, seen.mem_mib_per_gpu) == (1, 1, 0.625, 9000)
    given = {"variant": "bs32", "gpu_type": "a100", **change}
    merged = merge(known, FIRST, key="k", source="epilog", at=2.0, gpus_per_node=8, complete=True, **given)
    assert (merged.runs, merged.variant, merged.gpu_type) == (2, given["variant"], given["gpu_type"])


def test_a_curve_of_another_variant_only_raises_cpus() -> None:
    first = merge_all(SIX, variant="bs32")
    low = merge(
        first,
        make_measurement(0.8, 16),
        key="k",
        source="epilog",
        at=50.0,
        gpu_type="",
        gpus_per_node=1,
        complete=True,
        variant="bs64",
    )
    high = merge(
        first,
        make_measurement(8.0, 16),
        key="k",
        source="epilog",
        at=50.0,
        gpu_type="",
        gpus_per_node=1,
        complete=True,
        variant="bs64",
    )
    assert (low.cpus_per_gpu, high.cpus_per_gpu) == (6.0, 10.0)
    again = merge_all(THREE, variant="bs64")
    assert (
        merge(
            low, THREE, key="k", source="prerun", at=60.0, gpu_type="", gpus_per_node=1, complete=False, variant="bs64"
        ).cpu_curve
        == again.cpu_curve
    )


# --- confidence and other values


def test_confidence_halves_with_age() -> None:
    known = ResourceProfile(key="k", runs=1, confidence=0.5, measured_at=1000.0)
    assert [adapt_profile(known, 1000.0 + age * HALF_LIFE_S).confidence for age in (-1, 0, 1, 2)] == [
        0.5,
        0.5,
        0.25,
        0.125,
    ]


def test_other_values_are_stored_per_gpu_and_a_prerun_does_not_replace_them() -> None:
    everything = Measurement(
        gpus=2, steps_per_s=5.0, loader_workers=8, read_mib_per_s=300.0, model_mib=400.0, largest_tensor_mib=100.0,
        gpu_mem_peak_mib=20_000, gpu_util=0.8, gpu_mem_util=0.3, sensitivity={"cpu": 1.4},
    )  # fmt: skip
    first = merge_all(everything, complete=True, source="epilog")
    assert first == ResourceProfile(
        key="k", steps_per_s=5.0, gpus_per_node=1, runs=1, confidence=0.5, source="epilog", measured_at=10.0,
        loader_workers=4, read_mib_per_s=150.0, model_mib=400.0, skew=0.25, gpu_mem_mib=20_000, gpu_util=0.8,
        gpu_mem_util=0.3, sensitivity={"cpu": 1.4},
    )  # fmt: skip
    trial = Measurement(steps_per_s=9.0, gpu_util=0.1, gpu_mem_peak_mib=1, loader_workers=2, sensitivity={"gpu": 2.0})
    second = merge(first, trial, key="k", source="prerun", at=20.0, gpu_type="", gpus_per_node=1, complete=False)
    assert (second.steps_per_s, second.gpu_util, second.gpu_mem_mib, second.loader_workers, second.sensitivity) == (
        *(5.0, 0.8, 20_000, 2),
        {"cpu": 1.4, "gpu": 2.0},
    )


# --- members side by side


def test_the_table_of_members_is_the_newest_one_that_was_tried_and_of_the_same_job() -> None:
    first = PackPoint(members=1, steps_per_s=10.0)
    tried = make_measurement(2.0, pack_speeds=(first, PackPoint(members=2, steps_per_s=9.0)), pack_end="fit")
    known = merge_into(None, tried)
    assert (known.pack_speeds, known.pack_end) == (tried.pack_speeds, "fit")
    # A run, or a pre-run that did not try it, keeps it, and so does an older one that is merged later.
    assert merge_into(known, FIRST, complete=True, at=20.0).pack_speeds == tried.pack_speeds
    older = make_measurement(2.0, pack_speeds=(first,), pack_end="slow")
    assert merge_into(known, older, at=5.0).pack_end == "fit"
    assert merge_into(known, older, at=20.0).pack_speeds == (first,)
    assert adapt_profile(known, 20.0, gpu_type="h100").pack_end == ""


def test_implausible_speeds_of_members_are_dropped() -> None:
    points = tuple(
        PackPoint(members=n, steps_per_s=s) for n, s in ((2, 1.0), (1, 3.0), (0, 1.0), (4, -1.0), (8, 1e300))
    )
    found = merge_into(None, make_measurement(2.0, pack_speeds=points, pack_end="fit"))
    assert [point.members for point in found.pack_speeds] == [1, 2]
    # Without a known end it was not tried.
    found = merge_into(None, make_measurement(2.0, pack_speeds=points, pack_end="rm -rf"))
    assert (found.pack_speeds, found.pack_end) == ((), "")


def test_shares_of_a_gpu_are_those_of_a_complete_run_and_change_nothing_else() -> None:
    run = Measurement(steps_per_s=5.0, cpus_used=3.0, mem_peak_mib=900, mem_source="cgroup", gpu_util=0.9)
    counted = replace(run, gpu_sm_active=0.4, gpu_dram=0.3, gpu_pcie=0.2, gpu_nvlink=0.1)
    plain, found = (merge_all(one, complete=True, source="epilog") for one in (run, counted))
    assert found == replace(plain, gpu_sm_active=0.4, gpu_dram=0.3, gpu_pcie=0.2, gpu_nvlink=0.1)
    trial = Measurement(gpu_sm_active=0.9, gpu_nvlink=0.0)
    later = merge(found, trial, key="k", source="prerun", at=20.0, gpu_type="", gpus_per_node=1, complete=False)
    assert (later.gpu_sm_active, later.gpu_nvlink) == (0.4, 0.1)
    assert merge_all(replace(run, gpu_dram=1.5), complete=True, source="epilog") == plain
