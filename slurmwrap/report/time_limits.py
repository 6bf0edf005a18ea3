"""How long completed runs took, against their time limits and against what was predicted at submission. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, fsum
from statistics import median

from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import AccountLimitRow, LimitRow, PredictionRow, TimeLimits
from slurmwrap.report.report_inputs import PredictedRun, TimeAskedFor

# Completed runs of one job from which a limit that fits is derived, and what is needed beyond the slowest tenth: as the
# rule `limit` (policy/time_limit.py).
_LEAST_RUNS, _FACTOR = 5, 1.5
# A limit that fits is shown if it is less than this share of what was asked for.
_WORTH = 0.8
# Rows with fewer GPU-hours that were asked for and not used are left out.
_LEAST_GPU_HOURS = 1.0
_ROWS = 50


def compute_time_limits(asked: Sequence[TimeAskedFor]) -> TimeLimits:
    """Return how much of their time limits completed runs used: of all, by account, and by user and job name."""
    runs = [run for one in asked for run in one.runs]
    rows = [_make_row(one) for one in asked]
    rows = [row for row in rows if row.gpu_hours_unused >= _LEAST_GPU_HOURS]
    # Without slurmdbd jobs have no account.
    accounts = group_by((one for one in asked if one.account), lambda one: one.account)
    return TimeLimits(
        runs=len(runs),
        used_share=_find_used_share(runs),
        gpu_hours_unused=_sum_unused(runs),
        jobs=tuple(sorted(rows, key=lambda row: (-row.gpu_hours_unused, row.user, row.name, row.account))[:_ROWS]),
        accounts=tuple(
            sorted(
                (
                    _make_account_row(name, [run for one in group for run in one.runs])
                    for name, group in accounts.items()
                ),
                key=lambda row: (-row.gpu_hours_unused, row.account),
            )[:_ROWS]
        ),
    )


def _make_row(one: TimeAskedFor) -> LimitRow:
    times = sorted(float(run_s) for _, run_s, _ in one.runs)
    limit_s = median(limit_s for limit_s, _, _ in one.runs)
    return LimitRow(
        user=one.user,
        account=one.account,
        name=one.name,
        runs=len(times),
        limit_s=limit_s,
        median_run_s=median(times),
        longest_run_s=times[-1],
        used_share=_find_used_share(one.runs),
        fits_s=_find_fitting_limit(times, limit_s),
        gpu_hours_unused=_sum_unused(one.runs),
    )


def _make_account_row(account: str, runs: Sequence[tuple[int, int, int]]) -> AccountLimitRow:
    return AccountLimitRow(
        account=account,
        runs=len(runs),
        used_share=_find_used_share(runs),
        gpu_hours_unused=_sum_unused(runs),
    )


def _find_used_share(runs: Iterable[tuple[int, int, int]]) -> float | None:
    """Return the median share of the limit that a run used, 0 to 1; None without runs."""
    shares = [min(1.0, run_s / limit_s) for limit_s, run_s, _ in runs]
    return median(shares) if shares else None


def _sum_unused(runs: Iterable[tuple[int, int, int]]) -> float:
    return fsum(gpus * max(0, limit_s - run_s) for limit_s, run_s, gpus in runs) / 3600


def _find_fitting_limit(times: Sequence[float], limit_s: float) -> float | None:
    """Return the limit in seconds, whole minutes, that would have held all of these runs with a margin.

    None after fewer than _LEAST_RUNS runs, and if it would not be clearly less. `times`: ascending.
    """
    if len(times) < _LEAST_RUNS:
        return None
    p90, longest = times[ceil(0.9 * len(times)) - 1], times[-1]
    fits = ceil(max(_FACTOR * p90, longest) / 60) * 60.0
    return fits if fits < _WORTH * limit_s else None


def compare_predictions(predicted: Sequence[PredictedRun]) -> tuple[PredictionRow, ...]:
    """Return how good the predictions were, by what they rested on, most runs first."""
    rows = [
        PredictionRow(
            source=source,
            runs=len(group),
            within_factor_2=sum(one.p50_s / 2 <= one.run_s <= one.p50_s * 2 for one in group) / len(group),
            within_p90=sum(one.run_s <= one.p90_s for one in group) / len(group),
            median_ratio=median(one.run_s / max(1.0, one.p50_s) for one in group),
        )
        for source, group in group_by(predicted, lambda one: one.source).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.runs, row.source)))
