"""Philly's rule on small clusters: where a job would go now, and which nodes it cannot have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from placement_cases import cluster, node
from test_resource_units import asked

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Node, NodeLoad, Partition, Reservation, Snapshot
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts


def placed(options: str, snapshot: Snapshot, profile: ResourceProfile | None = None, **outlook: Any) -> PlacementPlan:
    return plan(asked(options), profile, snapshot, (), Config(), PlanningFacts(**outlook))


def nodes(*used: int, **changes: Any) -> list[Node]:
    return [node(f"n{at}", gpus, **changes) for at, gpus in enumerate(used)]


ONE = "--gres=gpu:1 -c1 --mem=1G"


@pytest.mark.parametrize(
    ("options", "used", "chosen"),
    [
        (ONE, (0, 0, 0, 4, 0, 0, 0, 6), ("n7",)),  # the smallest fragment of all
        (ONE, (0, 8, 8, 8, 0, 0, 0, 1), ("n7",)),  # no idle node is broken, even where its domain is fuller
        (ONE, (0, 8, 8, 8, 0, 0, 0, 0), ("n0",)),  # if one must be, then in the fullest domain
        ("--gres=gpu:8 -c8 --mem=1G", (0, 8, 8, 8, 0, 0, 0, 4), ("n0",)),  # a whole one, in the fullest domain
        ("--gres=gpu:8 -N2 -c8 --mem=1G", (0, 0, 8, 8, 0, 0, 0, 8), ("n4", "n5")),  # the emptiest domain that holds it
        ("--gres=gpu:4 -N2 -c8 --mem=1G", (0, 0, 0, 0, 4, 4, 8, 8), ("n4", "n5")),  # but no whole nodes broken
        ("--gpus=12 --mem-per-gpu=1G", (0, 4, 8, 8, 0, 0, 0, 0), ("n0", "n1")),  # 8 + 4 fit without a broken node
        ("--gpus=8 --mem-per-gpu=1G", (4, 4, 4, 4, 7, 8, 8, 0), ("n7",)),  # fewest servers first
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
def test_place_now(options: str, used: tuple[int, ...], chosen: tuple[str, ...]) -> None:
    assert placed(options, cluster(*nodes(*used))).candidates == chosen


def test_job_beyond_a_leaf_lies_within_the_next_level_that_holds_it() -> None:
    names = [f"n{at}" for at in range(12)]
    leaves = tuple(Switch(name=f"leaf{at}", level=0, nodes=tuple(names[2 * at : 2 * at + 2])) for at in range(6))
    rows = tuple(Switch(name=f"row{at}", level=1, nodes=tuple(names[4 * at : 4 * at + 4])) for at in range(3))
    snapshot = replace(
        cluster(*(node(name, 8 if name == "n2" else 0) for name in names)),
        topology=Topology(switches=(*leaves, *rows), source="tree"),
    )
    found = placed("--gres=gpu:8 -N4 --mem=1G", snapshot)
    assert (found.candidates, found.switch) == (("n4", "n5", "n6", "n7"), "row1")
    assert [(wish.option, wish.value) for wish in found.lines] == [("switches", "2@1:52")]


def test_node_of_greater_weight_is_spared() -> None:
    snapshot = cluster(node("n0", 7, weight=10), node("n1", 2))
    assert placed(ONE, snapshot).candidates == ("n1",)


MAINTENANCE = Reservation(name="service", start=3600, end=7200, nodes=("n0",), flags=frozenset({"MAINT"}))


@pytest.mark.parametrize(
    ("options", "reservation", "chosen"),
    [
        (f"{ONE} -t30", MAINTENANCE, ("n0",)),  # ends before it begins
        (f"{ONE} -t61", MAINTENANCE, ("n1",)),
        (ONE, MAINTENANCE, ("n1",)),  # no limit at all
        (ONE, replace(MAINTENANCE, start=-20, end=-10), ("n0",)),  # over
        (ONE, replace(MAINTENANCE, cpus=4), ("n0",)),  # takes only some cores
        (ONE, replace(MAINTENANCE, cpus=32), ("n1",)),
        (f"{ONE} --reservation=service", MAINTENANCE, ()),  # the user picks: nothing is said
    ],
)
def test_reservation_takes_the_node_if_it_begins_before_the_job_would_end(
    options: str, reservation: Reservation, chosen: tuple[str, ...]
) -> None:
    snapshot = replace(cluster(*nodes(6, 2)), reservations=(reservation,))
    assert placed(options, snapshot).candidates == chosen


def test_job_lies_in_one_of_its_partitions_and_not_in_two() -> None:
    left, right = node("n0", partitions=("a",)), node("n1", partitions=("b",))
    assert placed("--gres=gpu:8 -N2 --mem=1G -p a,b", partitioned(left, right)).candidates == ()
    both = node("n2", partitions=("a", "b"))
    assert placed("--gres=gpu:8 -N2 --mem=1G -p a,b", partitioned(left, right, both)).candidates == ("n0", "n2")


def partitioned(*members: Node, **changes: Any) -> Snapshot:
    partitions = (Partition(name="a", **changes), Partition(name="b"))
    return replace(cluster(*members), partitions=partitions)


def test_partition_that_is_down_or_exclusive_takes_nothing_beside_others() -> None:
    busy = node("n0", 4, partitions=("a",))
    assert placed(f"{ONE} -p a", partitioned(busy)).candidates == ("n0",)
    assert placed(f"{ONE} -p a", partitioned(busy, state="DOWN")).candidates == ()
    assert placed(f"{ONE} -p a", partitioned(busy, exclusive=True)).candidates == ()


HUNGRY = ResourceProfile(key="k", cpus_per_gpu=8.0, runs=3)


def test_job_that_needs_cpus_goes_where_light_jobs_left_them() -> None:
    snapshot = cluster(node("n0", 4, cpus_alloc=20), node("n1", 4, cpus_alloc=4))
    assert placed("--gres=gpu:1 -c8 --mem=32000", snapshot).candidates == ("n1",)
    assert placed("--gres=gpu:1 -c1 --mem=32000", snapshot).candidates == ("n0",)


def test_job_that_keeps_cpus_busy_goes_apart_from_its_like() -> None:
    snapshot = cluster(*nodes(4, 4))
    loads = {name: NodeLoad(node=name, cpus_busy=busy) for name, busy in (("n0", 16.0), ("n1", 1.0))}
    assert placed("--gres=gpu:1 -c8 --mem=32000", snapshot, HUNGRY).candidates == ("n0",)
    assert placed("--gres=gpu:1 -c8 --mem=32000", snapshot, HUNGRY, loads=loads).candidates == ("n1",)


def test_gpus_of_one_socket_are_preferred_where_slurm_says_which() -> None:
    sockets = (0, 0, 0, 0, 1, 1, 1, 1)
    apart = node("n0", 4, gpu_sockets=sockets, gpus_used_at=(0, 1, 4, 5))
    beside = node("n1", 4, gpu_sockets=sockets, gpus_used_at=(0, 1, 2, 3))
    found = placed("--gres=gpu:4 -c16 --mem=100G", cluster(apart, beside))
    assert found.candidates == ("n1",)
    assert "its 4 GPUs can lie on one socket of n1" in found.remarks
