"""Reconciler: what slurmwrap does about waiting jobs in the model, and when. gsub at submission, passes afterwards.

A pass comes every `tick_s`, and soon after a job's end (EpilogSlurmctld wakes the reconciler), at most one per second;
each makes as many updates as production's token bucket has (placement/token_bucket.py). A pass in which nothing could
be different from the one before is left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from slurmwrap.placement.demand import Server
from slurmwrap.placement.token_bucket import Bucket, fill_bucket, take
from slurmwrap.sim.engines.free_resources import ROUNDING
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.engines.sim_placer import Placer
from slurmwrap.sim.engines.sim_tuner import Tuner, set_tuned_request

if TYPE_CHECKING:
    from slurmwrap.sim.engines.backfill_engine import BackfillSimulator

WAKE_S = 1.0  # reconcile/service_loop.py: nothing is done within the first second
_SOON_S = 2.0  # and when a change had to wait for its turn


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """`tuner`, `placer`: None where nothing is tuned, or placed."""

    servers: Sequence[Server]
    tuner: Tuner | None = None
    placer: Placer | None = None
    bucket: Bucket | None = None
    last: float = -inf  # the last pass
    seen: tuple[int, int] = (-1, -1)  # (what had happened, what had ended) then
    held_back: bool = False

    def submit(self, waiting: PendingSimJob, game: BackfillSimulator) -> None:
        if self.tuner is not None:
            self._tune(waiting, *self.tuner.lone(waiting), game)
        if self.placer is not None:
            self.placer.submit(waiting, game.floor, game.now)
            if waiting.leaves is not None:
                heapq.heappush(game.wakes, waiting.leaves_until)

    def next_s(self, game: BackfillSimulator) -> float:
        return min(self._to_tune_s(game), self._to_loosen_s(game))

    def _to_tune_s(self, game: BackfillSimulator) -> float:
        if self.tuner is None:
            return inf
        happened, ended = self.seen
        if self.held_back:
            return self.last + _SOON_S
        if ended != game.gone:
            return max(self.last + WAKE_S, game.freed + WAKE_S)
        if happened != game.happened or self.tuner.startable:
            return max(game.now, self.last + game.world.tick_s)
        return inf

    def _to_loosen_s(self, game: BackfillSimulator) -> float:
        """Who is due and not at the head waits until that moves."""
        due = inf if self.placer is None else self.placer.next_s(game.pending)
        if due <= self.last and self.seen[0] == game.happened and not self.held_back:
            return inf
        return max(due, self.last + game.world.tick_s)

    def look(self, game: BackfillSimulator) -> bool:
        """One pass; whether it changed any request."""
        self.last, self.held_back = game.now, False
        before = game.updates
        ready = game.in_order(2 * game.world.head)
        if self.placer is not None:
            self._loosen(self.placer, ready[: game.world.head], game)
        if self.tuner is not None:
            for change in self.tuner.changes(ready, self._servers(game), game.world.head, game.now):
                if not self._afford(change.keys, game):
                    break
                self._tune(change.waiting, change.cpus, change.mem_mib, game)
        self.seen = (game.happened, game.gone)
        if game.updates > before:
            game.touched()
        return game.updates > before

    def _tune(self, waiting: PendingSimJob, cpus: float, mem_mib: float, game: BackfillSimulator) -> None:
        """Never to what no empty cluster could hold, whatever the mechanism says: it would wait for ever."""
        before = waiting.cpus, waiting.mem_mib
        set_tuned_request(waiting, cpus, mem_mib)
        if game.empty.seats(waiting.ask, waiting.allowed) is None:
            set_tuned_request(waiting, *before)

    def _loosen(self, placer: Placer, head: Sequence[PendingSimJob], game: BackfillSimulator) -> None:
        for one in placer.loosened(head, game.pending, game.now):
            if not self._afford(len(placer.keys(one, game.now)), game):
                return
            placer.loosen(one, game.now)

    def _afford(self, count: int, game: BackfillSimulator) -> bool:
        per_s = game.world.updates_per_s
        rest = take(fill_bucket(self.bucket, game.now, per_s), count, per_s)
        if rest is None:
            self.held_back = True
            return False
        self.bucket = rest
        game.updates += count
        return True

    def _servers(self, game: BackfillSimulator) -> list[Server]:
        floor = game.floor
        return [
            replace(server, gpus_free=int(gpus), cpus_free=int(cpus + ROUNDING), mem_free_mib=int(mem))
            for server, gpus, cpus, mem in zip(self.servers, floor.gpus, floor.cpus, floor.mem_mib, strict=True)
        ]
