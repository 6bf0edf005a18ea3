"""Divide CPUs and memory among the jobs of a queue. Used by gsub, the reconciler and the simulator. Pure.

Policies: `proportional` (as asked), `tune` (Synergy-Tune, for rounds in which everything is released) and `graded`
(slurmwrap's own, for a Slurm in which running jobs keep what they have; sim/mechanism/lease_rounds.py is its variant
for rounds). For all of them, the sum of what starts on a server is at most what is free there. For the latter two, no
job is slower than at its share, by its profile, and none gets more than its limits or a server's size.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.allocation_options import (
    AllocationOption,
    Prices,
    list_allocation_options,
    make_requested_option,
    share_of,
)
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.free_capacity import FreeCapacity, choose, list_eligible, list_free_capacity, rank_fullest
from slurmwrap.placement.graded import allocate_graded


# The policy `proportional`: each job as it asks, in the order of the queue, on the servers where it fits. Plain Slurm
# does the same.
def allocate_proportional(queue: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order. Servers with the fewest free GPUs are used first."""
    capacities = list_free_capacity(servers)
    allocations = []
    for demand in queue:
        found = choose(demand, demand.cpus, demand.mem_mib, list_eligible(demand, capacities), rank_fullest)
        for capacity in found:
            capacity.take(demand.gpus_per_node, demand.cpus, demand.mem_mib)
        names = tuple(capacity.server.name for capacity in found)
        allocations.append(Allocation(job=demand.job, cpus=demand.cpus, mem_mib=demand.mem_mib, servers=names))
    return tuple(allocations)


# The policy `tune`: Synergy-Tune (Mohan et al., OSDI 2022) for one round in which everything was released.
#
# Each job, in order, gets its best demand. If that fits nowhere, it gets its proportional share. If even that fits
# nowhere, jobs on a server with enough free GPUs give back what they have above their share, one after the other (those
# on fewest servers first, then most CPUs, then most memory per GPU), until it fits. So no job is slower than at its
# share, and with empty servers and jobs whose GPUs fit, every job is assigned.
#
# Unlike in the authors' simulator (msr-fiddle/synergy, 1bb2bed6), whose test never skips one, a victim that has nothing
# above its share is left alone, and no demand exceeds what a server has.
#
# Prices for this policy: CPUs count first; memory only where CPUs are equal.
_EVEN = Prices(cpu=1.0, mib=1e-9)


@dataclass(slots=True, kw_only=True)
class _Assignment:
    """One job of the round: its best option, its share, and what it has now."""

    claim: JobDemand
    best: AllocationOption
    share: AllocationOption
    given: AllocationOption
    rooms: tuple[FreeCapacity, ...] = ()

    @property
    def excess(self) -> tuple[float, float]:
        """CPUs and MiB per GPU above its share. A resource in which the job is below its share is kept."""
        return max(0.0, self.given.cpus - self.share.cpus), max(0.0, self.given.mem_mib - self.share.mem_mib)


