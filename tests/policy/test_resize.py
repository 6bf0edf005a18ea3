"""How much more memory or time the next run requests."""

from __future__ import annotations

import pytest
from fakes import job

from slurmwrap.model.cluster import Partition
from slurmwrap.policy.resize import (
    compute_larger_memory,
    compute_longer_time_limit,
    compute_memory_cap,
    compute_time_needed_s,
)

PER_CPU: dict[str, object] = {"mem_mib_per_node": None, "mem_mib_per_cpu": 500, "cpus": 8}


@pytest.mark.parametrize(
    ("changes", "peak", "expected"),
    [
        ({"mem_mib_per_node": 4000}, None, ("MinMemoryNode", 6000)),
        ({"mem_mib_per_node": 4000}, 3000, ("MinMemoryNode", 6000)),  # sampled before the last allocation
        ({"mem_mib_per_node": 4000}, 5000, ("MinMemoryNode", 7500)),
        ({"mem_mib_per_node": 4000}, 9000, ("MinMemoryNode", 10000)),  # the cap
        ({"mem_mib_per_node": 10000}, None, None),
        (PER_CPU, None, ("MinMemoryCPU", 750)),
        ({**PER_CPU, "nodes": ("n1", "n2")}, None, ("MinMemoryCPU", 750)),
        ({"mem_mib_per_node": None}, None, None),
    ],
)
def test_memory_grows_in_the_unit_of_the_job(
    changes: dict[str, object], peak: int | None, expected: tuple[str, int] | None
) -> None:
    assert compute_larger_memory(job(81, **changes), peak, factor=1.5, cap_mib=10000) == expected


def test_memory_grows_again_after_a_second_failure() -> None:
    assert compute_larger_memory(job(81, mem_mib_per_node=6000), 2000, factor=1.5, cap_mib=256_000) == (
        "MinMemoryNode",
        9000,
    )


def test_a_size_that_is_not_larger_is_not_requested() -> None:
    assert compute_larger_memory(job(81), None, factor=1.0, cap_mib=256_000) is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), 256_000),
        ((Partition(name="a"),), 256_000),
        ((Partition(name="a", max_mem_mib_per_node=9000),), 9000),
        ((Partition(name="a", max_mem_mib_per_cpu=1000),), 8000),
        ((Partition(name="a", max_mem_mib_per_node=9000), Partition(name="b", max_mem_mib_per_node=7000)), 7000),
    ],
)
def test_the_memory_cap_is_the_minimum_of_node_and_partition_limits(
    limits: tuple[Partition, ...], expected: int
) -> None:
    assert compute_memory_cap(job(81), 256_000, limits) == expected


@pytest.mark.parametrize(
    ("limit_s", "max_time_s", "expected"),
    [
        (3600, None, 90),
        (3600, 7200, 90),
        (3600, 4800, 80),
        (3600, 3600, None),
        (3630, 3659, None),  # less than one whole minute more
        (90, None, 3),
        (None, None, None),  # UNLIMITED
    ],
)
def test_the_time_limit_grows_up_to_the_partitions_limit(
    limit_s: int | None, max_time_s: int | None, expected: int | None
) -> None:
    assert compute_longer_time_limit(limit_s, (Partition(name="gpu", max_time_s=max_time_s),), factor=1.5) == expected


@pytest.mark.parametrize(("left", "minutes"), [(None, 90), (600, 90), (3 * 3600, 216), (9 * 3600, 480)])
def test_the_remaining_time_is_used_if_it_asks_for_more(left: float | None, minutes: int) -> None:
    limits = (Partition(name="gpu", max_time_s=8 * 3600),)
    assert compute_longer_time_limit(3600, limits, factor=1.5, remaining_s=left) == minutes


@pytest.mark.parametrize(
    ("run_s", "left", "wanted"), [(63, 978, 25 * 60), (60, 60, 180), (3600, 8400, 4 * 3600), (86400, 86400, 58 * 3600)]
)
def test_the_time_for_a_whole_run_has_a_margin_and_is_rounded(run_s: float, left: float, wanted: int) -> None:
    assert compute_time_needed_s(run_s, left) == wanted
