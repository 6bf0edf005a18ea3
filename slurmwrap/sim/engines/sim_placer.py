"""Placer: production's plans obeyed by simulated jobs, at submission, and loosened level by level while they wait.

What a plan asks of Slurm (placement/slurm_options.py, slurm_options.py, node_ranking.py) becomes what a Waiting
insists on; a level of the plan is reached as placement/relaxation.py says, in a pass of the reconciler, for jobs at the
head of the queue.
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
from slurmwrap.sim.engines.sim_request import ask_of
from slurmwrap.sim.placement_bridge import ANYWHERE, SimSnapshot, plan_like_gsub, request_of

_PINNED = "ReqNodeList"


@dataclass(slots=True, kw_only=True)
class Insisting:
    """A job with levels left. `base`: where it may run without our list of nodes."""

    waiting: PendingSimJob
    levels: tuple[Level, ...]
    base: Bools | None
    at: int = 0  # the level that holds

    @property
    def due_s(self) -> float:
        """When the next level is due, by the levels' own times."""
        return self.waiting.submitted + max(level.wait_s for level in self.levels[: self.at + 1])

    @property
    def pinned(self) -> bool:
        return self.waiting.allowed is not self.base


@dataclass(slots=True, kw_only=True)
class Placer:
    """`insisting`: by place in the trace. `due`: (when a level ends, place)."""

    picture: SimSnapshot
    profiles: Mapping[str, ResourceProfile]
    insisting: dict[int, Insisting] = field(default_factory=dict)
    due: list[tuple[float, int]] = field(default_factory=list)
    # Of the cluster as it is.
    _plans: dict[object, PlacementPlan] = field(default_factory=dict)
    # Of the picture, when the first of them was made.
    _changes: int = 0

    def submit(self, waiting: PendingSimJob, floor: FreeResources, now: float) -> None:
        """Plans, and makes the job insist on what the plan asks for."""
        job = waiting.job
        known = job.partition if job.partition in self.picture.partitions else ANYWHERE
        request = request_of(
            job.gpus, waiting.nodes, waiting.cpus, waiting.mem_mib, limit_s=job.limit_s, partition=known
        )
        snapshot = self.picture.snapshot(now, floor.gpus, floor.cpus, floor.mem_mib, alike=job.gpus + 1)
        if self._changes != self.picture.changes:
            self._plans.clear()
            self._changes = self.picture.changes
        key = (request.shape, known, job.model)
        if key not in self._plans:
            self._plans[key] = plan_like_gsub(request, self.profiles.get(job.model), snapshot)
        self.obey(waiting, self._plans[key])

    def obey(self, waiting: PendingSimJob, plan: PlacementPlan) -> None:
        """Makes `waiting` ask for what the plan wishes."""
        wishes = {wish.option: wish.value for wish in plan.lines if wish.value}
        if not wishes:
            return
        if "exclude" in wishes:
            waiting.allowed = _combine_masks(waiting.allowed, ~self._mask(wishes["exclude"]))
        base = waiting.allowed
        if "nodelist" in wishes:
            waiting.allowed = _combine_masks(base, self._mask(wishes["nodelist"]))
        if "nodes" in wishes:
            _set_nodes(waiting, int(wishes["nodes"]), None)
        if "switches" in wishes:
            count, _, wait = wishes["switches"].partition("@")
            minutes, _, seconds = wait.partition(":")
            waiting.leaves, waiting.leaves_until = int(count), waiting.submitted + 60 * int(minutes) + int(seconds)
        levels = check_levels(plan.levels)
        if len(levels) > 1:
            one = Insisting(waiting=waiting, levels=levels, base=base)
            self.insisting[waiting.place] = one
            heapq.heappush(self.due, (one.due_s, waiting.place))

    def next_s(self, pending: Mapping[int, PendingSimJob]) -> float:
        """When a level of a job that still waits ends; inf: none does."""
        while self.due:
            moment, place = self.due[0]
            one = self.insisting.get(place)
            if one is not None and place in pending and moment >= one.due_s:
                return moment
            heapq.heappop(self.due)
            if place not in pending:
                self.insisting.pop(place, None)
        return inf

    def loosened(
        self, head: Sequence[PendingSimJob], pending: Mapping[int, PendingSimJob], now: float
    ) -> Iterator[Insisting]:
        """Whose next level is due: of the head of the queue, and of a tenth as many with a list of nodes behind it."""
        if self.next_s(pending) > now:
            return
        first = {waiting.place for waiting in head}
        spare = max(1, len(head) // 10)
        for place, one in list(self.insisting.items()):
            if place not in pending or one.due_s > now:
                continue
            if place not in first:
                if not one.pinned or not spare:
                    continue
                spare -= 1
            yield one

    def keys(self, one: Insisting, now: float) -> dict[str, str]:
        """Key → value that it is loosened to."""
        goal = find_due_level(one.levels, now - one.waiting.submitted)
        return {key: value for level in one.levels[one.at + 1 : goal + 1] for key, value in level.updates}

    def loosen(self, one: Insisting, now: float) -> None:
        """Does it."""
        waiting = one.waiting
        for key, value in self.keys(one, now).items():
            if key == _PINNED:
                waiting.allowed = one.base
            elif key == "NumNodes":
                _set_nodes(waiting, None, int(value.rpartition("-")[2]))
            elif key == "Switches":
                waiting.leaves = None
        one.at = find_due_level(one.levels, now - waiting.submitted)
        if one.at + 1 == len(one.levels):
            del self.insisting[waiting.place]
        else:
            heapq.heappush(self.due, (one.due_s, waiting.place))

    def _mask(self, hostlist: str) -> Bools:
        names = frozenset(expand(hostlist))
        return np.array([server.name in names for server in self.picture.servers], dtype=np.bool_)


def _combine_masks(allowed: Bools | None, mask: Bools) -> Bools:
    return mask if allowed is None else allowed & mask


def _set_nodes(waiting: PendingSimJob, nodes: int | None, most: int | None) -> None:
    waiting.nodes = nodes
    waiting.ask = ask_of(waiting.job.gpus, nodes, waiting.cpus, waiting.mem_mib, most)
