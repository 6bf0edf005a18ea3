"""The claim of one job, and what gsub asks for by it. Nodes have 8 GPUs, 4 CPUs and 32,000 MiB per GPU."""

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
# as fast with 2 CPUs as with more; faster with memory, up to all of its data in it
CACHED = tuple(
    SpeedPoint(cpus=cpus, mem_mib=memory, speed=min(1.0, cpus / 2) * part)
    for memory, part in ((10_000, 0.5), (30_000, 0.8), (120_000, 1.0))
    for cpus in (1, 2, 4, 8)
)


def knows(curve: Sequence[tuple[int, float]] = (), **changes: Any) -> ResourceProfile:
    points = tuple(CurvePoint(cpus=cpus, steps_per_s=rate) for cpus, rate in curve)
    return replace(ResourceProfile(key="k", cpu_curve=points, runs=3, source="epilog"), **changes)


def asks(shape: ResourceShape, profile: ResourceProfile, policy: str = "graded") -> dict[str, tuple[str | None, str]]:
    """Option → (value, reason)."""
    config = Config(placement=Placement(enabled=False), tuning=Tuning(policy=policy))
    return {w.option: (w.value, w.reason) for w in plan(request(shape), profile, IDLE, (), config).lines}


def values(shape: ResourceShape, profile: ResourceProfile, policy: str = "graded") -> dict[str, str | None]:
    return {option: value for option, (value, _) in asks(shape, profile, policy).items()}


def test_the_claim_carries_what_bounds_and_speeds_say() -> None:
    shape = replace(ASKED, gpus=2, gpus_per_node=2, cpus=24, mem_mib=100_000)
    claim = make_job_demand(shape, knows(CONTENT, mem_mib_per_gpu=10_000), node("n0"), Tuning(), job="7", nodes=3)
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
        ({"runs": 0, "preruns": 1}, 4.0, 32_000),  # a pre-run alone takes nothing below the share
        ({"runs": 1}, 1.0, 32_000),
        ({"mem_mib_per_gpu": 10_000}, 1.0, 12_000),
        ({"mem_mib_per_gpu": 40_000}, 1.0, 48_000),  # to be killed is worse than to wait
        ({"mem_mib_per_gpu": 40_000, "source": IMPORTED}, 1.0, 32_000),  # a wish for cache
        ({"cpu_bound": True}, 4.0, 32_000),  # beyond its curve it may be faster
    ],
)
def test_what_it_keeps_whatever_its_speed(changes: dict[str, Any], least_cpus: float, least_mem: int) -> None:
    claim = make_job_demand(ASKED, knows(CONTENT, **changes), node("n0"), Tuning())
    assert claim is not None
    assert (claim.least_cpus, claim.least_mem_mib) == (least_cpus, least_mem)
    assert claim.mem_mib == max(32_000, least_mem)


@pytest.mark.parametrize(
    ("shape", "profile"),
    [
        (ASKED, knows()),
        (ASKED, knows(CONTENT, curve_doubts=1)),
        (ASKED, knows(CONTENT, variant="b2", curve_variant="b1")),
        (replace(ASKED, exclusive=True), knows(CONTENT)),
        (replace(ASKED, gpus_per_node=None), knows(CONTENT)),
        (replace(ASKED, mem_unit=MemUnit.PER_CPU), knows(CONTENT)),
        (replace(ASKED, tasks=3, tasks_per_node=None, nodes=2, max_nodes=2), knows(CONTENT)),
    ],
    ids=["mean CPUs busy", "doubts", "another variant", "--exclusive", "--gpus", "--mem-per-cpu", "tasks anywhere"],
)
def test_nothing_is_claimed_where_speed_or_shape_is_unknown(shape: ResourceShape, profile: ResourceProfile) -> None:
    assert make_job_demand(shape, profile, node("n0"), Tuning()) is None


def test_ceilings() -> None:
    claim = make_job_demand(replace(ASKED, cpus=2), knows(surface=CACHED), node("n0"), Tuning())
    assert claim is not None
    tops = [(c.most_cpus, c.most_mem_mib) for c in (claim, limit_to_share(claim, node("n0")), limit_to_request(claim))]
    assert tops == [(32.0, 256_000), (4.0, 32_000), (2.0, 32_000)]


def test_the_least_of_all_nodes_and_partitions_counts() -> None:
    found = make_least_node([node("a", cpus=64), node("b", mem_mib=100_000, gpus=4)], ())
    assert (found.cpus, found.mem_mib, found.gpus) == (32, 100_000, 8)


