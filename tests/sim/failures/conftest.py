"""Fixtures for the failure study: traces, servers and simulated worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import FailingJob
from slurmwrap.sim.failures.sim_judge import switch_rules_on
from slurmwrap.sim.failures.sim_nodes import draw_hardware, nodes_of
from slurmwrap.sim.failures.study_arms import FailureWorld
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

SERVERS = make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)
# Only the failures that a test adds: no node fails, no log is misread, and every job gets a pre-run.
ALL = replace(Config(), prerun=replace(Config().prerun, select="all", min_gpus=1))
QUIET = FailureSettings(
    node_failures_per_day=0.0, misread=0.0, own_read=0.0, one_gpu_waits=1.0, checkpoint_s=None, rehearsal_s=0.0
)


@pytest.fixture
def trace() -> Callable[..., list[SimJob]]:
    """Makes `count` jobs, ten minutes apart; GPUs and run times cycle through `gpus` and `work_s`."""

    def make(count: int, gpus: tuple[int, ...] = (1,), work_s: tuple[float, ...] = (3600.0,)) -> list[SimJob]:
        return [
            SimJob(
                number=at, job=str(at), submit_s=600.0 * at, work_s=work_s[at % len(work_s)], gpus=gpus[at % len(gpus)]
            )
            for at in range(count)
        ]

    return make


@pytest.fixture
def world() -> Callable[..., FailureWorld]:
    """Makes a world in which only the jobs in `doomed` fail. `settings` are fields of FailureSettings."""

    def make(jobs: list[SimJob], *doomed: FailingJob, config: Config | None = None, **settings: Any) -> FailureWorld:
        chosen = replace(QUIET, **settings)
        return FailureWorld(
            jobs=jobs,
            doomed={one.number: one for one in doomed},
            hardware=draw_hardware(SERVERS, chosen, 1),
            nodes=nodes_of(SERVERS),
            settings=chosen,
            config=switch_rules_on(config or ALL),
            seed=1,
        )

    return make
