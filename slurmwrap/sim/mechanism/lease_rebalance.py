"""Jobs of a round change servers for the good of all, then each server's CPUs and memory are divided. Pure.

A server's jobs climb from their floors, the greatest gain first (seating.climb). The server whose next step would gain
most, for want of CPUs or memory, is compared with the one that gains least by its own: one of its hungry jobs goes
over, into a free place or against a job of as many GPUs that wants less, whichever raises the sum of both servers most.
Some sweeps over all servers, each with a partner or two, so the work grows with the servers and not with their pairs.

What the climb leaves, because the next step of no one fits, goes to the best step between, and then to jobs of several
nodes, which keep their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.placement.allocation_options import AllocationOption
from slurmwrap.placement.free_capacity import ROUNDING, FreeCapacity
from slurmwrap.sim.mechanism.lease_assignment import Climb, Job, climb_levels

SWEEPS = 5
# Partners that a server is compared with in a sweep.
TRIES = 2
_SAME = 1e-9

# Two servers by name, and the worth of each as they were compared.
_Pair = tuple[str, str, float, float]
# From one server to the other, and back.
_Swap = tuple[Job, Job | None]


@dataclass(slots=True, kw_only=True)
class _Host:
    """One server in the exchange, with the jobs of one node that it has, and all that these may take together."""

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
        """The gain of the best step that no one could take."""
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
        claim = job.claim
        return self.room.server.gpus >= job.gpus and (claim.servers is None or self.name in claim.servers)


def exchange_between_servers(jobs: Sequence[Job], rooms: Sequence[FreeCapacity]) -> None:
    """Sets `given` and `rooms` of the seated jobs; `rooms` hold their floors before, and what they are given after."""
    hosts = _list_hosts(jobs, rooms)
    settled: set[_Pair] = set()
    for _ in range(SWEEPS):
        if not _sweep_pairs(hosts, settled):
            break
    for host in hosts:
        _apply_climb(host)
    for job in jobs:
        if len(job.rooms) > 1:
            _raise_together(job)


def _list_hosts(jobs: Sequence[Job], rooms: Sequence[FreeCapacity]) -> list[_Host]:
    here: dict[str, list[Job]] = {room.server.name: [] for room in rooms}
    for job in jobs:
        if len(job.rooms) == 1:
            here[job.rooms[0].server.name].append(job)
    return [
        _Host(
            room=room,
            cpus=room.cpus + sum(job.given.cpus * job.gpus for job in here[room.server.name]),
            mem_mib=room.mem_mib + sum(job.given.mem_mib * job.gpus for job in here[room.server.name]),
            jobs=here[room.server.name],
        )
        for room in rooms
        if here[room.server.name] or room.gpus
    ]


# ------------------------------------------------------------------------------------------- between two servers


def _sweep_pairs(hosts: Sequence[_Host], settled: set[_Pair]) -> bool:
    """Each server with one other at most; whether anything changed. `settled`: pairs that have nothing to exchange."""
    ranked = sorted(hosts, key=lambda host: (-host.pressure, host.name))
    changed: set[str] = set()
    for place, rich in enumerate(ranked):
        if rich.name in changed or not rich.pressure:
            continue
        partners = _list_partners(rich, ranked[:place:-1], changed, settled)
        poor = next((poor for poor in partners if _make_best_exchange(rich, poor)), None)
        if poor is not None:
            changed.update((rich.name, poor.name))
    return bool(changed)


def _list_partners(rich: _Host, others: Sequence[_Host], changed: set[str], settled: set[_Pair]) -> Iterator[_Host]:
    """Whom to try, in order. Who is asked for the next has not come to terms with the one before."""
    untried = (poor for poor in others if poor.name not in changed and _make_pair_key(rich, poor) not in settled)
    for poor in islice(untried, TRIES):
        pair = _make_pair_key(rich, poor)
        yield poor
        settled.add(pair)


def _make_pair_key(one: _Host, other: _Host) -> _Pair:
    return one.name, other.name, one.climb.worth, other.climb.worth


def _make_best_exchange(one: _Host, other: _Host) -> bool:
    """The best change between the two, if any is better than none."""
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
    """What `one` has too little for, against a job of as many GPUs that wants less, or a free place; each kind once."""
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
    """Of CPUs or of memory, at its best."""
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
    """Gives what the climb found, and what it left to the best options between."""
    cpus, mem_mib = host.climb.cpus, host.climb.mem_mib
    for job in host.jobs:
        job.given = job.menu.steps[host.climb.levels[job.number]]
    while raises := [
        (job.worth(rung) - job.worth(job.given), -job.number, job, rung)
        for job in host.jobs
        for rung in job.menu.options
        if _is_affordable_upgrade(job, rung, cpus, mem_mib)
    ]:
        _, _, job, rung = max(raises, key=lambda one: one[:2])
        cpus -= (rung.cpus - job.given.cpus) * job.gpus
        mem_mib -= (rung.mem_mib - job.given.mem_mib) * job.gpus
        job.given = rung
    host.room.cpus, host.room.mem_mib = cpus, mem_mib


def _is_affordable_upgrade(job: Job, option: AllocationOption, cpus: float, mem_mib: float) -> bool:
    """Faster, and no more than is left for a node's part."""
    return (
        job.worth(option) > job.worth(job.given) + _SAME
        and (option.cpus - job.given.cpus) * job.gpus <= cpus + ROUNDING
        and (option.mem_mib - job.given.mem_mib) * job.gpus <= mem_mib + ROUNDING
    )


def _raise_together(job: Job) -> None:
    """All nodes of a job get the same."""
    cpus, mem_mib = min(room.cpus for room in job.rooms), min(room.mem_mib for room in job.rooms)
    above = [rung for rung in job.menu.options if _is_affordable_upgrade(job, rung, cpus, mem_mib)]
    if above:
        best = max(above, key=lambda rung: (job.worth(rung), -rung.price))
        for room in job.rooms:
            room.take(job.gpus, best.cpus - job.given.cpus, best.mem_mib - job.given.mem_mib)
        job.given = best
