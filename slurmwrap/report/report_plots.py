"""Draw the charts of the night report, by svg_charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurmwrap.report import text_format
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import format_duration
from slurmwrap.report.sections_saved import MEANS
from slurmwrap.report.sections_site import describe_gpu_count
from slurmwrap.report.svg_charts import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INK,
    SAVED,
    Chart,
    IntervalRow,
    add_legend,
    count_digits,
    draw_charts,
    plot_intervals,
    simplify_axes,
)

# Largest number of categories in a chart.
SHOWN = 8


def draw(report: NightReport, zone: Any = None) -> dict[str, str] | None:
    """Return key -> `<svg>` element, for each chart with data; None without matplotlib."""
    return draw_charts(
        {
            key: Chart(title=title, plot=lambda axes, plot=plot: plot(axes, report, zone))  # type: ignore[misc]
            for key, (title, has, plot) in _PLOTS.items()
            if has(report)
        }
    )


TITLES = {
    "categories": "GPU-hours by category of failure",
    "held": "GPU-hours over time",
    "runtimes": "How long runs lasted",
    "savings": "GPU-hours saved, with 95 % intervals",
    "gpu_use": "GPU use by size, spread and neighbours",
}

# ---- charts


def _plot_categories(axes: Any, report: NightReport, zone: Any) -> str:
    rows = sorted(report.categories, key=lambda row: -row.gpu_hours)[:SHOWN][::-1]
    positions = range(len(rows))
    axes.barh(positions, [row.gpu_hours for row in rows], height=0.62, color=FAILED)
    if report.before is not None:
        axes.plot([row.gpu_hours_before for row in rows], positions, "|", color=INK, markersize=13, markeredgewidth=1.6)
    most = max((max(row.gpu_hours, row.gpu_hours_before) for row in rows), default=1.0) or 1.0
    digits = count_digits(most / 10)
    for position, row in zip(positions, rows, strict=True):
        end = _find_label_start(row.gpu_hours, row.gpu_hours_before if report.before is not None else 0.0, most)
        axes.text(end + most * 0.025, position, f"{row.gpu_hours:,.{digits}f}", va="center", fontsize=10)
    axes.set_yticks(list(positions), [row.category for row in rows])
    axes.set_xlim(0, most * 1.16)
    simplify_axes(axes, "x")
    axes.set_xlabel("GPU-hours (stroke: the period before)" if report.before is not None else "GPU-hours")
    return "; ".join(f"{row.category} {text_format.hours(row.gpu_hours)}" for row in reversed(rows))


def _find_label_start(end: float, stroke: float, most: float) -> float:
    """Return where the label of a bar begins: at the bar's end, or after the stroke if that is in the way."""
    return stroke if end < stroke < end + 0.17 * most else end


def _plot_held_hours(axes: Any, report: NightReport, zone: Any) -> str:
    from datetime import datetime

    moments = report.held
    days = moments[-1].at + moments[-1].seconds - moments[0].at > 2.5 * 86400
    width = [one.seconds / 3600 for one in moments]
    left = [(one.at - moments[0].at) / 3600 for one in moments]
    floor = [0.0] * len(moments)
    for values, colour, name in (
        ([one.completed for one in moments], COMPLETED, "completed"),
        ([one.cancelled for one in moments], CANCELLED, "cancelled"),
        ([one.failed for one in moments], FAILED, "failed"),
    ):
        axes.bar(left, values, width=[w * 0.86 for w in width], bottom=floor, align="edge", color=colour, label=name)
        floor = [low + value for low, value in zip(floor, values, strict=True)]
    steps = range(0, len(moments), max(1, round(len(moments) / 6)))
    form = "%d %b" if days else "%H:%M"
    axes.set_xticks(
        [left[i] for i in steps], [datetime.fromtimestamp(moments[i].at, zone).strftime(form) for i in steps]
    )
    axes.set_xlim(0, left[-1] + width[-1])
    axes.set_ylim(0, max(floor, default=1.0) * 1.05 or 1.0)
    axes.set_ylabel(f"GPU-hours per {_format_bin_width(moments[0].seconds)}")
    simplify_axes(axes, "y")
    add_legend(axes, 3)
    totals = (sum(getattr(one, name) for one in moments) for name in ("completed", "cancelled", "failed"))
    return "Completed {}, cancelled {}, failed {}.".format(*(text_format.hours(total) for total in totals))


_UNIT_OF_BIN = {3600: "hour", 86_400: "day", 7 * 86_400: "week"}


def _format_bin_width(seconds: float) -> str:
    return _UNIT_OF_BIN.get(round(seconds), f"{seconds / 3600:.3g} h")


