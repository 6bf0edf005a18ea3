"""The mode `slurm`: nothing is taken back from a running job, backfill."""

from __future__ import annotations

from slurmwrap.sim.engines.backfill_engine import SchedulerParams as SchedulerParams
from slurmwrap.sim.engines.backfill_engine import play_backfill as play_backfill

__all__ = ["SchedulerParams", "play_backfill"]
