"""The end of a job that resumes from checkpoints: right after its last one, or at the next one. Pure.

What a job computes after its last checkpoint is lost when its time limit ends it. If no further checkpoint can be
complete before the limit, the job either ends now, so that its next run begins sooner, or its limit is extended to the
next checkpoint. Only jobs that certainly do not finish before their limit are ended.
"""

from __future__ import annotations

from collections.abc import Sequence
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
