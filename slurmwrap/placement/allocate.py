"""Divides CPUs and memory among the jobs of a queue: one pure function for gsub, the reconciler and the simulator.

Policies: `proportional` (as asked), `tune` (Synergy-Tune, for rounds in which everything is released) and `graded`
(ours: for a Slurm that takes nothing back, and with claim.ROUNDS, which only the simulator asks for, for rounds). What
holds for all of them: the sum of what starts on a server is at most what is free there; for the latter two: no job is
slower than at its share, by its profile, and none gets more than its limits or a server's size.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.graded import allocate_graded
from slurmwrap.placement.proportional import allocate_proportional
from slurmwrap.placement.synergy_tune import tune


def allocate(
    queue: Sequence[JobDemand], servers: Sequence[Server], policy: str, settings: GradedSettings | None = None
) -> tuple[Allocation, ...]:
    """One grant per claim, in the order of `queue` (first: highest priority). ValueError for an unknown policy.

    `tune` and, with ROUNDS, `graded` are for rounds: pass the chosen jobs and empty servers. Otherwise `graded` and
    `proportional` take the waiting jobs and servers as they are now; what is granted to a job that does not fit yet
    (no `servers`) is what it should ask for.
    """
    chosen = settings or GradedSettings()
    if policy == "graded" and chosen.leases_end:
        from slurmwrap.placement.lease_rounds import allocate_lease_rounds  # gsub never needs it

        return allocate_lease_rounds(queue, servers, chosen)
    if policy == "graded":
        return allocate_graded(queue, servers, chosen)
    if policy == "tune":
        return tune(queue, servers)
    if policy == "proportional":
        return allocate_proportional(queue, servers)
    raise ValueError(f"there is no policy '{policy}': graded, tune or proportional")
