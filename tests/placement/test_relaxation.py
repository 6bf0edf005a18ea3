"""Relaxation levels of a waiting job: what is relaxed when, and which updates no submission can cause."""

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
SUBMITTED = SubmittedRequest(plan=PLAN, own=OWN, shape=SHAPE)
LOOSE = replace(RECORD, req_nodes="", features="a100", max_nodes=4)


def relax_after(
    record: JobRecord = RECORD, submitted: SubmittedRequest = SUBMITTED, after_s: float = 0.0, **more: object
) -> list[tuple]:
    """Groups of (key, value) that are due after `after_s` seconds."""
    groups = relax(submitted, record, now=T0 + after_s, **more)  # type: ignore[arg-type]
    return [tuple((action.key, action.value) for action in group) for group in groups]


ANY = [(("Features", "a100"),), (("Switches", "0"),), (("NumNodes", "2-4"),)]
SHARE = [(("MinMemoryNode", "12000"),), (("CPUsPerTask", "6"), ("MinCPUsNode", "12"))]


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (59, []),
        (60, [(("ReqNodeList", ""),)]),
        (300, [(("ReqNodeList", ""),), *ANY]),
        (900, [(("ReqNodeList", ""),), *ANY, *SHARE]),  # the reconciler was down: several levels at once
    ],
)
def test_levels_are_applied_in_order_when_their_deadlines_pass(after_s: float, expected: list) -> None:
    assert relax_after(after_s=after_s) == expected


def test_an_action_has_target_key_value_and_reason() -> None:
    ((first,), *_) = relax(SUBMITTED, RECORD, now=T0 + 60)
    assert first == SlurmAction(
        verb=Verb.UPDATE_JOB, target="81", key="ReqNodeList", value="", reason="it waited 1 min: now one rack"
    )


def test_updates_that_are_already_in_force_are_not_repeated() -> None:
    assert relax_after(LOOSE, after_s=300, unseen={"Switches": "0"}) == []
    assert relax_after(LOOSE, after_s=900, unseen={"Switches": "0"}) == SHARE


def test_a_level_that_was_applied_early_is_not_reverted() -> None:
    assert relax_after(replace(LOOSE, mem_mib_per_node=10_000), after_s=60, unseen={"Switches": "0"}) == []


@pytest.mark.parametrize(
    ("user_changes", "untouched"),
    [
        ({"features": "a100&nvme"}, "Features"),
        ({"req_nodes": "n5"}, "ReqNodeList"),
        ({"num_nodes": 3, "max_nodes": 3}, "NumNodes"),
        ({"mem_mib_per_node": 15_000}, "MinMemoryNode"),
        ({"cpus_per_task": 7, "min_cpus": 14}, "CPUsPerTask"),
    ],
)
def test_values_that_the_user_changed_later_are_not_updated(user_changes: dict, untouched: str) -> None:
    keys = {key for group in relax_after(replace(RECORD, **user_changes), after_s=900) for key, _ in group}
    assert untouched not in keys and len(keys) >= 5


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "RUNNING"},
        {"state": "COMPLETING"},
        {"eligible_time": None},
        {"eligible_time": T0 + 10_000},
        {"priority": 0, "reason": "JobHeldUser"},
        {"reason": "JobHeldAdmin"},
        {"reason": "launch failed requeued held"},
        {"het_job_id": 80},
        # squeue truncated the task list: the job id alone means all tasks
        {"array_job_id": 81, "array_tasks": ""},
    ],
)
def test_a_job_that_cannot_be_relaxed_gets_no_updates(changes: dict) -> None:
    assert relax_after(replace(RECORD, **changes), after_s=900, urgent=Urgent(reason="x")) == []


def test_priority_0_with_badconstraints_is_not_treated_as_a_hold() -> None:
    nowhere = replace(RECORD, priority=0, reason="BadConstraints")
    assert (("NumNodes", "2-4"),) in relax_after(nowhere, after_s=1, urgent=Urgent(reason="BadConstraints"))


def test_only_the_pending_tasks_of_an_array_are_updated() -> None:
    waiting = replace(RECORD, array_job_id=81, array_tasks="2-5")
    assert {a.target for group in relax(SUBMITTED, waiting, now=T0 + 900) for a in group} == {"81_[2-5]"}


