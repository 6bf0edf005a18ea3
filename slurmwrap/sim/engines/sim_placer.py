"""Apply production's placement plans to simulated jobs: at submission, then relaxed level by level while they wait.

What a plan asks of Slurm (placement/slurm_options.py, node_ranking.py) becomes what a PendingSimJob insists on. A level
of the plan is reached as in placement/relaxation.py, in a pass of the reconciler, for jobs at the head of the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from slurmwrap.model.hostlist import expand
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.locality_wait import ClosenessForecast, keeps_waiting
from slurmwrap.placement.relaxation import check_levels, find_due_level
from slurmwrap.sim.arrays import Bools
from slurmwrap.sim.engines.free_resources import FreeResources
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.engines.sim_request import Ask, make_ask
from slurmwrap.sim.placement_bridge import ANYWHERE, SimSnapshot, make_sim_request, plan_like_gsub

_PINNED = "ReqNodeList"


class SimPresent(Protocol):
    """What the simulated reconciler sees now."""

    now: float

    def fits(self, ask: Ask, allowed: Bools | None) -> bool:
        """Return whether this request fits now."""
        ...

    def forecast(
        self,
        waiting: PendingSimJob,
        ahead: Sequence[PendingSimJob],
        fewest: int,
        run_times: Mapping[int, RunTimeEstimate],
    ) -> ClosenessForecast:
        """Return when the job is expected to start on `fewest` servers, and on any."""
        ...


@dataclass(slots=True, kw_only=True)
class RelaxingJob:
    """A pending job with levels left. `base`: where it may run without the plan's node list."""

    waiting: PendingSimJob
    levels: tuple[Level, ...]
    base: Bools | None
    at: int = 0  # index of the level in force
    lost_s: float | None = None  # PlacementPlan.lost_s; with it, forecasts decide instead of the last deadline
    # Since when it could have started on distant servers; None: it cannot.
    startable_s: float | None = None

    @property
    def due_s(self) -> float:
        """When the next level is due, by the levels' own times; inf: forecasts decide."""
        if self.lost_s is not None and self.at + 2 == len(self.levels):
            return inf
        return self.waiting.submitted + max(level.wait_s for level in self.levels[: self.at + 1])

    @property
    def pinned(self) -> bool:
        return self.waiting.allowed is not self.base


