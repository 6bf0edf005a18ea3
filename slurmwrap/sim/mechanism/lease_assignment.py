"""Options of jobs in rounds of leases, and the assignment of jobs to servers (lease_rounds.py). Pure but for
capacities.
"""

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

# The options of one job when leases end: from its base option upwards, by the speed that each price buys.
#
# As in allocation_options.py, only measured or derived points count that are no slower than the proportional share and
# within all limits. Two things differ. The base option lies within the share, so that the base options of all jobs fit
# wherever their shares do. And a step's gain is one of speed, not of its logarithm: what a job gets now another one can
# get in the next round, so what counts is how much work is done.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """The options of a job. `steps`: the base option, then the upper hull of speed over price; `options`: all useful
    ones.
    """

    steps: tuple[AllocationOption, ...]
    options: tuple[AllocationOption, ...]

    @property
    def floor(self) -> AllocationOption:
        """The least that the job is given."""
        return self.steps[0]


def make_menu(demand: JobDemand, share: Share | None, prices: Prices) -> Menu:
    """Return the options; only what the job asks for if its speed is unknown or no allowed point is as fast as its
    share.
    """
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
    """Return the options of a job with known speeds; None if the speed at the share is unknown or not reached."""
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


def _select_useful(options: Iterable[AllocationOption]) -> tuple[AllocationOption, ...]:
    """Return the options as fast as the share, without those that another one dominates; the cheapest first."""
    fast = sorted((one for one in options if (one.speed or 0.0) >= 1 - _SAME), key=lambda one: (one.price, one.cpus))
    return tuple(one for one in fast if not any(_is_better(other, one) for other in fast))


def _is_better(other: AllocationOption, one: AllocationOption) -> bool:
    if other is one or not _is_within(other, one.cpus, one.mem_mib):
        return False
    return (other.speed or 0.0) >= (one.speed or 0.0)


def _is_within(option: AllocationOption, cpus: float, mem_mib: float) -> bool:
    return option.cpus <= cpus + _SAME and option.mem_mib <= mem_mib


def _select_hull(floor: AllocationOption, options: Sequence[AllocationOption]) -> tuple[AllocationOption, ...]:
    """Return the hull: from the base option, always go to the option with the greatest gain."""
    steps = [floor]
    while above := [one for one in options if one.price > steps[-1].price and _get_speed(one) > _get_speed(steps[-1])]:
        best = max(above, key=lambda one: (_compute_gain(steps[-1], one), -one.price, one.cpus))
        steps.append(replace(best, gain=_compute_gain(steps[-1], best)))
    return tuple(steps)


def _get_speed(option: AllocationOption) -> float:
    return option.speed or 0.0


def _compute_gain(current: AllocationOption, following: AllocationOption) -> float:
    return (_get_speed(following) - _get_speed(current)) / (following.price - current.price)


# The assignment of a round: jobs on empty servers, jobs that need many CPUs next to light ones.
#
# First every job gets a target: of all servers together, the steps with the greatest weighted gain of speed, as long as
# CPUs and memory last. Then jobs are assigned, those with most GPUs first, so that none of these finds only fragments,
# and among equals those that need most CPUs. Each takes the server with most CPUs left per free GPU; the light ones at
# the end take the one with fewest, where the CPUs are in use already.
class LevelStep(NamedTuple):
    """One step of a job's ladder, for one of its nodes. In sorted order, the greatest gain comes first."""

    minus_gain: float  # weighted
    number: int  # number of the job
    level: int  # level that it leads to
    cpus: float  # additional CPUs
    mem_mib: float
    worth: float


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of a round; `given` is in force on the servers where it is assigned."""

    number: int  # position in the queue
    claim: JobDemand
    menu: Menu
    weight: float  # weight of one GPU's speed
    given: AllocationOption
    rooms: tuple[FreeCapacity, ...] = ()
    ladder: tuple[LevelStep, ...] = ()  # steps above its base option
    # GPUs, and CPUs and MiB of the base option, on one of its nodes.
    gpus: int = field(init=False)
    floor_cpus: float = field(init=False)
    floor_mib: float = field(init=False)

    def __post_init__(self) -> None:
        self.gpus = self.claim.gpus_per_node
        self.floor_cpus, self.floor_mib = self.menu.floor.cpus * self.gpus, self.menu.floor.mem_mib * self.gpus

    def worth(self, option: AllocationOption) -> float:
        """Return the weighted speed of one node's part with that option; an unknown speed counts as the share's."""
        return self.weight * self.gpus * (1.0 if option.speed is None else option.speed)


def make_assignment_job(number: int, demand: JobDemand, menu: Menu, weight: float) -> Job:
    """Return a job without an assignment. `number`: position in the queue; `weight`: of one GPU's speed."""
    job = Job(number=number, claim=demand, menu=menu, weight=weight, given=menu.floor)
    job.ladder = tuple(
        LevelStep(
            minus_gain=-following.gain * weight,
            number=number,
            level=level,
            cpus=(following.cpus - current.cpus) * job.gpus,
            mem_mib=(following.mem_mib - current.mem_mib) * job.gpus,
            worth=job.worth(following) - job.worth(current),
        )
        for level, (current, following) in enumerate(zip(menu.steps, menu.steps[1:], strict=False), start=1)
    )
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """The levels that the jobs of one server, or of all servers, reach. `cpus` and `mem_mib`: what is left."""

    # Sum of the gains above the base options.
    worth: float
    levels: dict[int, int]  # by job number
    cpus: float
    mem_mib: float


