"""Placement options and their relaxation levels.

The options depend on the topology, and on whether a reconciler can relax them later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from placement_cases import cluster, node
from test_resource_units import parse_options

from slurmwrap.config.load_config import Config, Placement
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.topology import Domain, Topology
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.slurm.scontrol_parser import parse_nodes, parse_partitions
from slurmwrap.slurm.snapshot import parse_topology

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"
SKEWED, EVEN = (ResourceProfile(key="k", skew=skew) for skew in (0.72, 0.05))
USER, DEFAULT = PlanningFacts(), Config()
SITE = PlanningFacts(relaxing=True, starts_now=True)
LATER = PlanningFacts(relaxing=True)
TREE = cluster(*(node(f"n{at}", 6 if at == 7 else 0) for at in range(8)))
RACKS = tuple(Domain(name=f"rack{at}", nodes=tuple(f"n{i}" for i in range(4 * at, 4 * at + 4))) for at in range(2))
BY_FEATURES = replace(TREE, topology=Topology(racks=RACKS, source="features"))
TWO = "-N2 --gres=gpu:8 -c8 --mem=1G"
OPEN = "--gpus=16 --mem-per-gpu=1G"


def make_plan(
    options: str,
    profile: ResourceProfile | None = None,
    snapshot: Snapshot = TREE,
    outlook: PlanningFacts = USER,
    config: Config = DEFAULT,
    before: PlacementPlan | None = None,
) -> PlacementPlan:
    return plan(parse_options(options), profile, snapshot, (), config, outlook, before)


def get_options(found: PlacementPlan) -> Mapping[str, str | None]:
    return {wish.option: wish.value for wish in found.lines}


@pytest.mark.parametrize(
    ("options", "profile", "snapshot", "outlook", "wanted"),
    [
        (TWO, None, TREE, USER, {"switches": "1@1:15"}),
        (TWO, SKEWED, TREE, USER, {"switches": "1@2:00"}),
        (TWO, EVEN, TREE, USER, {}),
        (TWO, SKEWED, TREE, LATER, {"switches": "1@2:00"}),
        (TWO, SKEWED, TREE, SITE, {"nodelist": "n[0-1]", "switches": "1@2:00"}),
        (OPEN, SKEWED, TREE, USER, {}),  # user mode sets no hard constraint
        (OPEN, SKEWED, TREE, LATER, {"nodes": "2", "switches": "1@2:00"}),
        (OPEN, EVEN, TREE, SITE, {}),
        ("-n4 --gpus-per-task=4 --mem-per-gpu=1G", SKEWED, TREE, LATER, {"nodes": "2", "switches": "1@2:00"}),
        (OPEN, SKEWED, TREE, SITE, {"nodelist": "n[0-1]", "nodes": "2", "switches": "1@2:00"}),
        ("--gpus=4 --mem-per-gpu=1G", SKEWED, TREE, SITE, {"nodelist": "n4", "nodes": "1"}),
        (TWO, None, BY_FEATURES, USER, {"prefer": "[rack0|rack1]"}),
        (TWO, EVEN, BY_FEATURES, USER, {"prefer": "[rack0|rack1]"}),
        (TWO, SKEWED, BY_FEATURES, USER, {"prefer": "[rack0|rack1]"}),
        (TWO, SKEWED, BY_FEATURES, LATER, {"constraint": "[rack0|rack1]"}),
        (f"{TWO} --constraint=a100", SKEWED, BY_FEATURES, LATER, {}),
        ("-N5 --gres=gpu:1 --mem=1G", SKEWED, BY_FEATURES, LATER, {}),
        (TWO, SKEWED, replace(TREE, topology=Topology(racks=RACKS, source="file")), LATER, {}),
        (TWO, SKEWED, replace(TREE, topology=Topology()), LATER, {}),
    ],
)
def test_options_by_request_profile_topology_and_mode(
    options: str,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    outlook: PlanningFacts,
    wanted: Mapping[str, str],
) -> None:
    assert get_options(make_plan(options, profile, snapshot, outlook)) == wanted


ONE = "--gres=gpu:1 -c1 --mem=1G"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ONE, ""),
        (f"{ONE} --array=1-4", "tasks of an array would all want the same nodes"),
        ("--gres=gpu:1 -c1", "what it needs on a node is not known for certain"),
        ("--gpus=2 --mem-per-gpu=1G", "its number of nodes is open"),
        (f"{ONE} -N1-2", "its number of nodes is open"),
        (f"{ONE} --prefer=x", "you prefer some nodes yourself"),
    ],
)
def test_a_node_list_is_set_only_if_the_job_would_start_on_these_nodes_at_once(options: str, why: str) -> None:
    found = make_plan(options, outlook=SITE)
    assert get_options(found).get("nodelist") == (None if why else "n7")
    assert not why or f"not tied to n7: {why}" in found.remarks


@pytest.mark.parametrize("outlook", [USER, PlanningFacts(starts_now=True), LATER])
def test_no_node_list_without_a_reconciler_or_if_the_job_cannot_start_now(outlook: PlanningFacts) -> None:
    assert "nodelist" not in get_options(make_plan(ONE, outlook=outlook))


@pytest.mark.parametrize(
    ("options", "release", "wanted"),
    [
        ("--gpus=4 --ntasks-per-node=2", (22, 5), "n[4,7]"),
        ("--gpus=4 --ntasks-per-node=2", (24, 11), None),
        ("--gpus=4 --ntasks-per-node=2", (26, 5), None),
        ("--gpus=4 --ntasks-per-node=2", None, None),
        ("--gpus=4 --ntasks-per-node=3", (24, 11), "n[4,7]"),  # six tasks share four GPUs
        ("--gpus-per-node=2 --ntasks-per-node=2", (24, 11), "n[4,7]"),
    ],
)
def test_no_node_list_with_options_that_slurm_refuses_with_any_node_list(
    options: str, release: tuple[int, int] | None, wanted: str | None
) -> None:
    found = make_plan(f"-N2 {options} --mem=1G -c1", snapshot=replace(TREE, release=release), outlook=SITE)
    assert get_options(found).get("nodelist") == wanted
    why = "not tied to n[4,7]: Slurm refuses any list of nodes with this --gpus and --ntasks-per-node"
    assert (why in found.remarks) is (wanted is None)


def test_no_node_list_for_a_node_that_backfill_planned_for_another_job() -> None:
    taken = replace(TREE.nodes[7], flags=frozenset({"PLANNED"}))
    assert "nodelist" not in get_options(make_plan(ONE, snapshot=cluster(*TREE.nodes[:7], taken), outlook=SITE))


def test_no_node_list_unless_all_partitions_of_the_job_contain_the_node() -> None:
    both = replace(TREE.nodes[7], partitions=("gpu", "small"))
    partitions = (Partition(name="gpu"), Partition(name="small"))
    for snapshot, wanted in ((TREE, None), (cluster(*TREE.nodes[:7], both), "n7")):
        found = make_plan(f"{ONE} -p gpu,small", snapshot=replace(snapshot, partitions=partitions), outlook=SITE)
        assert get_options(found).get("nodelist") == wanted


def test_no_node_list_if_disabled_or_if_only_one_node_exists() -> None:
    off = Config(placement=Placement(pin_s=0))
    assert "nodelist" not in get_options(make_plan(ONE, outlook=SITE, config=off))
    assert "nodelist" not in get_options(make_plan(ONE, snapshot=cluster(TREE.nodes[7]), outlook=SITE))


def test_levels_have_increasing_deadlines_and_each_relaxes_one_option() -> None:
    raised = ResourceProfile(key="k", skew=0.72, cpus_per_gpu=2.0, mem_mib_per_gpu=4000)
    assert make_plan(TWO, raised, TREE, SITE).levels == (
        Level(name="these nodes", wait_s=60),
        Level(
            name="one switch",
            wait_s=180,
            updates=(("ReqNodeList", ""),),
            reason="n[0-1] did not come free in time",
        ),
        Level(
            name="any",
            wait_s=480,
            updates=(("Switches", "0"),),
            reason="one switch did not come free in time",
        ),
        Level(
            name="CPUs and memory as asked",
            wait_s=0,
            updates=(("MinMemoryNode", "1024"), ("CPUsPerTask", "8"), ("MinCPUsNode", "8")),
            reason="more CPUs or memory than asked did not come free",
        ),
    )


def test_the_number_of_nodes_is_relaxed_before_the_topology_domain() -> None:
    found = make_plan(OPEN, SKEWED, BY_FEATURES, LATER).levels
    assert [(level.name, level.wait_s, level.updates) for level in found] == [
        ("fewest nodes, one rack", 120, ()),
        ("one rack", 240, (("NumNodes", "2-8"),)),
        ("any", 0, (("Features", ""),)),
    ]


def test_a_second_plan_keeps_the_options_of_the_submitted_job() -> None:
    first = make_plan(OPEN, SKEWED, BY_FEATURES, LATER)
    again = make_plan(OPEN, EVEN, BY_FEATURES, SITE, before=first)
    assert get_options(again) == {"nodelist": "n[0-1]", "nodes": "2", "constraint": "[rack0|rack1]"}
    updates = [(), (("ReqNodeList", ""),), (("NumNodes", "2-8"),), (("Features", ""),)]
    assert [level.updates for level in again.levels] == updates


def test_the_wait_is_cut_to_max_switch_wait_and_the_reason_says_so() -> None:
    (wish,) = make_plan(TWO, SKEWED, replace(TREE, max_switch_wait_s=30)).lines
    assert wish.value == "1@0:30"
    assert wish.reason.endswith("Slurm waits up to 30 s, its max_switch_wait, for 120 s would be due")


# ------------------------------------------------------------------------------------------- topology/block


def blocks(release: str, *busy: int) -> Snapshot:
    """The captured cluster: b1 = n[0-3], b2 = n[4-7], b3 = n[8-11], 4 GPUs per node. The nodes in `busy` are full."""
    folder = CAPTURES / release / "block"
    found = parse_nodes((folder / "nodes.txt").read_text())
    partitions = parse_partitions((folder / "partitions.txt").read_text())
    number = tuple(int(part) for part in release.split("."))
    return Snapshot(
        taken_at=0,
        nodes=tuple(_make_full(n) if int(n.name[1:]) in busy else _make_idle(n) for n in found),
        topology=parse_topology((folder / "topology.txt").read_text()),
        default_partition=next(p.name for p in partitions if p.default),
        partitions=partitions,
        release=(number[0], number[1]),
    )


def _make_idle(base: Node) -> Node:
    return replace(base, state="IDLE", flags=frozenset(), cpus_alloc=0, mem_alloc_mib=0, gpus_used=0, gpus_used_at=())


def _make_full(base: Node) -> Node:
    return replace(_make_idle(base), state="ALLOCATED", gpus_used=base.gpus, cpus_alloc=base.cpus)


FOUR = "-N4 --gpus-per-node=1 -c1 --mem=100"


@pytest.mark.parametrize("release", ["24.11", "26.05"])
@pytest.mark.parametrize(
    ("options", "profile", "busy", "segment", "remark"),
    [
        (FOUR, EVEN, (), None, "b1 has room now"),
        (FOUR, EVEN, (0, 4, 8), "2", ""),  # three blocks have room for three nodes each
        # too few free nodes in the whole cluster
        (FOUR, EVEN, (0, 1, 2, 4, 5, 6, 8, 9, 10), None, "cannot be cut into segments"),
        (FOUR, EVEN, (0, 1, 4, 5, 8, 9), "2", ""),
        (FOUR, EVEN, (0, 1, 2, 4, 5, 6, 8), "1", ""),
        # it waits for one block, as Slurm does by default
        (FOUR, SKEWED, (0, 4, 8), None, "its largest tensor is 72 % of the model, above 30 %"),
        ("-N6 --gpus-per-node=1 -c1 --mem=100", EVEN, (), None, "b[1-2] has room now"),
        ("-N6 --gpus-per-node=1 -c1 --mem=100", EVEN, (0, 1, 4), "3", ""),
        ("-N9 --gpus-per-node=1 -c1 --mem=100", SKEWED, (), "3", ""),  # without segments Slurm refuses the job
        ("-N2-4 --gpus-per-node=1 -c1 --mem=100", EVEN, (0, 4, 8), None, "only a fixed number of nodes"),
        (f"{FOUR} --segment=1", EVEN, (0, 4, 8), None, "you ask for segments yourself"),
    ],
)
def test_segments_are_set_only_if_no_block_has_room_for_the_job(
    release: str, options: str, profile: ResourceProfile, busy: tuple[int, ...], segment: str | None, remark: str
) -> None:
    found = make_plan(options, profile, blocks(release, *busy))
    assert get_options(found) == ({"segment": segment} if segment else {})
    assert any(remark in text for text in found.remarks)


def test_no_segments_on_a_slurm_release_without_them() -> None:
    old = replace(blocks("24.11", 0, 4, 8), release=(23, 11))
    assert get_options(make_plan(FOUR, EVEN, old)) == {}


def test_no_segments_in_a_partition_with_its_own_topology() -> None:
    own = tuple(replace(partition, topology="own") for partition in blocks("26.05").partitions)
    assert get_options(make_plan(FOUR, EVEN, replace(blocks("26.05", 0, 4, 8), partitions=own))) == {}


def test_no_node_list_in_a_partition_with_its_own_topology() -> None:
    idle = blocks("26.05")
    own = replace(idle, partitions=tuple(replace(partition, topology="own") for partition in idle.partitions))
    two = "-N2 --gpus-per-node=1 -c1 --mem=100"
    assert "nodelist" in get_options(make_plan(two, EVEN, idle, outlook=SITE))
    assert get_options(make_plan(two, EVEN, own, outlook=SITE)) == {}
