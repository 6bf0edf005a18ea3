"""Engine of the mode *rounds*: leases end, and the jobs that are first in the queue get the GPUs again.

Two schedulers in one loop. `round_s` > 0 is Synergy's (Mohan et al., OSDI 2022; msr-fiddle/synergy, 1bb2bed6): all
leases end every `round_s`, jobs in the order of the policy get GPUs while there are any, the mechanism divides CPUs and
memory among them, only whole iterations count, and a job that has finished leaves at the end of the round. `round_s` =
0 is Tiresias's (Gu et al., NSDI 2019; SymbioticLab/Tiresias, 959f9b08): leases end at every submission, end and change
of the policy's queues, and a job ends at its exact moment. Preemption and migration cost nothing in either, as in the
authors' simulators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from slurmwrap.errors import TraceError
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import JobDemand, Server
from slurmwrap.sim.arrays import Bools, Floats, Ints
from slurmwrap.sim.consolidate import LeasePool, Leases, Places
from slurmwrap.sim.engines.job_table import JobTable, make_lease_clock
from slurmwrap.sim.mechanism.mechanism import Habits, Mechanism
from slurmwrap.sim.model_skew import select_tied_jobs
from slurmwrap.sim.queue_policies import Active, Policy
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import Progress, SimOutcome
from slurmwrap.sim.sim_throughput import Points, compute_share_work_s, list_model_speeds, make_sim_demand
from slurmwrap.sim.synergy_models import ITERATION_S


# The critical jobs of a round: the end of all work depends on them, so they must not wait.
#
# Shortest first is best for the mean JCT, but starves the longest job, which then runs alone at the end. A job is
# critical as soon as it needs, as fast as it can ever run, at least `factor` times as long as all the work in the
# system would take on all GPUs at their share. If it waits then, the makespan becomes longer by just that, however the
# other jobs are divided (the longer of a critical path and of the work per machine bounds every schedule; Graham 1969).
def move_critical_first(order: Ints, active: Active, best: Floats, gpus: int, factor: float) -> Ints:
    """Return `order` with the critical jobs in front, in their own order.

    `best`: each job's best speed; `gpus`: GPUs of the cluster.
    """
    backlog_s = float((active.left_s * active.gpus).sum()) / gpus
    critical = (active.left_s / best >= factor * backlog_s)[order]
    return np.concatenate([order[critical], order[~critical]])


# How fast the chosen jobs run. The mechanism is asked only if its answer could differ. Pure, except for the cache.
#
# A mechanism is deterministic and starts with empty servers: the same list of jobs gets the same allocations. If no job
# has a profile there is nothing to divide, and the mechanism is not asked.
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """For the chosen jobs, in order: whether the job got servers, how fast it is there, on how many servers."""

    placed: Bools
    speeds: Floats
    servers: Ints


@dataclass(slots=True, kw_only=True)
class Sharing:
    """The mechanism with the demands of a run's jobs, by number."""

    mechanism: Mechanism
    servers: Sequence[Server]
    claims: Sequence[JobDemand]
    _last_chosen: bytes = field(init=False, default=b"")
    _answer: Shared | None = field(init=False, default=None)

    def among(self, chosen: Ints) -> Shared:
        """Return the result for `chosen`: numbers of jobs, highest priority first."""
        asked = chosen.tobytes()
        if self._answer is None or asked != self._last_chosen:
            self._last_chosen, self._answer = asked, self._ask([self.claims[number] for number in chosen.tolist()])
        return self._answer

    def best(self) -> Floats:
        """Return the speed of each job alone on the servers, by number."""
        known: dict[object, float] = {}
        found = np.ones(len(self.claims))
        for number, demand in enumerate(self.claims):
            key = (demand.gpus_per_node, demand.nodes, demand.cpus, demand.mem_mib, id(demand.speeds))
            if key not in known:
                known[key] = float(self._ask([demand]).speeds[0])
            found[number] = known[key]
        return found

    def _ask(self, demands: Sequence[JobDemand]) -> Shared:
        allocations = self.mechanism(demands, self.servers)
        return Shared(
            placed=np.array([bool(allocation.servers) for allocation in allocations], dtype=np.bool_),
            speeds=np.array([allocation.speed or 1.0 for allocation in allocations]),
            servers=np.array([len(set(allocation.servers)) for allocation in allocations], dtype=np.int64),
        )


