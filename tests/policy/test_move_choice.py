"""The choice of a job to move: by class, from scattered GPUs, away from slow nodes; and what forbids it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from slurmwrap.config.config_defaults import Move
from slurmwrap.fast_dataclasses import replace
from slurmwrap.policy.move_choice import (
    FEEDBACK,
    FRAGMENTATION,
    SLOW,
    MoveCandidate,
    MoveNode,
    MoveView,
    PendingRequest,
    classify_attained,
    find_move,
    find_successor,
)

HOUR = 3600.0
SETTINGS = Move()


def running(job: str, *gpus: tuple[str, int], **also: Any) -> MoveCandidate:
    usual: dict[str, Any] = {
        "attained_s": 10 * HOUR, "remaining_s": 10 * HOUR, "unsaved_s": 60.0, "restart_s": 60.0, "order_class": 3,
    }  # fmt: skip
    return MoveCandidate(job=job, gpus=gpus, **{**usual, **also})


def waiting(job: str, gpus: int, nodes: int | None = 1, **also: Any) -> PendingRequest:
    return PendingRequest(job=job, gpus=gpus, nodes=nodes, **{"run_s": HOUR, **also})


def view(free: dict[str, int], jobs: list[MoveCandidate], queue: list[PendingRequest], **also: Any) -> MoveView:
    nodes = tuple(MoveNode(node=name, free=count) for name, count in free.items())
    return MoveView(
        nodes=nodes, candidates=tuple(jobs), waiting=tuple(queue), total_gpus=also.pop("total", 1000), **also
    )


def test_a_job_of_a_higher_class_replaces_one_whose_service_has_passed_its_class() -> None:
    move = find_move(view({"a": 0}, [running("old", ("a", 8))], [waiting("new", 8)]), SETTINGS)
    assert move is not None
    assert (move.occasion, move.jobs, move.waiting) == (FEEDBACK, ("old",), "new")
    # It waits ten hours less, the other one hour more.
    assert move.gain_s == 9 * HOUR and move.cost_s == 120 and move.lost_gpu_s == 8 * 120
    same = waiting("new", 8, order_class=3)
    assert find_move(view({"a": 0}, [running("old", ("a", 8))], [same]), SETTINGS) is None


@pytest.mark.parametrize(
    "change",
    [
        {"unsaved_s": 2 * HOUR},  # it would lose too much
        {"moved_before_s": HOUR},
        {"remaining_s": HOUR, "unsaved_s": 0.0, "restart_s": 0.0},  # it is nearly done
        {"partitions": ("other",)},
    ],
)
def test_what_forbids_a_move(change: dict[str, Any]) -> None:
    job = waiting("new", 8, run_s=60.0, partitions=("gpu",))
    assert find_move(view({"a": 0}, [running("old", ("a", 8))], [job]), SETTINGS) is not None
    assert find_move(view({"a": 0}, [running("old", ("a", 8), **change)], [job]), SETTINGS) is None


def test_few_gpus_are_moved_at_a_time_but_one_job_always_may_be() -> None:
    small = view({"a": 0}, [running("old", ("a", 8))], [waiting("new", 8)], total=8)
    assert find_move(small, SETTINGS) is not None
    assert find_move(replace(small, moving_gpus=1), SETTINGS) is None
    assert find_move(replace(small, total_gpus=180, moving_gpus=1), SETTINGS) is not None


def test_no_job_is_moved_for_one_whose_place_another_takes() -> None:
    jobs = [running("old", ("a", 8))]
    ahead = waiting("ahead", 4, order_class=5)
    assert find_move(view({"a": 0}, jobs, [ahead, waiting("new", 8)]), SETTINGS) is None
    # This one does not fit even then.
    move = find_move(view({"a": 0}, jobs, [replace(ahead, gpus=16), waiting("new", 8)]), SETTINGS)
    assert move is not None and move.waiting == "new"
    # And this one starts without a move, on what is free.
    assert find_move(view({"a": 0, "b": 8}, jobs, [waiting("new", 8)]), SETTINGS) is None


def test_a_large_job_makes_room_for_several_and_several_for_a_large_one() -> None:
    short = [waiting(f"w{number}", 2) for number in range(4)]
    move = find_move(view({"a": 0}, [running("old", ("a", 8))], short), SETTINGS)
    assert move is not None and move.jobs == ("old",) and move.gain_s == 39 * HOUR
    pair = [running("one", ("a", 4)), running("two", ("a", 2)), running("far", ("b", 4))]
    move = find_move(view({"a": 2, "b": 0}, pair, [waiting("new", 8, starts_s=4 * HOUR)]), SETTINGS)
    assert move is not None and set(move.jobs) == {"one", "two"} and move.gain_s == 2 * HOUR


def test_a_one_gpu_job_goes_to_a_scattered_gpu_so_that_a_large_job_starts() -> None:
    jobs = [running("x", ("a", 1)), running("y", ("b", 1), unsaved_s=HOUR)]
    queue = [waiting("new", 8, order_class=7)]
    # One free GPU too few elsewhere: then it would only change places.
    assert find_move(view({"a": 7, "b": 0, "c": 0}, jobs, queue), SETTINGS) is None
    move = find_move(view({"a": 7, "b": 7, "c": 3}, jobs, queue), SETTINGS)
    assert move is not None
    assert (move.occasion, move.jobs, move.waiting) == (FRAGMENTATION, ("x",), "new")
    assert move.gained_gpu_s == 10 * HOUR * 8
    two = find_move(view({"a": 7, "b": 7, "c": 3}, jobs, [waiting("new", 16, 2)]), SETTINGS)
    assert two is not None and set(two.jobs) == {"x", "y"}


def test_the_search_for_one_gpu_jobs_is_exact_and_moves_no_more_than_it_may() -> None:
    jobs = [running(f"a{number}", ("a", 1)) for number in range(3)]
    jobs += [running(f"b{number}", ("b", 1), unsaved_s=400.0) for number in range(1)]
    found = find_move(view({"a": 1, "b": 3, "c": 2}, jobs, [waiting("new", 4, order_class=9)]), SETTINGS)
    assert found is not None and set(found.jobs) == {"a0", "a1", "a2"}, "three cheap ones cost less than a dear one"
    fewer = replace(SETTINGS, most_jobs=1)
    found = find_move(view({"a": 1, "b": 3, "c": 2}, jobs, [waiting("new", 4, order_class=9)]), fewer)
    assert found is not None and found.jobs == ("b0",)


def test_processors_and_memory_must_be_free_too() -> None:
    nodes = (MoveNode(node="a", free=7, cpus_free=4), MoveNode(node="b", free=3, cpus_free=8))
    jobs = (running("x", ("a", 1), cpus=4),)
    base = MoveView(nodes=nodes, candidates=jobs, waiting=(), total_gpus=100)
    fits, not_ = (waiting("new", 8, cpus=count, order_class=9) for count in (8, 9))
    assert find_move(replace(base, waiting=(fits,)), SETTINGS) is not None
    assert find_move(replace(base, waiting=(not_,)), SETTINGS) is None


def test_a_slow_run_goes_elsewhere_if_it_can() -> None:
    slow = running("s", ("a", 2), slowdown=1.5)
    move = find_move(view({"a": 0, "b": 2}, [slow], []), SETTINGS)
    assert move is not None and (move.occasion, move.avoid) == (SLOW, ("a",))
    assert move.gain_s == pytest.approx(10 * HOUR / 3)
    assert find_move(view({"a": 0, "b": 2}, [replace(slow, slowdown=1.29)], []), SETTINGS) is None
    assert find_move(view({"a": 2, "b": 1}, [slow], []), SETTINGS) is None
    assert find_move(view({"a": 0, "b": 2}, [slow], [waiting("new", 2, order_class=9)]), SETTINGS) is None


def test_a_job_over_two_switches_goes_to_one() -> None:
    spread = running("s", ("a", 2), ("c", 2), slowdown=1.4)
    nodes = tuple(MoveNode(node=name, free=free, switch=name2) for name, free, name2 in
                  (("a", 0, "s0"), ("b", 2, "s0"), ("c", 0, "s1")))  # fmt: skip
    base = MoveView(nodes=nodes, candidates=(spread,), waiting=(), total_gpus=100)
    move = find_move(base, SETTINGS)
    assert move is not None and move.one_switch and not move.avoid
    full = replace(base, nodes=(nodes[0], replace(nodes[1], free=1), nodes[2]))
    assert find_move(full, SETTINGS) is None


def test_the_end_of_a_lease_and_classes() -> None:
    job = running("s", ("a", 4))
    nodes = [MoveNode(node="a", free=2), MoveNode(node="b", free=1)]
    found = find_successor(job, [waiting("fits", 2), waiting("large", 16), waiting("next", 4)], nodes)
    assert found is not None and found.job == "next"
    assert find_successor(job, [waiting("fits", 2), waiting("large", 16)], nodes) is None
    assert find_successor(job, [waiting("any", 5, None)], nodes) is not None
    assert [classify_attained(value, (10.0, 100.0)) for value in (0.0, 10.0, 99.0, 1e9)] == [0, 1, 1, 2]
    assert waiting("w", 1).starts_s == inf