def tune(queue: Sequence[JobDemand], servers: Sequence[Server]) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in order.

    `queue`: the jobs chosen for this round; `servers`: their state at the start of the round.
    """
    capacities = list_free_capacity(servers)
    assignments: list[_Assignment] = []
    for demand in queue:
        assignment = _make_assignment(demand, list_eligible(demand, capacities))
        _assign(assignment, assignment.best, capacities)
        if not assignment.rooms and any(_is_above_share(assignment.best, assignment.share)):
            _assign(assignment, assignment.share, capacities)
        if not assignment.rooms:
            _take_excess_back(assignment, assignments, capacities)
            _assign(assignment, assignment.given, capacities)
        assignments.append(assignment)
    return tuple(_make_allocation(assignment) for assignment in assignments)


def _make_assignment(demand: JobDemand, capacities: Sequence[FreeCapacity]) -> _Assignment:
    share = share_of(demand, [capacity.server for capacity in capacities])
    steps = list_allocation_options(demand, share, _EVEN)
    if share is None or steps[-1].speed is None:
        asked = make_requested_option(demand, _EVEN)
        return _Assignment(claim=demand, best=asked, share=asked, given=asked)
    plain = AllocationOption(
        cpus=max(share.cpus, demand.least_cpus), mem_mib=max(share.mem_mib, demand.least_mem_mib), speed=1.0
    )
    # If the share itself exceeds the job's bounds, the cheapest allowed option takes its place.
    if plain.cpus > share.most_cpus or plain.mem_mib > share.most_mem_mib:
        plain = steps[0]
    return _Assignment(claim=demand, best=steps[-1], share=plain, given=steps[-1])


def _is_above_share(option: AllocationOption, share: AllocationOption) -> tuple[bool, bool]:
    return option.cpus > share.cpus, option.mem_mib > share.mem_mib


def _assign(assignment: _Assignment, option: AllocationOption, capacities: Sequence[FreeCapacity]) -> None:
    """Assign the job to the best servers on which `option` fits, or to none."""
    demand = assignment.claim
    assignment.given = option
    assignment.rooms = choose(demand, option.cpus, option.mem_mib, list_eligible(demand, capacities), rank_fullest)
    for capacity in assignment.rooms:
        capacity.take(demand.gpus_per_node, option.cpus, option.mem_mib)


def _take_excess_back(
    assignment: _Assignment, others: Sequence[_Assignment], capacities: Sequence[FreeCapacity]
) -> None:
    """Take back what other jobs have above their share until `assignment.given` fits.

    Only the servers with fewest free GPUs that have enough of them are considered.
    """
    gpus = assignment.claim.gpus_per_node
    able = sorted(
        (capacity for capacity in list_eligible(assignment.claim, capacities) if capacity.gpus >= gpus),
        key=rank_fullest,
    )
    if len(able) < assignment.claim.nodes:
        return
    for capacity in able[: assignment.claim.nodes]:
        victims = [victim for victim in others if any(victim.excess) and capacity in victim.rooms]
        for victim in sorted(victims, key=_rank_victims):
            if capacity.holds(gpus, assignment.given.cpus, assignment.given.mem_mib):
                break
            _reduce_to_share(victim)


def _rank_victims(victim: _Assignment) -> tuple[float, ...]:
    return (len(victim.rooms), -victim.given.cpus, -victim.given.mem_mib)


def _reduce_to_share(victim: _Assignment) -> None:
    """Reduce the victim to its share on all of its servers."""
    for capacity in victim.rooms:
        capacity.take(-victim.claim.gpus_per_node, victim.given.cpus, victim.given.mem_mib)
        capacity.take(victim.claim.gpus_per_node, victim.share.cpus, victim.share.mem_mib)
    victim.given = victim.share


def _make_allocation(assignment: _Assignment) -> Allocation:
    given = assignment.given
    return Allocation(
        job=assignment.claim.job,
        cpus=given.cpus,
        mem_mib=given.mem_mib,
        servers=tuple(capacity.server.name for capacity in assignment.rooms),
        speed=given.speed,
        cpu_reason=f"Synergy-Tune: {given.cpus:.3g} CPUs per GPU" if given.cpus != assignment.claim.cpus else "",
        mem_reason=f"Synergy-Tune: {given.mem_mib} MiB per GPU" if given.mem_mib != assignment.claim.mem_mib else "",
    )


def allocate(
    queue: Sequence[JobDemand], servers: Sequence[Server], policy: str, settings: GradedSettings | None = None
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in the order of `queue` (highest priority first). ValueError for an unknown
    policy.

    `tune` is for rounds: pass the chosen jobs and empty servers. `graded` and `proportional` take the pending jobs and
    the servers as they are now. The allocation of a job that does not fit yet (no `servers`) is what it should ask for.
    """
    if policy == "graded":
        return allocate_graded(queue, servers, settings or GradedSettings())
    if policy == "tune":
        return tune(queue, servers)
    if policy == "proportional":
        return allocate_proportional(queue, servers)
    raise ValueError(f"there is no policy '{policy}': graded, tune or proportional")
