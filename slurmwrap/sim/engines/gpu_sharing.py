"""Two jobs of one user on one GPU in the mode slurm, at the speeds that profiling/colocation.py predicts.

A job of one GPU whose user consents, and that has waited for `after_s`, joins a running job of the same user that has a
GPU alone and consents too. Of these it takes the one with which both run fastest, and none if the pair is expected to
be bad. Both change their speed when one of them begins or ends. The GPU is released when the last of them has ended;
the pair has the CPUs and the memory of the first. A pair is never separated.

What a job uses of its GPU alone is in the trace (SimJob.gpu_util), or drawn. No trace here has it: the mean that Philly
published for jobs of one GPU is 52 % (Jeon et al., ATC 2019), the form of the distribution is an assumption. The pair
runs as predicted, times `speed_factor`.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from slurmwrap.profiling.colocation import GpuDemand, predict_pair
from slurmwrap.sim.engines.pending_queue import PendingSimJob, RunningSimulation
from slurmwrap.sim.sim_job import SimJob

# Sum of the two parameters of the beta distribution from which utilizations are drawn: about as even as a uniform one.
_BETA_SUM = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """`consent`: the share of jobs that may share a GPU, drawn job by job; 0: none is shared."""

    consent: float = 0.0
    mean_util: float = 0.52  # of the GPU, of jobs of which the trace does not say it; above 0, below 1
    speed_factor: float = 1.0  # real over predicted speed of a pair; below 1 it runs slower than predicted
    after_s: float = 60.0  # a job starts alone if it can within so many seconds
    seed: int = 1


def is_willing(job: SimJob, settings: PackSettings) -> bool:
    """Return whether the job may share its GPU."""
    drawn = random.Random(f"consent {settings.seed} {job.number}").random()
    return job.gpus == 1 and drawn < settings.consent


def find_gpu_util(job: SimJob, settings: PackSettings) -> float:
    """Return which part of its GPU the job uses alone, 0 to 1: as the trace says, else drawn."""
    if job.gpu_util is not None:
        return job.gpu_util
    above = settings.mean_util * _BETA_SUM
    return random.Random(f"GPU utilization {settings.seed} {job.number}").betavariate(above, _BETA_SUM - above)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPair:
    """Two running jobs on one GPU since `since`; `holder` is the one to which Slurm has given it."""

    holder: PendingSimJob
    guest: PendingSimJob
    since: float


@dataclass(slots=True, kw_only=True)
class GpuSharing:
    """The jobs that may share a GPU, and the pairs. Jobs by their index in the trace."""

    settings: PackSettings
    joined: int = 0  # jobs that joined another one
    shared_s: float = 0.0  # in which two jobs had one GPU
    _demand: dict[int, GpuDemand] = field(default_factory=dict)  # of each job that may share
    # Pending jobs that have not waited long enough, by when they will have, and those that have, by user.
    _due: list[tuple[float, int, PendingSimJob]] = field(default_factory=list)
    _ready: dict[str, dict[int, PendingSimJob]] = field(default_factory=dict)
    # Running jobs that have a GPU alone, by user, and those of them that no ready job was compared with.
    _alone: dict[str, dict[int, PendingSimJob]] = field(default_factory=dict)
    _new: set[int] = field(default_factory=set)
    _pair: dict[int, GpuPair] = field(default_factory=dict)

    def submit(self, waiting: PendingSimJob, simulator: RunningSimulation) -> None:
        """Note a job that was submitted."""
        if is_willing(waiting.job, self.settings):
            self._demand[waiting.place] = GpuDemand(gpu_util=find_gpu_util(waiting.job, self.settings))
            due = simulator.now + self.settings.after_s
            heapq.heappush(self._due, (due, waiting.place, waiting))
            heapq.heappush(simulator.wakes, due)

    def begin(self, one: PendingSimJob) -> None:
        """Note a job that has started on a GPU of its own."""
        if one.place in self._demand:
            self._ready.get(one.job.user, {}).pop(one.place, None)
            self._leave_alone(one)

    def end(self, one: PendingSimJob, simulator: RunningSimulation) -> bool:
        """Note that a job has ended; return whether another one stays on its GPU."""
        self._alone.get(one.job.user, {}).pop(one.place, None)
        pair = self._pair.pop(one.place, None)
        if pair is None:
            return False
        other = pair.guest if one is pair.holder else pair.holder
        del self._pair[other.place]
        self.shared_s += simulator.now - pair.since
        self._leave_alone(other)
        simulator.assume_end(pair.holder, other, other.began + other.most_s)
        simulator.change_speed(other, 1.0)
        return True

    def has_pair(self, one: PendingSimJob) -> bool:
        """Return whether another job runs on the GPU of this one."""
        return one.place in self._pair

    def join_waiting(self, simulator: RunningSimulation) -> bool:
        """Let jobs that have waited join others; return whether any did."""
        before = self.joined
        while self._due and self._due[0][0] <= simulator.now:
            _, place, one = heapq.heappop(self._due)
            if place in simulator.pending and not self._join_best(one, None, simulator):
                self._ready.setdefault(one.job.user, {})[place] = one
        for user in self._ready if self._new else ():
            for one in list(self._ready[user].values()):
                if self._join_best(one, self._new, simulator):
                    del self._ready[user][one.place]
        self._new.clear()
        return self.joined > before

    def _leave_alone(self, one: PendingSimJob) -> None:
        self._alone.setdefault(one.job.user, {})[one.place] = one
        self._new.add(one.place)

    def _join_best(self, one: PendingSimJob, among: set[int] | None, simulator: RunningSimulation) -> bool:
        """Let the job join the one with which both run fastest, unless every pair is bad; return whether it did.

        `among`: running jobs that are considered; None: all.
        """
        alone = self._alone.get(one.job.user, {})
        places = [place for place in alone if among is None or place in among]
        pairs = ((predict_pair(self._demand[one.place], self._demand[place]), place) for place in places)
        speed, place = max(((pair.speed, -place) for pair, place in pairs if not pair.bad), default=(0.0, 0))
        if not speed:
            return False
        holder = alone.pop(-place)
        self._pair[one.place] = self._pair[-place] = GpuPair(holder=holder, guest=one, since=simulator.now)
        self.joined += 1
        one.ask = holder.ask
        simulator.begin_run(one, holder.seats)
        simulator.assume_end(holder, holder, max(each.began + each.most_s for each in (one, holder)))
        for each in (one, holder):
            simulator.change_speed(each, speed * self.settings.speed_factor)
        return True


def make_gpu_sharing(settings: PackSettings) -> GpuSharing | None:
    """Return the sharing of one run; None if no job consents."""
    return GpuSharing(settings=settings) if settings.consent > 0 else None
