"""Plays a trace on Slurm: jobs come, the main scheduler and backfill start them, they end. Pure.

    main scheduler   when a job came or ended, and every `sched_interval_s`: strictly in the order of priority, in each
                     partition up to the first job that does not fit
    backfill         every `backfill_s`, if anything changed: shadow_time.py
    reconciler       every `tick_s`, where slurmwrap is played: waiting requests are tuned and loosened

What is left out: multifactor priorities that change while a job waits, preemption, reservations, start-up times.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from slurmwrap.config.load_config import Placement
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import Server
from slurmwrap.placement.throughput import find_speed
from slurmwrap.placement.token_bucket import Bucket, fill_bucket, take
from slurmwrap.sim import sim_throughput
from slurmwrap.sim.engines.free_resources import ROUNDING, Seats, empty_server, floor_of, group_by_partition
from slurmwrap.sim.engines.pending_queue import PendingSimJob, line_of
from slurmwrap.sim.engines.shadow_time import ShadowTable
from slurmwrap.sim.engines.sim_placer import Placer
from slurmwrap.sim.engines.sim_request import ask_of, count_fewest_servers, make_typical_server, nodes_of
from slurmwrap.sim.engines.sim_tuner import Tuner, set_tuned_request
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.placement_bridge import SimSnapshot
from slurmwrap.sim.queue_policies import Fifo, Policy
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import Progress, SimOutcome

if TYPE_CHECKING:
    pass


# World: Slurm's habits and slurmwrap's, as far as the model knows them.
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParams:
    """Seconds. Slurm's defaults are those of slurm.conf(5), 22.05 to 24.11; slurmwrap's are its configuration's.

    A job's time limit is its own where the trace has it; a job that runs longer is killed there. Where no one says
    it, backfill believes `limit_factor` times the job's run time at its share, or `limit_s`; no one is killed then.
    """

    sched_interval_s: float = 60.0  # sched_interval: how often the main scheduler looks at the whole queue
    queue_depth: int = 100  # default_queue_depth: jobs that it looks at when a job came or ended
    backfill_s: float = 30.0  # bf_interval; 0: no backfill
    window_s: float = 86_400.0  # bf_window: no node is kept for a job that would start later than that
    max_job_test: int = 500  # bf_max_job_test: jobs that one cycle looks at
    resolution_s: float = 60.0  # bf_resolution: begin and end of what is kept are rounded down to it
    group_s: float = 30.0  # ends of running jobs so close are looked at together, later ones twice so close, …; 0: each
    limit_s: float = 86_400.0
    limit_factor: float | None = None
    opens_s: float = 0.0  # on the trace's clock: no job starts before, as while its partition is down
    react_s: float = 0.0  # from a job's end until its GPUs can be given away: Epilog, COMPLETING
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # partition → servers; others: all of them
    servers_per_leaf: int | None = None  # that many servers under each leaf switch; None: no network
    max_switch_wait_s: int = 300  # SchedulerParameters=max_switch_wait
    spread_slowdown: Mapping[str, float] = field(default_factory=dict)  # model → run time × this where it lies apart
    tick_s: float = 15.0  # slurmwrap reconcile --poll
    updates_per_s: float = Placement().relax_updates_per_s
    head: int = Placement().relax_jobs  # waiting jobs that a pass may change
    lag_s: float = 0.0  # what gsub takes longer than sbatch; only where slurmwrap is played
    jitter_s: float = 0.0  # every run takes up to so much longer
    seed: int = 0  # of the jitter


# Reconciler: what slurmwrap does about waiting jobs in the model, and when. gsub at submission, passes afterwards.
#
# A pass comes every `tick_s`, and soon after a job's end (EpilogSlurmctld wakes the reconciler), at most one per
# second; each makes as many updates as production's token bucket has (placement/token_bucket.py). A pass in which
# nothing could be different from the one before is left out.
# reconcile/reconcile_pass.py: nothing is done within the first second
WAKE_S = 1.0
# And when a change had to wait for its turn.
_SOON_S = 2.0


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """`tuner`, `placer`: None where nothing is tuned, or placed."""

    servers: Sequence[Server]
    tuner: Tuner | None = None
    placer: Placer | None = None
    bucket: Bucket | None = None
    last: float = -inf  # the last pass
    # (what had happened, what had ended) then
    seen: tuple[int, int] = (-1, -1)
    held_back: bool = False

    def submit(self, waiting: PendingSimJob, simulator: BackfillSimulator) -> None:
        if self.tuner is not None:
            self._tune(waiting, *self.tuner.lone(waiting), simulator)
        if self.placer is not None:
            self.placer.submit(waiting, simulator.floor, simulator.now)
            if waiting.leaves is not None:
                heapq.heappush(simulator.wakes, waiting.leaves_until)

    def next_s(self, simulator: BackfillSimulator) -> float:
        return min(self._to_tune_s(simulator), self._to_loosen_s(simulator))

    def _to_tune_s(self, simulator: BackfillSimulator) -> float:
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

    def _to_loosen_s(self, simulator: BackfillSimulator) -> float:
        """Who is due and not at the head waits until that moves."""
        due = inf if self.placer is None else self.placer.next_s(simulator.pending)
        if due <= self.last and self.seen[0] == simulator.happened and not self.held_back:
            return inf
        return max(due, self.last + simulator.world.tick_s)

    def look(self, simulator: BackfillSimulator) -> bool:
        """One pass; whether it changed any request."""
        self.last, self.held_back = simulator.now, False
        before = simulator.updates
        ready = simulator.in_order(2 * simulator.world.head)
        if self.placer is not None:
            self._loosen(self.placer, ready[: simulator.world.head], simulator)
        if self.tuner is not None:
            for change in self.tuner.changes(ready, self._servers(simulator), simulator.world.head, simulator.now):
                if not self._afford(change.keys, simulator):
                    break
                self._tune(change.waiting, change.cpus, change.mem_mib, simulator)
        self.seen = (simulator.happened, simulator.gone)
        if simulator.updates > before:
            simulator.touched()
        return simulator.updates > before

    def _tune(self, waiting: PendingSimJob, cpus: float, mem_mib: float, simulator: BackfillSimulator) -> None:
        """Never to what no empty cluster could hold, whatever the mechanism says: it would wait for ever."""
        before = waiting.cpus, waiting.mem_mib
        set_tuned_request(waiting, cpus, mem_mib)
        if simulator.empty.seats(waiting.ask, waiting.allowed) is None:
            set_tuned_request(waiting, *before)

    def _loosen(self, placer: Placer, head: Sequence[PendingSimJob], simulator: BackfillSimulator) -> None:
        for one in placer.loosened(head, simulator.pending, simulator.now):
            if not self._afford(len(placer.keys(one, simulator.now)), simulator):
                return
            placer.loosen(one, simulator.now)

    def _afford(self, count: int, simulator: BackfillSimulator) -> bool:
        per_s = simulator.world.updates_per_s
        rest = take(fill_bucket(self.bucket, simulator.now, per_s), count, per_s)
        if rest is None:
            self.held_back = True
            return False
        self.bucket = rest
        simulator.updates += count
        return True

    def _servers(self, simulator: BackfillSimulator) -> list[Server]:
        floor = simulator.floor
        return [
            replace(server, gpus_free=int(gpus), cpus_free=int(cpus + ROUNDING), mem_free_mib=int(mem))
            for server, gpus, cpus, mem in zip(self.servers, floor.gpus, floor.cpus, floor.mem_mib, strict=True)
        ]


# What happens at one moment.
SOON = 1e-9
# Steps between two calls of progress.
_TOLD = 1000


def play_backfill(
    jobs: Sequence[SimJob],
    servers: Sequence[Server],
    *,
    world: SchedulerParams,
    policy: Policy | None = None,
    mechanism: Mechanism | None = None,
    profiles: Mapping[str, ResourceProfile],
    placement: str = "any",
    progress: Progress | None = None,
) -> SimOutcome:
    """Runs `jobs` (in the order of submission) to their end on `servers`, which are free but for what they say.

    `policy`: orders the queue; None: first come, first served. `mechanism`: divides CPUs and memory among waiting jobs
    as slurmwrap does; None: plain Slurm. `profiles`: by SimJob.model. `placement`: any | consolidate | skew. A job that
    no empty cluster could hold never starts: Slurm refuses it. ValueError for an unknown placement or no servers.
    """
    if placement not in ("any", "consolidate", "skew"):
        raise ValueError(f"there is no placement '{placement}': any, consolidate or skew")
    if not servers:
        raise ValueError("there are no servers")
    ours = mechanism is not None or placement == "skew"
    simulator = BackfillSimulator(
        jobs, servers, world, policy, profiles, placement == "consolidate", world.lag_s if ours else 0.0
    )
    if not ours:
        return simulator.run(None, progress)
    tuner = None if mechanism is None else Tuner(mechanism=mechanism, like=simulator.like)
    placer = _make_placer(servers, world, profiles) if placement == "skew" else None
    return simulator.run(Reconciler(servers=servers, tuner=tuner, placer=placer), progress)


def _make_placer(servers: Sequence[Server], world: SchedulerParams, profiles: Mapping[str, ResourceProfile]) -> Placer:
    picture = SimSnapshot(
        servers=servers,
        partitions=world.partitions,
        servers_per_leaf=world.servers_per_leaf,
        max_switch_wait_s=world.max_switch_wait_s,
    )
    return Placer(picture=picture, profiles=profiles)


class BackfillSimulator:
    """The state of one run. `place` of a job: its index in `jobs`."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        servers: Sequence[Server],
        world: SchedulerParams,
        policy: Policy | None,
        profiles: Mapping[str, ResourceProfile],
        by_node: bool,
        lag_s: float,
    ) -> None:
        self.jobs, self.servers, self.world = jobs, servers, world
        self.in_turn = policy is None or policy.name == "fifo"
        self.line = line_of(jobs, policy or Fifo())
        self.like = make_typical_server(servers)
        self.points = sim_throughput.points_of(profiles, self.like)
        self.by_node, self.lag_s = by_node, lag_s
        self.floor = floor_of(servers, world.servers_per_leaf)
        self.empty = floor_of([empty_server(server) for server in servers], world.servers_per_leaf)
        self.shadow = ShadowTable(self.floor, max(server.gpus for server in servers))
        self.pools = group_by_partition(servers, world.partitions)
        self.now = 0.0
        self.steps = self.updates = self.gone = 0
        self.happened = 0  # submissions, starts, ends
        # When a job ended last.
        self.freed = -inf
        self.pending: dict[int, PendingSimJob] = {}
        self.running: dict[int, PendingSimJob] = {}
        self.ends: list[tuple[float, int]] = []
        self.wakes = [world.opens_s]  # moments at which someone who did not may start
        self.stuck = False  # the first job does not fit, and nothing was given back since
        self.dirty = False  # something happened since the last cycle of backfill
        self.last_cycle = self.last_whole = -inf
        self.began: list[float | None] = [None] * len(jobs)
        self.ended: list[float | None] = [None] * len(jobs)
        self.held = [0.0] * len(jobs)
        self.spread = [0] * len(jobs)

    def run(self, slurmwrap: Reconciler | None, progress: Progress | None) -> SimOutcome:
        coming = sorted(range(len(self.jobs)), key=lambda place: (self.jobs[place].submit_s, place), reverse=True)
        while (moment := self._next(coming, slurmwrap)) < inf:
            self.now = max(self.now, moment)
            self.steps += 1
            changed = self._release()
            while coming and self._seen_s(coming[-1]) <= self.now + SOON:
                changed |= self._submit(coming.pop(), slurmwrap)
                # The next one's plan sees where this one went.
                if slurmwrap is not None:
                    self._main()
            if slurmwrap is not None and self.pending and self.now >= slurmwrap.next_s(self) - SOON:
                changed |= slurmwrap.look(self)
            if changed:
                self._main()
            if self.dirty and self.pending and self.now >= self._cycle_at() - SOON:
                self._backfill()
            if progress is not None and self.steps % _TOLD == 0:
                progress(self.gone, len(self.jobs))
        if progress is not None:
            progress(self.gone, len(self.jobs))
        return self._outcome()

    # ------------------------------------------------------------------------------------------- the clock

    def _next(self, coming: Sequence[int], slurmwrap: Reconciler | None) -> float:
        """The next moment at which anything may happen; inf: none."""
        moment = self.ends[0][0] if self.ends else inf
        if coming:
            moment = min(moment, self._seen_s(coming[-1]))
        if self.wakes:
            moment = min(moment, self.wakes[0])
        if self.pending and self.dirty:
            moment = min(moment, self._cycle_at())
        if self.pending and slurmwrap is not None:
            moment = min(moment, slurmwrap.next_s(self))
        return moment

    def _cycle_at(self) -> float:
        world = self.world
        return max(self.now, self.last_cycle + world.backfill_s, world.opens_s) if world.backfill_s else inf

    def _seen_s(self, place: int) -> float:
        return self.jobs[place].submit_s + self.lag_s

    def _release(self) -> bool:
        """Whether anything was given back, or someone may start who did not."""
        changed = False
        while self.ends and self.ends[0][0] <= self.now + SOON:
            place = heapq.heappop(self.ends)[1]
            one = self.running.pop(place)
            self.floor.give_back(one.ask, one.seats)
            self.shadow.ends(place, one.seats)
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

    def _submit(self, place: int, slurmwrap: Reconciler | None) -> bool:
        """Whether Slurm takes it: somewhere it must fit, were all servers empty."""
        job = self.jobs[place]
        points = self.points.get(job.model, ())
        nodes = nodes_of(job, self.like, by_node=self.by_node or bool(points))
        cpus, memory = sim_throughput.compute_requested(job, self.like)
        waiting = PendingSimJob(
            place=place, job=job, points=points, nodes=nodes, cpus=cpus, mem_mib=memory, asked=(cpus, memory),
            ask=ask_of(job.gpus, nodes, cpus, memory), length_s=self._limit_s(job), submitted=self.now,
            allowed=self.pools.get(job.partition), names=self.world.partitions.get(job.partition),
        )  # fmt: skip
        if job.gpus < 1 or self.empty.seats(waiting.ask, waiting.allowed) is None:
            self.gone += 1
            return False
        if slurmwrap is not None:
            slurmwrap.submit(waiting, self)
        self.pending[place] = waiting
        self.line.join(waiting)
        self.happened += 1
        self.dirty = True
        return True

    def touched(self) -> None:
        """A waiting request was changed: who did not fit may fit now."""
        self.stuck, self.dirty = False, True

    def _limit_s(self, job: SimJob) -> float:
        """What backfill believes that it takes at most."""
        if job.limit_s is not None:
            return job.limit_s
        return self.world.limit_s if self.world.limit_factor is None else self.world.limit_factor * job.work_s

    # ------------------------------------------------------------------------------------------- the schedulers

    def in_order(self, most: int) -> list[PendingSimJob]:
        """The first `most` that wait, highest priority first."""
        return self.line.first(most, self.now)

    def _main(self) -> None:
        """Strictly in order, each partition up to its first job that does not fit."""
        if self.now < self.world.opens_s or not self.floor.free_gpus:
            return
        if self.in_turn and not self.pools:
            while self.pending and not self.stuck:
                self.stuck = not self._starts(self.line.first(1, self.now)[0])
            return
        whole = self.now >= self.last_whole + self.world.sched_interval_s
        if whole:
            self.last_whole = self.now
        failed: set[str] = set()
        for waiting in self.line.walk(len(self.line) if whole else self.world.queue_depth, self.now):
            name = waiting.job.partition if waiting.job.partition in self.pools else ""
            if name not in failed and not self._starts(waiting):
                failed.add(name)
                if len(failed) > len(self.pools):
                    return

    def _starts(self, waiting: PendingSimJob) -> bool:
        seats = self.floor.seats(waiting.ask, waiting.allowed, waiting.leaves_at(self.now))
        if seats is not None:
            self._begin(waiting, seats)
        return seats is not None

    def _backfill(self) -> None:
        """One cycle; it ends early where no server with a free GPU can be used by anybody who waits."""
        world, shadow = self.world, self.shadow
        self.last_cycle, self.dirty = self.now, False
        if not self.floor.free_gpus:
            return
        shadow.open(self.now, self.now + 1.0, world.group_s)
        queue = self.in_order(world.max_job_test)
        least = self.now + min(map(attrgetter("length_s"), queue))
        # Who asked the same → the shortest of them that fitted nowhere.
        hopeless: dict[object, float] = {}
        for waiting in queue:
            if shadow.free_until() < least:
                return
            self._start_or_plan(waiting, hopeless)

    def _start_or_plan(self, waiting: PendingSimJob, hopeless: dict[object, float]) -> None:
        """`hopeless`, of this cycle: what is started and kept in it only makes it harder for those that follow."""
        shadow, length, leaves = self.shadow, waiting.length_s, waiting.leaves_at(self.now)
        asked = (waiting.ask, id(waiting.allowed), leaves)
        if length < hopeless.get(asked, inf):
            seats = shadow.seats(waiting.ask, length, waiting.allowed, leaves)
            if seats is not None:
                self._begin(waiting, seats)
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

    def _begin(self, waiting: PendingSimJob, seats: Seats) -> None:
        place = waiting.place
        del self.pending[place]
        self.line.leave(waiting)
        self.happened += 1
        self.floor.take(waiting.ask, seats)
        self.shadow.begins(place, waiting.ask, seats, self.now + waiting.length_s)
        waiting.began, waiting.seats = self.now, seats
        run_s = self._run_s(waiting)
        self.running[place] = waiting
        heapq.heappush(self.ends, (self.now + run_s + self.world.react_s, place))
        self.began[place], self.ended[place] = self.now, self.now + run_s
        self.held[place], self.spread[place] = run_s, len(seats.servers)

    def _run_s(self, waiting: PendingSimJob) -> float:
        """Killed at its limit, where that is known."""
        job, world = waiting.job, self.world
        run_s = job.work_s
        if waiting.points:
            given = find_speed(waiting.points, waiting.cpus, waiting.mem_mib)
            at_share = find_speed(waiting.points, *sim_throughput.compute_share(self.like))
            if given > 0 and at_share > 0:
                run_s = sim_throughput.share_work_s(job, waiting.points, self.like) * at_share / given
        if world.spread_slowdown and self._apart(waiting):
            run_s *= world.spread_slowdown.get(job.model, 1.0)
        if world.jitter_s:
            run_s += world.jitter_s * random.Random(f"{world.seed} {job.number}").random()
        return run_s if job.limit_s is None else min(run_s, job.limit_s)

    def _apart(self, waiting: PendingSimJob) -> bool:
        """Whether it lies on more servers than it needs, or under several leaf switches."""
        leaf, seats = self.floor.leaf, waiting.seats
        if len(seats.servers) > max(waiting.job.nodes or 1, count_fewest_servers(waiting.job, self.like)):
            return True
        return leaf is not None and len({int(leaf[server]) for server in seats.servers}) > 1

    def _outcome(self) -> SimOutcome:
        return SimOutcome(
            mode="slurm",
            began_s=tuple(self.began),
            ended_s=tuple(self.ended),
            held_s=tuple(self.held),
            servers=tuple(self.spread),
            updates=self.updates,
            steps=self.steps,
        )
