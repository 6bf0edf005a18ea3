"""Waiting: a job in Slurm's queue, with what it asks for now. The mutable record of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.model.resource_profile import SpeedPoint
from slurmwrap.sim.arrays import Bools
from slurmwrap.sim.engines.free_resources import Seats
from slurmwrap.sim.engines.sim_request import Ask
from slurmwrap.sim.sim_job import SimJob


@dataclass(slots=True, kw_only=True)
class PendingSimJob:
    """`place`: index of the job in the trace. Seconds; CPUs and MiB per GPU."""

    place: int
    job: SimJob
    nodes: int | None  # that it insists on
    cpus: float
    mem_mib: float
    asked: tuple[float, float]  # CPUs and MiB per GPU as its user asked
    ask: Ask
    length_s: float  # what backfill believes that it takes at most
    points: tuple[SpeedPoint, ...] = ()  # its speeds, where it has a profile with any
    allowed: Bools | None = None  # servers where it may run; None: all
    names: frozenset[str] | None = None  # the same by name
    leaves: int | None = None  # it waits for so few leaf switches, as long as
    leaves_until: float = 0.0
    submitted: float = 0.0
    began: float = -1.0
    seats: Seats = field(default_factory=lambda: Seats(servers=(), units=()))

    @property
    def name(self) -> str:
        """Its address, as claims call it."""
        return str(self.place)

    def leaves_at(self, now: float) -> int | None:
        """The number of leaf switches that it insists on at that moment."""
        return self.leaves if now < self.leaves_until else None
