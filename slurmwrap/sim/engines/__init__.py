"""The two modes of the simulator; this module exports the mode `slurm` (backfill, a running job keeps what it has)."""

from __future__ import annotations

from slurmwrap.sim.engines.backfill_engine import SchedulerParams as SchedulerParams
from slurmwrap.sim.engines.backfill_engine import play_backfill as play_backfill

__all__ = ["SchedulerParams", "play_backfill"]
