"""Estimate whether a pre-run is worth its time: what it saves by stopping a failing job, against its cost. Pure.

    saving = GPUs x P(failure that it stops) x GPU time lost by such a failure
    cost   = duration of the pre-run (it has one GPU) + wait_weight x duration, if the job could start now

gsub (gsub/prepare.py) and the failure study (sim/failures/play_failures.py) both call `estimate_saving`.

The prior is Philly's table 7 (Jeon et al., USENIX ATC 2019): which share of jobs fails of a cause that one GPU shows,
and after how long. tests/sim/failures/test_expected_saving_prior.py computes the constants below from the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.run_time import RunTimeEstimate

# Shares of jobs with 1, 2 to 4, and more than 4 GPUs that fail within EARLY_S, and later, of a cause that a single GPU
# shows and that no other run cures.
EARLY_S = 180.0
EARLY_FAILURES = (0.066, 0.088, 0.075)
LATE_FAILURES = (0.050, 0.064, 0.057)
# Mean run time of an early failure, and of a late one in a job that would run so long (seconds -> seconds).
EARLY_LOSS_S = 43.0
LATE_LOSS_S = ((180, 180), (600, 538), (1800, 1312), (3600, 2225), (14400, 5849), (86400, 16675), (604800, 34024))
# Which share of these a pre-run stops, as measured at first sight (docs/prerun-rounds.md). The late ones: the share of
# public threads whose code a rehearsal executes (tests/data/failures/README.md), times that of the late bugs that it
# stopped. Assumed: a fifth of the failures of a job with several GPUs needs several processes.
SEEN_EARLY = 0.94
SEEN_LATE = 0.27
NEEDS_COMPANY = 0.2
# Assumed: the user's own history weighs as much as the prior after so many scripts.
PRIOR_SCRIPTS = 20.0
# Median run time of Philly's jobs by their GPUs as above, for a job without history and time limit.
PHILLY_RUN_S = (1117.0, 367.0, 23649.0)
# Assumed: a time limit is 1.2 to 10 times the run time, log-uniformly distributed. LIMIT_SHARE is the mean share of the
# limit that a job runs.
LIMIT_FACTORS = (1.2, 10.0)
LIMIT_SHARE = (1 / LIMIT_FACTORS[0] - 1 / LIMIT_FACTORS[1]) / log(LIMIT_FACTORS[1] / LIMIT_FACTORS[0])
# Duration of a pre-run without history: three steps and a short rehearsal.
PRERUN_S = 60.0
# Pre-runs of one key whose median counts as the expected duration.
_NEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOutcome:
    """What became of one earlier submission. `failed` None: not known, or its end says nothing about the script."""

    key: str  # profiling.job_key.derive_key()
    fingerprint: str
    failed: bool | None = None
    prerun_s: float = 0.0  # of its pre-run; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptHistory:
    """A user's earlier scripts, as counts of (failed, known) versions; a version is one fingerprint."""

    new: tuple[int, int] = (0, 0)  # first versions of a key
    changed: tuple[int, int] = (0, 0)  # later versions of a key
    own: tuple[int, int] = (0, 0)  # all versions of this job's key
    seen: bool = False  # whether there is an earlier version of this job's key
    prerun_s: float | None = None  # median of this key's newest pre-runs; None: none


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunCase:
    """One job for which a pre-run is considered."""

    gpus: int
    time_limit_s: float | None = None
    history: ScriptHistory = ScriptHistory()
    run_time: RunTimeEstimate | None = None  # by earlier runs (profiling/run_time.py); None: none is known
    site: ScriptHistory = ScriptHistory()  # of all users; only `new` and `changed` count
    starts_now: bool = False  # whether it could start now, so that the pre-run delays it
    wait_weight: float = 1.0  # GPU-seconds that one second of delay counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingEstimate:
    """The estimate and what it was made of. Times in seconds, savings and costs in GPU-seconds."""

    gpus: int
    failure_probability: float  # that the job fails in a way that the pre-run stops
    scripts: int  # known earlier scripts of the user that changed the probability
    site_scripts: int  # the same of all users; both 0: Philly's table alone
    run_s: float
    run_source: str  # "history", "similar jobs", "time limit" or "Philly"
    lost_s: float  # run time that such a failure loses
    prerun_s: float
    saving: float
    prerun_cost: float
    delay_cost: float

    @property
    def worthwhile(self) -> bool:
        """Whether the pre-run saves more than it costs."""
        return self.saving > self.prerun_cost + self.delay_cost


def estimate_saving(case: PrerunCase) -> SavingEstimate:
    """Return what a pre-run of this job is expected to save and to cost."""
    history, column = case.history, get_gpu_class(case.gpus)
    company = 1 - NEEDS_COMPANY if case.gpus > 1 else 1.0
    early = EARLY_FAILURES[column] * SEEN_EARLY * company
    late = LATE_FAILURES[column] * SEEN_LATE * company
    run_s, run_source = _choose_run_time(case)
    lost_s = (early * min(EARLY_LOSS_S, run_s) + late * interpolate_late_loss(run_s)) / (early + late)
    # A script with earlier versions is compared with others' changes, then the user's own, then its own versions.
    site = case.site.changed if history.seen else case.site.new
    users = history.changed if history.seen else history.new
    probability = early + late
    for failed, known in (site, users, history.own):
        probability = update_probability(probability, failed, known)
    prerun_s = PRERUN_S if history.prerun_s is None else history.prerun_s
    return SavingEstimate(
        gpus=case.gpus,
        failure_probability=probability,
        scripts=users[1],
        site_scripts=site[1],
        run_s=run_s,
        run_source=run_source,
        lost_s=lost_s,
        prerun_s=prerun_s,
        saving=case.gpus * probability * lost_s,
        prerun_cost=prerun_s,
        delay_cost=case.wait_weight * prerun_s if case.starts_now else 0.0,
    )


