"""The memory model: the minimum memory, the effect of a cache on speed, and the two kinds of cache."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from slurmwrap.profiling.memory_model import (
    MemoryModel,
    compute_cache_mib,
    compute_lru_hits,
    compute_needed_storage,
    compute_speed,
    find_needed_mib,
)

# Reads 100 GiB at 500 MiB/s from storage of 250 MiB/s: full speed needs a cache of at least half of the data.
HUNGRY = MemoryModel(
    peak_mib=10_000.0, read_mib_per_s=500.0, dataset_mib=102_400.0, storage_mib_per_s=250.0, memory_mib_per_s=1e9
)
FLOOR = 13_024


def change_model(**fields: float | None) -> MemoryModel:
    known = {name: getattr(HUNGRY, name) for name in HUNGRY.__slots__}
    return MemoryModel(**{**known, **fields})


def test_the_minimum_memory_is_the_peak_with_a_margin() -> None:
    assert HUNGRY.floor_mib == FLOOR
    assert compute_speed(HUNGRY, FLOOR - 1) == 0.0


def test_without_a_cache_storage_limits_the_speed() -> None:
    assert compute_speed(HUNGRY, FLOOR) == pytest.approx(0.5)
    assert compute_speed(HUNGRY, FLOOR, keeps=True) == pytest.approx(0.5)


def test_a_cache_without_eviction_reaches_full_speed_with_half_of_the_data() -> None:
    assert compute_speed(HUNGRY, FLOOR + 51_200, keeps=True) == pytest.approx(1.0)
    assert find_needed_mib(HUNGRY, within=1.0, keeps=True) == pytest.approx(FLOOR + 51_200, abs=1)


def test_the_page_cache_needs_over_80_percent_of_the_data_for_full_speed() -> None:
    half = compute_speed(HUNGRY, FLOOR + 51_200)
    assert half == pytest.approx(0.5 / (1 - compute_lru_hits(0.5, 1.0)))
    needed = find_needed_mib(HUNGRY, within=1.0)
    assert needed is not None
    assert 0.8 < (needed - FLOOR) / 102_400 < 0.83
    assert compute_speed(HUNGRY, needed) == pytest.approx(1.0)


def test_no_cache_is_needed_if_storage_is_fast_enough() -> None:
    assert find_needed_mib(change_model(storage_mib_per_s=500.0)) == FLOOR
    assert find_needed_mib(change_model(read_mib_per_s=1.0)) == FLOOR
    assert find_needed_mib(change_model(read_mib_per_s=0.0)) == FLOOR


def test_a_cache_does_not_count_if_the_dataset_size_is_unknown() -> None:
    unknown = change_model(dataset_mib=None)
    assert (compute_speed(unknown, FLOOR), compute_speed(unknown, 10 * FLOOR)) == (0.5, 0.5)
    assert find_needed_mib(unknown) == FLOOR


def test_no_speed_if_storage_or_read_rate_is_unknown() -> None:
    for model in (change_model(storage_mib_per_s=None), change_model(read_mib_per_s=None)):
        assert compute_speed(model, 10 * FLOOR) is None
        assert find_needed_mib(model) is None
        assert compute_speed(model, FLOOR - 1) == 0.0


def test_speed_does_not_decrease_with_more_memory() -> None:
    for keeps in (False, True):
        speeds = [compute_speed(HUNGRY, FLOOR + mib, keeps=keeps) or 0.0 for mib in range(0, 120_000, 500)]
        assert speeds == sorted(speeds)
        assert speeds[-1] == 1.0


def test_memory_bandwidth_limits_the_speed_if_all_data_is_cached() -> None:
    assert compute_speed(change_model(memory_mib_per_s=400.0), 10 * FLOOR, keeps=True) == pytest.approx(0.8)


def test_the_needed_storage_speed_decreases_with_the_cache() -> None:
    assert compute_needed_storage(HUNGRY, FLOOR) == pytest.approx(500.0)
    assert compute_needed_storage(HUNGRY, FLOOR + 51_200, keeps=True) == pytest.approx(250.0, rel=1e-3)
    assert compute_needed_storage(HUNGRY, FLOOR + 102_400) == 0.0
    assert compute_needed_storage(change_model(dataset_mib=None), FLOOR) == 500.0
    assert compute_needed_storage(change_model(read_mib_per_s=None), FLOOR) is None


def test_the_cache_is_the_memory_above_the_minimum() -> None:
    assert (compute_cache_mib(HUNGRY, FLOOR + 7), compute_cache_mib(HUNGRY, 1.0)) == (7.0, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_lru_hits_equal_those_of_a_simulated_lru_cache(share: float) -> None:
    files, chance = 2000, random.Random(7)
    cache: OrderedDict[int, None] = OrderedDict()
    order, hits = list(range(files)), 0
    for epoch in range(6):
        chance.shuffle(order)
        for file in order:
            hits += epoch >= 2 and file in cache
            cache[file] = None
            cache.move_to_end(file)
            if len(cache) > share * files:
                cache.popitem(last=False)
    assert hits / files / 4 == pytest.approx(compute_lru_hits(share, 1.0), abs=0.02)


def test_all_reads_hit_a_cache_that_holds_all_data() -> None:
    assert (compute_lru_hits(10.0, 10.0), compute_lru_hits(20.0, 10.0), compute_lru_hits(0.0, 10.0)) == (
        10.0,
        10.0,
        0.0,
    )
