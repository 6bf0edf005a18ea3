"""Queue policies of the simulator: FIFO, SRTF, SRSF, LAS, Gittins, finish-time fairness, Themis and DRF."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from slurmwrap.placement.demand import Server
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.sim_job import SimJob


# The columns by which policies order jobs, and the interface between policies and engines.
@dataclass(slots=True, kw_only=True)
class Active:
    """The jobs that are in the system and have not ended, one entry each, in the order of submission."""

    number: Ints  # SimJob.number
    submit_s: Floats
    gpus: Ints
    left_s: Floats  # remaining work_s, at the proportional share
    # Speed relative to the share: at which the job ran last, or its best one if it never ran.
    speed: Floats
    held_s: Floats  # for how many seconds the job has held its GPUs
    running: Bools


class Policy(Protocol):
    """A policy. Pure, except for what it remembers of the queue levels of the jobs it has seen."""

    @property
    def name(self) -> str:
        """The name in the papers and the authors' code."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether it orders by submission and, without rounds, no job passes one that does not fit."""
        ...

    def order(self, active: Active, now: float) -> Ints:
        """Return positions in `active`, highest priority first; equals in the order of submission."""
        ...

    def quiet_s(self, active: Active, now: float) -> float:
        """Return for how many seconds the order stays the same at least while no job arrives or ends; inf: for ever.

        0: it changes all the time. Without rounds, the engine then asks again at regular intervals.
        """
        ...

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        """Return the key by which jobs that never ran are ordered: smallest first, equals in the order of submission.

        None: the key changes with time.
        """
        ...


