"""Free resources of each server, and the servers that Slurm would choose for a job: select/cons_tres in a few rules.

If one node can hold the whole job, the one with fewest free CPUs (best fit). Otherwise as few nodes as are free: those
with most free capacity first, and the last one as tight as possible. With leaf switches (topology/tree) it is the first
node of the tightest leaf, and the tightest leaf that holds the whole job comes before several leaves. As in Slurm's
cons_tres (22.05, job_test.c: _eval_nodes, _eval_nodes_topo), but without its runs of consecutive nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from slurmwrap.placement.demand import Server
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.engines.sim_request import Ask

ROUNDING = 1e-6  # tolerance for sums of fractional CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAssignment:
    """The servers of a job, by index, and its units on each."""

    servers: tuple[int, ...]
    units: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class FreeResources:
    """Free GPUs, CPUs and MiB; one entry per server. `leaf`: number of its leaf switch; None: no network."""

    gpus: Ints
    cpus: Floats
    mem_mib: Floats
    leaf: Ints | None = None
    free_gpus: int = field(default=0)

    def take(self, sim_request: Ask, assignment: ServerAssignment) -> None:
        """Take what the request needs. ValueError if a server has too little: a bug of the caller that chose the
        servers.
        """
        self._move(sim_request, assignment, 1)
        low = [s for s in assignment.servers if self.gpus[s] < 0 or min(self.cpus[s], self.mem_mib[s]) < -ROUNDING]
        if low:
            raise ValueError(f"server {low[0]} has not so much left")

    def give_back(self, sim_request: Ask, assignment: ServerAssignment) -> None:
        self._move(sim_request, assignment, -1)

    def _move(self, sim_request: Ask, assignment: ServerAssignment, sign: int) -> None:
        for server, units in zip(assignment.servers, assignment.units, strict=True):
            self.gpus[server] -= sign * units * sim_request.gpus
            self.cpus[server] -= sign * units * sim_request.cpus
            self.mem_mib[server] -= sign * units * sim_request.mem_mib
        self.free_gpus -= sign * sim_request.all_gpus

    def seats(
        self, sim_request: Ask, allowed: Bools | None = None, leaves: int | None = None
    ) -> ServerAssignment | None:
        """Return the servers on which the request starts now; None: it does not fit.

        `leaves`: greatest number of leaf switches that the job accepts.
        """
        if self.free_gpus < sim_request.all_gpus:
            return None
        if sim_request.least == 1:
            holds = fits_whole(sim_request, self.gpus, self.cpus, self.mem_mib)
            if allowed is not None:
                holds &= allowed
            found = holds.nonzero()[0]
            if found.size:
                return self.one(sim_request, found)
            if sim_request.most == 1 or sim_request.units == 1:
                return None
        room = count_units(sim_request, self.gpus, self.cpus, self.mem_mib)
        if allowed is not None:
            room = np.where(allowed, room, 0)
        return choose_servers(sim_request, room, self.cpus, self.leaf, leaves)

    def one(self, sim_request: Ask, found: NDArray[np.intp]) -> ServerAssignment:
        """Return the best of the servers that hold the whole request."""
        return assign_one_server(sim_request, found, self.cpus, self.leaf)


def make_free_resources(servers: Sequence[Server], servers_per_leaf: int | None = None) -> FreeResources:
    """Return what the servers have free; leaf switches are assigned in the order of the servers."""
    gpus = np.array([server.gpus_free for server in servers], dtype=np.int64)
    return FreeResources(
        gpus=gpus,
        cpus=np.array([server.cpus_free for server in servers], dtype=np.float64),
        mem_mib=np.array([server.mem_free_mib for server in servers], dtype=np.float64),
        leaf=None if not servers_per_leaf else np.arange(len(servers), dtype=np.int64) // servers_per_leaf,
        free_gpus=int(gpus.sum()),
    )


def fits_whole(sim_request: Ask, gpus: Ints, cpus: Floats, mem_mib: Floats) -> Bools:
    """Return which servers hold all units of the request; the arrays may have any shape."""
    holds: Bools = gpus >= sim_request.all_gpus
    holds &= cpus >= sim_request.cpus * sim_request.units - ROUNDING
    holds &= mem_mib >= sim_request.mem_mib * sim_request.units - ROUNDING
    return holds


def count_units(sim_request: Ask, gpus: Ints, cpus: Floats, mem_mib: Floats) -> Ints:
    """Return how many units of the request fit on each server; the arrays may have any shape."""
    room = gpus // sim_request.gpus
    if sim_request.cpus > 0:
        room = np.minimum(room, ((cpus + ROUNDING) / sim_request.cpus).astype(np.int64))
    if sim_request.mem_mib > 0:
        room = np.minimum(room, ((mem_mib + ROUNDING) / sim_request.mem_mib).astype(np.int64))
    return np.clip(room, 0, sim_request.units if sim_request.per_node is None else sim_request.per_node)


def assign_one_server(sim_request: Ask, found: NDArray[np.intp], cpus: Floats, leaf: Ints | None) -> ServerAssignment:
    """Return, of servers that hold the whole request, the one with fewest free CPUs.

    With a network, the first server of the tightest leaf.
    """
    free_cpus = cpus[found]
    tight = free_cpus if leaf is None else np.bincount(leaf[found], weights=free_cpus)[leaf[found]]
    return ServerAssignment(servers=(int(found[tight.argmin()]),), units=(sim_request.units,))


def choose_servers(
    sim_request: Ask, room: Ints, cpus: Floats, leaf: Ints | None = None, leaves: int | None = None
) -> ServerAssignment | None:
    """Return the servers that the request gets. `room`: units that fit on each server."""
    if sim_request.least == 1:
        found = (room >= sim_request.units).nonzero()[0]
        if found.size:
            return assign_one_server(sim_request, found, cpus, leaf)
    if leaf is not None:
        near = _in_one_leaf(sim_request, room, cpus, leaf)
        if near is not None:
            return near
    assignment = _gather_servers(sim_request, room, cpus)
    if assignment is None or leaf is None or leaves is None:
        return assignment
    return assignment if len({int(leaf[server]) for server in assignment.servers}) <= leaves else None


def _in_one_leaf(sim_request: Ask, room: Ints, cpus: Floats, leaf: Ints) -> ServerAssignment | None:
    """Return servers in the leaf with the least free capacity that holds the whole request."""
    sums = np.bincount(leaf, weights=room)
    for number in np.argsort(sums, kind="stable"):
        if sums[number] >= sim_request.units:
            assignment = _gather_servers(sim_request, np.where(leaf == number, room, 0), cpus)
            if assignment is not None:
                return assignment
    return None


def _gather_servers(sim_request: Ask, room: Ints, cpus: Floats) -> ServerAssignment | None:
    """Return as few servers as possible; the last one is the tightest that holds the rest."""
    order = np.lexsort((cpus, -room))
    order = order[: int(np.count_nonzero(room))]
    sums = room[order].cumsum()
    if not order.size or sums[-1] < sim_request.units:
        return None
    count = max(sim_request.least, int(np.searchsorted(sums, sim_request.units)) + 1)
    if count > order.size or (sim_request.most is not None and count > sim_request.most):
        return None
    shares, left = [], sim_request.units
    for place in range(count - 1):
        shares.append(min(int(room[order[place]]), left - (count - 1 - place)))
        left -= shares[-1]
    rest = order[count - 1 :][room[order[count - 1 :]] >= left]
    last = rest[np.lexsort((cpus[rest], room[rest]))[0]]
    return ServerAssignment(servers=(*(int(s) for s in order[: count - 1]), int(last)), units=(*shares, left))


def make_idle_server(server: Server) -> Server:
    """Return the server without running jobs."""
    return replace(server, gpus_free=server.gpus, cpus_free=server.cpus, mem_free_mib=server.mem_mib)


def group_by_partition(servers: Sequence[Server], partitions: Mapping[str, frozenset[str]]) -> dict[str, Bools]:
    """Return partition → which servers belong to it. ValueError names a server that does not exist."""
    names = {server.name for server in servers}
    unknown = sorted(name for members in partitions.values() for name in members - names)
    if unknown:
        raise ValueError(f"there is no server '{unknown[0]}' for a partition")
    return {
        name: np.array([server.name in members for server in servers], dtype=np.bool_)
        for name, members in partitions.items()
    }
