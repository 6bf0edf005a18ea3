"""The published table of expected run times: which line gsub finds for a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.run_time import (
    FROM_ACCOUNT,
    FROM_OTHER_RUNS,
    FROM_PARTITION,
    FROM_RUNS,
    FROM_SCALED_RUNS,
    FROM_USER,
    RunTimeSample,
)
from slurmwrap.profiling.published_run_times import (
    _find_line,
    find_published_run_time,
    format_line,
    join_lines,
    list_published_groups,
)
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery

JOB = RunTimeQuery(
    user="1001",
    key="train",
    variant="v",
    length=(("dataset", "cifar"), ("epochs", "90")),
    gpus=8,
    account="vision",
    partition="gpu",
)


def publish(*jobs: RunTimeQuery, run_s: float = 9000.0) -> str:
    history = RunTimeHistory()
    for job in jobs:
        for _ in range(10):
            history.add(job, RunTimeSample(run_s=run_s))
    lines = [
        format_line(digest, found, count)
        for job in jobs
        for digest, count, known in list_published_groups("lab", job)
        if (found := history.estimate(known)) is not None
    ]
    return join_lines(lines)


TABLE = publish(JOB)


@pytest.mark.parametrize(
    ("job", "source", "p50_s"),
    [
        (JOB, FROM_RUNS, 9000),
        (replace(JOB, length=(("dataset", "cifar"), ("epochs", "30"))), FROM_SCALED_RUNS, 3000),
        (replace(JOB, length=(("dataset", "coco"), ("epochs", "90"))), FROM_OTHER_RUNS, 9000),
        (replace(JOB, variant="w"), FROM_OTHER_RUNS, 9000),
        (replace(JOB, key="other"), FROM_USER, 9000),
        (replace(JOB, key=""), FROM_USER, 9000),
        (replace(JOB, user="2", key=""), FROM_ACCOUNT, 9000),
        (replace(JOB, user="2", account=""), FROM_PARTITION, 9000),
    ],
)
def test_the_most_specific_line_is_found(job: RunTimeQuery, source: str, p50_s: float) -> None:
    found = find_published_run_time(TABLE, "lab", job)
    assert found is not None
    assert (found.source, found.n) == (source, 10)
    assert found.p50_s == pytest.approx(p50_s, rel=0.01)


def test_runs_with_all_counts_predict_a_job_with_another_one() -> None:
    other = replace(JOB, length=(("dataset", "cifar"), ("epochs", "10")))
    history = RunTimeHistory()
    for job, run_s in (*[(JOB, 9000.0)] * 8, (other, 1400.0)):
        history.add(job, RunTimeSample(run_s=run_s))
    for newest in (JOB, other):
        table = join_lines(
            format_line(digest, found, count)
            for digest, count, known in list_published_groups("lab", newest)
            if (found := history.estimate(known)) is not None
        )
        found = find_published_run_time(table, "lab", replace(JOB, length=(("dataset", "cifar"), ("epochs", "180"))))
        assert found is not None
        assert (found.source, found.n) == (FROM_SCALED_RUNS, 9)
        assert found.p50_s == pytest.approx(18_000, rel=0.05)


def test_what_is_found_is_what_the_history_expects() -> None:
    history = RunTimeHistory()
    for _ in range(10):
        history.add(JOB, RunTimeSample(run_s=9000.0))
    found, expected = find_published_run_time(TABLE, "lab", JOB), history.estimate(JOB)
    assert found is not None and expected is not None
    assert found.quantiles_s == tuple(round(time) for time in expected.quantiles_s)


@pytest.mark.parametrize(
    ("cluster", "job"),
    [
        ("other", JOB),
        ("lab", replace(JOB, user="2", account="nlp", partition="cpu")),
        ("lab", replace(JOB, gpus=4, key="")),
    ],
)
def test_another_cluster_user_or_gpu_count_finds_nothing(cluster: str, job: RunTimeQuery) -> None:
    assert find_published_run_time(TABLE, cluster, job) is None


def test_a_key_of_another_user_is_not_found() -> None:
    found = find_published_run_time(TABLE, "lab", replace(JOB, user="2"))
    assert found is not None and found.source == FROM_ACCOUNT


@pytest.mark.parametrize("line", ["x", "0 10 0 1 2", "9 10 0" + " 5" * 13, "0 ten 0" + " 5" * 13, "0 1 0" + " 0" * 13])
def test_a_damaged_line_is_no_estimate(line: str) -> None:
    digest = next(iter(list_published_groups("lab", JOB)))[0]
    assert find_published_run_time(f"{digest} {line};", "lab", JOB) is None


@given(st.sets(st.integers(0, 16**16 - 1), max_size=60), st.integers(0, 16**16 - 1))
def test_each_line_is_found_by_its_digest_and_no_other(digests: set[int], other: int) -> None:
    lines = {f"{one:016x}": f"{one:016x} {'5 ' * (one % 7)}" for one in digests}
    table = join_lines(lines.values())
    assert {digest: _find_line(table, digest) for digest in lines} == lines
    assert (_find_line(table, f"{other:016x}") != "") == (other in digests)
