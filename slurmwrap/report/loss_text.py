"""Format the predicted final loss of a run, and which members of a sweep will hardly become its best. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from slurmwrap.profiling.loss_fit import Dominated, LossFit
from slurmwrap.report.text_format import count, flat

# Number of dominated members that are named.
_MOST_NAMED = 3
# The rest of a run that improves its loss by less than this share improves nothing that can be seen.
_NOTHING = 0.0005
# Distances from the final loss for which the remaining steps are shown.
_WITHIN = 0.01


def format_prediction(fit: LossFit) -> str:
    """Return a sentence such as "predicted final loss 1.83 (1.80 to 1.87); the rest of the run will improve it by …".

    The number of digits follows from the width of the band.
    """
    final, low, high = format_losses(fit.final, fit.low, fit.high, width=fit.high - fit.low)
    if fit.improvement >= _NOTHING:
        rest = f"the rest of the run will improve it by {format_percent(fit.improvement)}"
    else:
        rest = "the rest of the run will hardly improve it"
    return f"predicted final loss {final} ({low} to {high}); {rest}"


def format_remaining(fit: LossFit, unit: str = "steps") -> str:
    """Return when it will be within 1 % of the predicted final loss, such as "within 1 % of it in 1,200 steps".

    "" if that is at the very end.
    """
    left = fit.find_steps_to(_WITHIN)
    if left is None:
        return ""
    return "within 1 % of it already" if not left else f"within 1 % of it in about {left:,.0f} {unit}"


def format_percent(share: float) -> str:
    """Format a share with two significant digits: "0.31 %", "12 %"."""
    percent = 100 * share
    digits = max(0, 1 - floor(log10(abs(percent)))) if percent else 0
    return f"{percent:.{min(digits, 2)}f} %"


def format_losses(*losses: float, width: float = 0.0) -> tuple[str, ...]:
    """Format losses with as many digits as a band of this width needs; without a width with four significant ones."""
    if not width > 0 or max(map(abs, losses)) < 1e-4:
        return tuple(f"{loss:.4g}" for loss in losses)
    digits = min(6, max(0, 1 - floor(log10(width))))
    return tuple(f"{loss:.{digits}f}" for loss in losses)


def describe_bad_losses(bad: int, bad_at_end: int, taken: int) -> str:
    """Return what is wrong with the recorded losses; "" if all were finite."""
    if bad_at_end:
        return f"the loss is NaN or infinite: {count(bad_at_end, 'step')} in a row until now"
    return f"the loss was NaN or infinite in {bad:,} of {taken:,} recorded steps" if bad else ""


def describe_dominated(found: Sequence[Dominated]) -> str:
    """Return which members of a sweep will hardly become its best; "" for none."""
    if not found:
        return ""
    names = ", ".join(flat(one.name) for one in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    worst, best = format_losses(found[0].final, found[0].best_final)
    least = min(99, int(100 * min(one.probability for one in found)))
    return (
        f"{names}{more} will end above {flat(found[0].best)} with {least} % (predicted final loss {worst} against "
        f"{best}); scancel them if only the best counts"
    )


def describe_stops(stop_at: str, stop_when: str) -> str:
    """Return when a running job is stopped, by its --stop-at and --stop-when; "" if it has neither."""
    parts = [f"at {flat(stop_at)} after its next checkpoint"] if stop_at else []
    parts += ["when its loss stays NaN or infinite"] if stop_when else []
    return f"{', or '.join(parts)}, by the reconciler" if parts else ""


def fit_to_json_dict(fit: LossFit) -> dict[str, Any]:
    """Return the JSON object of a prediction. `steps_to_1_percent`: null if it comes at the very end."""
    return {
        "now": fit.now,
        "final": fit.final,
        "low": fit.low,
        "high": fit.high,
        "improvement": fit.improvement,
        "steps_to_1_percent": fit.find_steps_to(_WITHIN),
        "family": fit.family,
    }
