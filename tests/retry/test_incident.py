"""Which failures are one incident, what belongs to it, and how long its retries wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.cluster.node import Switch, Topology
from slurmwrap.config import Incidents
from slurmwrap.diagnosis.evidence import Citation, Diagnosis
from slurmwrap.retry.attempt import AttemptRecord
from slurmwrap.retry.incident import Incident, find, of_attempt, wait_s
from slurmwrap.retry.record import record_of

TREE = Topology(
    switches=(
        Switch(name="leaf0", level=0, nodes=("n0", "n1", "n2", "n3")),
        Switch(name="leaf1", level=0, nodes=("n4", "n5", "n6", "n7")),
    )
)
SETTINGS = Incidents()


def failed(
    job_id: int,
    *,
    uid: int = 1001,
    node: str = "n1",
    at: int = 0,
    category: str = "nccl_error",
    text: str = "it failed",
    source: str = "stdout",
) -> AttemptRecord:
    """A run that ended `at` seconds after START."""
    found = Diagnosis(
        category=category,
        domain="AE",
        decision="retry",
        confidence=0.9,
        signature="x",
        evidence=(Citation(source=source, line=1, text=text),),
    )
    ran = record_of(job(job_id, uid=uid, nodes=(node,), end_time=START + at), "lab")
    return replace(ran, diagnosis=found)


def storm(**changes: object) -> list[AttemptRecord]:
    """Three jobs of two users on three nodes of both leaves within a minute."""
    who = ((81, 1001, "n1", 0), (82, 1002, "n2", 20), (83, 1001, "n5", 50))
    return [failed(job_id, uid=uid, node=node, at=at, **changes) for job_id, uid, node, at in who]  # type: ignore[arg-type]


def found(
    attempts: list[AttemptRecord], known: tuple[Incident, ...] = (), now: float = START + 60
) -> tuple[Incident, ...]:
    return find(attempts, known, now=now, topology=TREE, settings=SETTINGS)


def test_jobs_of_two_users_that_fail_alike_within_minutes_are_one_incident() -> None:
    (incident,) = found(storm())
    assert incident == Incident(
        incident_id=incident.incident_id,
        category="nccl_error",
        scope="cluster",
        began=START,
        last=START + 50,
        jobs=(81, 82, 83),
        users=2,
        nodes=("n1", "n2", "n5"),
    )


def test_the_same_failures_in_any_order_give_the_same_incident() -> None:
    assert found(storm()) == found(list(reversed(storm())))


@pytest.mark.parametrize(
    ("attempts"),
    [
        [failed(81 + i, uid=1001 + i, node="n1", at=i) for i in range(5)],
        [failed(81 + i, node=f"n{i}", at=i) for i in range(5)],
        [failed(81 + i, uid=1001 + i, node=f"n{i}", at=i * 301) for i in range(5)],
        [failed(81 + i, uid=1001 + i, node=f"n{i}", at=i, category="semantic_error") for i in range(5)],
        [failed(81 + i, uid=1001 + i, node=f"n{i}", at=i) for i in range(2)],
        [],
    ],
    ids=["one node", "one user", "far apart", "bugs", "two jobs", "nothing"],
)
def test_what_is_no_incident(attempts: list[AttemptRecord]) -> None:
    assert found(attempts, now=START + 4000) == ()


def test_kernel_evidence_on_three_nodes_needs_no_second_user() -> None:
    runs = [failed(81 + i, node=f"n{i}", category="gpu_hardware", source=f"kernel:n{i}") for i in range(3)]
    assert [one.users for one in found(runs)] == [1]
    assert found([replace(run, nodes=("n1",)) for run in runs]) == ()


def test_a_path_that_two_users_logs_name_is_the_scope_without_the_users_part() -> None:
    names = ("ada", "bob", "eve")
    runs = [
        replace(run, diagnosis=failed(1, category="storage_io", text=f"[Errno 5] '/scratch/{name}/x.pt'").diagnosis)
        for run, name in zip(storm(), names, strict=True)
    ]
    assert [one.scope for one in found(runs)] == ["path /scratch"]


def test_one_users_text_names_no_path() -> None:
    runs = [
        replace(failed(81 + i, node=f"n{2 * i}"), diagnosis=replace(two, evidence=(*two.evidence, kernel)))
        for i in range(3)
        for two in [failed(1, category="storage_io", text="'/data/set/x' is away").diagnosis]
        if two is not None
        for kernel in [Citation(source=f"kernel:n{2 * i}", line=1, text="nfs: server s1 not responding")]
    ]
    assert [one.scope for one in found(runs)] == ["cluster"]


def test_nodes_of_one_leaf_make_the_switch_the_scope() -> None:
    runs = [failed(81 + i, uid=1001 + i, node=f"n{i}") for i in range(3)]
    (incident,) = found(runs)
    assert (incident.scope, incident.reach) == ("switch leaf0", ("n0", "n1", "n2", "n3"))
    assert of_attempt((incident,), failed(90, node="n3", at=100)) == incident
    assert of_attempt((incident,), failed(90, node="n4", at=100)) is None


def test_a_host_that_all_logs_name_is_the_scope() -> None:
    runs = storm(category="network_error", text="HTTPSConnectionPool(host='hub.example.org'): Max retries exceeded")
    assert [one.scope for one in found(runs)] == ["host hub.example.org"]


def test_a_known_incident_keeps_its_id_while_it_grows_and_closes_when_quiet() -> None:
    known = found(storm())
    late = [*storm(), failed(99, uid=1009, node="n7", at=400)]
    (grown,) = found(late, known, now=START + 500)
    assert (grown.incident_id, grown.last, grown.jobs, grown.over_at) == (
        known[0].incident_id,
        START + 400,
        (81, 82, 83, 99),
        None,
    )
    (over,) = found(late, (grown,), now=START + 1000)
    assert over == replace(grown, over_at=START + 1000)
    assert found(late, (over,), now=START + 9000) == (over,)


def test_a_file_that_is_missing_while_its_mount_is_away_belongs_to_the_incident() -> None:
    incident = replace(found(storm())[0], category="storage_io", scope="path /scratch")
    missing = failed(90, category="incorrect_inputs", text="No such file: '/scratch/ada/x.pt'", at=100)
    elsewhere = failed(91, category="incorrect_inputs", text="No such file: '/data/x.pt'", at=100)
    assert of_attempt((incident,), missing) == incident
    assert of_attempt((incident,), elsewhere) is None


def test_retries_wait_for_the_end_and_are_then_spread_the_same_way_each_time() -> None:
    (incident,) = found(storm())
    waits = [wait_s(incident, job_id, START + 60) for job_id in range(1000)]
    quiet = incident.last + incident.quiet_s - (START + 60)
    assert waits == [wait_s(incident, job_id, START + 60) for job_id in range(1000)]
    assert quiet <= min(waits) < quiet + 45 and quiet + 855 < max(waits) <= quiet + 900
    assert 0 < sum(wait < quiet + 450 for wait in waits) - 400 < 200


def test_long_after_an_incident_nothing_waits() -> None:
    over = replace(found(storm())[0], over_at=START + 650)
    assert wait_s(over, 81, START + 3000) == 0
