"""The critical jobs of a round: those on which the end of all work hangs, so that they must not wait. Pure.

The shortest first is best for the mean JCT and starves the longest job, which then runs on alone at the end. A job is
critical as soon as it needs, as fast as it can ever run, at least `factor` times as long as all the work in the system
would take all GPUs at their share: to let it wait then makes the makespan longer by just that, however the others are
divided (the longer of a critical path and of the work per machine bounds every schedule; Graham 1969).
"""

from __future__ import annotations

import numpy as np

from slurmwrap.sim.arrays import Floats, Ints
from slurmwrap.sim.queue.queue_policy import Active


def critical_first(order: Ints, active: Active, best: Floats, gpus: int, factor: float) -> Ints:
    """`order` with the critical jobs in front, in their own order. `best`: each job's best speed; `gpus`: of all."""
    backlog_s = float((active.left_s * active.gpus).sum()) / gpus
    critical = (active.left_s / best >= factor * backlog_s)[order]
    return np.concatenate([order[critical], order[~critical]])
