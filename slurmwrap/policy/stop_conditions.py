"""Decide when a running job has reached what its user named with --stop-at or --stop-when. Pure.

A plateau is reached when the lowest smoothed loss fell by less than the named gain in the last part of the steps, and a
line through the losses of that part falls by less, too, with 95 % certainty. The first test is the user's own
definition. Alone it stops far too early: the minimum of noisy losses does not fall for a while although the loss does.
Noise therefore keeps a run going, until there are more steps. Before a run has fallen at all, or with too few losses,
it is on no plateau. bench/loss_fit.py reports what the stopped runs would still have gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import CountedLosses, LossPoint
from slurmwrap.profiling.loss_fit import list_values, smooth
from slurmwrap.sbatch.stop_option import Plateau

# So many losses that are NaN or infinite, one after the other, are no single overflow of mixed precision.
DIVERGED_STEPS = 10
# Losses that the last part must hold, and over how many of all the losses are smoothed.
_LEAST_IN_PART, _SMOOTHED_SHARE = 20, 0.05
# Standard errors of a one-sided 95 % bound.
_SURE = 1.645
# A job whose program asks Slurm to requeue it when it gets the signal does so within this time, in seconds.
REQUEUED_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauReached:
    """A plateau. `gain`: by what share the loss fell in the last part of the steps. `loss`: the lowest smoothed one."""

    gain: float
    loss: float
    steps: float


def find_plateau(points: Sequence[LossPoint], plateau: Plateau, total: float | None = None) -> PlateauReached | None:
    """Return the plateau that a run has reached by its losses so far; None if it has not.

    `total`: steps of the whole run; the named share is one of them. None: not known, then of the steps so far.
    """
    steps, losses = list_values(points)
    if not steps:
        return None
    begin = steps[-1] - plateau.share * max(total or 0.0, steps[-1])
    if begin < plateau.share * (total or 0.0):
        return None
    part = [loss for step, loss in zip(steps, losses, strict=True) if step > begin]
    first = len(losses) - len(part)
    if len(part) < _LEAST_IN_PART or first < _LEAST_IN_PART:
        return None
    level = _smooth_over(losses, max(3, round(_SMOOTHED_SHARE * len(losses))))
    before, now = min(level[:first]), min(level[first:])
    if before >= level[0] - plateau.gain * abs(level[0]):
        return None
    gain = (before - now) / abs(before) if before else 0.0
    if gain >= plateau.gain or _bound_fall(part) >= plateau.gain * abs(before):
        return None
    return PlateauReached(gain=max(0.0, gain), loss=min(before, now), steps=steps[-1])


def _smooth_over(losses: Sequence[float], width: int) -> list[float]:
    """Return the mean of each loss and those before it, `width` together; outliers do not count."""
    clean = smooth(losses)
    return [sum(part) / len(part) for i in range(len(clean)) if (part := clean[max(0, i - width + 1) : i + 1])]


def _bound_fall(losses: Sequence[float]) -> float:
    """Return by how much the losses fall at most, with 95 % certainty, by the line through them."""
    clean = smooth(losses)
    n = len(clean)
    middle, mean = (n - 1) / 2, sum(clean) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (loss - mean) for i, loss in enumerate(clean)) / spread
    rest = sum((loss - mean - slope * (i - middle)) ** 2 for i, loss in enumerate(clean)) / (n - 2)
    return (n - 1) * (_SURE * sqrt(rest / spread) - slope)


def is_diverged(losses: CountedLosses) -> bool:
    """Return whether the newest losses are NaN or infinite."""
    return losses.bad_at_end >= DIVERGED_STEPS


def format_plateau_reason(option: str, plateau: Plateau, reached: PlateauReached, checkpoint: int) -> str:
    """Return why the job is stopped; `option`: the value of --stop-at."""
    return (
        f"stopped at your --stop-at={option}: its loss fell by {100 * reached.gain:.2g} % in the last "
        f"{100 * plateau.share:g} % of its {reached.steps:,.0f} steps, to {reached.loss:.4g}; its checkpoint of step "
        f"{checkpoint:,} was seen before"
    )


def format_diverged_reason(losses: CountedLosses) -> str:
    """Return why a job with --stop-when=diverged is stopped."""
    return f"stopped at your --stop-when=diverged: its last {losses.bad_at_end:,} recorded losses are NaN or infinite"


REQUEUED_REASON = "stopped at your --stop-at or --stop-when, and then requeued by its own program"
