"""Draw loss curves, with the time from which each was within 0.1 % of its lowest value, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve
from slurmwrap.report.convergence_text import format_convergence
from slurmwrap.report.svg_charts import (
    COMPLETED,
    FAILED,
    INK,
    OURS,
    SOFT,
    Chart,
    add_legend,
    draw_charts,
    simplify_axes,
)

_SIZE = (7.2, 4.0)
# A loss that falls by more than this factor is drawn on a logarithmic axis.
_LOGARITHMIC_FROM = 20.0
_SHOWN_SHARE = 0.97
# The colours of a page, which a file that stands alone must bring with it.
_COLOURS = """<style>
svg { --ink: #1d2733; --soft: #5b6774; --rule: #d5dbe1; --completed: #2f7d4f; --failed: #b3382c; --slurmwrap: #1f5fa8;
  font-family: system-ui, sans-serif; background: #ffffff; fill: #1d2733 }
@media (prefers-color-scheme: dark) {
svg { --ink: #e6ebf0; --soft: #9aa7b4; --rule: #39434d; --completed: #63c08a; --failed: #f0837a; --slurmwrap: #7db3f2;
  background: #12171c; fill: #e6ebf0 } }
</style>"""


def draw_convergence(found: Sequence[tuple[JobRun, LossCurve]]) -> str | None:
    """Return an SVG file with the losses of one run or of all members of a sweep; None without matplotlib."""
    one = len(found) == 1
    title = f"Loss of job {found[0][0].address}" if one else f"Losses of {len(found)} runs"
    charts = draw_charts({"loss": Chart(title=title, plot=lambda axes: _plot(axes, found, title), size=_SIZE)})
    if charts is None:
        return None
    head, _, rest = charts["loss"].partition(">")
    return f"{head}>{_COLOURS}{rest}\n"


def _plot(axes: Any, found: Sequence[tuple[JobRun, LossCurve]], title: str) -> str:
    best = min(found, key=lambda pair: pair[1].lowest if pair[1].lowest is not None else float("inf"))
    most = _scale(axes, sorted(value for _, curve in found for value in _list_losses(curve)))
    for run, curve in found:
        _plot_run(axes, run, curve, most, alone=len(found) == 1, best=curve is best[1])
    axes.set_xlabel("hours since the start of the run")
    axes.set_ylabel("loss")
    axes.set_xlim(left=0)
    if len(found) == 1:
        if axes.get_legend_handles_labels()[0]:
            add_legend(axes, 3)
        return format_convergence(*found[0]) or title
    axes.plot([], [], color=OURS, linewidth=1.8, label=f"lowest: {best[0].address}")
    axes.plot([], [], "o", color=FAILED, markersize=5, label="within 0.1 % of its lowest loss")
    add_legend(axes, 2)
    return f"{title}; the lowest loss is that of {best[0].address}"


def _list_losses(curve: LossCurve) -> list[float]:
    both = (loss for point in curve.points for loss in (point.loss, point.validation_loss))
    return [loss for loss in both if loss is not None]


def _scale(axes: Any, values: Sequence[float]) -> float:
    """Scale the axis of the losses, ascending, and return the largest one to draw.

    Those of the first steps are cut off: they would flatten the rest. A drawing has no clipping (svg_charts).
    """
    simplify_axes(axes, "y")
    if not values:
        return 0.0
    low, high = values[0], values[int((len(values) - 1) * _SHOWN_SHARE)]
    if low > 0 and high / low > _LOGARITHMIC_FROM:
        axes.set_yscale("log")
        return values[-1]
    margin = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)
    return high + margin


def _plot_run(axes: Any, run: JobRun, curve: LossCurve, most: float, *, alone: bool, best: bool) -> None:
    training = [(p.at_s / 3600, min(most, p.loss)) for p in curve.points if p.loss is not None]
    validation = [(p.at_s / 3600, min(most, p.validation_loss)) for p in curve.points if p.validation_loss is not None]
    if training:
        colour, width, alpha = (OURS, 1.8, 1.0) if best else (SOFT, 0.9, 0.7)
        label = "training" if alone else None
        axes.plot(*zip(*training, strict=True), color=colour, linewidth=width, alpha=alpha, label=label)
    if validation and (alone or not training):
        label = "validation" if alone else None
        axes.plot(*zip(*validation, strict=True), "o-", color=COMPLETED, markersize=3, linewidth=0.8, label=label)
    if curve.time_share is None or curve.lowest is None:
        return
    at = curve.time_share * run.run_s / 3600
    if alone:
        axes.axvline(at, color=FAILED, linewidth=1.2, linestyle="--", label="within 0.1 % of the lowest")
        axes.axhline(curve.lowest, color=INK, linewidth=0.6, linestyle=":")
    else:
        axes.plot([at], [curve.lowest], "o", color=FAILED, markersize=4)
