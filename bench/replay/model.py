"""A model of Slurm with waiting jobs that are tuned: to judge a policy over many queues in seconds. No Slurm needed.

What it keeps of the real thing: jobs start in the order of the queue as soon as their request fits (main scheduler, at
every end of a job, up to the first that does not fit); every `backfill_s` others start out of turn where they take no
node that a job before them is planned for (sched/backfill: by time limits, whole nodes); first node that fits; a
controller looks at the queue every `tick_s` and changes at most `updates` waiting requests; a running job keeps what it
has until it ends. What it leaves out: start-up times, priorities that change, failures, network.

    python bench/replay/model.py --policy graded --seeds 101-140
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.generator import arriving_jobs, static_jobs, with_gpus
from replay.tracefile import DATA, SHARE, TraceJob, read_trace, speed_table
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.claim import Claim, Server, Settings, SpeedPoint
from slurmwrap.placement.room import Room, rooms_of
from slurmwrap.placement.speeds import speed_at

Speeds = Mapping[str, tuple[SpeedPoint, ...]]
_SOON = 1e-9
_ALL = 10**9  # updates: as many as it likes


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The cluster and how often somebody looks at it. Seconds."""

    servers: tuple[Server, ...]
    tick_s: float = 300.0
    updates: int = 10  # waiting jobs that one tick may change
    backfill_s: float = 300.0
    limit_s: float = 24 * 3600.0  # time limit of every job
    limit_factor: float | None = None  # instead: so many times the job's run time at its share
    jitter_s: float = 0.0  # every run takes up to so much longer
    seed: int = 0  # of the jitter


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A job of the model with what it asks for now."""

    job: TraceJob
    cpus: float = SHARE[0]
    mem_mib: int = SHARE[1]
    startable_at: float | None = None  # since when it would have fitted at its share
    began: float = -1.0
    ended: float = -1.0
    rooms: tuple[Room, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How it went. Seconds; one entry per job, in the order of the trace."""

    began: tuple[float, ...]
    ended: tuple[float, ...]
    cpus: tuple[float, ...]
    updates: int

    @property
    def makespan(self) -> float:
        return max(self.ended)


def cluster(count: int = 4, gpus: int = 8, cpus: int = 24, mem_mib: int = 512_000) -> tuple[Server, ...]:
    """Synergy's: 4 servers of 8 GPUs, 24 CPUs, 500 GB."""
    return tuple(
        Server(
            name=f"n{number}",
            gpus=gpus,
            cpus=cpus,
            mem_mib=mem_mib,
            gpus_free=gpus,
            cpus_free=cpus,
            mem_free_mib=mem_mib,
        )
        for number in range(count)
    )


def points(path: Path) -> Speeds:
    """Model → speed points, of Synergy's matrices."""
    return {
        model: tuple(SpeedPoint(cpus=c, mem_mib=m, speed=v) for c, m, v in rows)
        for model, rows in speed_table(path).items()
    }


Policy = Callable[[float, Sequence[Waiting], Sequence[Room]], Mapping[int, tuple[float, int]]]


def play(jobs: Sequence[TraceJob], speeds: Speeds, world: World, policy: Policy | None) -> Played:
    """Runs `jobs` to their end. `policy` None: nobody changes a request."""
    return _Slurm(jobs=jobs, speeds=speeds, world=world, policy=policy).run()


def by_allocate(
    speeds: Speeds, name: str = "graded", settings: Settings | None = None, *, known: bool = False
) -> Policy:
    """What the reconciler does at each tick. `known`: run times at the share are given to the policy."""

    def policy(now: float, waiting: Sequence[Waiting], rooms: Sequence[Room]) -> Mapping[int, tuple[float, int]]:
        claims = [claim_of(one, speeds, now, known=known) for one in waiting]
        grants = allocate(claims, [as_server(room) for room in rooms], name, settings)
        return {one.job.number: (grant.cpus, grant.mem_mib) for one, grant in zip(waiting, grants, strict=True)}

    return policy


def claim_of(one: Waiting, speeds: Speeds, now: float, *, known: bool = False) -> Claim:
    return Claim(
        job=str(one.job.number),
        gpus_per_node=one.job.gpus,
        cpus=SHARE[0],
        mem_mib=SHARE[1],
        speeds=speeds[one.job.model],
        run_s=one.job.work_s if known else None,
        startable_s=0.0 if one.startable_at is None else now - one.startable_at,
    )


