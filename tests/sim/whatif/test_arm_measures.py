"""Measures of an arm: queueing delay, JCT, locality, utilisation, and the deviation of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.sim.failures.study_result import Interval
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import SimOutcome
from slurmwrap.sim.whatif.arm_measures import (  # fmt: skip
    GRID_S,
    Span,
    compute_busy_shares,
    compute_shares_within,
    estimate_jct_change,
    estimate_queueing_change,
    fewest_nodes,
    judge_trust,
    measure_arm,
)
from slurmwrap.sim.whatif.cluster_shape import make_server
from slurmwrap.sim.whatif.whatif_study import DelayFit, DelaySpread, Locality

SERVERS = tuple(make_server(f"n{number}", 8, 64, 512_000) for number in range(4))


def make_jobs(*gpus: int, every_s: float = 0.0) -> list[SimJob]:
    return [
        SimJob(number=n, job=str(n), submit_s=n * every_s, work_s=100.0, gpus=count) for n, count in enumerate(gpus)
    ]


def make_outcome(jobs: list[SimJob], waits: list[float], servers: list[int] | None = None) -> SimOutcome:
    return SimOutcome(
        mode="slurm",
        began_s=tuple(job.submit_s + wait for job, wait in zip(jobs, waits, strict=True)),
        ended_s=tuple(job.submit_s + wait + 100.0 for job, wait in zip(jobs, waits, strict=True)),
        held_s=(100.0,) * len(jobs),
        servers=tuple(servers or [1] * len(jobs)),
    )


def test_an_arm_has_queueing_and_jct_by_class_and_the_locality_of_large_jobs() -> None:
    jobs = make_jobs(1, 1, 4, 16, 16)
    arm = measure_arm(
        "real", jobs, make_outcome(jobs, [0, 10, 20, 30, 40], [1, 1, 2, 2, 4]), [], servers=SERVERS, window=(0, 100)
    )
    assert arm.all.queueing == DelaySpread(mean=20, median=20, p95=38, p99=pytest.approx(39.6))
    assert arm.all.jct.mean == 120
    assert [(one.label, one.jobs, one.queueing.mean) for one in arm.classes] == [
        ("1 GPU", 2, 5),
        ("2–4 GPUs", 1, 20),
        ("more than 8 GPUs", 2, 35),
    ]
    assert arm.locality == (
        Locality(label="2–4 GPUs", jobs=1, fewest=0, nodes=2, fewest_nodes=1),
        Locality(label="more than 8 GPUs", jobs=2, fewest=1, nodes=3, fewest_nodes=2),
    )


def test_the_distribution_counts_jobs_that_started_within_each_grid_time() -> None:
    shares = compute_shares_within([0.0, 5.0, 60.0, 10**9])
    assert shares[0] == 0.5  # within 10 s
    assert shares[next(i for i, at in enumerate(GRID_S) if at >= 60)] == 0.75
    assert shares[-1] == 0.75


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (8, 1), (9, 2), (32, 4)])
def test_the_fewest_nodes_that_can_hold_the_gpus(gpus: int, nodes: int) -> None:
    assert fewest_nodes(gpus, 8) == nodes


def test_utilisation_is_the_share_of_held_gpus_in_each_part_of_the_window() -> None:
    spans = [
        Span(began_s=-50, ended_s=25, gpus=2),
        Span(began_s=12, ended_s=18, gpus=2),
        Span(began_s=90, ended_s=500, gpus=4),
    ]
    assert compute_busy_shares(spans, 4, (0, 100), parts=10) == pytest.approx((0.5, 0.8, 0.25, 0, 0, 0, 0, 0, 0, 1.0))


def test_utilisation_of_a_cluster_with_one_gpu() -> None:
    assert compute_busy_shares([Span(began_s=0, ended_s=75, gpus=1)], 1, (0, 100), parts=2) == (1.0, 0.5)


def test_utilisation_of_a_span_within_one_part_counts_in_that_part() -> None:
    spans = [Span(began_s=60, ended_s=80, gpus=2), Span(began_s=5, ended_s=15, gpus=4)]
    assert compute_busy_shares(spans, 4, (0, 100), parts=2) == pytest.approx((0.2, 0.2))


def test_utilisation_is_zero_without_spans() -> None:
    assert compute_busy_shares([], 4, (0, 100), parts=2) == (0, 0)


def test_equal_differences_give_an_interval_of_width_zero() -> None:
    jobs = make_jobs(*[1] * 20, every_s=86400.0)
    before, after = make_outcome(jobs, [60] * 20), make_outcome(jobs, [50] * 20)
    assert estimate_queueing_change(jobs, before, before) == Interval(mean=0, low=0, high=0)
    assert estimate_queueing_change(jobs, before, after) == Interval(mean=-10, low=-10, high=-10)
    assert estimate_jct_change(jobs, before, after) == Interval(mean=-10, low=-10, high=-10)


def test_differences_between_days_widen_the_interval() -> None:
    jobs = make_jobs(*[1] * 20, every_s=86400.0)
    found = estimate_queueing_change(jobs, make_outcome(jobs, [100] * 20), make_outcome(jobs, [0, 200] * 10))
    assert found is not None
    assert found.mean == 0
    assert found.low is not None
    assert found.high is not None
    assert found.low < -20
    assert found.high > 20


def test_a_few_days_give_no_interval() -> None:
    jobs = make_jobs(*[1] * 6, every_s=86400.0)
    assert estimate_queueing_change(jobs, make_outcome(jobs, [1] * 6), make_outcome(jobs, [2] * 6)) is None


@pytest.mark.parametrize(
    ("real", "model", "word"),
    [(7200, 7200, "close"), (1, 50, "close"), (7200, 4500, "far"), (7200, 60, "far")],
)
def test_the_trust_in_the_model_depends_on_its_deviation(real: float, model: float, word: str) -> None:
    jobs = make_jobs(1, 1, 1, 1)
    arms = [
        measure_arm("x", jobs, make_outcome(jobs, [wait] * 4), [], servers=SERVERS, window=(0, 100))
        for wait in (real, model)
    ]
    assert judge_trust(*arms).word == word


def test_a_model_with_means_within_a_factor_of_two_is_fair() -> None:
    jobs = make_jobs(*[1] * 10)
    real = measure_arm(
        "x", jobs, make_outcome(jobs, [0.0] * 8 + [7200.0, 7200.0]), [], servers=SERVERS, window=(0, 100)
    )
    model = measure_arm(
        "x", jobs, make_outcome(jobs, [0.0] * 8 + [3600.0, 7200.0]), [], servers=SERVERS, window=(0, 100)
    )
    found = judge_trust(real, model)
    assert (found.word, found.gap) == ("fair", pytest.approx(0.1))
    assert found == replace(found, mean_real_s=1440, mean_model_s=1080)


def test_a_model_in_which_large_jobs_wait_half_as_long_is_not_close() -> None:
    jobs = make_jobs(*[1] * 400, *[16] * 25)
    real = measure_arm(
        "x", jobs, make_outcome(jobs, [60.0] * 400 + [7200.0] * 25), [], servers=SERVERS, window=(0, 100)
    )
    model = measure_arm(
        "x", jobs, make_outcome(jobs, [60.0] * 400 + [6000.0] * 25), [], servers=SERVERS, window=(0, 100)
    )
    found = judge_trust(real, model)
    assert (found.word, found.worst) == (
        "fair",
        DelayFit(label="more than 8 GPUs", word="far", gap=1.0, mean_real_s=7200.0, mean_model_s=6000.0),
    )


def test_a_class_of_few_jobs_is_not_used_to_judge_the_model() -> None:
    jobs = make_jobs(*[1] * 400, *[16] * 19)
    real = measure_arm("x", jobs, make_outcome(jobs, [60.0] * 400 + [900.0] * 19), [], servers=SERVERS, window=(0, 100))
    model = measure_arm("x", jobs, make_outcome(jobs, [60.0] * 419), [], servers=SERVERS, window=(0, 100))
    found = judge_trust(real, model)
    assert found.worst is not None
    assert (found.word, found.worst.label) == ("close", "1 GPU")
