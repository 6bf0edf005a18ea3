"""The section of the report about what was found while jobs ran (rule `early`). Pure."""

from __future__ import annotations

from slurmwrap.report import text_format
from slurmwrap.report.night_report import MoveTotals, NightReport
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow


def make_running_section(report: NightReport) -> Section:
    """Return the findings about running jobs, and whether the end of each run confirmed them."""
    return Section(
        key="running",
        title="Found while jobs ran",
        lead=(_describe_moves(report.moves),),
        tables=(
            ReportTable(
                key="early",
                title="Findings about running jobs",
                lead="Right or wrong by how the run ended. Open: it still runs, or slurmwrap ended it.",
                columns=(
                    Column(key="kind", head="found"),
                    Column(key="findings", head="runs", kind=ColumnKind.COUNT),
                    Column(key="right", head="right", kind=ColumnKind.COUNT),
                    Column(key="wrong", head="wrong", kind=ColumnKind.COUNT),
                    Column(key="open", head="open", kind=ColumnKind.COUNT),
                    Column(key="precision", head="precision", kind=ColumnKind.SHARE),
                    Column(key="acted", head="ended by it", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="gpu_hours_after", head="GPU-h after it", kind=ColumnKind.HOURS),
                ),
                rows=tuple(
                    TableRow(
                        (
                            *(one.kind, one.findings, one.right, one.wrong, one.open, one.precision, one.acted),
                            one.gpu_hours_after,
                        )
                    )
                    for one in report.early
                ),
            ),
            ReportTable(
                key="early_jobs",
                title="Newest findings about running jobs",
                columns=(
                    Column(key="job", head="job", kind=ColumnKind.USER),
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="name", head="job name", kind=ColumnKind.USER, narrow=False),
                    Column(key="kind", head="found"),
                    Column(key="at", head="at", kind=ColumnKind.MOMENT),
                    Column(key="ended", head="ended"),
                    Column(key="result", head="it was"),
                ),
                rows=tuple(
                    TableRow(
                        (one.address, one.user, one.name, one.kind, one.at, one.ended.lower() or "runs", one.result),
                        more=one.evidence,
                    )
                    for one in report.early_jobs
                ),
                limit=8,
            ),
        ),
    )


def _describe_moves(moves: MoveTotals) -> str:
    """Describe the moves of running jobs; "" if there are none."""
    if not moves.moved + moves.given_up + moves.advised:
        return ""
    leases = f", {moves.leases:,} of them at the end of a lease" if moves.leases else ""
    again = f"; {text_format.count(moves.restarted, 'job')} began again from the start" if moves.restarted else ""
    more = text_format.hours(moves.unexpected_gpu_hours)
    unexpected = f", {more} of them more than was expected" if moves.unexpected_gpu_hours else ""
    return (
        f"Moved at a checkpoint: {text_format.count(moves.moved, 'job')}{leases}{again}. "
        f"Given up: {moves.given_up:,}; only advised: {moves.advised:,}. "
        f"GPU time gained: {text_format.hours(moves.gained_gpu_hours)} GPU-hours that would have been idle or slow, "
        f"as expected when they began; lost by restarts: {text_format.hours(moves.lost_gpu_hours)} "
        f"GPU-hours{unexpected}."
    )
