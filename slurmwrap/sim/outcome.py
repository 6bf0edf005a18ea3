"""Outcome: what became of each job of a run of the simulator, and what is told on the way. Records only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]  # (jobs that have ended or never can start, all jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOutcome:
    """One entry per job, in the order of the trace. Seconds on the trace's clock; None: that did not happen."""

    mode: str  # "rounds": leases end · "slurm": nothing is taken back
    began_s: tuple[float | None, ...]  # first start
    ended_s: tuple[float | None, ...]
    held_s: tuple[float, ...]  # how long it held GPUs, all its runs
    servers: tuple[int, ...]  # on how many it ran, the last time; 0: never
    preemptions: int = 0  # runs that were cut short
    updates: int = 0  # waiting requests that were changed
    steps: int = 0  # rounds or events that were played
