"""The rule `move` in the mode slurm: running jobs leave their GPUs at a checkpoint, so that others start.

Which job leaves is production's policy.move_choice.find_move, asked every `look_s` of the rule. A job writes a
checkpoint every `checkpoint_s` of its run. One that is moved does the work since the last one again, needs `restart_s`
to begin, and stays out of the queue for the rule's `headstart_s`. Then it waits again, in the class of the service that
it has had. As in production, no job can be told to start: the schedulers see that GPUs are free.

Expected run times are production's, from runs that have ended, or the true ones (`exact`).
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import ceil, inf

from slurmwrap.config.config_defaults import Move
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.policy.move_choice import (
    FEEDBACK,
    FRAGMENTATION,
    MoveCandidate,
    MoveNode,
    MoveView,
    PendingRequest,
    find_move,
)
from slurmwrap.sim.engines.free_resources import ROUNDING
from slurmwrap.sim.engines.pending_queue import PendingSimJob, RunningSimulation
from slurmwrap.sim.engines.queue_rules import QueueRules

# What `find_move` may do: both, or one of its two occasions that concern waiting jobs.
MOVES = {"both": (FEEDBACK, FRAGMENTATION), FEEDBACK: (FEEDBACK,), FRAGMENTATION: (FRAGMENTATION,)}
# Waiting jobs that are shown to `find_move`.
_WAITING = 50
# Seconds between two looks while nothing happens: only checkpoints and attained services change then.
_QUIET_LOOK_S = 300.0
# Seconds after which the expected run time of a job is looked up again, as QueueRules classifies jobs.
_EXPECT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMoveSettings:
    """`occasions`: of MOVES; (): no job is moved. `consent`: the share of jobs that may be moved, drawn job by job."""

    occasions: tuple[str, ...] = ()
    rule: Move = field(default_factory=Move)
    checkpoint_s: float = 1800.0
    restart_s: float = 60.0
    consent: float = 1.0
    exact: bool = False
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class RunningMoves:
    """The rule during one run. Jobs by their index in the trace."""

    settings: SimMoveSettings
    rules: QueueRules
    moved: dict[str, int] = field(default_factory=dict)  # occasion -> jobs
    lost_gpu_s: float = 0.0  # GPU time of work that was done again, and of restarts
    _last: float = -inf
    _seen: int = -1  # events that the simulator had counted at the last look
    _out: list[tuple[float, int, PendingSimJob]] = field(default_factory=list)  # out of the queue, until when
    _moved_at: dict[int, float] = field(default_factory=dict)
    # Expected run times of jobs, and when they were asked for.
    _expected: dict[int, tuple[float, RunTimeEstimate | None]] = field(default_factory=dict)

    def next_s(self, simulator: RunningSimulation) -> float:
        """Return when something is due: a look, or the return of a job to the queue."""
        back = self._out[0][0] if self._out else inf
        return min(back, self._next_look_s(simulator) if simulator.pending and simulator.running else inf)

    def _next_look_s(self, simulator: RunningSimulation) -> float:
        look_s = self.settings.rule.look_s
        return self._last + (look_s if simulator.happened != self._seen else max(look_s, _QUIET_LOOK_S))

    def take_back(self, simulator: RunningSimulation) -> bool:
        """Let moved jobs wait again; return whether any does."""
        changed = False
        while self._out and self._out[0][0] <= simulator.now:
            simulator.enqueue(heapq.heappop(self._out)[2])
            changed = True
        return changed

    def run_pass(self, simulator: RunningSimulation) -> bool:
        """Move what production would move now; return whether any job was."""
        if simulator.now < self._next_look_s(simulator) or not simulator.pending:
            return False
        self._last, self._seen = simulator.now, simulator.happened
        moving = len(self._out)
        while (jobs := self._find_jobs(simulator)) is not None:
            for one in jobs:
                self._move(one, simulator)
        return len(self._out) > moving

    def _find_jobs(self, simulator: RunningSimulation) -> list[PendingSimJob] | None:
        found = find_move(self._make_view(simulator), self.settings.rule)
        if found is None or found.occasion not in self.settings.occasions:
            return None
        self.moved[found.occasion] = self.moved.get(found.occasion, 0) + len(found.jobs)
        return [simulator.running[int(job)] for job in found.jobs]

    def _move(self, one: PendingSimJob, simulator: RunningSimulation) -> None:
        lost_s = self._count_unsaved_s(one, simulator.now) + self.settings.restart_s
        self.lost_gpu_s += lost_s * one.job.gpus
        self._moved_at[one.place] = simulator.now
        simulator.stop_run(one, lost_s)
        heapq.heappush(self._out, (simulator.now + self.settings.rule.headstart_s, one.place, one))

    # --- what production would see

    def _make_view(self, simulator: RunningSimulation) -> MoveView:
        free = simulator.free
        nodes = tuple(
            MoveNode(node=server.name, free=int(gpus), cpus_free=int(cpus + ROUNDING), mem_free_mib=int(mem + ROUNDING))
            for server, gpus, cpus, mem in zip(simulator.servers, free.gpus, free.cpus, free.mem_mib, strict=True)
        )
        candidates = (self._make_candidate(one, simulator) for one in simulator.running.values())
        waiting = (self._make_waiting(one, simulator.now) for one in simulator.list_pending(_WAITING))
        return MoveView(
            nodes=nodes,
            candidates=tuple(one for one in candidates if one is not None),
            waiting=tuple(waiting),
            total_gpus=sum(server.gpus for server in simulator.servers),
            moving_gpus=sum(one.job.gpus for *_, one in self._out),
        )

    def _make_candidate(self, one: PendingSimJob, simulator: RunningSimulation) -> MoveCandidate | None:
        settings, now = self.settings, simulator.now
        if not self._is_willing(one) or simulator.shares_gpu(one):
            return None
        attained_s = one.held_s + now - one.began
        remaining_s = one.ends - now if settings.exact else self._expect_remaining_s(one, attained_s, now)
        if remaining_s is None:
            return None
        units = one.seats.units[0]
        return MoveCandidate(
            job=str(one.place),
            gpus=tuple(
                (simulator.servers[server].name, count * one.ask.gpus)
                for server, count in zip(one.seats.servers, one.seats.units, strict=True)
            ),
            attained_s=attained_s,
            remaining_s=remaining_s,
            unsaved_s=self._count_unsaved_s(one, now),
            restart_s=settings.restart_s,
            order_class=self.rules.classify_attained(attained_s * one.job.gpus),
            moved_before_s=now - self._moved_at.get(one.place, -inf),
            cpus=int(units * one.ask.cpus),
            mem_mib=int(units * one.ask.mem_mib),
        )

    def _make_waiting(self, one: PendingSimJob, now: float) -> PendingRequest:
        ask = one.ask
        fixed = ask.least == ask.most
        units = ceil(ask.units / ask.least) if fixed else 1
        run_s = one.left_s if self.settings.exact and one.held_s else None
        if run_s is None:
            run_s = one.job.work_s if self.settings.exact else self._expect_remaining_s(one, one.held_s, now)
        return PendingRequest(
            job=str(one.place),
            gpus=ask.all_gpus,
            nodes=ask.least if fixed else None,
            run_s=inf if run_s is None else run_s,
            order_class=self.rules.get_class(one),
            cpus=ceil(units * ask.cpus - ROUNDING),
            mem_mib=ceil(units * ask.mem_mib - ROUNDING),
            allowed=one.names or frozenset(),
        )

    def _is_willing(self, one: PendingSimJob) -> bool:
        consent = self.settings.consent
        return consent >= 1 or random.Random(f"moves {self.settings.seed} {one.job.number}").random() < consent

    def _count_unsaved_s(self, one: PendingSimJob, now: float) -> float:
        """Return the work since the last checkpoint of this run, in seconds."""
        return (now - one.began) % self.settings.checkpoint_s

    def _expect_remaining_s(self, one: PendingSimJob, attained_s: float, now: float) -> float | None:
        """Return the expected remaining run time; None if nothing is known about jobs like this one."""
        since, estimate = self._expected.get(one.place, (-inf, None))
        if now >= since + _EXPECT_S:
            estimate = self.rules.estimate(one)
            self._expected[one.place] = now, estimate
        if estimate is None:
            return None
        remaining_s = estimate.expect_remaining_s(attained_s)
        return estimate.p90_s if remaining_s is None else remaining_s
