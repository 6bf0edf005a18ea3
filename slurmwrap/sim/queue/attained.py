"""Least attained service: who has had least comes first; nothing need be known of run times.

Gu et al., NSDI 2019 (Tiresias), section 3.2, and its simulator (SymbioticLab/Tiresias, 959f9b08, dlas_sim_jobs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.queue.queue_policy import Active

THRESHOLDS = (3250.0, 7200.0)  # GPU-seconds: upper limits of the first queue and of the second, as in the authors' code
_SOON = 1e-6  # GPU-seconds: so near to a threshold is over it


@dataclass(frozen=True, slots=True, kw_only=True)
class Las:
    """By the GPU-seconds that a job has held, the least first (Synergy's LAS). It changes all the time."""

    name: str = "las"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.held_s * active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return 0.0


@dataclass(slots=True, kw_only=True)
class Queues:
    """2D-LAS: as many queues as `thresholds` and one more; a job begins in the first.

    Service is held seconds times GPUs since the last promotion. Who has reached the threshold of its queue goes to the
    end of the next. In a queue: who runs before who waits, each part in the order in which they came into the queue; so
    two equal jobs do not change places for ever. `promote` K: who ran before and has since waited K times as long as
    it ran goes to the end of the first queue, and both times start again (STARVELIMIT in the paper, solve_starvation
    in the code); None: never.

    `late_jumps`: the authors' code foresees a demotion after (threshold - held seconds) / GPUs, in whole seconds, where
    it means threshold / GPUs - held seconds; so one of several GPUs is noticed late, at the next event. Their figures
    need it: 6,727 s mean JCT on 480 Philly jobs on 60 GPUs, 6,633 s without.
    """

    jobs: int  # how many there are: SimJob.number is below
    thresholds: tuple[float, ...] = THRESHOLDS
    promote: float | None = None
    late_jumps: bool = True
    name: str = "2d-las"
    in_turn: bool = False
    _level: Ints = field(init=False)
    _seat: Floats = field(init=False)  # place in its queue: only the order counts; inf: not seen yet
    _held_before: Floats = field(init=False)  # held_s at the last promotion
    _waited: Floats = field(init=False)  # since it ran first, or since the last promotion
    _seen: Floats = field(init=False)  # when `_waited` was reckoned
    _last: float = field(init=False, default=0.0)  # the next free seat

    def __post_init__(self) -> None:
        self._level = np.zeros(self.jobs, dtype=np.int64)
        self._seat = np.full(self.jobs, inf)
        self._held_before, self._waited, self._seen = (np.zeros(self.jobs) for _ in range(3))

    def order(self, active: Active, now: float) -> Ints:
        self._reseat(active)
        self._demote(active)
        if self.promote is not None:
            self._wait(active, now)
            self._promote(active)
        return self._ranked(active)

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        """Until the next demotion of who runs, or promotion of who waits."""
        quiet = self._until_demotion(active)
        return quiet if self.promote is None else min(quiet, float(self._until_promotion(active).min(initial=inf)))

    def level(self, number: int) -> int:
        """The queue that this job is in, from 0."""
        return int(self._level[number])

    def service(self, active: Active) -> Floats:
        """GPU-seconds since the last promotion."""
        return (active.held_s - self._held_before[active.number]) * active.gpus

    def _ranked(self, active: Active) -> Ints:
        return np.lexsort((self._seat[active.number], self._level[active.number]))

    def _reseat(self, active: Active) -> None:
        """Who runs moves before who waits; who is new takes the last seats. Seats are counted anew from 0."""
        number = active.number
        seats = np.lexsort((self._seat[number], ~active.running))
        self._seat[number[seats]] = np.arange(len(seats))
        self._last = float(len(seats))

    def _append(self, numbers: Ints) -> None:
        """To the end of their queues."""
        self._seat[numbers] = self._last + np.arange(len(numbers))
        self._last += len(numbers)

    def _limit(self, active: Active) -> Floats:
        """The threshold of the queue that each job is in; inf in the last."""
        return np.array([*self.thresholds, inf])[self._level[active.number]]

    def _demote(self, active: Active) -> None:
        service = self.service(active)
        while (over := service >= self._limit(active) - _SOON).any():
            down = active.number[over]
            self._level[down] += 1
            self._append(down)

    def _until_demotion(self, active: Active) -> float:
        gpus, limit, service = active.gpus, self._limit(active), self.service(active)
        left = (limit - service) / gpus
        if self.late_jumps:
            late = np.floor((limit - service / gpus) / gpus)
            left = np.where(late >= 1, late, left)  # of a fraction of a second, nothing would be left, again and again
        return max(_SOON, float(left[active.running].min(initial=inf)))

    def _waits(self, active: Active) -> Bools:
        return ~active.running & (active.held_s > self._held_before[active.number])

    def _wait(self, active: Active, now: float) -> None:
        waits = active.number[self._waits(active)]
        self._waited[waits] += now - self._seen[waits]
        self._seen[active.number] = now

    def _promote(self, active: Active) -> None:
        up = self._until_promotion(active) <= _SOON
        numbers = active.number[up]
        self._level[numbers] = 0
        self._held_before[numbers] = active.held_s[up]
        self._waited[numbers] = 0.0
        self._append(numbers)

    def _until_promotion(self, active: Active) -> Floats:
        """Seconds for each; inf for who runs, never ran, or is in the first queue anyway."""
        number = active.number
        left = (active.held_s - self._held_before[number]) * (self.promote or inf) - self._waited[number]
        return np.where(self._waits(active) & (self._level[number] > 0), left, inf)
