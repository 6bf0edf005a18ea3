"""How busy GPUs were, by the size of the job, by how far it was spread, and by who ran next to it. Pure.

These are the comparisons of figures 5 and 6 of Jeon et al. (ATC 2019), within one size of jobs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from statistics import median

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.night_report import GpuUseRow
from slurmwrap.report.report_inputs import GpuRun

# Largest number of GPUs of each size; the last size has no end.
_SIZES = (1, 4, 8, 16)
# A mean of fewer runs is not shown.
LEAST_RUNS = 5
# A run was next to others if others held GPUs of its nodes for this share of its time.
_BESIDE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTime:
    """The time in which at least two runs with GPUs were on a node. `at` ascends; `shared_s`: seconds until then."""

    at: Sequence[float]
    shared_s: Sequence[float]
    shares: Sequence[bool]  # whether at least two are there from `at` on

    def until(self, moment: float) -> float:
        """Return the seconds of such time up to `moment`."""
        place = bisect_right(self.at, moment) - 1
        if place < 0:
            return 0.0
        return self.shared_s[place] + (moment - self.at[place] if self.shares[place] else 0.0)


def find_shared_time(runs: Iterable[GpuRun]) -> Mapping[str, BusyTime]:
    """Return node -> when several runs were there at a time."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for run in runs:
        for node in run.nodes:
            changes[node] += [(run.start, 1), (run.end, -1)]
    return {node: _sum_shared_time(sorted(found)) for node, found in changes.items()}


def _sum_shared_time(changes: Sequence[tuple[float, int]]) -> BusyTime:
    at, shared_s, shares = list[float](), list[float](), list[bool]()
    total, running = 0.0, 0
    for moment, change in changes:
        if running > 1:
            total += moment - at[-1]
        running += change
        at.append(moment)
        shared_s.append(total)
        shares.append(running > 1)
    return BusyTime(at=at, shared_s=shared_s, shares=shares)


def compute_beside_share(run: GpuRun, shared: Mapping[str, BusyTime]) -> float:
    """Return the share of a run's time on its nodes in which another run was there, mean over the nodes."""
    seconds = (run.end - run.start) * len(run.nodes)
    return fsum(shared[node].until(run.end) - shared[node].until(run.start) for node in run.nodes) / seconds


def sum_gpu_use(runs: Sequence[GpuRun]) -> tuple[GpuUseRow, ...]:
    """Return a row for each size of the runs whose use is known.

    `runs`: all runs with GPUs, also those that only ran next to them. How many GPUs a node has is taken from the runs:
    the most that one of the same partition held on a node.
    """
    runs = [run for run in runs if run.end > run.start and run.nodes]
    measured = [run for run in runs if run.use is not None]
    if not measured:
        return ()
    shared = find_shared_time(runs)
    on_node: dict[str, int] = defaultdict(int)
    for run in runs:
        on_node[run.partition] = max(on_node[run.partition], -(-run.gpus // len(run.nodes)))
    sizes = [(low + 1, high) for low, high in zip((0, *_SIZES), (*_SIZES, None), strict=True)]
    found = []
    for low, high in sizes:
        same = [run for run in measured if low <= run.gpus and (high is None or run.gpus <= high)]
        if same:
            found.append(_make_row(low, high, same, shared, on_node))
    return tuple(found)


def _make_row(
    low: int, high: int | None, runs: Sequence[GpuRun], shared: Mapping[str, BusyTime], on_node: Mapping[str, int]
) -> GpuUseRow:
    def is_spread(run: GpuRun) -> bool:
        return len(run.nodes) > -(-run.gpus // on_node[run.partition])

    def is_beside(run: GpuRun) -> bool:
        return compute_beside_share(run, shared) >= _BESIDE

    fewest, more = _compare(runs, is_spread)
    alone, beside = _compare(runs, is_beside)
    return GpuUseRow(
        least_gpus=low,
        most_gpus=high,
        runs=len(runs),
        gpu_hours=fsum(map(_count_gpu_s, runs)) / 3600,
        use=_compute_mean(runs),
        median_use=median(run.use or 0.0 for run in runs),
        use_fewest_nodes=fewest,
        use_more_nodes=more,
        use_alone=alone,
        use_beside=beside,
    )


def _compare(runs: Sequence[GpuRun], has: Callable[[GpuRun], bool]) -> tuple[float | None, float | None]:
    """Return the mean use of the runs without and with a property; None for a mean of too few runs."""
    parts: tuple[list[GpuRun], list[GpuRun]] = ([], [])
    for run in runs:
        parts[has(run)].append(run)
    without, with_it = (_compute_mean(part) if len(part) >= LEAST_RUNS else None for part in parts)
    return without, with_it


def _compute_mean(runs: Sequence[GpuRun]) -> float:
    """Return the mean use of the runs' GPUs over their time."""
    return fsum((run.use or 0.0) * _count_gpu_s(run) for run in runs) / fsum(map(_count_gpu_s, runs))


def _count_gpu_s(run: GpuRun) -> float:
    return run.gpus * (run.end - run.start)
