"""Decide when a running job has reached what its user named with --stop-at or --stop-when. Pure.

A plateau is reached when the lowest smoothed loss fell by less than the named gain in the last part of the steps, and
the losses in that part show no fall that noise cannot explain. The first test is the user's own definition; the second
keeps a run whose loss still falls steadily below its noise. Before a run has fallen at all, or with too few losses, it
is on no plateau.
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
# A fall of so many standard errors is no noise.
_SURE = 2.0
# A job whose program asks Slurm to requeue it when it gets the signal does so within this time, in seconds.
REQUEUED_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauReached:
    """A plateau. `gain`: by what share the loss fell in the last part of the steps. `loss`: the lowest smoothed one."""

    gain: float
    loss: float
    steps: float


def find_plateau(points: Sequence[LossPoint], plateau: Plateau) -> PlateauReached | None:
    """Return the plateau that a run has reached by its losses so far; None if it has not."""
    steps, losses = list_values(points)
    if not steps:
        return None
    begin = steps[-1] - plateau.share * (steps[-1] - steps[0])
    part = [loss for step, loss in zip(steps, losses, strict=True) if step > begin]
    first = len(losses) - len(part)
    if len(part) < _LEAST_IN_PART or first < _LEAST_IN_PART:
        return None
    level = _smooth_over(losses, max(3, round(_SMOOTHED_SHARE * len(losses))))
    before, now = min(level[:first]), min(level[first:])
    if before >= level[0] - plateau.gain * abs(level[0]):
        return None
    gain = (before - now) / abs(before) if before else 0.0
    if gain >= plateau.gain or _falls(part, plateau.gain * abs(before)):
        return None
    return PlateauReached(gain=max(0.0, gain), loss=min(before, now), steps=steps[-1])


def _smooth_over(losses: Sequence[float], width: int) -> list[float]:
    """Return the mean of each loss and those before it, `width` together; outliers do not count."""
    clean = smooth(losses)
    return [sum(part) / len(part) for i in range(len(clean)) if (part := clean[max(0, i - width + 1) : i + 1])]


def _falls(losses: Sequence[float], limit: float) -> bool:
    """Return whether the line through the losses falls by `limit` or more, and by more than noise explains."""
    clean = smooth(losses)
    n = len(clean)
    middle, mean = (n - 1) / 2, sum(clean) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (loss - mean) for i, loss in enumerate(clean)) / spread
    rest = sum((loss - mean - slope * (i - middle)) ** 2 for i, loss in enumerate(clean)) / (n - 2)
    return -slope * (n - 1) >= limit and -slope > _SURE * sqrt(rest / spread)


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
