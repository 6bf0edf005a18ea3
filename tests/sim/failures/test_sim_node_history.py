"""Node history of the simulator: strikes as in production, and excluded nodes up to the cap."""

from __future__ import annotations

from dataclasses import replace

from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures.sim_judge import FailedRun, diagnosis_of, record_of, switch_rules_on
from slurmwrap.sim.failures.sim_nodes import SimNodeHistory, nodes_of
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

DAY_S = 86_400.0
NODES = nodes_of(make_equal_servers(20, gpus=8, cpus=24, mem_gb=500))


def make_history(struck: list[int], days: int = 1, config: Config | None = None) -> SimNodeHistory:
    """All nodes run for `days` days; on the first day three users have a conclusive fault on each of `struck`."""
    history = SimNodeHistory(NODES, switch_rules_on(config or Config()))
    for day in range(days):
        for node in NODES:
            history.ran([node.name], day * DAY_S, (day + 1) * DAY_S - 1)
    for number, place in enumerate(struck * 3):
        name = NODES[place].name
        run = FailedRun(
            job=SimJob(number=number, job="", submit_s=0, work_s=1, gpus=1), uid=number, run=0, began_s=0.0,
            ended_s=3600.0, nodes=(name,), told="gpu_hardware", node=name, conclusive=True,
        )  # fmt: skip
        history.failed(diagnosis_of(run), record_of(run, diagnosis_of(run)), run.ended_s)
    return history


def test_a_node_with_strikes_is_avoided_from_the_next_day_on() -> None:
    history = make_history([3])
    assert history.excluded(0.5 * DAY_S, nodes=1, gpus=1) == frozenset()
    assert history.excluded(1.0 * DAY_S, nodes=1, gpus=1) == frozenset({3})


def test_a_strike_expires_after_the_window() -> None:
    history = make_history([3], days=40)
    assert history.excluded(27 * DAY_S, nodes=1, gpus=1) == frozenset({3})
    assert history.excluded(30 * DAY_S, nodes=1, gpus=1) == frozenset()


def test_the_number_of_avoided_nodes_is_capped() -> None:
    assert len(make_history([1, 2, 3, 4]).excluded(DAY_S, nodes=1, gpus=1)) == 2
    none = replace(Config(), placement=replace(Config().placement, exclude_cap=0.0))
    assert make_history([1, 2], config=none).excluded(DAY_S, nodes=1, gpus=1) == frozenset()


def test_a_job_that_needs_all_nodes_avoids_none() -> None:
    assert make_history([3]).excluded(DAY_S, nodes=20, gpus=160) == frozenset()


def test_user_errors_do_not_count_against_nodes() -> None:
    history = SimNodeHistory(NODES, switch_rules_on(Config()))
    for number in range(6):
        run = FailedRun(
            job=SimJob(number=number, job="", submit_s=0, work_s=1, gpus=1), uid=number, run=0, began_s=0.0,
            ended_s=3600.0, nodes=("n03",), told="cuda_init_failed",
        )  # fmt: skip
        history.failed(diagnosis_of(run), record_of(run, diagnosis_of(run)), run.ended_s)
    assert history.excluded(DAY_S, nodes=1, gpus=1) == frozenset()
