"""What is changed on the waiting job after its pre-run, and what is left alone. Slurm itself: tests/slurm."""

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


def planned(**wishes: str) -> PlacementPlan:
    names = {"cpus": "cpus-per-task", "mem": "mem", "exclude": "exclude", "switches": "switches"}
    names["nodelist"] = "nodelist"
    lines = tuple(OptionChange(option=names[key], value=value, reason=f"why {key}") for key, value in wishes.items())
    return PlacementPlan(lines=lines)


def update(key: str, value: str, reason: str) -> SlurmAction:
    return SlurmAction(verb=Verb.UPDATE_JOB, target="7", key=key, value=value, reason=reason)


def test_every_change_of_the_plan_is_one_update_and_cpus_are_two_in_order() -> None:
    new = planned(exclude="n3", switches="1@5:00", mem="96000M", cpus="13")
    assert make_retune_actions(planned(), new, ASKED, WAITING) == (
        update("ExcNodeList", "n3", "why exclude"),
        update("Switches", "1@5:00", "why switches"),
        update("MinMemoryNode", "96000", "why mem"),
        update("CPUsPerTask", "13", "why cpus"),
        update("MinCPUsNode", "13", "why cpus"),
    )


def test_minimum_per_node_counts_the_tasks_on_it() -> None:
    asked = request(replace(SHAPE, tasks_per_node=4, cpus=2))
    record = replace(WAITING, cpus=16)
    actions = make_retune_actions(planned(), planned(cpus="3"), asked, record)
    assert [(a.key, a.value) for a in actions] == [("CPUsPerTask", "3"), ("MinCPUsNode", "12")]


def test_what_the_first_plan_wished_and_the_second_does_not_is_taken_back() -> None:
    old = planned(exclude="n3", switches="1@5:00", mem="96000M", cpus="13")
    record = replace(WAITING, exc_nodes="n3", cpus=26, mem_mib_per_node=96000)
    assert [(a.key, a.value) for a in make_retune_actions(old, planned(), ASKED, record)] == [
        ("ExcNodeList", ""),
        ("Switches", "0"),
        ("MinMemoryNode", "64000"),
        ("CPUsPerTask", "8"),
        ("MinCPUsNode", "8"),
    ]


def test_same_plan_changes_nothing() -> None:
    same = planned(exclude="n[3-4]", mem="96000M", cpus="13", switches="1@5:00")
    again = planned(exclude="n4,n3", mem="96000M", cpus="13", switches="1@5:00")
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
def test_what_the_user_changed_himself_meanwhile_is_his(record: JobRecord, kept: str) -> None:
    new = planned(exclude="n3", mem="96000M", cpus="13")
    keys = {action.key for action in make_retune_actions(planned(), new, ASKED, record)}
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
def test_units_whose_update_is_not_proven_are_left_alone(asked: JobRequest) -> None:
    assert make_retune_actions(planned(), planned(mem="96000M", cpus="13"), asked, WAITING) == ()


def test_tasks_that_slurm_may_spread_unevenly_keep_their_cpus() -> None:
    asked = request(replace(SHAPE, tasks_per_node=None, tasks=4))
    assert [a.key for a in make_retune_actions(planned(), planned(mem="96000M", cpus="13"), asked, WAITING)] == [
        "MinMemoryNode"
    ]


def test_job_that_started_is_left_alone() -> None:
    assert make_retune_actions(planned(), planned(mem="96000M"), ASKED, replace(WAITING, state="RUNNING")) == ()


def test_own_switches_are_never_cleared() -> None:
    assert make_retune_actions(planned(), planned(), request(options={"switches": "2"}), WAITING) == ()


def test_file_of_nodes_is_left_alone() -> None:
    asked = request(options={"exclude": "./bad"})
    assert make_retune_actions(planned(), planned(exclude="n3"), asked, replace(WAITING, exc_nodes="n1")) == ()


def test_nodes_of_the_second_plan_are_set_cleared_and_put_back() -> None:
    assert names(make_retune_actions(planned(), planned(nodelist="n[1-2]"), ASKED, WAITING)) == [
        ("ReqNodeList", "n[1-2]")
    ]
    pinned = replace(WAITING, req_nodes="n[1-2]")
    actions = make_retune_actions(planned(nodelist="n[1-2]"), planned(), ASKED, pinned)
    assert names(actions) == [("ReqNodeList", "")]
    assert names(undo(actions, planned(nodelist="n[1-2]"), ASKED, pinned)) == [("ReqNodeList", "n[1-2]")]


@pytest.mark.parametrize(
    ("asked", "record"),
    [
        (request(options={"nodelist": "n5,n6"}), replace(WAITING, req_nodes="n[5-6]")),
        (request(options={"nodefile": "./nodes"}), WAITING),
        (ASKED, replace(WAITING, req_nodes="n7")),  # his, meanwhile
        (ASKED, replace(WAITING, array_job_id=7)),
    ],
)
def test_nodes_that_the_user_picks_stay_his(asked: JobRequest, record: JobRecord) -> None:
    assert make_retune_actions(planned(), planned(nodelist="n[1-2]"), asked, record) == ()


@pytest.mark.parametrize(
    ("asked", "raised", "back"),
    [
        (
            ASKED,
            {"mem": "96000M", "cpus": "13"},
            [("MinMemoryNode", "64000"), ("CPUsPerTask", "8"), ("MinCPUsNode", "8")],
        ),
        (request(replace(SHAPE, tasks_per_node=4)), {"cpus": "9"}, [("CPUsPerTask", "8"), ("MinCPUsNode", "32")]),
        (ASKED, {"mem": "32000M", "cpus": "4"}, []),  # less than asked: easier to place
        (request(replace(SHAPE, cpu_unit=CpuUnit.PER_GPU)), {"mem": "96000M"}, []),
        (replace(ASKED, own=GsubOptions(tune=False)), {"mem": "96000M"}, []),
    ],
)
def test_what_was_raised_goes_back_to_what_was_asked(
    asked: JobRequest, raised: dict[str, str], back: list[tuple[str, str]]
) -> None:
    assert list(list_restoring_updates(planned(**raised).lines, asked)) == back


def names(actions: tuple[SlurmAction, ...]) -> list[tuple[str, str]]:
    return [(action.key, action.value) for action in actions]


def test_undo_puts_back_what_was_there_for_the_keys_that_were_touched() -> None:
    old, new = planned(switches="1@5:00"), planned(exclude="n1,n3", mem="96000M", cpus="13")
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


def test_both_keys_of_the_cpus_go_in_one_call_and_every_other_key_alone() -> None:
    memory, cpus, least = (
        update("MinMemoryNode", "1", ""),
        update("CPUsPerTask", "2", ""),
        update("MinCPUsNode", "4", ""),
    )
    assert group_calls((memory, cpus, least)) == ((memory,), (cpus, least))
    assert group_calls((least, cpus, memory)) == ((least, cpus), (memory,))
    assert group_calls((least, memory, cpus)) == ((least,), (memory,), (cpus,))
    assert group_calls((cpus, replace(least, target="8"))) == ((cpus,), (replace(least, target="8"),))
