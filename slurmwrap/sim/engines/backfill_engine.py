"""Simulate a trace on Slurm: jobs arrive, the main scheduler and backfill start them, they end. Pure.

    main scheduler   when a job arrived or ended, and every `sched_interval_s`: strictly in the order of priority, in
                     each partition up to the first job that does not fit
    backfill         every `backfill_s`, if anything changed: shadow_time.py
    reconciler       every `tick_s`, if slurmwrap is simulated: pending requests are tuned and relaxed
    rules            order and time limits of pending jobs by predicted run times: queue_rules.py

Not simulated: multifactor priorities that change while a job waits, preemption, reservations, start-up times.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

from slurmwrap.config.load_config import Placement
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.demand import Server
from slurmwrap.placement.locality_wait import ClosenessForecast, forecast_closeness
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob
from slurmwrap.placement.throughput import find_speed
from slurmwrap.placement.token_bucket import Bucket, fill_bucket, take
from slurmwrap.sim import sim_throughput
from slurmwrap.sim.arrays import Bools
from slurmwrap.sim.engines.free_resources import (
    ROUNDING,
    ServerAssignment,
    group_by_partition,
    make_free_resources,
    make_idle_server,
)
from slurmwrap.sim.engines.gpu_sharing import PackSettings, make_gpu_sharing
from slurmwrap.sim.engines.pending_queue import PendingSimJob, make_pending_queue
from slurmwrap.sim.engines.queue_rules import QueueRules
from slurmwrap.sim.engines.shadow_time import ShadowTable
from slurmwrap.sim.engines.sim_moves import RunningMoves, SimMoveSettings
from slurmwrap.sim.engines.sim_placer import Placer
from slurmwrap.sim.engines.sim_request import Ask, count_fewest_servers, make_ask, make_typical_server, nodes_of
from slurmwrap.sim.engines.sim_tuner import Tuner, set_tuned_request
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.placement_bridge import SimSnapshot
from slurmwrap.sim.queue_policies import Fifo, Policy
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import Progress, SimOutcome


# Parameters of Slurm's schedulers and of slurmwrap, as far as they are simulated.
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParams:
    """Times in seconds. Slurm's defaults are those of slurm.conf(5), 22.05 to 24.11; slurmwrap's are its
    configuration's.

    A job's time limit is its own if the trace contains it; a job that runs longer is killed then. If the trace contains
    none, backfill assumes `limit_factor` times the job's run time at its share, or `limit_s`; then no job is killed.
    """

    sched_interval_s: float = 60.0  # sched_interval: how often the main scheduler goes through the whole queue
    queue_depth: int = 100  # default_queue_depth: jobs that it considers when a job arrived or ended
    backfill_s: float = 30.0  # bf_interval; 0: no backfill
    window_s: float = 86_400.0  # bf_window: no node is reserved for a job that would start later than that
    max_job_test: int = 500  # bf_max_job_test: jobs that one cycle considers
    resolution_s: float = 60.0  # bf_resolution: begin and end of what is reserved are rounded down to it
    # Ends of running jobs this close are looked at together, later ones twice this close and so on; 0: each one.
    group_s: float = 30.0
    limit_s: float = 86_400.0
    limit_factor: float | None = None
    # On the trace's clock: no job starts earlier, as while its partition is down.
    opens_s: float = 0.0
    # From a job's end until its GPUs can be allocated again: Epilog, COMPLETING.
    react_s: float = 0.0
    # Partition → its servers; a partition that is not listed has all of them.
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    servers_per_leaf: int | None = None  # number of servers under each leaf switch; None: no network
    max_switch_wait_s: int = 300  # SchedulerParameters=max_switch_wait
    # Model → factor on the run time of a job that runs on distant servers.
    spread_slowdown: Mapping[str, float] = field(default_factory=dict)
    tick_s: float = 15.0  # slurmwrap reconcile --poll
    updates_per_s: float = Placement().relax_updates_per_s
    head: int = Placement().relax_jobs  # pending jobs that a pass may change
    lag_s: float = 0.0  # by how much gsub takes longer than sbatch; only if slurmwrap is simulated
    jitter_s: float = 0.0  # every run takes up to this much longer
    seed: int = 0  # seed of the jitter
    pack: PackSettings = field(default_factory=PackSettings)  # who shares a GPU
    move: SimMoveSettings = field(default_factory=SimMoveSettings)  # which running jobs are moved
    # GPUs from which on it is measured how long a job waits although as many GPUs are free; 0: not measured.
    scattered_gpus: int = 0


# What slurmwrap does about pending jobs in the simulation, and when: gsub at submission, passes of the reconciler
# later.
#
# A pass comes every `tick_s`, and soon after a job's end (EpilogSlurmctld wakes the reconciler), at most one per
# second. Each makes as many updates as production's token bucket contains (placement/token_bucket.py). A pass that
# could change nothing since the one before is skipped.
#
# As in reconcile/reconcile_pass.py, a pass takes place one second after the one before, and after a job's end, at the
# earliest.
WAKE_S = 1.0
# Seconds until the next pass when the token bucket held an update back.
_SOON_S = 2.0


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """The simulated reconciler. `tuner`, `placer`: None if nothing is tuned, or placed."""

    servers: Sequence[Server]
    tuner: Tuner | None = None
    placer: Placer | None = None
    bucket: Bucket | None = None
    last: float = -inf  # time of the last pass
    # Events and ended jobs that the simulator had counted at the last pass.
    seen: tuple[int, int] = (-1, -1)
    held_back: bool = False

    def submit(self, waiting: PendingSimJob, simulator: BackfillSimulator) -> None:
        if self.tuner is not None:
            self._tune(waiting, *self.tuner.tune_alone(waiting), simulator)
        if self.placer is not None:
            self.placer.submit(waiting, simulator.free, simulator.now)
            if waiting.leaves is not None:
                heapq.heappush(simulator.wakes, waiting.leaves_until)

    def next_s(self, simulator: BackfillSimulator) -> float:
        return min(self._next_tuning_s(simulator), self._next_relaxation_s(simulator))

    def _next_tuning_s(self, simulator: BackfillSimulator) -> float:
        if self.tuner is None:
            return inf
        happened, ended = self.seen
        if self.held_back:
            return self.last + _SOON_S
        if ended != simulator.gone:
            return max(self.last + WAKE_S, simulator.freed + WAKE_S)
        if happened != simulator.happened or self.tuner.startable:
            return max(simulator.now, self.last + simulator.world.tick_s)
        return inf

    def _next_relaxation_s(self, simulator: BackfillSimulator) -> float:
        """Return when the next relaxation is due. A due job that is not at the head waits until the head changes."""
        due = inf
        if self.placer is not None:
            due = self.placer.next_s(simulator.pending)
            if self.placer.is_watching(simulator.pending) or (self.placer.run_times and self._has_news(simulator)):
                return max(simulator.now, self.last + simulator.world.tick_s)
        if due <= self.last and self.seen[0] == simulator.happened and not self.held_back:
            return inf
        return max(due, self.last + simulator.world.tick_s)

    def _has_news(self, simulator: BackfillSimulator) -> bool:
        return self.seen[0] != simulator.happened

    def run_pass(self, simulator: BackfillSimulator) -> bool:
        """Run one pass and return whether it changed any request."""
        self.last, self.held_back = simulator.now, False
        before = simulator.updates
        ready = simulator.list_pending(2 * simulator.world.head)
        if self.placer is not None:
            self._relax(self.placer, ready[: simulator.world.head], simulator)
        if self.tuner is not None:
            for change in self.tuner.changes(ready, self._servers(simulator), simulator.world.head, simulator.now):
                if not self._take_tokens(change.keys, simulator):
                    break
                self._tune(change.waiting, change.cpus, change.mem_mib, simulator)
        self.seen = (simulator.happened, simulator.gone)
        if simulator.updates > before:
            simulator.mark_changed()
        return simulator.updates > before

    def _tune(self, waiting: PendingSimJob, cpus: float, mem_mib: float, simulator: BackfillSimulator) -> None:
        """Set the job's CPUs and memory, but never to what no empty cluster could hold: the job would wait for ever."""
        before = waiting.cpus, waiting.mem_mib
        set_tuned_request(waiting, cpus, mem_mib)
        if simulator.empty.seats(waiting.ask, waiting.allowed) is None:
            set_tuned_request(waiting, *before)

    def _relax(self, placer: Placer, head: Sequence[PendingSimJob], simulator: BackfillSimulator) -> None:
        hopeless = placer.list_hopeless(head, simulator) if placer.run_times else ()
        for one in (*hopeless, *placer.list_due(head, simulator.pending, simulator.now)):
            if not self._take_tokens(len(placer.keys(one, simulator.now)), simulator):
                return
            placer.relax(one, simulator.now)

    def _take_tokens(self, count: int, simulator: BackfillSimulator) -> bool:
        """Take tokens for `count` updates; if there are too few, the updates are held back until the next pass."""
        per_s = simulator.world.updates_per_s
        rest = take(fill_bucket(self.bucket, simulator.now, per_s), count, per_s)
        if rest is None:
            self.held_back = True
            return False
        self.bucket = rest
        simulator.updates += count
        return True

    def _servers(self, simulator: BackfillSimulator) -> list[Server]:
        free = simulator.free
        return [
            replace(server, gpus_free=int(gpus), cpus_free=int(cpus + ROUNDING), mem_free_mib=int(mem))
            for server, gpus, cpus, mem in zip(self.servers, free.gpus, free.cpus, free.mem_mib, strict=True)
        ]


