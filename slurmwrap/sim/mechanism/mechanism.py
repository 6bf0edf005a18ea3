"""Mechanism, the common type of all functions that divide the servers' CPUs and memory among the chosen jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmwrap.placement.demand import Allocation, JobDemand, Server

# (jobs, highest priority first; servers as they are now) -> one allocation per job, in the same order. An allocation
# without `servers` did not fit (the authors' mechanisms and opt name a server once per GPU, production's once per
# node). `speed` is relative to the job's proportional share of these servers, None: 1.
Mechanism = Callable[[Sequence[JobDemand], Sequence[Server]], Sequence[Allocation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the engine in rounds treats a mechanism, besides applying its allocations.

    Synergy's simulator treats its mechanisms differently in these points.
    """

    whole_queue: bool = False  # the mechanism gets the whole queue, not only the first jobs whose GPUs fit
    equal_parts: bool = False  # each of a job's servers gives the same number of GPUs, as with --nodes
    at_best: bool = False  # policies assume the job's best speed, whatever it ran at last
    # The factor from which on a job is critical and goes first (sim/engines/rounds_engine.py); 0: no job is.
    critical: float = 0.0
