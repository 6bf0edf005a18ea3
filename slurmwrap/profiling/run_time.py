"""Predict run times from earlier runs. Pure.

The prediction is a distribution. It mixes the runs of several levels, from runs of the same job with the same length
options down to all runs of the partition with as many GPUs: a level with little weight leaves the rest of the
probability to the next, wider one. Runs that were submitted shortly before or after the job weigh more. Runs that were
cut off by their time limit or by a person are right-censored (Kaplan and Meier, JASA 1958); failed runs are no evidence
and must not be passed in.

Tsafrir, Etsion and Feitelson (IEEE TPDS 2007) take the mean of the user's last two runs: "recent data matters more than
similar jobs". bench/run_time.py compares both on the same trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import exp, inf, log, sqrt

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.evidence import RunKey
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
from slurmwrap.model.run_time import RunTimeQuery as RunTimeQuery
from slurmwrap.profiling.job_key import is_count_name, limit_length

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.job_run import JobRun
    from slurmwrap.model.resource_profile import Measurement
    from slurmwrap.model.submission import Submission

# Runs of one level that count. The weight of a run is halved for every _HALF_LIFE runs that were submitted between it
# and the job.
KEPT_RUNS = 40
_HALF_LIFE = 8
# A level with so much weight leaves half of the probability to the next one. The less a level has to do with the job,
# the more runs it takes.
_PRIOR_WEIGHT = {FROM_RUNS: 0.5, FROM_SCALED_RUNS: 0.5, FROM_PRERUN: 0.5, FROM_OTHER_RUNS: 1.0}
_WIDE_PRIOR_WEIGHT = 1.0
# Standard deviation of log(run time) within a level. It counts as much as one run next to what the runs show.
_SPREAD = {FROM_RUNS: 0.15, FROM_SCALED_RUNS: 0.3, FROM_PRERUN: 0.35, FROM_OTHER_RUNS: 0.6}
_WIDE_SPREAD = 1.0
# Each run is spread by so many standard deviations over the square root of the number of runs, since few runs do not
# show the whole spread. With it 87 to 90 % of the runs end within p90 (bench/run_time.py --keys).
_SPREAD_FACTOR, _MOST_SPREAD = 3.0, 1.5
# Remaining probability that is not worth a further level.
_NEGLIGIBLE = 0.03
# A level whose longest run was cut off: how much longer that run would have taken.
_CUT_OFF_FACTOR = 1.5
# Weight, in runs, of an estimate from a pre-run.
_PRERUN_WEIGHT = 1.0

# Each run stands for three points: itself, and its spread to either side.
_KERNEL = ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeLevel:
    """Runs that say something about the job, in the order of their ends. `source`: model.run_time.FROM_RUNS etc."""

    source: str
    samples: Sequence[RunTimeSample]


def estimate_run_time(levels: Iterable[RunTimeLevel], submit_s: float = inf) -> RunTimeEstimate | None:
    """Return the expected run time by `levels`, most specific first; None if none of them has a complete run.

    Source and n are those of the first level with a complete run. `submit_s`: when the job was submitted, Unix
    seconds; inf: it is submitted after all of them.
    """
    source, runs = "", 0
    points: list[tuple[float, float]] = []
    left = 1.0
    for level in levels:
        samples, weights = _weigh_samples(level.samples, submit_s)
        complete = sum(sample.complete for sample in samples)
        if not complete:
            continue
        if not source:
            source, runs = level.source, complete
        total = sum(weights) if level.source != FROM_PRERUN else _PRERUN_WEIGHT
        share = left * total / (total + _PRIOR_WEIGHT.get(level.source, _WIDE_PRIOR_WEIGHT))
        spread = _compute_spread(level.source, samples, weights)
        points += _list_points(samples, weights, share, spread)
        left -= share
        if left < _NEGLIGIBLE:
            break
    if not source:
        return None
    return RunTimeEstimate(
        quantiles_s=_compute_quantiles(points), source=source, n=0 if source == FROM_PRERUN else runs
    )


def _weigh_samples(
    samples: Sequence[RunTimeSample], submit_s: float
) -> tuple[Sequence[RunTimeSample], Sequence[float]]:
    """Return the KEPT_RUNS runs that were submitted nearest to the job, in order of submission, and their weights.

    The number of runs that were submitted in between counts, not the time: what a user submits in one go is alike.
    """
    ordered = sorted(samples, key=lambda sample: sample.submit_s)
    place = bisect_right([sample.submit_s for sample in ordered], submit_s)
    first = max(0, min(place - KEPT_RUNS // 2, len(ordered) - KEPT_RUNS))
    kept, place = ordered[first : first + KEPT_RUNS], place - first
    between = (place - 1 - at if at < place else at - place for at in range(len(kept)))
    return kept, [0.5 ** (one / _HALF_LIFE) for one in between]


def _compute_spread(source: str, samples: Sequence[RunTimeSample], weights: Sequence[float]) -> float:
    """Return how far log(run time) is spread to either side of each run: the less, the more runs are known."""
    usual, total = _SPREAD.get(source, _WIDE_SPREAD), sum(weights)
    if source == FROM_PRERUN:
        return usual
    # A run that was cut off before the longest complete one ended says nothing about the spread.
    longest = max(sample.run_s for sample in samples if sample.complete)
    logs = [
        (log(max(SHORTEST_S, sample.run_s)), weight)
        for sample, weight in zip(samples, weights, strict=True)
        if sample.complete or sample.run_s > longest
    ]
    mean = sum(weight * one for one, weight in logs) / sum(weight for _, weight in logs)
    squares = sum(weight * (one - mean) ** 2 for one, weight in logs)
    return min(_MOST_SPREAD, _SPREAD_FACTOR * sqrt(usual**2 + squares) / (1 + total))


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
class RunTimeRecord:
    """One ended run as it is stored (table `run_times`)."""

    attempt: RunKey
    uid: int
    end_time: int  # Unix seconds
    job: RunTimeQuery
    sample: RunTimeSample


# (job, run) of one group, oldest first.
GroupRuns = Sequence[tuple[RunTimeQuery, RunTimeSample]]
# ("user", name, GPUs), ("account", name, GPUs), ("partition", name, GPUs), or ("key", user, profile key).
RunTimeGroup = tuple[str, str, int | str]
# Groups that are kept in memory, each with up to KEPT_RUNS runs, and jobs whose estimates are kept.
_MOST_GROUPS = 16_384


@dataclass(slots=True, kw_only=True)
class _KnownEstimates:
    """Estimates of one job by its place among the runs of the groups that they were made from."""

    # Group -> number of runs that were added to it before.
    added: dict[RunTimeGroup, int] = field(default_factory=dict)
    by_place: dict[tuple[int, ...], RunTimeEstimate | None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RunTimeHistory:
    """Ended runs of many jobs, indexed for predictions. Add them in the order in which they ended.

    `read`: returns the stored runs of a group; each group is read when it is first needed. Without it, the history has
    only what is added.
    """

    read: Callable[[RunTimeGroup], GroupRuns] | None = None
    _runs: dict[RunTimeGroup, deque[tuple[RunTimeQuery, RunTimeSample]]] = field(default_factory=dict)
    # Number of runs added to each group, and estimates with the counts of the groups that they were made from.
    _added: dict[RunTimeGroup, int] = field(default_factory=dict)
    _known: dict[tuple[RunTimeQuery, float | None], _KnownEstimates] = field(default_factory=dict)
    # Submit times of the runs of each group, ascending, with the number of runs added when they were sorted.
    _submitted: dict[RunTimeGroup, tuple[int, list[float]]] = field(default_factory=dict)

    def add(self, job: RunTimeQuery, sample: RunTimeSample) -> None:
        """Add one run that completed or was cut off. Never pass a failed one. With `read`, store it before."""
        for group in list_groups(job):
            if self.read is None:
                self._runs.setdefault(group, deque(maxlen=KEPT_RUNS)).append((job, sample))
            elif group in self._runs:
                self._runs[group].append((job, sample))
            if group in self._added:
                self._added[group] += 1

    def estimate(
        self, job: RunTimeQuery, prerun_s: float | None = None, submit_s: float = inf
    ) -> RunTimeEstimate | None:
        """Return the expected run time of `job`; None if nothing is known.

        `prerun_s`: run time by the steps per second of its pre-run and its total number of steps. `submit_s`: when it
        was submitted, Unix seconds; inf: now. The result is kept until a run is added to a group that it was made from.
        """
        if len(self._known) >= _MOST_GROUPS or (self.read is not None and len(self._runs) >= _MOST_GROUPS):
            for kept in (self._known, self._added, self._submitted):
                kept.clear()
            # What is stored can be read again.
            if self.read is not None:
                self._runs.clear()
        known = self._known.get((job, prerun_s))
        if known is None or any(self._added.get(group) != added for group, added in known.added.items()):
            known = self._known[(job, prerun_s)] = _KnownEstimates()
        place = self._find_place(known.added, submit_s)
        if known.added and place in known.by_place:
            return known.by_place[place]
        used = list[RunTimeGroup]()
        found = estimate_run_time(self._list_levels(job, prerun_s, used), submit_s)
        if not known.added.keys() >= set(used):
            known.added.update((group, self._added.setdefault(group, 0)) for group in used)
            known.by_place.clear()
            place = self._find_place(known.added, submit_s)
        known.by_place[place] = found
        return found

    def _find_place(self, groups: Iterable[RunTimeGroup], submit_s: float) -> tuple[int, ...]:
        """Return how many runs of each group were submitted before the job; () for one that is submitted now."""
        if submit_s == inf:
            return ()
        return tuple(bisect_right(self._list_submit_times(group), submit_s) for group in groups)

    def _list_submit_times(self, group: RunTimeGroup) -> list[float]:
        added, found = self._submitted.get(group, (-1, []))
        if added != self._added[group]:
            found = sorted(sample.submit_s for _, sample in self.runs(group))
            self._submitted[group] = self._added[group], found
        return found

    def runs(self, group: RunTimeGroup) -> GroupRuns:
        """Return the newest runs of a group, oldest first."""
        found = self._runs.get(group)
        if found is None and self.read is not None:
            found = self._runs[group] = deque(self.read(group), maxlen=KEPT_RUNS)
        return found or ()

    def _list_levels(
        self, job: RunTimeQuery, prerun_s: float | None, used: list[RunTimeGroup]
    ) -> Iterator[RunTimeLevel]:
        """Yield the levels, most specific first; append to `used` the groups that were read."""

        def runs(group: RunTimeGroup) -> GroupRuns:
            used.append(group)
            return self.runs(group)

        groups = list_groups(job)
        same = runs(groups[-1]) if job.key else ()
        yield from split_by_length(job, same)
        if prerun_s is not None:
            yield RunTimeLevel(source=FROM_PRERUN, samples=(RunTimeSample(run_s=prerun_s),))
        others = [sample for other, sample in same if not _is_comparable(job, other)]
        yield RunTimeLevel(source=FROM_OTHER_RUNS, samples=others)
        for source, group in zip((FROM_USER, FROM_ACCOUNT, FROM_PARTITION), groups, strict=False):
            # An unknown account or user is no group.
            if not group[1]:
                continue
            yield RunTimeLevel(source=source, samples=[sample for _, sample in runs(group)])


def list_groups(job: RunTimeQuery) -> tuple[RunTimeGroup, ...]:
    """Return the groups to which a job belongs: user, account and partition with its GPUs; last its key, if any."""
    groups: tuple[RunTimeGroup, ...] = (
        ("user", job.user, job.gpus),
        ("account", job.account, job.gpus),
        ("partition", job.partition, job.gpus),
    )
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
            scaled.append(replace(sample, run_s=sample.run_s * factor))
    return RunTimeLevel(source=FROM_RUNS, samples=equal), RunTimeLevel(source=FROM_SCALED_RUNS, samples=scaled)


def _is_comparable(job: RunTimeQuery, other: RunTimeQuery) -> bool:
    return find_length_factor(job, other) is not None


def find_length_factor(job: RunTimeQuery, other: RunTimeQuery) -> float | None:
    """Return how many times as long `job` takes as `other`, by their length options; None if they do not compare.

    They compare if variant and options are the same, or if exactly one count differs ("epochs", not "dataset").
    """
    if job.variant != other.variant:
        return None
    if job.length == other.length:
        return 1.0
    if [name for name, _ in job.length] != [name for name, _ in other.length]:
        return None
    names = [name for name, _ in job.length]
    differing = [
        (name, mine, theirs)
        for (name, mine), (_, theirs) in zip(job.length, other.length, strict=True)
        if mine != theirs
    ]
    # The same option twice belongs to two programs of one script; the share of each is not known.
    if len(differing) != 1 or names.count(differing[0][0]) != 1 or not is_count_name(differing[0][0]):
        return None
    try:
        mine, theirs = float(differing[0][1]), float(differing[0][2])
    except ValueError:
        return None
    return mine / theirs if mine > 0 and theirs > 0 and mine / theirs < float("inf") else None


def compute_run_s_by_prerun(measurement: Measurement, gpus: int) -> float | None:
    """Return the run time by the steps per second of a pre-run and the steps of the whole training; None if unknown.

    Assumed: one process for each of the job's GPUs, and a step takes as long as with a single process.
    """
    total, rate = compute_steps_per_process(measurement, gpus), measurement.steps_per_s
    return max(SHORTEST_S, total / rate) if total and rate else None


def compute_steps_per_process(measurement: Measurement, gpus: int) -> float | None:
    """Return the steps of the whole training in each process of a job with one process for each GPU; None if unknown.

    `measurement`: of its pre-run.
    """
    processes = max(1, gpus)
    if not measurement.total_steps or (measurement.total_is_shared is None and processes > 1):
        return None
    return measurement.total_steps / (processes if measurement.total_is_shared else 1)


# Longest text of a user's record that is stored.
_LONGEST_TEXT = 200
_CUT_OFF_STATES = frozenset({"TIMEOUT", "CANCELLED", "REQUEUED"})


def make_run_time_query(
    uid: int, gpus: int, account: str, partition: str, submission: Submission | None = None
) -> RunTimeQuery:
    """Return the query for a job of Slurm's record, with key, variant and length options that its submission claims.

    Only runs of the same user are compared by them. Of several partitions the first one counts.
    """
    claimed = submission if submission is not None and len(submission.profile_key) <= _LONGEST_TEXT else None
    variant = claimed.profile_variant if claimed is not None else ""
    return RunTimeQuery(
        user=str(uid),
        key=claimed.profile_key if claimed is not None else "",
        variant=variant if len(variant) <= _LONGEST_TEXT else "",
        length=limit_length(claimed.length) if claimed is not None else (),
        gpus=gpus,
        account=account,
        partition=partition.partition(",")[0],
    )


def make_run_time_record(run: JobRun, submission: Submission | None) -> RunTimeRecord | None:
    """Return an ended, diagnosed run as evidence of run times; None if it is none.

    Evidence are runs that completed, and runs that their time limit or a person cut off, which would have taken longer.
    A failure says nothing about the run time. A run that resumed from a checkpoint did only a part of the work.
    """
    diagnosis = run.diagnosis
    if diagnosis is None or diagnosis.resumed or run.uid < 0 or run.end_time is None or run.run_s < SHORTEST_S:
        return None
    # A job that shared its GPU was slower than alone, or only ended here with the exit code that it had elsewhere.
    if submission is not None and submission.share:
        return None
    complete = run.state == "COMPLETED" and diagnosis.category == "success"
    if not complete and not (run.state in _CUT_OFF_STATES and diagnosis.category in ("time_limit", "cancelled")):
        return None
    return RunTimeRecord(
        attempt=run.attempt,
        uid=run.uid,
        end_time=run.end_time,
        job=make_run_time_query(run.uid, run.gpus, run.account, run.partition, submission),
        sample=RunTimeSample(run_s=run.run_s, complete=complete, submit_s=float(run.attempt.submit_time)),
    )
