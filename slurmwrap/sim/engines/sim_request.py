"""Ask: what a simulated job asks of Slurm, in units that lie on one server each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurmwrap.placement.demand import Server
from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """`units` of so many GPUs, CPUs and MiB each: a GPU (--gpus) or the share of a node (--nodes, --gres)."""

    units: int
    gpus: int = 1
    cpus: float
    mem_mib: float
    # Units on one server at most; None: what fits.
    per_node: int | None = None
    least: int = 1  # servers
    most: int | None = None

    @property
    def all_gpus(self) -> int:
        return self.units * self.gpus


def make_typical_server(servers: Sequence[Server]) -> Server:
    """A server as large as the largest, with no more for each GPU than any of them has."""
    most = max(servers, key=lambda server: server.gpus)
    cpus = min(server.cpus / max(1, server.gpus) for server in servers)
    memory = min(server.mem_mib / max(1, server.gpus) for server in servers)
    return replace(most, cpus=int(cpus * most.gpus), mem_mib=int(memory * most.gpus))


def count_fewest_servers(job: SimJob, server: Server) -> int:
    """Servers like that which hold the job's GPUs at least, were they empty."""
    return ceil(job.gpus / max(1, server.gpus))


def nodes_of(job: SimJob, server: Server, *, by_node: bool) -> int | None:
    """The number of servers that it insists on; None: any number, as few as are free (`--gpus`)."""
    if job.nodes is not None:
        return min(job.gpus, max(job.nodes, count_fewest_servers(job, server)))
    return count_fewest_servers(job, server) if by_node or job.gpus == 1 else None


def ask_of(gpus: int, nodes: int | None, cpus: float, mem_mib: float, most: int | None = None) -> Ask:
    """`cpus` and `mem_mib` per GPU. Nodes that cannot share the GPUs evenly get what fits. `most`: where `nodes` is
    open."""
    if nodes is None:
        return Ask(units=gpus, cpus=cpus, mem_mib=mem_mib, most=most)
    if gpus % nodes:
        return Ask(units=gpus, cpus=cpus, mem_mib=mem_mib, least=nodes, most=nodes)
    one = gpus // nodes
    return Ask(units=nodes, gpus=one, cpus=cpus * one, mem_mib=mem_mib * one, per_node=1, least=nodes, most=nodes)
