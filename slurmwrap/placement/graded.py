"""The policy `graded`: CPUs and memory for the pending jobs of a queue, when running jobs keep what they have. Pure.

Slurm starts a pending job as soon as its request fits, and a running job keeps what it has. So a job's request decides
both how fast the job will be and what is left for other jobs, and it can be changed only while the job is pending.

1. Window. The next jobs of the queue, as many as would fill all GPUs, are treated as the ones that will run side by
   side. GPUs beyond them stay with running jobs, which keep what they hold.
2. Water-filling. Each job of the window starts at its base option (allocation_options.py). Then the option with the
   greatest gain of log(speed) per price is taken, for as long as the servers' CPUs and memory last. Jobs after the
   window are raised to the same gain.
3. Drain. Once the queue no longer fills the GPUs, no job waits behind it: it may ask for a little more than there is,
   since running jobs end meanwhile (`drain`).
4. Patience. A job that waits for more than its share although its share is free takes what is free, as soon as it has
   waited for half of the time that the higher speed would save. So, if its run time is known, it ends earlier than if
   it had started at its share at once. If the run time is unknown, `assumed_run_s` is used.
5. Mixing. Jobs that take more CPUs than the share go where most CPUs are left per free GPU, light ones where fewest
   are. Idle servers are used last.

With leases that end, as in the simulator's rounds, none of this is needed: sim/mechanism/lease_rounds.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.allocation_options import AllocationOption, Prices, Share, list_allocation_options, share_of
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.free_capacity import FreeCapacity, Order, choose, list_eligible, list_free_capacity

# Part of the time that a tuned request saves which the job may spend on waiting for it.
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A job of the queue with its share and its allocation options, the base option first."""

    claim: JobDemand
    share: Share | None
    rungs: tuple[AllocationOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Servers that have jobs in common, with the sums of what they have and what running jobs hold."""

    rooms: tuple[FreeCapacity, ...]
    gpus: int
    cpus: int
    mem_mib: int
    gpus_busy: int
    cpus_held: float
    mem_held_mib: float

    @property
    def prices(self) -> Prices:
        return Prices(cpu=self.gpus / max(1, self.cpus), mib=self.gpus / max(1, self.mem_mib))


def allocate_graded(
    queue: Sequence[JobDemand], servers: Sequence[Server], settings: GradedSettings
) -> tuple[Allocation, ...]:
    """Return one allocation per demand, in the order of the queue (highest priority first)."""
    allocations: dict[int, Allocation] = {}
    for pool, numbers in _split_into_pools(queue, servers):
        candidates = _list_candidates([queue[number] for number in numbers], pool, settings)
        targets = _choose_option_levels(candidates, pool, settings)
        for number, allocation in zip(numbers, _assign_jobs(candidates, targets, pool, settings), strict=True):
            allocations[number] = allocation
    return tuple(allocations[number] for number in range(len(queue)))


# ------------------------------------------------------------------------------------------- pools of servers


def _split_into_pools(queue: Sequence[JobDemand], servers: Sequence[Server]) -> list[tuple[_Pool, list[int]]]:
    """Return the pools and, per pool, the positions of its jobs in the queue.

    Two servers belong to one pool if some job could use either of them.
    """
    everywhere = frozenset(server.name for server in servers)
    wanted = [everywhere if demand.servers is None else demand.servers & everywhere for demand in queue]
    groups: list[frozenset[str]] = []
    for names in dict.fromkeys(wanted):
        touching = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names] + [names.union(*touching)]
    return [
        (
            _make_pool([s for s in servers if s.name in group]),
            [n for n, names in enumerate(wanted) if names <= group and names],
        )
        for group in groups
        if group
    ] + [(_make_pool([]), [n for n, names in enumerate(wanted) if not names])]


def _make_pool(servers: Sequence[Server]) -> _Pool:
    return _Pool(
        rooms=list_free_capacity(servers),
        gpus=sum(s.gpus for s in servers),
        cpus=sum(s.cpus for s in servers),
        mem_mib=sum(s.mem_mib for s in servers),
        gpus_busy=sum(s.gpus - s.gpus_free for s in servers),
        cpus_held=sum(s.cpus - s.cpus_free for s in servers),
        mem_held_mib=sum(s.mem_mib - s.mem_free_mib for s in servers),
    )


def _list_candidates(demands: Sequence[JobDemand], pool: _Pool, settings: GradedSettings) -> list[_Candidate]:
    shares: dict[tuple[object, ...], Share | None] = {}
    prices = Prices(cpu=pool.prices.cpu, mib=pool.prices.mib * settings.memory_weight)
    found = []
    for demand in demands:
        key = (demand.servers, demand.gpus_per_node, demand.most_cpus, demand.most_mem_mib)
        if key not in shares:
            shares[key] = share_of(demand, [capacity.server for capacity in list_eligible(demand, pool.rooms)])
        found.append(
            _Candidate(claim=demand, share=shares[key], rungs=list_allocation_options(demand, shares[key], prices))
        )
    return found


# ------------------------------------------------------------------------------------------- water-filling


def _choose_option_levels(candidates: Sequence[_Candidate], pool: _Pool, settings: GradedSettings) -> list[int]:
    """Return the index of each job's allocation option, by the job's position."""
    window = _select_window(candidates, pool.gpus)
    left = _compute_budget(candidates, window, pool, settings)
    for candidate in (candidates[number] for number in window):
        left.cpus -= candidate.rungs[0].cpus * candidate.claim.gpus
        left.mem_mib -= candidate.rungs[0].mem_mib * candidate.claim.gpus
    levels = [0] * len(candidates)
    least = _raise_levels(candidates, window, left, levels)
    for number in set(range(len(candidates))).difference(window):
        levels[number] = sum(option.gain >= least for option in candidates[number].rungs[1:])
    return levels


def _raise_levels(candidates: Sequence[_Candidate], window: Sequence[int], left: _Budget, levels: list[int]) -> float:
    """Raise `levels` of the window's jobs, greatest gain first, while `left` lasts; return the least gain that was
    taken.
    """
    # A heap of each job's next step, greatest gain first. If a step exceeds what is left, the job stays at its level.
    steps = [(-candidates[number].rungs[1].gain, number) for number in window if len(candidates[number].rungs) > 1]
    heapq.heapify(steps)
    least = float("inf")
    while steps:
        gain, number = heapq.heappop(steps)
        candidate = candidates[number]
        current, following = candidate.rungs[levels[number] : levels[number] + 2]
        gpus = candidate.claim.gpus
        if not left.spend((following.cpus - current.cpus) * gpus, (following.mem_mib - current.mem_mib) * gpus):
            continue
        least = min(least, -gain)
        levels[number] += 1
        if levels[number] + 1 < len(candidate.rungs):
            heapq.heappush(steps, (-candidate.rungs[levels[number] + 1].gain, number))
    return least


def _select_window(candidates: Sequence[_Candidate], gpus: int) -> list[int]:
    """Return the positions of the jobs at the head of the queue that fill all GPUs, without jobs too large for the
    pool.
    """
    window, left = [], gpus
    for number, candidate in enumerate(candidates):
        if candidate.claim.gpus > gpus or candidate.share is None:
            continue
        left -= candidate.claim.gpus
        if left < 0:
            break
        window.append(number)
    return window


@dataclass(slots=True, kw_only=True)
class _Budget:
    """CPUs and MiB that may still be asked for; below zero if the base options alone exceed what there is."""

    cpus: float
    mem_mib: float

    def spend(self, cpus: float, mem_mib: float) -> bool:
        """Spend so much if both are left and return True; else spend nothing and return False.

        A job that asks for no more of a resource passes even if that resource is overspent.
        """
        if cpus > max(0.0, self.cpus) or mem_mib > max(0.0, self.mem_mib):
            return False
        self.cpus, self.mem_mib = self.cpus - cpus, self.mem_mib - mem_mib
        return True


def _compute_budget(
    candidates: Sequence[_Candidate], window: Sequence[int], pool: _Pool, settings: GradedSettings
) -> _Budget:
    """Return what the window's jobs may ask for together."""
    waiting = sum(candidates[number].claim.gpus for number in window)
    queue = sum(c.claim.gpus for c in candidates if c.share is not None and c.claim.gpus <= pool.gpus)
    reach = settings.drain if queue < pool.gpus else 1.0
    busy = min(pool.gpus - waiting, pool.gpus_busy)
    # If no GPU is in use, jobs without GPUs hold the CPUs and memory, and keep them.
    held = busy / pool.gpus_busy if pool.gpus_busy else 1.0
    kept = settings.reserve * (pool.gpus - waiting - busy) / max(1, pool.gpus)
    return _Budget(
        cpus=pool.cpus * (reach - kept) - pool.cpus_held * held,
        mem_mib=pool.mem_mib * (reach - kept) - pool.mem_held_mib * held,
    )


# ------------------------------------------------------------------------------------------- assignment to servers


def _assign_jobs(
    candidates: Sequence[_Candidate], levels: Sequence[int], pool: _Pool, settings: GradedSettings
) -> list[Allocation]:
    """Assign servers in the order of the queue. What a job that can start takes is not available to the jobs behind it.

    First all jobs that fit with their chosen option are assigned, then those that have waited long enough, with what is
    left. So free GPUs with few CPUs go to a light job that loses nothing there, rather than to a job before it that
    needs many CPUs.
    """
    given = {}
    for number, (candidate, level) in enumerate(zip(candidates, levels, strict=True)):
        option = candidate.rungs[level]
        given[number] = option, _assign_servers(candidate, option, pool)
    for number, (candidate, level) in enumerate(zip(candidates, levels, strict=True)):
        option, capacities = given[number]
        if not capacities and level and _is_impatient(candidate, option, settings):
            lower = reversed(candidate.rungs[:level])
            given[number] = next(
                ((r, found) for r in lower if (found := _assign_servers(candidate, r, pool))), (option, ())
            )
    return [_make_allocation(candidate, *given[number]) for number, candidate in enumerate(candidates)]


def _assign_servers(candidate: _Candidate, option: AllocationOption, pool: _Pool) -> tuple[FreeCapacity, ...]:
    """Take the resources of the servers on which the job starts now and return them; () if it fits nowhere."""
    capacities = _find_servers(candidate, option, pool)
    for capacity in capacities:
        capacity.take(candidate.claim.gpus_per_node, option.cpus, option.mem_mib)
    return capacities


def _find_servers(candidate: _Candidate, option: AllocationOption, pool: _Pool) -> tuple[FreeCapacity, ...]:
    hungry = option.cpus > pool.cpus / max(1, pool.gpus)
    return choose(
        candidate.claim,
        option.cpus,
        option.mem_mib,
        list_eligible(candidate.claim, pool.rooms),
        _make_mixing_order(hungry),
    )


def _make_mixing_order(hungry: bool) -> Order:
    """Return the order of servers: idle ones last; a `hungry` job goes where most CPUs are left per free GPU."""
    sign = -1.0 if hungry else 1.0

    def order(capacity: FreeCapacity) -> tuple[float | str, ...]:
        return (
            float(capacity.gpus == capacity.server.gpus),
            sign * capacity.cpus / capacity.gpus,
            capacity.gpus,
            capacity.server.name,
        )

    return order


def _is_impatient(candidate: _Candidate, option: AllocationOption, settings: GradedSettings) -> bool:
    """Return whether the job has waited for half of the time that the higher speed would save."""
    run_s = settings.assumed_run_s if candidate.claim.run_s is None else candidate.claim.run_s
    saved = run_s * (1 - 1 / max(1.0, option.speed or 1.0))
    return candidate.claim.startable_s >= saved * _HALF


def _make_allocation(candidate: _Candidate, option: AllocationOption, capacities: Sequence[FreeCapacity]) -> Allocation:
    demand, share = candidate.claim, candidate.share
    reasons: Mapping[str, str] = (
        _explain_allocation(demand, share, option) if share and option.speed is not None else {}
    )
    return Allocation(
        job=demand.job,
        cpus=option.cpus,
        mem_mib=option.mem_mib,
        servers=tuple(capacity.server.name for capacity in capacities),
        speed=option.speed,
        cpu_reason=reasons.get("cpus", ""),
        mem_reason=reasons.get("memory", ""),
    )


def _explain_allocation(demand: JobDemand, share: Share, option: AllocationOption) -> Mapping[str, str]:
    speed = f"runs at {option.speed:.3g} times the speed of its share" if option.speed else "its speed is unknown there"
    return {
        "cpus": f"{option.cpus:.3g} CPUs per GPU instead of {demand.cpus:.3g} (its share is {share.cpus:.3g}): {speed}"
        if option.cpus != demand.cpus
        else "",
        "memory": f"{option.mem_mib} MiB per GPU instead of {demand.mem_mib} (its share is {share.mem_mib}): {speed}"
        if option.mem_mib != demand.mem_mib
        else "",
    }
