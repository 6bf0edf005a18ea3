"""The policy `graded`: CPUs and memory for the waiting jobs of a queue, on a cluster that takes nothing back. Pure.

Slurm starts a waiting job whenever its request fits, and a running job keeps what it has. So what a job asks for
decides both how fast it will be and what is left next to it, and this is the one moment to divide the servers well.

1. Window. The next jobs of the queue, as many as would fill all GPUs, are treated as the ones that will run side by
   side. GPUs beyond them stay with running jobs, which hold what they hold.
2. Water-filling. Each job of the window stands on its floor (allocation_options.py); then the rung with the greatest
   gain of log(speed) per price is climbed, for as long as the servers' CPUs and memory last. Jobs behind the window
   climb to the same gain.
3. Drain. Once the queue no longer fills the GPUs, no one waits behind it: it may ask for a little more than there is,
   since running jobs end meanwhile (`drain`).
4. Patience. A job that waits for more than its share although its share is free takes what is free, as soon as it has
   waited for half of the time that the speed it waits for would save. So, run time known, it ends earlier than if it
   had started at its share at once. Where no one knows the run time, `assumed_run_s` stands for it.
5. Mixing. Jobs that take more CPUs than the share go where most CPUs are left per free GPU, light ones where fewest
   are; whole servers are broken last.

Where leases end, as in the simulator's rounds, none of this is needed: sim/mechanism/lease_rounds.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.allocation_options import AllocationOption, Prices, Share, list_allocation_options, share_of
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.free_capacity import FreeCapacity, Order, choose, list_eligible, list_free_capacity

# Of what a tuned request saves, spent on waiting for it at most.
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    claim: JobDemand
    share: Share | None
    rungs: tuple[AllocationOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Servers that share jobs, with what all of them have and hold. Sums over servers."""

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
    """One grant per claim, in the order of the queue (first: highest priority)."""
    grants: dict[int, Allocation] = {}
    for pool, numbers in _split_into_pools(queue, servers):
        candidates = _list_candidates([queue[number] for number in numbers], pool, settings)
        targets = _fill(candidates, pool, settings)
        for number, grant in zip(numbers, _place(candidates, targets, pool, settings), strict=True):
            grants[number] = grant
    return tuple(grants[number] for number in range(len(queue)))


# ------------------------------------------------------------------------------------------- who competes with whom


def _split_into_pools(queue: Sequence[JobDemand], servers: Sequence[Server]) -> list[tuple[_Pool, list[int]]]:
    """Servers that some job could use either of belong together; the numbers of the jobs of each pool, in order."""
    everywhere = frozenset(server.name for server in servers)
    wanted = [everywhere if claim.servers is None else claim.servers & everywhere for claim in queue]
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


def _list_candidates(claims: Sequence[JobDemand], pool: _Pool, settings: GradedSettings) -> list[_Candidate]:
    shares: dict[tuple[object, ...], Share | None] = {}
    prices = Prices(cpu=pool.prices.cpu, mib=pool.prices.mib * settings.memory_weight)
    found = []
    for claim in claims:
        key = (claim.servers, claim.gpus_per_node, claim.most_cpus, claim.most_mem_mib)
        if key not in shares:
            shares[key] = share_of(claim, [room.server for room in list_eligible(claim, pool.rooms)])
        found.append(
            _Candidate(claim=claim, share=shares[key], rungs=list_allocation_options(claim, shares[key], prices))
        )
    return found


# ------------------------------------------------------------------------------------------- how much


def _fill(candidates: Sequence[_Candidate], pool: _Pool, settings: GradedSettings) -> list[int]:
    """The rung of each job, by its number."""
    window = _select_window(candidates, pool.gpus)
    left = _compute_budget(candidates, window, pool, settings)
    for candidate in (candidates[number] for number in window):
        left.cpus -= candidate.rungs[0].cpus * candidate.claim.gpus
        left.mem_mib -= candidate.rungs[0].mem_mib * candidate.claim.gpus
    levels = [0] * len(candidates)
    least = _raise_levels(candidates, window, left, levels)
    for number in set(range(len(candidates))).difference(window):
        levels[number] = sum(rung.gain >= least for rung in candidates[number].rungs[1:])
    return levels


