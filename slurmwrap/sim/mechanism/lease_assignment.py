"""Rounds of leases: what each job may get, and where it is seated (lease_rounds.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.placement.allocation_options import (
    AllocationOption,
    AllocationPoint,
    Prices,
    Share,
    compute_price,
    list_allowed_points,
    make_requested_option,
)
from slurmwrap.placement.demand import JobDemand, SpeedPoint
from slurmwrap.placement.free_capacity import FreeCapacity, Order, choose, list_eligible
from slurmwrap.placement.throughput import find_speed

# What one job may be given where leases end: from its floor upwards, by the speed that each price buys.
#
# As in allocation_options.py only points that someone measured or derived count, no slower than the proportional share
# and within all limits. Two things differ. The floor lies within the share, so that everybody's floor fits wherever
# everybody's share does. And a step's gain is of speed, not of its logarithm: what is given now can be given to another
# in the next round, so what counts is how much work is done.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """`steps`: the floor, then the upper hull of speed over price. `options`: all that is worth its price."""

    steps: tuple[AllocationOption, ...]
    options: tuple[AllocationOption, ...]

    @property
    def floor(self) -> AllocationOption:
        """The least that it is given."""
        return self.steps[0]


def make_menu(demand: JobDemand, share: Share | None, prices: Prices) -> Menu:
    """Only what it asks where its speed is unknown, or nothing allowed is as fast as its share."""
    if share is not None and demand.speeds:
        least = AllocationPoint(
            cpus=max(demand.least_cpus, share.cpus if share.whole else 0.0),
            mem_mib=max(demand.least_mem_mib, share.mem_mib if share.whole else 0),
        )
        found = _build_menu(
            demand.speeds, AllocationPoint(cpus=demand.cpus, mem_mib=demand.mem_mib), least, share, prices
        )
        if found is not None:
            return found
    asked = make_requested_option(demand, prices)
    return Menu(steps=(asked,), options=(asked,))


@lru_cache(maxsize=4096)
def _build_menu(
    speeds: tuple[SpeedPoint, ...], asked: AllocationPoint, least: AllocationPoint, share: Share, prices: Prices
) -> Menu | None:
    at_share = find_speed(speeds, share.cpus, share.mem_mib)
    if not at_share:
        return None
    options = _select_useful(
        AllocationOption(
            cpus=point.cpus,
            mem_mib=point.mem_mib,
            price=compute_price(point, prices),
            speed=find_speed(speeds, point.cpus, point.mem_mib) / at_share,
        )
        for point in list_allowed_points(speeds, asked, least, share)
    )
    if not options:
        return None
    within = [one for one in options if _is_within(one, max(share.cpus, least.cpus), max(share.mem_mib, least.mem_mib))]
    return Menu(steps=_select_hull((within or options)[0], options), options=options)


def _select_useful(rungs: Iterable[AllocationOption]) -> tuple[AllocationOption, ...]:
    """As fast as the share, and nothing that needs no more of either is as fast; the cheapest first."""
    fast = sorted((one for one in rungs if (one.speed or 0.0) >= 1 - _SAME), key=lambda one: (one.price, one.cpus))
    return tuple(one for one in fast if not any(_is_better(other, one) for other in fast))


def _is_better(other: AllocationOption, one: AllocationOption) -> bool:
    if other is one or not _is_within(other, one.cpus, one.mem_mib):
        return False
    return (other.speed or 0.0) >= (one.speed or 0.0)


def _is_within(option: AllocationOption, cpus: float, mem_mib: float) -> bool:
    return option.cpus <= cpus + _SAME and option.mem_mib <= mem_mib


def _select_hull(floor: AllocationOption, options: Sequence[AllocationOption]) -> tuple[AllocationOption, ...]:
    """From the floor, always to the option with the greatest gain."""
    steps = [floor]
    while above := [one for one in options if one.price > steps[-1].price and _get_speed(one) > _get_speed(steps[-1])]:
        best = max(above, key=lambda one: (_compute_gain(steps[-1], one), -one.price, one.cpus))
        steps.append(replace(best, gain=_compute_gain(steps[-1], best)))
    return tuple(steps)


def _get_speed(option: AllocationOption) -> float:
    return option.speed or 0.0


def _compute_gain(here: AllocationOption, there: AllocationOption) -> float:
    return (_get_speed(there) - _get_speed(here)) / (there.price - here.price)


# Who of a round sits where: jobs on emptied servers, hungry ones next to light ones. Pure but for the rooms it fills.
#
# First everybody gets a target: of all servers together, the steps with the greatest weighted gain of speed, as long as
# CPUs and memory last. Then they are seated, those of most GPUs first, so that none of these finds only fragments, and
# among equals the hungriest. Each takes the server with most CPUs left per free GPU, the light ones in the end that
# with fewest: what they leave is already taken there.
class LevelStep(NamedTuple):
    """From one level of a job's ladder to the next, for one of its nodes. In order, the greatest gain comes first."""

    minus_gain: float  # weighted
    number: int  # of the job
    level: int  # that it leads to
    cpus: float  # more of them
    mem_mib: float
    worth: float


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of a round; `given` holds where it is seated."""

    number: int  # in the queue
    claim: JobDemand
    menu: Menu
    weight: float  # of one GPU's speed
    given: AllocationOption
    rooms: tuple[FreeCapacity, ...] = ()
    ladder: tuple[LevelStep, ...] = ()  # above its floor
    # On one of its nodes, as what follows.
    gpus: int = field(init=False)
    floor_cpus: float = field(init=False)
    floor_mib: float = field(init=False)

    def __post_init__(self) -> None:
        self.gpus = self.claim.gpus_per_node
        self.floor_cpus, self.floor_mib = self.menu.floor.cpus * self.gpus, self.menu.floor.mem_mib * self.gpus

    def worth(self, option: AllocationOption) -> float:
        """Of a node's part at that rung; a speed that no one knows counts as that of the share."""
        return self.weight * self.gpus * (1.0 if option.speed is None else option.speed)


