"""Count failures by category (as in table 7 of Philly), and by job name, user and input if they repeat. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, fsum
from statistics import median
from typing import TypeVar

from slurmwrap.diagnosis.taxonomy import CATEGORIES, NO_SIGNATURE
from slurmwrap.policy.incident import Incident
from slurmwrap.report.night_report import CategoryRow, CaughtRow, IncidentRow, Repeated, RepeatedInput, RepeatedUser
from slurmwrap.report.report_inputs import BlamedInput, Caught, Detail, Figures, Key, Often, RunGroup

T = TypeVar("T")
K = TypeVar("K")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key, in their original order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def make_category_rows(figures: Figures) -> tuple[CategoryRow, ...]:
    """Return rows, most GPU-hours first. A category that failed only in the preceding period has no row."""
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
    """Return the groups of failures that no incident of the page struck."""
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
    """Return the least value that a share `share` of the values does not exceed; 0 for no values."""
    return float(ordered[ceil(share * len(ordered)) - 1]) if ordered else 0.0


def make_incident_rows(figures: Figures) -> tuple[IncidentRow, ...]:
    """Return the rows in the order in which the incidents began."""
    ordered = sorted(figures.incidents, key=lambda one: one.began)
    return tuple(_make_incident_row(one, figures.incident_gpu_s.get(one.incident_id, 0.0) / 3600) for one in ordered)


def _make_incident_row(incident: Incident, gpu_hours: float) -> IncidentRow:
    return IncidentRow(
        incident_id=incident.incident_id,
        category=incident.category,
        scope=incident.scope,
        doubt=incident.doubt,
        began=incident.began,
        over_at=incident.over_at,
        jobs=len(incident.jobs),
        users=incident.users,
        gpu_hours=gpu_hours,
    )


def make_caught_rows(found: Sequence[Caught]) -> tuple[CaughtRow, ...]:
    """Return what pre-runs found on one GPU, before the whole job would have used its GPUs; most GPUs first."""
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


# Largest number of rows of each table, the most frequent ones.
ROWS = 100
# Number of job addresses in a row.
NEWEST = 20


def list_by_job(figures: Figures) -> tuple[Repeated, ...]:
    """Return failures that repeat under one user's job name. Most frequent first, then by GPU-hours."""
    known = figures.details([key for one in figures.often for key in one.newest])
    rows = [_make_job_row(one, known) for one in figures.often]
    return tuple(sorted(rows, key=lambda row: (-row.attempts, -row.gpu_hours, row.user, row.name, row.category)))


def _make_job_row(one: Often, known: Mapping[Key, Detail]) -> Repeated:
    shown = [known.get(key) or Detail(str(key[1]), "") for key in one.newest]
    return Repeated(
        user=one.user,
        name=one.name,
        category=one.category,
        attempts=one.runs,
        jobs=tuple(dict.fromkeys(detail.address for detail in shown)),
        gpu_hours=one.gpu_s / 3600,
        advice=shown[-1].advice if shown else "",
    )


def list_by_user(figures: Figures) -> tuple[RepeatedUser, ...]:
    """Return categories that one user met twice or more, under any job name."""
    rows = []
    for (user, category), cells in group_by(
        select_unstruck(figures.cells), lambda cell: (cell.user, cell.category)
    ).items():
        runs = sum(cell.runs for cell in cells)
        jobs = runs - figures.failed_repeats.get((user, category), 0)
        hours = fsum(cell.gpu_s for cell in cells) / 3600
        rows.append(RepeatedUser(user=user, category=category, attempts=runs, jobs=jobs, gpu_hours=hours))
    often = [row for row in rows if row.attempts >= 2]
    return tuple(sorted(often, key=lambda row: (-row.attempts, -row.gpu_hours, row.user, row.category))[:ROWS])


def list_by_input(figures: Figures) -> tuple[RepeatedInput, ...]:
    """Return files that failures name twice or more. `blocked`: a file with this path is blocked now."""
    paths = {block.path for block in figures.blocked}
    rows = [
        _make_input_row(path, group, path in paths)
        for path, group in group_by(figures.blamed, lambda one: one.path).items()
        if sum(one.runs for one in group) >= 2
    ]
    return tuple(sorted(rows, key=lambda row: (-row.attempts, -row.gpu_hours, row.path))[:ROWS])


def _make_input_row(path: str, group: Sequence[BlamedInput], blocked: bool) -> RepeatedInput:
    return RepeatedInput(
        path=path,
        attempts=sum(one.runs for one in group),
        users=len({one.user for one in group}),
        categories=tuple(sorted({one.category for one in group})),
        gpu_hours=fsum(one.gpu_s for one in group) / 3600,
        blocked=blocked,
    )
