"""The queue policies by name. The one list of what `--policy` takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from slurmwrap.sim.queue.attained import THRESHOLDS, Las, Queues
from slurmwrap.sim.queue.fifo import Fifo, FirstFit
from slurmwrap.sim.queue.finish_time_fairness import FinishTimeFairness
from slurmwrap.sim.queue.gittins import Gittins, index_of
from slurmwrap.sim.queue.queue_policy import Policy
from slurmwrap.sim.queue.shortest import Smallest, Srsf, Srtf
from slurmwrap.sim.sim_job import SimJob

POLICIES = ("fifo", "srtf", "srsf", "las", "gittins", "ftf")
SAME = {"2d-las": "las", "2d-gittins": "gittins"}  # Tiresias's own names


def policy_of(
    name: str,
    jobs: Sequence[SimJob],
    *,
    thresholds: Sequence[float] | None = None,
    promote: float | None = None,
    late_jumps: bool = True,
) -> Policy:
    """A fresh policy for one run of `jobs`: some keep what they saw. ValueError for a name that no one knows.

    `thresholds`: GPU-seconds, of `las` and `gittins`; None: Tiresias's, (): none, which makes plain LAS of `las`.
    `promote`, `late_jumps`: see Queues. `gittins` takes the GPU-seconds of `jobs` for its history, as if the past were
    just like them (the authors' are 1,000 other jobs). "fjf" and "sjf", Tiresias's other two, are there so that its
    whole table can be checked.
    """
    limits = THRESHOLDS if thresholds is None else tuple(thresholds)
    known = SAME.get(name, name)
    if known == "las" and not limits:
        return Las()
    if known == "las":
        return Queues(jobs=len(jobs), thresholds=limits, promote=promote, late_jumps=late_jumps)
    if known == "gittins":
        services = np.array([job.work_s * job.gpus for job in jobs], dtype=np.float64)
        index = index_of(services, limits[0] if limits else inf)
        return Gittins(jobs=len(jobs), thresholds=limits, promote=promote, late_jumps=late_jumps, index=index)
    if known == "ftf":
        return FinishTimeFairness(work_s=np.array([job.work_s for job in jobs], dtype=np.float64))
    plain: dict[str, Policy] = {"fifo": Fifo(), "srtf": Srtf(), "srsf": Srsf(), "fjf": FirstFit(), "sjf": Smallest()}
    if known not in plain:
        raise ValueError(f"there is no policy '{name}': {', '.join(POLICIES)}")
    return plain[known]
