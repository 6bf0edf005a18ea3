"""How a job is run again: addresses, order, units, names of output files."""

from __future__ import annotations

import pytest
from fakes import job

from slurmwrap.retry.requeue import Again, actions, back_off, more_memory, retry_output


def shown(again: Again, **changes: object) -> list[tuple[str, str, str, str]]:
    found = (ruled.action for ruled in actions(again, job(81, **changes)))
    return [(action.verb.value, action.target, action.key, action.value) for action in found]


def test_hold_update_release_and_start_come_in_this_order() -> None:
    again = Again(rule="resize", avoid=("n1",), memory=("MinMemoryNode", 6000), std_out="/x.out")
    assert [step[0] + " " + step[2] for step in shown(again)] == [
        "requeuehold ",
        "update job ExcNodeList",
        "update job MinMemoryNode",
        "update job StdOut",
        "release ",
        "update job StartTime",
    ]


def test_an_array_task_is_addressed_by_its_task() -> None:
    targets = {step[1] for step in shown(Again(rule="retry"), array_job_id=81, array_task_id=4)}
    assert targets == {"81_4"}


def test_the_users_own_exclusions_are_kept() -> None:
    (value,) = [s[3] for s in shown(Again(rule="retry", avoid=("n3",)), exc_nodes="n[1-2],x") if s[2] == "ExcNodeList"]
    assert value == "n[1-2],x,n3"


def test_a_node_that_is_excluded_already_needs_no_update() -> None:
    assert "ExcNodeList" not in [s[2] for s in shown(Again(rule="retry", avoid=("n2",)), exc_nodes="n[1-2]")]


def test_a_job_pinned_to_the_node_it_must_leave_is_unpinned() -> None:
    assert ("update job", "81", "ReqNodeList", "") in shown(Again(rule="retry", avoid=("n1",)), req_nodes="n[1-2]")


@pytest.mark.parametrize(
    ("changes", "peak", "expected"),
    [
        ({"mem_mib_per_node": 4000}, None, ("MinMemoryNode", 6000)),
        ({"mem_mib_per_node": 4000}, 5000, ("MinMemoryNode", 7500)),
        ({"mem_mib_per_node": 4000}, 9000, ("MinMemoryNode", 10000)),  # the largest node
        ({"mem_mib_per_node": 10000}, None, None),
        ({"mem_mib_per_node": None, "mem_mib_per_cpu": 500, "cpus": 8}, None, ("MinMemoryCPU", 750)),
        ({"mem_mib_per_node": None}, None, None),
    ],
)
def test_memory_grows_in_the_jobs_own_unit(
    changes: dict[str, object], peak: int | None, expected: tuple[str, int] | None
) -> None:
    assert more_memory(job(81, **changes), peak, factor=1.5, cap_mib=10000) == expected


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
def test_a_retry_writes_its_own_file(path: str, restarts: int, expected: str) -> None:
    assert retry_output(path, restarts) == expected


def test_the_wait_doubles_up_to_an_hour() -> None:
    assert [back_off(60, spent) for spent in (0, 1, 2, 6, 100)] == [60, 120, 240, 3600, 3600]
