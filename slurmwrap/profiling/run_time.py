"""Predict run times from earlier runs. Pure.

The prediction is a distribution. It mixes the runs of several levels, from runs of the same job with the same length
options down to all runs of the partition with as many GPUs: a level with little weight leaves the rest of the
probability to the next, wider one. Newer runs weigh more. Runs that were cut off by their time limit or by a person are
right-censored (Kaplan and Meier, JASA 1958); failed runs are no evidence and must not be passed in.

Tsafrir, Etsion and Feitelson (IEEE TPDS 2007) take the mean of the user's last two runs: "recent data matters more than
similar jobs". bench/run_time.py compares both on the same trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import exp, log, sqrt

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.run_time import (
    FROM_ACCOUNT,
    FROM_OTHER_RUNS,
    FROM_PARTITION,
    FROM_PRERUN,
    FROM_RUNS,
    FROM_SCALED_RUNS,
    FROM_USER,
    QUANTILE_LEVELS,
    SHORTEST_S,
    RunTimeEstimate,
    RunTimeSample,
)

# Newest runs of one level that count, and after how many newer runs the weight of a run is halved.
KEPT_RUNS = 40
_HALF_LIFE = 16
# A level with so much weight leaves half of the probability to the next one. The less a level has to do with the job,
# the more runs it takes.
_PRIOR_WEIGHT = {FROM_RUNS: 0.25, FROM_SCALED_RUNS: 0.5, FROM_PRERUN: 0.5, FROM_OTHER_RUNS: 1.0}
_WIDE_PRIOR_WEIGHT = 1.0
# Standard deviation of log(run time) of one run around another of the same level, as far as nothing else is known.
_SPREAD = {FROM_RUNS: 0.15, FROM_SCALED_RUNS: 0.3, FROM_PRERUN: 0.35, FROM_OTHER_RUNS: 0.6}
_WIDE_SPREAD = 1.0
# Remaining probability that is not worth a further level.
_NEGLIGIBLE = 0.01
# A level whose longest run was cut off: how much longer that run would have taken.
_CUT_OFF_FACTOR = 1.5
# Weight, in runs, of an estimate from a pre-run.
_PRERUN_WEIGHT = 1.0

# Each run stands for three points: itself, and its spread to either side.
_KERNEL = ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeLevel:
    """Runs that say something about the job, oldest first. `source`: model.run_time.FROM_RUNS etc."""

    source: str
    samples: Sequence[RunTimeSample]


def estimate_run_time(levels: Iterable[RunTimeLevel]) -> RunTimeEstimate | None:
    """Return the expected run time by `levels`, most specific first; None if none of them has a complete run.

    Source and n are those of the first level with a complete run.
    """
    source, runs = "", 0
    points: list[tuple[float, float]] = []
    left = 1.0
    for level in levels:
        samples = level.samples[-KEPT_RUNS:]
        complete = sum(sample.complete for sample in samples)
        if not complete:
            continue
        if not source:
            source, runs = level.source, complete
        weights = [0.5 ** (age / _HALF_LIFE) for age in range(len(samples) - 1, -1, -1)]
        total = sum(weights) if level.source != FROM_PRERUN else _PRERUN_WEIGHT
        share = left * total / (total + _PRIOR_WEIGHT.get(level.source, _WIDE_PRIOR_WEIGHT))
        spread = _SPREAD.get(level.source, _WIDE_SPREAD) / sqrt(total + 1)
        points += _list_points(samples, weights, share, spread)
        left -= share
        if left < _NEGLIGIBLE:
            break
    if not source:
        return None
    return RunTimeEstimate(
        quantiles_s=_compute_quantiles(points), source=source, n=0 if source == FROM_PRERUN else runs
    )


def _list_points(
    samples: Sequence[RunTimeSample], weights: Sequence[float], share: float, spread: float
) -> Iterator[tuple[float, float]]:
    """Yield (log of run time, probability) of one level; the probabilities add up to `share`."""
    ordered = sorted(zip(samples, weights, strict=True), key=lambda one: (one[0].run_s, one[0].complete))
    known = _redistribute_cut_off(ordered)
    total = sum(weight for _, weight in known)
    for run_s, weight in known:
        middle = log(max(SHORTEST_S, run_s))
        for offset, part in _KERNEL:
            yield middle + offset * spread, share * part * weight / total


def _redistribute_cut_off(ordered: Sequence[tuple[RunTimeSample, float]]) -> list[tuple[float, float]]:
    """Return (run time, weight) in ascending order, with the weight of runs that were cut off moved to longer runs.

    This is the Kaplan-Meier estimate in Efron's form: each run that was cut off gives its weight to all longer ones in
    proportion to theirs. If none is longer, it stands for a somewhat longer run itself.
    """
    if all(sample.complete for sample, _ in ordered):
        return [(sample.run_s, weight) for sample, weight in ordered]
    known, factor = list[tuple[float, float]](), 1.0
    remaining = sum(weight for _, weight in ordered)
    for sample, weight in ordered:
        if sample.complete:
            known.append((sample.run_s, weight * factor))
        elif remaining - weight > 1e-12:
            factor *= remaining / (remaining - weight)
        else:
            known.append((sample.run_s * _CUT_OFF_FACTOR, weight * factor))
        remaining -= weight
    return known


def _compute_quantiles(points: list[tuple[float, float]]) -> tuple[float, ...]:
    """Return the quantiles of weighted points (log of run time, weight), interpolated between their mid-weights."""
    points.sort()
    total = sum(weight for _, weight in points)
    ends = list(accumulate(weight for _, weight in points))
    middles = [(end - weight / 2) / total for (_, weight), end in zip(points, ends, strict=True)]
    found = []
    for level in QUANTILE_LEVELS:
        at = bisect_right(middles, level)
        if at == 0 or at == len(middles):
            found.append(points[min(at, len(middles) - 1)][0])
            continue
        (lower, _), (upper, _) = points[at - 1], points[at]
        part = (level - middles[at - 1]) / (middles[at] - middles[at - 1])
        found.append(lower + part * (upper - lower))
    return tuple(max(SHORTEST_S, exp(one)) for one in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeQuery:
    """What is known about a job before it runs. Strings are "" and numbers None where they are unknown.

    `length`: its options that say how long it trains, name to value ("epochs" -> "90"), as job_key.derive_length()
    returns them.
    """

    user: str = ""
    key: str = ""  # profile key
    variant: str = ""
    length: tuple[tuple[str, str], ...] = ()
    gpus: int = 0
    account: str = ""
    partition: str = ""


@dataclass(slots=True, kw_only=True)
class RunTimeHistory:
    """Ended runs of many jobs, indexed for predictions. Add them in the order in which they ended."""

    _runs: dict[Hashable, deque[tuple[RunTimeQuery, RunTimeSample]]] = field(default_factory=dict)

    def add(self, job: RunTimeQuery, sample: RunTimeSample) -> None:
        """Add one run that completed or was cut off. Never pass a failed one."""
        for group in list_groups(job):
            self._runs.setdefault(group, deque(maxlen=KEPT_RUNS)).append((job, sample))

    def estimate(self, job: RunTimeQuery, prerun_s: float | None = None) -> RunTimeEstimate | None:
        """Return the expected run time of `job`; None if nothing is known.

        `prerun_s`: run time by the steps per second of its pre-run and its total number of steps.
        """
        return estimate_run_time(self._list_levels(job, prerun_s))

    def _list_levels(self, job: RunTimeQuery, prerun_s: float | None) -> Iterator[RunTimeLevel]:
        groups = list_groups(job)
        if job.key:
            same = self._runs.get(groups[-1], ())
            yield from split_by_length(job, same)
            if prerun_s is not None:
                yield RunTimeLevel(source=FROM_PRERUN, samples=(RunTimeSample(run_s=prerun_s),))
            others = [sample for other, sample in same if not _is_comparable(job, other)]
            yield RunTimeLevel(source=FROM_OTHER_RUNS, samples=others)
        elif prerun_s is not None:
            yield RunTimeLevel(source=FROM_PRERUN, samples=(RunTimeSample(run_s=prerun_s),))
        for source, group in zip((FROM_USER, FROM_ACCOUNT, FROM_PARTITION), groups, strict=False):
            yield RunTimeLevel(source=source, samples=[sample for _, sample in self._runs.get(group, ())])


def list_groups(job: RunTimeQuery) -> tuple[Hashable, ...]:
    """Return the groups to which a job belongs: user, account and partition with its GPUs; last its key, if any."""
    groups = (("user", job.user, job.gpus), ("account", job.account, job.gpus), ("partition", job.partition, job.gpus))
    return (*groups, ("key", job.user, job.key)) if job.key else groups


def split_by_length(
    job: RunTimeQuery, same_key: Iterable[tuple[RunTimeQuery, RunTimeSample]]
) -> tuple[RunTimeLevel, RunTimeLevel]:
    """Return the runs with the job's length options, and those that differ in one number of them, scaled to the job's.

    Twice as many epochs take twice as long. A program's start and end do not scale, so a scaled run is worth less.
    """
    equal, scaled = list[RunTimeSample](), list[RunTimeSample]()
    for other, sample in same_key:
        factor = find_length_factor(job, other)
        if factor == 1:
            equal.append(sample)
        elif factor is not None:
            scaled.append(RunTimeSample(run_s=sample.run_s * factor, complete=sample.complete))
    return RunTimeLevel(source=FROM_RUNS, samples=equal), RunTimeLevel(source=FROM_SCALED_RUNS, samples=scaled)


def _is_comparable(job: RunTimeQuery, other: RunTimeQuery) -> bool:
    return find_length_factor(job, other) is not None


def find_length_factor(job: RunTimeQuery, other: RunTimeQuery) -> float | None:
    """Return how many times as long `job` takes as `other`, by their length options; None if they do not compare.

    They compare if variant and options are the same, or if exactly one option differs and both values are numbers.
    """
    if job.variant != other.variant:
        return None
    if job.length == other.length:
        return 1.0
    if [name for name, _ in job.length] != [name for name, _ in other.length]:
        return None
    differing = [
        (mine, theirs) for (_, mine), (_, theirs) in zip(job.length, other.length, strict=True) if mine != theirs
    ]
    if len(differing) != 1:
        return None
    try:
        mine, theirs = float(differing[0][0]), float(differing[0][1])
    except ValueError:
        return None
    return mine / theirs if mine > 0 and theirs > 0 and mine / theirs < float("inf") else None
