"""Leases of GPUs: which jobs hold GPUs until leases end next, and on which servers. Jobs that need locality wait for
it.

The rule is that of Tiresias's simulator for one switch (SymbioticLab/Tiresias, 959f9b08, switch.py ms_yarn_alloc_res).
A job that one server can hold takes the first server with enough free GPUs. A larger one takes as many idle servers as
it fills, and the first other one with enough free GPUs for the rest. A job that does not need locality takes what is
free, fragments first (Gu et al., NSDI 2019, section 3.3). A running job that is still chosen stays where it is, unless
a job before it in the order fits only in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmwrap.sim.arrays import Bools, Ints


class Leases(Protocol):
    """The GPUs of the cluster, and which jobs hold them until leases end next. Jobs are identified by their numbers."""

    def admit(self, new: Ints) -> bool:
        """Return whether these jobs fit next to all others. If so they hold GPUs now, else nothing has changed."""
        ...

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        """End all leases and begin new ones. `order`: all jobs in the system, highest priority first.

        Returns which of them hold GPUs now, and the numbers of those that do but were moved.
        """
        ...

    def release(self, numbers: Ints) -> None:
        """Take all GPUs from these jobs."""
        ...

    def servers(self, numbers: Ints) -> Ints:
        """Return on how many servers each of these jobs holds its GPUs."""
        ...


@dataclass(slots=True, kw_only=True)
class LeasePool:
    """Leases of GPUs in one pool without servers, as both simulators count them by default."""

    # GPUs of each job, by its number.
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
        """Return the least number of servers that could hold each job's GPUs."""
        return -(-self.gpus[numbers] // self.per_server)


def select_fitting(gpus: Ints, free: int, *, in_turn: bool) -> Bools:
    """Return which jobs get their GPUs. `gpus`: of each job, highest priority first; `free`: number of free GPUs.

    Takes as many steps as there are sizes of jobs, not as there are jobs.
    """
    taken = np.zeros(len(gpus), dtype=np.bool_)
    remaining = np.arange(len(gpus))
    while len(remaining):
        used = np.cumsum(gpus[remaining])
        fit = int(np.searchsorted(used, free, side="right"))
        taken[remaining[:fit]] = True
        if in_turn or fit == len(remaining):
            break
        free -= int(used[fit - 1]) if fit else 0
        remaining = remaining[fit + 1 :]
        remaining = remaining[gpus[remaining] <= free]
    return taken


# Servers by index, and GPUs on each.
Spot = tuple[Ints, Ints]


@dataclass(slots=True, kw_only=True)
class Places:
    """Leases of GPUs on equal servers, by index. A spot is the part of a job on one server."""

    # GPUs of each job, by its number.
    gpus: Ints
    # Whether the job needs locality, by its number.
    tied: Bools
    count: int
    size: int  # GPUs per server
    _free: Ints = field(init=False)
    # Per spot: the number of its job, its server and its GPUs.
    _job: Ints = field(init=False)
    _server: Ints = field(init=False)
    _held: Ints = field(init=False)  # GPUs
    # Per job number: whether it has spots, and how many it has or had last.
    _holds: Bools = field(init=False)
    _spots: Ints = field(init=False)
    # Per job number: whether there were enough GPUs for it, regardless of their servers.
    _counted: Bools = field(init=False)
    # Per job number: its rank in the order when leases ended last.
    _rank: Ints = field(init=False)

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
        """End all leases and begin new ones, as in Leases.lease.

        Goes through the order once. A job that holds GPUs keeps them, unless a job before it in the order displaces it.
        The sizes for which no place was found are remembered (`hopeless`): later jobs of that size or larger cannot be
        placed either.
        """
        self._rank[order] = np.arange(len(order))
        gpus, tied = self.gpus[order], self.tied[order].astype(np.int64)
        self._counted[order] = select_fitting(gpus, self.count * self.size, in_turn=in_turn)
        runs = self._holds[order]
        displaced: list[int] = []
        # Sizes from which on no job can be placed: jobs without and with a need for locality.
        hopeless = np.full(2, np.iinfo(np.int64).max)
        at = 0
        while len(waiting := np.flatnonzero(~runs[at:] & (gpus[at:] < hopeless[tied[at:]]))):
            at += int(waiting[0])
            runs[at], gone = self._assign(int(order[at]), at)
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
        """Return the GPUs that are held on each server."""
        return np.bincount(self._server, weights=self._held, minlength=self.count).astype(np.int64)

    def _assign(self, number: int, rank: int) -> tuple[bool, list[int]]:
        """Give this job GPUs: free ones, else those of jobs behind it in the order.

        Returns whether it got them, and which jobs lost theirs.
        """
        if (spot := self._find(number, self._free)) is not None:
            self._take(number, spot)
            return True, []
        behind = self._rank[self._job] > rank
        if not behind.any():
            return False, []
        held_behind = np.bincount(self._server[behind], weights=self._held[behind], minlength=self.count)
        leaving = ~self._counted[self._job]
        free_soon = self._free + np.bincount(self._server[leaving], weights=self._held[leaving], minlength=self.count)
        # Prefer servers where most is free once the jobs have left that will not get GPUs anyway. So few other jobs
        # must leave.
        fewest = np.argsort(-free_soon, kind="stable")
        spot = self._find(number, (self._free + held_behind.astype(np.int64))[fewest])
        if spot is None:
            return False, []
        spot = fewest[spot[0]], spot[1]
        gone = self._clear(spot, rank)
        self._take(number, spot)
        return True, gone

    def _clear(self, spot: Spot, rank: int) -> list[int]:
        """Let jobs behind `rank` leave the spot's servers until it is free.

        First those that will not get GPUs anyway, then those last in the order.
        """
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
    """Return a spot on as few servers as possible; None: the job must wait.

    `free`: free GPUs of each server; `size`: GPUs of an idle server.
    """
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
    """Return a spot on any servers, those with fewest free GPUs first; None: too few GPUs are free."""
    if int(free.sum()) < gpus:
        return None
    some = np.flatnonzero(free)
    some = some[np.argsort(free[some], kind="stable")]
    before = np.cumsum(free[some]) - free[some]
    taken = np.minimum(free[some], gpus - before)
    return some[taken > 0], taken[taken > 0]
