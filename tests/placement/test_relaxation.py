"""Levels of a waiting job: what is loosened when, and what no submission can make us do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.placement.relaxation import (
    KEYS,
    SubmittedRequest,
    Urgent,
    find_blocking_reason,
    find_due_level,
    is_less_strict,
    relax,
)
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, OptionChange, ResourceShape

T0 = 1_790_000_000
SHAPE = ResourceShape(
    nodes=2, tasks_per_node=2, gpus=4, gpus_per_node=2, gpu_unit=GpuUnit.GRES,
    cpus=4, cpu_unit=CpuUnit.PER_TASK, mem_mib=10_000, mem_unit=MemUnit.PER_NODE,
)  # fmt: skip
RECORD = JobRecord(
    job_id=81, uid=1001, partition="gpu", state="PENDING", reason="Resources", eligible_time=T0, submit_time=T0,
    priority=100, num_nodes=2, max_nodes=2, cpus=32, gpus=4, mem_mib_per_node=20_000, cpus_per_task=8, min_cpus=16,
    exc_nodes="n[6-7]", req_nodes="n[0-1]", features="a100&[rack1|rack2]",
)  # fmt: skip
PLAN = PlacementPlan(
    lines=(
        OptionChange(option="exclude", value="n[6-7]", reason="suspect"),
        OptionChange(option="nodelist", value="n[0-1]", reason="free now"),
        OptionChange(option="constraint", value="a100&[rack1|rack2]", reason="one rack"),
        OptionChange(option="nodes", value="2", reason="fewest"),
        OptionChange(option="switches", value="1@60:00", reason="one switch"),
        OptionChange(option="mem", value="20000M", reason="peak"),
        OptionChange(option="cpus-per-task", value="8", reason="need"),
    ),
    levels=(
        Level(name="pinned", wait_s=60),
        Level(name="one rack", wait_s=300, updates=(("ReqNodeList", ""),)),
        Level(name="any", wait_s=900, updates=(("Features", "a100"), ("Switches", "0"), ("NumNodes", "2-4"))),
        Level(
            name="CPUs and memory as asked",
            wait_s=0,
            updates=(("MinMemoryNode", "12000"), ("CPUsPerTask", "6"), ("MinCPUsNode", "12")),
        ),
    ),
)
OWN = {"exclude": "n7", "constraint": "a100", "nodes": "2", "mem": "10000M", "cpus-per-task": "4"}
ASKED = SubmittedRequest(plan=PLAN, own=OWN, shape=SHAPE)
LOOSE = replace(RECORD, req_nodes="", features="a100", max_nodes=4)


def told(
    record: JobRecord = RECORD, asked: SubmittedRequest = ASKED, after_s: float = 0.0, **more: object
) -> list[tuple]:
    """Groups of (key, value), after so many seconds."""
    groups = relax(asked, record, now=T0 + after_s, **more)  # type: ignore[arg-type]
    return [tuple((action.key, action.value) for action in group) for group in groups]


ANY = [(("Features", "a100"),), (("Switches", "0"),), (("NumNodes", "2-4"),)]
SHARE = [(("MinMemoryNode", "12000"),), (("CPUsPerTask", "6"), ("MinCPUsNode", "12"))]


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (59, []),
        (60, [(("ReqNodeList", ""),)]),
        (300, [(("ReqNodeList", ""),), *ANY]),
        (900, [(("ReqNodeList", ""),), *ANY, *SHARE]),  # the reconciler was away: several levels at once
    ],
)
def test_levels_are_reached_in_order_as_their_time_is_over(after_s: float, expected: list) -> None:
    assert told(after_s=after_s) == expected


def test_an_action_says_whom_what_and_why() -> None:
    ((first,), *_) = relax(ASKED, RECORD, now=T0 + 60)
    assert first == SlurmAction(
        verb=Verb.UPDATE_JOB, target="81", key="ReqNodeList", value="", reason="it waited 1 min: now one rack"
    )


def test_what_is_in_force_already_is_not_said_again() -> None:
    assert told(LOOSE, after_s=300, unseen={"Switches": "0"}) == []
    assert told(LOOSE, after_s=900, unseen={"Switches": "0"}) == SHARE


def test_a_level_reached_early_is_not_taken_back() -> None:
    assert told(replace(LOOSE, mem_mib_per_node=10_000), after_s=60, unseen={"Switches": "0"}) == []


@pytest.mark.parametrize(
    ("theirs", "untouched"),
    [
        ({"features": "a100&nvme"}, "Features"),
        ({"req_nodes": "n5"}, "ReqNodeList"),
        ({"num_nodes": 3, "max_nodes": 3}, "NumNodes"),
        ({"mem_mib_per_node": 15_000}, "MinMemoryNode"),
        ({"cpus_per_task": 7, "min_cpus": 14}, "CPUsPerTask"),
    ],
)
def test_what_its_user_changed_since_is_left_alone(theirs: dict, untouched: str) -> None:
    keys = {key for group in told(replace(RECORD, **theirs), after_s=900) for key, _ in group}
    assert untouched not in keys and len(keys) >= 5


@pytest.mark.parametrize(
    "not_ours",
    [
        {"state": "RUNNING"},
        {"state": "COMPLETING"},
        {"eligible_time": None},
        {"eligible_time": T0 + 10_000},
        {"priority": 0, "reason": "JobHeldUser"},
        {"reason": "JobHeldAdmin"},
        {"reason": "launch failed requeued held"},
        {"het_job_id": 80},
        {"array_job_id": 81, "array_tasks": ""},  # squeue cut the expression: the bare id would mean every task
    ],
)
def test_a_job_that_cannot_be_loosened_is_not_touched(not_ours: dict) -> None:
    assert told(replace(RECORD, **not_ours), after_s=900, urgent=Urgent(reason="x")) == []


def test_slurm_takes_the_priority_of_a_job_that_fits_nowhere_and_that_is_no_hold() -> None:
    nowhere = replace(RECORD, priority=0, reason="BadConstraints")
    assert (("NumNodes", "2-4"),) in told(nowhere, after_s=1, urgent=Urgent(reason="BadConstraints"))


def test_of_an_array_only_what_waits_is_addressed() -> None:
    waiting = replace(RECORD, array_job_id=81, array_tasks="2-5")
    assert {a.target for group in relax(ASKED, waiting, now=T0 + 900) for a in group} == {"81_[2-5]"}


def test_without_tuning_or_placing_that_half_stays() -> None:
    assert told(asked=replace(ASKED, tune=False), after_s=900) == [(("ReqNodeList", ""),), *ANY]
    assert told(asked=replace(ASKED, place=False), after_s=900) == SHARE


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, mem_unit=MemUnit.PER_GPU),
        replace(SHAPE, mem_unit=MemUnit.PER_CPU),
        replace(SHAPE, mem_unit=MemUnit.NONE),
        replace(SHAPE, exclusive=True),
    ],
)
def test_sizes_in_units_that_would_kill_sruns_are_not_updated(shape: ResourceShape) -> None:
    assert told(asked=replace(ASKED, shape=shape), after_s=900) == [(("ReqNodeList", ""),), *ANY]


def test_half_of_the_cpus_is_never_updated() -> None:
    levels = (Level(name="a", wait_s=1), Level(name="b", wait_s=0, updates=(("CPUsPerTask", "4"),)))
    assert told(asked=replace(ASKED, plan=replace(PLAN, levels=levels), own={}), after_s=2, pin_s=9) == []
    wrong = (Level(name="a", wait_s=1), Level(name="b", wait_s=0, updates=(("CPUsPerTask", "4"), ("MinCPUsNode", "4"))))
    assert told(asked=replace(ASKED, plan=replace(PLAN, levels=wrong)), after_s=2, pin_s=9) == []


def test_a_pin_ends_when_a_node_is_taken_or_its_time_is_over() -> None:
    slow = replace(ASKED, plan=replace(PLAN, levels=(Level(name="pinned", wait_s=9000), Level(name="any", wait_s=0))))
    assert told(asked=slow, after_s=59) == []
    assert told(asked=slow, after_s=60) == [(("ReqNodeList", ""),)]
    assert told(asked=slow, after_s=9, pin_s=8) == [(("ReqNodeList", ""),)]
    assert told(after_s=1, urgent=Urgent(reason="n1 is taken", everything=False)) == [(("ReqNodeList", ""),)]


def test_what_blocks_the_job_goes_back_at_once_to_what_its_user_asked_for() -> None:
    groups = told(after_s=1, urgent=Urgent(reason="BadConstraints"))
    assert dict(pair for group in groups for pair in group) == {
        "ReqNodeList": "",
        "Switches": "0",
        "ExcNodeList": "n7",
        "Features": "a100",
        "NumNodes": "2-4",
        "MinMemoryNode": "10000",
        "CPUsPerTask": "4",
        "MinCPUsNode": "8",
    }


@pytest.mark.parametrize(
    ("reason", "blocked"),
    [
        ("BadConstraints", True),
        ("PartitionConfig", True),
        ("PartitionNodeLimit", True),
        ("QOSMaxCpuPerJobLimit", True),
        ("QOSMaxMemoryPerJob", True),
        ("AssocMaxCpuPerJobLimit", True),
        ("AssocMaxNodePerJobLimit", True),
        ("ReqNodeNotAvail, UnavailableNodes:n[0-1]", True),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", True),
        ("Resources", False),
        ("Priority", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpGRES", False),
        ("None", False),
    ],
)
def test_reasons_that_name_what_was_asked_for(reason: str, blocked: bool) -> None:
    record = replace(RECORD, reason=reason)
    assert find_blocking_reason(ASKED, record) == (reason if blocked else "")
    assert find_blocking_reason(SubmittedRequest(plan=PlacementPlan()), record) == ""


def test_nodes_that_its_user_named_himself_are_not_ours_to_blame() -> None:
    theirs = replace(ASKED, plan=replace(PLAN, lines=(OptionChange(option="exclude", value="n7", reason="suspect"),)))
    assert find_blocking_reason(theirs, replace(RECORD, reason="ReqNodeNotAvail, UnavailableNodes:n0")) == ""


def test_deadlines_that_go_back_count_as_the_one_before() -> None:
    levels = tuple(Level(name=str(wait), wait_s=wait) for wait in (100, 50, 200, 0))
    assert [find_due_level(levels, at) for at in (99, 100, 199, 200, 9e9)] == [0, 2, 2, 3, 3]
    assert find_due_level((Level(name="any", wait_s=0),), 5) == 0


HOSTILE = (
    ("Priority", "4294967295"),
    ("Nice", "-10000"),
    ("Account", "rich"),
    ("QOS", "high"),
    ("Reservation", "maint"),
    ("UserID", "0"),
    ("Partition", "root"),
    ("TimeLimit", "UNLIMITED"),
    ("StartTime", "now"),
    ("Comment", "x"),
    ("ReqNodeList", "n[0-7]"),
    ("ExcNodeList", "n[0-999999999]"),
    ("ExcNodeList", "[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"),
    ("ExcNodeList", "n5"),  # another node than those in force
    ("ExcNodeList", "n[6-7] Priority=9"),
    ("ExcNodeList", "/etc/shadow"),
    ("Switches", "99"),
    ("Switches", "0 Priority=9"),
    ("NumNodes", "1-2"),  # a lower minimum
    ("NumNodes", "2"),
    ("NumNodes", "3-9"),
    ("NumNodes", "2-99999999999999999999"),
    ("NumNodes", "2-4 Nice=-5"),
    ("Features", "b200"),
    ("Features", "a100&[rack1|rack2]&x"),
    ("MinMemoryNode", "999999"),  # more than now
    ("MinMemoryNode", "0"),  # all of the node
    ("MinMemoryNode", "-1"),
    ("MinMemoryNode", "1e3"),
    ("CPUsPerTask", "64"),
    ("MinCPUsNode", "1"),
    ("JobId", "82"),
    ("", ""),
)


@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_a_level_that_asks_for_what_is_not_looser_changes_nothing(key: str, value: str) -> None:
    levels = (Level(name="a", wait_s=0), Level(name="b", wait_s=0, updates=((key, value),)))
    asked = replace(ASKED, plan=replace(PLAN, levels=levels))
    assert (key, value) not in [one for group in told(asked=asked, after_s=30) for one in group]


def test_what_the_plan_did_not_set_is_not_loosened_whatever_a_level_says() -> None:
    """The node list and features of the job are the site's own plugin's, or the user's."""
    assert told(asked=replace(ASKED, plan=replace(PLAN, lines=())), after_s=900, urgent=Urgent(reason="x")) == []