def as_server(room: Room) -> Server:
    return replace(room.server, gpus_free=room.gpus, cpus_free=int(room.cpus), mem_free_mib=int(room.mem_mib))


@dataclass(slots=True, kw_only=True)
class _Slurm:
    """The state of one run."""

    jobs: Sequence[TraceJob]
    speeds: Speeds
    world: World
    policy: Policy | None
    now: float = 0.0
    updates: int = 0
    pending: list[Waiting] = field(default_factory=list)
    running: list[Waiting] = field(default_factory=list)
    ends: list[tuple[float, int, Waiting]] = field(default_factory=list)

    def run(self) -> Played:
        rooms = rooms_of(self.world.servers)
        all_jobs = [Waiting(job=job) for job in self.jobs]
        coming = sorted(all_jobs, key=lambda one: (one.job.submit_s, one.job.number), reverse=True)
        tick = backfill = 0.0
        while coming or self.pending or self.ends:
            moments = [self.ends[0][0]] if self.ends else []
            moments += [coming[-1].job.submit_s] if coming else []
            moments += [tick if self.policy else backfill, backfill] if self.pending else []
            self.now = max(self.now, min(moments))
            self._end()
            while coming and coming[-1].job.submit_s <= self.now + 1.0:  # a static trace is 0.1 s long
                self.pending.append(coming.pop())
            if self.policy and self.now >= tick - _SOON:
                self._tune(rooms)
                tick = self.now + self.world.tick_s
            self._start(rooms)
            if self.now >= backfill - _SOON:
                self._backfill(rooms)
                backfill = self.now + self.world.backfill_s
        return Played(
            began=tuple(one.began for one in all_jobs),
            ended=tuple(one.ended for one in all_jobs),
            cpus=tuple(one.cpus for one in all_jobs),
            updates=self.updates,
        )

    def _end(self) -> None:
        while self.ends and self.ends[0][0] <= self.now + _SOON:
            _, _, one = heapq.heappop(self.ends)
            self.running.remove(one)
            for room in one.rooms:
                room.take(-one.job.gpus, one.cpus, one.mem_mib)

    def _tune(self, rooms: Sequence[Room]) -> None:
        """The requests with which the first jobs come were tuned when they were submitted."""
        left = self.world.updates if self.now > 0 else _ALL
        for one in self.pending if self.now > 0 else ():
            fits = any(room.holds(one.job.gpus, *SHARE) for room in rooms)
            one.startable_at = (self.now if one.startable_at is None else one.startable_at) if fits else None
        assert self.policy is not None
        wanted = self.policy(self.now, self.pending, rooms)
        for one in self.pending:
            if left > 0 and wanted[one.job.number] != (one.cpus, one.mem_mib):
                one.cpus, one.mem_mib = wanted[one.job.number]
                left, self.updates = left - 1, self.updates + (self.now > 0)

    def _start(self, rooms: Sequence[Room]) -> None:
        while self.pending:
            one = self.pending[0]
            room = next((room for room in rooms if room.holds(one.job.gpus, one.cpus, one.mem_mib)), None)
            if room is None:
                return
            self._run(self.pending.pop(0), room)

    def _backfill(self, rooms: Sequence[Room]) -> None:
        planned: dict[str, float] = {}  # node → from when it is kept for a job that waits
        for one in tuple(self.pending):
            until = self.now + self._limit(one)
            free = [room for room in rooms if until <= planned.get(room.server.name, until)]
            room = next((room for room in free if room.holds(one.job.gpus, one.cpus, one.mem_mib)), None)
            if room is not None:
                self.pending.remove(one)
                self._run(one, room)
                continue
            moments = [(self._fits_at(one, room, planned), room.server.name) for room in rooms]
            moment, name = min(moments)
            planned[name] = min(moment, planned.get(name, moment))
            if len(planned) == len(rooms) and max(planned.values()) <= self.now + self._least_limit():
                return

    def _fits_at(self, one: Waiting, room: Room, planned: Mapping[str, float]) -> float:
        gpus, cpus, mem = room.gpus, room.cpus, room.mem_mib
        moment = self.now
        for other in sorted((o for o in self.running if room in o.rooms), key=lambda o: o.began + self._limit(o)):
            if gpus >= one.job.gpus and cpus >= one.cpus * one.job.gpus and mem >= one.mem_mib * one.job.gpus:
                break
            held = other.job.gpus
            gpus, cpus, mem = gpus + held, cpus + other.cpus * held, mem + other.mem_mib * held
            moment = max(self.now + 1, other.began + self._limit(other))
        return moment if room.server.name not in planned else max(moment, planned[room.server.name]) + self._limit(one)

    def _limit(self, one: Waiting) -> float:
        factor = self.world.limit_factor
        return self.world.limit_s if factor is None else factor * one.job.work_s

    def _least_limit(self) -> float:
        return min(self._limit(one) for one in self.pending)

    def _run(self, one: Waiting, room: Room) -> None:
        room.take(one.job.gpus, one.cpus, one.mem_mib)
        speed = speed_at(self.speeds[one.job.model], one.cpus, one.mem_mib)
        late = self.world.jitter_s * random.Random(f"{self.world.seed} {one.job.number}").random()
        one.rooms, one.began, one.ended = (room,), self.now, self.now + one.job.work_s / speed + late
        self.running.append(one)
        heapq.heappush(self.ends, (one.ended, one.job.number, one))


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fmean(log(value) for value in values))


