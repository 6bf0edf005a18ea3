"""Simulate many periods of one world with one number of cases: how often each interval holds, and its width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from interval_coverage import before
from interval_coverage.worlds import Dice, World, gpus
from slurmwrap.report import savings
from slurmwrap.report.confidence_interval import (
    Interval,
    combine_intervals,
    compute_interval_of_mean,
    compute_interval_of_median,
    scale_interval,
)
from slurmwrap.report.report_inputs import Caught, Drawn, Figures
from slurmwrap.report.savings import compute_holdout

WAYS = ("Student's t", "BCa", "as log-normal", "before", "now")
Trial = tuple[float, Mapping[str, Interval | None]]  # the truth, and the interval of each way


@dataclass(frozen=True)
class Found:
    """The result of one method. Widths are multiples of the true value."""

    held: float
    width: float
    mean_width: float


def measured(trial: Callable[[Dice], Trial | None], trials: int, seed: int) -> dict[str, Found]:
    """Run the trials; those with None (too few cases) are not counted."""
    dice = np.random.default_rng(seed)
    hits: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for true, intervals in filter(None, (trial(dice) for _ in range(trials))):
        for way, bounds in intervals.items():
            if bounds is not None:
                hits.setdefault(way, []).append(bounds[0] <= true <= bounds[1])
                widths.setdefault(way, []).append((bounds[1] - bounds[0]) / abs(true))
    return {way: Found(fmean(hits[way]), median(widths[way]), fmean(widths[way])) for way in hits}


def of_sum(world: World, n: int) -> Callable[[Dice], Trial]:
    def trial(dice: Dice) -> Trial:
        values, true = world.draw(dice, n)
        return true, {
            "Student's t": before.student(values, dice),
            "BCa": before.bca(values, dice),
            "as log-normal": before.lognormal(values, dice),
            "before": before.studentized(values, dice),
            "now": compute_interval_of_mean(values.tolist()),
        }

    return trial


# ---- prerun-1: (share of the failures, median in seconds) of each category; run times are log-normal

CATEGORIES = {"a": (0.6, 60.0), "b": (0.2, 120.0), "c": (0.1, 1100.0), "d": (0.06, 10_000.0), "e": (0.04, 80_000.0)}
SIGMA, FAILURES_PER_STOP = 1.75, 10
_MIXED = np.random.default_rng(0)
_ALL_MEDIAN = float(  # of all failures together
    np.median(np.concatenate([m * _MIXED.lognormal(0, SIGMA, round(s * 1e6)) for s, m in CATEGORIES.values()]))
)


def of_prerun(n: int) -> Callable[[Dice], Trial]:
    """Draw `n` stopped jobs; the true value is computed with the true medians."""

    def trial(dice: Dice) -> Trial:
        shares = [share for share, _ in CATEGORIES.values()]
        names = dice.choice(list(CATEGORIES), n, p=shares)
        stopped = [Caught(str(c), 1, int(g), 1, 0.0, "") for c, g in zip(names, gpus(dice, n), strict=True)]
        lasted = {
            name: sorted((middle * dice.lognormal(0, SIGMA, round(share * n * FAILURES_PER_STOP))).tolist())
            for name, (share, middle) in CATEGORIES.items()
        }
        medians = {c: CATEGORIES[c][1] if len(lasted[c]) >= savings.NEEDED else _ALL_MEDIAN for c in CATEGORIES}
        true = sum(one.gpus * medians[one.category] for one in stopped) / 3600
        now = savings.estimate_prerun_saving(stopped, lasted, 0.0)
        assert now.low is not None and now.high is not None and now.gpu_hours is not None
        return true, {"before": _before(stopped, lasted, now.gpu_hours, dice), "now": (now.low, now.high)}

    return trial


def _before(stopped: list[Caught], lasted: Mapping[str, list[float]], value: float, dice: Dice) -> Interval:
    """The former method: its interval also includes the uncertainty about which jobs there were."""
    everything = sorted(second for seconds in lasted.values() for second in seconds)
    pools = {name: seconds if len(seconds) >= savings.NEEDED else everything for name, seconds in lasted.items()}
    asked: dict[int, tuple[list[float], int]] = {}
    for one in stopped:
        pool = pools[one.category]
        asked[id(pool)] = pool, asked.get(id(pool), (pool, 0))[1] + one.gpus
    parts = [
        (g * float(np.median(pool)) / 3600, scale_interval(compute_interval_of_median(pool), g / 3600))
        for pool, g in asked.values()
    ]
    wasted = np.array([one.gpus * float(np.median(pools[one.category])) / 3600 for one in stopped])
    return combine_intervals(value, [(value, scale_interval(before.studentized(wasted, dice), len(wasted))), *parts])


# ---- holdout-1

FAIL_HELD, FAIL_OTHERS, SHARE = 0.3, 0.2, 0.05


def of_holdout(failing: int, sigma: float) -> Callable[[Dice], Trial | None]:
    """Return a trial with arms of 5 and 95 %: about `failing` groups of the hold-out arm fail. A group has two jobs."""
    held = round(failing / FAIL_HELD)

    def trial(dice: Dice) -> Trial | None:
        arms = (
            _arm(dice, held, FAIL_HELD, sigma, held_out=True),
            _arm(dice, round(held * (1 - SHARE) / SHARE), FAIL_OTHERS, sigma, held_out=False),
        )
        found = compute_holdout(Figures(since=0, until=1, drawn=[one for arm in arms for one in arm]))
        if found.low is None or found.high is None or found.difference is None:
            return None
        (out, its), (other, theirs) = (_per_job(arm, dice) for arm in arms)
        old = combine_intervals(out - other, [(out, its), (-other, scale_interval(theirs, -1.0))])
        mean = float(_MEAN_GPUS) * float(np.exp(sigma**2 / 2))
        return (FAIL_HELD - FAIL_OTHERS) * mean, {"before": old, "now": (found.low, found.high)}

    return trial


_MEAN_GPUS = gpus(np.random.default_rng(1), 2_000_000).mean()


def _arm(dice: Dice, lots: int, fails: float, sigma: float, *, held_out: bool) -> list[Drawn]:
    """Draw `lots` groups of jobs; the jobs of a group have the same GPUs, and all fail after the same time or none."""
    jobs, asked = dice.geometric(0.5, lots), gpus(dice, lots)
    waste = np.where(dice.random(lots) < fails, asked * dice.lognormal(0, sigma, lots), 0.0) * 3600
    return [
        Drawn(f"{held_out} {holdout_group}", held_out, cost, 0.0)
        for holdout_group, (count, cost) in enumerate(zip(jobs.tolist(), waste.tolist(), strict=True))
        for _ in range(count)
    ]


def _per_job(arm: list[Drawn], dice: Dice) -> tuple[float, Interval]:
    """The former method: the ratio is linearized, and the interval is that of the mean of the result."""
    lots: dict[str, tuple[int, float]] = {}
    for one in arm:
        jobs, cost = lots.get(one.holdout_group, (0, 0.0))
        lots[one.holdout_group] = jobs + 1, cost + one.waste_gpu_s / 3600
    counts, costs = (np.array(column, dtype=float) for column in zip(*lots.values(), strict=True))
    ratio = float(costs.sum() / counts.sum())
    return ratio, before.studentized(ratio + (costs - ratio * counts) / counts.mean(), dice)
