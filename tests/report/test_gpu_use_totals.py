"""Use of the GPUs by size, spread and neighbours: the sums, and their rows from a real SQLite database."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.cli.record_access import JobRecords
from slurmwrap.cli.report import open_records_in_memory
from slurmwrap.config.load_config import Config
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.report.gpu_use_totals import LEAST_RUNS, compute_beside_share, find_shared_time, sum_gpu_use
from slurmwrap.report.report_inputs import GpuRun
from slurmwrap.store.report_figures import read
from slurmwrap.store.report_reader import Period, ReportReader

UNTIL = 1_700_604_800
SINCE = UNTIL - 86_400


def run(start: float, end: float, *nodes: str, gpus: int = 1, use: float | None = 0.5) -> GpuRun:
    return GpuRun(nodes, gpus, "gpu", start, end, use)


def test_the_time_beside_others_is_that_of_a_count_second_by_second() -> None:
    rng = random.Random(7)
    runs = []
    for _ in range(60):
        start = rng.randrange(200)
        nodes = rng.sample("abcd", rng.randint(1, 3))
        runs.append(run(start, start + rng.randint(1, 60), *nodes))
    shared = find_shared_time(runs)
    for one in runs:
        beside = [
            sum(other.start <= second < other.end and node in other.nodes for other in runs) > 1
            for node in one.nodes
            for second in range(int(one.start), int(one.end))
        ]
        assert compute_beside_share(one, shared) == pytest.approx(sum(beside) / len(beside))


def test_means_are_over_gpu_time_and_only_those_of_enough_runs_are_shown() -> None:
    whole = run(0, 100, "x", gpus=8, use=1.0)  # a node has 8 GPUs
    far = [run(0, 100, f"a{n}", f"b{n}", gpus=8, use=0.2) for n in range(LEAST_RUNS)]
    near = [run(0, 300, f"c{n}", gpus=8, use=0.6) for n in range(LEAST_RUNS - 1)]
    (row,) = sum_gpu_use([whole, *far, *near])
    assert (row.least_gpus, row.most_gpus, row.runs, row.use_alone, row.use_beside) == (5, 8, 10, row.use, None)
    assert (row.use_fewest_nodes, row.use_more_nodes) == (pytest.approx(8.2 / 13), 0.2)
    assert (row.gpu_hours, row.median_use) == (pytest.approx(8 * 1800 / 3600), pytest.approx(0.4))
    assert row.use == pytest.approx((8.2 + 1.0) / 18)
    (row,) = sum_gpu_use([whole, *far[1:], *near])
    assert row.use_more_nodes is None


def test_a_run_that_was_not_measured_is_a_neighbour_only() -> None:
    alone = [run(0, 100, f"a{n}", use=0.8) for n in range(LEAST_RUNS)]
    beside = [run(0, 100, f"b{n}", use=0.4) for n in range(LEAST_RUNS)]
    others = [run(40, 900, f"b{n}", use=None) for n in range(LEAST_RUNS)]
    (row,) = sum_gpu_use([*alone, *beside, *others])
    assert (row.runs, row.use_alone, row.use_beside) == (2 * LEAST_RUNS, pytest.approx(0.8), pytest.approx(0.4))
    assert sum_gpu_use(others) == ()
    assert sum_gpu_use([run(5, 5, "a"), run(0, 5)]) == ()


def stored(number: int, start: int, end: int | None, *nodes: str, use: float | None, unused: int = 0) -> JobRun:
    measurement = None if use is None else Measurement(gpu_util=use, gpus_unused=unused)
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=number, submit_time=SINCE), user="ada", uid=1001, gpus=2, nodes=nodes,
        partition="gpu", start_time=start, end_time=end, measurement=measurement,
        diagnosis=None if end is None else Diagnosis(
            category="success", domain="", decision="stop", confidence=1.0, signature=""
        ),
    )  # fmt: skip


def read_runs(*attempts: JobRun, site: bool = True, **who: Any) -> list[GpuRun]:
    period = Period(since=SINCE, until=UNTIL, **who)
    with (
        open_records_in_memory(JobRecords(attempts=attempts)) as database,
        ReportReader(database.path, period, database.connection) as reader,
    ):
        found = read(database, reader, Config(), site=site, switch_of=dict)
        return sorted(found.gpu_runs, key=lambda one: one.start)


def test_the_runs_and_their_neighbours_are_read_from_the_database() -> None:
    measured = stored(1, SINCE + 10, SINCE + 8000, "n1", "n2", use=0.5, unused=1)
    running = stored(2, SINCE + 20, None, "n1", use=None)
    short = stored(3, SINCE + 30, SINCE + 40, "n1", use=0.9)
    before = stored(4, SINCE - 9000, SINCE - 5000, "n1", use=0.9)
    unused = stored(5, SINCE + 50, SINCE + 8000, "n3", use=0.9, unused=2)
    no_gpus = replace(stored(6, SINCE + 60, SINCE + 8000, "n1", use=0.9), gpus=0)
    attempts = (measured, running, short, before, unused, no_gpus)
    assert read_runs(*attempts) == [
        GpuRun(("lab/n1", "lab/n2"), 2, "gpu", SINCE + 10, SINCE + 8000, 0.25),
        GpuRun(("lab/n1",), 2, "gpu", SINCE + 20, UNTIL, None),
        GpuRun(("lab/n1",), 2, "gpu", SINCE + 30, SINCE + 40, None),
        GpuRun(("lab/n3",), 2, "gpu", SINCE + 50, SINCE + 8000, 0.0),
    ]
    assert read_runs(*attempts, site=False) == read_runs(*attempts, user="ada") == []
    assert read_runs(running, before) == []
