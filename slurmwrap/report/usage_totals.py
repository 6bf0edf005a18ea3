"""Sums over all runs: the headline, rows per user and account, and how long runs lasted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from slurmwrap.report.night_report import Bin, Headline, ShareRow
from slurmwrap.report.report_inputs import BIN_EDGES_S, Figures, RunGroup


def headline(figures: Figures) -> Headline:
    """Of the period."""
    return _headline(figures.cells, sum(figures.repeats.values()), figures.gsub_jobs)


def before(figures: Figures) -> Headline | None:
    """Of the period before; gsub's share of it is not asked for."""
    if figures.cells_before is None:
        return None
    return _headline(figures.cells_before, figures.repeats_before, 0)


def _headline(cells: Sequence[RunGroup], repeats: int, gsub_jobs: int) -> Headline:
    runs = {"": 0, "completed": 0, "completed_with_error": 0, "failed": 0, "cancelled": 0}
    gpu_s = dict.fromkeys(runs, 0.0)  # whole seconds: their sums are exact
    for cell in cells:
        outcome = cell.outcome
        runs[outcome] += cell.runs
        gpu_s[outcome] += cell.gpu_s
    attempts = sum(runs.values())
    return Headline(
        jobs=attempts - repeats,
        attempts=attempts,
        users=len({cell.user for cell in cells}),
        gpu_hours=sum(gpu_s.values()) / 3600,
        failed_attempts=runs["failed"],
        failed_gpu_hours=gpu_s["failed"] / 3600,
        cancelled_attempts=runs["cancelled"],
        unjudged_attempts=runs[""],
        completed_with_error_attempts=runs["completed_with_error"],
        completed_with_error_gpu_hours=gpu_s["completed_with_error"] / 3600,
        gsub_jobs=gsub_jobs,
    )


def users(figures: Figures) -> tuple[ShareRow, ...]:
    """One row per user, who held most GPU-hours first."""
    return _shares(figures, lambda user, account: user, figures.tried)


def accounts(figures: Figures) -> tuple[ShareRow, ...]:
    """One row per account; none where Slurm has none. Whose account a pre-run was on is not kept."""
    rows = _shares(figures, lambda user, account: account, {})
    return rows if any(row.name for row in rows) else ()


def _shares(
    figures: Figures, who: Callable[[str, str], str], tried: Mapping[str, tuple[int, int]]
) -> tuple[ShareRow, ...]:
    groups: dict[str, list[RunGroup]] = {name: [] for name in tried}
    for cell in figures.cells:
        groups.setdefault(who(cell.user, cell.account), []).append(cell)
    repeats: dict[str, int] = {}
    for (user, account), count in figures.repeats.items():
        name = who(user, account)
        repeats[name] = repeats.get(name, 0) + count
    rows = [_share(name, cells, repeats.get(name, 0), *tried.get(name, (0, 0))) for name, cells in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.name)))


def _share(name: str, cells: Sequence[RunGroup], repeats: int, preruns: int, stopped: int) -> ShareRow:
    head = _headline(cells, repeats, 0)
    lost: dict[str, float] = {}
    for cell in cells:
        if cell.outcome == "failed":
            lost[cell.category] = lost.get(cell.category, 0.0) + cell.gpu_s
    return ShareRow(
        name=name,
        jobs=head.jobs,
        attempts=head.attempts,
        gpu_hours=head.gpu_hours,
        failed_attempts=head.failed_attempts,
        failed_gpu_hours=head.failed_gpu_hours,
        cancelled_attempts=head.cancelled_attempts,
        preruns=preruns,
        stopped_jobs=stopped,
        top_category=min(lost, key=lambda category: (-lost[category], category), default=""),
    )


def runtimes(cells: Iterable[RunGroup]) -> tuple[Bin, ...]:
    """Runs by how long they lasted and how they ended; from the first bin that holds one to the last."""
    counts: dict[tuple[int, str], int] = {}
    for cell in cells:
        counts[cell.bin, cell.outcome] = counts.get((cell.bin, cell.outcome), 0) + cell.runs
    used = [number for number, outcome in counts if outcome]
    edges = list(pairwise((*BIN_EDGES_S, BIN_EDGES_S[-1] * 2)))
    return (
        tuple(
            Bin(
                low_s=float(edges[number][0]),
                high_s=float(edges[number][1]),
                failed=counts.get((number, "failed"), 0),
                completed=counts.get((number, "completed"), 0) + counts.get((number, "completed_with_error"), 0),
                cancelled=counts.get((number, "cancelled"), 0),
            )
            for number in range(min(used), max(used) + 1)
        )
        if used
        else ()
    )
