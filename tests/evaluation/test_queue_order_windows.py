"""bench/queue_order.py: how windows are cut from the trace, what is known before them, when a target is missed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import queue_order
from queue_order import (
    DEVELOPMENT,
    JOBS,
    LOADS,
    SEED,
    SERVERS,
    WindowResult,
    choose_windows,
    cut_window,
    find_missed,
    group_by_wait,
    list_ended_before,
    summarize,
)

from slurmwrap.sim.sim_job import SimJob


@cache
def jobs() -> tuple[SimJob, ...]:
    return queue_order.read_jobs()


def test_windows_of_the_development_share_no_job_with_those_that_are_reported() -> None:
    kept = choose_windows(jobs(), SEED)
    assert len(set(kept)) == 10
    for seed in DEVELOPMENT:
        found = choose_windows(jobs(), seed)
        assert found
        assert min(abs(one - other) for one in found for other in kept) >= JOBS


@pytest.mark.parametrize("load", LOADS)
def test_a_window_asks_for_the_offered_load(load: float) -> None:
    window = cut_window(jobs(), 5000, load)
    gpu_s = sum(job.gpus * job.work_s for job in window)
    capacity = sum(server.gpus for server in SERVERS) * (window[-1].submit_s - window[0].submit_s)
    assert len(window) == JOBS
    assert gpu_s / capacity == pytest.approx(load)


def test_only_what_had_ended_is_known_before_a_window() -> None:
    begin = jobs()[5000].submit_s
    known = list_ended_before(jobs(), 5000)
    assert all(job.submit_s + job.work_s <= begin for job in known)
    assert [job.submit_s + job.work_s for job in known] == sorted(job.submit_s + job.work_s for job in known)
    assert 0 < len(known) < 5000


def result(load: float, order: str, jct_s: float, *, wait_s: float = 200.0) -> WindowResult:
    return WindowResult(
        start=0, load=load, order=order, limits="", contended=True, mean_run_s=100.0, mean_jct_s=jct_s,
        mean_wait_s=wait_s, p99_wait_s=1000.0, ratio=300.0 / jct_s, p99_ratio=1.0,
    )  # fmt: skip


def test_a_missed_target_is_named_with_its_figure() -> None:
    fifo = [result(load, "", 300.0) for load in LOADS]
    good = [*fifo, *(result(load, order, 150.0) for load in LOADS for order in ("shortest", "exact"))]
    assert find_missed(summarize(good)) == []
    (group, _) = group_by_wait(good)
    assert (group.name, group.windows, group.shortest, group.below) == ("2 and more", 1, 2.0, 0)
    poor = [
        replace(one, ratio=0.97, p99_ratio=1.2) if (one.order, one.load) == ("shortest", 1.0) else one for one in good
    ]
    words = find_missed(summarize(poor))
    assert len(words) == 4
    assert any("p99 wait 1.20" in one for one in words)
    assert any("0.970 on a window" in one for one in words)
