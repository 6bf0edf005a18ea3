"""Books of a run in rounds: who is there, who runs at what pace, how far everybody is. Columns, one entry per job.

Times are in beats of the world's clock: rounds where leases end in rounds, seconds where they end at events. A job's
progress is only written down when its pace changes; between, it follows from the pace. So a beat in which nothing
changes costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.queue_policies import Active
from slurmwrap.sim.sim_outcome import SimOutcome

# Clock of the mode *rounds*: when leases end.
#
# It counts in beats. With `round_s` > 0 a beat is a round, and beats are whole, so nothing drifts: leases end at each.
# The first round of Synergy's simulator (msr-fiddle/synergy, 1bb2bed6, runner.py init_event_queue) begins at the first
# multiple of its length that is not before the first submission; where all jobs are there at once, a second after it.
# With `round_s` = 0 a beat is a second, and leases end at events.
# All submitted within so much: all at once.
ONCE_S = 1.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClock:
    """`first_s`: at beat 0. `round_s`: 0 where leases end at events."""

    first_s: float
    round_s: float

    @property
    def beat_s(self) -> float:
        """Seconds of a beat."""
        return self.round_s or 1.0

    def at(self, beat: float) -> float:
        """Seconds of the trace's clock."""
        return self.first_s + beat * self.beat_s

    def beat(self, moment_s: float) -> float:
        """The first beat that is not before that moment."""
        if not self.round_s:
            return moment_s - self.first_s
        beat = max(0, ceil((moment_s - self.first_s) / self.round_s))
        return beat if self.at(beat) >= moment_s else beat + 1

    def end(self, beat: float, beats: float) -> float:
        """When someone ends who needs so many beats more: in rounds at the end of one, and not before the next."""
        return beat + max(1, ceil(beats - _ROUNDING)) if self.round_s else beat + beats

    def look(self, beat: float, quiet_s: float) -> float:
        """The first beat after `beat` at which something may have changed that holds for `quiet_s`."""
        if quiet_s == inf:
            return inf
        if not self.round_s:
            return beat + quiet_s
        return beat + max(1, ceil(quiet_s / self.round_s - _ROUNDING))


def clock_of(submits_s: Sequence[float], round_s: float) -> LeaseClock:
    """`submits_s`: of all jobs, in order, at least one."""
    first, last = submits_s[0], submits_s[-1]
    if round_s <= 0:
        return LeaseClock(first_s=0.0, round_s=0.0)
    if last - first < ONCE_S:
        return LeaseClock(first_s=first + ONCE_S, round_s=round_s)
    return LeaseClock(first_s=ceil(first / round_s) * round_s, round_s=round_s)