def climb_levels(jobs: Sequence[Job], cpus: float, mem_mib: float) -> Climb:
    """Raise one node's part of `jobs` from their base options, greatest gain first, with so much for all of them.

    What is left is below zero if the base options alone exceed what there is.
    """
    for job in jobs:
        cpus -= job.floor_cpus
        mem_mib -= job.floor_mib
    levels, worth = {job.number: 0 for job in jobs}, 0.0
    # Steps of all jobs, greatest gain first. A step is taken only if the job has taken the one before and the step
    # fits.
    for _, number, level, more_cpus, more_mem, more_worth in sorted([step for job in jobs for step in job.ladder]):
        if more_cpus <= cpus and more_mem <= mem_mib and levels[number] == level - 1:
            cpus, mem_mib, worth = cpus - more_cpus, mem_mib - more_mem, worth + more_worth
            levels[number] = level
    return Climb(worth=worth, levels=levels, cpus=cpus, mem_mib=mem_mib)


def assign_capacity(jobs: Sequence[Job], capacities: Sequence[FreeCapacity]) -> None:
    """Set `rooms` of all jobs that fit, each with its base option. `jobs`: highest priority first."""
    chosen = _select_first_jobs(jobs, sum(capacity.gpus for capacity in capacities))
    targets = _compute_targets(chosen, capacities)
    hungry = sum(capacity.server.cpus for capacity in capacities) / max(
        1, sum(capacity.server.gpus for capacity in capacities)
    )
    plans = {capacity.server.name: replace(capacity) for capacity in capacities}
    spare = [job for job in jobs if job.number not in targets]
    for job in (*sorted(chosen, key=lambda job: _rank_for_assignment(job, targets[job.number])), *spare):
        target = targets.get(job.number, job.menu.floor)
        order = _make_order(job, target, plans, most=target.cpus > hungry)
        job.rooms = choose(job.claim, job.given.cpus, job.given.mem_mib, list_eligible(job.claim, capacities), order)
        for capacity in job.rooms:
            capacity.take(job.gpus, job.given.cpus, job.given.mem_mib)
            plans[capacity.server.name].take(job.gpus, target.cpus, target.mem_mib)


def _select_first_jobs(jobs: Sequence[Job], gpus: int) -> list[Job]:
    """Return the jobs whose GPUs fit, in the order of the queue; a job that does not fit is passed."""
    chosen = []
    for job in jobs:
        if job.claim.gpus <= gpus:
            gpus -= job.claim.gpus
            chosen.append(job)
    return chosen


def _compute_targets(jobs: Sequence[Job], capacities: Sequence[FreeCapacity]) -> dict[int, AllocationOption]:
    """Return each job's target, by number, as if all servers were one."""
    parts = [job for job in jobs for _ in range(job.claim.nodes)]
    levels = climb_levels(
        parts, sum(capacity.cpus for capacity in capacities), sum(capacity.mem_mib for capacity in capacities)
    ).levels
    return {job.number: job.menu.steps[levels[job.number]] for job in jobs}


def _rank_for_assignment(job: Job, target: AllocationOption) -> tuple[float, ...]:
    return (-job.gpus, -job.claim.nodes, -target.cpus, -target.mem_mib, job.number)


def _make_order(job: Job, target: AllocationOption, plans: Mapping[str, FreeCapacity], *, most: bool) -> Order:
    """Return the order of servers: first where the target fits next to what is planned, then by what is left per free
    GPU.
    """
    sign = -1.0 if most else 1.0

    def order(capacity: FreeCapacity) -> tuple[float | str, ...]:
        plan = plans[capacity.server.name]
        fits = plan.holds(job.gpus, target.cpus, target.mem_mib)
        return (float(not fits), sign * plan.cpus / plan.gpus, sign * plan.mem_mib / plan.gpus, capacity.server.name)

    return order
