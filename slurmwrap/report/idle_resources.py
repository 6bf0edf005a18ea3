"""GPUs held and not used, CPUs and memory asked for and not used. Pure.

GPU use is what NVML's accounting keeps of each process: on a GPU without one, nothing ever ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from slurmwrap.report.categories import group_by
from slurmwrap.report.night_report import IdleRow, RequestRow
from slurmwrap.report.report_inputs import Detail, Figures, Idle, Key, RequestedAndUsed

# Mean use below which all the time that a run held its GPUs counts as idle, less that use.
LOW = 0.1
# A shorter run has hardly begun.
LEAST_S = 600
ROWS = 50
_JOBS = 10
# CPU-hours, GiB-hours unused below which a row says nothing.
_WORTH = (20.0, 80.0)


def list_idle_rows(figures: Figures) -> tuple[IdleRow, ...]:
    """By user and job name, most idle GPU-hours first."""
    groups = group_by(figures.idle, lambda one: (one.user, one.name, has_no_process(one)))
    dearest = sorted(groups.values(), key=lambda group: (-_sum_idle_hours(group), group[0].user, group[0].name))[:ROWS]
    shown = [sorted(group, key=compute_idle_gpu_s, reverse=True)[:_JOBS] for group in dearest]
    known = figures.details([one.key for group in shown for one in group])
    return tuple(_make_idle_row(group, runs, known) for group, runs in zip(dearest, shown, strict=True))


def has_no_process(one: Idle) -> bool:
    """Nothing ever opened any of its GPUs."""
    return one.unused >= one.gpus


def compute_idle_gpu_s(one: Idle) -> float:
    """GPU-seconds: of all its GPUs where they are hardly used, else of those that nothing ever opened."""
    if has_no_process(one):
        return float(one.gpus * one.run_s)
    if one.use is not None and one.use < LOW:
        return one.gpus * one.run_s * (1.0 - one.use)
    return float(one.unused * one.run_s)


def _sum_idle_hours(group: Sequence[Idle]) -> float:
    return fsum(map(compute_idle_gpu_s, group)) / 3600


def _make_idle_row(group: Sequence[Idle], shown: Sequence[Idle], known: Mapping[Key, Detail]) -> IdleRow:
    told = [(one.use, one.gpus * one.run_s) for one in group if one.use is not None]
    held = fsum(weight for _, weight in told)
    return IdleRow(
        user=group[0].user,
        name=group[0].name,
        runs=len(group),
        jobs=tuple(known[one.key].address if one.key in known else str(one.key[1]) for one in shown),
        gpus=max(one.gpus for one in group),
        gpu_hours_idle=_sum_idle_hours(group),
        gpu_util=fsum(use * weight for use, weight in told) / held if held else None,
        no_process=has_no_process(group[0]),
    )


def list_over_requests(asked: Sequence[RequestedAndUsed]) -> tuple[RequestRow, ...]:
    """What is worth a word, most unused CPU-hours first."""
    worth = [one for one in asked if one.cpu_hours_unused >= _WORTH[0] or one.gib_hours_unused >= _WORTH[1]]
    rows = sorted(worth, key=lambda one: (-one.cpu_hours_unused, -one.gib_hours_unused, one.user, one.name))
    return tuple(RequestRow(**one._asdict()) for one in rows[:ROWS])