@dataclass(slots=True, kw_only=True)
class JobTable:
    """`left` is in units: iterations where they are whole, else seconds at the proportional share."""

    clock: LeaseClock
    submit_s: Floats
    gpus: Ints
    left: Floats
    unit_s: Floats  # seconds of one unit at the proportional share
    whole: Bools  # only whole units are done in a round
    best: Floats  # speed, alone on the servers
    active: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # numbers, in the order of submission
    speed: Floats = field(init=False)
    pace: Floats = field(init=False)  # units per beat
    since: Floats = field(init=False)  # when `left` and `held` were written down, in beats
    held: Floats = field(init=False)  # beats
    end: Floats = field(init=False)  # at this pace, in beats
    running: Bools = field(init=False)
    began_s: Floats = field(init=False)
    ended_s: Floats = field(init=False)
    servers: Ints = field(init=False)
    # How many have been submitted.
    come: int = field(init=False, default=0)
    gone: int = field(init=False, default=0)
    preemptions: int = field(init=False, default=0)
    _ends: list[tuple[float, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.submit_s)
        self.speed, self.pace, self.since = self.best.copy(), np.zeros(count), np.zeros(count)
        self.held, self.end = np.zeros(count), np.full(count, inf)
        self.running = np.zeros(count, dtype=np.bool_)
        self.began_s, self.ended_s = np.full(count, np.nan), np.full(count, np.nan)
        self.servers = np.zeros(count, dtype=np.int64)

    def admit(self, beat: float) -> Ints:
        """Takes in who has been submitted by then; returns their numbers."""
        first, now = self.come, self.clock.at(beat)
        while self.come < len(self.submit_s) and self.submit_s[self.come] <= now:
            self.come += 1
        new = np.arange(first, self.come)
        if len(new):
            self.active = np.concatenate((self.active, new))
        return new

    def dismiss(self, beat: float) -> Ints:
        """Takes out who has ended by then; returns their numbers."""
        gone: list[int] = []
        while self._ends and self._ends[0][0] <= beat:
            end, number = heapq.heappop(self._ends)
            if self.running[number] and self.end[number] == end:
                self._settle(number, end)
                self.running[number] = False
                self.ended_s[number] = self.clock.at(end)
                gone.append(number)
        if gone:
            self.active = self.active[np.isnan(self.ended_s[self.active])]
            self.gone += len(gone)
        return np.array(gone, dtype=np.int64)

    def columns(self, beat: float, most: int | None = None) -> Active:
        """What the policy sees of who is there, or of those `most` who came first."""
        who = self.active[:most]
        running = self.running[who]
        beats = np.where(running, beat - self.since[who], 0.0)
        return Active(
            number=who,
            submit_s=self.submit_s[who],
            gpus=self.gpus[who],
            left_s=(self.left[who] - beats * self.pace[who]) * self.unit_s[who],
            speed=self.speed[who],
            held_s=(self.held[who] + beats) * self.clock.beat_s,
            running=running,
        )

    def run(self, numbers: Ints, beat: float, speeds: Floats | None = None, servers: Ints | None = None) -> None:
        """These run from now on, at these speeds (None: 1) on so many servers; who runs so already is left alone."""
        fast = np.ones(len(numbers)) if speeds is None else speeds
        changed = ~self.running[numbers] | (self.speed[numbers] != fast)
        for number, speed in zip(numbers[changed].tolist(), fast[changed].tolist(), strict=True):
            self._settle(number, beat)
            self._start(number, beat, speed)
        if servers is not None:
            self.servers[numbers] = servers

    def stop(self, numbers: Ints, beat: float) -> None:
        """These lose their GPUs."""
        for number in numbers.tolist():
            self._settle(number, beat)
        self.running[numbers] = False
        self.speed[numbers] = self.best[numbers]
        self.preemptions += len(numbers)

    def next_end(self) -> float:
        """When the next of who runs ends, in beats; inf: no one runs."""
        while self._ends:
            end, number = self._ends[0]
            if self.running[number] and self.end[number] == end:
                return end
            heapq.heappop(self._ends)
        return inf

    def next_submission(self) -> float:
        """In beats; inf: all are there."""
        return self.clock.beat(self.submit_s[self.come]) if self.come < len(self.submit_s) else inf

    def _settle(self, number: int, beat: float) -> None:
        if self.running[number]:
            beats = beat - self.since[number]
            self.left[number] = max(0.0, self.left[number] - beats * self.pace[number])
            self.held[number] += beats

    def _start(self, number: int, beat: float, speed: float) -> None:
        self.speed[number], self.since[number] = speed, beat
        pace = self.clock.beat_s * speed / self.unit_s[number]
        # Else not one would be done in a round.
        if self.whole[number] and pace >= 1:
            pace = float(np.floor(self.clock.beat_s / (self.unit_s[number] / speed)))
        self.pace[number] = pace
        self.end[number] = self.clock.end(beat, self.left[number] / pace)
        self.running[number] = True
        if np.isnan(self.began_s[number]):
            self.began_s[number] = self.clock.at(beat)
        heapq.heappush(self._ends, (float(self.end[number]), number))

    def outcome(self, steps: int, beat: float) -> SimOutcome:
        """What became of everybody. `beat`: the last that was played; until then who still runs has held its GPUs."""
        held = self.held + np.where(self.running, beat - self.since, 0.0)
        return SimOutcome(
            mode="rounds",
            began_s=tuple(None if value != value else value for value in self.began_s.tolist()),
            ended_s=tuple(None if value != value else value for value in self.ended_s.tolist()),
            held_s=tuple((held * self.clock.beat_s).tolist()),
            servers=tuple(self.servers.tolist()),
            preemptions=self.preemptions,
            steps=steps,
        )
