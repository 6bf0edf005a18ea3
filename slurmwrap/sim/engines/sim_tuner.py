"""Tuner: CPUs and memory of waiting jobs, at submission as gsub has it and then as the reconciler does. Rule `tune`.

The same rules as reconcile/tune_pending.py, over the same functions (placement/demand.py, tuning.py,
retune.py), for a mechanism that is handed in; production's is allocate(). What the simulator leaves out: who may
not be changed (limits, quotas, jobs that their user changed), and refusals. A profile counts as what complete runs
measured on these servers.
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
from slurmwrap.placement.tuning import allocate_single_job
from slurmwrap.sim import sim_throughput
from slurmwrap.sim.engines.free_resources import ROUNDING
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.engines.sim_request import ask_of
from slurmwrap.sim.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRequest:
    """What one waiting job is to ask for. `keys`: updates of Slurm that it takes (CPUsPerTask, MinCPUsNode, …)."""

    waiting: PendingSimJob
    cpus: float  # per GPU
    mem_mib: float
    keys: int


@dataclass(slots=True, kw_only=True)
class Tuner:
    """`like`: a server; `startable`: since when a job could have started at its share."""

    mechanism: Mechanism
    like: Server
    assumed_run_s: float = Tuning().assumed_run_s
    startable: dict[str, float] = field(default_factory=dict)
    _claims: dict[int, JobDemand] = field(default_factory=dict)
    _alone: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def lone(self, waiting: PendingSimJob) -> tuple[float, float]:
        """CPUs and MiB per GPU with which gsub submits it: what it would get alone, never more than its share."""
        if not is_tunable(waiting):
            return waiting.cpus, waiting.mem_mib
        key = (waiting.job.model, waiting.job.gpus, waiting.nodes, waiting.asked)
        if key not in self._alone:
            cpus, memory = allocate_single_job(self._claim(waiting), _make_node(self.like), self.mechanism)
            self._alone[key] = self._whole(waiting, cpus), memory
        return self._alone[key]

    def changes(
        self, ready: Sequence[PendingSimJob], servers: Sequence[Server], head: int, now: float
    ) -> list[TunedRequest]:
        """What to change about the first `head` of those that wait, highest priority first; who could start, first."""
        ours = {one.name: one for one in ready[:head] if is_tunable(one)}
        if not ours:
            self.startable = {}
            return []
        claims = [self._claim(one) if one.name in ours else self._fixed(one) for one in ready]
        claims = self._with_patience(claims, servers, ours, ready, now)
        grants = self.mechanism(claims, servers)
        given = [(claim, grant) for claim, grant in zip(claims, grants, strict=True) if claim.job in ours]
        given.sort(key=lambda one: not one[1].servers)
        return [*self._changes(given, ours)]

    def _with_patience(
        self,
        claims: Sequence[JobDemand],
        servers: Sequence[Server],
        ours: Mapping[str, PendingSimJob],
        ready: Sequence[PendingSimJob],
        now: float,
    ) -> list[JobDemand]:
        plain = [replace(claim, speeds=()) for claim in claims]
        could = {grant.job for grant in allocate(plain, servers, "proportional") if grant.servers}
        self.startable = {job: min(self.startable.get(job, now), now) for job in could}
        everywhere = frozenset(server.name for server in servers)
        soon = list_hurried_jobs(
            (claim.job, everywhere if claim.servers is None else claim.servers & everywhere, bool(one.points))
            for one, claim in zip(reversed(ready), reversed(claims), strict=True)
        )
        for_s = {job: now - since for job, since in self.startable.items()} | dict.fromkeys(soon, inf)
        kept = (limit_to_share_of_servers(claim, servers) if claim.job in soon else claim for claim in claims)
        return [replace(claim, startable_s=for_s.get(claim.job, 0.0)) for claim in kept]

    def _changes(
        self, given: Sequence[tuple[JobDemand, Allocation]], ours: Mapping[str, PendingSimJob]
    ) -> Iterator[TunedRequest]:
        for claim, grant in given:
            waiting = ours[claim.job]
            if not is_worth_an_update(claim, grant, waiting.cpus, waiting.mem_mib):
                continue
            cpus, memory = self._whole(waiting, grant.cpus), float(grant.mem_mib)
            keys = 2 * (abs(cpus - waiting.cpus) > ROUNDING) + (memory != waiting.mem_mib)
            if keys:
                yield TunedRequest(waiting=waiting, cpus=cpus, mem_mib=memory, keys=keys)

    def _whole(self, waiting: PendingSimJob, cpus: float) -> float:
        """Per GPU so that each node's are whole, as in `--cpus-per-task`."""
        return ceil(cpus * waiting.ask.gpus - ROUNDING) / waiting.ask.gpus

    def _claim(self, waiting: PendingSimJob) -> JobDemand:
        """No run is longer than its limit: what could be saved, and so the patience for it, is less then."""
        found = self._claims.get(waiting.place)
        if found is None:
            limit = waiting.job.limit_s
            run_s = self.assumed_run_s if limit is None else min(self.assumed_run_s, limit)
            claim = sim_throughput.claim_of(waiting.job, waiting.points, self.like)
            found = replace(claim, job=waiting.name, run_s=run_s, servers=waiting.names)
            self._claims[waiting.place] = found
        return found

    def _fixed(self, waiting: PendingSimJob) -> JobDemand:
        nodes, gpus = sim_throughput.compute_job_shape(waiting.job, self.like)
        return JobDemand(
            job=waiting.name, gpus_per_node=gpus, nodes=nodes, cpus=waiting.cpus, mem_mib=int(waiting.mem_mib),
            servers=waiting.names,
        )  # fmt: skip


def is_tunable(waiting: PendingSimJob) -> bool:
    """Only who asks for nodes with equal parts, and whose speed is known."""
    return bool(waiting.points) and waiting.nodes is not None and waiting.job.gpus % waiting.nodes == 0


def set_tuned_request(waiting: PendingSimJob, cpus: float, mem_mib: float) -> None:
    """It asks for so much per GPU from now on."""
    waiting.cpus, waiting.mem_mib = cpus, mem_mib
    waiting.ask = ask_of(waiting.job.gpus, waiting.nodes, cpus, mem_mib)


def _make_node(server: Server) -> Node:
    return Node(name=server.name, state="IDLE", cpus=server.cpus, mem_mib=server.mem_mib, gpus=server.gpus)