@dataclass(slots=True, kw_only=True)
class Placer:
    """Plans of pending jobs. `insisting`: by index in the trace. `due`: (when a level ends, index)."""

    picture: SimSnapshot
    profiles: Mapping[str, ResourceProfile]
    insisting: dict[int, RelaxingJob] = field(default_factory=dict)
    due: list[tuple[float, int]] = field(default_factory=list)
    # Expected run times by index in the trace, as earlier runs of the jobs show them; empty: nothing is known.
    run_times: Mapping[int, RunTimeEstimate] = field(default_factory=dict)
    # Plans for the present state of the cluster.
    _plans: dict[object, PlacementPlan] = field(default_factory=dict)
    # `picture.changes` when the first of these plans was made.
    _changes: int = 0

    def submit(self, waiting: PendingSimJob, free: FreeResources, now: float) -> None:
        """Plan the job, and let it insist on what the plan asks for."""
        job = waiting.job
        known = job.partition if job.partition in self.picture.partitions else ANYWHERE
        request = make_sim_request(
            job.gpus, waiting.nodes, waiting.cpus, waiting.mem_mib, limit_s=job.limit_s, partition=known
        )
        snapshot = self.picture.snapshot(now, free.gpus, free.cpus, free.mem_mib, alike=job.gpus + 1)
        if self._changes != self.picture.changes:
            self._plans.clear()
            self._changes = self.picture.changes
        estimate = self.run_times.get(waiting.place)
        key = (request.shape, known, job.model, estimate)
        if key not in self._plans:
            self._plans[key] = plan_like_gsub(
                request, self.profiles.get(job.model), snapshot, run_s=None if estimate is None else estimate.p50_s
            )
        self.apply_plan(waiting, self._plans[key])

    def apply_plan(self, waiting: PendingSimJob, plan: PlacementPlan) -> None:
        """Let the job ask for what the plan contains."""
        options = {wish.option: wish.value for wish in plan.lines if wish.value}
        if not options:
            return
        if "exclude" in options:
            waiting.allowed = _combine_masks(waiting.allowed, ~self._mask(options["exclude"]))
        base = waiting.allowed
        if "nodelist" in options:
            waiting.allowed = _combine_masks(base, self._mask(options["nodelist"]))
        if "nodes" in options:
            _set_nodes(waiting, int(options["nodes"]), None)
        if "switches" in options:
            count, _, wait = options["switches"].partition("@")
            minutes, _, seconds = wait.partition(":")
            waiting.leaves, waiting.leaves_until = int(count), waiting.submitted + 60 * int(minutes) + int(seconds)
        levels = check_levels(plan.levels)
        if len(levels) > 1:
            relaxing = RelaxingJob(waiting=waiting, levels=levels, base=base, lost_s=plan.lost_s)
            self.insisting[waiting.place] = relaxing
            heapq.heappush(self.due, (relaxing.due_s, waiting.place))

    def list_hopeless(self, queue: Sequence[PendingSimJob], present: SimPresent) -> Iterator[RelaxingJob]:
        """Yield the jobs for which close servers are not worth a further wait (placement/locality_wait.py)."""
        if not any(relaxing.lost_s is not None for relaxing in self.insisting.values()):
            return
        for place, waiting in enumerate(queue):
            relaxing = self.insisting.get(waiting.place)
            if relaxing is None or relaxing.lost_s is None or relaxing.due_s < inf:
                continue
            job = waiting.job
            if not present.fits(make_ask(job.gpus, None, waiting.cpus, waiting.mem_mib), relaxing.base):
                relaxing.startable_s = None
                continue
            if relaxing.startable_s is None:
                relaxing.startable_s = present.now
            forecast = present.forecast(waiting, queue[:place], waiting.nodes or 1, self.run_times)
            if not keeps_waiting(forecast, relaxing.lost_s, present.now - relaxing.startable_s):
                yield relaxing

    def is_watching(self, pending: Mapping[int, PendingSimJob]) -> bool:
        """Return whether a pending job waits on purpose although it could start on distant servers."""
        return any(relaxing.startable_s is not None for place, relaxing in self.insisting.items() if place in pending)

    def next_s(self, pending: Mapping[int, PendingSimJob]) -> float:
        """Return when the next level of a pending job ends; inf: none."""
        while self.due:
            moment, place = self.due[0]
            relaxing = self.insisting.get(place)
            if relaxing is not None and place in pending and moment < inf and moment >= relaxing.due_s:
                return moment
            heapq.heappop(self.due)
            if place not in pending:
                self.insisting.pop(place, None)
        return inf

    def list_due(
        self, head: Sequence[PendingSimJob], pending: Mapping[int, PendingSimJob], now: float
    ) -> Iterator[RelaxingJob]:
        """Yield the jobs whose next level is due.

        These are jobs at the head of the queue, and of jobs behind the head that have a node list a tenth as many.
        """
        if self.next_s(pending) > now:
            return
        first = {waiting.place for waiting in head}
        spare = max(1, len(head) // 10)
        for place, relaxing in list(self.insisting.items()):
            if place not in pending or relaxing.due_s > now:
                continue
            if place not in first:
                if not relaxing.pinned or not spare:
                    continue
                spare -= 1
            yield relaxing

    def keys(self, relaxing: RelaxingJob, now: float) -> dict[str, str]:
        """Return key → value of the updates that are due."""
        goal = self._find_goal(relaxing, now)
        return {key: value for level in relaxing.levels[relaxing.at + 1 : goal + 1] for key, value in level.updates}

    def relax(self, relaxing: RelaxingJob, now: float) -> None:
        """Apply the updates that are due."""
        waiting = relaxing.waiting
        for key, value in self.keys(relaxing, now).items():
            if key == _PINNED:
                waiting.allowed = relaxing.base
            elif key == "NumNodes":
                _set_nodes(waiting, None, int(value.rpartition("-")[2]))
            elif key == "Switches":
                waiting.leaves = None
        relaxing.at = self._find_goal(relaxing, now)
        if relaxing.at + 1 == len(relaxing.levels):
            del self.insisting[waiting.place]
        else:
            heapq.heappush(self.due, (relaxing.due_s, waiting.place))

    def _find_goal(self, relaxing: RelaxingJob, now: float) -> int:
        last = len(relaxing.levels) - 1
        if relaxing.lost_s is None:
            return find_due_level(relaxing.levels, now - relaxing.waiting.submitted)
        if relaxing.due_s == inf:
            return last
        return min(last - 1, find_due_level(relaxing.levels, now - relaxing.waiting.submitted))

    def _mask(self, hostlist: str) -> Bools:
        names = frozenset(expand(hostlist))
        return np.array([server.name in names for server in self.picture.servers], dtype=np.bool_)


def _combine_masks(allowed: Bools | None, mask: Bools) -> Bools:
    return mask if allowed is None else allowed & mask


def _set_nodes(waiting: PendingSimJob, nodes: int | None, most: int | None) -> None:
    waiting.nodes = nodes
    waiting.ask = make_ask(waiting.job.gpus, nodes, waiting.cpus, waiting.mem_mib, most)