def get_gpu_class(gpus: int) -> int:
    """Return the column of the tables above for a job with so many GPUs."""
    return 0 if gpus <= 1 else 1 if gpus <= 4 else 2


def update_probability(prior: float, failed: int, known: int) -> float:
    """Return the mean of a Beta distribution of PRIOR_SCRIPTS scripts at `prior`, after `failed` of `known` failed."""
    return (prior * PRIOR_SCRIPTS + failed) / (PRIOR_SCRIPTS + known)


def _choose_run_time(case: PrerunCase) -> tuple[float, str]:
    """Return the expected run time in seconds, and its source: earlier runs, the time limit, or Philly's jobs.

    A time limit says more about a new job than other jobs with as many GPUs, of which many are short tries.
    """
    known, limit_s = case.run_time, case.time_limit_s
    if known is not None and (known.specific or not limit_s):
        run_s = known.p50_s if not limit_s else min(known.p50_s, limit_s)
        return run_s, "history" if known.specific else "similar jobs"
    if limit_s:
        return limit_s * LIMIT_SHARE, "time limit"
    return PHILLY_RUN_S[get_gpu_class(case.gpus)], "Philly"


def interpolate_late_loss(run_s: float) -> float:
    """Return the mean run time until a late failure, at most `run_s`; the logarithms are interpolated."""
    if run_s <= LATE_LOSS_S[0][0]:
        return run_s
    for (low, lost_low), (high, lost_high) in pairwise(LATE_LOSS_S):
        if run_s <= high:
            share = log(run_s / low) / log(high / low)
            return exp(log(lost_low) + share * log(lost_high / lost_low))
    return float(LATE_LOSS_S[-1][1])


def summarize_history(outcomes: Sequence[ScriptOutcome], key: str) -> ScriptHistory:
    """Return the history that matters for a job with this key. `outcomes`: the user's submissions, oldest first."""
    versions: dict[str, dict[str, bool | None]] = {}
    for one in outcomes:
        known = versions.setdefault(one.key, {})
        before = known.get(one.fingerprint)
        # A version counts as failed if any of its runs or pre-runs failed: the first one could have been stopped.
        known[one.fingerprint] = before if one.failed is None else bool(before) or one.failed
    first = [next(iter(known.values())) for known in versions.values()]
    later = [failed for known in versions.values() for failed in [*known.values()][1:]]
    own = [one for one in outcomes if one.key == key]
    return ScriptHistory(
        new=_count_failed(first),
        changed=_count_failed(later),
        own=_count_failed(versions.get(key, {}).values()),
        seen=bool(own),
        prerun_s=_find_median([one.prerun_s for one in own if one.prerun_s]),
    )


def _count_failed(versions: Iterable[bool | None]) -> tuple[int, int]:
    known = [failed for failed in versions if failed is not None]
    return sum(known), len(known)


def _find_median(oldest_first: Sequence[float]) -> float | None:
    newest = sorted(oldest_first[-_NEWEST:])
    return newest[len(newest) // 2] if newest else None


def describe_estimate(estimate: SavingEstimate) -> str:
    """Return the reason for or against the pre-run in one sentence."""
    verb = "saves more than it costs" if estimate.worthwhile else "would cost more than it saves"
    risk = f"{estimate.failure_probability:.1%} risk"
    known = ["Philly's failures"]
    known += [f"{estimate.site_scripts} scripts of this site"] if estimate.site_scripts else []
    known += [f"{estimate.scripts} of yours"] if estimate.scripts else []
    sources = f"run time from {_RUN_SOURCES[estimate.run_source]}, risk from {' and '.join(known)}"
    own = f"its own {format_gpu_time(estimate.prerun_cost)}"
    delay = f" and {format_gpu_time(estimate.delay_cost)} for the delay" if estimate.delay_cost else ""
    return (
        f"it {verb}: {format_gpu_time(estimate.saving)} ({estimate.gpus} GPU{'s' * (estimate.gpus != 1)} x {risk} x "
        f"{_format_time(estimate.lost_s)} lost) against {own}{delay}; {sources}"
    )


_RUN_SOURCES: Mapping[str, str] = {
    "history": "its earlier runs",
    "similar jobs": "jobs with as many GPUs",
    "time limit": "the time limit",
    "Philly": "Philly's jobs",
}


def format_gpu_time(gpu_s: float) -> str:
    """Return GPU-seconds in GPU-minutes or GPU-hours, with two digits."""
    return f"{gpu_s / 3600:.1f} GPU-h" if gpu_s >= 5400 else f"{gpu_s / 60:.1f} GPU-min"


def _format_time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"
