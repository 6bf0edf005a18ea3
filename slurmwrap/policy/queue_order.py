"""The order of pending jobs: an index per job, about six classes by index, and what Slurm is given for a class. Pure.

reconcile/order_pending.py and the simulator (sim/) both call `classify_jobs`.

    shortest   predicted run time x GPUs                            (shortest predicted service first, Helios, SC 2021)
    gittins    1 / Gittins index of the predicted distribution      (Tiresias, NSDI 2019, 2D-Gittins)
    las        service of earlier runs of the same job              (Tiresias, 2D-LAS; run times are not needed)
    srtf       predicted remaining run time x GPUs, for jobs that resume; others as with `shortest`

Every index is in GPU-seconds, the smallest comes first. Only measured run times count, nothing that a user claims.
Within one class Slurm's own order stays. A job that has waited `most_wait_s`, and WAIT_FACTOR times as long as it is
predicted to run but at most 7 days, is in the first class.

The predicted run time is the 80th percentile. Where running jobs are not interrupted, the best order is by the mean
(Rothkopf, Management Science 1966), to which long runs contribute much: the median leaves them out. The mean itself
depends on a few runs of other jobs. bench/queue_order.py compares the indexes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.queue_priority import PriorityScheme
from slurmwrap.model.run_time import QUANTILE_LEVELS, RunTimeEstimate

INDEXES = ("shortest", "gittins", "las", "srtf")
# A long job may wait longer than `most_wait_s`: so many times as long as it is predicted to run.
WAIT_FACTOR = 4.0
# But no longer than this, unless `most_wait_s` is longer: PriorityMaxAge of Slurm is 7 days, too.
_MOST_WAIT_OF_LONG_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOrder:
    """One pending job. `attained_s`: seconds that its earlier runs held its GPUs, after requeues."""

    job: str
    gpus: int
    waited_s: float  # since it became eligible
    estimate: RunTimeEstimate | None = None  # None: nothing is known about jobs of its size
    attained_s: float = 0.0
    resumes: bool = False  # its earlier run resumed from a checkpoint
    # The newest run of its key took longer than nine in ten were expected to. Then its p90 counts, not its p80.
    overran: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """`thresholds`: upper limits of all classes but the last, in GPU-seconds, ascending."""

    index: str
    thresholds: tuple[float, ...]
    most_wait_s: float

    @property
    def classes(self) -> int:
        """Return the number of classes; class 0 starts first."""
        return len(self.thresholds) + 1


def classify_jobs(jobs: Iterable[PendingOrder], settings: OrderSettings) -> Mapping[str, int]:
    """Return the class of each job, 0 first. Jobs of which nothing is known get the middle class."""
    return {job.job: classify_job(job, settings) for job in jobs}


def classify_job(job: PendingOrder, settings: OrderSettings) -> int:
    """Return the class of one job, 0 first."""
    if has_waited_enough(job, settings):
        return 0
    index = compute_index(job, settings.index)
    return settings.classes // 2 if index is None else bisect_right(settings.thresholds, index)


def has_waited_enough(job: PendingOrder, settings: OrderSettings) -> bool:
    """Return True if the job has waited so long that it is in the first class, whatever its run time."""
    return job.waited_s >= compute_most_wait_s(job, settings)


def compute_most_wait_s(job: PendingOrder, settings: OrderSettings) -> float:
    """Return how many seconds the job waits before it is in the first class.

    If all jobs waited longer than one fixed time, that would be the order of submission again.
    """
    predicted_s = 0.0 if job.estimate is None else job.estimate.p80_s
    return max(settings.most_wait_s, min(WAIT_FACTOR * predicted_s, _MOST_WAIT_OF_LONG_S))


def compute_index(job: PendingOrder, index: str) -> float | None:
    """Return the job's index in GPU-seconds; None if it is unknown. ValueError for an unknown index."""
    gpus = max(1, job.gpus)
    if index == "las":
        return job.attained_s * gpus
    if job.estimate is None:
        return None
    if job.overran and index in INDEXES:
        return job.estimate.p90_s * gpus
    if index == "shortest":
        return job.estimate.p80_s * gpus
    if index == "srtf":
        return _predict_remaining_s(job, job.estimate) * gpus
    if index == "gittins":
        attained = job.attained_s if job.resumes else 0.0
        return compute_gittins_s(job.estimate, attained) * gpus
    raise ValueError(f"there is no order '{index}': {', '.join(INDEXES)}")


