"""The output of `make evaluation`: printed commands, verdicts, and the whole page from a quick run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation import synergy, tiresias, worlds
from evaluation.tables import agrees, off, table
from simulation import naive

from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import make_equal_servers
from slurmwrap.sim.trace.synergy_loads import generate_load

ROOT = Path(__file__).parents[2]
ALL = [*synergy.commands(10, quick=False), *tiresias.commands(), *worlds.commands()]


def test_printed_commands_equal_the_executed_commands() -> None:
    printed = [shlex.split(str(command).replace("\\\n", " ")) for command in ALL]
    seeds = [["--seed", f"1-{command.seeds}"] if command.seeds else [] for command in ALL]
    expected = [["slurmwrap", "simulate", *c.words, *drawn] for c, drawn in zip(ALL, seeds, strict=True)]
    assert printed == expected
    assert max(len(line) for command in ALL for line in str(command).splitlines()) <= 110


@pytest.mark.parametrize(
    ("ours", "theirs", "digits", "verdict"),
    [
        (10.5834, 10.58, 2, "exact"),
        (12.831, 12.92, 2, "yes"),
        (13.3, 12.92, 2, "no"),
        (1.0, None, 2, ""),
    ],
)
def test_a_figure_agrees_exactly_within_one_percent_or_not(
    ours: float, theirs: float | None, digits: int, verdict: str
) -> None:
    assert agrees(ours, theirs, digits=digits) == verdict


def test_a_difference_has_a_sign_and_a_missing_one_is_a_dash() -> None:
    assert (off(0.99, 1.0), off(1.02, 1.0), off(1.0, None)) == ("-1.0 %", "+2.0 %", "-")


def test_a_table_is_formatted_as_markdown() -> None:
    assert table(["a", ">b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_the_naive_simulation_gives_the_same_job_completion_times() -> None:
    jobs = generate_load("synergy-dynamic", seed=3, jobs=60, jobs_per_hour=20, gpu_demand="synthetic")
    anonymous = tuple(type(job)(number=job.number, job=job.job, submit_s=job.submit_s, work_s=job.work_s, gpus=job.gpus)
                      for job in jobs)  # fmt: skip
    servers = make_equal_servers(2, gpus=8, cpus=24, mem_gb=500)
    outcome, _ = run_simulation(Simulation(jobs=anonymous, servers=servers, round_s=300.0))
    found = naive.play([(job.submit_s, job.work_s, job.gpus) for job in jobs], 16, 300.0)
    ended = zip(outcome.ended_s, jobs, strict=True)
    assert found == pytest.approx([(end or 0.0) - job.submit_s for end, job in ended])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_writes_the_page_with_every_section(tmp_path: Path) -> None:
    argv = [sys.executable, "bench/evaluation", "--quick", "--out", str(tmp_path), "--workers", "2"]
    subprocess.run(argv, cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)}, check=True, capture_output=True)
    page = (tmp_path / "evaluation.md").read_text()
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == [
        "In short",
        "1. Synergy's shipped traces",
        "2. How much of it is the trace",
        "3. Tiresias",
        "4. On a Slurm that takes nothing back",
        "5. Failures and retries",
        "6. Run times, order and limits",
        "7. Speed",
    ]
    drawn = re.findall(r"\]\((evaluation/.*?\.svg)\)", page)
    assert len(drawn) == 6
    assert [path for path in drawn if not (tmp_path / path).read_text().startswith("<?xml")] == []