# --- what gsub asks for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "profile", "wanted"),
    [
        (replace(ASKED, cpus=1), knows(HUNGRY), {"cpus-per-task": "4"}),  # the share, though 16 would be faster
        (replace(ASKED, cpus=24), knows(HUNGRY), {"cpus-per-task": "16"}),  # what it asks beyond the share is its own
        (replace(ASKED, cpus=6), knows(HUNGRY), {}),
        (ASKED, knows(CONTENT, runs=0, preruns=1), {}),
        (replace(ASKED, cpus=24), knows(CONTENT, runs=0, preruns=1), {"cpus-per-task": "4"}),
        (replace(ASKED, cpu_unit=CpuUnit.PER_GPU, cpus=1), knows(HUNGRY), {"cpus-per-gpu": "4"}),
        (replace(ASKED, cpus=1, mem_mib=None, mem_unit=MemUnit.NONE), knows(HUNGRY), {"cpus-per-task": "4"}),
        (replace(ASKED, cpus=1, mem_mib=0), knows(HUNGRY), {"cpus-per-task": "4"}),
        (ASKED, knows(CONTENT[:3], cpu_bound=True, cpus_per_gpu=4.0), {}),
        (replace(ASKED, cpus=2), knows(CONTENT[:1], cpu_bound=True, cpus_per_gpu=1.0), {"cpus-per-task": "4"}),
        (ASKED, knows(HUNGRY, mem_mib_per_gpu=40_000), {"mem": "48000M"}),
    ],
)
def test_cpus_by_the_curve_never_above_the_share(
    shape: ResourceShape, profile: ResourceProfile, wanted: dict[str, str]
) -> None:
    assert values(shape, profile) == wanted


def test_reasons_say_what_it_does_to_the_speed() -> None:
    (_, raised) = asks(replace(ASKED, cpus=1), knows(HUNGRY))["cpus-per-task"]
    assert raised == "with 4 CPUs per GPU instead of 1 it runs 3.6 times as fast (3 complete runs); its share is 4"
    (_, cut) = asks(replace(ASKED, cpus=24), knows(CONTENT, runs=1))["cpus-per-task"]
    assert cut == "with 4 CPUs per GPU instead of 24 it is as fast (1 complete run); its share is 4"


IMPORT = knows(surface=CACHED, cpus_per_gpu=2.0, mem_mib_per_gpu=120_000, runs=0, source=IMPORTED)


@pytest.mark.parametrize(
    ("shape", "profile", "wanted"),
    [
        (ASKED, IMPORT, {}),  # no peak: it is not killed with less, and its share is what it gets
        (replace(ASKED, mem_mib=12_000), IMPORT, {"mem": "30000M"}),  # up to the share by its surface
        (replace(ASKED, mem_mib=200_000), IMPORT, {}),  # nothing is taken away before complete runs
        (replace(ASKED, mem_mib=200_000), replace(IMPORT, runs=3, mem_mib_per_gpu=9_000, source="epilog"),
         {"cpus-per-task": "2", "mem": "120000M"}),  # as fast as asked
        (ASKED, replace(IMPORT, mem_mib_per_gpu=40_000, source="epilog"), {"mem": "48000M"}),  # a measured peak
    ],
)  # fmt: skip
def test_memory_as_a_cache_follows_the_surface_and_only_a_measured_peak_is_a_need(
    shape: ResourceShape, profile: ResourceProfile, wanted: dict[str, str]
) -> None:
    assert values(shape, profile) == wanted


def test_policy_proportional_only_keeps_a_job_from_being_killed() -> None:
    for profile in (knows(HUNGRY), knows(cpus_per_gpu=2.5)):
        shape = replace(ASKED, cpus=1)
        assert values(shape, profile, "proportional") == {}
        assert values(shape, replace(profile, mem_mib_per_gpu=40_000), "proportional") == {"mem": "48000M"}
        assert values(shape, replace(profile, mem_mib_per_gpu=4_000), "proportional") == {}


def test_synergy_tune_asks_for_no_more_than_the_share_either() -> None:
    assert values(replace(ASKED, cpus=1), knows(HUNGRY), "tune") == {"cpus-per-task": "4"}


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
def test_no_job_is_slower_than_as_asked_or_raised_beyond_its_share(
    rates: list[float], counts: list[int], cpus: int, gpus: int, runs: int, peak: int | None, policy: str
) -> None:
    shape = replace(ASKED, gpus=gpus, gpus_per_node=gpus, cpus=cpus, mem_mib=32_000 * gpus)
    profile = knows([*zip(sorted(counts), rates, strict=False)], runs=runs, mem_mib_per_gpu=peak)
    claim = make_job_demand(shape, profile, node("n0"), Tuning())
    assert claim is not None
    given_cpus = int(values(shape, profile, policy).get("cpus-per-task") or cpus)
    assert given_cpus <= max(cpus, 4 * gpus)
    assert runs or given_cpus >= min(cpus, 4 * gpus)
    assert find_speed(claim.speeds, given_cpus / gpus, 10**6) >= find_speed(claim.speeds, claim.cpus, 10**6)


def test_a_gain_of_less_than_double_is_reported_too() -> None:
    faster = tuple((cpus, 15.0 if cpus >= 4 else 10.0) for cpus, _ in HUNGRY)
    (_, raised) = asks(replace(ASKED, cpus=1), knows(faster))["cpus-per-task"]
    assert "it runs 1.5 times as fast" in raised
