"""Incidents: which failures form one, which runs belong to it, and how long its retries wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.config.load_config import Incidents
from slurmwrap.model.evidence import Citation, Diagnosis
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.policy.incident import Incident, find, find_incident_of_run, is_affected, wait_s
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


# --- what users cannot write -----------------------------------------------------------------------------------------


def lost(job_id: int, node: str, at: int, **changes: object) -> JobRun:
    """A run whose node was lost, by Slurm's record."""
    return failed(job_id, uid=1050, node=node, at=at, category="node_failure", source="slurm", **changes)  # type: ignore[arg-type]


def forged(count: int = 41) -> list[JobRun]:
    """Failures of three users on all nodes, a minute apart, with the same text in their logs."""
    return [failed(1000 + i, uid=1001 + i % 3, node=f"n{i % 8}", at=i * 60) for i in range(count)]


def test_logs_alone_confirm_no_incident_and_affect_only_users_with_enough_jobs_of_their_own() -> None:
    (incident,) = find_incidents(forged(), now=START + 2400)
    assert (incident.confirmed, incident.proof, len(incident.jobs)) == (False, (), 41)
    victim = failed(2000, uid=1009, at=70)
    assert find_incident_of_run((incident,), victim) == incident
    assert not is_affected(incident, victim, forged(), SETTINGS.min_jobs)
    again = [failed(2001 + i, uid=1009, at=80 + i) for i in range(2)]
    assert not is_affected(incident, victim, [*forged(), again[0]], SETTINGS.min_jobs)
    assert is_affected(incident, victim, [*forged(), *again], SETTINGS.min_jobs)


@pytest.mark.parametrize(
    ("category", "source", "text", "confirms"),
    [
        ("storage_io", "kernel:{node}", "nfs: server filer1 not responding, still trying", True),
        ("storage_io", "kernel:{node}", "INFO: task python:77 blocked for more than 120 seconds.", False),
        ("gpu_hardware", "nvml:{node}", "NVML on n1: GPU 0 (0000:05:00.0) is lost", True),
        ("node_failure", "slurm", "State NODE_FAIL", True),
        ("node_failure", "slurm", "Reason JobLaunchFailure", False),
        (
            "cuda_init_failed",
            "hook",
            "prolog on n1: GPUs could not be read: NVML: RM has detected an NVML/RM version mismatch.",
            True,
        ),
        ("cuda_init_failed", "hook", "prolog on n1: GPUs could not be read: NVML: Shared Library Not Found", False),
        ("cuda_init_failed", "hook", "epilog on n1: failed in part: /home/eve/GPUs could not be read: x", False),
        ("nccl_error", "/home/eve/kernel:n1", "State NODE_FAIL", False),
    ],
)
def test_what_confirms_an_incident(category: str, source: str, text: str, confirms: bool) -> None:
    runs = [
        failed(
            81 + i, uid=1001 + i, node=f"n{3 * i}", category=category, text=text, source=source.format(node=f"n{3 * i}")
        )
        for i in range(3)
    ]
    (incident,) = find_incidents(runs)
    assert incident.confirmed == confirms
    assert incident.proof == (("n0", "n3", "n6") if confirms else ())


def test_a_fault_of_one_node_confirms_nothing() -> None:
    bad = [failed(90 + i, uid=1009, node="n1", at=i, category="storage_io", source="kernel:n1") for i in range(4)]
    logs = [failed(81 + i, uid=1001 + i, node=f"n{3 * i}", category="storage_io") for i in range(3)]
    assert [one.confirmed for one in find_incidents([*bad, *logs])] == [False]


def test_two_node_faults_hours_apart_do_not_confirm_what_users_keep_open() -> None:
    far = [failed(90, node="n1", at=600, source="kernel:n1"), failed(91, node="n6", at=1800, source="kernel:n6")]
    near = [*far, failed(92, node="n1", at=1500, source="kernel:n1")]
    assert [one.confirmed for one in find_incidents([*forged(), *far], now=START + 2460)] == [False]
    (incident,) = find_incidents([*forged(), *near], now=START + 2300)
    assert (incident.proof, incident.began, incident.last) == (("n1", "n6"), START + 900, START + 1800)


def test_lost_nodes_below_a_switch_confirm_a_failure_of_its_fabric() -> None:
    below = [failed(81 + i, uid=1001 + i, node=f"n{i}", at=i) for i in range(4)]
    elsewhere = [lost(90, "n5", 200), lost(91, "n6", 210)]
    (known,) = find_incidents(below)
    assert not known.confirmed
    assert [one.confirmed for one in find_incidents([*below, *elsewhere], (known,), now=START + 300)] == [False]
    (proven,) = find_incidents([*below, lost(90, "n1", 200), lost(91, "n2", 210)], (known,), now=START + 300)
    assert (proven.scope, proven.proof, proven.last) == ("switch leaf0", ("n1", "n2"), START + 210)
    assert (proven.incident_id, proven.jobs) == (known.incident_id, (81, 82, 83, 84))


def test_forged_logs_neither_prolong_nor_widen_a_confirmed_incident() -> None:
    real = [
        failed(81 + i, uid=1005 + i, node=f"n{i}", at=i, category="storage_io", source=f"kernel:n{i}") for i in range(3)
    ]
    logs = [replace(run, diagnosis=failed(1, category="storage_io").diagnosis) for run in forged()]
    for known in ((), find_incidents(real)):
        found = find_incidents([*real, *logs], known, now=START + 500)
        (confirmed,) = [one for one in found if one.confirmed]
        assert (confirmed.scope, confirmed.last, confirmed.proof) == ("switch leaf0", START + 2, ("n0", "n1", "n2"))
        assert find_incident_of_run(found, failed(99, node="n3", at=300, category="storage_io")) == confirmed
        over = [one for one in find_incidents([*real, *logs], found, now=START + 700) if one.confirmed]
        assert [one.over_at for one in over] == [START + 602]


def test_an_incident_of_an_older_version_is_unconfirmed_until_it_is_proven() -> None:
    old = Incident(
        incident_id="a1", category="storage_io", scope="cluster", began=START - 60, last=START, jobs=(7, 8, 9)
    )
    assert (old.confirmed, old.doubt) == (False, "unconfirmed, by log text of 0 users alone")
    runs = [failed(81 + i, node=f"n{5 * i}", at=60, category="storage_io", source=f"kernel:n{5 * i}") for i in range(2)]
    assert [one.proof for one in find_incidents(runs, (old,))] == [("n0", "n5")]
