"""The placement rule of Philly on small clusters: candidate nodes now, and nodes that are unavailable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from placement_cases import cluster, node
from test_resource_units import parse_options

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, Node, NodeLoad, Partition, Reservation, Snapshot
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts


def make_plan(
    options: str, snapshot: Snapshot, profile: ResourceProfile | None = None, **outlook: Any
) -> PlacementPlan:
    return plan(parse_options(options), profile, snapshot, (), Config(), PlanningFacts(**outlook))


def make_nodes(*used: int, **changes: Any) -> list[Node]:
    return [node(f"n{at}", gpus, **changes) for at, gpus in enumerate(used)]


ONE = "--gres=gpu:1 -c1 --mem=1G"


@pytest.mark.parametrize(
    ("options", "used", "chosen"),
    [
        (ONE, (0, 0, 0, 4, 0, 0, 0, 6), ("n7",)),  # the node with the fewest free GPUs
        (ONE, (0, 8, 8, 8, 0, 0, 0, 1), ("n7",)),  # no idle node is used, even if its domain is fuller
        (ONE, (0, 8, 8, 8, 0, 0, 0, 0), ("n0",)),  # an idle node if necessary, in the fullest domain
        ("--gres=gpu:8 -c8 --mem=1G", (0, 8, 8, 8, 0, 0, 0, 4), ("n0",)),  # an idle node in the fullest domain
        ("--gres=gpu:8 -N2 -c8 --mem=1G", (0, 0, 8, 8, 0, 0, 0, 8), ("n4", "n5")),  # the emptiest domain that holds it
        # but partly used nodes come before idle nodes
        ("--gres=gpu:4 -N2 -c8 --mem=1G", (0, 0, 0, 0, 4, 4, 8, 8), ("n4", "n5")),
        # 8 + 4 GPUs fit without splitting an idle node
        ("--gpus=12 --mem-per-gpu=1G", (0, 4, 8, 8, 0, 0, 0, 0), ("n0", "n1")),
        ("--gpus=8 --mem-per-gpu=1G", (4, 4, 4, 4, 7, 8, 8, 0), ("n7",)),  # the fewest nodes first
        ("--gpus=8 --mem-per-gpu=1G", (4, 4, 7, 7, 6, 6, 6, 6), ("n0", "n1")),
        ("-n8 --gpus-per-task=1 --mem-per-gpu=1G", (4, 4, 7, 7, 6, 6, 6, 6), ("n0", "n1")),
        ("-n3 --gpus-per-task=3 --mem-per-gpu=1G", (4, 4, 8, 8, 5, 5, 5, 8), ("n4", "n5", "n6")),
        ("--gres=gpu:8 -N5 --mem=1G", (0,) * 8, ("n0", "n1", "n2", "n3", "n4")),  # no switch holds it
        ("--gres=gpu:8 -N2 --mem=1G", (0, 8, 8, 8, 8, 8, 8, 8), ()),  # all or nothing
        ("--gpus=9 --mem-per-gpu=1G", (0, 8, 8, 8, 8, 8, 8, 8), ()),
        ("--gpus=9 -N1-1 --mem-per-gpu=1G", (0,) * 8, ()),
        ("--gres=gpu:4 -N1 -c32 --mem=1G", (4, 1, 8, 8, 8, 8, 8, 0), ("n7",)),  # CPUs count too
        ("--gres=gpu:2 --mem-per-gpu=100G", (4, 1, 8, 8, 8, 8, 8, 0), ("n1",)),  # and memory
        ("--gres=gpu:1 --exclusive --mem=1G", (4, 1, 0, 8, 8, 8, 8, 8), ("n2",)),
        ("--gres=gpu:1 --mem=0", (4, 1, 0, 8, 8, 8, 8, 8), ("n2",)),
        (f"{ONE} --exclude=n0", (4, 6, 8, 8, 8, 8, 8, 8), ("n1",)),
        ("--gres=gpu:v100:1 --mem=1G", (4, 6, 8, 8, 8, 8, 8, 8), ()),
        (f"{ONE} --constraint=fast", (4, 6, 8, 8, 8, 8, 8, 8), ()),
    ],
)
def test_candidate_nodes_for_a_job_that_starts_now(
    options: str, used: tuple[int, ...], chosen: tuple[str, ...]
) -> None:
    assert make_plan(options, cluster(*make_nodes(*used))).candidates == chosen


def test_a_job_too_large_for_a_leaf_switch_stays_under_one_higher_switch() -> None:
    names = [f"n{at}" for at in range(12)]
    leaves = tuple(Switch(name=f"leaf{at}", level=0, nodes=tuple(names[2 * at : 2 * at + 2])) for at in range(6))
    rows = tuple(Switch(name=f"row{at}", level=1, nodes=tuple(names[4 * at : 4 * at + 4])) for at in range(3))
    snapshot = replace(
        cluster(*(node(name, 8 if name == "n2" else 0) for name in names)),
        topology=Topology(switches=(*leaves, *rows), source="tree"),
    )
    found = make_plan("--gres=gpu:8 -N4 --mem=1G", snapshot)
    assert (found.candidates, found.switch) == (("n4", "n5", "n6", "n7"), "row1")
    assert [(wish.option, wish.value) for wish in found.lines] == [("switches", "2@1:52")]


def test_a_node_of_greater_weight_is_avoided() -> None:
    snapshot = cluster(node("n0", 7, weight=10), node("n1", 2))
    assert make_plan(ONE, snapshot).candidates == ("n1",)


MAINTENANCE = Reservation(name="service", start=3600, end=7200, nodes=("n0",), flags=frozenset({"MAINT"}))


@pytest.mark.parametrize(
    ("options", "reservation", "chosen"),
    [
        (f"{ONE} -t30", MAINTENANCE, ("n0",)),  # ends before the reservation begins
        (f"{ONE} -t61", MAINTENANCE, ("n1",)),
        (ONE, MAINTENANCE, ("n1",)),  # no time limit
        (ONE, replace(MAINTENANCE, start=-20, end=-10), ("n0",)),  # already ended
        (ONE, replace(MAINTENANCE, cpus=4), ("n0",)),  # takes only some cores
        (ONE, replace(MAINTENANCE, cpus=32), ("n1",)),
        (f"{ONE} --reservation=service", MAINTENANCE, ()),  # the user chose the reservation: no candidates
    ],
)
def test_a_node_is_unavailable_if_a_reservation_begins_before_the_job_ends(
    options: str, reservation: Reservation, chosen: tuple[str, ...]
) -> None:
    snapshot = replace(cluster(*make_nodes(6, 2)), reservations=(reservation,))
    assert make_plan(options, snapshot).candidates == chosen


def test_a_job_of_several_partitions_uses_nodes_of_only_one() -> None:
    left, right = node("n0", partitions=("a",)), node("n1", partitions=("b",))
    assert make_plan("--gres=gpu:8 -N2 --mem=1G -p a,b", make_partitions(left, right)).candidates == ()
    both = node("n2", partitions=("a", "b"))
    assert make_plan("--gres=gpu:8 -N2 --mem=1G -p a,b", make_partitions(left, right, both)).candidates == ("n0", "n2")


def make_partitions(*members: Node, **changes: Any) -> Snapshot:
    partitions = (Partition(name="a", **changes), Partition(name="b"))
    return replace(cluster(*members), partitions=partitions)


def test_no_candidates_in_a_partition_that_is_down_or_a_used_node_of_an_exclusive_one() -> None:
    busy = node("n0", 4, partitions=("a",))
    assert make_plan(f"{ONE} -p a", make_partitions(busy)).candidates == ("n0",)
    assert make_plan(f"{ONE} -p a", make_partitions(busy, state="DOWN")).candidates == ()
    assert make_plan(f"{ONE} -p a", make_partitions(busy, exclusive=True)).candidates == ()


HUNGRY = ResourceProfile(key="k", cpus_per_gpu=8.0, runs=3)


def test_a_job_that_needs_cpus_gets_the_node_with_free_cpus() -> None:
    snapshot = cluster(node("n0", 4, cpus_alloc=20), node("n1", 4, cpus_alloc=4))
    assert make_plan("--gres=gpu:1 -c8 --mem=32000", snapshot).candidates == ("n1",)
    assert make_plan("--gres=gpu:1 -c1 --mem=32000", snapshot).candidates == ("n0",)


def test_a_job_with_busy_cpus_avoids_nodes_with_busy_cpus() -> None:
    snapshot = cluster(*make_nodes(4, 4))
    loads = {name: NodeLoad(node=name, cpus_busy=busy) for name, busy in (("n0", 16.0), ("n1", 1.0))}
    assert make_plan("--gres=gpu:1 -c8 --mem=32000", snapshot, HUNGRY).candidates == ("n0",)
    assert make_plan("--gres=gpu:1 -c8 --mem=32000", snapshot, HUNGRY, loads=loads).candidates == ("n1",)


def test_a_sensitive_job_avoids_busy_cpus_if_the_sites_runs_prove_what_they_cost() -> None:
    snapshot = cluster(node("n0", 4, cpus_alloc=10), node("n1", 4, cpus_alloc=16))
    loads = {"n0": NodeLoad(node="n0", cpus_busy=12.0)}
    asked = "--gres=gpu:1 -c8 --mem=32000"
    sensitive = replace(HUNGRY, sensitivity={"cpu": 1.4})
    proved = ContentionWeights(cpus=4.0, pairs=50)
    for profile, weights in ((HUNGRY, proved), (sensitive, NO_EVIDENCE)):
        assert make_plan(asked, snapshot, profile, loads=loads, contention=weights).candidates == ("n0",)
    assert make_plan(asked, snapshot, sensitive, loads=loads, contention=proved).candidates == ("n1",)


def test_gpus_of_one_socket_are_preferred_if_slurm_reports_the_sockets() -> None:
    sockets = (0, 0, 0, 0, 1, 1, 1, 1)
    apart = node("n0", 4, gpu_sockets=sockets, gpus_used_at=(0, 1, 4, 5))
    beside = node("n1", 4, gpu_sockets=sockets, gpus_used_at=(0, 1, 2, 3))
    found = make_plan("--gres=gpu:4 -c16 --mem=100G", cluster(apart, beside))
    assert found.candidates == ("n1",)
    assert "its 4 GPUs can lie on one socket of n1" in found.remarks
