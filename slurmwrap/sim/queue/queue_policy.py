"""Policy: who is next. The columns that policies order by, and what the engines ask of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slurmwrap.sim.arrays import Bools, Floats, Ints


@dataclass(slots=True, kw_only=True)
class Active:
    """The jobs that are in the system and have not ended, one entry each, in the order of submission."""

    number: Ints  # SimJob.number
    submit_s: Floats
    gpus: Ints
    left_s: Floats  # what is left of work_s, at the proportional share
    speed: Floats  # relative to the share, at which it ran last, or would at best if it never ran
    held_s: Floats  # how long it has held its GPUs
    running: Bools


class Policy(Protocol):
    """Pure but for what it keeps of the queue levels of the jobs it has seen."""

    @property
    def name(self) -> str:
        """As papers and the authors' code call it."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether it orders by submission and, in a world without rounds, no one passes a job that does not fit."""
        ...

    def order(self, active: Active, now: float) -> Ints:
        """Positions in `active`, highest priority first; equals in the order of submission."""
        ...

    def quiet_s(self, active: Active, now: float) -> float:
        """For how long the order stays as it is while no job comes or ends, at least; inf: for good.

        0: it changes all the time. In a world without rounds who then is next is asked every so often.
        """
        ...

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        """What jobs that have never run are ordered by: the smallest first, equals in the order of submission.

        None: that changes with time.
        """
        ...
