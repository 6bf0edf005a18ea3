"""The wait for close nodes by the time that a job loses on distant ones."""

from __future__ import annotations

import pytest

from slurmwrap.placement.locality import LostTime, compute_locality_delay
from slurmwrap.placement.locality_wait import (
    ClosenessForecast,
    find_longest_wait,
    forecast_closeness,
    keeps_waiting,
)
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob


@pytest.mark.parametrize(
    ("close_s", "lost_s", "longest"),
    [
        ((10, 20, 30, 1000), 100, 30),  # within 30 s with 0.75: 75 > 30
        ((60, 1000, 1000, 1000), 100, 0),  # within 60 s with 0.25 only: 25 < 60
        ((90, 90, 90, 90), 100, 90),
        ((110, 110), 100, 0),
        ((), 100, 0),
    ],
)
def test_the_longest_wait_is_that_which_its_chance_pays(
    close_s: tuple[float, ...], lost_s: float, longest: float
) -> None:
    assert find_longest_wait(close_s, lost_s) == longest


def test_a_job_waits_freely_until_distant_nodes_are_free_and_then_no_longer_than_it_loses() -> None:
    soon = ClosenessForecast(close_s=(10.0, 10.0), spread_s=0.0)
    assert keeps_waiting(soon, 100.0, 99.0)
    assert not keeps_waiting(soon, 100.0, 100.0)
    assert not keeps_waiting(ClosenessForecast(close_s=(500.0, 500.0), spread_s=0.0), 100.0, 0.0)
    assert keeps_waiting(ClosenessForecast(close_s=(500.0, 500.0), spread_s=5.0), 100.0, 0.0)


def test_the_forecast_tells_close_from_distant_starts() -> None:
    nodes = [NodeGpus(node=name, partitions=(), free=2) for name in ("a", "b")]
    running = [RunningJob(gpus=(("a", 2),), elapsed_s=0.0, limit_s=300.0)]
    job = QueuedJob(job="1", gpus=4, nodes=1, limit_s=600.0)
    forecast = forecast_closeness(job, 1, nodes, running, [])
    assert forecast.spread_s == 0.0 and set(forecast.close_s) == {300.0}


def test_a_known_loss_decides_instead_of_the_skew() -> None:
    def find_delay(skew: float, lost: LostTime | None) -> tuple[int, bool]:
        found = compute_locality_delay(skew=skew, limit=0.3, nodes=2, room=1.0, base_s=300, run_s=36000.0, lost=lost)
        return found.wait_s, found.firm

    slow = LostTime(seconds=2000.0, slowdown=1.5, basis="")
    assert find_delay(0.0, slow) == (300, True)
    assert find_delay(0.9, LostTime(seconds=2000.0, slowdown=1.01, basis="")) == (0, False)
    assert find_delay(0.9, LostTime(seconds=5.0, slowdown=1.5, basis="")) == (0, False)
    assert find_delay(0.9, None)[1] and not find_delay(0.1, None)[1]
