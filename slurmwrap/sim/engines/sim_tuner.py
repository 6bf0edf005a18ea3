"""Tune CPUs and memory of pending jobs: at submission as gsub does, later as the reconciler does. Rule `tune`.

The same rules as in reconcile/tune_pending.py, with the same functions (placement/demand.py, submission_tuning.py,
retune.py), for a mechanism that is passed in; production's is allocate(). Not simulated: jobs that may not be changed
(limits, quotas, jobs that their user changed), and refusals. A profile counts as measured by complete runs on these
servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from slurmwrap.config.load_config import Tuning
from slurmwrap.model.cluster import Node
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.retune import is_worth_an_update, limit_to_share_of_servers, list_hurried_jobs
from slurmwrap.placement.submission_tuning import allocate_single_job
from slurmwrap.sim import sim_throughput
from slurmwrap.sim.engines.free_resources import ROUNDING
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.engines.sim_request import make_ask
from slurmwrap.sim.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRequest:
    """What one pending job should ask for. `keys`: number of keys to update (CPUsPerTask, MinCPUsNode, …)."""

    waiting: PendingSimJob
    cpus: float  # per GPU
    mem_mib: float
    keys: int


@dataclass(slots=True, kw_only=True)
class Tuner:
    """Tunes pending jobs. `like`: a typical server; `startable`: since when a job could have started at its share."""

    mechanism: Mechanism
    like: Server
    assumed_run_s: float = Tuning().assumed_run_s
    startable: dict[str, float] = field(default_factory=dict)
    _claims: dict[int, JobDemand] = field(default_factory=dict)
    _alone: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def tune_alone(self, waiting: PendingSimJob) -> tuple[float, float]:
        """Return the CPUs and MiB per GPU with which gsub submits the job.

        That is what it would get alone, but never more than its share.
        """
        if not is_tunable(waiting):
            return waiting.cpus, waiting.mem_mib
        key = (waiting.job.model, waiting.job.gpus, waiting.nodes, waiting.asked)
        if key not in self._alone:
            cpus, memory = allocate_single_job(self._get_demand(waiting), _make_node(self.like), self.mechanism)
            self._alone[key] = self._round_cpus(waiting, cpus), memory
        return self._alone[key]

    def changes(
        self, ready: Sequence[PendingSimJob], servers: Sequence[Server], head: int, now: float
    ) -> list[TunedRequest]:
        """Return what to change about the first `head` pending jobs (highest priority first); those that could start
        come first.
        """
        tunable = {one.name: one for one in ready[:head] if is_tunable(one)}
        if not tunable:
            self.startable = {}
            return []
        demands = [self._get_demand(one) if one.name in tunable else self._make_fixed_demand(one) for one in ready]
        demands = self._with_patience(demands, servers, tunable, ready, now)
        allocations = self.mechanism(demands, servers)
        given = [
            (demand, allocation)
            for demand, allocation in zip(demands, allocations, strict=True)
            if demand.job in tunable
        ]
        given.sort(key=lambda one: not one[1].servers)
        return [*self._changes(given, tunable)]

    def _with_patience(
        self,
        demands: Sequence[JobDemand],
        servers: Sequence[Server],
        tunable: Mapping[str, PendingSimJob],
        ready: Sequence[PendingSimJob],
        now: float,
    ) -> list[JobDemand]:
        """Return the demands with `startable_s`, for how long each job could have started at its share.

        A job with untuned jobs behind it (list_hurried_jobs) is limited to its share, and counts as having waited for
        ever, so that it takes what is free.
        """
        plain = [replace(demand, speeds=()) for demand in demands]
        could = {allocation.job for allocation in allocate(plain, servers, "proportional") if allocation.servers}
        self.startable = {job: min(self.startable.get(job, now), now) for job in could}
        everywhere = frozenset(server.name for server in servers)
        soon = list_hurried_jobs(
            (demand.job, everywhere if demand.servers is None else demand.servers & everywhere, bool(one.points))
            for one, demand in zip(reversed(ready), reversed(demands), strict=True)
        )
        for_s = {job: now - since for job, since in self.startable.items()} | dict.fromkeys(soon, inf)
        kept = (limit_to_share_of_servers(demand, servers) if demand.job in soon else demand for demand in demands)
        return [replace(demand, startable_s=for_s.get(demand.job, 0.0)) for demand in kept]

    def _changes(
        self, given: Sequence[tuple[JobDemand, Allocation]], tunable: Mapping[str, PendingSimJob]
    ) -> Iterator[TunedRequest]:
        for demand, allocation in given:
            waiting = tunable[demand.job]
            if not is_worth_an_update(demand, allocation, waiting.cpus, waiting.mem_mib):
                continue
            cpus, memory = self._round_cpus(waiting, allocation.cpus), float(allocation.mem_mib)
            keys = 2 * (abs(cpus - waiting.cpus) > ROUNDING) + (memory != waiting.mem_mib)
            if keys:
                yield TunedRequest(waiting=waiting, cpus=cpus, mem_mib=memory, keys=keys)

    def _round_cpus(self, waiting: PendingSimJob, cpus: float) -> float:
        """Return CPUs per GPU so that the CPUs per node are a whole number, as in `--cpus-per-task`."""
        return ceil(cpus * waiting.ask.gpus - ROUNDING) / waiting.ask.gpus

    def _get_demand(self, waiting: PendingSimJob) -> JobDemand:
        """Return the job's demand.

        No run is longer than its time limit, so with a limit less can be saved, and the job waits less for a better
        allocation.
        """
        found = self._claims.get(waiting.place)
        if found is None:
            limit = waiting.job.limit_s
            run_s = self.assumed_run_s if limit is None else min(self.assumed_run_s, limit)
            demand = sim_throughput.make_sim_demand(waiting.job, waiting.points, self.like)
            found = replace(demand, job=waiting.name, run_s=run_s, servers=waiting.names)
            self._claims[waiting.place] = found
        return found

    def _make_fixed_demand(self, waiting: PendingSimJob) -> JobDemand:
        nodes, gpus = sim_throughput.compute_job_shape(waiting.job, self.like)
        return JobDemand(
            job=waiting.name, gpus_per_node=gpus, nodes=nodes, cpus=waiting.cpus, mem_mib=int(waiting.mem_mib),
            servers=waiting.names,
        )  # fmt: skip


def is_tunable(waiting: PendingSimJob) -> bool:
    """Return whether the job asks for nodes with equal parts, and its speed is known."""
    return bool(waiting.points) and waiting.nodes is not None and waiting.job.gpus % waiting.nodes == 0


def set_tuned_request(waiting: PendingSimJob, cpus: float, mem_mib: float) -> None:
    """Let the job ask for so much per GPU from now on."""
    waiting.cpus, waiting.mem_mib = cpus, mem_mib
    waiting.ask = make_ask(waiting.job.gpus, waiting.nodes, cpus, mem_mib)


def _make_node(server: Server) -> Node:
    return Node(name=server.name, state="IDLE", cpus=server.cpus, mem_mib=server.mem_mib, gpus=server.gpus)
