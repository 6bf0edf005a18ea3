"""What a profile learns from a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from slurmwrap.model.resource_profile import IMPORTED, CurvePoint, Measurement, ResourceProfile
from slurmwrap.profiling.merge_profiles import HALF_LIFE_S, adapt_profile, merge


def measured(used: float | None = None, had: int | None = 8, **values: Any) -> Measurement:
    return Measurement(cpus_used=used, cpus_allocated=had, **values)


def learnt(old: ResourceProfile | None, new: Measurement, complete: bool = False, at: float = 10.0) -> ResourceProfile:
    source = "epilog" if complete else "prerun"
    return merge(old, new, key="k", source=source, at=at, gpu_type="a100", gpus_per_node=8, complete=complete)


FIRST = measured(2.0, mem_peak_mib=9001, mem_source="cgroup", steps_per_s=4.0, gpus=1)


def test_first_prerun_makes_a_profile_per_gpu_with_a_margin() -> None:
    assert learnt(None, FIRST) == ResourceProfile(
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


def test_first_complete_run_outranks_the_prerun_in_cpus_but_not_in_memory() -> None:
    run = measured(12.0, 64, mem_peak_mib=40_000, mem_source="cgroup", gpus=8)
    found = learnt(learnt(None, FIRST), run, complete=True, at=20.0)
    assert (found.cpus_per_gpu, found.mem_mib_per_gpu, found.runs, found.preruns, found.source) == (
        *(1.88, 9001, 1, 1, "epilog"),
    )
    assert (found.confidence, found.measured_at, found.steps_per_s) == (0.625, 20.0, 4.0)


def test_later_prerun_does_not_unsettle_complete_runs() -> None:
    known = ResourceProfile(key="k", cpus_per_gpu=3.0, runs=2, mem_mib_per_gpu=5000, measured_at=5.0)
    found = learnt(known, measured(7.0, 32, mem_peak_mib=6000, mem_source="pss"))
    assert (found.cpus_per_gpu, found.mem_mib_per_gpu, found.runs) == (3.0, 6000, 2)


def test_memory_of_an_import_is_forgotten_with_the_first_run_since_it_is_no_peak() -> None:
    known = ResourceProfile(key="k", cpus_per_gpu=3.0, mem_mib_per_gpu=250_000, source=IMPORTED, measured_at=5.0)
    assert learnt(known, measured(2.0, mem_peak_mib=6000, mem_source="pss")).mem_mib_per_gpu == 6000
    assert learnt(known, measured(2.0, mem_peak_mib=6000, mem_source="rss")).mem_mib_per_gpu is None


def test_sums_of_rss_are_not_memory() -> None:
    assert learnt(None, measured(mem_peak_mib=70_000, mem_source="rss")).mem_mib_per_gpu is None


@pytest.mark.parametrize(
    ("runs", "need", "bound"),
    [
        ([(8.0, 8)], 8.0, True),  # all of them busy
        ([(7.2, 8)], 7.2, True),
        ([(7.0, 8)], 8.75, False),
        ([(8.0, 8), (8.0, 16)], 10.0, False),  # with CPUs to spare the need is known
        ([(8.0, 16), (4.0, 4)], 10.0, False),  # and does not get lost where they were few
        ([(2.0, 8), (8.0, 8)], 8.0, True),
        ([(2.0, 8), (3.0, 8)], 3.75, False),
        ([(3.0, 8), (2.0, 8)], 3.75, False),
        ([(3.0, None)], 3.75, False),
    ],
)
def test_cpus_that_were_all_busy_are_a_lower_bound(
    runs: list[tuple[float, int | None]], need: float, bound: bool
) -> None:
    profile = None
    for used, had in runs:
        profile = learnt(profile, measured(used, had), complete=True)
    assert profile is not None
    assert (profile.cpus_per_gpu, profile.cpu_bound) == (need, bound)


def test_failed_run_teaches_its_peak_but_counts_for_nothing() -> None:
    failed = Measurement(mem_peak_mib=12_000, mem_source="cgroup", gpus=2)
    found = merge(None, failed, key="k", source="epilog", at=1.0, gpu_type="", gpus_per_node=2, complete=False)
    assert (found.mem_mib_per_gpu, found.runs, found.preruns, found.confidence) == (6000, 0, 0, 0.0)


def test_late_news_do_not_replace_newer_ones() -> None:
    newer = ResourceProfile(key="k", steps_per_s=9.0, source="epilog", measured_at=50.0, gpu_type="h100")
    found = merge(newer, FIRST, key="k", source="prerun", at=10.0, gpu_type="", gpus_per_node=0, complete=False)
    assert (found.steps_per_s, found.source, found.measured_at, found.gpu_type) == (9.0, "epilog", 50.0, "h100")


def test_more_preruns_alone_never_make_certain() -> None:
    profile = None
    for _ in range(20):
        profile = learnt(profile, FIRST)
    assert profile is not None
    assert profile.confidence == 0.578


# --- CPU curves


def curve(*rates: float, **values: Any) -> Measurement:
    """Rates at 1, 2, 3, … CPUs."""
    points = tuple(CurvePoint(cpus=cpus, steps_per_s=rate, rounds=2) for cpus, rate in enumerate(rates, 1))
    return Measurement(**{"cpu_curve": points, "cpu_curve_end": "workers", **values})


def after(*measurements: Measurement, every: float = 10.0, **values: Any) -> ResourceProfile:
    profile = None
    for index, measurement in enumerate(measurements, 1):
        given = {"source": "prerun", "gpu_type": "", "complete": False, **values}
        profile = merge(profile, measurement, key="k", at=index * every, gpus_per_node=1, **given)
    assert profile is not None
    return profile


THREE, FOUR, SIX = curve(10, 20, 30, 30.5, 30), curve(10, 20, 28, 31, 31), curve(5, 10, 15, 20, 25, 30, 30)


def test_a_curve_outranks_cores_busy_of_complete_runs() -> None:
    busy = measured(6.0, 16)
    profile = learnt(learnt(after(THREE), busy, complete=True), busy, complete=True)
    assert (profile.cpus_per_gpu, profile.cpus_busy, profile.cpu_bound, profile.cpu_curve) == (
        *(3.0, 7.5, False),
        THREE.cpu_curve,
    )


@pytest.mark.parametrize(
    ("end", "bound"), [("allocation", True), ("time", True), ("workers", False), ("pinned", False)]
)
def test_a_curve_that_still_rises_where_the_cpus_ended_is_a_lower_bound(end: str, bound: bool) -> None:
    profile = after(curve(10, 20, 30, cpu_curve_end=end))
    assert (profile.cpus_per_gpu, profile.cpu_bound) == (3.0, bound)


def test_one_outlier_does_not_wipe_a_good_curve_and_a_second_does() -> None:
    doubted = after(THREE, FOUR, SIX)
    assert (doubted.cpu_curve, doubted.curve_at, doubted.curve_doubts) == (FOUR.cpu_curve, 20.0, 1)
    assert doubted.confidence == round(after(THREE, FOUR, FOUR).confidence / 2, 3)
    replaced = after(THREE, FOUR, SIX, SIX)
    assert (replaced.cpu_curve, replaced.cpus_per_gpu, replaced.curve_doubts) == (SIX.cpu_curve, 6.0, 0)
    confirmed = after(THREE, SIX, FOUR)
    assert (confirmed.cpu_curve, confirmed.curve_doubts) == (FOUR.cpu_curve, 0)


def test_a_run_without_a_curve_leaves_it() -> None:
    profile = after(THREE, Measurement(steps_per_s=1.0))
    assert (profile.cpu_curve, profile.curve_at, profile.cpus_per_gpu) == (THREE.cpu_curve, 10.0, 3.0)


def test_an_old_curve_gives_way_at_once_and_until_then_only_raises() -> None:
    assert after(THREE, SIX, every=HALF_LIFE_S + 1).cpu_curve == SIX.cpu_curve
    busy = merge(
        after(THREE), measured(6.0, 16), key="k", source="epilog", at=2 * HALF_LIFE_S, gpu_type="", gpus_per_node=1,
        complete=True,
    )  # fmt: skip
    assert busy.cpus_per_gpu == 7.5
    idle = merge(
        after(THREE), measured(0.5, 16), key="k", source="epilog", at=2 * HALF_LIFE_S, gpu_type="", gpus_per_node=1,
        complete=True,
    )  # fmt: skip
    assert idle.cpus_per_gpu == 3.0


def test_a_late_curve_does_not_replace_a_newer_one() -> None:
    late = merge(after(THREE), SIX, key="k", source="prerun", at=1.0, gpu_type="", gpus_per_node=1, complete=False)
    assert late.cpu_curve == THREE.cpu_curve


def test_a_curve_of_several_gpus_is_kept_per_gpu() -> None:
    profile = after(curve(5, 10, 15, 20, gpus=2))
    assert [(point.cpus, point.steps_per_s) for point in profile.cpu_curve] == [(1, 10), (2, 20)]


# --- a changed job


@pytest.mark.parametrize("change", [{"variant": "bs64"}, {"gpu_type": "h100"}])
def test_of_a_changed_jobs_runs_one_counts_on(change: dict[str, str]) -> None:
    known = ResourceProfile(
        key="k", runs=4, preruns=2, variant="bs32", gpu_type="a100", confidence=0.965, mem_mib_per_gpu=9000,
        measured_at=1.0,
    )  # fmt: skip
    seen = adapt_profile(known, 1.0, **change)
    assert (seen.runs, seen.preruns, seen.confidence, seen.mem_mib_per_gpu) == (1, 1, 0.625, 9000)
    given = {"variant": "bs32", "gpu_type": "a100", **change}
    merged = merge(known, FIRST, key="k", source="epilog", at=2.0, gpus_per_node=8, complete=True, **given)
    assert (merged.runs, merged.variant, merged.gpu_type) == (2, given["variant"], given["gpu_type"])


def test_a_curve_of_another_variant_only_raises() -> None:
    first = after(SIX, variant="bs32")
    low = merge(
        first, measured(0.8, 16), key="k", source="epilog", at=50.0, gpu_type="", gpus_per_node=1, complete=True,
        variant="bs64",
    )  # fmt: skip
    high = merge(
        first, measured(8.0, 16), key="k", source="epilog", at=50.0, gpu_type="", gpus_per_node=1, complete=True,
        variant="bs64",
    )  # fmt: skip
    assert (low.cpus_per_gpu, high.cpus_per_gpu) == (6.0, 10.0)
    again = after(THREE, variant="bs64")
    assert (
        merge(
            low, THREE, key="k", source="prerun", at=60.0, gpu_type="", gpus_per_node=1, complete=False, variant="bs64"
        ).cpu_curve
        == again.cpu_curve
    )


# --- the rest


def test_confidence_halves_with_age() -> None:
    known = ResourceProfile(key="k", runs=1, confidence=0.5, measured_at=1000.0)
    assert [adapt_profile(known, 1000.0 + age * HALF_LIFE_S).confidence for age in (-1, 0, 1, 2)] == [
        0.5,
        0.5,
        0.25,
        0.125,
    ]


def test_what_else_was_measured_is_kept_per_gpu_and_a_prerun_does_not_replace_what_runs_told() -> None:
    everything = Measurement(
        gpus=2, steps_per_s=5.0, loader_workers=8, read_mib_per_s=300.0, model_mib=400.0, largest_tensor_mib=100.0,
        gpu_mem_peak_mib=20_000, gpu_util=0.8, gpu_mem_util=0.3, sensitivity={"cpu": 1.4},
    )  # fmt: skip
    first = after(everything, complete=True, source="epilog")
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
