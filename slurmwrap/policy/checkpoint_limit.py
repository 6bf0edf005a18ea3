"""Time limits of a job that resumes from checkpoints: it ends after its last one or at the next one; --time-min. Pure.

What a job computes after its last checkpoint is lost when its time limit ends it. If no further checkpoint can be
complete before the limit, the job either ends now, so that its next run begins sooner, or its limit is extended to the
next checkpoint. Only jobs that certainly do not finish before their limit are ended.

A waiting job that resumes need not wait for a gap as long as its limit: with --time-min backfill starts it with a
shorter limit (sbatch(1)). It must be long enough to save once. Slurm 22.05.8 takes the --time-min itself as the limit,
also where the gap is longer (measured), so it is never shorter than half an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil

from slurmwrap.fast_dataclasses import dataclass

# End of the reason of every action of this module, and the two reasons.
AT_CHECKPOINT = "so that no work after its last checkpoint is lost"
EXTENDED = f"extended to its next checkpoint, {AT_CHECKPOINT}"
ENDED = f"ended after its last checkpoint, {AT_CHECKPOINT}"
# The next checkpoint is expected after the longest of so many last intervals, times the factor, plus some time: the
# reconciler sees a checkpoint only at its next look at the output. An extension lasts somewhat longer, since a job that
# ends just before the checkpoint loses the extension too. (bench/time_limits.py compares the factors.)
_INTERVALS, _MARGIN, _EXTENSION_MARGIN, _SEEN_S = 3, 1.1, 1.3, 60.0
# The time that is left by the job's own progress may be wrong by these factors.
_EARLY_FINISH, _LATE_FINISH = 0.8, 1.25
# A job whose limit comes so soon is not ended before it.
_SOON_S = 180.0
# Of --time-min: the factor on the longest time in which earlier runs saved once, a time for a slower start, the least
# value in seconds, and the share of the limit from which on it is not worth it.
_SAVE_MARGIN, _SAVE_SLACK_S, _LEAST_TIME_MIN_S, _TIME_MIN_WORTH = 1.3, 300.0, 1800.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRun:
    """A running job that resumes. Times in Unix seconds or seconds."""

    start: float
    limit_s: float
    saves: Sequence[float]  # when a further checkpoint was first seen, ascending
    remaining_s: float | None  # until it finishes, by its own progress; None: unknown
    longest_s: float  # up to this its limit may be extended; its present limit or less: not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A time limit to set, in seconds, whole minutes. `ends`: the job ends with it as soon as possible."""

    limit_s: int
    ends: bool
    reason: str


def choose_checkpoint_limit(run: CheckpointRun, now: float) -> LimitChange | None:
    """Return the limit that the job should get now; None if it should go on as it is."""
    following, end = expect_next_save(run.saves), run.start + run.limit_s
    if following is None or run.remaining_s is None or following <= end:
        return None
    if now + run.remaining_s * _EARLY_FINISH <= end:
        return None
    late = run.saves[-1] + (following - run.saves[-1]) * _EXTENSION_MARGIN / _MARGIN
    needed = ceil((min(late, now + run.remaining_s * _LATE_FINISH) - run.start) / 60) * 60
    if needed <= run.longest_s:
        return LimitChange(limit_s=needed, ends=False, reason=EXTENDED)
    if end - now <= _SOON_S:
        return None
    passed = (int(now - run.start) // 60 + 1) * 60
    return LimitChange(limit_s=passed, ends=True, reason=ENDED)


def expect_next_save(saves: Sequence[float]) -> float | None:
    """Return when the next checkpoint should be complete and seen, Unix seconds; None if fewer than two were seen."""
    intervals = [after - before for before, after in pairwise(saves)][-_INTERVALS:]
    return saves[-1] + max(intervals) * _MARGIN + _SEEN_S if intervals else None


def choose_time_min(saved_after_s: Iterable[float], limit_s: float) -> int | None:
    """Return the --time-min in seconds, whole minutes, in which the job saves once; None if the limit alone is better.

    `saved_after_s`: of each known run that resumed, the seconds from its start until a further checkpoint was seen.
    """
    longest = max(saved_after_s, default=None)
    if longest is None:
        return None
    needed = max(longest * _SAVE_MARGIN + _SAVE_SLACK_S, _LEAST_TIME_MIN_S)
    return ceil(needed / 60) * 60 if needed < _TIME_MIN_WORTH * limit_s else None
