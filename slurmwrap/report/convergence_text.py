"""Say when a run's loss stopped to improve, and draw it as a line of block characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve, LossPoint
from slurmwrap.report.text_format import hours, sparkline

_BARS = 20
# Of the first values the largest ones are left out, because the bars of all others would be equally low.
_SHOWN_SHARE = 0.9


def format_convergence(run: JobRun, curve: LossCurve) -> str:
    """Return "within 0.1 % of its lowest loss after 38 % of its time; the rest cost 41 GPU-hours"; "" if unknown."""
    if curve.time_share is None:
        return ""
    text = f"within 0.1 % of its lowest loss after {round(100 * curve.time_share)} % of its time"
    after = run.gpu_hours * (1 - curve.time_share)
    return f"{text}; the rest cost {hours(after)} GPU-hours" if after >= 0.05 else text


def draw_loss(curve: LossCurve, unicode: bool = True, bars: int = _BARS) -> str:
    """Return the loss over time as bars, the lowest value as the lowest bar; "" for too few points."""
    return draw_losses(curve.points, unicode, bars)


def draw_losses(points: Sequence[LossPoint], unicode: bool = True, bars: int = _BARS) -> str:
    """Return the losses of training, or else of validation, as bars; "" for too few points."""
    losses = [point.loss for point in points if point.loss is not None]
    losses = losses or [point.validation_loss for point in points if point.validation_loss is not None]
    bars = min(bars, len(losses))
    if bars < 2:
        return ""
    parts = [sorted(losses[len(losses) * i // bars : len(losses) * (i + 1) // bars]) for i in range(bars)]
    medians = [part[len(part) // 2] for part in parts]
    low, high = min(medians), sorted(medians)[int((bars - 1) * _SHOWN_SHARE)]
    return sparkline(tuple(min(value, high) - low for value in medians), unicode, bars, most=(high - low) or 1.0)


def format_last_loss(losses: Sequence[float], unicode: bool = True) -> str:
    """Return the last of the losses that the end of an output shows, and the finite ones as bars."""
    finite = [loss for loss in losses if isfinite(loss)]
    last = f"{losses[-1]:.5g}"
    if not isfinite(losses[-1]):
        last += f" (before: {finite[-1]:.5g})" if finite else " (no finite one)"
    bars = draw_losses(tuple(LossPoint(at_s=float(at), loss=loss) for at, loss in enumerate(finite)), unicode)
    return f"{last}  {bars}".rstrip()
