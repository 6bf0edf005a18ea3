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
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform, draw_uniforms
from slurmwrap.sim.failures.published_rates import LEAST_MIN, LONGEST_MIN, MINUTE_S, PHILLY, PublishedCause
from slurmwrap.sim.sim_job import SimJob

# How long a run of each cause lasts until it fails: quantiles out of table 7's percentiles.
#
# Between the published percentiles the logarithm is interpolated. Two ends are not published. Below the median the
# curve mirrors the one above it (down to the shortest time of the table). Beyond p95 it ends where the cause's share
# of all run times to failure comes out as the table says: for that, the sum of all run times must be known, which it
# is not; taken is the sum that comes out if each curve goes on beyond p95 as steeply as it came. Where that end would
# lie below p95 or beyond the trace's 75 days it is kept there, and the share is missed.
_AT = (0.0, 0.5, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Log-minutes at the shares _AT of the runs."""

    knots: tuple[float, ...]

    def seconds(self, share: float) -> float:
        """The run time that `share` of the runs do not exceed."""
        return exp(float(np.interp(share, _AT, self.knots))) * MINUTE_S

    def mean_min(self) -> float:
        """Exact: each piece is an exponential."""
        pieces = zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False)
        return sum((b - a) * _compute_mean(low, high) for a, b, low, high in pieces)

    def density(self, seconds: float) -> float:
        """Of the logarithm of the run time; small, not 0, outside of the curve."""
        at = log(max(seconds, 1.0) / MINUTE_S)
        for a, b, low, high in zip(_AT, _AT[1:], self.knots, self.knots[1:], strict=False):
            if low <= at < high:
                return (b - a) / (high - low)
        return 1e-6


def curve_of(cause: PublishedCause) -> Curve:
    """The curve of one row of table 7."""
    return _fit_curves()[cause.reason]


@cache
def _fit_curves() -> dict[str, Curve]:
    """By the reasons' names."""
    plain = [_steep_on(cause) for cause in PHILLY]
    total = sum(cause.trials * curve.mean_min() for cause, curve in zip(PHILLY, plain, strict=True))
    return {cause.reason: _fit_curve(cause, curve, total) for cause, curve in zip(PHILLY, plain, strict=True)}


def _steep_on(cause: PublishedCause) -> Curve:
    least = min(cause.p50_min, max(LEAST_MIN, cause.p50_min**2 / cause.p90_min))
    most = min(LONGEST_MIN, cause.p95_min**2 / cause.p90_min)
    return Curve(knots=tuple(map(log, (least, cause.p50_min, cause.p90_min, cause.p95_min, max(most, cause.p95_min)))))


def _fit_curve(cause: PublishedCause, curve: Curve, total_min: float) -> Curve:
    """Its end moved to where the share comes out; bisection, since the mean grows with the end."""
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
    """Of exp over an interval of its argument."""
    return exp(low) if high - low < 1e-9 else (exp(high) - exp(low)) / (high - low)


# Of one job, whatever a geometric draw says.
_MOST_TRIALS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """What is in store for one job. `category` "": it ends well, if no node fails under it."""

    number: int  # SimJob.number
    uid: int  # a made-up user
    category: str = ""
    reason: str = ""  # Philly's name for it
    row: int = -1  # of PHILLY, for the run times of later runs; -1: none
    run_s: float = 0.0  # until the first run fails
    trials: int = 1  # runs that fail of it where everything is tried again: then it is cured, or given up
    curable: bool = False  # another run will end well in the end
    need: float = 1.0  # times the memory that it asked for, where it runs out of it
    fault: int = -1  # the same number: the very same file, of one user
    chain: int = -1  # of a dump: the same number, the same submitted again by hand; -1: no one's again
    requeued: bool = False  # Slurm ran it again by itself: the dump has a later run of the same id
    shown: bool = False  # one GPU within the trial's time shows it, and the pre-run says so
    killed: bool = False  # its user ends it when its time is over
    by_node: bool = False  # a node was at fault (dumps only: else the nodes themselves are drawn)


# By SimJob.number: those that fail or are killed.
Doomed = dict[int, FailingJob]


def inject_failures(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> tuple[FailingJob, ...]:
    """The jobs that fail, in the order of the trace; the same seed gives the same."""
    found = draw_failures(jobs, settings, seed).values()
    return tuple(one for one in found if one.category)


def draw_failures(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> Doomed:
    """What is in store for `jobs` at the rates of `settings`."""
    if not jobs:
        return {}
    numbers = np.array([job.number for job in jobs], dtype=np.uint64)
    gpu_s = np.array([max(1.0, job.gpus * job.work_s) for job in jobs])
    killed = kill_chances(gpu_s, settings)
    fate = draw_uniforms(seed, numbers, Purpose.FATE)
    left = 1 - float(killed.mean())
    fails = killed + (1 - killed) * (settings.failing_jobs / left if left > 0 else 0.0)
    scale = len(jobs) / published_rates.JOBS
    made = Maker(settings=settings, seed=seed, scale=scale)
    doomed: Doomed = {}
    for at in np.flatnonzero(fate < fails):
        job = jobs[int(at)]
        if fate[at] < killed[at]:
            doomed[job.number] = FailingJob(number=job.number, uid=made.anybody(job.number), killed=True)
        else:
            doomed[job.number] = made.failing(job)
    return with_faults(doomed, jobs, settings, seed)


def kill_chances(gpu_s: NDArray[np.float64], settings: FailureSettings) -> NDArray[np.float64]:
    """By job; their mean is the share of jobs that are killed, and weighted by GPU time the share of GPU time.

    c · (GPU time)^a, capped at 1: `a` by bisection, `c` from the mean.
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
    # What is cut at 1 is given to the others.
    for _ in range(20):
        chances = np.minimum(1.0, chances * (mean / chances.mean()))
    return chances


class Maker:
    """Makes failing jobs of one seed."""

    def __init__(self, *, settings: FailureSettings, seed: int, scale: float) -> None:
        self.settings, self.seed = settings, seed
        self.people = max(2, round(max(cause.users for cause in published_rates.PHILLY) * scale))
        self._pool = [max(1, round(cause.users * scale)) for cause in published_rates.PHILLY]
        # Of jobs, not of trials: a job makes as many trials as its cause is repeated.
        self._sums = [
            list(accumulate(cause.by_demand[column] / cause.repetition for cause in published_rates.PHILLY))
            for column in range(3)
        ]

    def anybody(self, number: int) -> int:
        return int(self._chance(number, Purpose.USER) * self.people)

    def failing(self, job: SimJob) -> FailingJob:
        """Of a cause drawn by the job's GPUs."""
        sums = self._sums[published_rates.demand_class(job.gpus)]
        row = int(np.searchsorted(sums, self._chance(job.number, Purpose.CAUSE) * sums[-1], side="right"))
        return self.of_row(job, min(row, len(sums) - 1))

    def of_row(self, job: SimJob, row: int, run_s: float | None = None) -> FailingJob:
        """Of one row of the table. `run_s`: until it failed, where that is known."""
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
        return replace(made, shown=self._shown(job, made))

    def _trials(self, number: int, cause: published_rates.PublishedCause) -> int:
        """Geometric, with the table's mean."""
        again = 1 - 1 / cause.repetition
        if again <= 0:
            return 1
        return min(_MOST_TRIALS, 1 + int(log(1 - self._chance(number, Purpose.TRIALS)) / log(again)))

    def _curable(self, number: int, cause: published_rates.PublishedCause) -> bool:
        if cause.category == "no_signature":
            return self._chance(number, Purpose.CURABLE) < self.settings.unexplained_curable
        return cause.transient

    def _shown(self, job: SimJob, made: FailingJob) -> bool:
        """What a trial says by production's rules (prerun/verdict/single_gpu_messages.py), had it the time."""
        if made.run_s > self.settings.trial_s or made.curable or not is_shown_alone(made.category, job.gpus):
            return False
        if job.gpus > 1 and self._chance(job.number, Purpose.COMPANY) < self.settings.needs_company:
            return False
        return self._chance(job.number, Purpose.SEEN) < self.settings.sees

    def _chance(self, number: int, what: Purpose) -> float:
        return draw_uniform(self.seed, number, 0, what)


def is_shown_alone(category: str, gpus: int) -> bool:
    """Whether a failure of a one-GPU trial is said to be the job's own (prerun/verdict/single_gpu_messages.py)."""
    if category == "no_signature":
        return gpus <= 1
    if category in ELSEWHERE or CATEGORIES[category].decision not in ("stop", "blacklist_input"):
        return False
    return gpus <= 1 or category != "gpu_oom"


def again_s(failing_job: FailingJob, seed: int, run: int) -> float:
    """How long run `run` (0: the first) goes until it fails.

    What is wrong with the job itself strikes at the same place again; what is not strikes anew.
    """
    if run == 0 or not failing_job.curable or failing_job.row < 0:
        return failing_job.run_s
    return curve_of(published_rates.PHILLY[failing_job.row]).seconds(
        draw_uniform(seed, failing_job.number, run, Purpose.TIME)
    )


def with_faults(doomed: Doomed, jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> Doomed:
    """With the faults numbered: of one user and cause, a later failure may be of the very same file."""
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


_SAID = {
    "OUT_OF_MEMORY": "cpu_oom",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "PREEMPTED": "job_preempted",
}
# Slurm would have said so, or the kernel.
_NOT_OF_FAILED = frozenset({"cpu_oom", "job_preempted", "gpu_ecc_error"})
Asked = tuple[object, ...]
# Failures that nothing has answered; heaps, by end.
Open = dict[Asked, list[tuple[float, int, SimJob, FailingJob]]]


def draw_dump(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> Doomed:
    """By the jobs' own `status`; what Slurm does not call a failure ended well."""
    users = {user: at for at, user in enumerate(dict.fromkeys(job.user for job in jobs))}
    made = Maker(settings=settings, seed=seed, scale=1.0)
    last_run = {job.job: job.number for job in sorted(jobs, key=lambda job: job.submit_s)}
    unanswered: Open = {}
    doomed: Doomed = {}
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


def _just_before(job: SimJob, unanswered: Open, settings: FailureSettings) -> FailingJob | None:
    """The failure that this job may be another try of: the one that has waited longest for its answer."""
    known = unanswered.get(_make_request_key(job), [])
    while known and job.submit_s - known[0][0] > settings.same_fault_s:
        heappop(known)
    if not known or known[0][0] > job.submit_s:
        return None
    _, _, earlier, failed = known[0]
    more = failed.category == "cpu_oom" and (job.mem_mib or 0) > (earlier.mem_mib or 0)
    return failed if more or (job.cpus, job.mem_mib) == (earlier.cpus, earlier.mem_mib) else None


def _make_request_key(job: SimJob) -> Asked:
    """What a user asks for each time that they submit the same; without users no job is another one again."""
    who = job.user or job.number
    return (who, job.model, job.gpus, job.nodes, job.limit_s, job.partition)


def _find_failure(job: SimJob, made: Maker, before: FailingJob | None) -> FailingJob | None:
    state = job.status.split(" ")[0].upper()  # "CANCELLED by 1000"
    if state == "CANCELLED":
        return FailingJob(number=job.number, uid=0, killed=True)
    if state == "FAILED":
        drawn_before = before is not None and before.row >= 0 and before.category not in _NOT_OF_FAILED
        row = before.row if before is not None and drawn_before else _draw_likely_row(job, made.seed)
        return _chain_failures(made.of_row(job, row, run_s=job.work_s), before)
    said = _SAID.get(state)
    return _chain_failures(_as_said(job, said, made), before) if said else None


def _chain_failures(found: FailingJob, before: FailingJob | None) -> FailingJob:
    """With the number of the first one of those that are one fault."""
    again = before is not None and before.category == found.category
    first = before.chain if before is not None and again else found.number
    return replace(found, chain=first, fault=first if found.category == "incorrect_inputs" else -1)


def _draw_likely_row(job: SimJob, seed: int) -> int:
    """Row of table 7, by the trials of its column times the density of its run times at this one."""
    column = published_rates.demand_class(job.gpus)
    weights = [
        0.0
        if cause.category in _NOT_OF_FAILED
        else cause.by_demand[column] / cause.repetition * curve_of(cause).density(job.work_s)
        for cause in published_rates.PHILLY
    ]
    sums = list(accumulate(weights))
    wanted = draw_uniform(seed, job.number, 0, Purpose.CAUSE) * sums[-1]
    return next(at for at, total in enumerate(sums) if total > wanted)


def _as_said(job: SimJob, category: str, made: Maker) -> FailingJob:
    row = next((at for at, cause in enumerate(published_rates.PHILLY) if cause.category == category), -1)
    if row >= 0:
        return replace(made.of_row(job, row, run_s=job.work_s), trials=1)
    by_node = category == "node_failure"
    return FailingJob(
        number=job.number, uid=0, category=category, reason=job.status, run_s=job.work_s, curable=by_node,
        by_node=by_node,
    )  # fmt: skip
