"""Who gets GPUs until the leases end next, and on which servers: jobs that must lie close together wait for that.

The rule is that of Tiresias's simulator for one switch (SymbioticLab/Tiresias, 959f9b08, switch.py
ms_yarn_alloc_res): a job that a server can hold takes the first server with room for all of it; a larger one takes as
many idle servers as it fills, and the first other one with room for the rest. Whoever need not lie close takes what is
free, fragments first (Gu et al., NSDI 2019, section 3.3). Who runs and is still chosen stays where it is, unless
someone before it in the order fits only in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmwrap.sim.arrays import Bools, Ints


class Leases(Protocol):
    """The GPUs of the cluster, and who holds them until leases end next. Jobs are known by their numbers."""

    def admit(self, new: Ints) -> bool:
        """Whether these fit next to everybody; then they hold their GPUs, else nothing has changed."""
        ...

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        """All leases end. `order`: everybody who is there, highest priority first.

        Returns which of them hold GPUs now, and the numbers of those who do but were moved.
        """
        ...

    def release(self, numbers: Ints) -> None:
        """These hold nothing any more."""
        ...

    def servers(self, numbers: Ints) -> Ints:
        """On how many servers each of these holds its GPUs."""
        ...


@dataclass(slots=True, kw_only=True)
class LeasePool:
    """Leases of GPUs in one heap, as both simulators count them by default."""

    # Of each job, by number.
    gpus: Ints
    total: int
    per_server: int
    free: int = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.total

    def admit(self, new: Ints) -> bool:
        needed = int(self.gpus[new].sum())
        if needed > self.free:
            return False
        self.free -= needed
        return True

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        gpus = self.gpus[order]
        runs = select_fitting(gpus, self.total, in_turn=in_turn)
        self.free = self.total - int(gpus[runs].sum())
        return runs, order[:0]

    def release(self, numbers: Ints) -> None:
        self.free += int(self.gpus[numbers].sum())

    def servers(self, numbers: Ints) -> Ints:
        """As few as could hold them."""
        return -(-self.gpus[numbers] // self.per_server)


def select_fitting(gpus: Ints, free: int, *, in_turn: bool) -> Bools:
    """Which jobs get their GPUs. `gpus`: of each, highest priority first; `free`: how many there are.

    As many steps as there are sizes of jobs, not as there are jobs.
    """
    taken = np.zeros(len(gpus), dtype=np.bool_)
    here = np.arange(len(gpus))
    while len(here):
        used = np.cumsum(gpus[here])
        fit = int(np.searchsorted(used, free, side="right"))
        taken[here[:fit]] = True
        if in_turn or fit == len(here):
            break
        free -= int(used[fit - 1]) if fit else 0
        here = here[fit + 1 :]
        here = here[gpus[here] <= free]
    return taken


# Servers, and GPUs on each.
Spot = tuple[Ints, Ints]


@dataclass(slots=True, kw_only=True)
class Places:
    """Leases of GPUs on equal servers, by index. One spot is the part of a job on one server."""

    # Of each job, by number.
    gpus: Ints
    # Whether the job must lie close together, by number.
    tied: Bools
    count: int
    size: int  # GPUs of a server
    _free: Ints = field(init=False)
    # Of each spot, its job's number.
    _job: Ints = field(init=False)
    _server: Ints = field(init=False)
    _held: Ints = field(init=False)  # GPUs
    _holds: Bools = field(init=False)  # whether it has spots, by number
    _spots: Ints = field(init=False)  # how many it has or had last, by number
    _counted: Bools = field(init=False)  # whether there were GPUs for it, were it not for their places, by number
    _rank: Ints = field(init=False)  # in the order, by number, when leases ended last

    def __post_init__(self) -> None:
        self._free = np.full(self.count, self.size, dtype=np.int64)
        self._rank = np.zeros(len(self.gpus), dtype=np.int64)
        self._spots = np.zeros(len(self.gpus), dtype=np.int64)
        self._counted = np.ones(len(self.gpus), dtype=np.bool_)
        self._holds = np.zeros(len(self.gpus), dtype=np.bool_)
        self._job, self._server, self._held = (np.empty(0, dtype=np.int64) for _ in range(3))

    def admit(self, new: Ints) -> bool:
        for place, number in enumerate(new.tolist()):
            spot = self._find(number, self._free)
            if spot is None:
                self.release(new[:place])
                return False
            self._take(number, spot)
        return True

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        self._rank[order] = np.arange(len(order))
        gpus, tied = self.gpus[order], self.tied[order].astype(np.int64)
        self._counted[order] = select_fitting(gpus, self.count * self.size, in_turn=in_turn)
        runs = self._holds[order]
        displaced: list[int] = []
        # Who needs so many GPUs or more has no place: untied, tied.
        hopeless = np.full(2, np.iinfo(np.int64).max)
        at = 0
        while len(waiting := np.flatnonzero(~runs[at:] & (gpus[at:] < hopeless[tied[at:]]))):
            at += int(waiting[0])
            runs[at], gone = self._seat(int(order[at]), at)
            runs[self._rank[gone]] = False
            displaced += gone
            if not runs[at]:
                hopeless[tied[at]] = gpus[at]
                if in_turn:
                    break
            at += 1
        moved = np.array(displaced, dtype=np.int64)
        return runs, moved[runs[self._rank[moved]]]

    def release(self, numbers: Ints) -> None:
        self._holds[numbers] = False
        gone = ~self._holds[self._job]
        np.add.at(self._free, self._server[gone], self._held[gone])
        self._job, self._server, self._held = self._job[~gone], self._server[~gone], self._held[~gone]

    def servers(self, numbers: Ints) -> Ints:
        return self._spots[numbers]

    def used(self) -> Ints:
        """GPUs that are held on each server."""
        return np.bincount(self._server, weights=self._held, minlength=self.count).astype(np.int64)

    def _seat(self, number: int, rank: int) -> tuple[bool, list[int]]:
        """A place for this job: what no one has, else what jobs behind it have. Returns who of them had to go."""
        if (spot := self._find(number, self._free)) is not None:
            self._take(number, spot)
            return True, []
        behind = self._rank[self._job] > rank
        if not behind.any():
            return False, []
        theirs = np.bincount(self._server[behind], weights=self._held[behind], minlength=self.count)
        going = ~self._counted[self._job]
        soon = self._free + np.bincount(self._server[going], weights=self._held[going], minlength=self.count)
        # Have to go who would not anyway: from where most is free then.
        fewest = np.argsort(-soon, kind="stable")
        spot = self._find(number, (self._free + theirs.astype(np.int64))[fewest])
        if spot is None:
            return False, []
        spot = fewest[spot[0]], spot[1]
        gone = self._clear(spot, rank)
        self._take(number, spot)
        return True, gone

    def _clear(self, spot: Spot, rank: int) -> list[int]:
        """Jobs behind `rank` leave the spot's servers until there is room: who must go anyway first, then the last."""
        gone = []
        for server, needed in zip(*(part.tolist() for part in spot), strict=True):
            while self._free[server] < needed:
                there = self._job[(self._server == server) & (self._rank[self._job] > rank)]
                last = there[np.lexsort((self._rank[there], ~self._counted[there]))[-1]]
                self.release(np.array([last]))
                gone.append(int(last))
        return gone

    def _find(self, number: int, free: Ints) -> Spot | None:
        gpus = int(self.gpus[number])
        return place_together(free, gpus, self.size) if self.tied[number] else place_anywhere(free, gpus)

    def _take(self, number: int, spot: Spot) -> None:
        servers, held = spot
        self._free[servers] -= held
        self._holds[number], self._spots[number] = True, len(servers)
        self._job = np.concatenate((self._job, np.full(len(servers), number)))
        self._server, self._held = np.concatenate((self._server, servers)), np.concatenate((self._held, held))


def place_together(free: Ints, gpus: int, size: int) -> Spot | None:
    """On as few servers as can be; None: it must wait. `free`: GPUs of each server; `size`: of an idle one."""
    full, rest = divmod(gpus, size)
    idle = np.flatnonzero(free == size)[:full] if full else np.empty(0, dtype=np.int64)
    if len(idle) < full:
        return None
    if not rest:
        return idle, np.full(full, size)
    fits = free >= rest
    fits[idle] = False
    last = int(fits.argmax())
    if not fits[last]:
        return None
    return np.append(idle, last), np.append(np.full(full, size), rest)


def place_anywhere(free: Ints, gpus: int) -> Spot | None:
    """On any servers, those with fewest free GPUs first; None: there are not so many."""
    if int(free.sum()) < gpus:
        return None
    some = np.flatnonzero(free)
    some = some[np.argsort(free[some], kind="stable")]
    before = np.cumsum(free[some]) - free[some]
    taken = np.minimum(free[some], gpus - before)
    return some[taken > 0], taken[taken > 0]
