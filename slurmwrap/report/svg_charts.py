"""Draw charts as `<svg>` elements of a page, with matplotlib (optional extra `plot`).

Charts are drawn in marker colours that are then replaced by CSS variables, so that one drawing serves light, dark and
printed pages. Text stays text. The same chart gives the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from slurmwrap.report import text_format

NO_MATPLOTLIB = "Drawings are left out: matplotlib is not installed here (pip install 'slurmwrap[plot]')."
# The CSS variables by which the pages define the colours of the drawings.
_VARIABLES = (
    "--ink",
    "--soft",
    "--rule",
    "--completed",
    "--failed",
    "--cancelled",
    "--saved",
    "--real",
    "--slurm",
    "--slurmwrap",
)
_MARKERS = tuple(f"#0{i:x}0{i:x}0{i:x}" for i in range(1, len(_VARIABLES) + 1))
INK, SOFT, GRID, COMPLETED, FAILED, CANCELLED, SAVED, REAL, PLAIN, OURS = _MARKERS
# Size in inches: two charts fit side by side on a desktop; on a phone one fits and its text is readable.
SIZE = (5.2, 3.2)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing. `plot` draws into matplotlib's axes and returns a description in words."""

    title: str
    plot: Callable[[Any], str]
    # In inches.
    size: tuple[float, float] = SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """An estimate with the ends of its interval; None: there is no estimate. `label` is shown next to it."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    label: str


def draw_charts(charts: Mapping[str, Chart]) -> dict[str, str] | None:
    """Return key -> `<svg>` element; None without matplotlib. The ids of the elements begin with the keys."""
    try:
        matplotlib = import_module("matplotlib")
        figures = import_module("matplotlib.figure")
    except ImportError:
        return None
    found = {}
    with matplotlib.rc_context(_STYLE):
        for key, chart in charts.items():
            # Figure is used without pyplot, which would need a display.
            figure = figures.Figure(figsize=chart.size, layout="constrained")
            description = chart.plot(figure.subplots())
            found[key] = _render_svg(figure, key, chart.title, description)
    return found


def plot_intervals(axes: Any, rows: Sequence[IntervalRow], colour: str, unit: str) -> None:
    """Draw each estimate as a point on its interval, the first row at the top, with a line where the value is 0."""
    for position, row in enumerate(reversed(rows)):
        if row.mean is None:
            axes.text(0, position, f"  {row.label}", va="center", fontsize=10, color=SOFT)
            continue
        low, high = (row.mean if end is None else end for end in (row.low, row.high))
        axes.plot([low, high], [position, position], color=colour, linewidth=5, solid_capstyle="butt", alpha=0.45)
        axes.plot([row.mean], [position], "o", color=colour, markersize=8)
        axes.text(row.mean, position + 0.24, row.label, ha="center", va="bottom", fontsize=10)
    axes.axvline(0, color=SOFT, linewidth=1)
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.25)
    axes.set_xlabel(unit)
    simplify_axes(axes, "x")


def simplify_axes(axes: Any, along: str) -> None:
    """Leave grid lines across the values only, no tick marks, thousands with commas."""
    axes.grid(axis=along)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left" if along == "x" else "bottom"].set_visible(along == "y")
    axes.spines["bottom" if along == "x" else "left"].set_visible(False)
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: _format_tick(value, along, axis.get_majorticklocs()))


def _format_tick(value: float, along: str, marks: Sequence[float]) -> str:
    """Format a tick with as many digits as distinguish the ticks of its axis."""
    # The first tick of the other axis is at the place of the 0.
    if not value and along == "y":
        return ""
    steps = [after - before for before, after in pairwise(marks) if after > before]
    step = min(steps, default=1.0)
    digits = count_digits(step)
    # Steps such as 0.25 and 0.125 need more digits than their size suggests.
    while digits < _MOST_DIGITS and abs(round(step, digits) - step) > step / 1000:
        digits += 1
    return f"{value:,.{digits}f}".replace("-", "−")


def count_digits(step: float) -> int:
    """Return the decimal places by which values that differ by `step` can be distinguished: 0 from 1 on, 2 for 0.05."""
    return max(0, min(_MOST_DIGITS, -math.floor(math.log10(step)))) if step > 0 else 0


def add_legend(axes: Any, columns: int) -> None:
    """Put the legend above the axes, from the left."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, handlelength=1.1, fontsize=10,
        borderpad=0, columnspacing=1.4, borderaxespad=0.3,
    )  # fmt: skip


def _render_svg(figure: Any, key: str, title: str, description: str) -> str:
    out = StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(out.getvalue())
    # Remove the style element among the definitions, because it would apply to the whole page.
    for name in ("metadata", "defs"):
        for extra in root.findall(f"{{{_SVG}}}{name}"):
            root.remove(extra)
    for element in root.iter():
        # The clipping rectangles were removed with the definitions.
        element.attrib.pop("clip-path", None)
        _rename_ids(element, f"{key}-")
    return _frame_svg(root, key, title, description)


def _rename_ids(element: Any, prefix: str) -> None:
    """Make the ids unique to this drawing, and replace its colours by those of the page."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            value = prefix + value
        elif name.endswith("href"):
            value = value.replace("#", f"#{prefix}", 1)
        elif name == "style":
            value = _replace_colours(value)
        element.set(name, value)


def _replace_colours(style: str) -> str:
    for marker, variable in zip(_MARKERS, _VARIABLES, strict=True):
        style = style.replace(marker, f"var({variable})")
    # The drawing uses the font of the page.
    return _FONT.sub("", style)


def _frame_svg(root: Any, key: str, title: str, description: str) -> str:
    """Add a name and a description for screen readers, and let the drawing fill the available width."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-desc")
    for tag, text in (("desc", description), ("title", title)):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{key}-{tag}"})
        element.text = text_format.visible(text)
        root.insert(0, element)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.tostring(root, encoding="unicode")
