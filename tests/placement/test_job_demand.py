"""The demand of one job, and the options that gsub derives from it.

The nodes have 8 GPUs, 4 CPUs per GPU and 32,000 MiB per GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_cases import IDLE, ONE_GPU, node, request

from slurmwrap.config.load_config import Config, Placement, Tuning
from slurmwrap.model.resource_profile import IMPORTED, CurvePoint, ResourceProfile, SpeedPoint
from slurmwrap.placement.demand import JobDemand, limit_to_request, limit_to_share, make_job_demand
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.throughput import find_speed
from slurmwrap.placement.tuning_bounds import make_least_node
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

HUNGRY = ((1, 1.0), (2, 2.0), (4, 3.6), (8, 6.0), (16, 9.0))
CONTENT = ((1, 1.0), (2, 1.9), (4, 2.0), (16, 2.0))
ASKED = replace(ONE_GPU, cpus=4, mem_mib=32_000)
# more than 2 CPUs do not help; more memory does, until all data is cached
CACHED = tuple(
    SpeedPoint(cpus=cpus, mem_mib=memory, speed=min(1.0, cpus / 2) * part)
    for memory, part in ((10_000, 0.5), (30_000, 0.8), (120_000, 1.0))
    for cpus in (1, 2, 4, 8)
)


def make_profile(curve: Sequence[tuple[int, float]] = (), **changes: Any) -> ResourceProfile:
    points = tuple(CurvePoint(cpus=cpus, steps_per_s=rate) for cpus, rate in curve)
    return replace(ResourceProfile(key="k", cpu_curve=points, runs=3, source="epilog"), **changes)


def get_tuned_options(
    shape: ResourceShape, profile: ResourceProfile, policy: str = "graded"
) -> dict[str, tuple[str | None, str]]:
    """Option → (value, reason)."""
    config = Config(placement=Placement(enabled=False), tuning=Tuning(policy=policy))
    return {w.option: (w.value, w.reason) for w in plan(request(shape), profile, IDLE, (), config).lines}


def get_tuned_values(shape: ResourceShape, profile: ResourceProfile, policy: str = "graded") -> dict[str, str | None]:
    return {option: value for option, (value, _) in get_tuned_options(shape, profile, policy).items()}


def test_a_demand_contains_the_tuning_bounds_and_speed_points() -> None:
    shape = replace(ASKED, gpus=2, gpus_per_node=2, cpus=24, mem_mib=100_000)
    claim = make_job_demand(
        shape, make_profile(CONTENT, mem_mib_per_gpu=10_000), node("n0"), Tuning(), job="7", nodes=3
    )
    rates = ((1, 1.0), (2, 1.9), (3, 1.95), (4, 2.0), (16, 2.0))
    assert claim == JobDemand(
        job="7",
        gpus_per_node=2,
        nodes=3,
        cpus=12.0,
        mem_mib=50_000,
        least_cpus=1.0,
        most_cpus=16.0,
        least_mem_mib=12_000,
        most_mem_mib=128_000,
        speeds=tuple(SpeedPoint(cpus=cpus, mem_mib=10_000, speed=rate) for cpus, rate in rates),
    )


@pytest.mark.parametrize(
    ("changes", "least_cpus", "least_mem"),
    [
        ({"runs": 0, "preruns": 1}, 4.0, 32_000),  # a pre-run alone does not allow less than the share
        ({"runs": 1}, 1.0, 32_000),
        ({"mem_mib_per_gpu": 10_000}, 1.0, 12_000),
        ({"mem_mib_per_gpu": 40_000}, 1.0, 48_000),  # less would be killed for lack of memory
        ({"mem_mib_per_gpu": 40_000, "source": IMPORTED}, 1.0, 32_000),  # memory for caching, not a peak
        ({"cpu_bound": True}, 4.0, 32_000),  # it may be faster beyond its curve
    ],
)
def test_minimum_cpus_and_memory_of_a_demand(changes: dict[str, Any], least_cpus: float, least_mem: int) -> None:
    claim = make_job_demand(ASKED, make_profile(CONTENT, **changes), node("n0"), Tuning())
    assert claim is not None
    assert (claim.least_cpus, claim.least_mem_mib) == (least_cpus, least_mem)
    assert claim.mem_mib == max(32_000, least_mem)


@pytest.mark.parametrize(
    ("shape", "profile"),
    [
        (ASKED, make_profile()),
        (ASKED, make_profile(CONTENT, curve_doubts=1)),
        (ASKED, make_profile(CONTENT, variant="b2", curve_variant="b1")),
        (replace(ASKED, exclusive=True), make_profile(CONTENT)),
        (replace(ASKED, gpus_per_node=None), make_profile(CONTENT)),
        (replace(ASKED, mem_unit=MemUnit.PER_CPU), make_profile(CONTENT)),
        (replace(ASKED, tasks=3, tasks_per_node=None, nodes=2, max_nodes=2), make_profile(CONTENT)),
    ],
    ids=["mean CPUs busy", "doubts", "another variant", "--exclusive", "--gpus", "--mem-per-cpu", "tasks anywhere"],
)
def test_no_demand_if_speed_or_shape_is_unknown(shape: ResourceShape, profile: ResourceProfile) -> None:
    assert make_job_demand(shape, profile, node("n0"), Tuning()) is None


def test_maximum_cpus_and_memory_of_a_demand() -> None:
    claim = make_job_demand(replace(ASKED, cpus=2), make_profile(surface=CACHED), node("n0"), Tuning())
    assert claim is not None
    tops = [(c.most_cpus, c.most_mem_mib) for c in (claim, limit_to_share(claim, node("n0")), limit_to_request(claim))]
    assert tops == [(32.0, 256_000), (4.0, 32_000), (2.0, 32_000)]


def test_the_smallest_values_of_all_nodes_are_used() -> None:
    found = make_least_node([node("a", cpus=64), node("b", mem_mib=100_000, gpus=4)], ())
    assert (found.cpus, found.mem_mib, found.gpus) == (32, 100_000, 8)


# --- what gsub asks for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "profile", "wanted"),
    [
        (replace(ASKED, cpus=1), make_profile(HUNGRY), {"cpus-per-task": "4"}),  # the share, though 16 would be faster
        # a request above the share is only lowered
        (replace(ASKED, cpus=24), make_profile(HUNGRY), {"cpus-per-task": "16"}),
        (replace(ASKED, cpus=6), make_profile(HUNGRY), {}),
        (ASKED, make_profile(CONTENT, runs=0, preruns=1), {}),
        (replace(ASKED, cpus=24), make_profile(CONTENT, runs=0, preruns=1), {"cpus-per-task": "4"}),
        (replace(ASKED, cpu_unit=CpuUnit.PER_GPU, cpus=1), make_profile(HUNGRY), {"cpus-per-gpu": "4"}),
        (replace(ASKED, cpus=1, mem_mib=None, mem_unit=MemUnit.NONE), make_profile(HUNGRY), {"cpus-per-task": "4"}),
        (replace(ASKED, cpus=1, mem_mib=0), make_profile(HUNGRY), {"cpus-per-task": "4"}),
        (ASKED, make_profile(CONTENT[:3], cpu_bound=True, cpus_per_gpu=4.0), {}),
        (replace(ASKED, cpus=2), make_profile(CONTENT[:1], cpu_bound=True, cpus_per_gpu=1.0), {"cpus-per-task": "4"}),
        (ASKED, make_profile(HUNGRY, mem_mib_per_gpu=40_000), {"mem": "48000M"}),
    ],
)
def test_tuned_cpus_follow_the_curve_and_are_not_raised_above_the_share(
    shape: ResourceShape, profile: ResourceProfile, wanted: dict[str, str]
) -> None:
    assert get_tuned_values(shape, profile) == wanted


def test_reasons_name_the_effect_on_the_speed() -> None:
    (_, raised) = get_tuned_options(replace(ASKED, cpus=1), make_profile(HUNGRY))["cpus-per-task"]
    assert raised == "with 4 CPUs per GPU instead of 1 it runs 3.6 times as fast (3 complete runs); its share is 4"
    (_, cut) = get_tuned_options(replace(ASKED, cpus=24), make_profile(CONTENT, runs=1))["cpus-per-task"]
    assert cut == "with 4 CPUs per GPU instead of 24 it is as fast (1 complete run); its share is 4"


IMPORT = make_profile(surface=CACHED, cpus_per_gpu=2.0, mem_mib_per_gpu=120_000, runs=0, source=IMPORTED)


@pytest.mark.parametrize(
    ("shape", "profile", "wanted"),
    [
        (ASKED, IMPORT, {}),  # no measured peak, so less is possible; it keeps its share
        (replace(ASKED, mem_mib=12_000), IMPORT, {"mem": "30000M"}),  # raised up to the share by its surface
        (replace(ASKED, mem_mib=200_000), IMPORT, {}),  # nothing is lowered before complete runs
        (replace(ASKED, mem_mib=200_000), replace(IMPORT, runs=3, mem_mib_per_gpu=9_000, source="epilog"),
         {"cpus-per-task": "2", "mem": "120000M"}),  # as fast as with the request
        (ASKED, replace(IMPORT, mem_mib_per_gpu=40_000, source="epilog"), {"mem": "48000M"}),  # a measured peak
    ],
)  # fmt: skip
def test_tuned_memory_follows_the_surface_and_a_measured_peak_is_a_minimum(
    shape: ResourceShape, profile: ResourceProfile, wanted: dict[str, str]
) -> None:
    assert get_tuned_values(shape, profile) == wanted


def test_policy_proportional_only_raises_memory_below_the_measured_peak() -> None:
    for profile in (make_profile(HUNGRY), make_profile(cpus_per_gpu=2.5)):
        shape = replace(ASKED, cpus=1)
        assert get_tuned_values(shape, profile, "proportional") == {}
        assert get_tuned_values(shape, replace(profile, mem_mib_per_gpu=40_000), "proportional") == {"mem": "48000M"}
        assert get_tuned_values(shape, replace(profile, mem_mib_per_gpu=4_000), "proportional") == {}


def test_policy_tune_does_not_raise_cpus_above_the_share() -> None:
    assert get_tuned_values(replace(ASKED, cpus=1), make_profile(HUNGRY), "tune") == {"cpus-per-task": "4"}


@settings(max_examples=60)
@given(
    rates=st.lists(st.floats(0.1, 9), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 40), min_size=6, max_size=6, unique=True),
    cpus=st.integers(1, 40),
    gpus=st.integers(1, 8),
    runs=st.integers(0, 4),
    peak=st.one_of(st.none(), st.integers(1, 200_000)),
    policy=st.sampled_from(["graded", "tune"]),
)
def test_no_job_becomes_slower_than_requested_or_is_raised_above_its_share(
    rates: list[float], counts: list[int], cpus: int, gpus: int, runs: int, peak: int | None, policy: str
) -> None:
    shape = replace(ASKED, gpus=gpus, gpus_per_node=gpus, cpus=cpus, mem_mib=32_000 * gpus)
    profile = make_profile([*zip(sorted(counts), rates, strict=False)], runs=runs, mem_mib_per_gpu=peak)
    claim = make_job_demand(shape, profile, node("n0"), Tuning())
    assert claim is not None
    given_cpus = int(get_tuned_values(shape, profile, policy).get("cpus-per-task") or cpus)
    assert given_cpus <= max(cpus, 4 * gpus)
    assert runs or given_cpus >= min(cpus, 4 * gpus)
    assert find_speed(claim.speeds, given_cpus / gpus, 10**6) >= find_speed(claim.speeds, claim.cpus, 10**6)


def test_a_gain_of_less_than_double_is_reported_too() -> None:
    faster = tuple((cpus, 15.0 if cpus >= 4 else 10.0) for cpus, _ in HUNGRY)
    (_, raised) = get_tuned_options(replace(ASKED, cpus=1), make_profile(faster))["cpus-per-task"]
    assert "it runs 1.5 times as fast" in raised
