"""Requests that the cluster can or cannot satisfy."""

from __future__ import annotations

import pytest

from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.impossible_requests import find_impossible_requests
from slurmwrap.sbatch.job_request import (
    CpuUnit,
    GpuUnit,
    JobRequest,
    MemUnit,
    Origin,
    ResourceShape,
    SbatchSetting,
    Script,
)

NODES = tuple(
    Node(name=f"n{i}", state="IDLE", cpus=64, mem_mib=512_000, gpus=4, gpu_type="a100", partitions=("gpu",))
    for i in range(3)
)
FAT = Node(name="fat", state="DOWN", cpus=128, mem_mib=2_000_000, partitions=("cpu",))
SNAPSHOT = Snapshot(
    taken_at=0,
    nodes=(*NODES, FAT),
    default_partition="gpu",
    partitions=(Partition(name="gpu", default=True, max_nodes=2, max_time_s=86400), Partition(name="cpu")),
)


def list_findings(shape: ResourceShape, *settings: SbatchSetting) -> list[tuple[str, str]]:
    request = JobRequest(script=Script(path="j", name="j", content=b""), shape=shape, settings=settings)
    return [(f.message, f.fix) for f in find_impossible_requests(request, SNAPSHOT, "j")]


def make_partition_setting(name: str) -> SbatchSetting:
    return SbatchSetting(option="partition", value=name, origin=Origin.SCRIPT, where="j:2", line=2)


@pytest.mark.parametrize(
    "shape",
    [
        ResourceShape(),
        ResourceShape(nodes=2, gpus=8, gpus_per_node=4, gpu_unit=GpuUnit.GRES, gpu_type="a100"),
        ResourceShape(gpus=12, gpu_unit=GpuUnit.GPUS),
        ResourceShape(
            cpus=16, cpu_unit=CpuUnit.PER_TASK, tasks=4, tasks_per_node=4, mem_mib=0, mem_unit=MemUnit.PER_NODE
        ),
        ResourceShape(time_limit_s=86400),
        ResourceShape(tasks=100, cpus=1, cpu_unit=CpuUnit.PER_TASK),
    ],
)
def test_a_request_that_can_be_satisfied_has_no_finding(shape: ResourceShape) -> None:
    assert list_findings(shape) == []


@pytest.mark.parametrize(
    ("shape", "message", "fix"),
    [
        (
            ResourceShape(gpus=8, gpus_per_node=8, gpu_unit=GpuUnit.GRES),
            "8 GPUs on one node: the largest has 4",
            "ask for 2 nodes with 4 each",
        ),
        (
            ResourceShape(gpus=1, gpu_type="a10", gpu_unit=GpuUnit.GPUS),
            "no node has GPUs of type a10",
            "available: a100; did you mean a100?",
        ),
        (ResourceShape(gpus=13, gpu_unit=GpuUnit.GPUS), "13 GPUs: all nodes have 12", "ask for fewer"),
        (
            ResourceShape(cpus=65, cpu_unit=CpuUnit.PER_TASK),
            "65 CPUs on one node: the largest has 64",
            "ask for at most 64 on a node",
        ),
        (
            ResourceShape(mem_mib=600_000, mem_unit=MemUnit.PER_NODE),
            "600000 MiB of memory on one node: the largest has 512000",
            "--mem=512000 is the most",
        ),
        (ResourceShape(nodes=4), "4 nodes: the partition has 3", "ask for at most 3"),
        (ResourceShape(nodes=3), "3 nodes: the partition allows 2; the job would wait for ever", "--nodes=2"),
        (
            ResourceShape(time_limit_s=2 * 86400 + 60),
            "time limit 2-00:01:00: the partition allows 1-00:00:00; the job would wait for ever",
            "--time=1-00:00:00",
        ),
    ],
)
def test_a_request_that_cannot_be_satisfied_has_a_finding_with_a_possible_value(
    shape: ResourceShape, message: str, fix: str
) -> None:
    assert list_findings(shape) == [(message, fix)]


def test_a_partition_without_gpus_and_an_unknown_partition_have_a_finding() -> None:
    assert list_findings(ResourceShape(gpus=1), make_partition_setting("cpu")) == [
        ("no node of this partition has GPUs", "choose a partition with GPUs")
    ]
    assert list_findings(ResourceShape(), make_partition_setting("gpuu")) == [
        ("there is no partition gpuu", "did you mean gpu?")
    ]


def test_one_suitable_partition_of_several_is_enough() -> None:
    assert list_findings(ResourceShape(nodes=3, time_limit_s=10 * 86400), make_partition_setting("gpu,cpu")) == []


def test_a_finding_has_the_line_of_the_option() -> None:
    script = Script(path="j", name="j", content=b"")
    request = JobRequest(script=script, settings=(make_partition_setting("gpuu"),))
    (finding,) = find_impossible_requests(request, SNAPSHOT, "j")
    assert finding == Finding(
        severity=Severity.WARNING, message="there is no partition gpuu", file="j", line=2, fix="did you mean gpu?"
    )
