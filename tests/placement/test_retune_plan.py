"""Updates of a waiting job after its pre-run, and values that are not updated.

The tests with Slurm itself are in tests/slurm.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from placement_cases import SHAPE, request

from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.retune import group_calls, list_restoring_updates, make_retune_actions, undo
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, GsubOptions, JobRequest, MemUnit, OptionChange

ASKED = request()
WAITING = JobRecord(job_id=7, state="PENDING", num_nodes=2, cpus=16, mem_mib_per_node=64000)


def make_plan(**wishes: str) -> PlacementPlan:
    names = {"cpus": "cpus-per-task", "mem": "mem", "exclude": "exclude", "switches": "switches"}
    names["nodelist"] = "nodelist"
    lines = tuple(OptionChange(option=names[key], value=value, reason=f"why {key}") for key, value in wishes.items())
    return PlacementPlan(lines=lines)


def make_update(key: str, value: str, reason: str) -> SlurmAction:
    return SlurmAction(verb=Verb.UPDATE_JOB, target="7", key=key, value=value, reason=reason)


def test_each_change_of_the_plan_is_one_update_and_cpus_are_two() -> None:
    new = make_plan(exclude="n3", switches="1@5:00", mem="96000M", cpus="13")
    assert make_retune_actions(make_plan(), new, ASKED, WAITING) == (
        make_update("ExcNodeList", "n3", "why exclude"),
        make_update("Switches", "1@5:00", "why switches"),
        make_update("MinMemoryNode", "96000", "why mem"),
        make_update("CPUsPerTask", "13", "why cpus"),
        make_update("MinCPUsNode", "13", "why cpus"),
    )


def test_mincpusnode_counts_all_tasks_on_the_node() -> None:
    asked = request(replace(SHAPE, tasks_per_node=4, cpus=2))
    record = replace(WAITING, cpus=16)
    actions = make_retune_actions(make_plan(), make_plan(cpus="3"), asked, record)
    assert [(a.key, a.value) for a in actions] == [("CPUsPerTask", "3"), ("MinCPUsNode", "12")]


def test_options_that_are_only_in_the_first_plan_are_reset() -> None:
    old = make_plan(exclude="n3", switches="1@5:00", mem="96000M", cpus="13")
    record = replace(WAITING, exc_nodes="n3", cpus=26, mem_mib_per_node=96000)
    assert [(a.key, a.value) for a in make_retune_actions(old, make_plan(), ASKED, record)] == [
        ("ExcNodeList", ""),
        ("Switches", "0"),
        ("MinMemoryNode", "64000"),
        ("CPUsPerTask", "8"),
        ("MinCPUsNode", "8"),
    ]


def test_the_same_plan_changes_nothing() -> None:
    same = make_plan(exclude="n[3-4]", mem="96000M", cpus="13", switches="1@5:00")
    again = make_plan(exclude="n4,n3", mem="96000M", cpus="13", switches="1@5:00")
    assert (
        make_retune_actions(same, again, ASKED, replace(WAITING, exc_nodes="n3,n4", cpus=26, mem_mib_per_node=96000))
        == ()
    )


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (replace(WAITING, exc_nodes="n6"), "ExcNodeList"),
        (replace(WAITING, mem_mib_per_node=70000), "MinMemoryNode"),
        (replace(WAITING, cpus=20), "CPUsPerTask"),
    ],
)
def test_values_that_the_user_changed_meanwhile_are_not_updated(record: JobRecord, kept: str) -> None:
    new = make_plan(exclude="n3", mem="96000M", cpus="13")
    keys = {action.key for action in make_retune_actions(make_plan(), new, ASKED, record)}
    assert kept not in keys
    assert len(keys) >= 2


@pytest.mark.parametrize(
    "asked",
    [
        request(replace(SHAPE, cpu_unit=CpuUnit.PER_GPU)),
        request(replace(SHAPE, mem_unit=MemUnit.PER_GPU)),
        request(replace(SHAPE, mem_unit=MemUnit.PER_CPU)),
        request(replace(SHAPE, gpu_unit=GpuUnit.PER_TASK)),
        request(replace(SHAPE, gpu_unit=GpuUnit.GPUS)),
        request(replace(SHAPE, exclusive=True)),
        request(replace(SHAPE, max_nodes=4)),
        replace(ASKED, own=GsubOptions(tune=False)),
    ],
)
def test_requests_in_unproven_units_are_not_updated(asked: JobRequest) -> None:
    assert make_retune_actions(make_plan(), make_plan(mem="96000M", cpus="13"), asked, WAITING) == ()


def test_cpus_are_not_updated_if_slurm_may_spread_tasks_unevenly() -> None:
    asked = request(replace(SHAPE, tasks_per_node=None, tasks=4))
    assert [a.key for a in make_retune_actions(make_plan(), make_plan(mem="96000M", cpus="13"), asked, WAITING)] == [
        "MinMemoryNode"
    ]


def test_a_running_job_is_not_updated() -> None:
    assert make_retune_actions(make_plan(), make_plan(mem="96000M"), ASKED, replace(WAITING, state="RUNNING")) == ()


def test_a_switches_option_of_the_user_is_never_cleared() -> None:
    assert make_retune_actions(make_plan(), make_plan(), request(options={"switches": "2"}), WAITING) == ()


def test_an_exclude_file_of_the_user_is_not_updated() -> None:
    asked = request(options={"exclude": "./bad"})
    assert make_retune_actions(make_plan(), make_plan(exclude="n3"), asked, replace(WAITING, exc_nodes="n1")) == ()


def test_the_node_list_is_set_cleared_and_restored_by_undo() -> None:
    assert list_updates(make_retune_actions(make_plan(), make_plan(nodelist="n[1-2]"), ASKED, WAITING)) == [
        ("ReqNodeList", "n[1-2]")
    ]
    pinned = replace(WAITING, req_nodes="n[1-2]")
    actions = make_retune_actions(make_plan(nodelist="n[1-2]"), make_plan(), ASKED, pinned)
    assert list_updates(actions) == [("ReqNodeList", "")]
    assert list_updates(undo(actions, make_plan(nodelist="n[1-2]"), ASKED, pinned)) == [("ReqNodeList", "n[1-2]")]


@pytest.mark.parametrize(
    ("asked", "record"),
    [
        (request(options={"nodelist": "n5,n6"}), replace(WAITING, req_nodes="n[5-6]")),
        (request(options={"nodefile": "./nodes"}), WAITING),
        (ASKED, replace(WAITING, req_nodes="n7")),  # set by the user meanwhile
        (ASKED, replace(WAITING, array_job_id=7)),
    ],
)
def test_node_lists_of_the_user_are_not_updated(asked: JobRequest, record: JobRecord) -> None:
    assert make_retune_actions(make_plan(), make_plan(nodelist="n[1-2]"), asked, record) == ()


@pytest.mark.parametrize(
    ("asked", "raised", "back"),
    [
        (
            ASKED,
            {"mem": "96000M", "cpus": "13"},
            [("MinMemoryNode", "64000"), ("CPUsPerTask", "8"), ("MinCPUsNode", "8")],
        ),
        (request(replace(SHAPE, tasks_per_node=4)), {"cpus": "9"}, [("CPUsPerTask", "8"), ("MinCPUsNode", "32")]),
        (ASKED, {"mem": "32000M", "cpus": "4"}, []),  # less than requested: easier to place
        (request(replace(SHAPE, cpu_unit=CpuUnit.PER_GPU)), {"mem": "96000M"}, []),
        (replace(ASKED, own=GsubOptions(tune=False)), {"mem": "96000M"}, []),
    ],
)
def test_raised_cpus_and_memory_are_restored_to_the_request(
    asked: JobRequest, raised: dict[str, str], back: list[tuple[str, str]]
) -> None:
    assert list(list_restoring_updates(make_plan(**raised).lines, asked)) == back


def list_updates(actions: tuple[SlurmAction, ...]) -> list[tuple[str, str]]:
    return [(action.key, action.value) for action in actions]


def test_undo_restores_the_previous_values_of_the_updated_keys() -> None:
    old, new = make_plan(switches="1@5:00"), make_plan(exclude="n1,n3", mem="96000M", cpus="13")
    asked, record = request(options={"exclude": "n1"}), replace(WAITING, exc_nodes="n1")
    actions = make_retune_actions(old, new, asked, record)
    assert [(a.key, a.value) for a in undo(actions, old, asked, record)] == [
        ("ExcNodeList", "n1"),
        ("Switches", "1@5:00"),
        ("MinMemoryNode", "64000"),
        ("MinCPUsNode", "8"),
        ("CPUsPerTask", "8"),
    ]
    assert [a.key for a in undo(actions[2:3], old, asked, record)] == ["MinMemoryNode"]


def test_adjacent_cpu_keys_share_one_call_and_other_keys_get_their_own() -> None:
    memory, cpus, least = (
        make_update("MinMemoryNode", "1", ""),
        make_update("CPUsPerTask", "2", ""),
        make_update("MinCPUsNode", "4", ""),
    )
    assert group_calls((memory, cpus, least)) == ((memory,), (cpus, least))
    assert group_calls((least, cpus, memory)) == ((least, cpus), (memory,))
    assert group_calls((least, memory, cpus)) == ((least,), (memory,), (cpus,))
    assert group_calls((cpus, replace(least, target="8"))) == ((cpus,), (replace(least, target="8"),))
