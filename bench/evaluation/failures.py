"""The cost of failures in Philly's load and what slurmwrap saves: the failure study and its sensitivity."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from simulation.child import ROOT

from evaluation.commands import Command
from evaluation.tables import block
from slurmwrap.sim.failures.failure_study import run_failure_study
from slurmwrap.sim.failures.study_output import format_sensitivity_markdown, format_study_markdown, study_sensitivity
from slurmwrap.sim.sim_job import make_equal_servers
from slurmwrap.sim.trace.read_trace import read_load

TRACE = "tests/data/traces/philly.csv.gz"
SERVERS, SEEDS = 64, 10
COMMAND = Command((TRACE, "--servers", str(SERVERS), "--failures", "published"), SEEDS)
FEWER_JOBS, FEWER_SEEDS = 5000, 3  # of each variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Both parts, running in separate processes."""

    whole: Future[str]
    variants: Future[str]


def start(pool: Executor, *, quick: bool) -> Started:
    return Started(
        whole=pool.submit(_whole, *((1000, 2) if quick else (None, SEEDS))),
        variants=pool.submit(_variants, *((500, 2) if quick else (FEWER_JOBS, FEWER_SEEDS))),
    )


def page(started: Started) -> str:
    """Return the study, and its sensitivity to assumptions that no one has measured."""
    return "\n".join(
        [
            started.whole.result().rstrip(),
            "",
            block(COMMAND),
            "",
            f"How much hangs on what is taken for granted: the same study of {FEWER_JOBS:,} jobs from the middle, "
            f"{FEWER_SEEDS} seeds, one thing changed at a time; GPU-hours. No flag of the command changes these: "
            "bench/evaluation/failures.py asks slurmwrap.sim.failures.study_output.",
            "",
            started.variants.result().rstrip(),
        ]
    )


def _whole(most_jobs: int | None, seeds: int) -> str:
    most = {} if most_jobs is None else {"most_jobs": most_jobs}
    jobs = read_load(Path(ROOT, TRACE)).jobs
    servers = make_equal_servers(SERVERS, gpus=8, cpus=24, mem_gb=500)
    return format_study_markdown(run_failure_study(jobs, servers=servers, seeds=range(1, seeds + 1), **most))


def _variants(most_jobs: int, seeds: int) -> str:
    jobs = read_load(Path(ROOT, TRACE)).jobs
    servers = make_equal_servers(SERVERS, gpus=8, cpus=24, mem_gb=500)
    return format_sensitivity_markdown(
        study_sensitivity(jobs, servers=servers, seeds=range(1, seeds + 1), most_jobs=most_jobs)
    )
