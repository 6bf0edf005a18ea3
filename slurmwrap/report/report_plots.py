"""Draws a report's curves and bars as SVG, by matplotlib: the optional extra `plot`.

Drawn in marker colours that are then replaced by CSS variables, so that one drawing serves light, dark and paper. Text
stays text. The same report gives the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from io import StringIO
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from slurmwrap.report import text_format
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import format_duration
from slurmwrap.report.sections_saved import MEANS

INK, SOFT, GRID, COMPLETED, FAILED, CANCELLED, BEFORE, SAVED = (f"#0{i}0{i}0{i}" for i in range(1, 9))
VARIABLES = {
    INK: "--ink",
    SOFT: "--soft",
    GRID: "--rule",
    COMPLETED: "--completed",
    FAILED: "--failed",
    CANCELLED: "--cancelled",
    BEFORE: "--before",
    SAVED: "--saved",
}
# Inches: two side by side on a desk, one on a phone with its text still readable.
SIZE = (5.2, 3.2)
SHOWN = 8  # categories
_MOST_DIGITS = 6
_FONT = re.compile(r"font-family: [^;]*;? ?")
_SVG = "http://www.w3.org/2000/svg"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "slurmwrap",
    "font.size": 11,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 10,
    "axes.unicode_minus": True,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
}


def draw(report: NightReport, zone: Any = None) -> dict[str, str] | None:
    """Key -> `<svg>` element, for what there is something to draw of; None without matplotlib."""
    try:
        matplotlib = import_module("matplotlib")
        figures = import_module("matplotlib.figure")
    except ImportError:
        return None
    found = {}
    with matplotlib.rc_context(_STYLE):
        for key, (title, has, plot) in _PLOTS.items():
            if has(report):
                # No pyplot: nothing asks for a display.
                figure = figures.Figure(figsize=SIZE, layout="constrained")
                said = plot(figure.subplots(), report, zone)
                found[key] = _render_svg(figure, key, title, said)
    return found


TITLES = {
    "categories": "GPU-hours by category of failure",
    "held": "GPU-hours over time",
    "runtimes": "How long runs lasted",
    "savings": "GPU-hours saved, with 95 % intervals",
}

# ---- the four


def _plot_categories(axes: Any, report: NightReport, zone: Any) -> str:
    rows = sorted(report.categories, key=lambda row: -row.gpu_hours)[:SHOWN][::-1]
    places = range(len(rows))
    axes.barh(places, [row.gpu_hours for row in rows], height=0.62, color=FAILED)
    if report.before is not None:
        axes.plot([row.gpu_hours_before for row in rows], places, "|", color=INK, markersize=13, markeredgewidth=1.6)
    most = max((max(row.gpu_hours, row.gpu_hours_before) for row in rows), default=1.0) or 1.0
    digits = _count_digits(most / 10)
    for place, row in zip(places, rows, strict=True):
        end = _free(row.gpu_hours, row.gpu_hours_before if report.before is not None else 0.0, most)
        axes.text(end + most * 0.025, place, f"{row.gpu_hours:,.{digits}f}", va="center", fontsize=10)
    axes.set_yticks(list(places), [row.category for row in rows])
    axes.set_xlim(0, most * 1.16)
    _simplify_axes(axes, "x")
    axes.set_xlabel("GPU-hours (stroke: the period before)" if report.before is not None else "GPU-hours")
    return "; ".join(f"{row.category} {text_format.hours(row.gpu_hours)}" for row in reversed(rows))


def _free(end: float, stroke: float, most: float) -> float:
    """Where a bar's figure begins: at its end, or behind a stroke that is in the way."""
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
    _simplify_axes(axes, "y")
    _add_legend(axes, 3)
    totals = (sum(getattr(one, name) for one in moments) for name in ("completed", "cancelled", "failed"))
    return "Completed {}, cancelled {}, failed {}.".format(*(text_format.hours(total) for total in totals))


_EACH = {3600: "hour", 86_400: "day", 7 * 86_400: "week"}


def _format_bin_width(seconds: float) -> str:
    return _EACH.get(round(seconds), f"{seconds / 3600:.3g} h")


