"""The state of all jobs of a run in rounds: which run, at what pace, with what progress. Columns, one entry per job.

Times are in beats of the clock: rounds if leases end in rounds, seconds if they end at events. A job's progress is only
recorded when its pace changes; in between, it follows from the pace. So a beat in which nothing changes costs nothing.
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
# It counts in beats. With `round_s` > 0 a beat is a round, and beats are whole numbers, so nothing drifts: leases end
# at each beat. The first round of Synergy's simulator (msr-fiddle/synergy, 1bb2bed6, runner.py init_event_queue) begins
# at the first multiple of its length that is not before the first submission; if all jobs are submitted at once, a
# second after it. With `round_s` = 0 a beat is a second, and leases end at events.
#
# Jobs that are all submitted within ONCE_S seconds count as submitted at once.
ONCE_S = 1.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClock:
    """`first_s`: time of beat 0. `round_s`: 0 if leases end at events."""

    first_s: float
    round_s: float

    @property
    def beat_s(self) -> float:
        """Seconds per beat."""
        return self.round_s or 1.0

    def at(self, beat: float) -> float:
        """Return the time of a beat in seconds of the trace's clock."""
        return self.first_s + beat * self.beat_s

    def beat(self, moment_s: float) -> float:
        """Return the first beat that is not before that moment."""
        if not self.round_s:
            return moment_s - self.first_s
        beat = max(0, ceil((moment_s - self.first_s) / self.round_s))
        return beat if self.at(beat) >= moment_s else beat + 1

    def end(self, beat: float, beats: float) -> float:
        """Return when a job ends that needs so many more beats.

        In rounds it ends at the end of a round, at the earliest of the next one.
        """
        return beat + max(1, ceil(beats - _ROUNDING)) if self.round_s else beat + beats

    def look(self, beat: float, quiet_s: float) -> float:
        """Return the first beat after `beat` at which something may have changed that holds for `quiet_s` seconds."""
        if quiet_s == inf:
            return inf
        if not self.round_s:
            return beat + quiet_s
        return beat + max(1, ceil(quiet_s / self.round_s - _ROUNDING))


def make_lease_clock(submits_s: Sequence[float], round_s: float) -> LeaseClock:
    """Return the clock. `submits_s`: submissions of all jobs, in order, at least one."""
    first, last = submits_s[0], submits_s[-1]
    if round_s <= 0:
        return LeaseClock(first_s=0.0, round_s=0.0)
    if last - first < ONCE_S:
        return LeaseClock(first_s=first + ONCE_S, round_s=round_s)
    return LeaseClock(first_s=ceil(first / round_s) * round_s, round_s=round_s)


@dataclass(slots=True, kw_only=True)
class JobTable:
    """Columns of all jobs. `left` is in units: iterations if they are whole, else seconds at the proportional share."""

    clock: LeaseClock
    submit_s: Floats
    gpus: Ints
    left: Floats
    unit_s: Floats  # seconds of one unit at the proportional share
    whole: Bools  # whether only whole units are completed in a round
    best: Floats  # speed of the job alone on the servers
    active: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # numbers, in the order of submission
    speed: Floats = field(init=False)
    pace: Floats = field(init=False)  # units per beat
    since: Floats = field(init=False)  # beat at which `left` and `held` were recorded
    held: Floats = field(init=False)  # beats
    end: Floats = field(init=False)  # beat at which the job ends at this pace
    running: Bools = field(init=False)
    began_s: Floats = field(init=False)
    ended_s: Floats = field(init=False)
    servers: Ints = field(init=False)
    # Number of jobs that have been submitted.
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
        """Add the jobs that have been submitted by this beat; return their numbers."""
        first, now = self.come, self.clock.at(beat)
        while self.come < len(self.submit_s) and self.submit_s[self.come] <= now:
            self.come += 1
        new = np.arange(first, self.come)
        if len(new):
            self.active = np.concatenate((self.active, new))
        return new

    def dismiss(self, beat: float) -> Ints:
        """Remove the jobs that have ended by this beat; return their numbers."""
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
        """Return what the policy sees of the jobs in the system, or of the `most` that were submitted first."""
        numbers = self.active[:most]
        running = self.running[numbers]
        beats = np.where(running, beat - self.since[numbers], 0.0)
        return Active(
            number=numbers,
            submit_s=self.submit_s[numbers],
            gpus=self.gpus[numbers],
            left_s=(self.left[numbers] - beats * self.pace[numbers]) * self.unit_s[numbers],
            speed=self.speed[numbers],
            held_s=(self.held[numbers] + beats) * self.clock.beat_s,
            running=running,
        )

    def run(self, numbers: Ints, beat: float, speeds: Floats | None = None, servers: Ints | None = None) -> None:
        """Let these jobs run from now on, at these speeds (None: 1) on so many servers.

        A job that already runs at its speed is left alone.
        """
        fast = np.ones(len(numbers)) if speeds is None else speeds
        changed = ~self.running[numbers] | (self.speed[numbers] != fast)
        for number, speed in zip(numbers[changed].tolist(), fast[changed].tolist(), strict=True):
            self._settle(number, beat)
            self._start(number, beat, speed)
        if servers is not None:
            self.servers[numbers] = servers

    def stop(self, numbers: Ints, beat: float) -> None:
        """Take the GPUs from these jobs."""
        for number in numbers.tolist():
            self._settle(number, beat)
        self.running[numbers] = False
        self.speed[numbers] = self.best[numbers]
        self.preemptions += len(numbers)

    def next_end(self) -> float:
        """Return the beat at which the next running job ends; inf: none runs."""
        while self._ends:
            end, number = self._ends[0]
            if self.running[number] and self.end[number] == end:
                return end
            heapq.heappop(self._ends)
        return inf

    def next_submission(self) -> float:
        """Return the beat of the next submission; inf: all jobs are submitted."""
        return self.clock.beat(self.submit_s[self.come]) if self.come < len(self.submit_s) else inf

    def _settle(self, number: int, beat: float) -> None:
        if self.running[number]:
            beats = beat - self.since[number]
            self.left[number] = max(0.0, self.left[number] - beats * self.pace[number])
            self.held[number] += beats

    def _start(self, number: int, beat: float, speed: float) -> None:
        self.speed[number], self.since[number] = speed, beat
        pace = self.clock.beat_s * speed / self.unit_s[number]
        # Otherwise not even one unit would be completed in a round.
        if self.whole[number] and pace >= 1:
            pace = float(np.floor(self.clock.beat_s / (self.unit_s[number] / speed)))
        self.pace[number] = pace
        self.end[number] = self.clock.end(beat, self.left[number] / pace)
        self.running[number] = True
        if np.isnan(self.began_s[number]):
            self.began_s[number] = self.clock.at(beat)
        heapq.heappush(self._ends, (float(self.end[number]), number))

    def outcome(self, steps: int, beat: float) -> SimOutcome:
        """Return the result of all jobs.

        `beat`: the last one that was simulated; a job that still runs has held its GPUs until then.
        """
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
