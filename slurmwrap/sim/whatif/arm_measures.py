"""Measure one arm of a what-if study: delays, JCT, locality and utilisation, by GPU class. Pure.

JCT is from the moment when a job could run to its end; the queueing delay is the part of it in which the job held
nothing. The same jobs are measured in every arm.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from random import Random
from statistics import fmean, median

from slurmwrap.placement.demand import Server
from slurmwrap.sim.failures.study_result import Interval
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import SimOutcome, compute_percentile
from slurmwrap.sim.whatif.whatif_study import DelayFit, Delays, DelaySpread, Locality, StudyWorld, Trust

CLASSES = ((1, 1, "1 GPU"), (2, 4, "2–4 GPUs"), (5, 8, "5–8 GPUs"), (9, 10**9, "more than 8 GPUs"))
ALL = "all"
# Number of parts of the window for the utilisation over time.
PARTS = 120
# Grid of delays in seconds. Delays shorter than the first are caused by Slurm's own scheduling intervals.
_POINTS, _LEAST_S, _MOST_S = 73, 10.0, 30 * 86400.0
GRID_S = tuple(exp(log(_LEAST_S) + i * log(_MOST_S / _LEAST_S) / (_POINTS - 1)) for i in range(_POINTS))

# Limits for the model of plain Slurm compared with what happened: (largest gap of the distributions, ratio of the mean
# delays).
CLOSE, FAIR = (0.1, 1.25), (0.25, 2.0)
# Least number of days of submission for an interval: fewer show too little of how much days differ.
LEAST_DAYS = 7
_RESAMPLES, _SEED, _DAY_S = 2000, 20201104, 86400.0
# Least number of jobs in a class for which the fit is judged.
FEW = 20
# Means that differ by less count as equal: Slurm itself goes through its queue every 30 to 60 s.
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """GPUs that one run held between two moments. Seconds on the trace's clock."""

    began_s: float
    ended_s: float
    gpus: int


def measure_arm(
    name: str,
    jobs: Sequence[SimJob],
    outcome: SimOutcome,
    spans: Iterable[Span],
    *,
    servers: Sequence[Server],
    window: tuple[float, float],
) -> StudyWorld:
    """Return the measures of one arm.

    `jobs`: the measured ones, all of which ended. `spans`: of every run that held GPUs, measured or not. `window`: on
    the trace's clock.
    """
    by_class = [(label, [job for job in jobs if low <= job.gpus <= high]) for low, high, label in CLASSES]
    busy = compute_busy_shares(spans, sum(server.gpus for server in servers), window)
    most = max((server.gpus for server in servers), default=1)
    return StudyWorld(
        name=name,
        all=_measure_delays(ALL, jobs, outcome),
        classes=tuple(_measure_delays(label, members, outcome) for label, members in by_class if members),
        locality=tuple(
            _measure_locality(label, members, outcome, most) for label, members in by_class[1:] if members
        ),
        gpu_utilisation=fmean(busy),
        busy=busy,
    )  # fmt: skip


def list_spans(jobs: Iterable[SimJob], outcome: SimOutcome) -> Iterable[Span]:
    """Yield one span per job that ran in a simulation in which running jobs keep what they have."""
    for job in jobs:
        ended = outcome.ended_s[job.number]
        if ended is not None and job.gpus:
            yield Span(began_s=ended - outcome.held_s[job.number], ended_s=ended, gpus=job.gpus)


def _measure_delays(label: str, jobs: Sequence[SimJob], outcome: SimOutcome) -> Delays:
    jcts = sorted(_compute_jct(job, outcome) for job in jobs)
    waits = sorted(_compute_wait(job, outcome) for job in jobs)
    return Delays(
        label=label,
        jobs=len(jobs),
        queueing=spread_of(waits),
        jct=spread_of(jcts),
        queueing_within=compute_shares_within(waits),
        jct_within=compute_shares_within(jcts),
    )


def _compute_jct(job: SimJob, outcome: SimOutcome) -> float:
    ended = outcome.ended_s[job.number]
    assert ended is not None, f"job {job.job} is measured and never ended"
    return ended - job.submit_s


def estimate_queueing_change(jobs: Sequence[SimJob], before: SimOutcome, after: SimOutcome) -> Interval | None:
    """Return the mean delay in `after` less that in `before`, over the same jobs, with its 95 % interval."""
    return _estimate_change([(job.submit_s, _compute_wait(job, after) - _compute_wait(job, before)) for job in jobs])


def estimate_jct_change(jobs: Sequence[SimJob], before: SimOutcome, after: SimOutcome) -> Interval | None:
    """Return the same for the JCT."""
    return _estimate_change([(job.submit_s, _compute_jct(job, after) - _compute_jct(job, before)) for job in jobs])