# First come, first served: FIFO, and Tiresias's "first job that fits".
@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Order by submission. `in_turn` (Tiresias's fifo): without rounds, no job passes one that does not fit."""

    name: str = "fifo"
    in_turn: bool = True

    def order(self, active: Active, now: float) -> Ints:
        return np.arange(len(active.number), dtype=np.int64)

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """Order by submission. Running jobs continue, jobs that do not fit are passed (Tiresias's fjf): never preempts."""

    name: str = "fjf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(~active.running, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


# Shortest first: SRTF, SRSF and the smallest. If run times are known, no policy has a better mean JCT.
@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf:
    """Shortest remaining time first, at the speed at which a job ran last.

    Synergy's simulator computes it in this way (Mohan et al., OSDI 2022; msr-fiddle/synergy, 1bb2bed6,
    remaining_duration): a job that did not run in the last round is assumed to run at its best. If all jobs run at
    their share it is Tiresias's `shortest`.
    """

    name: str = "srtf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.left_s / active.speed, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return work_s

    def quiet_s(self, active: Active, now: float) -> float:
        # Running jobs come nearer to their end, pending jobs do not, so the order stays.
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf:
    """Shortest remaining service first: the remaining time times the GPUs (Gu et al., NSDI 2019, section 3.2)."""

    name: str = "srsf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.left_s / active.speed * active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return work_s * gpus

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """Fewest GPUs first (Tiresias's `sjf`)."""

    name: str = "sjf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return gpus.astype(np.float64)

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


# Finish-time fairness: the job that is treated worst comes first.
@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTimeFairness:
    """By rho, largest first: the time a job will have taken over the time it takes alone (Mahajan et al., NSDI 2020).

        rho = (waited and run so far + remaining time at its last speed) / work at the proportional share

    Themis divides by the time at 1/N of the cluster and auctions GPUs. Like Synergy's simulator (1bb2bed6,
    finish_time_fair_metric), this divides by the time of the whole request alone. That simulator then serves the
    *smallest* rho first, which is not fair: `worst_first=False`.
    """

    # Work by SimJob.number, at the proportional share.
    work_s: Floats
    name: str = "ftf"
    worst_first: bool = True
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        rho = (now - active.submit_s + active.left_s / active.speed) / np.maximum(self.work_s[active.number], 1e-9)
        return np.argsort(-rho if self.worst_first else rho, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        # The rho of a short job grows faster.
        return None

    def quiet_s(self, active: Active, now: float) -> float:
        # The rho of a pending job grows all the time.
        return 0.0


@dataclass(slots=True, kw_only=True)
class Themis:
    """By rho as in Themis (Mahajan et al., NSDI 2020), largest first: a job's time here over its time on its part.

        rho = (waited and run so far + remaining time) / (work x max(1, GPUs x N / GPUs of the cluster))

    N is the mean number of jobs in the system since the job was submitted, so its part is 1 / N of the cluster; a job
    with more GPUs than that takes as many times longer there. Each job is an application of its own. Not simulated: the
    auction, which offers GPUs to a part of the applications and lets them bid for near GPUs. Themis's leases last
    20 minutes.
    """

    work_s: Floats  # by SimJob.number, at the proportional share
    total_gpus: int
    name: str = "themis"
    in_turn: bool = False
    # Integral of the number of jobs in the system over time, and its value when each job was seen first.
    _job_seconds: float = field(init=False, default=0.0)
    _before: Floats = field(init=False)
    _jobs: int = field(init=False, default=0)
    _last: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._before = np.full(len(self.work_s), np.nan)

    def order(self, active: Active, now: float) -> Ints:
        self._job_seconds += self._jobs * max(0.0, now - self._last)
        self._jobs, self._last = len(active.number), now
        before = self._before[active.number]
        new = np.isnan(before)
        before = np.where(new, self._job_seconds - self._jobs * (now - active.submit_s), before)
        self._before[active.number] = before
        stay_s = now - active.submit_s
        contention = np.where(stay_s > 0, (self._job_seconds - before) / np.where(stay_s > 0, stay_s, 1.0), self._jobs)
        alone = self.work_s[active.number] * np.maximum(1.0, active.gpus * contention / self.total_gpus)
        return np.argsort(-(stay_s + active.left_s / active.speed) / np.maximum(alone, 1e-9), kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return None

    def quiet_s(self, active: Active, now: float) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DominantShare:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011): the next job of the user with the least dominant share.

    A user's dominant share is the largest of the shares of the cluster's GPUs, CPUs and memory that the user's jobs
    before in the order request. The jobs of a user come in the order of submission; a job without a user is a user of
    its own. A job that does not fit counts as if it ran.
    """

    users: Sequence[str]  # by SimJob.number
    shares: Floats  # of GPUs, CPUs and memory, one row per SimJob.number
    name: str = "drf"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        queues: dict[str, list[int]] = {}
        for position, number in enumerate(active.number.tolist()):
            queues.setdefault(self.users[number] or f"\0{number}", []).append(position)
        # (dominant share, position of the next job, user, jobs taken)
        heap = [(0.0, positions[0], user, 0) for user, positions in queues.items()]
        held = {user: np.zeros(self.shares.shape[1]) for user in queues}
        heapq.heapify(heap)
        found = []
        while heap:
            _, position, user, taken = heapq.heappop(heap)
            found.append(position)
            held[user] += self.shares[active.number[position]]
            if taken + 1 < len(queues[user]):
                heapq.heappush(heap, (float(held[user].max()), queues[user][taken + 1], user, taken + 1))
        return np.array(found, dtype=np.int64)

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return None

    def quiet_s(self, active: Active, now: float) -> float:
        return inf


def make_dominant_share(jobs: Sequence[SimJob], servers: Sequence[Server]) -> DominantShare:
    """Return the policy. A job that requests no CPUs or memory gets those of its GPUs, so its GPUs count alone."""
    gpus, cpus, mem_mib = (
        max(1, sum(getattr(server, name) for server in servers)) for name in ("gpus", "cpus", "mem_mib")
    )
    shares = [
        (
            job.gpus / gpus,
            job.gpus / gpus if job.cpus is None else job.cpus / cpus,
            job.gpus / gpus if job.mem_mib is None else job.mem_mib / mem_mib,
        )
        for job in jobs
    ]
    return DominantShare(users=[job.user for job in jobs], shares=np.array(shares, dtype=np.float64).reshape(-1, 3))


# Least attained service: the job that has had least comes first. Run times need not be known.
#
# Gu et al., NSDI 2019 (Tiresias), section 3.2, and its simulator (SymbioticLab/Tiresias, 959f9b08, dlas_sim_jobs).
# THRESHOLDS, in GPU-seconds: upper limits of the first and of the second queue, as in the authors' code.
THRESHOLDS = (3250.0, 7200.0)
# GPU-seconds: a service this close to a threshold counts as over it.
_SOON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Las:
    """By the GPU-seconds that a job has held, the least first (Synergy's LAS). The order changes all the time."""

    name: str = "las"
    in_turn: bool = False

    def order(self, active: Active, now: float) -> Ints:
        return np.argsort(active.held_s * active.gpus, kind="stable")

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        return 0.0


@dataclass(slots=True, kw_only=True)
class Queues:
    """2D-LAS: one queue more than `thresholds`; a job begins in the first.

    Service is held seconds times GPUs since the last promotion. A job that has reached the threshold of its queue goes
    to the end of the next queue. Within a queue, running jobs come before pending ones, each in the order in which they
    entered the queue; so two equal jobs do not change places for ever. `promote` K: a job that ran before and has since
    waited K times as long as it ran goes to the end of the first queue, and both times start again (STARVELIMIT in the
    paper, solve_starvation in the code); None: never.

    `late_jumps`: the authors' code expects a demotion after (threshold - held seconds) / GPUs, in whole seconds, where
    it means threshold / GPUs - held seconds. So the demotion of a job with several GPUs is noticed late, at the next
    event. Their figures need it: 6,727 s mean JCT on 480 Philly jobs on 60 GPUs, 6,633 s without.
    """

    # Number of jobs; every SimJob.number is less.
    jobs: int
    thresholds: tuple[float, ...] = THRESHOLDS
    promote: float | None = None
    late_jumps: bool = True
    name: str = "2d-las"
    in_turn: bool = False
    _level: Ints = field(init=False)
    # Position in its queue: only the order counts; inf: not seen yet.
    _position: Floats = field(init=False)
    _held_before: Floats = field(init=False)  # held_s at the last promotion
    _waited: Floats = field(init=False)  # seconds since it ran first, or since the last promotion
    _seen: Floats = field(init=False)  # when `_waited` was computed
    _last: float = field(init=False, default=0.0)  # the next free position

    def __post_init__(self) -> None:
        self._level = np.zeros(self.jobs, dtype=np.int64)
        self._position = np.full(self.jobs, inf)
        self._held_before, self._waited, self._seen = (np.zeros(self.jobs) for _ in range(3))

    def order(self, active: Active, now: float) -> Ints:
        self._renumber_positions(active)
        self._demote(active)
        if self.promote is not None:
            self._wait(active, now)
            self._promote(active)
        return self._rank(active)

    def standing(self, gpus: Ints, work_s: Floats) -> Floats | None:
        return np.zeros(len(gpus))

    def quiet_s(self, active: Active, now: float) -> float:
        """Return the seconds until the next demotion of a running job, or promotion of a pending one."""
        quiet = self._until_demotion(active)
        return quiet if self.promote is None else min(quiet, float(self._until_promotion(active).min(initial=inf)))

    def level(self, number: int) -> int:
        """Return the queue of this job, from 0."""
        return int(self._level[number])

    def service(self, active: Active) -> Floats:
        """Return the GPU-seconds since the last promotion."""
        return (active.held_s - self._held_before[active.number]) * active.gpus

    def _rank(self, active: Active) -> Ints:
        return np.lexsort((self._position[active.number], self._level[active.number]))

    def _renumber_positions(self, active: Active) -> None:
        """Move running jobs before pending ones and new jobs to the end. Positions are counted from 0 again."""
        number = active.number
        seats = np.lexsort((self._position[number], ~active.running))
        self._position[number[seats]] = np.arange(len(seats))
        self._last = float(len(seats))

    def _append(self, numbers: Ints) -> None:
        """Move these jobs to the end of their queues."""
        self._position[numbers] = self._last + np.arange(len(numbers))
        self._last += len(numbers)

    def _limit(self, active: Active) -> Floats:
        """Return the threshold of each job's queue; inf in the last."""
        return np.array([*self.thresholds, inf])[self._level[active.number]]

    def _demote(self, active: Active) -> None:
        service = self.service(active)
        while (over := service >= self._limit(active) - _SOON).any():
            down = active.number[over]
            self._level[down] += 1
            self._append(down)

    def _until_demotion(self, active: Active) -> float:
        gpus, limit, service = active.gpus, self._limit(active), self.service(active)
        left = (limit - service) / gpus
        if self.late_jumps:
            late = np.floor((limit - service / gpus) / gpus)
            # A fraction of a second would be rounded to 0, again and again.
            left = np.where(late >= 1, late, left)
        return max(_SOON, float(left[active.running].min(initial=inf)))

    def _waits(self, active: Active) -> Bools:
        return ~active.running & (active.held_s > self._held_before[active.number])

    def _wait(self, active: Active, now: float) -> None:
        waits = active.number[self._waits(active)]
        self._waited[waits] += now - self._seen[waits]
        self._seen[active.number] = now

    def _promote(self, active: Active) -> None:
        up = self._until_promotion(active) <= _SOON
        numbers = active.number[up]
        self._level[numbers] = 0
        self._held_before[numbers] = active.held_s[up]
        self._waited[numbers] = 0.0
        self._append(numbers)

    def _until_promotion(self, active: Active) -> Floats:
        """Return the seconds for each job; inf for one that runs, never ran, or is in the first queue already."""
        number = active.number
        left = (active.held_s - self._held_before[number]) * (self.promote or inf) - self._waited[number]
        return np.where(self._waits(active) & (self._level[number] > 0), left, inf)


# 2D-Gittins: the job that is most likely to end soon for the service it still takes comes first, estimated from other
# jobs.
#
# Gu et al., NSDI 2019 (Tiresias), section 3.2, and its simulator (SymbioticLab/Tiresias, 959f9b08).
@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The Gittins index, for GPU-seconds `a` that a job has had, by the services S of earlier jobs:

        G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

    `quantum` is D. 0 for a job that has had more than any earlier job. (The authors' code sums S instead of S - a in
    E.)
    """

    ordered: Floats  # S, ascending
    quantum: float
    _sums: Floats  # sums of the first k

    def at(self, attained: Floats) -> Floats:
        """Return one index per job."""
        count = len(self.ordered)
        above = np.searchsorted(self.ordered, attained, side="right")
        within = np.searchsorted(self.ordered, attained + self.quantum, side="right")
        ends = within - above
        later = np.where(within < count, (count - within) * min(self.quantum, 1e300), 0.0)
        service = self._sums[within] - self._sums[above] - ends * attained + later
        return np.where(above < count, ends / np.where(service > 0, service, 1.0), 0.0)


def make_gittins_index(history: Floats, quantum: float) -> Index:
    """Return the index. `history`: GPU-seconds of earlier jobs, in any order."""
    ordered = np.sort(history)
    return Index(ordered=ordered, quantum=quantum, _sums=np.concatenate(([0.0], np.cumsum(ordered))))


@dataclass(frozen=True, slots=True, kw_only=True)
class TiresiasIndex:
    """The index as the authors' code computes it (cal_r_gittins_index, get_gittins_index), for its figures.

    Its differences from the formula: one index for all services up to the next S of the history, that of one GPU-second
    less than this S; the sum of S instead of S - a in E, and E rounded down; the largest S never ends within D.
    """

    ordered: Floats  # S, ascending
    _index: Floats  # by the number of S that are not larger

    def at(self, attained: Floats) -> Floats:
        """Return one index per job."""
        return self._index[np.searchsorted(self.ordered, np.floor(attained + _SOON), side="right")]


def make_tiresias_index(history: Floats, quantum: float) -> TiresiasIndex:
    """Return the index. `history`: whole GPU-seconds of earlier jobs, in any order."""
    ordered = np.sort(history)
    count = len(ordered)
    first = np.searchsorted(ordered, ordered, side="left")
    within = np.searchsorted(ordered, ordered - 1 + quantum, side="right")
    within = np.where(within == count, count - 1, within)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    expected = (sums[within] - sums[first] + quantum * (count - within)) // (count - first)
    chance = np.round((within - first) / (count - first), 5)
    return TiresiasIndex(ordered=ordered, _index=np.append(np.round(chance * 1e6 / expected, 4), 0.0))


@dataclass(slots=True, kw_only=True)
class Gittins(Queues):
    """The queues of 2D-LAS; within each, the largest Gittins index first, equals by submission.

    The index is computed anew whenever leases end, and not in between, as in the authors' code. Their D is 3250
    GPU-seconds in all queues; the paper's is the upper limit of the queue.
    """

    index: Index | TiresiasIndex
    name: str = "2d-gittins"

    def _rank(self, active: Active) -> Ints:
        index = self.index.at(self.service(active))
        return np.lexsort((active.number, -index, self._level[active.number]))


# The queue policies by name: the values of `--policy`.
POLICIES = ("fifo", "srtf", "srsf", "las", "gittins", "ftf", "themis", "drf")
SAME = {"2d-las": "las", "2d-gittins": "gittins"}  # Tiresias's own names


def make_policy(
    name: str,
    jobs: Sequence[SimJob],
    *,
    thresholds: Sequence[float] | None = None,
    promote: float | None = None,
    late_jumps: bool = True,
    services: Floats | None = None,
    servers: Sequence[Server] = (),
) -> Policy:
    """Return a new policy for one run of `jobs`, because some policies keep state. ValueError for an unknown name.

    `thresholds`: GPU-seconds, for `las` and `gittins`; None: Tiresias's, (): none, which turns `las` into plain LAS.
    `promote`, `late_jumps`: see Queues. `gittins` uses the GPU-seconds of `jobs` as its history, as if earlier jobs had
    been just like them; with `services`, those of other jobs, it uses these as the authors' code does. "fjf" and "sjf",
    Tiresias's other two, exist so that its whole table can be checked. `servers`: for `themis` and `drf`.
    """
    limits = THRESHOLDS if thresholds is None else tuple(thresholds)
    known = SAME.get(name, name)
    if known == "las" and not limits:
        return Las()
    if known == "las":
        return Queues(jobs=len(jobs), thresholds=limits, promote=promote, late_jumps=late_jumps)
    if known == "gittins":
        quantum = limits[0] if limits else inf
        index: Index | TiresiasIndex
        if services is not None:
            index = make_tiresias_index(services, quantum)
        else:
            own = np.array([job.work_s * job.gpus for job in jobs], dtype=np.float64)
            index = make_gittins_index(own, quantum)
        return Gittins(jobs=len(jobs), thresholds=limits, promote=promote, late_jumps=late_jumps, index=index)
    if known == "ftf":
        return FinishTimeFairness(work_s=np.array([job.work_s for job in jobs], dtype=np.float64))
    if known == "themis":
        total = sum(server.gpus for server in servers) or max((job.gpus for job in jobs), default=1)
        return Themis(work_s=np.array([job.work_s for job in jobs], dtype=np.float64), total_gpus=total)
    if known == "drf":
        return make_dominant_share(jobs, servers)
    plain: dict[str, Policy] = {"fifo": Fifo(), "srtf": Srtf(), "srsf": Srsf(), "fjf": FirstFit(), "sjf": Smallest()}
    if known not in plain:
        raise ValueError(f"there is no policy '{name}': {', '.join(POLICIES)}")
    return plain[known]