# Events closer together than this happen at the same moment.
SOON = 1e-9
# Steps between two calls of `progress`.
_PROGRESS_STEPS = 1000


def play_backfill(
    jobs: Sequence[SimJob],
    servers: Sequence[Server],
    *,
    world: SchedulerParams,
    policy: Policy | None = None,
    rules: QueueRules | None = None,
    mechanism: Mechanism | None = None,
    profiles: Mapping[str, ResourceProfile],
    placement: str = "any",
    progress: Progress | None = None,
    run_times: Mapping[int, RunTimeEstimate] | None = None,
) -> SimOutcome:
    """Simulate `jobs` (in the order of submission) to their end on `servers`, with what the servers have free.

    `policy`: orders the queue; None: first come, first served. `rules`: change order and time limits of pending jobs.
    `mechanism`: divides CPUs and memory among pending jobs as slurmwrap does; None: plain Slurm. `profiles`: by
    SimJob.model. `placement`: any | consolidate | skew. `run_times`: what slurmwrap expects of the jobs, by index; with
    it, forecasts decide how long a job whose loss on distant servers is known waits for close ones. A job that no empty
    cluster could hold never starts: Slurm refuses it. ValueError for an unknown placement or no servers.
    """
    if placement not in ("any", "consolidate", "skew"):
        raise ValueError(f"there is no placement '{placement}': any, consolidate or skew")
    if not servers:
        raise ValueError("there are no servers")
    with_slurmwrap = mechanism is not None or placement == "skew"
    simulator = BackfillSimulator(
        jobs,
        servers,
        world,
        policy,
        rules,
        profiles,
        placement == "consolidate",
        world.lag_s if with_slurmwrap else 0.0,
    )
    if not with_slurmwrap:
        return simulator.run(None, progress)
    tuner = None if mechanism is None else Tuner(mechanism=mechanism, like=simulator.like)
    placer = _make_placer(servers, world, profiles, run_times or {}) if placement == "skew" else None
    return simulator.run(Reconciler(servers=servers, tuner=tuner, placer=placer), progress)