def _predict_remaining_s(job: PendingOrder, estimate: RunTimeEstimate) -> float:
    """Return the predicted remaining run time. A job that outran all earlier ones is expected to take its p90 again."""
    if not job.resumes:
        return estimate.p80_s
    remaining = estimate.expect_remaining_s(job.attained_s)
    return estimate.p90_s if remaining is None else remaining


def compute_gittins_s(estimate: RunTimeEstimate, attained_s: float = 0.0) -> float:
    """Return the inverse of the Gittins index for a run that has had `attained_s`, in seconds:

        1 / G(a) = min over D of E[min(S - a, D) | S > a] / P(S - a <= D | S > a)

    S takes the estimate's quantiles, each with the probability around it.
    """
    points = [(time - attained_s, weight) for time, weight in _list_weighted_times(estimate) if time > attained_s]
    if not points:
        return estimate.p90_s
    total = sum(weight for _, weight in points)
    least, ended, served = float("inf"), 0.0, 0.0
    for rest, weight in points:
        ended += weight
        served += weight * rest
        least = min(least, (served + (total - ended) * rest) / ended)
    return least


def _list_weighted_times(estimate: RunTimeEstimate) -> list[tuple[float, float]]:
    borders = (0.0, *((a + b) / 2 for a, b in pairwise(QUANTILE_LEVELS)), 1.0)
    widths = (after - before for before, after in pairwise(borders))
    return list(zip(estimate.quantiles_s, widths, strict=True))


def choose_thresholds(services: Sequence[float], classes: int) -> tuple[float, ...]:
    """Return the limits between `classes` classes for a site whose jobs had these services in GPU-seconds; () if none.

    The limits are evenly spaced on a log scale between the 10th and the 99th percentile: the few jobs above the 90th
    hold most of the GPU time, so they must be distinguished.
    """
    ordered = sorted(service for service in services if service > 0)
    if not ordered or classes < 2:
        return ()
    low, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.99))
    step = log(max(high / low, 1.0)) / max(1, classes - 2)
    return tuple(low * exp(step * number) for number in range(classes - 1))


# Under priority/basic, and if no weight is set, submission alone orders the queue. The band is a number of jobs then.
PLACES = 1000


def choose_band(configured: int, scheme: PriorityScheme) -> int:
    """Return `order.band`, or its default: a tenth of the sum of all PriorityWeight*, or PLACES without weights.

    Under priority/basic each job's priority is one less than that of the job submitted before it. So the band is the
    number of jobs that may pass a job although they were submitted after it.
    """
    if configured:
        return configured
    return scheme.weights // 10 if scheme.plugin == "multifactor" and scheme.weights else PLACES


def compute_additions(
    classes: Mapping[str, int], count: int, band: int, group_of: Mapping[str, str] | None = None
) -> Mapping[str, int]:
    """Return what is added to the priority of each job. `classes`: job -> class; `count`: the number of classes.

    Without groups, `band` for the first class and 0 for the last. With `group_of` (job -> user or account), priority is
    only taken away: 0 for the first class that occurs in the group. So no job of another group is ever passed.
    """
    added = {job: spread_over_band(found, count, band) for job, found in classes.items()}
    if group_of is None:
        return added
    most: dict[str, int] = {}
    for job, value in added.items():
        most[group_of[job]] = max(value, most.get(group_of[job], 0))
    return {job: value - most[group_of[job]] for job, value in added.items()}


def spread_over_band(order_class: int, classes: int, band: int) -> int:
    """Return the priority that a class adds: `band` for class 0, 0 for the last class."""
    return round(band * (classes - 1 - order_class) / max(1, classes - 1))