def _plot_runtimes(axes: Any, report: NightReport, zone: Any) -> str:
    """Plot each outcome as a share of its own total, because far more runs complete than fail."""
    bins = report.runtimes
    failed, completed = (_compute_shares([getattr(one, name) for one in bins]) for name in ("failed", "completed"))
    # All bars have the same width, because the bounds of the bins grow by factors.
    positions = range(len(bins) + 1)
    axes.bar(positions[:-1], failed, width=1, align="edge", color=FAILED, label="failed", linewidth=0)
    axes.stairs(completed, positions, color=COMPLETED, linewidth=1.8, label="completed", baseline=None)
    shown = positions[1 : len(bins) : max(1, len(bins) // 6)]
    axes.set_xticks(shown, [format_duration(bins[position].low_s) for position in shown])
    axes.set_xlim(0, len(bins))
    axes.set_ylabel("% of the runs of its kind")
    axes.set_xlabel("time from start to end")
    simplify_axes(axes, "y")
    add_legend(axes, 2)
    most = max(range(len(bins)), key=lambda i: failed[i])
    between = f"{format_duration(bins[most].low_s)} and {format_duration(bins[most].high_s)}"
    return f"Most runs that failed did so between {between} ({failed[most]:.0f} % of them)."


def _compute_shares(counts: list[int]) -> list[float]:
    total = sum(counts) or 1
    return [100 * one / total for one in counts]


def _plot_savings(axes: Any, report: NightReport, zone: Any) -> str:
    rows = [
        IntervalRow(
            name=MEANS.get(one.what, one.what),
            mean=one.gpu_hours,
            low=one.low,
            high=one.high,
            label=f"not estimated (n = {one.n})" if one.gpu_hours is None else _format_hours(one.gpu_hours),
        )
        for one in _list_savings(report)
    ]
    plot_intervals(axes, rows, SAVED, "GPU-hours saved")
    return "; ".join(_describe_saving(one) for one in _list_savings(report))


def _list_savings(report: NightReport) -> tuple[Any, ...]:
    """Return the savings in GPU time, which share a unit and therefore an axis."""
    return tuple(one for one in report.savings if one.spared)


def _describe_saving(one: Any) -> str:
    what = MEANS.get(one.what, one.what)
    if one.gpu_hours is None:
        return f"{what} not estimated"
    interval = (
        "" if one.low is None or one.high is None else f" ({_format_hours(one.low)} to {_format_hours(one.high)})"
    )
    return f"{what} {_format_hours(one.gpu_hours)}{interval}"


def _plot_gpu_use(axes: Any, report: NightReport, zone: Any) -> str:
    rows = report.gpu_use
    positions = range(len(rows))
    axes.bar(positions, [100 * row.use for row in rows], width=0.66, color=COMPLETED, alpha=0.35, label="all")
    # Beside each other, so that equal values do not hide one another.
    series = (
        ("use_fewest_nodes", "fewest nodes", "^", COMPLETED, -0.24),
        ("use_more_nodes", "more nodes", "v", FAILED, -0.08),
        ("use_alone", "alone", "o", COMPLETED, 0.08),
        ("use_beside", "beside others", "s", FAILED, 0.24),
    )
    for key, name, marker, colour, shift in series:
        values = [getattr(row, key) for row in rows]
        known = [(place + shift, 100 * value) for place, value in enumerate(values) if value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker, color=colour, markersize=7, label=name)
    axes.set_xticks(list(positions), [describe_gpu_count(row) for row in rows])
    axes.set_ylim(0, 100)
    axes.set_xlabel("GPUs of the job")
    axes.set_ylabel("% of the GPU time")
    simplify_axes(axes, "y")
    add_legend(axes, 3)
    return "GPUs of the job and use: " + "; ".join(
        f"{describe_gpu_count(row)}: {text_format.percent(row.use)}" for row in rows
    )


def _format_hours(value: float) -> str:
    return f"{'−' if value < 0 else ''}{text_format.hours(abs(value))}"


_PLOTS: dict[str, tuple[str, Callable[[NightReport], bool], Callable[[Any, NightReport, Any], str]]] = {
    "categories": (TITLES["categories"], lambda r: any(row.gpu_hours for row in r.categories), _plot_categories),
    "held": (TITLES["held"], lambda r: any(m.completed + m.failed + m.cancelled for m in r.held), _plot_held_hours),
    "runtimes": (TITLES["runtimes"], lambda r: any(one.failed for one in r.runtimes), _plot_runtimes),
    "gpu_use": (TITLES["gpu_use"], lambda r: bool(r.gpu_use), _plot_gpu_use),
    "savings": (TITLES["savings"], lambda r: any(one.gpu_hours is not None for one in _list_savings(r)), _plot_savings),
}
