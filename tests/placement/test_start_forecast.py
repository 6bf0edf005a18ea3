"""When pending jobs start, by predicted ends of running jobs and of the jobs ahead."""

from __future__ import annotations

from math import inf

import pytest

from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.placement import start_forecast
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob, forecast_starts

HOUR = 3600.0


def take(run_s: float) -> RunTimeEstimate:
    """Return an estimate that is certain."""
    return RunTimeEstimate(quantiles_s=(run_s,) * len(QUANTILE_LEVELS), source=FROM_RUNS, n=9)


def make_node(node: str = "n0", free: int = 0, partitions: tuple[str, ...] = ("gpu",)) -> NodeGpus:
    return NodeGpus(node=node, partitions=partitions, free=free)


def run(gpus: int = 4, node: str = "n0", **changes) -> RunningJob:
    return RunningJob(**{"gpus": ((node, gpus),), "elapsed_s": 0.0, "limit_s": 24 * HOUR, **changes})


def wait(job: str, gpus: int = 4, **changes) -> QueuedJob:
    return QueuedJob(**{"job": job, "gpus": gpus, "nodes": 1, "limit_s": 24 * HOUR, **changes})


def list_p50(nodes: list[NodeGpus], running: list[RunningJob], queue: list[QueuedJob]) -> list[float]:
    return [round(one.p50_s) for one in forecast_starts(nodes, running, queue).values()]


def test_a_job_starts_when_the_running_job_is_predicted_to_end_and_not_at_its_limit() -> None:
    known = run(elapsed_s=HOUR, estimate=take(3 * HOUR))
    assert list_p50([make_node()], [known], [wait("1")]) == [2 * HOUR]
    assert list_p50([make_node()], [run(elapsed_s=HOUR)], [wait("1")]) == [23 * HOUR]
    # Slurm ends a job at its limit, whatever is predicted.
    late = run(elapsed_s=HOUR, estimate=take(90 * HOUR))
    assert list_p50([make_node()], [late], [wait("1")]) == [23 * HOUR]


def test_jobs_ahead_run_first_and_the_share_of_predicted_jobs_is_known() -> None:
    queue = [wait("1", estimate=take(HOUR)), wait("2"), wait("3")]
    found = forecast_starts([make_node(free=4)], [], queue)
    assert {job: (round(one.p50_s), round(one.p90_s), one.predicted) for job, one in found.items()} == {
        "1": (0, 0, 1.0),
        "2": (HOUR, HOUR, 1.0),
        "3": (25 * HOUR, 25 * HOUR, 0.5),
    }


def test_the_bound_is_later_than_the_median_if_run_times_vary() -> None:
    spread = RunTimeEstimate(
        quantiles_s=tuple(HOUR * (0.5 + level) for level in QUANTILE_LEVELS), source=FROM_RUNS, n=9
    )
    found = forecast_starts([make_node()], [run(estimate=spread)], [wait("1")])["1"]
    assert found.p50_s == pytest.approx(HOUR, rel=0.05)
    assert found.p90_s == pytest.approx(1.4 * HOUR, rel=0.05)


def test_several_nodes_must_be_free_at_once_and_partitions_are_kept() -> None:
    nodes = [make_node("n0"), make_node("n1"), make_node("n2", free=4, partitions=("cpu", "other"))]
    running = [run(node="n0", estimate=take(HOUR)), run(node="n1", estimate=take(2 * HOUR))]
    assert list_p50(nodes, running, [wait("1", 8, nodes=2, partitions=("gpu",))]) == [2 * HOUR]
    assert list_p50(nodes, running, [wait("1", partitions=("cpu", "gpu"))]) == [0]
    assert forecast_starts(nodes, running, [wait("1", 12, nodes=3, partitions=("gpu",))])["1"].p50_s == inf
    assert forecast_starts(nodes, running, [wait("1", partitions=("none",))])["1"].p50_s == inf


def test_a_job_that_may_spread_takes_the_first_free_gpus_of_any_nodes() -> None:
    nodes = [make_node("n0", free=2), make_node("n1")]
    running = [run(2, "n0", estimate=take(2 * HOUR)), run(2, "n1", estimate=take(HOUR)), run(2, "n1")]
    assert list_p50(nodes, running, [wait("1", 4, nodes=None)]) == [HOUR]
    assert list_p50(nodes, running, [wait("1", 4, nodes=1)]) == [2 * HOUR]
    # After it the GPUs are free again, each on its node.
    queue = [wait("1", 4, nodes=None, estimate=take(HOUR)), wait("2", 2, limit_s=30 * HOUR)]
    assert list_p50(nodes, running, queue) == [HOUR, 2 * HOUR]


def test_a_short_job_uses_gpus_that_are_kept_for_a_job_with_a_higher_priority() -> None:
    nodes, running = [make_node("n0", free=2)], [run(2, elapsed_s=0.0, limit_s=8 * HOUR, estimate=take(4 * HOUR))]
    first = wait("1", estimate=take(HOUR))
    short = wait("2", 1, limit_s=2 * HOUR, estimate=take(HOUR))
    assert list_p50(nodes, running, [first, short]) == [4 * HOUR, 0]
    # By its limit it would delay the first job.
    long = wait("2", 1, limit_s=9 * HOUR, estimate=take(HOUR))
    assert list_p50(nodes, running, [first, long]) == [4 * HOUR, 5 * HOUR]
    # The gap holds two GPUs; the third job waits for one of them.
    queue = [first, *(wait(str(number), 1, limit_s=2 * HOUR, estimate=take(HOUR)) for number in (2, 3, 4))]
    assert list_p50(nodes, running, queue) == [4 * HOUR, 0, 0, HOUR]


def test_a_job_does_not_start_before_its_begin() -> None:
    assert list_p50([make_node(free=4)], [], [wait("1", begins_s=600.0, estimate=take(HOUR)), wait("2")]) == [600, 4200]


def test_a_job_that_outran_all_that_is_known_is_expected_to_run_as_long_again() -> None:
    old = run(elapsed_s=10 * HOUR, limit_s=None, estimate=take(HOUR))
    found = forecast_starts([make_node()], [old], [wait("1")])["1"]
    assert found.p50_s == pytest.approx(10 * HOUR, rel=0.05)
    assert found.p90_s > 5 * found.p50_s


def test_a_job_without_gpus_has_no_forecast() -> None:
    assert forecast_starts([make_node(free=4)], [], [wait("1", 0)])["1"].p50_s == inf


def test_fewer_scenarios_of_a_large_cluster_give_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = RunTimeEstimate(
        quantiles_s=tuple(HOUR * (0.5 + level) for level in QUANTILE_LEVELS), source=FROM_RUNS, n=9
    )
    monkeypatch.setattr(start_forecast, "_MANY_RUNNING", 0)
    found = forecast_starts([make_node()], [run(estimate=spread)], [wait("1")])["1"]
    assert found.p50_s == pytest.approx(HOUR, rel=0.1)
    assert found.p90_s == pytest.approx(1.4 * HOUR, rel=0.1)
