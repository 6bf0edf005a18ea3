"""2D-Gittins: who is likeliest to end soon for the service it still takes comes first, by what is known of other jobs.

Gu et al., NSDI 2019 (Tiresias), section 3.2, and its simulator (SymbioticLab/Tiresias, 959f9b08).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmwrap.sim.arrays import Floats, Ints
from slurmwrap.sim.queue.attained import Queues
from slurmwrap.sim.queue.queue_policy import Active


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The Gittins index, for GPU-seconds `a` that a job has had, by the services S of earlier jobs:

        G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

    `quantum` is D. 0 for who has had more than anybody before. (The authors' code sums S instead of S - a in E.)
    """

    ordered: Floats  # S, ascending
    quantum: float
    _sums: Floats  # of the first k

    def at(self, attained: Floats) -> Floats:
        """One index per job."""
        count = len(self.ordered)
        above = np.searchsorted(self.ordered, attained, side="right")
        within = np.searchsorted(self.ordered, attained + self.quantum, side="right")
        ends = within - above
        later = np.where(within < count, (count - within) * min(self.quantum, 1e300), 0.0)
        service = self._sums[within] - self._sums[above] - ends * attained + later
        return np.where(above < count, ends / np.where(service > 0, service, 1.0), 0.0)


def index_of(history: Floats, quantum: float) -> Index:
    """`history`: GPU-seconds of earlier jobs, in any order."""
    ordered = np.sort(history)
    return Index(ordered=ordered, quantum=quantum, _sums=np.concatenate(([0.0], np.cumsum(ordered))))


@dataclass(slots=True, kw_only=True)
class Gittins(Queues):
    """The queues of 2D-LAS; in each by Gittins index, the largest first, equals by submission.

    The index is read anew whenever leases end, and not in between, as in the authors' code. Their D is 3250 GPU-seconds
    in all queues; the paper's is the upper limit of the queue.
    """

    index: Index
    name: str = "2d-gittins"

    def _ranked(self, active: Active) -> Ints:
        index = self.index.at(self.service(active))
        return np.lexsort((active.number, -index, self._level[active.number]))
