"""What failed: by category as in Philly's table 7, in incidents, and what pre-runs found on one GPU. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil, fsum
from statistics import median
from typing import TypeVar

from slurmwrap.diagnosis.taxonomy import CATEGORIES, NO_SIGNATURE
from slurmwrap.policy.incident import Incident
from slurmwrap.report.night_report import CategoryRow, CaughtRow, IncidentRow
from slurmwrap.report.report_inputs import Caught, Figures, RunGroup

T = TypeVar("T")
K = TypeVar("K")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def make_category_rows(figures: Figures) -> tuple[CategoryRow, ...]:
    """Dearest first; a category that failed only in the period before has no row."""
    total = fsum(cell.gpu_s for cell in figures.cells) / 3600
    failed = group_by(select_unstruck(figures.cells), lambda cell: cell.category)
    earlier = group_by(select_unstruck(figures.cells_before or ()), lambda cell: cell.category)
    repeats: Counter[str] = Counter()
    for (_, category), count in figures.failed_repeats.items():
        repeats[category] += count
    rows = [
        _make_category_row(name, cells, total, earlier.get(name, ()), repeats[name], figures.lasted.get(name, ()))
        for name, cells in failed.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, -row.attempts, row.category)))


def select_unstruck(cells: Iterable[RunGroup]) -> list[RunGroup]:
    """Of failures that no incident of the page struck."""
    return [cell for cell in cells if cell.outcome == "failed" and not cell.struck]


def _make_category_row(
    name: str, cells: Sequence[RunGroup], total: float, earlier: Sequence[RunGroup], repeats: int, lasted: Sequence[int]
) -> CategoryRow:
    hours, runs = fsum(cell.gpu_s for cell in cells) / 3600, sum(cell.runs for cell in cells)
    counts = [sum(cell.runs for cell in cells if cell.demand == number) for number in range(4)]
    return CategoryRow(
        category=name,
        domain=CATEGORIES[name].domain if name in CATEGORIES else "",
        attempts=runs,
        jobs=runs - repeats,
        users=len({cell.user for cell in cells}),
        median_run_s=float(median(lasted)) if lasted else 0.0,
        p90_run_s=find_nearest_rank(lasted, 0.90),
        p95_run_s=find_nearest_rank(lasted, 0.95),
        gpu_hours=hours,
        share=hours / total if total else 0.0,
        demand=(counts[0], counts[1], counts[2], counts[3]),
        attempts_before=sum(cell.runs for cell in earlier),
        gpu_hours_before=fsum(cell.gpu_s for cell in earlier) / 3600,
    )


def find_nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The least value that `share` of them do not exceed; 0 of none."""
    return float(ordered[ceil(share * len(ordered)) - 1]) if ordered else 0.0


def make_incident_rows(figures: Figures) -> tuple[IncidentRow, ...]:
    """In the order in which they began."""
    ordered = sorted(figures.incidents, key=lambda one: one.began)
    return tuple(_make_incident_row(one, figures.incident_gpu_s.get(one.incident_id, 0.0) / 3600) for one in ordered)


def _make_incident_row(one: Incident, gpu_hours: float) -> IncidentRow:
    return IncidentRow(
        incident_id=one.incident_id,
        category=one.category,
        scope=one.scope,
        began=one.began,
        over_at=one.over_at,
        jobs=len(one.jobs),
        users=one.users,
        gpu_hours=gpu_hours,
    )


def make_caught_rows(found: Sequence[Caught]) -> tuple[CaughtRow, ...]:
    """What one GPU showed before the cluster paid for it; most GPUs first."""
    rows = [_make_caught_row(name, group) for name, group in group_by(found, lambda one: one.category).items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpus_never_started, -row.preruns, row.category)))


def _make_caught_row(category: str, found: Sequence[Caught]) -> CaughtRow:
    stopped = [one for one in found if one.job_id is not None]
    return CaughtRow(
        category=category or NO_SIGNATURE,
        preruns=len(found),
        stopped_jobs=len(stopped),
        users=len({one.uid for one in found}),
        gpus_never_started=sum(one.gpus for one in stopped),
        reason=max(found, key=lambda one: one.at).reason,
    )
