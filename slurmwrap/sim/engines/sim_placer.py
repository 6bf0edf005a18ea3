"""Apply production's placement plans to simulated jobs: at submission, then relaxed level by level while they wait.

What a plan asks of Slurm (placement/slurm_options.py, node_ranking.py) becomes what a PendingSimJob insists on. A level
of the plan is reached as in placement/relaxation.py, in a pass of the reconciler, for jobs at the head of the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from slurmwrap.model.hostlist import expand
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.relaxation import check_levels, find_due_level
from slurmwrap.sim.arrays import Bools
from slurmwrap.sim.engines.free_resources import FreeResources
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.engines.sim_request import make_ask
from slurmwrap.sim.placement_bridge import ANYWHERE, SimSnapshot, make_sim_request, plan_like_gsub

_PINNED = "ReqNodeList"


@dataclass(slots=True, kw_only=True)
class RelaxingJob:
    """A pending job with levels left. `base`: where it may run without the plan's node list."""

    waiting: PendingSimJob
    levels: tuple[Level, ...]
    base: Bools | None
    at: int = 0  # index of the level in force

    @property
    def due_s(self) -> float:
        """When the next level is due, by the levels' own times."""
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
        key = (request.shape, known, job.model)
        if key not in self._plans:
            self._plans[key] = plan_like_gsub(request, self.profiles.get(job.model), snapshot)
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
            relaxing = RelaxingJob(waiting=waiting, levels=levels, base=base)
            self.insisting[waiting.place] = relaxing
            heapq.heappush(self.due, (relaxing.due_s, waiting.place))

    def next_s(self, pending: Mapping[int, PendingSimJob]) -> float:
        """Return when the next level of a pending job ends; inf: none."""
        while self.due:
            moment, place = self.due[0]
            relaxing = self.insisting.get(place)
            if relaxing is not None and place in pending and moment >= relaxing.due_s:
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
        goal = find_due_level(relaxing.levels, now - relaxing.waiting.submitted)
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
        relaxing.at = find_due_level(relaxing.levels, now - waiting.submitted)
        if relaxing.at + 1 == len(relaxing.levels):
            del self.insisting[waiting.place]
        else:
            heapq.heappush(self.due, (relaxing.due_s, waiting.place))

    def _mask(self, hostlist: str) -> Bools:
        names = frozenset(expand(hostlist))
        return np.array([server.name in names for server in self.picture.servers], dtype=np.bool_)


def _combine_masks(allowed: Bools | None, mask: Bools) -> Bools:
    return mask if allowed is None else allowed & mask


def _set_nodes(waiting: PendingSimJob, nodes: int | None, most: int | None) -> None:
    waiting.nodes = nodes
    waiting.ask = make_ask(waiting.job.gpus, nodes, waiting.cpus, waiting.mem_mib, most)