def test_a_flood_of_levels_is_cut() -> None:
    flood = tuple(Level(name="x" * 10_000, wait_s=0, updates=(("Switches", "0"),) * 5000) for _ in range(5000))
    groups = relax(replace(ASKED, plan=replace(PLAN, levels=flood)), RECORD, now=T0 + 1)
    assert [[action.key for action in group] for group in groups] == [["Switches"]]
    assert len(groups[0][0].reason) < 100


@settings(max_examples=60)
@given(
    levels=st.lists(
        st.tuples(
            st.integers(),
            st.lists(st.tuples(st.one_of(st.sampled_from(sorted(KEYS)), st.text(max_size=8)), st.text(max_size=12))),
        ),
        max_size=5,
    ),
    lines=st.lists(
        st.tuples(st.sampled_from(["exclude", "nodelist", "nodes", "mem", "constraint"]), st.text(max_size=9))
    ),
    urgent=st.booleans(),
)
def test_whatever_a_submission_says_only_looser_values_of_known_keys_come_out(
    levels: list, lines: list, urgent: bool
) -> None:
    plan = PlacementPlan(
        lines=tuple(OptionChange(option=option, value=value, reason="") for option, value in lines) + PLAN.lines,
        levels=tuple(Level(name="l", wait_s=wait, updates=tuple(updates)) for wait, updates in levels),
    )
    groups = relax(
        SubmittedRequest(plan=plan, own=OWN, shape=SHAPE),
        RECORD,
        now=T0 + 5000,
        urgent=Urgent(reason="x") if urgent else None,
    )
    in_force = {"ExcNodeList": "n[6-7]", "ReqNodeList": "n[0-1]", "Switches": "1@60:00", "NumNodes": "2-2"}
    in_force |= {"Features": RECORD.features, "MinMemoryNode": "20000", "CPUsPerTask": "8", "MinCPUsNode": "16"}
    for action in (action for group in groups for action in group):
        assert action.key in KEYS and action.target == "81" and action.verb is Verb.UPDATE_JOB
        assert is_less_strict(action.key, in_force[action.key], action.value, RECORD)
