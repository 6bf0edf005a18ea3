"""How much GPU time trainings held after their loss had come near its lowest value. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median

from slurmwrap.report.night_report import ConvergenceRow, ConvergenceTotals
from slurmwrap.report.report_inputs import TrainedRuns

_ROWS = 50


def sum_convergence(trained: Sequence[TrainedRuns]) -> ConvergenceTotals:
    """Return the totals, and one row for each user's job name, most GPU-hours first."""
    rows = [_make_row(one) for one in trained if one.runs]
    if not rows:
        return ConvergenceTotals()
    held, after = (fsum(getattr(row, name) for row in rows) for name in ("gpu_hours", "gpu_hours_after"))
    return ConvergenceTotals(
        runs=sum(row.runs for row in rows),
        gpu_hours=held,
        after_share=after / held if held else None,
        gpu_hours_after=after,
        jobs=tuple(sorted(rows, key=lambda row: (-row.gpu_hours_after, row.user, row.name))[:_ROWS]),
    )


def _make_row(one: TrainedRuns) -> ConvergenceRow:
    epochs = [epoch_share for _, _, epoch_share in one.runs if epoch_share is not None]
    return ConvergenceRow(
        user=one.user,
        name=one.name,
        runs=len(one.runs),
        time_share=median(time_share for _, time_share, _ in one.runs),
        epoch_share=median(epochs) if epochs else None,
        gpu_hours=fsum(gpu_s for gpu_s, _, _ in one.runs) / 3600,
        gpu_hours_after=fsum(gpu_s * (1 - time_share) for gpu_s, time_share, _ in one.runs) / 3600,
    )
