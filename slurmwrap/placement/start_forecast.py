"""Forecast when pending jobs start, from predicted ends of running jobs and of the jobs ahead in the queue. Pure.

Slurm's own forecast (squeue --start) assumes that every job uses its whole time limit. Here each job ends when its run
time estimate says so, but never after its limit. Jobs are placed in the order of their priority on the GPUs that become
free first, in several scenarios: in each of them every job has another quantile of its estimate. A job without an
estimate runs until its limit in all of them.

A later job may use GPUs that are kept for an earlier one under the condition of Slurm's backfill: its time limit ends
before the planned start. Not considered: jobs that are submitted later, CPUs and memory, reservations, limits of QOS
and associations. bench/start_forecast.py compares the forecast with Slurm's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.run_time import SHORTEST_S, RunTimeEstimate

# Number of scenarios, prime numbers (see _draw_level): the second one for clusters with more than so many running jobs.
_SCENARIOS, _FEW_SCENARIOS, _MANY_RUNNING = 19, 7, 2000
_GOLDEN = 0.6180339887498949
# What a job without a time limit is assumed to take if nothing else is known.
_ENDLESS_S = 365 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """A node that takes jobs, with its partitions and the number of its GPUs that are free now."""

    node: str
    partitions: tuple[str, ...]
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A running job. `gpus`: node and number of GPUs there. `limit_s`: None without a time limit."""

    gpus: tuple[tuple[str, int], ...]
    elapsed_s: float
    limit_s: float | None = None
    estimate: RunTimeEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A pending job. It needs `gpus` GPUs on `nodes` nodes; None: on any number of nodes."""

    job: str
    gpus: int
    nodes: int | None
    partitions: tuple[str, ...] = ()  # (): any node
    begins_s: float = 0.0  # seconds from now before which it does not start
    limit_s: float | None = None
    estimate: RunTimeEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """When a job is expected to start, in seconds from now; inf: there are no such nodes."""

    p50_s: float
    p90_s: float
    # Share of the running jobs and the jobs ahead of it whose end was predicted; the others run until their time limit.
    predicted: float
    starts_s: tuple[float, ...] = ()  # one start per scenario, ascending


def forecast_starts(
    nodes: Sequence[NodeGpus], running: Sequence[RunningJob], queue: Sequence[QueuedJob]
) -> Mapping[str, StartForecast]:
    """Return the forecast for each job of `queue`, which is in the order of priority, highest first."""
    # As Slurm plans: every job uses its time limit.
    gpus = _GpuTimes(nodes, [(one, _get_limit_s(one.limit_s, one.elapsed_s)) for one in running])
    planned = [gpus.place(one, _get_limit_s(one.limit_s)) for one in queue]
    starts: list[list[float]] = [[] for _ in queue]
    count = _SCENARIOS if len(running) <= _MANY_RUNNING else _FEW_SCENARIOS
    ends = [_draw_run_times(one.estimate, one.limit_s, one.elapsed_s, n, count) for n, one in enumerate(running)]
    lasts = [_draw_run_times(one.estimate, one.limit_s, 0.0, n, count) for n, one in enumerate(queue, len(running))]
    for scenario in range(count):
        gpus = _GpuTimes(nodes, [(one, left_s[scenario]) for one, left_s in zip(running, ends, strict=True)])
        for one, plan, run_s, known in zip(queue, planned, lasts, starts, strict=True):
            known.append(gpus.place(one, run_s[scenario], plan))
    found: dict[str, StartForecast] = {}
    predicted, jobs = sum(one.estimate is not None for one in running), len(running)
    for one, known in zip(queue, starts, strict=True):
        known.sort()
        p50_s, p90_s = known[count // 2], known[round(0.9 * (count - 1))]
        share = predicted / jobs if jobs else 1.0
        found[one.job] = StartForecast(p50_s=p50_s, p90_s=p90_s, predicted=share, starts_s=tuple(known))
        predicted, jobs = predicted + (one.estimate is not None), jobs + 1
    return found


def _draw_run_times(
    estimate: RunTimeEstimate | None, limit_s: float | None, elapsed_s: float, number: int, scenarios: int
) -> list[float]:
    """Return the remaining run time of a job in each scenario: quantiles of the runs longer than `elapsed_s`."""
    most = _get_limit_s(limit_s, elapsed_s)
    if estimate is None:
        return [most] * scenarios
    levels = [_draw_level(number, scenario, scenarios) for scenario in range(scenarios)]
    if elapsed_s >= estimate.quantiles_s[-1]:
        # It outran all that is known. The longer a job has run, the longer it will (a Pareto distribution, shape 1).
        return [min(most, elapsed_s * level / (1 - level)) for level in levels]
    gone = estimate.share_within(elapsed_s)
    return [min(most, max(SHORTEST_S, estimate.quantile_s(gone + (1 - gone) * level) - elapsed_s)) for level in levels]


def _draw_level(number: int, scenario: int, scenarios: int) -> float:
    """Return the quantile level of a job, 0 to 1: evenly spread over the scenarios, in an order of its own.

    Estimates of similar jobs err together, so every second job has the level of the scenario.
    """
    if number % 2:
        return (scenario + 0.5) / scenarios
    place = (scenario * (1 + 7 * number % (scenarios - 1)) + number) % scenarios
    return (place + (0.5 + number * _GOLDEN) % 1.0) / scenarios


def _get_limit_s(limit_s: float | None, elapsed_s: float = 0.0) -> float:
    return max(SHORTEST_S, (limit_s or _ENDLESS_S) - elapsed_s)


@dataclass(slots=True, kw_only=True)
class _Gap:
    """GPUs of one node that are kept for a job that starts later."""

    begin: float  # when they become free
    start: float  # of that job
    planned: float  # its start by Slurm's plan
    gpus: int

    def fits(self, at: float, limit_s: float) -> bool:
        """Return whether a job with this time limit may start in the gap at `at`.

        As in Slurm, it must end before the planned start of the other job. The plan comes down to the real start while
        jobs end earlier than their limits.
        """
        return at < self.start and at + limit_s <= self.planned - (self.planned - self.start) * at / self.start


class _GpuTimes:
    """For each node when each of its GPUs becomes free in one scenario, in seconds from now, ascending."""

    def __init__(self, nodes: Sequence[NodeGpus], running: Sequence[tuple[RunningJob, float]]) -> None:
        """Initialize with the running jobs and the seconds that each of them has left."""
        self._partitions = [frozenset(node.partitions) for node in nodes]
        self._times = [[0.0] * node.free for node in nodes]
        # (Partitions, number of GPUs) -> heap of (when so many are free on a node, node). Entries that no longer hold
        # are skipped when they are found.
        self._heaps: dict[tuple[tuple[str, ...], int], list[tuple[float, int]]] = {}
        self._gaps: dict[int, list[_Gap]] = {}
        by_name = {node.node: times for node, times in zip(nodes, self._times, strict=True)}
        for one, left_s in running:
            for name, count in one.gpus:
                if name in by_name:
                    by_name[name].extend([left_s] * count)
        for times in self._times:
            times.sort()

    def place(self, job: QueuedJob, run_s: float, planned_s: float | None = None) -> float:
        """Start the job as early as possible and return when, in seconds from now; inf: it never fits.

        `planned_s`: its start by Slurm's plan; None: this is Slurm's plan. Until then, other jobs may use its GPUs.
        """
        nodes = max(1, job.nodes or 1)
        per_node = -(-job.gpus // nodes)
        taken = self._pop(job.partitions, per_node, nodes)
        start = taken[-1][0] if len(taken) == nodes else inf
        if nodes == 1 and (found := self._find_gap(job, per_node, max(start, job.begins_s))) is not None:
            self._put_back(job.partitions, per_node, taken)
            return self._use_gap(*found, per_node, run_s)
        if job.nodes is None and start > 0:
            self._put_back(job.partitions, per_node, taken)
            return self._place_anywhere(job, run_s, planned_s)
        if start == inf:
            self._put_back(job.partitions, per_node, taken)
            return inf
        start = max(job.begins_s, start)
        for _, node in taken:
            self._keep(node, self._times[node][:per_node], start, planned_s)
            self._set(node, [*self._times[node][per_node:], *[start + run_s] * per_node])
        return start

    def _keep(self, node: int, free_at: Iterable[float], start: float, planned_s: float | None) -> None:
        """Note GPUs of a node that are free before a job starts on them."""
        planned = max(start, planned_s or 0.0)
        for at, count in Counter(at for at in free_at if at < start).items():
            self._gaps.setdefault(node, []).append(_Gap(begin=at, start=start, planned=planned, gpus=count))

    def _find_gap(self, job: QueuedJob, gpus: int, before: float) -> tuple[float, int, list[_Gap]] | None:
        """Return the earliest start in gaps of one node, if it is before `before`, with node and gaps; None: none."""
        limit_s = _get_limit_s(job.limit_s)
        best: tuple[float, int, list[_Gap]] | None = None
        for node, gaps in self._gaps.items():
            usable = [gap for gap in gaps if gap.begin < before and gap.fits(max(gap.begin, job.begins_s), limit_s)]
            if not usable or not self._allows(job.partitions, node):
                continue
            usable.sort(key=attrgetter("begin"))
            for last, gap in enumerate(usable):
                at = max(gap.begin, job.begins_s)
                together = [one for one in usable[: last + 1] if one.fits(at, limit_s)]
                if at < before and sum(one.gpus for one in together) >= gpus:
                    best, before = (at, node, together), at
                    break
        return best

    def _use_gap(self, at: float, node: int, gaps: Sequence[_Gap], gpus: int, run_s: float) -> float:
        """Let a job run in these gaps, and return its start."""
        for gap in gaps:
            taken = min(gap.gpus, gpus)
            gap.gpus -= taken
            gpus -= taken
            if taken and at + run_s < gap.start:
                self._gaps[node].append(_Gap(begin=at + run_s, start=gap.start, planned=gap.planned, gpus=taken))
        self._gaps[node] = [gap for gap in self._gaps[node] if gap.gpus]
        return at

    def _place_anywhere(self, job: QueuedJob, run_s: float, planned_s: float | None) -> float:
        """Use one node, or the GPUs that become free first on any nodes if they are free earlier."""
        whole = self._pop(job.partitions, job.gpus, 1)
        single = whole[0][0] if whole else inf
        self._put_back(job.partitions, job.gpus, whole)
        taken: list[tuple[float, int]] = []
        while len(taken) < job.gpus and (found := self._pop(job.partitions, 1, 1)):
            taken += found
            self._set(found[0][1], self._times[found[0][1]][1:])
            if found[0][0] >= single:
                break
        spread = taken[-1][0] if len(taken) == job.gpus else inf
        start = max(job.begins_s, min(single, spread))
        for at, node in taken:
            if single > spread:
                self._keep(node, [at], start, planned_s)
            self._set(node, [*self._times[node], at if single <= spread else start + run_s])
        if single <= spread and whole:
            node = whole[0][1]
            self._keep(node, self._times[node][: job.gpus], start, planned_s)
            self._set(node, [*self._times[node][job.gpus :], *[start + run_s] * job.gpus])
        return start

    def _set(self, node: int, times: list[float]) -> None:
        times.sort()
        self._times[node] = times
        for (partitions, gpus), heap in self._heaps.items():
            if 0 < gpus <= len(times) and self._allows(partitions, node):
                heapq.heappush(heap, (times[gpus - 1], node))

    def _allows(self, partitions: tuple[str, ...], node: int) -> bool:
        return not partitions or not self._partitions[node].isdisjoint(partitions)

    def _pop(self, partitions: tuple[str, ...], gpus: int, count: int) -> list[tuple[float, int]]:
        """Remove and return the `count` nodes on which so many GPUs are free first; fewer if there are not so many."""
        heap = self._heaps.get((partitions, gpus))
        if heap is None:
            heap = [
                (times[gpus - 1], node)
                for node, times in enumerate(self._times)
                if 0 < gpus <= len(times) and self._allows(partitions, node)
            ]
            heapq.heapify(heap)
            self._heaps[partitions, gpus] = heap
        found: dict[int, float] = {}
        while heap and len(found) < count:
            at, node = heapq.heappop(heap)
            times = self._times[node]
            if gpus <= len(times) and times[gpus - 1] == at:
                found[node] = at
        return [(at, node) for node, at in found.items()]

    def _put_back(self, partitions: tuple[str, ...], gpus: int, entries: Iterable[tuple[float, int]]) -> None:
        for entry in entries:
            heapq.heappush(self._heaps[partitions, gpus], entry)
