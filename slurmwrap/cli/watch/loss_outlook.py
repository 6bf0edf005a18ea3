"""The losses of a running job and what is predicted from them, for `slurmwrap watch`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import CountedLosses
from slurmwrap.profiling.loss_fit import LossFit, fit_loss
from slurmwrap.profiling.progress_estimate import EndForecast
from slurmwrap.report.loss_text import (
    describe_bad_losses,
    fit_to_json_dict,
    format_losses,
    format_prediction,
    format_remaining,
)
from slurmwrap.report.text_format import span

# Progress of the output and of the counter are the same if they differ by less than this share, or so many steps.
_SAME_SHARE, _SAME_STEPS = 0.05, 20

Row = tuple[str, str, str]  # label, text, style


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutlook:
    """Losses of a running job. `fit`: None while there are too few, or while its end is not known."""

    losses: CountedLosses
    fit: LossFit | None = None
    unit: str = "step"  # of the fit: "step", or "at_s" (seconds) if the number of steps is not known


def find_loss_outlook(losses: CountedLosses, end: EndForecast | None, start: float) -> LossOutlook:
    """Return the outlook of a job that runs since `start` and is expected to end at `end`."""
    if end is None or not losses.points:
        return LossOutlook(losses=losses)
    shown, done = end.progress, losses.points[-1].step or 0.0
    if (
        shown is not None
        and shown.unit == "step"
        and shown.total
        and abs(shown.done - done) <= max(_SAME_STEPS, _SAME_SHARE * done)
    ):
        return LossOutlook(losses=losses, fit=fit_loss(losses.points, shown.total))
    return LossOutlook(losses=losses, fit=fit_loss(losses.points, end.at - start, "at_s"), unit="at_s")


def format_loss_rows(outlook: LossOutlook) -> Iterator[Row]:
    """Yield the present loss, the predicted one, and a warning about losses that are no numbers."""
    losses, fit = outlook.losses, outlook.fit
    if bad := describe_bad_losses(losses.bad, losses.bad_at_end, losses.taken):
        yield "warning", bad, "red" if losses.bad_at_end else "yellow"
    if not losses.points or losses.bad_at_end:
        return
    if fit is None:
        (now,) = format_losses(losses.points[-1].loss or 0.0)
        yield "loss", now, ""
        return
    (now,) = format_losses(fit.now, width=fit.high - fit.low)
    yield "loss", f"{now}; {format_prediction(fit)}", ""
    if remaining := _format_remaining(outlook, fit):
        yield "", remaining, "dim"


def _format_remaining(outlook: LossOutlook, fit: LossFit) -> str:
    if outlook.unit == "step":
        return format_remaining(fit)
    left = fit.find_steps_to(0.01)
    return "" if left is None else "within 1 % of it already" if not left else f"within 1 % of it in about {span(left)}"


def outlook_to_json_dict(outlook: LossOutlook) -> dict[str, Any]:
    """Return the JSON object for --json. `prediction`: null while nothing is predicted."""
    losses = outlook.losses
    return {
        "taken": losses.taken,
        "not_finite": losses.bad,
        "not_finite_at_end": losses.bad_at_end,
        "unit": outlook.unit if outlook.fit is not None else None,
        "prediction": None if outlook.fit is None else fit_to_json_dict(outlook.fit),
    }
