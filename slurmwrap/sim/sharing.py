"""How fast the chosen jobs run: asks the mechanism where its answer could be another. Pure but for its memory.

A mechanism is deterministic and finds empty servers: the same list of jobs gets the same grants. Where no job has a
profile there is nothing to divide, and no one is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmwrap.placement.demand import JobDemand, Server
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_throughput import Points, claim_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Of the chosen jobs, in order: who got a place, how fast it is there, on how many servers."""

    placed: Bools
    speeds: Floats
    servers: Ints


@dataclass(slots=True, kw_only=True)
class Sharing:
    """The mechanism with the claims of a run's jobs, by number."""

    mechanism: Mechanism
    servers: Sequence[Server]
    claims: Sequence[JobDemand]
    _asked: bytes = field(init=False, default=b"")
    _told: Shared | None = field(init=False, default=None)

    def among(self, chosen: Ints) -> Shared:
        """`chosen`: numbers, highest priority first."""
        asked = chosen.tobytes()
        if self._told is None or asked != self._asked:
            self._asked, self._told = asked, self._ask([self.claims[number] for number in chosen.tolist()])
        return self._told

    def best(self) -> Floats:
        """Speed of each job alone on the servers, by number."""
        known: dict[object, float] = {}
        found = np.ones(len(self.claims))
        for number, claim in enumerate(self.claims):
            key = (claim.gpus_per_node, claim.nodes, claim.cpus, claim.mem_mib, id(claim.speeds))
            if key not in known:
                known[key] = float(self._ask([claim]).speeds[0])
            found[number] = known[key]
        return found

    def _ask(self, claims: Sequence[JobDemand]) -> Shared:
        grants = self.mechanism(claims, self.servers)
        return Shared(
            placed=np.array([bool(grant.servers) for grant in grants], dtype=np.bool_),
            speeds=np.array([grant.speed or 1.0 for grant in grants]),
            servers=np.array([len(set(grant.servers)) for grant in grants], dtype=np.int64),
        )


def sharing_of(
    jobs: Sequence[SimJob], servers: Sequence[Server], mechanism: Mechanism, points: Points, *, equal_parts: bool
) -> Sharing | None:
    """None where no job has a profile. `equal_parts`: the mechanism gives each of a job's servers as much."""
    if not any(job.model in points for job in jobs):
        return None
    most = len(servers) if equal_parts else None
    claims = [claim_of(job, points.get(job.model, ()), servers[0], most) for job in jobs]
    return Sharing(mechanism=mechanism, servers=servers, claims=claims)
