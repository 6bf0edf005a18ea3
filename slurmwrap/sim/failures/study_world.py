"""World: what all arms of one seed share. Record only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurmwrap.config import Config
from slurmwrap.model.node import Node
from slurmwrap.sim.failures.draw_failures import Doomed
from slurmwrap.sim.failures.failure_settings import FailureSettings
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.failures.node_failures import Hardware
from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureWorld:
    """The same jobs, in store for them the same, on the same nodes."""

    jobs: Sequence[SimJob]
    doomed: Doomed
    hardware: Hardware
    nodes: tuple[Node, ...]
    settings: FailureSettings
    config: Config  # with its rules acting
    seed: int
    waited_s: Mapping[int, float] = field(default_factory=dict)  # by SimJob.number, in the queue; only dumps know

    def chance(self, job: SimJob, what: Purpose, run: int = 0) -> float:
        """0 <= x < 1; the same in every arm."""
        return draw_uniform(self.seed, job.number, run, what)
