"""Render a what-if study as one HTML page with charts (templates/whatif/page.html.j2). Names in it are untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slurmwrap.cli.whatif.whatif_output import (
    ARMS,
    STATES,
    describe_cluster,
    describe_lost_runs,
    describe_prerun_effect,
    describe_trust,
    format_brief_time,
    format_dates,
    format_headline,
    format_signed,
    list_causes,
    replace_hyphens,
    round_hours,
)
from slurmwrap.package_files import make_template_environment
from slurmwrap.report import text_format
from slurmwrap.report.svg_charts import (
    NO_MATPLOTLIB,
    OURS,
    PLAIN,
    REAL,
    Chart,
    IntervalRow,
    add_legend,
    draw_charts,
    plot_intervals,
    simplify_axes,
)
from slurmwrap.report.text_format import count
from slurmwrap.sim.failures.study_result import FailureStudy, Interval
from slurmwrap.sim.whatif import whatif_study
from slurmwrap.sim.whatif.whatif_study import Study

if TYPE_CHECKING:
    from jinja2 import Environment


# Width and height in inches: as wide as the page, which scrolls to the side on a phone.
_WIDE_INCHES = (9.6, 3.0)
# Marks of a time axis, by seconds.
_TIME_MARKS = {
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    6 * 3600: "6 h",
    86400: "1 d",
    7 * 86400: "7 d",
    30 * 86400: "30 d",
}
_MOMENTS = {60: "1 minute", 3600: "1 hour", 86400: "1 day"}
# The dashed line is drawn on top, so that both lines are visible where they coincide.
_LINES: dict[str, dict[str, Any]] = {
    whatif_study.REAL: {"label": "really happened", "color": REAL, "linewidth": 1.4},
    whatif_study.PLAIN: {
        "label": "plain Slurm",
        "color": PLAIN,
        "linewidth": 1.7,
        "linestyle": (0, (3, 1.8)),
        "zorder": 3,
    },
    whatif_study.OURS: {"label": "slurmwrap", "color": OURS, "linewidth": 2.2},
    whatif_study.ORDERED: {"label": "slurmwrap with order", "color": OURS, "linewidth": 1.4, "linestyle": ":"},
}

Curves = Mapping[str, Sequence[float]]


def list_charts(study: Study, zone: tzinfo | None) -> dict[str, Chart]:
    """Return the charts by key: one `wait-N` per class of GPUs, `jct`, `busy`, `savings`."""
    waits = {
        f"wait-{place}": _chart_distribution(
            study,
            f"{real.label}, {count(real.jobs, 'job')}",
            {arm.name: arm.classes[place].queueing_within for arm in study.arms},
            "time waited",
        )
        for place, real in enumerate(study.arms[0].classes)
    }
    ended = {arm.name: arm.all.jct_within for arm in study.arms}
    return {
        **waits,
        "jct": _chart_distribution(study, f"All {count(study.jobs, 'job')}", ended, "time until the end"),
        "busy": Chart(
            title="GPUs held over the window", plot=lambda axes: _plot_busy(axes, study, zone), size=_WIDE_INCHES
        ),
        "savings": Chart(
            title="GPU-hours saved, with 95 % intervals", plot=lambda axes: _plot_savings(axes, study.failures)
        ),
    }


def _chart_distribution(study: Study, title: str, curves: Curves, axis_label: str) -> Chart:
    return Chart(title=title, plot=lambda axes: _plot_distribution(axes, study.grid_s, curves, axis_label))


def _plot_distribution(axes: Any, grid: Sequence[float], curves: Curves, axis_label: str) -> str:
    """Draw shares over a logarithmic axis of time, which ends where every curve is complete."""
    first, *_ = _TIME_MARKS
    last = _find_last_mark(grid, curves.values())
    # A point of the grid may be a rounding error greater than its mark.
    shown = sum(at <= last * 1.001 for at in grid)
    edges = [min(max(float(first), at), last) for at in grid[:shown]] + [last]
    for name, shares in curves.items():
        axes.stairs([100 * share for share in shares[:shown]], edges, baseline=None, **_LINES[name])
    axes.set_xscale("log")
    axes.set_xlim(first, last)
    axes.minorticks_off()
    marks = {at: label for at, label in _TIME_MARKS.items() if at <= last}
    axes.set_xticks(list(marks), list(marks.values()))
    axes.set_xlabel(axis_label)
    _scale_percent(axes, "% of the jobs")
    return _describe_curves(grid, curves)


def _find_last_mark(grid: Sequence[float], curves: Iterable[Sequence[float]]) -> float:
    """Return the first mark by which all curves are complete, at least one minute."""
    last = max(grid[next((i for i, share in enumerate(shares) if share >= 1), len(grid) - 1)] for shares in curves)
    return float(next((at for at in _TIME_MARKS if at >= max(60, last * 0.999)), grid[-1]))


def _describe_curves(grid: Sequence[float], curves: Curves) -> str:
    """Return the curves at three moments."""
    parts = []
    for moment, label in _MOMENTS.items():
        index = next(i for i, at in enumerate(grid) if at >= moment * 0.999)
        parts.append(
            f"{label}: " + ", ".join(f"{_get_label(arm)} {shares[index]:.0%}" for arm, shares in curves.items())
        )
    return f"Share of the jobs within {'; '.join(parts)}."


def _plot_busy(axes: Any, study: Study, zone: tzinfo | None) -> str:
    """Draw the share of the GPUs that jobs held, in each of the equal parts of the window."""
    dates = import_module("matplotlib.dates")
    # Matplotlib's dates are in days since 1970.
    since, until = study.window.since / 86400, study.window.until / 86400
    for arm in study.arms:
        edges = [since + (until - since) * i / len(arm.busy) for i in range(len(arm.busy) + 1)]
        held = [100 * share for share in arm.busy]
        if arm.name == whatif_study.REAL:
            axes.stairs(held, edges, fill=True, color=REAL, alpha=0.16, linewidth=0)
        axes.stairs(held, edges, baseline=None, **_LINES[arm.name])
    axes.set_xlim(since, until)
    axes.xaxis.set_major_locator(dates.AutoDateLocator(tz=zone, maxticks=6))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%d %b" if until - since > 2.5 else "%H:%M", tz=zone))
    _scale_percent(axes, "% of the GPUs")
    means = ", ".join(f"{_get_label(arm.name)} {arm.gpu_utilisation:.0%}" for arm in study.arms)
    return f"Share of the GPUs that jobs held, over time; on average {means}."


def _plot_savings(axes: Any, failures: FailureStudy) -> str:
    """Draw what each part of slurmwrap saves against the first arm."""
    rows = [_make_row(arm.title, arm.saved_gpu_hours) for arm in failures.arms[1:]]
    plot_intervals(axes, rows, OURS, "GPU-hours saved")
    return "; ".join(f"{row.name} {row.label}" for row in rows)


def _make_row(title: str, saved: Interval) -> IntervalRow:
    return IntervalRow(name=title, mean=saved.mean, low=saved.low, high=saved.high, label=round_hours(saved.mean))


def _scale_percent(axes: Any, axis_label: str) -> None:
    axes.set_ylim(0, 100)
    axes.set_yticks(range(0, 101, 25))
    axes.set_ylabel(axis_label)
    simplify_axes(axes, "y")
    add_legend(axes, 3)


def _get_label(arm: str) -> str:
    return str(_LINES[arm]["label"])


_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|min|h|d|GPU-hours)\b|%)")
TOP_USERS, TOP_CAUSES = 15, 12


def render_page(study: Study, *, source: str, made_by: str, zone: tzinfo | None = UTC) -> str:
    """Return the HTML page. `source`: name of the dump; `made_by`: slurmwrap's version.

    Times of a dump have no time zone: they are the site's local times, and UTC shows them unchanged.
    """
    charts = list_charts(study, zone)
    plots = draw_charts(charts)
    return (
        _make_environment()
        .get_template("page.html.j2")
        .render(
            study=study,
            source=source,
            made_by=made_by,
            zone=zone,
            span=format_dates(study.window.since, study.window.until, zone),
            headline=format_headline(study),
            believe=describe_trust(study),
            lost_words=describe_lost_runs(study),
            cluster=describe_cluster(study),
            arm_names=ARMS,
            states=STATES,
            users=study.waste.users[:TOP_USERS],
            charts=charts,
            plots=plots or {},
            no_plots="" if plots is not None else NO_MATPLOTLIB,
            pre_run=describe_prerun_effect(study.failures),
            causes=list_causes(study.failures)[:TOP_CAUSES],
        )
    )


def keep_units_together(text: str) -> str:
    """Return the text with no-break spaces between numbers and their units."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _make_environment() -> Environment:
    # Users choose the names of jobs, so all text is escaped.
    environment = make_template_environment("whatif", autoescape=True, keep_trailing_newline=False)
    environment.filters.update(
        visible=text_format.visible, brief=format_brief_time, percent=text_format.percent, hours=round_hours,
        signed=format_signed,
        minus=replace_hyphens, tied=keep_units_together,
    )  # fmt: skip
    environment.globals.update(count=text_format.count, moment=text_format.moment)
    return environment
