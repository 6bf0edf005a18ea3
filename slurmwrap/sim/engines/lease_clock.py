"""Clock of the mode *rounds*: when leases end. Pure.

It counts in beats. With `round_s` > 0 a beat is a round, and beats are whole, so nothing drifts: leases end at each.
The first round of Synergy's simulator (msr-fiddle/synergy, 1bb2bed6, runner.py init_event_queue) begins at the first
multiple of its length that is not before the first submission; where all jobs are there at once, a second after it.
With `round_s` = 0 a beat is a second, and leases end at events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

ONCE_S = 1.0  # all submitted within so much: all at once
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
