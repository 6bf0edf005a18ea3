"""Run-time records: what is known about ended runs (RunTimeSample), about a job before it runs
(RunTimeQuery), and what is expected of it (RunTimeEstimate).

Times in seconds. A run time is the time from start to end, without queueing.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp, inf, log

from slurmwrap.fast_dataclasses import dataclass

# Probabilities of RunTimeEstimate.quantiles_s.
QUANTILE_LEVELS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# Shortest run time that is distinguished: Slurm records whole seconds.
SHORTEST_S = 1.0

# Where an estimate comes from, most specific first. These are the values of RunTimeEstimate.source.
FROM_PROGRESS = "progress"  # the running job's own steps
FROM_RUNS = "runs"  # earlier runs of the same job with the same length options
FROM_SCALED_RUNS = "scaled runs"  # earlier runs of the same job that differ in one length option
FROM_PRERUN = "pre-run"  # steps per second in the pre-run and the total number of steps
FROM_OTHER_RUNS = "other runs"  # runs of the same key with other settings
FROM_USER = "user"  # the user's runs with as many GPUs
FROM_ACCOUNT = "account"  # the account's runs with as many GPUs
FROM_PARTITION = "partition"  # the partition's runs with as many GPUs
SOURCES = (
    *(FROM_PROGRESS, FROM_RUNS, FROM_SCALED_RUNS, FROM_PRERUN),
    *(FROM_OTHER_RUNS, FROM_USER, FROM_ACCOUNT, FROM_PARTITION),
)
# Sources that say something about this very job, not only about jobs of its size.
SPECIFIC_SOURCES = frozenset((FROM_PROGRESS, FROM_RUNS, FROM_SCALED_RUNS, FROM_PRERUN, FROM_OTHER_RUNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeSample:
    """One run as evidence.

    `complete` False: it was cut off (TIMEOUT, CANCELLED) or still runs, so it takes longer than `run_s`.
    """

    run_s: float
    complete: bool = True
    submit_s: float = 0.0  # when it was submitted, Unix seconds; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeEstimate:
    """The expected run time of one job as a distribution: its quantiles at QUANTILE_LEVELS, ascending."""

    quantiles_s: tuple[float, ...]
    source: str  # FROM_RUNS etc.
    n: int  # number of complete runs of that source; 0 if it is not made of runs

    @property
    def p10_s(self) -> float:
        """Return the run time that one run in ten stays below."""
        return self.quantiles_s[2]

    @property
    def p50_s(self) -> float:
        """Return the median."""
        return self.quantiles_s[6]

    @property
    def p80_s(self) -> float:
        """Return the run time that eight runs in ten stay below."""
        return self.quantiles_s[9]

    @property
    def p90_s(self) -> float:
        """Return the run time that nine runs in ten stay below."""
        return self.quantiles_s[10]

    @property
    def p99_s(self) -> float:
        """Return the run time that 99 runs in 100 stay below."""
        return self.quantiles_s[12]

    @property
    def specific(self) -> bool:
        """Return True if it rests on this very job, not only on jobs of the same size."""
        return self.source in SPECIFIC_SOURCES

    def share_within(self, run_s: float) -> float:
        """Return the probability that the run ends within `run_s`, 0 to 1, interpolated on a log scale."""
        times, levels = self.quantiles_s, QUANTILE_LEVELS
        at = bisect_right(times, run_s)
        if at == len(times):
            return 1.0
        if at == 0:
            return 0.0
        lower, upper = times[at - 1], times[at]
        part = log(run_s / lower) / log(upper / lower) if upper > lower > 0 else 1.0
        return levels[at - 1] + part * (levels[at] - levels[at - 1])

    def quantile_s(self, level: float) -> float:
        """Return the run time with probability `level`, 0 to 1; beyond the known levels the outermost one."""
        levels, times = QUANTILE_LEVELS, self.quantiles_s
        at = bisect_right(levels, level)
        if at == 0 or at == len(levels):
            return times[min(at, len(levels) - 1)]
        part = (level - levels[at - 1]) / (levels[at] - levels[at - 1])
        return exp(log(times[at - 1]) + part * (log(times[at]) - log(times[at - 1])))

    def expect_remaining_s(self, elapsed_s: float) -> float | None:
        """Return the median remaining time of a run that has run for so long; None if it outran every quantile."""
        gone = self.share_within(elapsed_s)
        if elapsed_s >= self.quantiles_s[-1]:
            return None
        return max(0.0, self.quantile_s(gone + (1 - gone) / 2) - elapsed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeQuery:
    """What is known about a job before it runs. Strings are "" and numbers None where they are unknown.

    `user`: in slurmwrap's own records the uid as text; any name that identifies the user will do. `length`: its options
    that say how long it trains, name to value ("epochs" -> "90"), as job_key.derive_length() returns them.
    """

    user: str = ""
    key: str = ""  # profile key
    variant: str = ""
    length: tuple[tuple[str, str], ...] = ()
    gpus: int = 0
    account: str = ""
    partition: str = ""


def scale_estimate(estimate: RunTimeEstimate, factor: float) -> RunTimeEstimate:
    """Return the estimate for a job that takes `factor` times as long. ValueError unless 0 < factor < inf."""
    if not 0 < factor < inf:
        raise ValueError(f"the factor must be greater than 0 and finite, not {factor}")
    scaled = tuple(max(SHORTEST_S, time * factor) for time in estimate.quantiles_s)
    return RunTimeEstimate(quantiles_s=scaled, source=estimate.source, n=estimate.n)
