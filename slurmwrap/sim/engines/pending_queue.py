"""The queue of pending jobs, highest priority first, kept sorted if the policy's key of a job never changes.

A job that has begun never waits again in this mode. So all policies but finish-time fairness order pending jobs by what
is known when a job arrives, and a job's position is found once, however long the queue is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmwrap.model.resource_profile import SpeedPoint
from slurmwrap.placement.demand import Server
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.engines.free_resources import FreeResources, ServerAssignment
from slurmwrap.sim.engines.sim_request import Ask
from slurmwrap.sim.queue_policies import Active, Policy
from slurmwrap.sim.sim_job import SimJob


# A job in Slurm's queue, with what it asks for now: the mutable record of this engine.
@dataclass(slots=True, kw_only=True)
class PendingSimJob:
    """A pending job. `place`: its index in the trace. Seconds; CPUs and MiB per GPU."""

    place: int
    job: SimJob
    nodes: int | None  # number of nodes that the job insists on
    cpus: float
    mem_mib: float
    # CPUs and MiB per GPU that its user asked for.
    asked: tuple[float, float]
    ask: Ask
    length_s: float  # run time that backfill assumes at most
    running_s: float | None = None  # the same once it runs; None: `length_s`
    points: tuple[SpeedPoint, ...] = ()  # its speeds if its profile contains any
    allowed: Bools | None = None  # servers where it may run; None: all
    names: frozenset[str] | None = None  # the same by name
    leaves: int | None = None  # greatest number of leaf switches that it accepts, until `leaves_until`
    leaves_until: float = 0.0
    submitted: float = 0.0
    began: float = -1.0
    seats: ServerAssignment = field(default_factory=lambda: ServerAssignment(servers=(), units=()))
    # What is known of a running job: when it will end, and at `since` for how many seconds it still had to run at
    # speed 1. `held_s`: for how long earlier runs held its GPUs; then `left_s` is what the next one has to run.
    ends: float = -1.0
    left_s: float = 0.0
    speed: float = 1.0
    since: float = 0.0
    held_s: float = 0.0

    @property
    def name(self) -> str:
        """The name of the job in demands."""
        return str(self.place)

    @property
    def most_s(self) -> float:
        """The run time that backfill assumes at most once the job runs."""
        return self.length_s if self.running_s is None else self.running_s

    def set_speed(self, speed: float, now: float) -> None:
        """Note what the running job has done until now, and let it run at this speed from now on."""
        self.left_s = max(0.0, self.left_s - (now - self.since) * self.speed)
        self.speed, self.since = speed, now
        self.ends = now + self.left_s / speed
        if self.job.limit_s is not None:
            self.ends = min(self.ends, self.began + self.job.limit_s)

    def leaves_at(self, now: float) -> int | None:
        """Return the number of leaf switches that the job insists on at that moment."""
        return self.leaves if now < self.leaves_until else None


# Sort key: the policy's key, then the order of joining.
_Key = tuple[float, int]


@dataclass(slots=True, kw_only=True)
class PendingQueue:
    """The queue. `standing`: the policy's key of each job, by index in the trace; None: the key changes with time."""

    policy: Policy
    number: Ints
    submit_s: Floats
    gpus: Ints
    work_s: Floats
    standing: list[float] | None
    _keys: list[_Key] = field(default_factory=list)
    _waiting: list[PendingSimJob] = field(default_factory=list)
    # Sort keys by index in the trace.
    _key: dict[int, _Key] = field(default_factory=dict)
    _joined: int = 0

    def __len__(self) -> int:
        return len(self._keys)

    def join(self, waiting: PendingSimJob, key: float | None = None) -> None:
        """Add the job. `key`: smallest first; None: the policy's."""
        standing = 0.0 if self.standing is None else self.standing[waiting.place]
        self._insert(waiting, (standing if key is None else key, self._joined))
        self._joined += 1

    def _insert(self, waiting: PendingSimJob, key: _Key) -> None:
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._waiting.insert(at, waiting)
        self._key[waiting.place] = key

    def leave(self, waiting: PendingSimJob) -> None:
        """Remove the job. KeyError if it is not in the queue."""
        at = bisect_left(self._keys, self._key.pop(waiting.place))
        del self._keys[at], self._waiting[at]

    def move(self, waiting: PendingSimJob, key: float) -> None:
        """Give the job another key; equals stay in the order of joining. KeyError if it is not in the queue."""
        joined = self._key[waiting.place][1]
        self.leave(waiting)
        self._insert(waiting, (key, joined))

    def first(self, most: int, now: float) -> list[PendingSimJob]:
        """Return the first `most` jobs."""
        if self.standing is not None:
            return self._waiting[:most]
        order = self.policy.order(self._active(), now)
        return [self._waiting[at] for at in order[:most].tolist()]

    def walk(self, most: int, now: float) -> Iterator[PendingSimJob]:
        """Yield the same one by one; a job that was yielded may leave meanwhile."""
        if self.standing is None:
            yield from self.first(most, now)
            return
        at = 0
        for _ in range(min(most, len(self._keys))):
            if at >= len(self._keys):
                return
            key = self._keys[at]
            yield self._waiting[at]
            at = bisect_right(self._keys, key)

    def _active(self) -> Active:
        """Return the policy's columns of the pending jobs, none of which has run yet."""
        count = len(self._waiting)
        places = np.fromiter((one.place for one in self._waiting), np.int64, count)
        return Active(
            number=self.number[places],
            submit_s=self.submit_s[places],
            gpus=self.gpus[places],
            left_s=self.work_s[places],
            speed=np.ones(count),
            held_s=np.zeros(count),
            running=np.zeros(count, dtype=np.bool_),
        )


def make_pending_queue(jobs: Sequence[SimJob], policy: Policy) -> PendingQueue:
    """Return an empty queue. `jobs`: all jobs of the trace."""
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    work_s = np.array([job.work_s for job in jobs], dtype=np.float64)
    standing = policy.standing(gpus, work_s)
    return PendingQueue(
        policy=policy,
        number=np.array([job.number for job in jobs], dtype=np.int64),
        submit_s=np.array([job.submit_s for job in jobs], dtype=np.float64),
        gpus=gpus,
        work_s=work_s,
        standing=None if standing is None else standing.tolist(),
    )


class RunningSimulation(Protocol):
    """What jobs that share a GPU, and moves of running jobs, need of the simulator (backfill_engine.py)."""

    now: float
    happened: int
    wakes: list[float]
    servers: Sequence[Server]
    free: FreeResources

    @property
    def pending(self) -> Mapping[int, PendingSimJob]:
        """Pending jobs by their index in the trace."""

    @property
    def running(self) -> Mapping[int, PendingSimJob]:
        """Running jobs by their index in the trace."""

    def enqueue(self, waiting: PendingSimJob) -> None:
        """Let a job wait."""

    def list_pending(self, most: int) -> list[PendingSimJob]:
        """Return the first pending jobs."""

    def begin_run(self, waiting: PendingSimJob, assignment: ServerAssignment) -> None:
        """Start a job on GPUs that another one holds."""

    def stop_run(self, one: PendingSimJob, lost_s: float) -> None:
        """Take a job from its GPUs."""

    def shares_gpu(self, one: PendingSimJob) -> bool:
        """Return whether the job shares its GPU now."""

    def assume_end(self, holder: PendingSimJob, heir: PendingSimJob, ends: float) -> None:
        """Let backfill assume that the GPU of `holder` is free then."""

    def change_speed(self, one: PendingSimJob, speed: float) -> None:
        """Change the speed of a running job."""
