"""Fragmentation: enough GPUs are free, but not in the shape that the job needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import job, node

from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.placement.fragmentation import is_scattered
from slurmwrap.sbatch.job_request import GpuUnit, ResourceShape

PER_NODE = ResourceShape(gpus=4, gpus_per_node=4, gpu_unit=GpuUnit.GRES)
ANYHOW = ResourceShape(gpus=4, gpu_unit=GpuUnit.GPUS)
WAITS = replace(
    job(81, state="PENDING", reason="Resources", nodes=(), gpus=4, num_nodes=1, mem_mib_per_node=1000),
    max_nodes=1,
    min_cpus=4,
)
TREE = Topology(
    switches=(
        Switch(name="ib0", level=0, nodes=("n0", "n1")),
        Switch(name="ib1", level=0, nodes=("n2", "n3")),
        Switch(name="core", level=1, nodes=("n0", "n1", "n2", "n3"), children=("ib0", "ib1")),
    ),
    source="tree",
)


def make_cluster_with_free_gpus(*gpus: int, **changes: object) -> Snapshot:
    """n0, n1, …, each with its number of free GPUs."""
    nodes: tuple[Node, ...] = tuple(node(f"n{i}", gpus_used=8 - count, **changes) for i, count in enumerate(gpus))
    return Snapshot(taken_at=0.0, nodes=nodes, topology=TREE)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [((0, 0), False), ((3, 0), False), ((2, 2), True), ((3, 1), True), ((4, 0), False), ((8, 8), False)],
)
def test_fragmentation_is_enough_free_gpus_but_not_on_one_node(gpus: tuple[int, ...], expected: bool) -> None:
    assert is_scattered(WAITS, PER_NODE, make_cluster_with_free_gpus(*gpus)) is expected


@pytest.mark.parametrize(
    ("changes", "shape", "expected"),
    [
        ({"num_nodes": 2, "max_nodes": 2}, replace(PER_NODE, gpus_per_node=2), False),
        ({"num_nodes": 2, "max_nodes": 2, "gpus": 6}, PER_NODE, True),  # 3 and 3
        ({"max_nodes": 1}, ANYHOW, True),
        ({"max_nodes": 2}, ANYHOW, False),
        ({"max_nodes": 0}, ANYHOW, False),
        ({"max_nodes": 2, "exc_nodes": "n[0-1]"}, ANYHOW, True),
        ({"max_nodes": 2, "req_nodes": "n3"}, ANYHOW, True),
        ({"max_nodes": 2, "features": "b200"}, ANYHOW, True),
        ({"max_nodes": 2, "mem_mib_per_node": 999_999}, ANYHOW, True),
        ({"max_nodes": 2, "min_cpus": 99}, ANYHOW, True),
        ({"partition": "other"}, ANYHOW, False),
        ({"gpus": 0}, ANYHOW, False),
    ],
)
def test_request_shape_node_lists_and_sizes_decide_fragmentation(
    changes: dict, shape: ResourceShape, expected: bool
) -> None:
    record: JobRecord = replace(WAITS, **changes)
    assert is_scattered(record, shape, make_cluster_with_free_gpus(2, 2, 0, 2)) is expected


def test_gpus_of_another_type_or_of_drained_nodes_do_not_count() -> None:
    assert not is_scattered(WAITS, replace(PER_NODE, gpu_type="h100"), make_cluster_with_free_gpus(2, 2))
    assert not is_scattered(WAITS, PER_NODE, make_cluster_with_free_gpus(2, 2, flags=frozenset({"DRAIN"})))


def test_fragmentation_across_switches_counts_if_one_domain_is_required() -> None:
    two = replace(WAITS, num_nodes=2, max_nodes=2)
    shape = replace(PER_NODE, gpus_per_node=2)
    assert is_scattered(two, shape, make_cluster_with_free_gpus(2, 0, 2, 0), one_domain=True)
    assert not is_scattered(two, shape, make_cluster_with_free_gpus(2, 0, 2, 0))
    assert not is_scattered(two, shape, make_cluster_with_free_gpus(0, 0, 2, 2), one_domain=True)
