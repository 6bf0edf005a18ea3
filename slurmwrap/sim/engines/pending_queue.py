"""Line: who waits, highest priority first. Where a policy's order of those who never ran stays, no one is sorted twice.

A job that has begun never waits again in this mode. So all policies but finish-time fairness order who waits by what is
known when a job comes, and a job's place among the others is found once, however long the line is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurmwrap.model.resource_profile import SpeedPoint
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.engines.free_resources import Seats
from slurmwrap.sim.engines.sim_request import Ask
from slurmwrap.sim.queue_policies import Active, Policy
from slurmwrap.sim.sim_job import SimJob


# Waiting: a job in Slurm's queue, with what it asks for now. The mutable record of the model.
@dataclass(slots=True, kw_only=True)
class PendingSimJob:
    """`place`: index of the job in the trace. Seconds; CPUs and MiB per GPU."""

    place: int
    job: SimJob
    nodes: int | None  # that it insists on
    cpus: float
    mem_mib: float
    # CPUs and MiB per GPU as its user asked.
    asked: tuple[float, float]
    ask: Ask
    length_s: float  # what backfill believes that it takes at most
    points: tuple[SpeedPoint, ...] = ()  # its speeds, where it has a profile with any
    allowed: Bools | None = None  # servers where it may run; None: all
    names: frozenset[str] | None = None  # the same by name
    leaves: int | None = None  # it waits for so few leaf switches, as long as
    leaves_until: float = 0.0
    submitted: float = 0.0
    began: float = -1.0
    seats: Seats = field(default_factory=lambda: Seats(servers=(), units=()))

    @property
    def name(self) -> str:
        """Its address, as claims call it."""
        return str(self.place)

    def leaves_at(self, now: float) -> int | None:
        """The number of leaf switches that it insists on at that moment."""
        return self.leaves if now < self.leaves_until else None


# The policy's, then in the order of joining.
_Key = tuple[float, int]


@dataclass(slots=True, kw_only=True)
class PendingQueue:
    """`standing`: what the policy orders by, of each job, by place in the trace; None: it changes with time."""

    policy: Policy
    number: Ints
    submit_s: Floats
    gpus: Ints
    work_s: Floats
    standing: list[float] | None
    _keys: list[_Key] = field(default_factory=list)
    _waiting: list[PendingSimJob] = field(default_factory=list)
    # By place in the trace.
    _key: dict[int, _Key] = field(default_factory=dict)
    _joined: int = 0

    def __len__(self) -> int:
        return len(self._keys)

    def join(self, waiting: PendingSimJob) -> None:
        key = (0.0 if self.standing is None else self.standing[waiting.place], self._joined)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._waiting.insert(at, waiting)
        self._key[waiting.place] = key
        self._joined += 1

    def leave(self, waiting: PendingSimJob) -> None:
        """KeyError for who does not wait."""
        at = bisect_left(self._keys, self._key.pop(waiting.place))
        del self._keys[at], self._waiting[at]

    def first(self, most: int, now: float) -> list[PendingSimJob]:
        """The first `most`."""
        if self.standing is not None:
            return self._waiting[:most]
        order = self.policy.order(self._active(), now)
        return [self._waiting[at] for at in order[:most].tolist()]

    def walk(self, most: int, now: float) -> Iterator[PendingSimJob]:
        """The same one by one; who has been handed out may leave meanwhile."""
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
        """No one has run yet."""
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


def line_of(jobs: Sequence[SimJob], policy: Policy) -> PendingQueue:
    """Empty. `jobs`: all of the trace."""
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
