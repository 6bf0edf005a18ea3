"""The actions that requeue a job: addresses, order, units and names of output files."""

from __future__ import annotations

import pytest
from fakes import job

from slurmwrap.policy.requeue import RequeueSpec, make_requeue_actions, retry_output, undo
from slurmwrap.policy.run_from_slurm import record_of


def list_actions(again: RequeueSpec, **changes: object) -> list[tuple[str, str, str, str]]:
    found = (ruled.action for ruled in make_requeue_actions(again, job(81, **changes)))
    return [(action.verb.value, action.target, action.key, action.value) for action in found]


def test_actions_are_ordered_hold_updates_release_start_time() -> None:
    again = RequeueSpec(rule="resize", avoid=("n1",), memory=("MinMemoryNode", 6000), time_min=90, std_out="/x.out")
    assert [step[0] + " " + step[2] for step in list_actions(again)] == [
        "requeuehold ",
        "update job ExcNodeList",
        "update job MinMemoryNode",
        "update job TimeLimit",
        "update job StdOut",
        "release ",
        "update job StartTime",
    ]


def test_an_array_task_is_addressed_by_its_task_id() -> None:
    targets = {step[1] for step in list_actions(RequeueSpec(rule="retry"), array_job_id=81, array_task_id=4)}
    assert targets == {"81_4"}


def test_the_users_own_excluded_nodes_are_kept() -> None:
    (value,) = [
        s[3]
        for s in list_actions(RequeueSpec(rule="retry", avoid=("n3",)), exc_nodes="n[1-2],x")
        if s[2] == "ExcNodeList"
    ]
    assert value == "n[1-2],x,n3"


def test_an_already_excluded_node_needs_no_update() -> None:
    assert "ExcNodeList" not in [
        s[2] for s in list_actions(RequeueSpec(rule="retry", avoid=("n2",)), exc_nodes="n[1-2]")
    ]


def test_a_node_list_with_the_excluded_node_is_removed() -> None:
    assert ("update job", "81", "ReqNodeList", "") in list_actions(
        RequeueSpec(rule="retry", avoid=("n1",)), req_nodes="n[1-2]"
    )


@pytest.mark.parametrize(
    ("path", "restarts", "expected"),
    [
        ("/home/a/slurm-81.out", 0, "/home/a/slurm-81.retry1.out"),
        ("/home/a/slurm-81.retry1.out", 1, "/home/a/slurm-81.retry2.out"),
        ("/home/a/log", 0, "/home/a/log.retry1"),
        ("/home/a b/x.y.out", 2, "/home/a b/x.y.retry3.out"),
        ("/dev/null", 0, ""),
        ("", 0, ""),
    ],
)
def test_a_retry_gets_its_own_output_file(path: str, restarts: int, expected: str) -> None:
    assert retry_output(path, restarts) == expected


def test_a_refused_size_is_undone_to_the_value_of_the_run() -> None:
    had = record_of(job(81, time_limit_s=3601), "lab")
    per_cpu = record_of(job(81, mem_mib_per_node=None, mem_mib_per_cpu=500), "lab")
    assert (undo("MinMemoryNode", had), undo("TimeLimit", had)) == ("4000", "61")
    assert (undo("MinMemoryCPU", per_cpu), undo("MinMemoryNode", per_cpu)) == ("500", "")
