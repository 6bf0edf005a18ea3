"""Draw what goes wrong with each job: at random by Philly's table 7, or by the states that a dump records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.prerun.verdict.single_gpu_messages import ELSEWHERE
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import REHEARSED, FailureSettings
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform, draw_uniforms
from slurmwrap.sim.failures.published_rates import LEAST_MIN, LONGEST_MIN, MINUTE_S, PHILLY, PublishedCause
from slurmwrap.sim.sim_job import SimJob

# The run time to failure of each cause: quantiles from table 7's percentiles.
#
# Between the published percentiles the logarithm is interpolated. Two ends are not published. Below the median the
# curve mirrors the one above it (down to the shortest time in the table). Beyond p95 it ends where the cause's share of
# all run times to failure is what the table says. For that, the sum of all run times must be known, which it is not;
# the sum is used that results if each curve continues beyond p95 as steeply as before. If that end would lie below p95
# or beyond the trace's 75 days, it is limited to these, and the share is missed.
_AT = (0.0, 0.5, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Logarithm of minutes at the quantiles _AT of the runs."""

    knots: tuple[float, ...]

    def seconds(self, share: float) -> float:
        """Return the run time that `share` of the runs do not exceed."""
        return exp(float(np.interp(share, _AT, self.knots))) * MINUTE_S

    def mean_min(self) -> float:
        """Return the exact mean: each piece is an exponential."""
        pieces = zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False)
        return sum((b - a) * _compute_mean(low, high) for a, b, low, high in pieces)

    def density(self, seconds: float) -> float:
        """Return the density of the logarithm of the run time; small, but not 0, outside of the curve."""
        at = log(max(seconds, 1.0) / MINUTE_S)
        for a, b, low, high in zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False):
            if low <= at < high:
                return (b - a) / (high - low)
        return 1e-6


def curve_of(cause: PublishedCause) -> Curve:
    """Return the curve of one row of table 7."""
    return _fit_curves()[cause.reason]


@cache
def _fit_curves() -> dict[str, Curve]:
    """Return the curves by the reasons' names."""
    plain = [_extrapolate_curve(cause) for cause in PHILLY]
    total = sum(cause.trials * curve.mean_min() for cause, curve in zip(PHILLY, plain, strict=True))
    return {cause.reason: _fit_curve(cause, curve, total) for cause, curve in zip(PHILLY, plain, strict=True)}


def _extrapolate_curve(cause: PublishedCause) -> Curve:
    least = min(cause.p50_min, max(LEAST_MIN, cause.p50_min**2 / cause.p90_min))
    most = min(LONGEST_MIN, cause.p95_min**2 / cause.p90_min)
    return Curve(knots=tuple(map(log, (least, cause.p50_min, cause.p90_min, cause.p95_min, max(most, cause.p95_min)))))


def _fit_curve(cause: PublishedCause, curve: Curve, total_min: float) -> Curve:
    """Return the curve with its end moved so that the share is right. By bisection: the mean grows with the end."""
    wanted = cause.share / 100 * total_min / cause.trials
    if not cause.share:
        return curve
    low, high = log(cause.p95_min), log(LONGEST_MIN)
    for _ in range(60):
        middle = (low + high) / 2
        moved = Curve(knots=(*curve.knots[:-1], middle))
        low, high = (middle, high) if moved.mean_min() < wanted else (low, middle)
    return Curve(knots=(*curve.knots[:-1], low))


def _compute_mean(low: float, high: float) -> float:
    """Return the mean of exp over an interval of its argument."""
    return exp(low) if high - low < 1e-9 else (exp(high) - exp(low)) / (high - low)


# Greatest number of trials of one job, whatever a geometric draw gives.
_MOST_TRIALS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """What was drawn for one job. `category` "": it ends well if no node fails during its runs."""

    number: int  # SimJob.number
    uid: int  # an invented user
    category: str = ""
    reason: str = ""  # Philly's name of the cause
    # Row of PHILLY, for the run times of later runs; -1: none.
    row: int = -1
    run_s: float = 0.0  # seconds until the first run fails
    # Runs that fail of it if everything is tried again; after these it is cured, or given up.
    trials: int = 1
    curable: bool = False  # another run will end well sooner or later
    # The memory that it needs, as a multiple of what it asked for; for jobs that run out of memory.
    need: float = 1.0
    # Jobs with the same number fail because of the same file, of one user.
    fault: int = -1
    # Dumps only: jobs with the same number are one job resubmitted by hand; -1: not resubmitted.
    chain: int = -1
    # Slurm requeued it by itself: the dump contains a later run with the same id.
    requeued: bool = False
    # The pre-run shows the failure and stops the job.
    shown: bool = False
    # It fails because of an input that slurmwrap's own read finds broken, if it has the time.
    checked: bool = False
    killed: bool = False  # its user cancels it at the end of its run time
    # A node was at fault (dumps only; otherwise node failures are drawn separately).
    by_node: bool = False


