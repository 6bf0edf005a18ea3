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
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.run_time import SHORTEST_S, RunTimeEstimate

# Number of scenarios, a prime number (see _draw_level).
_SCENARIOS = 19
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


def forecast_starts(
    nodes: Sequence[NodeGpus], running: Sequence[RunningJob], queue: Sequence[QueuedJob]
) -> Mapping[str, StartForecast]:
    """Return the forecast for each job of `queue`, which is in the order of priority, highest first."""
    # As Slurm plans: every job uses its time limit.
    gpus = _GpuTimes(nodes, [(one, _get_limit_s(one.limit_s, one.elapsed_s)) for one in running])
    planned = [gpus.place(one, _get_limit_s(one.limit_s)) for one in queue]
    starts: list[list[float]] = [[] for _ in queue]
    for scenario in range(_SCENARIOS):
        gpus = _GpuTimes(
            nodes,
            [
                (one, _draw_run_time(one.estimate, one.limit_s, one.elapsed_s, _draw_level(number, scenario)))
                for number, one in enumerate(running)
            ],
        )
        for number, (one, plan, known) in enumerate(zip(queue, planned, starts, strict=True), start=len(running)):
            run_s = _draw_run_time(one.estimate, one.limit_s, 0.0, _draw_level(number, scenario))
            known.append(gpus.place(one, run_s, plan))
    found: dict[str, StartForecast] = {}
    predicted, jobs = sum(one.estimate is not None for one in running), len(running)
    for one, known in zip(queue, starts, strict=True):
        known.sort()
        p50_s, p90_s = known[_SCENARIOS // 2], known[round(0.9 * (_SCENARIOS - 1))]
        found[one.job] = StartForecast(p50_s=p50_s, p90_s=p90_s, predicted=predicted / jobs if jobs else 1.0)
        predicted, jobs = predicted + (one.estimate is not None), jobs + 1
    return found


def _draw_level(number: int, scenario: int) -> float:
    """Return the quantile level of a job, 0 to 1: evenly spread over the scenarios, in an order of its own.

    Estimates of similar jobs err together, so every second job has the level of the scenario.
    """
    if number % 2:
        return (scenario + 0.5) / _SCENARIOS
    place = (scenario * (1 + 7 * number % (_SCENARIOS - 1)) + number) % _SCENARIOS
    return (place + (0.5 + number * _GOLDEN) % 1.0) / _SCENARIOS


def _draw_run_time(estimate: RunTimeEstimate | None, limit_s: float | None, elapsed_s: float, level: float) -> float:
    """Return the remaining run time at this quantile `level` of the runs that last longer than `elapsed_s`."""
    most = _get_limit_s(limit_s, elapsed_s)
    if estimate is None:
        return most
    if elapsed_s >= estimate.quantiles_s[-1]:
        # It outran all that is known. The longer a job has run, the longer it will (a Pareto distribution, shape 1).
        return min(most, elapsed_s * level / (1 - level))
    gone = estimate.share_within(elapsed_s)
    return min(most, max(SHORTEST_S, estimate.quantile_s(gone + (1 - gone) * level) - elapsed_s))


def _get_limit_s(limit_s: float | None, elapsed_s: float = 0.0) -> float:
    return max(SHORTEST_S, (limit_s or _ENDLESS_S) - elapsed_s)


# A GPU that is kept for a job which starts later: [when it becomes free, start of that job, the same by Slurm's plan].
_Gap = list[float]


def _find_plan(gap: _Gap, at: float) -> float:
    """Return the planned start of the job for which the GPU is kept, as Slurm sees it at `at`."""
    _, start, planned = gap
    return planned - (planned - start) * at / start


class _GpuTimes:
    """For each node when each of its GPUs becomes free in one scenario, in seconds from now, ascending."""

    def __init__(self, nodes: Sequence[NodeGpus], running: Sequence[tuple[RunningJob, float]]) -> None:
        """Initialize with the running jobs and the seconds that each of them has left."""
        self._nodes = nodes
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
        if nodes == 1 and (gap := self._find_gap(job, per_node, max(start, job.begins_s))) is not None:
            self._put_back(job.partitions, per_node, taken)
            at, gpus = gap
            for one in gpus:
                one[0] = at + run_s
            return at
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
        gaps = [[at, start, max(start, planned_s or 0.0)] for at in free_at if at < start]
        if gaps:
            self._gaps.setdefault(node, []).extend(gaps)

    def _find_gap(self, job: QueuedJob, gpus: int, before: float) -> tuple[float, list[_Gap]] | None:
        """Return the earliest start before jobs for which GPUs are kept, if it is before `before`, and these GPUs.

        As in Slurm, the job's time limit must end before the planned start of the other job. The plan comes down to the
        real start while jobs end earlier than their limits.
        """
        limit_s = _get_limit_s(job.limit_s)
        best: tuple[float, list[_Gap]] | None = None
        for node, gaps in self._gaps.items():
            if len(gaps) < gpus or not self._allows(job.partitions, node):
                continue
            for at in sorted({max(gap[0], job.begins_s) for gap in gaps}):
                if at >= before:
                    break
                fitting = [gap for gap in gaps if gap[0] <= at < gap[1] and at + limit_s <= _find_plan(gap, at)]
                if len(fitting) >= gpus:
                    best, before = (at, fitting[:gpus]), at
                    break
        return best

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
        return not partitions or any(name in partitions for name in self._nodes[node].partitions)

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
