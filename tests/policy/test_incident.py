"""Incidents: which failures form one, which runs belong to it, and how long its retries wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.config.load_config import Incidents
from slurmwrap.model.evidence import Citation, Diagnosis
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.policy.incident import Incident, find, find_incident_of_run, wait_s
from slurmwrap.policy.run_from_slurm import record_of

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
) -> JobRun:
    """A run that ended `at` seconds after START."""
    diagnosis = Diagnosis(
        category=category,
        domain="AE",
        decision="retry",
        confidence=0.9,
        signature="x",
        evidence=(Citation(source=source, line=1, text=text),),
    )
    ran = record_of(job(job_id, uid=uid, nodes=(node,), end_time=START + at), "lab")
    return replace(ran, diagnosis=diagnosis)


def failures_of_two_users(**changes: object) -> list[JobRun]:
    """Three jobs of two users on three nodes of both leaves within a minute."""
    runs = ((81, 1001, "n1", 0), (82, 1002, "n2", 20), (83, 1001, "n5", 50))
    return [failed(job_id, uid=uid, node=node, at=at, **changes) for job_id, uid, node, at in runs]  # type: ignore[arg-type]


def find_incidents(
    attempts: list[JobRun], known: tuple[Incident, ...] = (), now: float = START + 60
) -> tuple[Incident, ...]:
    return find(attempts, known, now=now, topology=TREE, settings=SETTINGS)


def test_failures_of_one_cause_of_two_users_within_minutes_are_an_incident() -> None:
    (incident,) = find_incidents(failures_of_two_users())
    assert incident == Incident(
        incident_id=incident.incident_id,
        category="nccl_error",
        scope="cluster",
        began=START,
        last=START + 50,
        jobs=(81, 82, 83),
        uids=(1001, 1002),
        nodes=("n1", "n2", "n5"),
    )


def test_the_same_failures_in_any_order_give_the_same_incident() -> None:
    assert find_incidents(failures_of_two_users()) == find_incidents(list(reversed(failures_of_two_users())))


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
def test_failures_that_are_no_incident(attempts: list[JobRun]) -> None:
    assert find_incidents(attempts, now=START + 4000) == ()


def test_kernel_evidence_on_three_nodes_needs_no_second_user() -> None:
    runs = [failed(81 + i, node=f"n{i}", category="gpu_hardware", source=f"kernel:n{i}") for i in range(3)]
    assert [one.users for one in find_incidents(runs)] == [1]
    assert find_incidents([replace(run, nodes=("n1",)) for run in runs]) == ()


def test_a_path_in_logs_of_two_users_is_the_scope_without_the_user_directory() -> None:
    names = ("ada", "bob", "eve")
    runs = [
        replace(run, diagnosis=failed(1, category="storage_io", text=f"[Errno 5] '/scratch/{name}/x.pt'").diagnosis)
        for run, name in zip(failures_of_two_users(), names, strict=True)
    ]
    assert [one.scope for one in find_incidents(runs)] == ["path /scratch"]


def test_a_path_in_logs_of_one_user_is_not_the_scope() -> None:
    runs = [
        replace(failed(81 + i, node=f"n{2 * i}"), diagnosis=replace(two, evidence=(*two.evidence, kernel)))
        for i in range(3)
        for two in [failed(1, category="storage_io", text="'/data/set/x' is away").diagnosis]
        if two is not None
        for kernel in [Citation(source=f"kernel:n{2 * i}", line=1, text="nfs: server s1 not responding")]
    ]
    assert [one.scope for one in find_incidents(runs)] == ["cluster"]


def test_failures_below_one_leaf_switch_have_the_switch_as_scope() -> None:
    runs = [failed(81 + i, uid=1001 + i, node=f"n{i}") for i in range(3)]
    (incident,) = find_incidents(runs)
    assert (incident.scope, incident.reach) == ("switch leaf0", ("n0", "n1", "n2", "n3"))
    assert find_incident_of_run((incident,), failed(90, node="n3", at=100)) == incident
    assert find_incident_of_run((incident,), failed(90, node="n4", at=100)) is None


def test_a_host_name_in_all_logs_is_the_scope() -> None:
    runs = failures_of_two_users(
        category="network_error", text="HTTPSConnectionPool(host='hub.example.org'): Max retries exceeded"
    )
    assert [one.scope for one in find_incidents(runs)] == ["host hub.example.org"]


def test_an_incident_keeps_its_id_while_it_grows_and_closes_when_quiet() -> None:
    known = find_incidents(failures_of_two_users())
    late = [*failures_of_two_users(), failed(98, uid=1008, node="n6", at=390), failed(99, uid=1009, node="n7", at=400)]
    (grown,) = find_incidents(late, known, now=START + 500)
    assert (grown.incident_id, grown.last, grown.jobs, grown.over_at) == (
        known[0].incident_id,
        START + 400,
        (81, 82, 83, 98, 99),
        None,
    )
    (over,) = find_incidents(late, (grown,), now=START + 1000)
    assert over == replace(grown, over_at=START + 1000)
    assert find_incidents(late, (over,), now=START + 9000) == (over,)


def test_a_missing_file_below_an_incidents_path_belongs_to_the_incident() -> None:
    incident = replace(find_incidents(failures_of_two_users())[0], category="storage_io", scope="path /scratch")
    missing = failed(90, category="incorrect_inputs", text="No such file: '/scratch/ada/x.pt'", at=100)
    elsewhere = failed(91, category="incorrect_inputs", text="No such file: '/data/x.pt'", at=100)
    assert find_incident_of_run((incident,), missing) == incident
    assert find_incident_of_run((incident,), elsewhere) is None


def test_retries_wait_for_the_end_of_the_incident_and_are_spread_repeatably() -> None:
    (incident,) = find_incidents(failures_of_two_users())
    waits = [wait_s(incident, job_id, START + 60) for job_id in range(1000)]
    quiet = incident.last + incident.quiet_s - (START + 60)
    assert waits == [wait_s(incident, job_id, START + 60) for job_id in range(1000)]
    assert quiet <= min(waits) < quiet + 45 and quiet + 855 < max(waits) <= quiet + 900
    assert 0 < sum(wait < quiet + 450 for wait in waits) - 400 < 200


def test_one_users_logs_do_not_keep_an_incident_open() -> None:
    known = find_incidents(failures_of_two_users())
    loop = [failed(100 + i, uid=1007, node=f"n{i}", at=100 + i * 100) for i in range(5)]
    (alone,) = find_incidents([*failures_of_two_users(), *loop], known, now=START + 600)
    (second,) = find_incidents(
        [*failures_of_two_users(), *loop, failed(120, uid=1008, node="n6", at=510)], known, now=START + 600
    )
    (kernel,) = find_incidents(
        [*failures_of_two_users(), *loop, failed(120, uid=1007, at=510, source="kernel:n1")], known, now=START + 600
    )
    assert (alone.last, second.last, kernel.last) == (START + 50, START + 510, START + 510)
    assert len(alone.jobs) == 8
    (over,) = find_incidents([*failures_of_two_users(), *loop], (alone,), now=START + 700)
    assert over.over_at == START + 650


def test_missing_files_below_its_path_do_not_keep_an_incident_open() -> None:
    incident = replace(find_incidents(failures_of_two_users())[0], category="storage_io", scope="path /scratch")
    text = "No such file: '/scratch/ada/x.pt'"
    missing = [failed(90 + i, uid=1001 + i, category="incorrect_inputs", text=text, at=300) for i in range(3)]
    (same,) = find_incidents(missing, (incident,), now=START + 400)
    assert (same.last, same.jobs) == (incident.last, (81, 82, 83, 90, 91, 92))


def test_an_incident_ends_at_its_maximum_duration() -> None:
    long = [failed(1000 + i, uid=1001 + i % 3, node=f"n{i % 7}", at=i * 120) for i in range(250)]
    first, second = find_incidents(long, now=START + 250 * 120)
    assert (first.began, first.over_at) == (START, START + 21600)
    assert second.began > START + 21600
    assert wait_s(replace(first, over_at=None, last=START + 21500), 81, START + 21500) <= 100 + 900


def test_all_tasks_of_an_array_count_as_one_job() -> None:
    tasks = [
        replace(failed(81 + i, uid=1001 + i % 2, node=f"n{i}", at=i), address=f"{77 + i % 2}_{i}") for i in range(6)
    ]
    assert find_incidents(tasks) == ()
    assert find_incidents([*tasks, failed(99, node="n7", at=9)])[0].jobs == (77, 78, 99)


def test_a_bad_node_and_one_failure_on_another_node_are_no_incident() -> None:
    bad = [failed(81 + i, uid=1001 + i, node="n1", at=i) for i in range(5)]
    assert find_incidents([*bad, failed(90, uid=1009, node="n5", at=9)]) == ()
    assert len(find_incidents([*bad, *(failed(90 + i, uid=1009, node="n5", at=9) for i in range(2))])) == 1


def test_a_path_is_cut_to_its_mount_point_or_else_to_its_first_part() -> None:
    names = ("ada", "bob", "eve")
    runs = [
        replace(run, diagnosis=failed(1, category="storage_io", text=f"'/gpfs/fs1/data/set/{name}.pt'").diagnosis)
        for run, name in zip(failures_of_two_users(), names, strict=True)
    ]
    (known,) = find(runs, (), now=START + 60, topology=TREE, settings=SETTINGS, mounts=lambda path: "/gpfs/fs1")
    (unknown,) = find(runs, (), now=START + 60, topology=TREE, settings=SETTINGS, mounts=lambda path: "")
    assert (known.scope, unknown.scope) == ("path /gpfs/fs1", "path /gpfs")


def test_an_incident_that_spreads_beyond_one_leaf_switch_has_scope_cluster() -> None:
    below = [failed(81 + i, uid=1001 + i, node=f"n{i}", at=i) for i in range(3)]
    (leaf,) = find_incidents(below)
    beyond = [failed(91 + i, uid=1001 + i, node=f"n{4 + i}", at=30 + i) for i in range(3)]
    (wide,) = find_incidents([*below, *beyond], (leaf,))
    assert (leaf.scope, wide.scope, wide.reach, wide.incident_id) == ("switch leaf0", "cluster", (), leaf.incident_id)
    assert wide.jobs == (81, 82, 83, 91, 92, 93)


def test_long_after_an_incident_retries_do_not_wait() -> None:
    over = replace(find_incidents(failures_of_two_users())[0], over_at=START + 650)
    assert wait_s(over, 81, START + 3000) == 0