def _plot_runtimes(axes: Any, report: NightReport, zone: Any) -> str:
    """Each as a share of its own total: there are far more completed runs than failed ones."""
    bins = report.runtimes
    failed, completed = (_compute_shares([getattr(one, name) for one in bins]) for name in ("failed", "completed"))
    # All as wide: their bounds grow by factors.
    places = range(len(bins) + 1)
    axes.bar(places[:-1], failed, width=1, align="edge", color=FAILED, label="failed", linewidth=0)
    axes.stairs(completed, places, color=COMPLETED, linewidth=1.8, label="completed", baseline=None)
    shown = places[1 : len(bins) : max(1, len(bins) // 6)]
    axes.set_xticks(shown, [format_duration(bins[place].low_s) for place in shown])
    axes.set_xlim(0, len(bins))
    axes.set_ylabel("% of the runs of its kind")
    axes.set_xlabel("time from start to end")
    _simplify_axes(axes, "y")
    _add_legend(axes, 2)
    most = max(range(len(bins)), key=lambda i: failed[i])
    between = f"{format_duration(bins[most].low_s)} and {format_duration(bins[most].high_s)}"
    return f"Most runs that failed did so between {between} ({failed[most]:.0f} % of them)."


def _compute_shares(counts: list[int]) -> list[float]:
    total = sum(counts) or 1
    return [100 * one / total for one in counts]


def _plot_savings(axes: Any, report: NightReport, zone: Any) -> str:
    rows = _list_savings(report)[::-1]
    for place, one in enumerate(rows):
        if one.gpu_hours is None:
            axes.text(0, place, f"  not estimated (n = {one.n})", va="center", fontsize=10, color=SOFT)
            continue
        low, high = (one.gpu_hours if end is None else end for end in (one.low, one.high))
        axes.plot([low, high], [place, place], color=SAVED, linewidth=5, solid_capstyle="butt", alpha=0.45)
        axes.plot([one.gpu_hours], [place], "o", color=SAVED, markersize=8)
        axes.text(one.gpu_hours, place + 0.24, _format_hours(one.gpu_hours), ha="center", va="bottom", fontsize=10)
    axes.axvline(0, color=SOFT, linewidth=1)
    axes.set_yticks(range(len(rows)), [MEANS.get(one.what, one.what) for one in rows])
    axes.set_ylim(-0.6, len(rows) - 0.25)
    axes.set_xlabel("GPU-hours saved")
    _simplify_axes(axes, "x")
    return "; ".join(_describe_saving(one) for one in _list_savings(report))


def _list_savings(report: NightReport) -> tuple[Any, ...]:
    """What shares a unit and so an axis."""
    return tuple(one for one in report.savings if one.spared)


def _describe_saving(one: Any) -> str:
    what = MEANS.get(one.what, one.what)
    if one.gpu_hours is None:
        return f"{what} not estimated"
    interval = (
        "" if one.low is None or one.high is None else f" ({_format_hours(one.low)} to {_format_hours(one.high)})"
    )
    return f"{what} {_format_hours(one.gpu_hours)}{interval}"


def _format_hours(value: float) -> str:
    return f"{'−' if value < 0 else ''}{text_format.hours(abs(value))}"


_PLOTS: dict[str, tuple[str, Callable[[NightReport], bool], Callable[[Any, NightReport, Any], str]]] = {
    "categories": (TITLES["categories"], lambda r: any(row.gpu_hours for row in r.categories), _plot_categories),
    "held": (TITLES["held"], lambda r: any(m.completed + m.failed + m.cancelled for m in r.held), _plot_held_hours),
    "runtimes": (TITLES["runtimes"], lambda r: any(one.failed for one in r.runtimes), _plot_runtimes),
    "savings": (TITLES["savings"], lambda r: any(one.gpu_hours is not None for one in _list_savings(r)), _plot_savings),
}


def _simplify_axes(axes: Any, along: str) -> None:
    """Grid lines across the values only, no tick marks, thousands with commas."""
    axes.grid(axis=along)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left" if along == "x" else "bottom"].set_visible(along == "y")
    axes.spines["bottom" if along == "x" else "left"].set_visible(False)
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: _format_tick(value, along, axis.get_majorticklocs()))


def _format_tick(value: float, along: str, marks: Sequence[float]) -> str:
    """With as many digits as distinguish the marks of its axis."""
    if not value and along == "y":
        # The first mark of the other axis is there.
        return ""
    steps = [after - before for before, after in pairwise(marks) if after > before]
    step = min(steps, default=1.0)
    digits = _count_digits(step)
    while digits < _MOST_DIGITS and abs(round(step, digits) - step) > step / 1000:  # 0.25, 0.125
        digits += 1
    return f"{value:,.{digits}f}".replace("-", "−")


def _count_digits(step: float) -> int:
    """Decimal places by which values that differ by `step` can be distinguished: 0 from 1 on, 2 for 0.05."""
    return max(0, min(_MOST_DIGITS, -math.floor(math.log10(step)))) if step > 0 else 0


def _add_legend(axes: Any, columns: int) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, handlelength=1.1, fontsize=10,
        borderpad=0, columnspacing=1.4, borderaxespad=0.3,
    )  # fmt: skip


# ---- from matplotlib's file to an element of the page


def _render_svg(figure: Any, key: str, title: str, said: str) -> str:
    out = StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(out.getvalue())
    # A style element would speak for the whole page.
    for name in ("metadata", "defs"):
        for extra in root.findall(f"{{{_SVG}}}{name}"):
            root.remove(extra)
    for element in root.iter():
        _rename_ids(element, f"{key}-")
    return _frame_svg(root, key, title, said)


def _rename_ids(element: Any, prefix: str) -> None:
    """Ids of this drawing's own, and colours of the page's."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            value = prefix + value
        elif name.endswith("href"):
            value = value.replace("#", f"#{prefix}", 1)
        elif name in ("style", "clip-path"):
            value = _replace_colours(value.replace("url(#", f"url(#{prefix}"))
        element.set(name, value)


def _replace_colours(style: str) -> str:
    for marker, variable in VARIABLES.items():
        style = style.replace(marker, f"var({variable})")
    return _FONT.sub("", style)  # the page's own


def _frame_svg(root: Any, key: str, title: str, said: str) -> str:
    """With a name and a description for those who cannot see it; as wide as there is room."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-desc")
    for tag, text in (("desc", said), ("title", title)):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{key}-{tag}"})
        element.text = text_format.visible(text)
        root.insert(0, element)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.tostring(root, encoding="unicode")