# The jobs that fail or are killed, by SimJob.number.
DrawnFailures = dict[int, FailingJob]


def inject_failures(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> tuple[FailingJob, ...]:
    """Return the jobs that fail, in the order of the trace; the same seed gives the same result."""
    found = draw_failures(jobs, settings, seed).values()
    return tuple(one for one in found if one.category)


def draw_failures(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> DrawnFailures:
    """Return what is drawn for `jobs` at the rates of `settings`."""
    if not jobs:
        return {}
    numbers = np.array([job.number for job in jobs], dtype=np.uint64)
    gpu_s = np.array([max(1.0, job.gpus * job.work_s) for job in jobs])
    killed = compute_kill_chances(gpu_s, settings)
    fate = draw_uniforms(seed, numbers, Purpose.FATE)
    left = 1 - float(killed.mean())
    fails = killed + (1 - killed) * (settings.failing_jobs / left if left > 0 else 0.0)
    scale = len(jobs) / published_rates.JOBS
    made = FailureDrawer(settings=settings, seed=seed, scale=scale)
    doomed: DrawnFailures = {}
    for at in np.flatnonzero(fate < fails):
        job = jobs[int(at)]
        if fate[at] < killed[at]:
            doomed[job.number] = FailingJob(number=job.number, uid=made.draw_user(job.number), killed=True)
        else:
            doomed[job.number] = made.failing(job)
    return number_faults(doomed, jobs, settings, seed)


def compute_kill_chances(gpu_s: NDArray[np.float64], settings: FailureSettings) -> NDArray[np.float64]:
    """Return the chance of each job to be killed by its user.

    Their mean is the share of jobs that are killed; weighted by GPU time it is the share of GPU time. The chance is c ·
    (GPU time)^a, capped at 1: `a` by bisection, `c` from the mean.
    """
    if settings.killed_jobs in (0, 1):
        return np.full(len(gpu_s), float(settings.killed_jobs))
    low, high = 0.0, 2.0
    for _ in range(30):
        power = (low + high) / 2
        chances = _with_mean(gpu_s**power, settings.killed_jobs)
        weighted = float((chances * gpu_s).sum() / gpu_s.sum())
        low, high = (power, high) if weighted < settings.killed_gpu_time else (low, power)
    return _with_mean(gpu_s**low, settings.killed_jobs)


def _with_mean(weights: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    chances = np.asarray(weights * (mean / weights.mean()))
    # What is cut at 1 is distributed to the others.
    for _ in range(20):
        chances = np.minimum(1.0, chances * (mean / chances.mean()))
    return chances


class FailureDrawer:
    """Draws the failing jobs of one seed."""

    def __init__(self, *, settings: FailureSettings, seed: int, scale: float) -> None:
        self.settings, self.seed = settings, seed
        self.people = max(2, round(max(cause.users for cause in published_rates.PHILLY) * scale))
        self._pool = [max(1, round(cause.users * scale)) for cause in published_rates.PHILLY]
        # Weights of jobs, not of trials: a job makes as many trials as its cause is repeated.
        self._sums = [
            list(accumulate(cause.by_demand[column] / cause.repetition for cause in published_rates.PHILLY))
            for column in range(3)
        ]

    def draw_user(self, number: int) -> int:
        return int(self._chance(number, Purpose.USER) * self.people)

    def failing(self, job: SimJob) -> FailingJob:
        """Return a failing job; the cause is drawn by the job's number of GPUs."""
        sums = self._sums[published_rates.get_demand_column(job.gpus)]
        row = int(np.searchsorted(sums, self._chance(job.number, Purpose.CAUSE) * sums[-1], side="right"))
        return self.of_row(job, min(row, len(sums) - 1))

    def of_row(self, job: SimJob, row: int, run_s: float | None = None) -> FailingJob:
        """Return a failing job with the cause of one row. `run_s`: seconds until it failed, if known."""
        cause = published_rates.PHILLY[row]
        share = self._chance(job.number, Purpose.TIME)
        made = FailingJob(
            number=job.number,
            uid=int(self._chance(job.number, Purpose.USER) * self._pool[row]) * 7919 % self.people,
            category=cause.category,
            reason=cause.reason,
            row=row,
            run_s=curve_of(cause).seconds(share) if run_s is None else run_s,
            trials=self._trials(job.number, cause),
            curable=self._curable(job.number, cause),
            need=self.settings.oom_most ** self._chance(job.number, Purpose.NEED) if cause.category == "cpu_oom" else 1,
        )
        return replace(made, shown=self._shown(job, made), checked=self._checked(job.number, made))

    def _trials(self, number: int, cause: published_rates.PublishedCause) -> int:
        """Return a geometric draw with the table's mean."""
        again = 1 - 1 / cause.repetition
        if again <= 0:
            return 1
        return min(_MOST_TRIALS, 1 + int(log(1 - self._chance(number, Purpose.TRIALS)) / log(again)))

    def _curable(self, number: int, cause: published_rates.PublishedCause) -> bool:
        if cause.category == "no_signature":
            return self._chance(number, Purpose.CURABLE) < self.settings.unexplained_curable
        return cause.transient

    def _shown(self, job: SimJob, made: FailingJob) -> bool:
        """Return whether the pre-run shows the failure by production's rules (prerun/verdict/single_gpu_messages.py):
        in its steps or in its shortened epoch.
        """
        s = self.settings
        if made.curable or not is_shown_alone(made.category, job.gpus):
            return False
        if job.gpus > 1 and self._chance(job.number, Purpose.COMPANY) < s.needs_company:
            return False
        if made.run_s <= s.trial_s:
            return self._chance(job.number, Purpose.SEEN) < s.sees
        executed = made.category in REHEARSED and self._chance(job.number, Purpose.REHEARSED) < s.rehearsed
        return executed and s.rehearsal_s > 0 and self._chance(job.number, Purpose.SEEN) < s.sees_late

    def _checked(self, number: int, made: FailingJob) -> bool:
        # The chance of OWN_READ also decides whether the reconciler's own read finds this file broken.
        broken = made.category == "incorrect_inputs" and self._chance(number, Purpose.OWN_READ) < self.settings.own_read
        return broken and self._chance(number, Purpose.CHECKED) < self.settings.inputs_checked

    def _chance(self, number: int, what: Purpose) -> float:
        return draw_uniform(self.seed, number, 0, what)


def is_shown_alone(category: str, gpus: int) -> bool:
    """Return whether the failure of a one-GPU trial counts as the job's own (prerun/verdict/single_gpu_messages.py)."""
    if category == "no_signature":
        return gpus <= 1
    if category in ELSEWHERE or CATEGORIES[category].decision not in ("stop", "blacklist_input"):
        return False
    return gpus <= 1 or category != "gpu_oom"


def compute_time_to_failure(failing_job: FailingJob, seed: int, run: int) -> float:
    """Return the seconds until run `run` (0: the first) fails.

    A fault of the job itself fails at the same point again; any other is drawn anew.
    """
    if run == 0 or not failing_job.curable or failing_job.row < 0:
        return failing_job.run_s
    return curve_of(published_rates.PHILLY[failing_job.row]).seconds(
        draw_uniform(seed, failing_job.number, run, Purpose.TIME)
    )


def number_faults(doomed: DrawnFailures, jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> DrawnFailures:
    """Return `doomed` with faults numbered: for one user and cause, a later failure may be because of the same file."""
    last: dict[tuple[int, str], tuple[float, int]] = {}
    found = dict(doomed)
    submitted = {job.number: job.submit_s for job in jobs}
    for number, one in sorted(doomed.items(), key=lambda entry: submitted[entry[0]]):
        if one.category != "incorrect_inputs":
            continue
        at, fault = last.get((one.uid, one.category), (-1e18, -1))
        near = submitted[number] - at <= settings.same_fault_s
        same = near and draw_uniform(seed, number, 0, Purpose.SAME) < settings.same_fault
        found[number] = replace(one, fault=fault if same else number)
        last[one.uid, one.category] = submitted[number], found[number].fault
    return found


_CATEGORY_OF_STATE = {
    "OUT_OF_MEMORY": "cpu_oom",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "PREEMPTED": "job_preempted",
}
# Slurm or the kernel would have recorded these causes, so they are not the cause of a job in state FAILED.
_NOT_OF_FAILED = frozenset({"cpu_oom", "job_preempted", "gpu_ecc_error"})
RequestKey = tuple[object, ...]
# Failures that no later job has followed up yet; heaps, by end.
OpenFailures = dict[RequestKey, list[tuple[float, int, SimJob, FailingJob]]]


def draw_dump(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> DrawnFailures:
    """Return what went wrong by the jobs' own `status`; what Slurm does not call a failure ended well."""
    users = {user: at for at, user in enumerate(dict.fromkeys(job.user for job in jobs))}
    made = FailureDrawer(settings=settings, seed=seed, scale=1.0)
    last_run = {job.job: job.number for job in sorted(jobs, key=lambda job: job.submit_s)}
    unanswered: OpenFailures = {}
    doomed: DrawnFailures = {}
    for job in sorted(jobs, key=lambda job: job.submit_s):
        before = _just_before(job, unanswered, settings)
        found = _find_failure(job, made, before)
        if found is None and before is not None and job.status.upper() == "COMPLETED":
            found = FailingJob(number=job.number, uid=0, chain=before.chain)
        if found is None:
            continue
        doomed[job.number] = found = replace(
            found, uid=users[job.user], requeued=bool(job.job) and last_run[job.job] != job.number
        )
        if before is not None and found.chain == before.chain:
            heappop(unanswered[_make_request_key(job)])
        if found.category:
            heappush(
                unanswered.setdefault(_make_request_key(job), []), (job.submit_s + job.work_s, job.number, job, found)
            )
    return doomed


def _just_before(job: SimJob, unanswered: OpenFailures, settings: FailureSettings) -> FailingJob | None:
    """Return the failure that this job may be another try of: the oldest one that was not followed up."""
    known = unanswered.get(_make_request_key(job), [])
    while known and job.submit_s - known[0][0] > settings.same_fault_s:
        heappop(known)
    if not known or known[0][0] > job.submit_s:
        return None
    _, _, earlier, failed = known[0]
    more = failed.category == "cpu_oom" and (job.mem_mib or 0) > (earlier.mem_mib or 0)
    return failed if more or (job.cpus, job.mem_mib) == (earlier.cpus, earlier.mem_mib) else None


def _make_request_key(job: SimJob) -> RequestKey:
    """Return what a user requests each time that they submit the same job. Without a user no job is a resubmission."""
    user = job.user or job.number
    return (user, job.model, job.gpus, job.nodes, job.limit_s, job.partition)


def _find_failure(job: SimJob, made: FailureDrawer, before: FailingJob | None) -> FailingJob | None:
    state = job.status.split(" ")[0].upper()  # "CANCELLED by 1000"
    if state == "CANCELLED":
        return FailingJob(number=job.number, uid=0, killed=True)
    if state == "FAILED":
        drawn_before = before is not None and before.row >= 0 and before.category not in _NOT_OF_FAILED
        row = before.row if before is not None and drawn_before else _draw_likely_row(job, made.seed)
        return _chain_failures(made.of_row(job, row, run_s=job.work_s), before)
    recorded = _CATEGORY_OF_STATE.get(state)
    return _chain_failures(_make_recorded_failure(job, recorded, made), before) if recorded else None


def _chain_failures(found: FailingJob, before: FailingJob | None) -> FailingJob:
    """Return the failure with the number of the first one of its chain, and of its fault."""
    again = before is not None and before.category == found.category
    first = before.chain if before is not None and again else found.number
    return replace(found, chain=first, fault=first if found.category == "incorrect_inputs" else -1)


def _draw_likely_row(job: SimJob, seed: int) -> int:
    """Return a row of table 7, by the trials of its column times the density of its run times at this one."""
    column = published_rates.get_demand_column(job.gpus)
    weights = [
        0.0
        if cause.category in _NOT_OF_FAILED
        else cause.by_demand[column] / cause.repetition * curve_of(cause).density(job.work_s)
        for cause in published_rates.PHILLY
    ]
    sums = list(accumulate(weights))
    wanted = draw_uniform(seed, job.number, 0, Purpose.CAUSE) * sums[-1]
    return next(at for at, total in enumerate(sums) if total > wanted)


def _make_recorded_failure(job: SimJob, category: str, made: FailureDrawer) -> FailingJob:
    row = next((at for at, cause in enumerate(published_rates.PHILLY) if cause.category == category), -1)
    if row >= 0:
        return replace(made.of_row(job, row, run_s=job.work_s), trials=1)
    by_node = category == "node_failure"
    return FailingJob(
        number=job.number, uid=0, category=category, reason=job.status, run_s=job.work_s, curable=by_node,
        by_node=by_node,
    )  # fmt: skip
