"""The published node health, and which evidence it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fakes import START, job, node

from slurmwrap.config.load_config import Config, Placement
from slurmwrap.model.cluster import Node, NodeHealth, Snapshot
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.policy.node_history import NodeHistory
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.policy.strikes import Fleet, find_down_node, health, make_fleet, out_of_service, standings

DAY = 86400


def strike(name: str, job_id: int, at: float = START, cause: str = "gpu_hardware") -> StrikeRecord:
    return StrikeRecord(node=name, cause=cause, conclusive=False, text="", at=at, job_id=job_id, uid=1001)


def published_health(*strikes: StrikeRecord, nodes: Sequence[Node] = ()) -> tuple[NodeHealth, ...]:
    return health(NodeHistory(strikes=strikes), nodes, Config(), now=START)


def test_strikes_of_two_jobs_make_a_node_suspect_and_of_one_job_do_not() -> None:
    reason = "faults of 2 jobs of 1 user within the window, 3.0 times the fleet's rate"
    expected = (NodeHealth(node="n1", status="suspect", since=START, reason=reason),)
    assert published_health(strike("n1", 81), strike("n1", 82), strike("n2", 83), strike("n2", 83)) == expected


def test_the_published_reason_does_not_name_the_users_program() -> None:
    lines = [replace(strike("n1", job), text="Xid 79, pid=7, name=secret_project") for job in (81, 82)]
    assert "secret" not in published_health(*lines)[0].reason


def test_strikes_older_than_the_window_do_not_count() -> None:
    assert published_health(strike("n1", 81, START - 29 * DAY), strike("n1", 82)) == ()


def test_a_drain_by_slurmwrap_is_published_and_other_drains_are_not() -> None:
    drained = frozenset({"DRAIN"})
    nodes = [node("n1", flags=drained, reason="slurmwrap: x"), node("n2", flags=drained, reason="bob")]
    found = published_health(strike("n1", 81, START - 5), nodes=nodes)
    assert found == (NodeHealth(node="n1", status="drained", since=START - 5, reason="slurmwrap: x"),)


def test_drained_by_slurmwrap_takes_precedence_over_suspect() -> None:
    nodes = [node("n1", flags=frozenset({"DRAIN"}), reason="slurmwrap: x")]
    found = published_health(*(strike("n1", job) for job in range(1, 9)), nodes=nodes)
    assert [entry.status for entry in found] == ["drained"]


def test_the_cap_goes_to_drained_nodes_then_lemons_then_suspects() -> None:
    drained = frozenset({"DRAIN"})
    nodes = [node("n0", flags=drained, reason="slurmwrap: x"), *(node(f"n{i}") for i in range(1, 30))]
    strikes = [strike("n1", job) for job in (1, 2)] + [replace(strike("n2", j), uid=j) for j in range(10, 18)]
    strikes += [strike("n3", job) for job in (21, 22, 23)]
    history = NodeHistory(strikes=tuple(strikes))

    def published(cap: float) -> list[tuple[str, str]]:
        config = Config(placement=Placement(exclude_cap=cap))
        return [(h.node, h.status) for h in health(history, nodes, config, now=START)]

    assert published(0.2) == [("n0", "drained"), ("n1", "suspect"), ("n2", "lemon"), ("n3", "suspect")]
    assert published(0.1) == [("n0", "drained"), ("n2", "lemon"), ("n3", "suspect")]
    assert published(0.07) == [("n0", "drained"), ("n2", "lemon")]
    assert published(0.0) == [("n0", "drained")]
    left_out = [one.health.node for one in standings(history, nodes, Config(), now=START) if not one.published]
    assert left_out == ["n1"]


def test_a_node_that_slurm_does_not_know_is_not_published() -> None:
    assert published_health(strike("gone", 81), strike("gone", 82), nodes=[node("n1")]) == ()


def test_out_of_service_nodes_are_listed_with_reason_and_origin() -> None:
    drained = frozenset({"DRAIN"})
    nodes = [
        node("n1", flags=drained, reason="slurmwrap: x"),
        node("n2", flags=drained, reason="bob"),
        node("n3", state="DOWN", reason="Not responding"),
        node("n4", flags=frozenset({"MAINTENANCE"})),
    ]
    wanted = {"n1": ("slurmwrap: x", True), "n2": ("bob", False), "n3": ("Not responding", False)}
    assert out_of_service(nodes) == wanted


def test_the_fleet_is_the_jobs_partitions_or_all_nodes() -> None:
    nodes = (node("n1"), node("n2", partitions=("cpu",)))
    snapshot = Snapshot(taken_at=START, nodes=nodes)
    assert make_fleet(snapshot, "gpu").nodes == nodes[:1]
    assert make_fleet(snapshot, "gpu,cpu").nodes == nodes
    assert make_fleet(snapshot, "").nodes == nodes


def test_one_node_may_be_excluded_even_in_the_smallest_cluster() -> None:
    assert Fleet(nodes=(node("n1"),)).allowance(0.1) == 1
    assert Fleet(nodes=tuple(node(f"n{i}") for i in range(40))).allowance(0.1) == 4


def test_a_node_failure_is_assigned_to_the_only_node_that_is_down() -> None:
    failed = Diagnosis(category="node_failure", domain="IF", decision="retry_elsewhere", confidence=1, signature="")
    record = record_of(job(81, nodes=("n1", "n2")), "lab")
    assert find_down_node(failed, record, Fleet(nodes=(node("n1"), node("n2", state="DOWN")))) == "n2"
    assert find_down_node(failed, record, Fleet(nodes=(node("n1", state="DOWN"), node("n2", state="DOWN")))) == ""
    assert find_down_node(failed, record, Fleet(nodes=(node("n1"), node("n9", state="DOWN")))) == ""
