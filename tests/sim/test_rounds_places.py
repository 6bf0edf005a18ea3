"""Servers of a job in the mode rounds: placement together or anywhere, and which jobs are preempted or moved."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.sim.consolidate import LeasePool, Places, Spot, place_anywhere, place_together, select_fitting

SIZE = 4
floors = st.lists(st.integers(0, SIZE), min_size=1, max_size=8).map(lambda free: np.array(free, dtype=np.int64))


def to_dict(spot: Spot | None) -> dict[int, int] | None:
    return None if spot is None else dict(zip(spot[0].tolist(), spot[1].tolist(), strict=True))


def test_place_together_uses_the_first_server_with_room_for_all_gpus() -> None:
    assert to_dict(place_together(np.array([1, 3, 2, 4]), 2, SIZE)) == {1: 2}
    assert place_together(np.array([1, 1, 1]), 2, SIZE) is None


def test_place_together_gives_a_large_job_idle_servers_plus_one_for_the_rest() -> None:
    assert to_dict(place_together(np.array([1, 4, 2, 4]), 10, SIZE)) == {1: 4, 3: 4, 2: 2}
    assert place_together(np.array([1, 4, 1, 4]), 10, SIZE) is None
    assert place_together(np.array([3, 3, 3]), 4, SIZE) is None


def test_place_anywhere_fills_partly_used_servers_first() -> None:
    assert to_dict(place_anywhere(np.array([4, 1, 0, 2]), 5)) == {1: 1, 3: 2, 0: 2}
    assert place_anywhere(np.array([1, 1]), 3) is None


@given(floors, st.integers(1, 12), st.booleans())
def test_a_placement_has_all_gpus_of_the_job_and_only_free_ones(free: np.ndarray, gpus: int, tied: bool) -> None:
    spot = to_dict(place_together(free, gpus, SIZE) if tied else place_anywhere(free, gpus))
    if spot is None:
        assert tied or free.sum() < gpus
    else:
        assert sum(spot.values()) == gpus
        assert all(0 < held <= free[server] for server, held in spot.items())
        assert not tied or len(spot) == -(-gpus // SIZE)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 20), st.booleans())
def test_select_fitting_gives_gpus_in_order_to_jobs_that_fit(gpus: list[int], total: int, in_turn: bool) -> None:
    free, expected = total, []
    for needed in gpus:
        expected.append(needed <= free and not (in_turn and False in expected))
        free -= needed if expected[-1] else 0
    assert select_fitting(np.array(gpus, dtype=np.int64), total, in_turn=in_turn).tolist() == expected


def make_places(*gpus: int, count: int = 2) -> Places:
    return Places(gpus=np.array(gpus), tied=np.ones(len(gpus), dtype=np.bool_), count=count, size=SIZE)


def test_admit_accepts_all_new_jobs_or_none() -> None:
    places = make_places(3, 3, 2)
    assert places.admit(np.array([0]))
    assert not places.admit(np.array([1, 2]))
    assert places.admit(np.array([1]))


def test_a_running_job_that_is_selected_again_is_not_moved() -> None:
    places = make_places(2, 2, 2, 4)
    places.admit(np.array([0, 1, 2]))
    places.release(np.array([1]))
    runs, moved = places.lease(np.array([0, 2, 3]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])


def test_the_first_job_takes_the_server_with_the_fewest_jobs_to_preempt() -> None:
    places = make_places(4, 2, 4)
    places.admit(np.array([0, 1]))
    runs, moved = places.lease(np.array([2, 0, 1]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])
    assert places.servers(np.array([0, 2])).tolist() == [1, 1]


def test_a_displaced_job_moves_to_a_server_with_room() -> None:
    places = make_places(2, 2, 1, 4)
    places.admit(np.array([0, 1, 2]))  # jobs 0 and 1 on the first server, job 2 on the second
    places.release(np.array([1]))
    runs, moved = places.lease(np.array([3, 0, 2]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, True], [2])
    assert places.used().tolist() == [3, 4]


def test_a_job_that_must_be_preempted_makes_room_before_others_are_moved() -> None:
    places = make_places(1, 3, 2, 4)
    places.admit(np.array([0, 1, 2]))  # jobs 0 and 1 on the first server
    places.release(np.array([0]))
    runs, moved = places.lease(np.array([3, 2, 1]), in_turn=False)  # enough GPUs for all but the last job
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])


def test_with_in_turn_no_job_passes_the_first_job_that_does_not_fit() -> None:
    places = make_places(3, 3, 2, 1)
    runs, _ = places.lease(np.array([0, 1, 2, 3]), in_turn=True)
    assert runs.tolist() == [True, True, False, False]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_leased_jobs_have_all_their_gpus_and_no_server_is_overfilled(gpus: list[int], data: st.DataObject) -> None:
    """For any number of leases and any order of jobs."""
    places = Places(gpus=np.array(gpus), tied=np.array([n % 3 > 0 for n in range(len(gpus))]), count=3, size=SIZE)
    for _ in range(3):
        order = np.array(data.draw(st.permutations(range(len(gpus)))))
        runs, moved = places.lease(order, in_turn=False)
        held = order[runs]
        assert places.used().max() <= SIZE
        assert places.used().sum() == sum(gpus[n] for n in held)
        assert set(moved.tolist()) <= set(held.tolist())
        assert runs[0] == (gpus[order[0]] <= 3 * SIZE)


def test_a_lease_pool_counts_gpus_and_gives_the_fewest_possible_servers() -> None:
    pool = LeasePool(gpus=np.array([3, 9, 8]), total=12, per_server=8)
    assert pool.admit(np.array([0, 1]))
    assert not pool.admit(np.array([2]))
    assert pool.servers(np.array([0, 1, 2])).tolist() == [1, 2, 1]
