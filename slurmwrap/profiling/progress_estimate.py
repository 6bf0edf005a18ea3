"""Forecast the end of a running job: by its own progress, else by earlier runs that lasted longer than it has. Pure."""

from __future__ import annotations

from math import exp

from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.run_time import FROM_PROGRESS, FROM_RUNS, SHORTEST_S, RunTimeEstimate

# Quantiles of the standard normal distribution at model.run_time.QUANTILE_LEVELS.
_NORMAL_QUANTILES = (-2.326, -1.645, -1.282, -0.842, -0.524, -0.253, 0.0, 0.253, 0.524, 0.842, 1.282, 1.645, 2.326)
# Standard deviation of log(remaining time) by progress: at first the start of the program and the first validation
# count much. The second value holds once so much of the run is done.
_EARLY_SPREAD, _LATE_SPREAD, _LATE_SHARE = 0.35, 0.15, 0.1
# The step counter counts what the output counts if both differ by less than this share, or so many steps.
_SAME_STEPS_SHARE, _SAME_STEPS = 0.05, 20
# So many earlier runs of the same job, all of which took at least twice as long, show that a progress bar is only that
# of a part of the run.
_RUNS_AGAINST_BAR = 3
# A forecast whose end has passed by this share of the run is not shown any more.
_OVERDUE_SHARE, _OVERDUE_S = 0.05, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """A running job's progress. `at`: Unix seconds at which its output showed `shown`."""

    at: float
    shown: ShownProgress
    seen_per_s: float | None = None  # steps or epochs per second between several looks at the output; None: one look
    count: int | None = None  # of the step counter; None: it does not count
    count_at: float = 0.0
    count_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndForecast:
    """When a running job is expected to end. Times in Unix seconds."""

    at: float  # median
    by: float  # nine of ten such runs end by then
    source: str  # model.run_time.FROM_PROGRESS etc.
    n: int = 0  # number of earlier runs; 0 if it does not rest on runs
    progress: ShownProgress | None = None  # None: it does not rest on progress
    # The job's time limit comes before `at`: completed share of the run by then, 0 to 1. None: the limit comes later.
    share_at_limit: float | None = None
    needs_s: float = 0.0  # run time of a complete run


def forecast_end(
    *,
    now: float,
    start: float,
    limit_s: float | None,
    progress: RunProgress | None = None,
    history: RunTimeEstimate | None = None,
) -> EndForecast | None:
    """Return when a job that runs since `start` ends if no limit stops it; None if nothing is known.

    `limit_s`: its time limit; None: without one.
    """
    elapsed_s = max(SHORTEST_S, now - start)
    estimate = _estimate_by_progress(elapsed_s, now, progress) if progress is not None else None
    if estimate is None or _is_of_a_part(estimate, history):
        estimate, progress = history, None
    if estimate is None:
        return None
    left_s = estimate.expect_remaining_s(elapsed_s)
    if left_s is None:
        return None
    total_s = elapsed_s + left_s
    gone = estimate.share_within(elapsed_s)
    late_s = max(total_s, estimate.quantile_s(gone + (1 - gone) * 0.9))
    shown = progress.shown if progress is not None else None
    return EndForecast(
        at=start + total_s,
        by=start + late_s,
        source=estimate.source,
        n=estimate.n,
        progress=shown,
        share_at_limit=None if not limit_s or total_s <= limit_s else _find_share_at(limit_s, elapsed_s, left_s, shown),
        needs_s=total_s,
    )


def estimate_from_progress(elapsed_s: float, left_s: float, share: float) -> RunTimeEstimate:
    """Return the run time of a job that has run for `elapsed_s` and needs `left_s` more. `share`: what is done."""
    spread = _LATE_SPREAD if share >= _LATE_SHARE else _EARLY_SPREAD
    times = tuple(max(SHORTEST_S, elapsed_s + left_s * exp(spread * z)) for z in _NORMAL_QUANTILES)
    return RunTimeEstimate(quantiles_s=times, source=FROM_PROGRESS, n=0)


def _estimate_by_progress(elapsed_s: float, now: float, progress: RunProgress) -> RunTimeEstimate | None:
    left_s, at = _find_left(progress)
    if left_s is None:
        return None
    left_s -= now - at
    if left_s < -max(_OVERDUE_S, _OVERDUE_SHARE * elapsed_s):
        return None
    left_s = max(SHORTEST_S, left_s)
    share = progress.shown.share
    return estimate_from_progress(elapsed_s, left_s, elapsed_s / (elapsed_s + left_s) if share is None else share)


def _find_left(progress: RunProgress) -> tuple[float | None, float]:
    """Return (seconds left or None, Unix seconds at which they were left).

    The counter's rate comes first: the mean since the start of the run also contains its preparations.
    """
    shown, count = progress.shown, progress.count
    if count is not None and progress.count_per_s and shown.unit == "step" and count <= shown.total:
        same = abs(count - shown.done) <= max(_SAME_STEPS, _SAME_STEPS_SHARE * count)
        if same:
            return (shown.total - count) / progress.count_per_s, progress.count_at
    if shown.left_s is None and shown.total and progress.seen_per_s:
        return (shown.total - shown.done) / progress.seen_per_s, progress.at
    return shown.left_s, progress.at


def _is_of_a_part(estimate: RunTimeEstimate, history: RunTimeEstimate | None) -> bool:
    """Return True if the progress is probably that of one epoch of several: equal runs always took far longer."""
    if history is None or history.source != FROM_RUNS or history.n < _RUNS_AGAINST_BAR:
        return False
    return estimate.p50_s < history.p10_s / 2


def _find_share_at(limit_s: float, elapsed_s: float, left_s: float, shown: ShownProgress | None) -> float:
    share = shown.share if shown is not None else None
    if share is None:
        share = elapsed_s / (elapsed_s + left_s)
    return share + (1 - share) * max(0.0, limit_s - elapsed_s) / left_s