def make_sharing(
    jobs: Sequence[SimJob], servers: Sequence[Server], mechanism: Mechanism, points: Points, *, equal_parts: bool
) -> Sharing | None:
    """Return the mechanism with its demands; None if no job has a profile.

    `equal_parts`: the mechanism gives a job the same number of GPUs on each of its servers.
    """
    if not any(job.model in points for job in jobs):
        return None
    most = len(servers) if equal_parts else None
    demands = [make_sim_demand(job, points.get(job.model, ()), servers[0], most) for job in jobs]
    return Sharing(mechanism=mechanism, servers=servers, claims=demands)


# Without rounds, seconds between two calls of a policy whose order changes all the time.
LOOK_S = 300.0


def play_rounds(
    jobs: Sequence[SimJob],
    servers: Sequence[Server],
    policy: Policy,
    mechanism: Mechanism,
    *,
    profiles: Mapping[str, ResourceProfile],
    round_s: float,
    placement: str = "any",
    habits: Habits | None = None,
    window: range | None = None,
    progress: Progress | None = None,
) -> SimOutcome:
    """Simulate `jobs` (in the order of submission) to the end of all, or of those whose numbers are in `window`.

    `servers` are equal and empty. `profiles` by SimJob.model; the mechanism is asked if a job has one. `placement`:
    `any`: any free GPUs; `consolidate`: a job waits for as few servers as possible; `skew`: only models that lose speed
    on distant servers do (model_skew.py). If the mechanism is asked, it chooses the servers instead. TraceError if a
    job can never run.
    """
    _check_sizes(jobs, servers)
    points = list_model_speeds(profiles, servers[0])
    habits = habits or Habits()
    sharing = make_sharing(jobs, servers, mechanism, points, equal_parts=habits.equal_parts)
    book = _make_job_table(jobs, servers[0], points, sharing, round_s)
    together = select_tied_jobs(jobs, placement, profiles)
    run = _Run(
        book=book,
        policy=policy,
        sharing=sharing,
        habits=habits,
        gpus=sum(server.gpus for server in servers),
        leases=_make_leases(book.gpus, servers, together & (sharing is None)),
        wanted=set(range(len(jobs)) if window is None else window) & set(range(len(jobs))),
    )
    last = run.play(progress or (lambda ended, all_jobs: None))
    return book.outcome(run.steps, last)


def _make_leases(gpus: Ints, servers: Sequence[Server], together: Bools) -> Leases:
    if together.any():
        return Places(gpus=gpus, tied=together, count=len(servers), size=servers[0].gpus)
    return LeasePool(gpus=gpus, total=sum(server.gpus for server in servers), per_server=servers[0].gpus)


def _check_sizes(jobs: Sequence[SimJob], servers: Sequence[Server]) -> None:
    total = sum(server.gpus for server in servers)
    for job in jobs:
        if job.gpus > total:
            where = f"line {job.line}: " if job.line else ""
            raise TraceError(
                f"{where}job {job.job} asks for {job.gpus} GPUs, the cluster has {total}",
                hint="simulate more --servers, or with more --gpus each",
            )


def _make_job_table(
    jobs: Sequence[SimJob], server: Server, points: Points, sharing: Sharing | None, round_s: float
) -> JobTable:
    work = np.array([compute_share_work_s(job, points.get(job.model, ()), server) for job in jobs], dtype=np.float64)
    unit = np.array([ITERATION_S.get(job.model, 0.0) if round_s > 0 else 0.0 for job in jobs], dtype=np.float64)
    whole = unit > 0
    unit[~whole] = 1.0
    return JobTable(
        clock=make_lease_clock([job.submit_s for job in jobs] or [0.0], round_s),
        submit_s=np.array([job.submit_s for job in jobs], dtype=np.float64),
        gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
        left=np.where(whole, np.maximum(1.0, np.rint(work / unit)), work),
        unit_s=unit,
        whole=whole,
        best=np.ones(len(jobs)) if sharing is None else sharing.best(),
    )


