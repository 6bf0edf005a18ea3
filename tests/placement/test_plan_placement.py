"""The sbatch options that a placement plan adds, and cases in which it must not add them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_cases import IDLE, ONE_GPU, SHAPE, cluster, node, request, suspect

from slurmwrap.config.load_config import Config, Placement, Tuning
from slurmwrap.model.cluster import Partition, Snapshot
from slurmwrap.model.hostlist import expand
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.topology import Topology
from slurmwrap.placement.plan_placement import plan
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, GsubOptions, JobRequest, MemUnit, OptionChange, ResourceShape

CAP = Config(placement=Placement(exclude_cap=0.25))


def get_options(found: PlacementPlan) -> dict[str, str | None]:
    return {wish.option: wish.value for wish in found.lines}


def plan_default(
    asked: JobRequest, snapshot: Snapshot = IDLE, health: tuple[Any, ...] = (), config: Config = CAP
) -> Any:
    return plan(asked, None, snapshot, health, config)


SWITCH = OptionChange(
    option="switches",
    value="1@1:15",
    reason="2 nodes fit under one switch; how much it loses on distant nodes is not known; "
    "Slurm waits up to 75 s for that",
)


def test_a_job_of_two_nodes_waits_for_one_switch_for_a_limited_time() -> None:
    assert plan_default(request()) == PlacementPlan(
        lines=(SWITCH,),
        node_count=2,
        gpus_per_node=4,
        candidates=("n0", "n1"),
        switch="ib0",
        locality="consolidated",
        levels=(
            Level(name="one switch", wait_s=75),
            Level(name="any", wait_s=0, updates=(("Switches", "0"),), reason="one switch did not come free in time"),
        ),
        remarks=(
            "best now: n[0-1] in ib0, the fewest nodes that hold it",
            "not tied to n[0-1]: no reconciler here would release it to other nodes",
        ),
    )


def test_a_job_of_one_gpu_gets_no_options() -> None:
    assert plan_default(request(ONE_GPU)) == PlacementPlan(
        node_count=1,
        gpus_per_node=1,
        candidates=("n0",),
        switch="ib0",
        locality="consolidated",
        levels=(Level(name="any", wait_s=0),),
        remarks=(
            "best now: n0 in ib0, an idle node: none in use has room for it",
            "not tied to n0: no reconciler here would release it to other nodes",
        ),
    )


def test_the_wait_for_a_switch_is_written_as_minutes_and_seconds() -> None:
    found = plan_default(request(), config=Config(placement=Placement(switch_wait_s=264)))
    assert get_options(found) == {"switches": "1@1:06"}


@pytest.mark.parametrize(
    "options",
    [
        {"switches": "2"},
        {"nodelist": "n0,n4"},
        {"reservation": "maint"},
        {"constraint": "[rack1|rack2]"},
        {"contiguous": ""},
    ],
)
def test_no_switches_option_if_the_user_chose_nodes_or_switches(options: dict[str, str]) -> None:
    assert "switches" not in get_options(plan_default(request(options=options)))


@pytest.mark.parametrize(
    "snapshot",
    [
        replace(IDLE, topology=Topology()),
        cluster(*(node(f"n{i}") for i in range(8)), leaf=1),
        cluster(*(node(f"n{i}") for i in range(8)), leaf=8),
        cluster(node("n0"), node("n1", gpus=2), node("n2"), node("n3", gpu_type="v100"), leaf=2),
    ],
    ids=["no tree", "leaves too small", "one leaf", "leaf with one able node"],
)
def test_no_switches_option_if_no_single_switch_can_hold_the_job(snapshot: Snapshot) -> None:
    assert "switches" not in get_options(plan_default(request(replace(SHAPE, gpu_type="a100")), snapshot))


def test_no_switches_option_if_the_largest_number_of_nodes_does_not_fit() -> None:
    assert "switches" not in get_options(plan_default(request(replace(SHAPE, max_nodes=5))))


def test_a_suspect_node_is_excluded_with_its_reason() -> None:
    found = plan_default(request(), health=(suspect("n3"),))
    assert found.lines[0] == OptionChange(option="exclude", value="n3", reason="n3 is suspect: 2 strikes: Xid 79")


def test_lemon_nodes_are_excluded_before_suspect_nodes_up_to_the_cap() -> None:
    health = (suspect("n1", 9.0), suspect("n2", 5.0), suspect("n6", 1.0, "lemon"), suspect("n7", 0.0, "drained"))
    assert get_options(plan_default(request(), health=health))["exclude"] == "n[1,6]"


def test_one_node_may_be_excluded_even_if_the_cap_is_smaller() -> None:
    found = plan_default(request(), health=(suspect("n3"), suspect("n4")), config=Config())
    assert get_options(found)["exclude"] == "n3"


def test_only_nodes_that_slurmwrap_drained_count_against_the_cap() -> None:
    ours = node("n0", flags=frozenset({"DRAIN"}), reason="slurmwrap: Xid 79")
    other = node("n1", flags=frozenset({"DRAIN"}), reason="slurm: cable")
    snapshot = cluster(ours, other, *(node(f"n{i}") for i in range(2, 8)))
    assert get_options(plan_default(request(), snapshot, (suspect("n4", 2.0), suspect("n5")))) == {
        "exclude": "n4",
        "switches": "1@1:15",
    }


def test_excluded_nodes_of_the_user_stay_as_written_and_come_first() -> None:
    found = plan_default(request(options={"exclude": "n[0-1],n3"}), health=(suspect("n5"),))
    assert get_options(found)["exclude"] == "n[0-1],n3,n5"


@pytest.mark.parametrize("own", ["./bad_nodes.txt", "n[1-x]"])
def test_an_unreadable_exclude_option_is_kept_and_reported(own: str) -> None:
    (wish, _) = plan_default(request(options={"exclude": own}), health=(suspect("n5"),)).lines
    assert (wish.option, wish.value) == ("exclude", None)
    assert wish.reason.startswith("your list of nodes is kept as it is")


@pytest.mark.parametrize("options", [{"nodelist": "n3,n4"}, {"reservation": "r"}, {"constraint": "a&b"}])
def test_no_node_is_excluded_if_other_options_restrict_the_nodes(options: dict[str, str]) -> None:
    assert "exclude" not in get_options(plan_default(request(options=options), health=(suspect("n3"),)))


def test_no_node_is_excluded_that_the_job_needs() -> None:
    whole = request(replace(SHAPE, nodes=8, max_nodes=8, gpus=32))
    (wish,) = plan_default(whole, health=(suspect("n3"),)).lines
    assert (wish.option, wish.value) == ("exclude", None)


@pytest.mark.parametrize(("tasks", "value"), [(14, "n3"), (15, None), (16, None)])
def test_tasks_with_cpus_per_gpu_limit_how_many_nodes_can_be_excluded(tasks: int, value: str | None) -> None:
    """sbatch --gres=gpu:1 --cpus-per-gpu=2: at most two tasks on each of eight nodes (22.05 puts all on one)."""
    one_gpu = {"gpus": 1, "gpus_per_node": 1, "gpu_unit": GpuUnit.GRES}
    shape = ResourceShape(**one_gpu, tasks=tasks, cpus=2, cpu_unit=CpuUnit.PER_GPU)
    assert get_options(plan_default(request(shape), health=(suspect("n3"),)))["exclude"] == value


def test_suspect_nodes_of_other_partitions_and_features_are_not_excluded() -> None:
    other = node("x0", partitions=("cpu",))
    plain = node("n8", features=("v2",))
    snapshot = cluster(*IDLE.nodes, other, plain)
    health = (suspect("x0"), suspect("n0"))
    assert "exclude" not in get_options(plan_default(request(options={"constraint": "v2"}), snapshot, health))


def test_no_switches_option_if_no_switch_holds_the_job_without_excluded_nodes() -> None:
    snapshot = cluster(*(node(f"n{i}") for i in range(4)), leaf=2)
    health = (suspect("n0"), suspect("n2"))
    assert get_options(plan_default(request(), snapshot, health, Config(placement=Placement(exclude_cap=0.5)))) == {
        "exclude": "n[0,2]"
    }


def test_candidates_of_a_large_job_share_the_emptiest_switch_and_small_jobs_fill_gaps() -> None:
    snapshot = cluster(*(node(f"n{i}", used) for i, used in enumerate([4, 0, 3, 2, 0, 0, 0, 7])))
    whole = request(replace(SHAPE, gpus=16, gpus_per_node=8))
    assert (plan_default(whole, snapshot).candidates, plan_default(whole, snapshot).switch) == (("n4", "n5"), "ib1")
    assert plan_default(request(ONE_GPU), snapshot).candidates == ("n0",)
    assert plan_default(request(replace(ONE_GPU, gpus=5, gpus_per_node=5)), snapshot).candidates == ("n2",)


def test_a_large_job_gets_the_emptier_of_two_switches_that_can_hold_it() -> None:
    snapshot = cluster(*(node(f"n{i}", used) for i, used in enumerate([0, 0, 8, 8, 0, 0, 0, 8])))
    found = plan_default(request(replace(SHAPE, gpus=16, gpus_per_node=8)), snapshot)
    assert (found.switch, found.candidates) == ("ib1", ("n4", "n5"))


def test_a_job_that_does_not_fit_now_gets_no_candidates() -> None:
    full = cluster(*(node(f"n{i}", 8) for i in range(8)))
    found = plan_default(request(), full)
    assert (found.candidates, found.locality, get_options(found)) == ((), "any", {"switches": "1@0:18"})


def test_a_job_that_fits_only_across_switches_has_locality_spread() -> None:
    snapshot = cluster(*(node(f"n{i}", 8 if i not in (0, 4) else 0) for i in range(8)))
    found = plan_default(request(), snapshot)
    assert (found.candidates, found.switch, found.locality) == (("n0", "n4"), None, "spread")


def test_a_job_with_gpus_in_total_gets_the_fewest_possible_nodes() -> None:
    shape = replace(SHAPE, nodes=None, max_nodes=None, gpus=16, gpus_per_node=None, gpu_unit=GpuUnit.GPUS)
    found = plan_default(request(shape))
    assert (found.node_count, found.candidates) == (2, ("n0", "n1"))


def test_an_unknown_partition_gets_no_options() -> None:
    found = plan_default(request(options={"partition": "nopart"}), health=(suspect("n3"),))
    assert (found.lines, found.candidates, found.node_count) == ((), (), 2)


@pytest.mark.parametrize(
    "asked",
    [
        replace(request(), hetjob=True),
        request(replace(SHAPE, gpus=0)),
        replace(request(), own=GsubOptions(place=False, tune=False)),
    ],
)
def test_no_options_for_het_jobs_jobs_without_gpus_or_if_gsub_options_disable_them(asked: JobRequest) -> None:
    assert plan_default(asked, health=(suspect("n3"),)).lines == ()


NEEDY = ResourceProfile(key="k", cpus_per_gpu=3.2, mem_mib_per_gpu=20_000, preruns=1)


def get_tuned_options(
    asked: JobRequest, profile: ResourceProfile = NEEDY, snapshot: Snapshot = IDLE
) -> dict[str, str | None]:
    return get_options(plan(asked, profile, snapshot, (), Config(placement=Placement(enabled=False))))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {"cpus-per-task": "13", "mem": "96000M"}),
        ({"cpu_unit": CpuUnit.PER_GPU, "cpus": 2}, {"cpus-per-gpu": "4", "mem": "96000M"}),
        ({"cpu_unit": CpuUnit.NONE, "cpus": None}, {"cpus-per-task": "13", "mem": "96000M"}),
        ({"tasks_per_node": 4, "cpus": 2}, {"cpus-per-task": "4", "mem": "96000M"}),
        ({"mem_unit": MemUnit.PER_GPU, "mem_mib": 8000}, {"cpus-per-task": "13", "mem-per-gpu": "24000M"}),
        ({"mem_unit": MemUnit.PER_CPU, "mem_mib": 1000}, {"mem-per-cpu": "12000M"}),
        ({"mem_unit": MemUnit.NONE, "mem_mib": None}, {"cpus-per-task": "13"}),
        ({"mem_mib": 0}, {"cpus-per-task": "13"}),
        ({"exclusive": True}, {}),
        ({"gpus_per_node": None, "gpu_unit": GpuUnit.GPUS}, {}),
    ],
)
def test_tuning_uses_the_units_of_the_request(changes: dict[str, Any], wanted: dict[str, str]) -> None:
    assert get_tuned_options(request(replace(SHAPE, **changes))) == wanted


@pytest.mark.parametrize(("cpus", "wanted"), [(1, "128000M"), (2, "128000M"), (3, "64000M")])
def test_memory_per_cpu_accounts_for_two_threads_per_core(cpus: int, wanted: str) -> None:
    """Slurm allocates both threads of a core, each with its memory per CPU. The node has 256,000 MiB."""
    hungry = ResourceProfile(key="k", mem_mib_per_gpu=300_000, runs=5)
    shape = replace(SHAPE, nodes=2, max_nodes=2, tasks_per_node=1, cpus=cpus, mem_unit=MemUnit.PER_CPU, mem_mib=1000)
    assert get_tuned_options(request(shape), hungry) == {"mem-per-cpu": wanted}


def test_rounding_does_not_exceed_the_share_of_the_node() -> None:
    odd = cluster(*(node(f"n{i}", cpus=28) for i in range(8)))
    asked = request(replace(SHAPE, tasks_per_node=4, cpus=1))
    assert get_tuned_options(asked, snapshot=odd)["cpus-per-task"] == "3"


def test_cpus_are_not_tuned_with_ntasks_per_socket() -> None:
    assert get_tuned_options(request(options={"ntasks-per-socket": "1"})) == {"mem": "96000M"}


def test_nothing_is_tuned_with_both_gpus_and_gpus_per_node() -> None:
    assert get_tuned_options(request(options={"gpus": "8", "gpus-per-node": "4"})) == {}


def test_tuned_memory_respects_the_partition_limit_and_the_smallest_node() -> None:
    limit = Partition(name="gpu", default=True, max_mem_mib_per_node=90_000)
    assert get_tuned_options(request(), snapshot=replace(IDLE, partitions=(limit,)))["mem"] == "90000M"
    small = cluster(*IDLE.nodes, node("n8", mem_mib=80_000))
    assert get_tuned_options(request(), snapshot=small)["mem"] == "80000M"


def test_no_tuning_if_it_is_disabled() -> None:
    assert plan(request(), NEEDY, IDLE, (), Config(tuning=Tuning(enabled=False))).lines == (SWITCH,)


@settings(max_examples=80)
@given(
    nodes=st.integers(1, 12),
    gpus=st.integers(1, 9),
    unit=st.sampled_from(GpuUnit),
    wanted=st.integers(1, 14),
    cpus=st.one_of(st.none(), st.integers(1, 40)),
    mem=st.one_of(st.none(), st.integers(0, 300_000)),
    bad=st.lists(st.integers(0, 13), max_size=8),
    own=st.sets(st.integers(0, 13), max_size=4),
    need=st.one_of(st.none(), st.floats(0.1, 50)),
    peak=st.one_of(st.none(), st.integers(1, 400_000)),
    runs=st.integers(0, 5),
    cap=st.floats(0, 1),
)
def test_no_option_makes_a_feasible_job_infeasible(
    nodes: int, gpus: int, unit: GpuUnit, wanted: int, cpus: int | None, mem: int | None, bad: list[int],
    own: set[int], need: float | None, peak: int | None, runs: int, cap: float,
) -> None:  # fmt: skip
    snapshot = cluster(*(node(f"n{i}") for i in range(nodes)), leaf=3)
    fixed = unit in (GpuUnit.GRES, GpuUnit.PER_NODE)
    shape = replace(SHAPE, nodes=wanted, max_nodes=wanted, gpus=gpus * wanted, gpu_unit=unit)
    shape = replace(shape, gpus_per_node=gpus if fixed else None, cpus=cpus, mem_mib=mem)
    shape = replace(shape, cpu_unit=CpuUnit.NONE if cpus is None else CpuUnit.PER_TASK)
    shape = replace(shape, mem_unit=MemUnit.NONE if mem is None else MemUnit.PER_NODE)
    options = {"exclude": ",".join(f"n{i}" for i in sorted(own))} if own else {}
    profile = ResourceProfile(key="k", cpus_per_gpu=need, mem_mib_per_gpu=peak, runs=runs)
    health = tuple(suspect(f"n{i}") for i in bad)
    asked = request(shape, options)
    found = get_options(plan(asked, profile, snapshot, health, Config(placement=Placement(exclude_cap=cap))))

    def count_able_nodes(out: str, cpus_per_node: int, mem_per_node: int) -> int:
        left = [n for n in snapshot.nodes if n.name not in expand(out) and n.gpus >= gpus]
        return len([n for n in left if n.cpus >= cpus_per_node and n.mem_mib >= mem_per_node])

    before = count_able_nodes(options.get("exclude", ""), cpus or 1, mem or 0)
    asked_mem = int((found.get("mem") or f"{mem or 0}M").removesuffix("M"))
    after = count_able_nodes(
        found.get("exclude") or options.get("exclude", ""), int(found.get("cpus-per-task") or cpus or 1), asked_mem
    )
    assert after >= min(before, wanted)
