"""On which servers: together, anywhere, and who makes room for whom."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.sim.consolidate import LeasePool, Places, Spot, place_anywhere, place_together, select_fitting

SIZE = 4
floors = st.lists(st.integers(0, SIZE), min_size=1, max_size=8).map(lambda free: np.array(free, dtype=np.int64))


def plain(spot: Spot | None) -> dict[int, int] | None:
    return None if spot is None else dict(zip(spot[0].tolist(), spot[1].tolist(), strict=True))


def test_together_is_the_first_server_with_room_for_all() -> None:
    assert plain(place_together(np.array([1, 3, 2, 4]), 2, SIZE)) == {1: 2}
    assert place_together(np.array([1, 1, 1]), 2, SIZE) is None


def test_together_a_large_job_takes_idle_servers_and_the_rest_elsewhere() -> None:
    assert plain(place_together(np.array([1, 4, 2, 4]), 10, SIZE)) == {1: 4, 3: 4, 2: 2}
    assert place_together(np.array([1, 4, 1, 4]), 10, SIZE) is None
    assert place_together(np.array([3, 3, 3]), 4, SIZE) is None


def test_anywhere_fills_fragments_first() -> None:
    assert plain(place_anywhere(np.array([4, 1, 0, 2]), 5)) == {1: 1, 3: 2, 0: 2}
    assert place_anywhere(np.array([1, 1]), 3) is None


@given(floors, st.integers(1, 12), st.booleans())
def test_a_spot_is_all_of_the_job_and_nothing_that_is_taken(free: np.ndarray, gpus: int, tied: bool) -> None:
    spot = plain(place_together(free, gpus, SIZE) if tied else place_anywhere(free, gpus))
    if spot is None:
        assert tied or free.sum() < gpus
    else:
        assert sum(spot.values()) == gpus
        assert all(0 < held <= free[server] for server, held in spot.items())
        assert not tied or len(spot) == -(-gpus // SIZE)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 20), st.booleans())
def test_gpus_go_in_order_to_who_fits(gpus: list[int], total: int, in_turn: bool) -> None:
    free, expected = total, []
    for needed in gpus:
        expected.append(needed <= free and not (in_turn and False in expected))
        free -= needed if expected[-1] else 0
    assert select_fitting(np.array(gpus, dtype=np.int64), total, in_turn=in_turn).tolist() == expected


def places(*gpus: int, count: int = 2) -> Places:
    return Places(gpus=np.array(gpus), tied=np.ones(len(gpus), dtype=np.bool_), count=count, size=SIZE)


def test_newcomers_are_let_in_all_or_none() -> None:
    rooms = places(3, 3, 2)
    assert rooms.admit(np.array([0]))
    assert not rooms.admit(np.array([1, 2]))
    assert rooms.admit(np.array([1]))


def test_who_is_still_chosen_stays_and_a_fragment_does_not_move_it() -> None:
    rooms = places(2, 2, 2, 4)
    rooms.admit(np.array([0, 1, 2]))
    rooms.release(np.array([1]))
    runs, moved = rooms.lease(np.array([0, 2, 3]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])


def test_who_is_first_takes_the_server_where_fewest_have_to_go_and_they_wait() -> None:
    rooms = places(4, 2, 4)
    rooms.admit(np.array([0, 1]))
    runs, moved = rooms.lease(np.array([2, 0, 1]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])
    assert rooms.servers(np.array([0, 2])).tolist() == [1, 1]


def test_who_had_to_go_moves_where_there_is_room() -> None:
    rooms = places(2, 2, 1, 4)
    rooms.admit(np.array([0, 1, 2]))  # two on the first server, one on the second
    rooms.release(np.array([1]))
    runs, moved = rooms.lease(np.array([3, 0, 2]), in_turn=False)
    assert (runs.tolist(), moved.tolist()) == ([True, True, True], [2])
    assert rooms.used().tolist() == [3, 4]


def test_who_has_to_go_anyway_makes_room_before_others_are_moved() -> None:
    rooms = places(1, 3, 2, 4)
    rooms.admit(np.array([0, 1, 2]))  # the first two on the first server
    rooms.release(np.array([0]))
    runs, moved = rooms.lease(np.array([3, 2, 1]), in_turn=False)  # GPUs enough for all but the last
    assert (runs.tolist(), moved.tolist()) == ([True, True, False], [])


def test_in_turn_nobody_behind_the_first_that_does_not_fit_gets_room() -> None:
    rooms = places(3, 3, 2, 1)
    runs, _ = rooms.lease(np.array([0, 1, 2, 3]), in_turn=True)
    assert runs.tolist() == [True, True, False, False]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_whoever_gets_room_has_all_of_it_and_no_server_has_more_than_its_gpus(
    gpus: list[int], data: st.DataObject
) -> None:
    """However often leases end, in whatever order: the priority of who has no room is below that of who took it."""
    rooms = Places(gpus=np.array(gpus), tied=np.array([n % 3 > 0 for n in range(len(gpus))]), count=3, size=SIZE)
    for _ in range(3):
        order = np.array(data.draw(st.permutations(range(len(gpus)))))
        runs, moved = rooms.lease(order, in_turn=False)
        held = order[runs]
        assert rooms.used().max() <= SIZE
        assert rooms.used().sum() == sum(gpus[n] for n in held)
        assert set(moved.tolist()) <= set(held.tolist())
        assert runs[0] == (gpus[order[0]] <= 3 * SIZE)


def test_a_pool_counts_and_says_on_how_many_servers_it_could_be() -> None:
    pool = LeasePool(gpus=np.array([3, 9, 8]), total=12, per_server=8)
    assert pool.admit(np.array([0, 1]))
    assert not pool.admit(np.array([2]))
    assert pool.servers(np.array([0, 1, 2])).tolist() == [1, 2, 1]
