"""What a profile learns from a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from slurmwrap.prerun.verdict import Measurement
from slurmwrap.profiling.merge import merge
from slurmwrap.profiling.profile import ResourceProfile


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
