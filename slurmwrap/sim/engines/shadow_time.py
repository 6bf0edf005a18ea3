"""Shadow times for backfill: what each server will have free when, by time limits, and what is reserved for which jobs.

As in Slurm's sched/backfill (22.05, plugins/sched/backfill/backfill.c): running jobs are assumed to end at their time
limits. A job that cannot start gets the earliest time at which it would fit, and whole nodes are reserved for it from
then until its own limit; another job may use such a node before or after that. Slurm does not try each end of a running
job: it takes them together, up to 30 s, 60 s, 120 s and so on after the first (cons_tres, job_test.c: _will_run_test),
so the farther away a start is, the later it is planned. Not simulated: that a cycle may be interrupted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.engines.free_resources import (
    FreeResources,
    ServerAssignment,
    choose_servers,
    count_units,
    fits_whole,
)
from slurmwrap.sim.engines.sim_request import Ask

# Greatest number of moments that are tried for a job of several servers; after these it is not planned.
_LOOKS = 256
_BLOCK = 16  # moments that are tried at once
_FEW = 16  # up to so many servers are computed one by one rather than all at once
_SOONER = 1e-9


@dataclass(slots=True, kw_only=True)
class HeldResources:
    """What one running job holds on one server, and when it is assumed to end."""

    ends: float
    gpus: int
    cpus: float
    mem_mib: float


@dataclass(slots=True, kw_only=True)
class ServerCapacity:
    """How many units of one request fit on each server over time, without reservations; one row per server."""

    room: Ints  # units, by column of ShadowTable
    at: Floats  # from when each column holds
    moments: Floats  # moments at which more becomes free, beginning when there is enough
    soon: Ints | None = None  # units at the first `_BLOCK` moments, computed on demand

    def then(self, moments: Floats) -> Ints:
        """Return the units on each server at these moments, one column per moment."""
        column = (self.at[:, :, None] <= moments).sum(axis=1) - 1
        held: Ints = self.room[np.arange(len(column))[:, None], column]
        return held

    def first(self, count: int) -> Ints:
        """Return a copy of the same at the first `count` moments, at most `_BLOCK`."""
        if self.soon is None:
            self.soon = self.then(self.moments[:_BLOCK])
        return self.soon[:, :count].copy()


class ShadowTable:
    """One row per server: column 0 is now, then one column per running job, in the order of their assumed ends."""

    def __init__(self, free: FreeResources, columns: int) -> None:
        count = len(free.gpus)
        self._free = free
        self._jobs: list[dict[int, HeldResources]] = [{} for _ in range(count)]
        self._dirty = set(range(count))
        self._times = np.full((count, columns + 1), np.inf)
        self._gpus = np.zeros((count, columns + 1), dtype=np.int64)
        self._cpus = np.zeros((count, columns + 1))
        self._mem = np.zeros((count, columns + 1))
        self._rows = np.arange(count)
        self._assumed_ends: dict[int, float] = {}  # assumed end of each running job
        # Begin of each reservation of a server in this cycle, sorted, one per column, and its end.
        self._begin = np.full((count, 4), np.inf)
        self._until = np.full((count, 4), -np.inf)
        self._kept: dict[int, list[tuple[float, float]]] = {}  # the same reservations by server
        self._keeps: list[int] = []  # the servers in the order in which they were reserved
        self._ends: list[float] = []  # ends of all reservations, ascending
        self._loose: set[int] = set()  # servers with a free GPU and without reservations
        self._used = 0  # columns in use
        self._now = self._late = self._group_s = 0.0
        self._tried: Floats | None = None  # ends of running jobs that Slurm tries
        self._earliest: dict[Ask, Floats] = {}  # earliest starts without reservations
        # Earliest starts, and how many entries of `_keeps` were considered for each.
        self._starts: dict[tuple[Ask, float, int], tuple[Floats, int]] = {}
        self._tables: dict[tuple[Ask, int], ServerCapacity] = {}

    def begins(self, number: int, sim_request: Ask, assignment: ServerAssignment, ends: float) -> None:
        for server, count in zip(assignment.servers, assignment.units, strict=True):
            self._jobs[server][number] = HeldResources(
                ends=ends,
                gpus=count * sim_request.gpus,
                cpus=count * sim_request.cpus,
                mem_mib=count * sim_request.mem_mib,
            )
            self._dirty.add(server)
            if self._free.gpus[server] <= 0:
                self._loose.discard(server)
        self._assumed_ends[number] = ends
        self._clear_caches()

    def ends(self, number: int, assignment: ServerAssignment) -> None:
        for server in assignment.servers:
            del self._jobs[server][number]
            self._dirty.add(server)
        del self._assumed_ends[number]
        self._clear_caches()

    def open(self, now: float, late: float, group_s: float) -> None:
        """Begin a new cycle without reservations.

        Jobs that run beyond their limit are assumed to end at `late`. `group_s`: ends of running jobs this close are
        looked at together, farther ones twice as close and so on; 0: each alone.
        """
        self._now, self._late, self._group_s = now, late, group_s
        self._begin.fill(np.inf)
        self._until.fill(-np.inf)
        self._kept.clear()
        self._keeps.clear()
        self._ends.clear()
        self._loose = set((self._free.gpus > 0).nonzero()[0].tolist())
        self._used = 0
        self._clear_caches()

    def free_until(self) -> float:
        """Return until when a server with a free GPU may be used, at most; -inf if none has one."""
        if self._loose:
            return inf
        return float(self._begin[self._free.gpus > 0, 0].max(initial=-np.inf))

    def usable(self, start: float, length: float) -> Bools:
        """Return the servers without a reservation between `start` and `start + length`."""
        begin, until = self._begin[:, : self._used], self._until[:, : self._used]
        return np.asarray(((start + length <= begin) | (start >= until)).all(axis=1), dtype=np.bool_)

    def seats(
        self, sim_request: Ask, length: float, allowed: Bools | None, leaves: int | None
    ) -> ServerAssignment | None:
        """Return the servers on which the request may start now; None if there are none."""
        if not self._used:
            return self._free.seats(sim_request, allowed, leaves)
        free = self.usable(self._now, length)
        if allowed is not None:
            free = free & allowed
        return self._free.seats(sim_request, free, leaves)

    def plan(
        self, sim_request: Ask, length: float, allowed: Bools | None, latest: float
    ) -> tuple[float, ServerAssignment] | None:
        """Return when and where the request would start at the earliest; None: not before `latest`, as far as known."""
        # A job that may run on one server: the earliest start on one. If several servers would allow an earlier start,
        # use that.
        best = inf
        if sim_request.least == 1:
            start = self._start_whole(sim_request, length, allowed)
            best = float(start.min())
            if sim_request.units > 1 and sim_request.most != 1 and best > self._now:
                spread = self._plan_several(sim_request, length, allowed, min(latest, best - _SOONER))
                if spread is not None:
                    return spread
            if best <= latest:
                return best, self._free.one(sim_request, (start <= best).nonzero()[0])
            return None
        return self._plan_several(sim_request, length, allowed, latest)

    def keep(self, assignment: ServerAssignment, start: float, end: float) -> None:
        """Reserve whole nodes for a job that is planned on them."""
        place = bisect_left(self._ends, end)
        if place == len(self._ends) or self._ends[place] != end:
            self._ends.insert(place, end)
        self._keeps.extend(assignment.servers)
        self._loose.difference_update(assignment.servers)
        for server in assignment.servers:
            spans = self._kept.setdefault(server, [])
            insort(spans, (start, end))
            if len(spans) > self._begin.shape[1]:
                self._widen()
            self._used = max(self._used, len(spans))
            for column, (begin, until) in enumerate(spans):
                self._begin[server, column], self._until[server, column] = begin, until

    def _widen(self) -> None:
        self._begin = np.hstack([self._begin, np.full_like(self._begin, np.inf)])
        self._until = np.hstack([self._until, np.full_like(self._until, -np.inf)])

    # --------------------------------------------------------------------------------------------------- when

    def _start_whole(self, sim_request: Ask, length: float, allowed: Bools | None) -> Floats:
        """Return the earliest start on each server that holds the job alone."""
        key = (sim_request, length, id(allowed))
        start, seen = self._starts.get(key, (None, 0))
        unkept = self._unkept_start(sim_request)
        if start is None:
            start = unkept.copy() if allowed is None else np.where(allowed, unkept, np.inf)
        new = self._keeps[seen:]
        if len(new) <= _FEW:
            for server in new:
                if allowed is None or allowed[server]:
                    start[server] = self._after_kept(float(unkept[server]), length, server)
        else:
            start = unkept
            for column in range(self._used):
                until = self._until[:, column]
                start = np.where((start + length <= self._begin[:, column]) | (start >= until), start, until)
            start = start if allowed is None else np.where(allowed, start, np.inf)
        self._starts[key] = start, len(self._keeps)
        return start

    def _after_kept(self, start: float, length: float, server: int) -> float:
        for begin, until in self._kept[server]:
            if start + length > begin and start < until:
                start = until
        return start

    def _unkept_start(self, sim_request: Ask) -> Floats:
        start = self._earliest.get(sim_request)
        if start is None:
            self._refresh()
            holds = fits_whole(sim_request, self._gpus, self._cpus, self._mem)
            first = holds.argmax(axis=1)
            start = self._tried_at(self._column_times()[self._rows, first])
            start[~holds[self._rows, first]] = np.inf
            self._earliest[sim_request] = start
        return start

    def _plan_several(
        self, sim_request: Ask, length: float, allowed: Bools | None, latest: float
    ) -> tuple[float, ServerAssignment] | None:
        """Return the earliest start on several servers, and the servers."""
        # Moments to try: when enough becomes free, and when reservations end. They are tried in blocks, earliest first.
        table = self._table(sim_request, allowed)
        moments = table.moments
        if not moments.size or moments[0] > latest:
            return None
        ends = self._ends[bisect_right(self._ends, moments[0]) : bisect_right(self._ends, latest)]
        if ends:
            moments = np.unique(np.concatenate([moments, ends]))
        moments = moments[: int(np.searchsorted(moments, latest, side="right"))][:_LOOKS]
        for first in range(0, moments.size, _BLOCK):
            block = moments[first : first + _BLOCK]
            units = table.then(block) if first or ends else table.first(block.size)
            for place in range(self._used):
                begin, until = self._begin[:, place, None], self._until[:, place, None]
                units *= (block + length <= begin) | (block >= until)
            enough = units.sum(axis=0) >= sim_request.units
            if sim_request.least > 1:
                enough &= np.count_nonzero(units, axis=0) >= sim_request.least
            for place in enough.nonzero()[0]:
                assignment = choose_servers(sim_request, units[:, place], self._free.cpus, self._free.leaf)
                if assignment is not None:
                    return float(block[place]), assignment
        return None

    def _table(self, sim_request: Ask, allowed: Bools | None) -> ServerCapacity:
        """Return the capacity of all servers for this request over time, and the moments at which it may suffice.

        Cached until a job starts or ends. Only moments are kept from which on all servers together have enough units.
        """
        key = (sim_request, id(allowed))
        found = self._tables.get(key)
        if found is None:
            self._refresh()
            room, at = count_units(sim_request, self._gpus, self._cpus, self._mem), self._column_times()
            if allowed is not None:
                room[~allowed] = 0
            gain = np.diff(room, axis=1, prepend=0)
            more = (gain > 0) & np.isfinite(at)
            times, gains = at[more], gain[more]
            order = np.argsort(times, kind="stable")
            enough = int(np.searchsorted(gains[order].cumsum(), sim_request.units))
            moments = np.unique(self._tried_at(times[order[enough:]]))
            found = self._tables[key] = ServerCapacity(room=room, at=at, moments=moments)
        return found

    def _tried_at(self, times: Floats) -> Floats:
        """Return when Slurm would notice: it takes later ends of jobs together with these."""
        if not self._group_s or not self._assumed_ends:
            return times
        if self._tried is None:
            ends = np.sort(np.fromiter(self._assumed_ends.values(), np.float64, len(self._assumed_ends)))
            ends = np.maximum(ends, self._late)
            barrier = ends[0] - ends[0] % self._group_s + self._group_s
            reach = max(1.0, (ends[-1] - barrier) / self._group_s)
            steps = barrier + self._group_s * 2.0 ** np.arange(int(np.ceil(np.log2(reach))) + 1)
            self._tried = ends[np.searchsorted(ends, steps, side="right") - 1]
        place = np.minimum(np.searchsorted(self._tried, times), len(self._tried) - 1)
        return np.where(np.isfinite(times) & (times > self._now), np.maximum(times, self._tried[place]), times)

    def _clear_caches(self) -> None:
        self._earliest.clear()
        self._starts.clear()
        self._tables.clear()
        self._tried = None

    def _column_times(self) -> Floats:
        """Return from when each column holds: the first is now, and no job ends in the past."""
        at: Floats = np.maximum(self._times, self._late)
        at[:, 0] = self._now
        return at

    def _refresh(self) -> None:
        for server in self._dirty:
            self._fill_row(server, self._jobs[server])
        self._dirty.clear()

    def _fill_row(self, server: int, jobs: Mapping[int, HeldResources]) -> None:
        """Compute a server's row: what is free now, then after the assumed end of each of its jobs."""
        free = self._free
        gpus, cpus, mem = int(free.gpus[server]), float(free.cpus[server]), float(free.mem_mib[server])
        self._times[server, 0], self._gpus[server, 0] = 0.0, gpus
        self._cpus[server, 0], self._mem[server, 0] = cpus, mem
        place = 0
        for place, held in enumerate(sorted(jobs.values(), key=lambda one: one.ends), start=1):
            gpus, cpus, mem = gpus + held.gpus, cpus + held.cpus, mem + held.mem_mib
            self._times[server, place], self._gpus[server, place] = held.ends, gpus
            self._cpus[server, place], self._mem[server, place] = cpus, mem
        self._times[server, place + 1 :] = np.inf
        self._gpus[server, place + 1 :] = gpus
        self._cpus[server, place + 1 :] = cpus
        self._mem[server, place + 1 :] = mem
