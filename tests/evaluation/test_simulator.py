"""bench/simulator.py: how growth and budgets are judged, and that a prefix of a trace has whole jobs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import simulator
from simulation import prefixes


def make_row(jobs: int, us_per_job: float, **more: Any) -> dict[str, Any]:
    return {"kind": "rounds fifo", "jobs": jobs, "us_per_job": us_per_job, "wall_s": 1.0, "peak_mib": 100.0, **more}


@pytest.mark.parametrize(("costs", "power"), [((50, 50, 50), 0.0), ((50, 100, 200), 1.0)])
def test_growth_is_the_exponent_of_cost_per_job(costs: tuple[float, ...], power: float) -> None:
    rows = [make_row(jobs, cost) for jobs, cost in zip((1000, 2000, 4000), costs, strict=True)]
    assert simulator.growth(rows) == {"rounds fifo": pytest.approx(power)}


def test_a_size_whose_cost_is_below_startup_is_not_used_for_growth() -> None:
    rows = [make_row(500, 0.0), make_row(1000, 50.0), make_row(2000, 50.0)]
    assert simulator.growth(rows) == {"rounds fifo": pytest.approx(0.0)}


def test_time_and_memory_are_not_judged_on_a_part_of_the_trace() -> None:
    part: dict[str, Any] = {"rows": [make_row(500, 9.0)], "growth": {"rounds fifo": 0.0}, "missed": []}
    whole = {**part, "rows": [make_row(82_247, 9.0)]}
    assert simulator.verdict(part) == "time and memory not judged: that takes 82,247 jobs and a second size"
    assert simulator.verdict(whole) == "all kept"
    assert simulator.verdict({**whole, "missed": ["rounds fifo: 61.0 s"]}) == "rounds fifo: 61.0 s"


def test_a_kind_with_one_size_has_no_growth_and_is_not_judged() -> None:
    rows = [make_row(100, 1.0, kind="slurm fifo, 64 servers", wall_s=99.0)]
    assert simulator.growth(rows) == {}
    assert simulator.missed(rows, {}, {"same": True}, 100) == []


def test_missed_budgets_are_named() -> None:
    rows = [make_row(100, 1.0, wall_s=61.0, peak_mib=3000.0)]
    assert simulator.missed(rows, {"rounds fifo": 0.5}, {"same": False}, 100) == [
        "rounds fifo: 61.0 s",
        "rounds fifo: 3000 MiB",
        "rounds fifo: cost per job grows as jobs^0.50",
        "the peer comes to another JCT",
    ]


def test_a_prefix_has_the_header_and_the_given_number_of_jobs(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress(b"submit_s,duration_s,gpus\n0,1,1\n1,1,1\n2,1,1\n"))
    found = prefixes.write(prefixes.lines_of(trace), 2, tmp_path)
    assert found.read_text() == "submit_s,duration_s,gpus\n0,1,1\n1,1,1\n"
