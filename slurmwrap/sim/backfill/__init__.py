"""The mode `slurm`: nothing is taken back from a running job, backfill."""

from __future__ import annotations

from slurmwrap.sim.backfill.game import play as play
from slurmwrap.sim.backfill.world import World as World

__all__ = ["World", "play"]