def _raise_levels(candidates: Sequence[_Candidate], window: Sequence[int], left: _Budget, levels: list[int]) -> float:
    """Raises `levels` of the window, the greatest gain first, while `left` lasts; the least gain that was worth it."""
    steps = [(-candidates[number].rungs[1].gain, number) for number in window if len(candidates[number].rungs) > 1]
    heapq.heapify(steps)
    least = float("inf")
    while steps:
        gain, number = heapq.heappop(steps)
        candidate = candidates[number]
        here, there = candidate.rungs[levels[number] : levels[number] + 2]
        gpus = candidate.claim.gpus
        if not left.spend((there.cpus - here.cpus) * gpus, (there.mem_mib - here.mem_mib) * gpus):
            continue
        least = min(least, -gain)
        levels[number] += 1
        if levels[number] + 1 < len(candidate.rungs):
            heapq.heappush(steps, (-candidate.rungs[levels[number] + 1].gain, number))
    return least


def _select_window(candidates: Sequence[_Candidate], gpus: int) -> list[int]:
    """The numbers of the jobs at the queue's head that fill all GPUs, whole jobs; without those too large for them."""
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
    """What may still be asked for; below zero where the floors alone are more than there is."""

    cpus: float
    mem_mib: float

    def spend(self, cpus: float, mem_mib: float) -> bool:
        """False where either is not there; then nothing is spent. What is not asked for is in no one's way."""
        if cpus > max(0.0, self.cpus) or mem_mib > max(0.0, self.mem_mib):
            return False
        self.cpus, self.mem_mib = self.cpus - cpus, self.mem_mib - mem_mib
        return True


def _compute_budget(
    candidates: Sequence[_Candidate], window: Sequence[int], pool: _Pool, settings: GradedSettings
) -> _Budget:
    """What the window's jobs may ask for together."""
    waiting = sum(candidates[number].claim.gpus for number in window)
    queue = sum(c.claim.gpus for c in candidates if c.share is not None and c.claim.gpus <= pool.gpus)
    reach = settings.drain if queue < pool.gpus else 1.0
    busy = min(pool.gpus - waiting, pool.gpus_busy)
    # Then jobs without GPUs hold it, and go on.
    held = busy / pool.gpus_busy if pool.gpus_busy else 1.0
    kept = settings.reserve * (pool.gpus - waiting - busy) / max(1, pool.gpus)
    return _Budget(
        cpus=pool.cpus * (reach - kept) - pool.cpus_held * held,
        mem_mib=pool.mem_mib * (reach - kept) - pool.mem_held_mib * held,
    )


# ------------------------------------------------------------------------------------------- where, now


def _place(
    candidates: Sequence[_Candidate], levels: Sequence[int], pool: _Pool, settings: GradedSettings
) -> list[Allocation]:
    """In the order of the queue; what a job that can start takes is gone for those behind it.

    First all that fit as they should be, then those that have waited enough, with what is left: a slot with few CPUs
    goes to a light job that loses nothing there, rather than to a hungry one in front of it.
    """
    given = {}
    for number, (candidate, level) in enumerate(zip(candidates, levels, strict=True)):
        rung = candidate.rungs[level]
        given[number] = rung, _assign_servers(candidate, rung, pool)
    for number, (candidate, level) in enumerate(zip(candidates, levels, strict=True)):
        rung, rooms = given[number]
        if not rooms and level and _is_impatient(candidate, rung, settings):
            lower = reversed(candidate.rungs[:level])
            given[number] = next(
                ((r, found) for r in lower if (found := _assign_servers(candidate, r, pool))), (rung, ())
            )
    return [_make_allocation(candidate, *given[number]) for number, candidate in enumerate(candidates)]


def _assign_servers(candidate: _Candidate, option: AllocationOption, pool: _Pool) -> tuple[FreeCapacity, ...]:
    """Where it starts now, and takes it; () where it fits nowhere."""
    rooms = _find_servers(candidate, option, pool)
    for room in rooms:
        room.take(candidate.claim.gpus_per_node, option.cpus, option.mem_mib)
    return rooms


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
    sign = -1.0 if hungry else 1.0

    def order(room: FreeCapacity) -> tuple[float | str, ...]:
        return (float(room.gpus == room.server.gpus), sign * room.cpus / room.gpus, room.gpus, room.server.name)

    return order


def _is_impatient(candidate: _Candidate, option: AllocationOption, settings: GradedSettings) -> bool:
    run_s = settings.assumed_run_s if candidate.claim.run_s is None else candidate.claim.run_s
    saved = run_s * (1 - 1 / max(1.0, option.speed or 1.0))
    return candidate.claim.startable_s >= saved * _HALF


def _make_allocation(candidate: _Candidate, option: AllocationOption, rooms: Sequence[FreeCapacity]) -> Allocation:
    claim, share = candidate.claim, candidate.share
    reasons: Mapping[str, str] = _explain_allocation(claim, share, option) if share and option.speed is not None else {}
    return Allocation(
        job=claim.job,
        cpus=option.cpus,
        mem_mib=option.mem_mib,
        servers=tuple(room.server.name for room in rooms),
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
