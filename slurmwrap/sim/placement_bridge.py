"""Bridge from simulated clusters to production's placement: the same plan(), on simulated snapshots.

The mode slurm asks plan() what gsub would ask of Slurm for a job. (In rounds there is no Slurm: there the rules are
Tiresias's and Synergy's own, consolidate.py and the mechanisms.) Only what plan() looks at is simulated: a JobRequest
as a user would have written it, and a Snapshot of nodes with what is free on them. CPUs and memory are tuned elsewhere
(engines/sim_tuner.py), so tuning is switched off for plan().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from slurmwrap.config.load_config import Config, Tuning
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Node, NodeHealth, Partition, Snapshot
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.placement.demand import Server
from slurmwrap.placement.plan_placement import plan as plan
from slurmwrap.placement.slurm_options import PlanningFacts
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
from slurmwrap.sim.arrays import Floats, Ints

# Partition of jobs that name none of the simulated partitions.
ANYWHERE = "all"
CONFIG = Config(tuning=Tuning(enabled=False))
# A site's reconciler relaxes pending jobs, and the job is eligible at once.
AT_ONCE = PlanningFacts(relaxing=True, starts_now=True)
_SCRIPT = Script(path=None, name="simulated", content=b"")
_ROUNDING = 1e-6


def make_sim_request(
    gpus: int,
    nodes: int | None,
    cpus: float,
    mem_mib: float,
    *,
    limit_s: float | None = None,
    partition: str = ANYWHERE,
) -> JobRequest:
    """Return the request as a user would write it. `cpus` and `mem_mib` per GPU.

    `nodes` None: `--gpus`, with CPUs and memory per GPU.
    """
    limit = None if limit_s is None else int(limit_s)
    if nodes is None or gpus % nodes:
        shape = ResourceShape(
            nodes=nodes, max_nodes=nodes, gpus=gpus, gpu_unit=GpuUnit.GPUS, cpus=max(1, int(cpus)),
            cpu_unit=CpuUnit.PER_GPU, mem_mib=int(mem_mib), mem_unit=MemUnit.PER_GPU, time_limit_s=limit,
        )  # fmt: skip
    else:
        gpus_per_node = gpus // nodes
        shape = ResourceShape(
            nodes=nodes, max_nodes=nodes, gpus=gpus, gpus_per_node=gpus_per_node, gpu_unit=GpuUnit.GRES,
            cpus=max(1, ceil(cpus * gpus_per_node - _ROUNDING)), cpu_unit=CpuUnit.PER_TASK,
            mem_mib=int(mem_mib * gpus_per_node), mem_unit=MemUnit.PER_NODE, time_limit_s=limit,
        )  # fmt: skip
    named = SbatchSetting(option="partition", value=partition, origin=Origin.COMMAND_LINE, where="command line")
    return JobRequest(script=_SCRIPT, settings=(named,), shape=shape)


@dataclass(slots=True, kw_only=True)
class SimSnapshot:
    """The simulated cluster as slurmctld would show it. Nodes that did not change are reused."""

    servers: Sequence[Server]
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    servers_per_leaf: int | None = None
    max_switch_wait_s: int = 300
    _nodes: list[Node] = field(default_factory=list)
    _seen: Floats | None = None
    _topology: Topology | None = None
    # How often the free resources differed from those of the snapshot before.
    changes: int = 0

    def snapshot(
        self,
        now: float,
        gpus: Ints,
        cpus: Floats,
        mem_mib: Floats,
        alike: int | None = None,
    ) -> Snapshot:
        """Return the snapshot with so much free on each server.

        `alike`: without a network, only the first `alike` of the nodes that look the same are included. For a job of n
        GPUs, n + 1 of them are enough: no plan takes more, between equal nodes it takes the first, and beyond that it
        only depends on whether there are more than it takes.
        """
        free = np.stack([gpus, cpus, mem_mib])
        if self._seen is None:
            self._nodes = [self._node(index, free[:, index]) for index in range(len(self.servers))]
        elif len(changed := (free != self._seen).any(axis=0).nonzero()[0]):
            self.changes += 1
            for index in changed:
                self._nodes[index] = self._node(int(index), free[:, index])
        self._seen = free
        if self._topology is None:
            self._topology = make_leaf_topology([server.name for server in self.servers], self.servers_per_leaf)
        return Snapshot(
            taken_at=now,
            nodes=tuple(self._nodes if alike is None or self.servers_per_leaf else select_alike(self._nodes, alike)),
            topology=self._topology,
            default_partition=ANYWHERE,
            partitions=(Partition(name=ANYWHERE, default=True), *(Partition(name=name) for name in self.partitions)),
            max_switch_wait_s=self.max_switch_wait_s,
        )

    def _node(self, index: int, free: Floats) -> Node:
        server = self.servers[index]
        used = server.gpus - int(free[0])
        cpus = ceil(server.cpus - float(free[1]) - _ROUNDING)
        return Node(
            name=server.name,
            state="IDLE" if not used and not cpus else "ALLOCATED" if cpus >= server.cpus else "MIXED",
            cpus=server.cpus,
            cpus_alloc=cpus,
            mem_mib=server.mem_mib,
            mem_alloc_mib=ceil(server.mem_mib - float(free[2]) - _ROUNDING),
            gpus=server.gpus,
            gpus_used=used,
            partitions=(ANYWHERE, *(name for name, members in self.partitions.items() if server.name in members)),
        )


def select_alike(nodes: Iterable[Node], most: int) -> Iterator[Node]:
    """Yield only the first `most` of the nodes that differ in nothing but their names, in order."""
    seen: dict[object, int] = {}
    for node in nodes:
        features = (
            node.gpus, node.gpus_used, node.cpus, node.cpus_alloc, node.mem_mib, node.mem_alloc_mib, node.partitions,
        )  # fmt: skip
        count = seen[features] = seen.get(features, 0) + 1
        if count <= most:
            yield node


def make_leaf_topology(names: Sequence[str], servers_per_leaf: int | None) -> Topology:
    """Return a tree with so many servers under each leaf switch, in their order, and all leaves under one core switch.

    `servers_per_leaf` None: no network is known.
    """
    if not servers_per_leaf:
        return Topology()
    leaves = tuple(
        Switch(name=f"leaf{number}", level=0, nodes=tuple(names[first : first + servers_per_leaf]))
        for number, first in enumerate(range(0, len(names), servers_per_leaf))
    )
    core = Switch(name="core", level=1, nodes=tuple(names), children=tuple(leaf.name for leaf in leaves))
    return Topology(switches=(*leaves, core), source="tree")


def plan_like_gsub(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    health: Sequence[NodeHealth] = (),
    run_s: float | None = None,
) -> PlacementPlan:
    """Return what gsub would ask for if it were called now. `run_s`: the expected run time, if earlier runs show it."""
    return plan(request, profile, snapshot, health, CONFIG, replace(AT_ONCE, run_s=run_s))
