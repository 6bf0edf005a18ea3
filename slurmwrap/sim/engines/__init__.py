"""The mode `slurm`: nothing is taken back from a running job, backfill."""

from __future__ import annotations

from slurmwrap.sim.engines.backfill_engine import play_backfill as play_backfill
from slurmwrap.sim.engines.scheduler_params import SchedulerParams as SchedulerParams

__all__ = ["SchedulerParams", "play_backfill"]
