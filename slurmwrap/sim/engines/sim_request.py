"""What a simulated job asks of Slurm, split into units that lie on one server each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurmwrap.placement.demand import Server
from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for `units` of so many GPUs, CPUs and MiB each: a GPU (--gpus) or the share of a node (--nodes,
    --gres).
    """

    units: int
    gpus: int = 1
    cpus: float
    mem_mib: float
    # Greatest number of units on one server; None: as many as fit.
    per_node: int | None = None
    least: int = 1  # least number of servers; `most`: greatest
    most: int | None = None

    @property
    def all_gpus(self) -> int:
        return self.units * self.gpus


def make_typical_server(servers: Sequence[Server]) -> Server:
    """Return a server as large as the largest, with no more CPUs and memory per GPU than any of them has."""
    most = max(servers, key=lambda server: server.gpus)
    cpus = min(server.cpus / max(1, server.gpus) for server in servers)
    memory = min(server.mem_mib / max(1, server.gpus) for server in servers)
    return replace(most, cpus=int(cpus * most.gpus), mem_mib=int(memory * most.gpus))


def count_fewest_servers(job: SimJob, server: Server) -> int:
    """Return the least number of servers like this one that hold the job's GPUs when empty."""
    return ceil(job.gpus / max(1, server.gpus))


def nodes_of(job: SimJob, server: Server, *, by_node: bool) -> int | None:
    """Return the number of servers that the job insists on; None: any number, as few as are free (`--gpus`)."""
    if job.nodes is not None:
        return min(job.gpus, max(job.nodes, count_fewest_servers(job, server)))
    return count_fewest_servers(job, server) if by_node or job.gpus == 1 else None


def make_ask(gpus: int, nodes: int | None, cpus: float, mem_mib: float, most: int | None = None) -> Ask:
    """Return the request of a job. `cpus` and `mem_mib` per GPU.

    Nodes that cannot share the GPUs evenly get what fits. `most`: greatest number of servers if `nodes` is None.
    """
    if nodes is None:
        return Ask(units=gpus, cpus=cpus, mem_mib=mem_mib, most=most)
    if gpus % nodes:
        return Ask(units=gpus, cpus=cpus, mem_mib=mem_mib, least=nodes, most=nodes)
    gpus_per_node = gpus // nodes
    return Ask(
        units=nodes,
        gpus=gpus_per_node,
        cpus=cpus * gpus_per_node,
        mem_mib=mem_mib * gpus_per_node,
        per_node=1,
        least=nodes,
        most=nodes,
    )
