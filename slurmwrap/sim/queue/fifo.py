"""First come, first served: FIFO, and Tiresias's "first job that fits" next to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from slurmwrap.sim.arrays import Floats, Ints
from slurmwrap.sim.queue.queue_policy import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """By submission. `in_turn` (Tiresias's fifo): in a world without rounds no one passes a job that does not fit."""

    name: str = "fifo"
    in_turn: bool = True

    def order(self, active: Active, now: float) -> Ints:
        return np.arange(len(active.number), dtype=np.int64)

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """By submission; who runs goes on, who does not fit is passed (Tiresias's fjf): never preempts."""

    name: str = "fjf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(~active.running, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return inf