def main() -> None:
    options = _options()
    speeds = points(DATA / "profiles" / "synergy_profiles.csv")
    world = World(servers=cluster(), tick_s=options.tick, backfill_s=options.tick, limit_factor=options.limit_factor)
    settings = Settings(drain=options.drain, reserve=options.reserve, memory_weight=options.memory_weight)
    first, last = (int(part) for part in options.seeds.split("-"))
    queues = {"static100": read_trace(DATA / "traces" / "synergy_static100.csv")} if options.per_hour is None else {}
    for seed in range(first, last + 1):
        drawn = static_jobs(seed) if options.per_hour is None else arriving_jobs(seed, options.per_hour)
        queues[f"seed {seed}"] = with_gpus(drawn, seed) if options.multi else drawn
    ratios: dict[str, tuple[float, float]] = {}
    for name, jobs in queues.items():
        plain = play(jobs, speeds, world, None)
        policy = by_allocate(speeds, options.policy, settings, known=options.known)
        tuned = play(jobs, speeds, replace(world, jitter_s=options.jitter), policy)
        ratios[name] = (plain.makespan / tuned.makespan, _mean_jct(jobs, plain) / _mean_jct(jobs, tuned))
        later = [now - then for then, now in zip(plain.ended, tuned.ended, strict=True) if now > then + options.tick]
        print(
            f"{name:10} {plain.makespan / 3600:6.2f} h / {tuned.makespan / 3600:6.2f} h = {ratios[name][0]:5.3f}"
            f"   mean JCT {ratios[name][1]:5.3f}   updates {tuned.updates}"
            f"   later {len(later)}, by {fmean(later or [0.0]):.0f} s"
        )
    generated = [pair for name, pair in ratios.items() if name.startswith("seed")]
    spans, jcts = ([pair[part] for pair in generated] for part in (0, 1))
    print(f"generated: makespan {geometric_mean(spans):.3f}, least {min(spans):.3f}; JCT {geometric_mean(jcts):.3f}")


def _mean_jct(jobs: Sequence[TraceJob], played: Played) -> float:
    return fmean(end - job.submit_s for end, job in zip(played.ended, jobs, strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="proportional against a policy, in the model")
    parser.add_argument("--policy", default="graded")
    parser.add_argument("--seeds", default="1-10", help="of the generated queues, as first-last")
    parser.add_argument("--per-hour", type=float, help="jobs arrive one by one, so many in an hour")
    parser.add_argument("--multi", action="store_true", help="three in ten jobs have 2, 4 or 8 GPUs")
    parser.add_argument("--jitter", type=float, default=0.0, help="every tuned run takes up to so much longer")
    parser.add_argument("--tick", type=float, default=300.0, help="seconds between looks at the queue")
    parser.add_argument("--limit-factor", type=float, help="time limits as parts of run times; else a day for all")
    parser.add_argument("--drain", type=float, default=Settings().drain)
    parser.add_argument("--reserve", type=float, default=Settings().reserve)
    parser.add_argument("--memory-weight", type=float, default=Settings().memory_weight)
    parser.add_argument("--known", action="store_true", help="the policy knows every run time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
