"""The shortest first: SRTF, SRSF and the smallest. Who knows how long jobs run can do no better for mean JCT. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from slurmwrap.sim.arrays import Floats, Ints
from slurmwrap.sim.queue.queue_policy import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf:
    """Shortest remaining time first, at the speed at which a job ran last.

    So reckons Synergy's simulator (Mohan et al., OSDI 2022; msr-fiddle/synergy, 1bb2bed6, remaining_duration): a job
    that did not run in the last round is taken to run at its best. Where all run at their share it is Tiresias's
    `shortest`.
    """

    name: str = "srtf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.left_s / active.speed, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return work_s

    def quiet_s(self, active: Active, now: float) -> float:
        return inf  # who runs comes nearer to its end; who waits does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf:
    """Shortest remaining service first: the remaining time times the GPUs (Gu et al., NSDI 2019, section 3.2)."""

    name: str = "srsf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.left_s / active.speed * active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return work_s * gpus

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """Fewest GPUs first (Tiresias's `sjf`)."""

    name: str = "sjf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return gpus.astype(np.float64)

    def quiet_s(self, active: Active, now: float) -> float:
        return inf
