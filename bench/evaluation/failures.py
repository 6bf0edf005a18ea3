"""The cost of failures in Philly's load and what slurmwrap saves: the failure study and its sensitivity."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from simulation.child import ROOT

from evaluation.commands import Command
from evaluation.tables import block
from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.failure_study import MOST_JOBS, run_failure_study
from slurmwrap.sim.failures.study_output import (
    format_extension_row,
    format_extensions_markdown,
    format_sensitivity_markdown,
    format_study_markdown,
    list_extensions,
    study_sensitivity,
)
from slurmwrap.sim.failures.study_result import FailureStudy
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
    extensions: tuple[Future[str], ...]
    variants: Future[str]


def start(pool: Executor, *, quick: bool) -> Started:
    size = (1000, 2) if quick else (None, SEEDS)
    names = list_extensions(FailureSettings(), Config())
    return Started(
        whole=pool.submit(_whole, *size),
        extensions=tuple(pool.submit(_extension, name, *size) for name in names),
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
            "What would save more, on the same jobs and seeds:",
            "",
            format_extensions_markdown([row.result() for row in started.extensions]).rstrip(),
            "",
            f"How much hangs on what is taken for granted: the same study of {FEWER_JOBS:,} jobs from the middle, "
            f"{FEWER_SEEDS} seeds, one thing changed at a time; GPU-hours. No flag of the command changes these: "
            "bench/evaluation/failures.py asks slurmwrap.sim.failures.study_output.",
            "",
            started.variants.result().rstrip(),
        ]
    )


def _whole(most_jobs: int | None, seeds: int) -> str:
    return format_study_markdown(_study(FailureSettings(), Config(), most_jobs, seeds))


def _extension(name: str, most_jobs: int | None, seeds: int) -> str:
    settings, config = list_extensions(FailureSettings(), Config())[name]
    return format_extension_row(name, _study(settings, config, most_jobs, seeds))


def _study(settings: FailureSettings, config: Config, most_jobs: int | None, seeds: int) -> FailureStudy:
    jobs = read_load(Path(ROOT, TRACE)).jobs
    servers = make_equal_servers(SERVERS, gpus=8, cpus=24, mem_gb=500)
    return run_failure_study(
        jobs,
        servers=servers,
        settings=settings,
        config=config,
        seeds=range(1, seeds + 1),
        most_jobs=MOST_JOBS if most_jobs is None else most_jobs,
    )


def _variants(most_jobs: int, seeds: int) -> str:
    jobs = read_load(Path(ROOT, TRACE)).jobs
    servers = make_equal_servers(SERVERS, gpus=8, cpus=24, mem_gb=500)
    return format_sensitivity_markdown(
        study_sensitivity(jobs, servers=servers, seeds=range(1, seeds + 1), most_jobs=most_jobs)
    )
