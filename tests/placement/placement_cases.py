"""Requests and clusters for the placement tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurmwrap.model.cluster import Node, NodeHealth, Snapshot
from slurmwrap.model.topology import Switch, Topology
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

SHAPE = ResourceShape(
    nodes=2,
    max_nodes=2,
    tasks_per_node=1,
    gpus=8,
    gpus_per_node=4,
    gpu_unit=GpuUnit.GRES,
    cpus=8,
    cpu_unit=CpuUnit.PER_TASK,
    mem_mib=64000,
    mem_unit=MemUnit.PER_NODE,
)
ONE_GPU = replace(SHAPE, nodes=1, max_nodes=1, gpus=1, gpus_per_node=1)


def request(shape: ResourceShape = SHAPE, options: Mapping[str, str] | None = None) -> JobRequest:
    """A job of `shape`; `options` by long name, as if from the command line."""
    settings = tuple(
        SbatchSetting(option=option, value=value, origin=Origin.COMMAND_LINE, where="command line")
        for option, value in (options or {}).items()
    )
    script = Script(path="train.sbatch", name="train.sbatch", content=b"#!/bin/sh\nsrun python train.py\n")
    return JobRequest(script=script, shape=shape, settings=settings, chdir="/home/a")


def node(name: str, used: int = 0, **changes: object) -> Node:
    """A node of 8 GPUs, 32 CPUs and 256,000 MiB in partition gpu. `used` GPUs are used, with a share of the rest."""
    plain = Node(
        name=name,
        state="MIXED" if used else "IDLE",
        cpus=32,
        cpus_alloc=4 * used,
        mem_mib=256_000,
        mem_alloc_mib=32_000 * used,
        gpus=8,
        gpus_used=used,
        gpu_type="a100",
        partitions=("gpu",),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def cluster(*nodes: Node, leaf: int = 4) -> Snapshot:
    """`leaf` nodes under each switch, in the order given."""
    names = [n.name for n in nodes]
    leaves = [tuple(names[at : at + leaf]) for at in range(0, len(names), leaf)]
    switches = tuple(Switch(name=f"ib{i}", level=0, nodes=members) for i, members in enumerate(leaves))
    return Snapshot(
        taken_at=0, nodes=nodes, topology=Topology(switches=switches, source="tree"), default_partition="gpu"
    )


IDLE = cluster(*(node(f"n{i}") for i in range(8)))


def suspect(name: str, since: float = 1.0, status: str = "suspect") -> NodeHealth:
    return NodeHealth(node=name, status=status, since=since, reason="2 strikes: Xid 79")