def make_assignment_job(number: int, demand: JobDemand, menu: Menu, weight: float) -> Job:
    """`number`: in the queue; `weight`: of one GPU's speed. It has no seat yet."""
    job = Job(number=number, claim=demand, menu=menu, weight=weight, given=menu.floor)
    job.ladder = tuple(
        LevelStep(
            minus_gain=-there.gain * weight,
            number=number,
            level=level,
            cpus=(there.cpus - here.cpus) * job.gpus,
            mem_mib=(there.mem_mib - here.mem_mib) * job.gpus,
            worth=job.worth(there) - job.worth(here),
        )
        for level, (here, there) in enumerate(zip(menu.steps, menu.steps[1:], strict=False), start=1)
    )
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Where jobs of one server, or of all, get to. `cpus` and `mem_mib` are left."""

    # Of their speeds above the floors.
    worth: float
    levels: dict[int, int]  # by number
    cpus: float
    mem_mib: float


def climb_levels(jobs: Sequence[Job], cpus: float, mem_mib: float) -> Climb:
    """Raises one node's part of `jobs` from their floors, the greatest gain first, with so much for all of them.

    What is left is below zero where the floors alone are more than there is.
    """
    for job in jobs:
        cpus -= job.floor_cpus
        mem_mib -= job.floor_mib
    levels, worth = {job.number: 0 for job in jobs}, 0.0
    for _, number, level, more_cpus, more_mem, more_worth in sorted([step for job in jobs for step in job.ladder]):
        if more_cpus <= cpus and more_mem <= mem_mib and levels[number] == level - 1:
            cpus, mem_mib, worth = cpus - more_cpus, mem_mib - more_mem, worth + more_worth
            levels[number] = level
    return Climb(worth=worth, levels=levels, cpus=cpus, mem_mib=mem_mib)


def assign_capacity(jobs: Sequence[Job], rooms: Sequence[FreeCapacity]) -> None:
    """Sets `rooms` of all jobs that find a place, each with its floor. `jobs`: highest priority first."""
    chosen = _select_first_jobs(jobs, sum(room.gpus for room in rooms))
    targets = _compute_targets(chosen, rooms)
    hungry = sum(room.server.cpus for room in rooms) / max(1, sum(room.server.gpus for room in rooms))
    plans = {room.server.name: replace(room) for room in rooms}
    spare = [job for job in jobs if job.number not in targets]
    for job in (*sorted(chosen, key=lambda job: _place_in_line(job, targets[job.number])), *spare):
        target = targets.get(job.number, job.menu.floor)
        order = _order(job, target, plans, most=target.cpus > hungry)
        job.rooms = choose(job.claim, job.given.cpus, job.given.mem_mib, list_eligible(job.claim, rooms), order)
        for room in job.rooms:
            room.take(job.gpus, job.given.cpus, job.given.mem_mib)
            plans[room.server.name].take(job.gpus, target.cpus, target.mem_mib)


def _select_first_jobs(jobs: Sequence[Job], gpus: int) -> list[Job]:
    """Those whose GPUs there are, in the order of the queue; who does not fit is passed."""
    chosen = []
    for job in jobs:
        if job.claim.gpus <= gpus:
            gpus -= job.claim.gpus
            chosen.append(job)
    return chosen


def _compute_targets(jobs: Sequence[Job], rooms: Sequence[FreeCapacity]) -> dict[int, AllocationOption]:
    """By number; as if the servers were one."""
    parts = [job for job in jobs for _ in range(job.claim.nodes)]
    levels = climb_levels(parts, sum(room.cpus for room in rooms), sum(room.mem_mib for room in rooms)).levels
    return {job.number: job.menu.steps[levels[job.number]] for job in jobs}


def _place_in_line(job: Job, target: AllocationOption) -> tuple[float, ...]:
    return (-job.gpus, -job.claim.nodes, -target.cpus, -target.mem_mib, job.number)


def _order(job: Job, target: AllocationOption, plans: Mapping[str, FreeCapacity], *, most: bool) -> Order:
    """Where the target fits next to what is planned; then by what is planned to be left per free GPU."""
    sign = -1.0 if most else 1.0

    def order(room: FreeCapacity) -> tuple[float | str, ...]:
        plan = plans[room.server.name]
        fits = plan.holds(job.gpus, target.cpus, target.mem_mib)
        return (float(not fits), sign * plan.cpus / plan.gpus, sign * plan.mem_mib / plan.gpus, room.server.name)

    return order