def test_disabled_tuning_or_placement_skips_its_updates() -> None:
    assert relax_after(submitted=replace(SUBMITTED, tune=False), after_s=900) == [(("ReqNodeList", ""),), *ANY]
    assert relax_after(submitted=replace(SUBMITTED, place=False), after_s=900) == SHARE


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, mem_unit=MemUnit.PER_GPU),
        replace(SHAPE, mem_unit=MemUnit.PER_CPU),
        replace(SHAPE, mem_unit=MemUnit.NONE),
        replace(SHAPE, exclusive=True),
    ],
)
def test_memory_and_cpus_in_units_that_break_srun_are_not_updated(shape: ResourceShape) -> None:
    assert relax_after(submitted=replace(SUBMITTED, shape=shape), after_s=900) == [(("ReqNodeList", ""),), *ANY]


def test_cpuspertask_and_mincpusnode_are_updated_together_or_not_at_all() -> None:
    levels = (Level(name="a", wait_s=1), Level(name="b", wait_s=0, updates=(("CPUsPerTask", "4"),)))
    assert (
        relax_after(submitted=replace(SUBMITTED, plan=replace(PLAN, levels=levels), own={}), after_s=2, pin_s=9) == []
    )
    wrong = (Level(name="a", wait_s=1), Level(name="b", wait_s=0, updates=(("CPUsPerTask", "4"), ("MinCPUsNode", "4"))))
    assert relax_after(submitted=replace(SUBMITTED, plan=replace(PLAN, levels=wrong)), after_s=2, pin_s=9) == []


def test_the_node_list_is_removed_when_a_node_is_taken_or_its_time_is_over() -> None:
    slow = replace(
        SUBMITTED, plan=replace(PLAN, levels=(Level(name="pinned", wait_s=9000), Level(name="any", wait_s=0)))
    )
    assert relax_after(submitted=slow, after_s=59) == []
    assert relax_after(submitted=slow, after_s=60) == [(("ReqNodeList", ""),)]
    assert relax_after(submitted=slow, after_s=9, pin_s=8) == [(("ReqNodeList", ""),)]
    assert relax_after(after_s=1, urgent=Urgent(reason="n1 is taken", everything=False)) == [(("ReqNodeList", ""),)]


def test_a_blocked_job_gets_the_requested_values_back_at_once() -> None:
    groups = relax_after(after_s=1, urgent=Urgent(reason="BadConstraints"))
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
def test_slurm_reasons_that_mean_the_request_blocks_the_job(reason: str, blocked: bool) -> None:
    record = replace(RECORD, reason=reason)
    assert find_blocking_reason(SUBMITTED, record) == (reason if blocked else "")
    assert find_blocking_reason(SubmittedRequest(plan=PlacementPlan()), record) == ""


def test_nodes_that_the_user_requested_are_not_a_blocking_reason() -> None:
    submitted = replace(
        SUBMITTED, plan=replace(PLAN, lines=(OptionChange(option="exclude", value="n7", reason="suspect"),))
    )
    assert find_blocking_reason(submitted, replace(RECORD, reason="ReqNodeNotAvail, UnavailableNodes:n0")) == ""


def test_a_deadline_earlier_than_the_previous_one_counts_as_the_previous_one() -> None:
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
    ("ExcNodeList", "n5"),  # not one of the nodes in force
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
def test_an_update_that_is_not_a_relaxation_is_ignored(key: str, value: str) -> None:
    levels = (Level(name="a", wait_s=0), Level(name="b", wait_s=0, updates=((key, value),)))
    submitted = replace(SUBMITTED, plan=replace(PLAN, levels=levels))
    assert (key, value) not in [one for group in relax_after(submitted=submitted, after_s=30) for one in group]


def test_options_that_the_plan_did_not_set_are_not_relaxed() -> None:
    """The node list and features of the job were set by the site's job_submit plugin or by the user."""
    assert (
        relax_after(submitted=replace(SUBMITTED, plan=replace(PLAN, lines=())), after_s=900, urgent=Urgent(reason="x"))
        == []
    )


def test_an_excessive_number_of_levels_and_updates_is_cut() -> None:
    flood = tuple(Level(name="x" * 10_000, wait_s=0, updates=(("Switches", "0"),) * 5000) for _ in range(5000))
    groups = relax(replace(SUBMITTED, plan=replace(PLAN, levels=flood)), RECORD, now=T0 + 1)
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
def test_any_submission_yields_only_relaxed_values_of_known_keys(levels: list, lines: list, urgent: bool) -> None:
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
