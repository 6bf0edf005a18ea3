"""What failed again and again: by job name, by user, by input. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from slurmwrap.report.categories import group_by, select_unstruck
from slurmwrap.report.night_report import Repeated, RepeatedInput, RepeatedUser
from slurmwrap.report.report_inputs import BlamedInput, Detail, Figures, Key, Often

# Of each table, the most frequent.
ROWS = 100
NEWEST = 20  # addresses of a row


def list_by_job(figures: Figures) -> tuple[Repeated, ...]:
    """The same failure of the same user's job name, twice or more. Most often first, then dearest."""
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
    """The same category of one user, twice or more, whatever the job's name."""
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
    """Files that failures blame twice or more. `blocked`: a file of this path is, now."""
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
