"""Who gets GPUs until the leases end next, where any free GPUs will do. Works on whole columns.

Jobs in the order of priority while GPUs are free; who does not fit is passed (Synergy, Tiresias) or, `in_turn`, ends
the search (Tiresias's fifo).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurmwrap.sim.arrays import Bools, Ints


class Leases(Protocol):
    """The GPUs of the cluster, and who holds them until leases end next. Jobs are known by their numbers."""

    def admit(self, new: Ints) -> bool:
        """Whether these fit next to everybody; then they hold their GPUs, else nothing has changed."""
        ...

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        """All leases end. `order`: everybody who is there, highest priority first.

        Returns which of them hold GPUs now, and the numbers of those who do but were moved.
        """
        ...

    def release(self, numbers: Ints) -> None:
        """These hold nothing any more."""
        ...

    def servers(self, numbers: Ints) -> Ints:
        """On how many servers each of these holds its GPUs."""
        ...


@dataclass(slots=True, kw_only=True)
class LeasePool:
    """Leases of GPUs in one heap, as both simulators count them by default."""

    gpus: Ints  # of each job, by number
    total: int
    per_server: int
    free: int = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.total

    def admit(self, new: Ints) -> bool:
        needed = int(self.gpus[new].sum())
        if needed > self.free:
            return False
        self.free -= needed
        return True

    def lease(self, order: Ints, *, in_turn: bool) -> tuple[Bools, Ints]:
        gpus = self.gpus[order]
        runs = select_fitting(gpus, self.total, in_turn=in_turn)
        self.free = self.total - int(gpus[runs].sum())
        return runs, order[:0]

    def release(self, numbers: Ints) -> None:
        self.free += int(self.gpus[numbers].sum())

    def servers(self, numbers: Ints) -> Ints:
        """As few as could hold them."""
        return -(-self.gpus[numbers] // self.per_server)


def select_fitting(gpus: Ints, free: int, *, in_turn: bool) -> Bools:
    """Which jobs get their GPUs. `gpus`: of each, highest priority first; `free`: how many there are.

    As many steps as there are sizes of jobs, not as there are jobs.
    """
    taken = np.zeros(len(gpus), dtype=np.bool_)
    here = np.arange(len(gpus))
    while len(here):
        used = np.cumsum(gpus[here])
        fit = int(np.searchsorted(used, free, side="right"))
        taken[here[:fit]] = True
        if in_turn or fit == len(here):
            break
        free -= int(used[fit - 1]) if fit else 0
        here = here[fit + 1 :]
        here = here[gpus[here] <= free]
    return taken
