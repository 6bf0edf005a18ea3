"""What is published about nodes, and who is believed."""

from __future__ import annotations

from fakes import START, job, node

from slurmwrap.cluster.node import NodeHealth, Snapshot
from slurmwrap.diagnosis.evidence import Diagnosis
from slurmwrap.retry.attempt import StrikeRecord
from slurmwrap.retry.record import record_of
from slurmwrap.retry.strikes import Fleet, fleet_of, health, lost_node

DAY = 86400


def strike(name: str, job_id: int, at: float = START, cause: str = "gpu_hardware") -> StrikeRecord:
    return StrikeRecord(node=name, cause=cause, conclusive=False, text="", at=at, job_id=job_id, uid=1001)


def test_two_jobs_make_a_node_suspect_one_job_does_not() -> None:
    found = health([strike("n1", 81), strike("n1", 82), strike("n2", 83), strike("n2", 83)], [], now=START)
    reason = "2 strikes by 2 jobs within 28 days: gpu_hardware"
    assert found == (NodeHealth(node="n1", status="suspect", since=START, reason=reason),)


def test_strikes_older_than_the_window_are_forgotten() -> None:
    assert health([strike("n1", 81, START - 29 * DAY), strike("n1", 82)], [], now=START) == ()


def test_our_own_drain_is_published_and_other_peoples_are_not() -> None:
    drained = frozenset({"DRAIN"})
    nodes = [node("n1", flags=drained, reason="slurmwrap: x"), node("n2", flags=drained, reason="bob")]
    found = health([strike("n1", 81, START - 5)], nodes, now=START)
    assert found == (NodeHealth(node="n1", status="drained", since=START - 5, reason="slurmwrap: x"),)


def test_the_fleet_is_the_jobs_partition_or_everything() -> None:
    nodes = (node("n1"), node("n2", partitions=("cpu",)))
    snapshot = Snapshot(taken_at=START, nodes=nodes)
    assert fleet_of(snapshot, "gpu").nodes == nodes[:1]
    assert fleet_of(snapshot, "gpu,cpu").nodes == nodes
    assert fleet_of(snapshot, "").nodes == nodes


def test_one_node_may_be_taken_out_of_the_smallest_cluster() -> None:
    assert Fleet(nodes=(node("n1"),)).allowance(0.1) == 1
    assert Fleet(nodes=tuple(node(f"n{i}") for i in range(40))).allowance(0.1) == 4


def test_a_node_failure_is_pinned_to_the_one_node_that_is_down() -> None:
    failed = Diagnosis(category="node_failure", domain="IF", decision="retry_elsewhere", confidence=1, signature="")
    record = record_of(job(81, nodes=("n1", "n2")), "lab")
    assert lost_node(failed, record, Fleet(nodes=(node("n1"), node("n2", state="DOWN")))) == "n2"
    assert lost_node(failed, record, Fleet(nodes=(node("n1", state="DOWN"), node("n2", state="DOWN")))) == ""
    assert lost_node(failed, record, Fleet(nodes=(node("n1"), node("n9", state="DOWN")))) == ""
