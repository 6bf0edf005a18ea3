"""Nodes are watched by production's scores, and avoided within the site's cap."""

from __future__ import annotations

from dataclasses import replace

from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures.sim_judge import FailedRun, diagnosis_of, record_of, switch_rules_on
from slurmwrap.sim.failures.sim_nodes import SimNodeHistory, nodes_of
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

DAY_S = 86_400.0
NODES = nodes_of(make_equal_servers(20, gpus=8, cpus=24, mem_gb=500))


def watching(struck: list[int], days: int = 1, config: Config | None = None) -> SimNodeHistory:
    """All nodes run for `days` days; on each of `struck` three users' jobs meet a conclusive fault on the first."""
    watch = SimNodeHistory(NODES, switch_rules_on(config or Config()))
    for day in range(days):
        for node in NODES:
            watch.ran([node.name], day * DAY_S, (day + 1) * DAY_S - 1)
    for number, place in enumerate(struck * 3):
        name = NODES[place].name
        run = FailedRun(
            job=SimJob(number=number, job="", submit_s=0, work_s=1, gpus=1), uid=number, run=0, began_s=0.0,
            ended_s=3600.0, nodes=(name,), told="gpu_hardware", node=name, conclusive=True,
        )  # fmt: skip
        watch.failed(diagnosis_of(run), record_of(run, diagnosis_of(run)), run.ended_s)
    return watch


def test_a_node_that_struck_is_avoided_from_the_next_day_on() -> None:
    watch = watching([3])
    assert watch.excluded(0.5 * DAY_S, nodes=1, gpus=1) == frozenset()
    assert watch.excluded(1.0 * DAY_S, nodes=1, gpus=1) == frozenset({3})


def test_it_is_forgotten_after_the_window() -> None:
    watch = watching([3], days=40)
    assert watch.excluded(27 * DAY_S, nodes=1, gpus=1) == frozenset({3})
    assert watch.excluded(30 * DAY_S, nodes=1, gpus=1) == frozenset()


def test_no_more_nodes_than_the_cap_are_avoided() -> None:
    assert len(watching([1, 2, 3, 4]).excluded(DAY_S, nodes=1, gpus=1)) == 2
    none = replace(Config(), placement=replace(Config().placement, exclude_cap=0.0))
    assert watching([1, 2], config=none).excluded(DAY_S, nodes=1, gpus=1) == frozenset()


def test_a_job_that_needs_all_nodes_avoids_none() -> None:
    assert watching([3]).excluded(DAY_S, nodes=20, gpus=160) == frozenset()


def test_the_user_s_own_faults_are_held_against_no_node() -> None:
    watch = SimNodeHistory(NODES, switch_rules_on(Config()))
    for number in range(6):
        run = FailedRun(
            job=SimJob(number=number, job="", submit_s=0, work_s=1, gpus=1), uid=number, run=0, began_s=0.0,
            ended_s=3600.0, nodes=("n03",), told="cuda_init_failed",
        )  # fmt: skip
        watch.failed(diagnosis_of(run), record_of(run, diagnosis_of(run)), run.ended_s)
    assert watch.excluded(DAY_S, nodes=1, gpus=1) == frozenset()
