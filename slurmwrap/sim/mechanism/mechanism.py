"""Mechanism: how the chosen jobs share the servers' CPUs and memory. The type that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmwrap.placement.demand import Allocation, JobDemand, Server

# (jobs, highest priority first; servers as they are now) -> one grant per job, in the same order. A grant without
# `servers` did not fit (the authors' mechanisms and opt name a server once per GPU, production's once per node);
# `speed` is relative to the job's proportional share of these servers, None: 1.
Mechanism = Callable[[Sequence[JobDemand], Sequence[Server]], Sequence[Allocation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the engine in rounds goes about with a mechanism, next to playing its grants. Synergy's simulator differs."""

    whole_queue: bool = False  # it is shown everybody who waits, not only the first whose GPUs fit
    equal_parts: bool = False  # each of a job's servers gives as many GPUs, as with --nodes
    at_best: bool = False  # policies reckon with the job's best speed, however fast it ran last
    critical: float = 0.0  # the factor from which on a job goes first (sim/engines/rounds_engine.py); 0: no one does