def _estimate_change(differences: Sequence[tuple[float, float]]) -> Interval | None:
    """Estimate the mean by resampling whole days of submission.

    Jobs of one day wait in the same queue, so they are not independent.
    """
    days: dict[int, tuple[float, int]] = {}
    for submit_s, difference in differences:
        total, count = days.get(int(submit_s // _DAY_S), (0.0, 0))
        days[int(submit_s // _DAY_S)] = (total + difference, count + 1)
    if len(days) < LEAST_DAYS:
        return None
    drawn = list(days.values())
    random = Random(_SEED)
    means = sorted(_compute_mean(random.choices(drawn, k=len(drawn))) for _ in range(_RESAMPLES))
    return Interval(mean=_compute_mean(drawn), low=compute_percentile(means, 2.5), high=compute_percentile(means, 97.5))


def _compute_mean(days: Sequence[tuple[float, int]]) -> float:
    return sum(total for total, _ in days) / sum(count for _, count in days)


def _compute_wait(job: SimJob, outcome: SimOutcome) -> float:
    return max(0.0, _compute_jct(job, outcome) - outcome.held_s[job.number])


def spread_of(ordered: Sequence[float]) -> DelaySpread:
    """Return mean and percentiles of sorted seconds, at least one."""
    return DelaySpread(
        mean=fmean(ordered),
        median=median(ordered),
        p95=compute_percentile(ordered, 95),
        p99=compute_percentile(ordered, 99),
    )


def compute_shares_within(ordered: Sequence[float]) -> tuple[float, ...]:
    """Return the share of the sorted values that is no larger than each of GRID_S."""
    return tuple(bisect_right(ordered, at) / len(ordered) for at in GRID_S)


def fewest_nodes(gpus: int, per_node: int) -> int:
    """Return the least number of nodes that hold the GPUs, if all nodes have the most that any has."""
    return ceil(gpus / max(1, per_node))


def _measure_locality(label: str, jobs: Sequence[SimJob], outcome: SimOutcome, per_node: int) -> Locality:
    used = [outcome.servers[job.number] for job in jobs]
    least = [fewest_nodes(job.gpus, per_node) for job in jobs]
    return Locality(
        label=label,
        jobs=len(jobs),
        fewest=sum(have <= need for have, need in zip(used, least, strict=True)),
        nodes=fmean(used),
        fewest_nodes=fmean(least),
    )


def compute_busy_shares(
    spans: Iterable[Span], gpus: int, window: tuple[float, float], parts: int = PARTS
) -> tuple[float, ...]:
    """Return the share of `gpus` that was held in each of `parts` equal parts of the window. O(spans + parts)."""
    since, until = window
    width = max(1e-9, (until - since) / parts)
    # GPU-seconds of the spans' first and last parts.
    held = [0.0] * parts
    # Change of the GPUs held throughout, at the beginning of each part.
    steady = [0.0] * (parts + 1)
    for span in spans:
        low, high = max(span.began_s, since) - since, min(span.ended_s, until) - since
        if high <= low:
            continue
        first, last = int(low / width), min(parts - 1, int(high / width))
        if first >= last:
            held[min(first, parts - 1)] += (high - low) * span.gpus
            continue
        held[first] += ((first + 1) * width - low) * span.gpus
        held[last] += (high - last * width) * span.gpus
        steady[first + 1] += span.gpus
        steady[last] -= span.gpus
    return _sum_held(held, steady, width * max(1, gpus), width)


def _sum_held(held: Sequence[float], steady: Sequence[float], there: float, width: float) -> tuple[float, ...]:
    shares, level = [], 0.0
    for part, seconds in enumerate(held):
        level += steady[part]
        shares.append(min(1.0, (seconds + level * width) / there))
    return tuple(shares)


def judge_trust(real: StudyWorld, model: StudyWorld) -> Trust:
    """Return how far the model differs from what happened."""
    whole = _judge_fit(real.all, model.all)
    classes = [_judge_fit(a, b) for a, b in zip(real.classes, model.classes, strict=True) if a.jobs >= FEW]
    worst = max(classes, key=_rank_badness, default=None)
    mixed = whole.word == "close" and worst is not None and worst.word != "close"
    return Trust(
        word="fair" if mixed else whole.word,
        gap=whole.gap,
        worst=worst,
        mean_real_s=whole.mean_real_s,
        mean_model_s=whole.mean_model_s,
        utilisation_real=real.gpu_utilisation,
        utilisation_model=model.gpu_utilisation,
    )


def _judge_fit(real: Delays, model: Delays) -> DelayFit:
    curves = zip(GRID_S, real.queueing_within, model.queueing_within, strict=True)
    gap = max(abs(a - b) for at, a, b in curves if at >= _SLACK_S)
    means = real.queueing.mean, model.queueing.mean
    return DelayFit(
        label=real.label, word=_select_word(gap, *means), gap=gap, mean_real_s=means[0], mean_model_s=means[1]
    )


def _rank_badness(fit: DelayFit) -> tuple[int, float]:
    return ("close", "fair", "far").index(fit.word), _compute_ratio(fit.mean_real_s, fit.mean_model_s)


def _select_word(gap: float, real: float, model: float) -> str:
    ratio = _compute_ratio(real, model)
    if gap <= CLOSE[0] and ratio <= CLOSE[1]:
        return "close"
    return "fair" if gap <= FAIR[0] and ratio <= FAIR[1] else "far"


def _compute_ratio(one: float, other: float) -> float:
    """Return the ratio of two mean delays, at least 1."""
    return 1.0 if abs(one - other) < _SLACK_S else max(one, other) / max(_SLACK_S, min(one, other))
