"""Finish-time fairness: who is treated worst comes first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmwrap.sim.arrays import Floats, Ints
from slurmwrap.sim.queue.queue_policy import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTimeFairness:
    """By rho, largest first: the time a job will have taken over the time it takes alone (Mahajan et al., NSDI 2020).

        rho = (waited and run so far + what is left at the speed at which it ran last) / work at the proportional share

    Themis divides by the time at 1/N of the cluster and auctions GPUs; like Synergy's simulator (1bb2bed6,
    finish_time_fair_metric) this takes the whole request alone instead. That simulator then serves the *smallest* rho
    first, which is not fair: `worst_first=False`.
    """

    work_s: Floats  # by SimJob.number, at the proportional share
    name: str = "ftf"
    worst_first: bool = True
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        rho = (now - active.submit_s + active.left_s / active.speed) / np.maximum(self.work_s[active.number], 1e-9)
        return np.argsort(-rho if self.worst_first else rho, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return None  # rho of a short one grows faster

    def quiet_s(self, active: Active, now: float) -> float:
        return 0.0  # rho of who waits grows all the time