def _make_never_error(number: int) -> TraceError:
    """Return the error for this case: no job runs, none arrives, and the mechanism leaves the empty servers empty."""
    return TraceError(
        f"job {number} of the trace does not fit, not even on empty servers: it asks for more CPUs or memory per GPU",
        hint="simulate more --cpus and --mem-gb, or --mechanism proportional",
    )


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run: the loop over the moments at which something changes."""

    book: JobTable
    policy: Policy
    sharing: Sharing | None
    habits: Habits
    leases: Leases
    # GPUs of the cluster, which is also the greatest number of jobs that can run.
    gpus: int
    # Numbers of the jobs whose end the run waits for.
    wanted: set[int]
    steps: int = field(init=False, default=0)
    # Whether any job had to wait when leases ended last.
    _waiting: bool = field(init=False, default=False)

    def play(self, progress: Progress) -> float:
        """Simulate until all wanted jobs have ended; return the last beat."""
        book, beat = self.book, 0.0
        while self.wanted:
            ended = book.dismiss(beat)
            if len(ended):
                self.leases.release(ended)
                self.wanted.difference_update(ended.tolist())
                progress(book.gone, len(book.submit_s))
            self.steps += 1
            if self.wanted:
                beat = self._next(beat)
        return beat

    def _next(self, beat: float) -> float:
        """End the leases at `beat`; return the next beat at which they end and something can be different."""
        book = self.book
        new = book.admit(beat)
        quiet = self._lease(beat, new) if len(book.active) else inf
        happens = min(book.next_submission(), book.next_end())
        if happens == inf:
            raise _make_never_error(int(book.active[0]))
        return min(happens, book.clock.look(beat, quiet))

    def _lease(self, beat: float, new: Ints) -> float:
        """End all leases and choose the jobs that run from now on; return for how many seconds the choice holds."""
        book = self.book
        if self.sharing is None and not self._waiting and self.leases.admit(new):
            book.run(new, beat, servers=self.leases.servers(new))
            return inf
        in_turn = self.policy.in_turn and not book.clock.round_s
        active, now = book.columns(beat, self.gpus + 1 if in_turn else None), book.clock.at(beat)
        if self.habits.at_best:
            active.speed = book.best[active.number]
        order = self.policy.order(active, now)
        if self.sharing is not None and self.habits.critical:
            order = move_critical_first(order, active, book.best[active.number], self.gpus, self.habits.critical)
        runs = np.zeros(len(order), dtype=np.bool_)
        runs[order[self._start_fitting(active.number[order], beat, in_turn=in_turn)]] = True
        book.stop(active.number[active.running & ~runs], beat)
        active.running = runs
        self._waiting = not runs.all()
        return self._stable_s(active, now)

    def _start_fitting(self, order: Ints, beat: float, *, in_turn: bool) -> Bools:
        """Start jobs, by their numbers, highest priority first, as far as they fit; return which of them run."""
        if self.sharing is not None and self.habits.whole_queue:
            runs = np.ones(len(order), dtype=np.bool_)
        else:
            runs, moved = self.leases.lease(order, in_turn=in_turn)
            self.book.stop(moved, beat)
        if self.sharing is None:
            chosen = order[runs]
            self.book.run(chosen, beat, servers=self.leases.servers(chosen))
        else:
            shared = self.sharing.among(order[runs])
            runs[runs] = shared.placed
            self.book.run(order[runs], beat, speeds=shared.speeds[shared.placed], servers=shared.servers[shared.placed])
        return runs

    def _stable_s(self, active: Active, now: float) -> float:
        """Return for how many seconds the order stays the same while no job arrives or ends."""
        round_s = self.book.clock.round_s
        # Other speeds may lead to another order.
        if self.sharing is not None:
            return round_s or LOOK_S
        if not self._waiting:
            return inf
        quiet = self.policy.quiet_s(active, now)
        if round_s:
            return inf if quiet == inf else round_s
        return quiet or LOOK_S