def _make_placer(
    servers: Sequence[Server],
    world: SchedulerParams,
    profiles: Mapping[str, ResourceProfile],
    run_times: Mapping[int, RunTimeEstimate],
) -> Placer:
    picture = SimSnapshot(
        servers=servers,
        partitions=world.partitions,
        servers_per_leaf=world.servers_per_leaf,
        max_switch_wait_s=world.max_switch_wait_s,
    )
    return Placer(picture=picture, profiles=profiles, run_times=run_times)


class BackfillSimulator:
    """The state of one run. `place` of a job, and the key of its dicts: the job's index in `jobs`."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        servers: Sequence[Server],
        world: SchedulerParams,
        policy: Policy | None,
        rules: QueueRules | None,
        profiles: Mapping[str, ResourceProfile],
        by_node: bool,
        lag_s: float,
    ) -> None:
        self.jobs, self.servers, self.world = jobs, servers, world
        self.in_turn = policy is None or policy.name == "fifo"
        self.rules = rules
        self.sharing = make_gpu_sharing(world.pack)
        self.moves = None
        if world.move.occasions:
            if rules is None or not rules.index:
                raise ValueError("jobs are moved by the classes of an order")
            self.moves = RunningMoves(settings=world.move, rules=rules)
        self.queue = make_pending_queue(jobs, policy or Fifo())
        self.like = make_typical_server(servers)
        self.points = sim_throughput.list_model_speeds(profiles, self.like)
        self.by_node, self.lag_s = by_node, lag_s
        self.free = make_free_resources(servers, world.servers_per_leaf)
        self.empty = make_free_resources([make_idle_server(server) for server in servers], world.servers_per_leaf)
        self.shadow = ShadowTable(self.free, max(server.gpus for server in servers))
        self.pools = group_by_partition(servers, world.partitions)
        self.now = 0.0
        self.steps = self.updates = self.gone = self.preemptions = 0
        self.happened = 0  # number of submissions, starts and ends so far
        # When the last job ended.
        self.freed = -inf
        self.pending: dict[int, PendingSimJob] = {}
        self.running: dict[int, PendingSimJob] = {}
        self.ends: list[tuple[float, int]] = []
        self.wakes = [world.opens_s]  # moments at which a pending job may become able to start
        self.stuck = False  # the first job does not fit, and nothing was released since
        self.dirty = False  # something happened since the last cycle of backfill
        self.last_cycle = self.last_whole = -inf
        self.began: list[float | None] = [None] * len(jobs)
        self.ended: list[float | None] = [None] * len(jobs)
        self.held = [0.0] * len(jobs)
        self.spread = [0] * len(jobs)
        self.scattered = [0.0] * (len(jobs) if world.scattered_gpus else 0)

    def run(self, reconciler: Reconciler | None, progress: Progress | None) -> SimOutcome:
        """Simulate to the end: go from one moment at which anything may happen to the next.

        At each moment: release what ended, submit new jobs, let the reconciler make a pass if one is due, then run the
        main scheduler if anything changed and a backfill cycle if one is due.
        """
        coming = sorted(range(len(self.jobs)), key=lambda index: (self.jobs[index].submit_s, index), reverse=True)
        while (moment := self._next_moment(coming, reconciler)) < inf:
            if self.world.scattered_gpus:
                self._measure_scattered(max(0.0, moment - self.now))
            self.now = max(self.now, moment)
            self.steps += 1
            changed = self._release()
            while coming and self._seen_s(coming[-1]) <= self.now + SOON:
                changed |= self._submit(coming.pop(), reconciler)
                # The plan of the next job must see where this one started.
                if reconciler is not None:
                    self._schedule()
            if self.moves is not None:
                changed |= self.moves.take_back(self)
            if self.rules is not None:
                changed |= self._reorder(self.rules)
            if reconciler is not None and self.pending and self.now >= reconciler.next_s(self) - SOON:
                changed |= reconciler.run_pass(self)
            if changed:
                self._schedule()
            if self.dirty and self.pending and self.now >= self._cycle_at() - SOON:
                self._backfill()
            if self.sharing is not None and self.sharing.join_waiting(self):
                self.mark_changed()
            if self.moves is not None and self.moves.run_pass(self):
                self._schedule()
            if progress is not None and self.steps % _PROGRESS_STEPS == 0:
                progress(self.gone, len(self.jobs))
        if progress is not None:
            progress(self.gone, len(self.jobs))
        return self._outcome()

    # ------------------------------------------------------------------------------------------- the clock

    def _next_moment(self, coming: Sequence[int], reconciler: Reconciler | None) -> float:
        """Return the next moment at which anything may happen; inf: none."""
        moment = self.ends[0][0] if self.ends else inf
        if coming:
            moment = min(moment, self._seen_s(coming[-1]))
        if self.wakes:
            moment = min(moment, self.wakes[0])
        if self.rules is not None:
            moment = min(moment, self.rules.next_s())
        if self.pending and self.dirty:
            moment = min(moment, self._cycle_at())
        if self.pending and reconciler is not None:
            moment = min(moment, reconciler.next_s(self))
        if self.moves is not None:
            moment = min(moment, self.moves.next_s(self))
        return moment

    def _cycle_at(self) -> float:
        world = self.world
        return max(self.now, self.last_cycle + world.backfill_s, world.opens_s) if world.backfill_s else inf

    def _seen_s(self, index: int) -> float:
        return self.jobs[index].submit_s + self.lag_s

    def _release(self) -> bool:
        """Release what jobs that ended held; return whether a pending job may be able to start now."""
        changed = False
        while self.ends and self.ends[0][0] <= self.now + SOON:
            moment, index = heapq.heappop(self.ends)
            one = self.running.get(index)
            if one is None or moment != one.ends + self.world.react_s:
                continue  # its end was moved since
            del self.running[index]
            if self.sharing is None or not self.sharing.end(one, self):
                self._give_back(one)
            if self.rules is not None:
                self.rules.end(one, self.held[index])
            self.gone += 1
            self.happened += 1
            self.freed = self.now
            changed = True
        while self.wakes and self.wakes[0] <= self.now + SOON:
            heapq.heappop(self.wakes)
            changed = True
        if changed:
            self.stuck, self.dirty = False, True
        return changed

    def _give_back(self, one: PendingSimJob) -> None:
        self.free.give_back(one.ask, one.seats)
        self.shadow.ends(one.place, one.seats)

    def _submit(self, index: int, reconciler: Reconciler | None) -> bool:
        """Submit a job and return whether Slurm accepts it: it must fit on the empty cluster."""
        job = self.jobs[index]
        points = self.points.get(job.model, ())
        nodes = nodes_of(job, self.like, by_node=self.by_node or bool(points))
        cpus, memory = sim_throughput.compute_requested(job, self.like)
        waiting = PendingSimJob(
            place=index, job=job, points=points, nodes=nodes, cpus=cpus, mem_mib=memory, asked=(cpus, memory),
            ask=make_ask(job.gpus, nodes, cpus, memory), length_s=self._limit_s(job), submitted=self.now,
            allowed=self.pools.get(job.partition), names=self.world.partitions.get(job.partition),
        )  # fmt: skip
        if job.gpus < 1 or self.empty.seats(waiting.ask, waiting.allowed) is None:
            self.gone += 1
            return False
        if reconciler is not None:
            reconciler.submit(waiting, self)
        self.enqueue(waiting)
        return True

    def enqueue(self, waiting: PendingSimJob) -> None:
        """Let a job wait: a new one, or one that was stopped."""
        waiting.submitted = self.now
        if self.sharing is not None:
            self.sharing.submit(waiting, self)
        self.pending[waiting.place] = waiting
        self.queue.join(waiting, None if self.rules is None else self.rules.submit(waiting, self.now))
        self.happened += 1
        self.dirty = True

    def _reorder(self, rules: QueueRules) -> bool:
        """Move pending jobs whose class changed; return whether any did."""
        moves = rules.list_moves(self.now)
        for waiting, key in moves:
            self.queue.move(waiting, key)
        if moves:
            self.mark_changed()
        return bool(moves)

    def mark_changed(self) -> None:
        """Note that a pending request was changed: a job that did not fit may fit now."""
        self.stuck, self.dirty = False, True

    def _limit_s(self, job: SimJob) -> float:
        """Return the run time that backfill assumes at most."""
        if job.limit_s is not None:
            return job.limit_s
        return self.world.limit_s if self.world.limit_factor is None else self.world.limit_factor * job.work_s

    def fits(self, ask: Ask, allowed: Bools | None) -> bool:
        """Return whether this request fits now."""
        return self.free.seats(ask, allowed, None) is not None

    def forecast(
        self,
        waiting: PendingSimJob,
        ahead: Sequence[PendingSimJob],
        fewest: int,
        run_times: Mapping[int, RunTimeEstimate],
    ) -> ClosenessForecast:
        """Return when the job is expected to start on `fewest` servers, and on any."""
        nodes = [
            NodeGpus(node=server.name, partitions=(), free=int(gpus))
            for server, gpus in zip(self.servers, self.free.gpus, strict=True)
        ]
        running = [
            RunningJob(
                gpus=tuple(
                    (self.servers[int(server)].name, int(units) * one.ask.gpus)
                    for server, units in zip(one.seats.servers, one.seats.units, strict=True)
                ),
                elapsed_s=self.now - one.began,
                limit_s=one.length_s,
                estimate=run_times.get(place),
            )
            for place, one in self.running.items()
        ]
        queue = [_make_queued_job(one, run_times) for one in (*ahead, waiting)]
        return forecast_closeness(queue[-1], fewest, nodes, running, queue[:-1])

    def _measure_scattered(self, seconds: float) -> None:
        """Add these seconds to the large jobs that do not start although as many GPUs are free."""
        least, free = self.world.scattered_gpus, self.free.free_gpus
        for index, waiting in self.pending.items() if free >= least else ():
            if least <= waiting.ask.all_gpus <= free and self.free.seats(waiting.ask, waiting.allowed) is None:
                self.scattered[index] += seconds

    # ------------------------------------------------------------------------------------------- the schedulers

    def list_pending(self, most: int) -> list[PendingSimJob]:
        """Return the first `most` pending jobs, highest priority first."""
        return self.queue.first(most, self.now)

    def _schedule(self) -> None:
        """Run the main scheduler: strictly in order, each partition up to its first job that does not fit."""
        if self.now < self.world.opens_s or not self.free.free_gpus:
            return
        if self.in_turn and not self.pools:
            while self.pending and not self.stuck:
                self.stuck = not self._try_to_start(self.queue.first(1, self.now)[0])
            return
        whole = self.now >= self.last_whole + self.world.sched_interval_s
        if whole:
            self.last_whole = self.now
        failed: set[str] = set()
        for waiting in self.queue.walk(len(self.queue) if whole else self.world.queue_depth, self.now):
            name = waiting.job.partition if waiting.job.partition in self.pools else ""
            if name not in failed and not self._try_to_start(waiting):
                failed.add(name)
                if len(failed) > len(self.pools):
                    return

    def _try_to_start(self, waiting: PendingSimJob) -> bool:
        """Start the job if it fits now; return whether it did."""
        assignment = self.free.seats(waiting.ask, waiting.allowed, waiting.leaves_at(self.now))
        if assignment is not None:
            self._start_job(waiting, assignment)
        return assignment is not None

    def _backfill(self) -> None:
        """Run one backfill cycle; it ends early if no pending job can use any server with a free GPU."""
        world, shadow = self.world, self.shadow
        self.last_cycle, self.dirty = self.now, False
        if not self.free.free_gpus:
            return
        shadow.open(self.now, self.now + 1.0, world.group_s)
        queue = self.list_pending(world.max_job_test)
        least = self.now + min(map(attrgetter("length_s"), queue))
        # Request → the shortest time limit with which it fitted nowhere in this cycle.
        hopeless: dict[object, float] = {}
        for waiting in queue:
            if shadow.free_until() < least:
                return
            self._start_or_plan(waiting, hopeless)

    def _start_or_plan(self, waiting: PendingSimJob, hopeless: dict[object, float]) -> None:
        """Start the job if it fits now, else reserve nodes for it.

        What is started and reserved in a cycle only makes it harder for later jobs. So a request that fitted nowhere is
        not tried again for a job with the same request and at least the same time limit (`hopeless`).
        """
        shadow, length, leaves = self.shadow, waiting.length_s, waiting.leaves_at(self.now)
        asked = (waiting.ask, id(waiting.allowed), leaves)
        if length < hopeless.get(asked, inf):
            assignment = shadow.seats(waiting.ask, length, waiting.allowed, leaves)
            if assignment is not None:
                self._start_job(waiting, assignment)
                return
            hopeless[asked] = length
        later = ("later", asked)
        if length < hopeless.get(later, inf):
            found = shadow.plan(waiting.ask, length, waiting.allowed, self.now + self.world.window_s)
            if found is None:
                hopeless[later] = length
            else:
                shadow.keep(found[1], self._rounded(found[0]), self._rounded(found[0] + length))

    def _rounded(self, moment: float) -> float:
        step = self.world.resolution_s
        return moment // step * step if step else moment

    # ------------------------------------------------------------------------------------------- runs

    def _start_job(self, waiting: PendingSimJob, assignment: ServerAssignment) -> None:
        """Start the job on these servers, and compute when it ends."""
        self.free.take(waiting.ask, assignment)
        self.shadow.begins(waiting.place, waiting.ask, assignment, self.now + waiting.most_s)
        self.begin_run(waiting, assignment)
        if self.sharing is not None:
            self.sharing.begin(waiting)

    def begin_run(self, waiting: PendingSimJob, assignment: ServerAssignment) -> None:
        """Let a pending job run on servers that it holds already, and compute when it ends."""
        index = waiting.place
        del self.pending[index]
        self.queue.leave(waiting)
        self.happened += 1
        waiting.began = waiting.since = self.now
        waiting.seats = assignment
        run_s = waiting.left_s = self._run_s(waiting) if self.began[index] is None else waiting.left_s
        waiting.ends = self.now + run_s
        self.running[index] = waiting
        if self.rules is not None:
            self.rules.begin(waiting)
        self.spread[index] = len(assignment.servers)
        if self.began[index] is None:
            self.began[index] = self.now
        self.note_end(waiting)

    def stop_run(self, one: PendingSimJob, lost_s: float) -> None:
        """Take the GPUs from a running job that has to do so many seconds again; it does not wait yet."""
        one.set_speed(1.0, self.now)
        one.left_s += lost_s
        one.held_s += self.now - one.began
        del self.running[one.place]
        if self.sharing is None or not self.sharing.end(one, self):
            self._give_back(one)
        self.ended[one.place], self.held[one.place] = None, one.held_s
        self.happened += 1
        self.freed = self.now
        self.preemptions += 1
        self.mark_changed()

    def shares_gpu(self, one: PendingSimJob) -> bool:
        """Return whether another job runs on the GPU of this one."""
        return self.sharing is not None and self.sharing.has_pair(one)

    def assume_end(self, holder: PendingSimJob, heir: PendingSimJob, ends: float) -> None:
        """Assume that what `holder` has got will be free at `ends`; `heir` holds it from now on."""
        self.shadow.ends(holder.place, holder.seats)
        self.shadow.begins(heir.place, heir.ask, heir.seats, ends)

    def change_speed(self, one: PendingSimJob, speed: float) -> None:
        """Let a running job run at this speed from now on."""
        one.set_speed(speed, self.now)
        self.note_end(one)

    def note_end(self, one: PendingSimJob) -> None:
        """Note when a running job will end, as things are."""
        heapq.heappush(self.ends, (one.ends + self.world.react_s, one.place))
        self.ended[one.place] = one.ends
        self.held[one.place] = one.held_s + one.ends - one.began

    def _run_s(self, waiting: PendingSimJob) -> float:
        """Return for how long the job runs. It is killed at its time limit if that is known."""
        job, world = waiting.job, self.world
        run_s = job.work_s
        if waiting.points:
            given = find_speed(waiting.points, waiting.cpus, waiting.mem_mib)
            at_share = find_speed(waiting.points, *sim_throughput.compute_share(self.like))
            if given > 0 and at_share > 0:
                run_s = sim_throughput.compute_share_work_s(job, waiting.points, self.like) * at_share / given
        if world.spread_slowdown and self._is_apart(waiting):
            run_s *= world.spread_slowdown.get(job.model, 1.0)
        if world.jitter_s:
            run_s += world.jitter_s * random.Random(f"{world.seed} {job.number}").random()
        return run_s if job.limit_s is None else min(run_s, job.limit_s)

    def _is_apart(self, waiting: PendingSimJob) -> bool:
        """Return whether the job runs on more servers than it needs, or under several leaf switches."""
        leaf, assignment = self.free.leaf, waiting.seats
        if len(assignment.servers) > max(waiting.job.nodes or 1, count_fewest_servers(waiting.job, self.like)):
            return True
        return leaf is not None and len({int(leaf[server]) for server in assignment.servers}) > 1

    def _outcome(self) -> SimOutcome:
        return SimOutcome(
            mode="slurm",
            began_s=tuple(self.began),
            ended_s=tuple(self.ended),
            held_s=tuple(self.held),
            servers=tuple(self.spread),
            preemptions=self.preemptions,
            updates=self.updates,
            steps=self.steps,
            scattered_s=tuple(self.scattered),
            packed=0 if self.sharing is None else self.sharing.joined,
            shared_s=0.0 if self.sharing is None else self.sharing.shared_s,
        )


def _make_queued_job(waiting: PendingSimJob, run_times: Mapping[int, RunTimeEstimate]) -> QueuedJob:
    return QueuedJob(
        job=waiting.name,
        gpus=waiting.job.gpus,
        nodes=waiting.nodes,
        limit_s=waiting.length_s,
        estimate=run_times.get(waiting.place),
    )
