"""Let jobs of a round change servers to raise the total speed, then divide each server's CPUs and memory. Pure.

A server's jobs are raised from their base options, greatest gain first (lease_assignment.climb_levels). The server
whose next step would gain most if it had more CPUs or memory is compared with the one that gains least. One of its jobs
that needs more moves over, into free capacity or in exchange for a job with as many GPUs that needs less, whichever
raises the sum of both servers most. There are a few sweeps over all servers, each with one or two partners, so the work
grows with the servers and not with their pairs.

What is left, because no job's next step fits, goes to the best option in between, and then to jobs of several nodes,
which keep their servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.placement.allocation_options import AllocationOption
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity
from slurmwrap.sim.mechanism.lease_assignment import Climb, Job, climb_levels

SWEEPS = 5
# Number of partners with which a server is compared in a sweep.
TRIES = 2
_SAME = 1e-9

# Two servers by name, and the worth of each when they were compared.
_Pair = tuple[str, str, float, float]
# The job that moves to the other server, and the one that moves back.
_Swap = tuple[Job, Job | None]


@dataclass(slots=True, kw_only=True)
class _Host:
    """One server in the exchange, with its one-node jobs and all that these may take together."""

    room: FreeCapacity
    cpus: float
    mem_mib: float
    jobs: list[Job]
    climb: Climb = field(init=False)

    def __post_init__(self) -> None:
        self.climb = climb_levels(self.jobs, self.cpus, self.mem_mib)

    @property
    def name(self) -> str:
        return self.room.server.name

    @property
    def pressure(self) -> float:
        """The gain of the best step that no job could take."""
        return max(
            (
                -step.minus_gain
                for job in self.jobs
                for step in job.ladder
                if step.level > self.climb.levels[job.number]
            ),
            default=0.0,
        )

    def allows(self, job: Job) -> bool:
        demand = job.claim
        return self.room.server.gpus >= job.gpus and (demand.servers is None or self.name in demand.servers)


def exchange_between_servers(jobs: Sequence[Job], capacities: Sequence[FreeCapacity]) -> None:
    """Set `given` and `rooms` of the assigned jobs.

    Before, `capacities` have the jobs' base options taken; after, what the jobs are given.
    """
    hosts = _list_hosts(jobs, capacities)
    settled: set[_Pair] = set()
    for _ in range(SWEEPS):
        if not _sweep_pairs(hosts, settled):
            break
    for host in hosts:
        _apply_climb(host)
    for job in jobs:
        if len(job.rooms) > 1:
            _raise_together(job)


def _list_hosts(jobs: Sequence[Job], capacities: Sequence[FreeCapacity]) -> list[_Host]:
    """Return the servers that have free GPUs or jobs of one node. Their resources include what these jobs hold."""
    jobs_by_server: dict[str, list[Job]] = {capacity.server.name: [] for capacity in capacities}
    for job in jobs:
        if len(job.rooms) == 1:
            jobs_by_server[job.rooms[0].server.name].append(job)
    return [
        _Host(
            room=capacity,
            cpus=capacity.cpus + sum(job.given.cpus * job.gpus for job in jobs_by_server[capacity.server.name]),
            mem_mib=capacity.mem_mib
            + sum(job.given.mem_mib * job.gpus for job in jobs_by_server[capacity.server.name]),
            jobs=jobs_by_server[capacity.server.name],
        )
        for capacity in capacities
        if jobs_by_server[capacity.server.name] or capacity.gpus
    ]


# ------------------------------------------------------------------------------------------- between two servers


def _sweep_pairs(hosts: Sequence[_Host], settled: set[_Pair]) -> bool:
    """Exchange jobs of each server with at most one other; return whether anything changed.

    `settled`: pairs that have nothing to exchange.
    """
    ranked = sorted(hosts, key=lambda host: (-host.pressure, host.name))
    changed: set[str] = set()
    for index, rich in enumerate(ranked):
        if rich.name in changed or not rich.pressure:
            continue
        partners = _list_partners(rich, ranked[:index:-1], changed, settled)
        poor = next((poor for poor in partners if _make_best_exchange(rich, poor)), None)
        if poor is not None:
            changed.update((rich.name, poor.name))
    return bool(changed)


def _list_partners(rich: _Host, others: Sequence[_Host], changed: set[str], settled: set[_Pair]) -> Iterator[_Host]:
    """Yield the partners to try, in order. A pair is settled when the caller asks for the next partner."""
    untried = (poor for poor in others if poor.name not in changed and _make_pair_key(rich, poor) not in settled)
    for poor in islice(untried, TRIES):
        pair = _make_pair_key(rich, poor)
        yield poor
        settled.add(pair)


def _make_pair_key(one: _Host, other: _Host) -> _Pair:
    return one.name, other.name, one.climb.worth, other.climb.worth


def _make_best_exchange(one: _Host, other: _Host) -> bool:
    """Make the best exchange between the two servers and return whether there was one that raises their worth."""
    best, found = one.climb.worth + other.climb.worth + _SAME, None
    for swap in _list_swaps(one, other):
        first, second = _list_jobs_after(one, *swap), _list_jobs_after(other, swap[1], swap[0])
        left, right = climb_levels(first, one.cpus, one.mem_mib), climb_levels(second, other.cpus, other.mem_mib)
        if left.worth + right.worth > best and _is_feasible(left) and _is_feasible(right):
            best, found = left.worth + right.worth, (swap, first, second, left, right)
    if found is None:
        return False
    swap, one.jobs, other.jobs, one.climb, other.climb = found
    for job, source, target in ((swap[0], one, other), (swap[1], other, one)):
        if job is not None:
            source.room.gpus += job.gpus
            target.room.gpus -= job.gpus
            job.rooms = (target.room,)
    return True


def _list_swaps(one: _Host, other: _Host) -> Iterator[_Swap]:
    """Yield the swaps to try, each kind once: a job of `one`, for free capacity or for a job with as many GPUs."""
    backs = [back for back in _list_distinct_jobs(other.jobs) if one.allows(back)]
    for job in _list_distinct_jobs(one.jobs):
        if not job.ladder or not other.allows(job):
            continue
        if other.room.gpus >= job.gpus:
            yield job, None
        for back in backs:
            if back.gpus == job.gpus and _is_smaller(back, job):
                yield job, back


def _is_smaller(back: Job, job: Job) -> bool:
    """Return whether `back` takes fewer CPUs or less memory at its best."""
    least, most = back.menu.steps[-1], job.menu.steps[-1]
    return least.cpus < most.cpus or least.mem_mib < most.mem_mib


def _list_distinct_jobs(jobs: Sequence[Job]) -> list[Job]:
    return list({(id(job.menu), job.gpus): job for job in reversed(jobs)}.values())


def _list_jobs_after(host: _Host, gone: Job | None, new: Job | None) -> list[Job]:
    jobs = [job for job in host.jobs if job is not gone]
    return jobs if new is None else [*jobs, new]


def _is_feasible(found: Climb) -> bool:
    return found.cpus >= -ROUNDING and found.mem_mib >= -ROUNDING


# ------------------------------------------------------------------------------------------- on one server


def _apply_climb(host: _Host) -> None:
    """Give the jobs what the climb found, and what is left to the best options in between."""
    cpus, mem_mib = host.climb.cpus, host.climb.mem_mib
    for job in host.jobs:
        job.given = job.menu.steps[host.climb.levels[job.number]]
    while raises := [
        (job.worth(option) - job.worth(job.given), -job.number, job, option)
        for job in host.jobs
        for option in job.menu.options
        if _is_affordable_upgrade(job, option, cpus, mem_mib)
    ]:
        _, _, job, option = max(raises, key=lambda one: one[:2])
        cpus -= (option.cpus - job.given.cpus) * job.gpus
        mem_mib -= (option.mem_mib - job.given.mem_mib) * job.gpus
        job.given = option
    host.room.cpus, host.room.mem_mib = cpus, mem_mib


def _is_affordable_upgrade(job: Job, option: AllocationOption, cpus: float, mem_mib: float) -> bool:
    """Return whether the option is faster and takes no more than is left on the node."""
    return (
        job.worth(option) > job.worth(job.given) + _SAME
        and (option.cpus - job.given.cpus) * job.gpus <= cpus + ROUNDING
        and (option.mem_mib - job.given.mem_mib) * job.gpus <= mem_mib + ROUNDING
    )


def _raise_together(job: Job) -> None:
    """Raise a job of several nodes; all its nodes get the same."""
    cpus, mem_mib = min(capacity.cpus for capacity in job.rooms), min(capacity.mem_mib for capacity in job.rooms)
    above = [option for option in job.menu.options if _is_affordable_upgrade(job, option, cpus, mem_mib)]
    if above:
        best = max(above, key=lambda option: (job.worth(option), -option.price))
        for capacity in job.rooms:
            capacity.take(job.gpus, best.cpus - job.given.cpus, best.mem_mib - job.given.mem_mib)
        job.given = best
