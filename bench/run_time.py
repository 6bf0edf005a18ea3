"""Evaluate predicted run times by causal replay: each job is predicted from what had ended before its submission.

    bench/run_time.py                            Philly's trace, and a synthetic year of 30 days (about two minutes)
    bench/run_time.py --trace philly.csv.gz      another trace with the columns of tests/data/traces
    bench/run_time.py --db site.db               the table run_times of a site's or a user's own database
    bench/run_time.py --plot docs/run-time.svg   draws the errors and the bounds of --trace and --keys
    bench/run_time.py --keys                     invented jobs whose run times have a known spread within a key

Philly's trace has no programs, so a job is known by its virtual cluster and its number of GPUs only (jobs of 1 to 32
GPUs and 2 minutes to 24 hours; each ends its run time after its submission). The other predictor in the same replay is
the mean of the last two runs of the same virtual cluster with as many GPUs (Tsafrir et al., IEEE TPDS 2007).

Printed: the share of jobs predicted within a factor of two, the standard deviation of log(predicted / true), the share
of jobs that end within the predicted 90 % quantile, and the rank correlation (Spearman). With --keys a predictor that
knows the median of each key is shown as well: no predictor can be better. --check: exit code 1 if Philly's figures are
not better than 57 %, 1.45 and 0.45.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import random
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from importlib import import_module
from pathlib import Path
from statistics import NormalDist

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import QUANTILE_LEVELS, RunTimeEstimate, RunTimeSample
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery, RunTimeRecord
from slurmwrap.store.database import Database

TRACE = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces" / "philly.csv.gz"
SHORTEST_S, LONGEST_S, MOST_GPUS = 120, 86_400, 32
# What prediction by virtual cluster and GPUs was worth before (share, sigma, Spearman).
TARGETS = (0.57, 1.45, 0.45)
SYNTHETIC_DAYS, SYNTHETIC_JOBS = 30, 1000
SPREADS = (0.2, 0.4, 0.6, 0.8, 1.2)
# The predictor that no predictor can beat, of jobs whose median is known.
BEST = "the median of its key, known beforehand"
# The invented jobs of --keys: users, keys of each, jobs, and the spread of the medians of keys.
USERS, KEYS, JOBS, KEY_SIGMA = 60, 8, 20_000, 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """One run. Seconds from any beginning. `best_s`: the median of its key if it is known, for a bound."""

    submit_s: float
    end_s: float
    job: RunTimeQuery
    sample: RunTimeSample
    best_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Figures:
    """Predicted and true run times of one predictor."""

    name: str
    pairs: list[tuple[float, float]] = field(default_factory=list)  # (predicted, true)
    within_p90: list[bool] = field(default_factory=list)
    placed: list[float] = field(default_factory=list)  # the true run time's place in the predicted distribution, 0 to 1

    def add(self, predicted: float, true: float, estimate: RunTimeEstimate | None = None) -> None:
        self.pairs.append((predicted, true))
        if estimate is not None:
            self.within_p90.append(true <= estimate.p90_s)
            self.placed.append(estimate.share_within(true))

    @property
    def share(self) -> float:
        """Return the share of jobs within a factor of two."""
        return sum(0.5 <= predicted / true <= 2 for predicted, true in self.pairs) / len(self.pairs)

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the log error."""
        return statistics.pstdev(math.log(predicted / true) for predicted, true in self.pairs)

    @property
    def spearman(self) -> float:
        """Return the rank correlation."""
        ranks = [_rank(values) for values in zip(*self.pairs, strict=True)]
        return statistics.correlation(*ranks)

    def line(self) -> str:
        covered = f"{100 * sum(self.within_p90) / len(self.within_p90):.1f} %" if self.within_p90 else "-"
        figures = f"{100 * self.share:>9.1f} %{self.sigma:>9.3f}{covered:>10}{self.spearman:>10.3f}"
        return f"  {self.name:44}{len(self.pairs):>8,}{figures}"


HEAD = f"  {'':44}{'jobs':>8}{'within 2x':>11}{'sigma':>9}{'in p90':>10}{'Spearman':>10}"


def _rank(values: Sequence[float]) -> list[float]:
    """Return the ranks; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in range(at, end):
            ranks[order[place]] = (at + end - 1) / 2
        at = end
    return ranks


def replay(jobs: Iterable[ReplayJob]) -> tuple[list[Figures], float]:
    """Return the figures of all predictors, and the milliseconds of one prediction. Cut-off runs are only evidence.

    A job counts if both predictors know something about it. The last two runs are of the user, or of the account if
    users are not known.
    """
    history, last_two = RunTimeHistory(), defaultdict[tuple[str, int], deque[float]](lambda: deque(maxlen=2))
    ours, specific = Figures(name="production"), Figures(name="production, jobs with runs of the same key")
    tsafrir, best = Figures(name="mean of the last two"), Figures(name=BEST)
    running: list[tuple[float, int, ReplayJob]] = []
    spent = 0.0
    for number, one in enumerate(sorted(jobs, key=lambda job: job.submit_s)):
        while running and running[0][0] <= one.submit_s:
            ended = heappop(running)[2]
            history.add(ended.job, ended.sample)
            if ended.sample.complete:
                last_two[_owner(ended.job)].append(ended.sample.run_s)
        began = time.perf_counter()
        found = history.estimate(one.job, submit_s=one.submit_s)
        spent += time.perf_counter() - began
        before = last_two[_owner(one.job)]
        if found is not None and before and one.sample.complete:
            ours.add(found.p50_s, one.sample.run_s, found)
            tsafrir.add(statistics.fmean(before), one.sample.run_s)
            if found.specific:
                specific.add(found.p50_s, one.sample.run_s, found)
            if one.best_s is not None:
                best.add(one.best_s, one.sample.run_s)
        heappush(running, (one.end_s, number, one))
    figures = [one for one in (ours, specific, tsafrir, best) if one.pairs]
    return figures, 1000 * spent / max(1, number + 1)


def _owner(job: RunTimeQuery) -> tuple[str, int]:
    return job.user or job.account, job.gpus


def read_trace(path: Path) -> Iterator[ReplayJob]:
    """Yield the jobs of a trace. Its column `user` is a virtual cluster, so that it is the account."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            submit_s, run_s, gpus = float(row["submit_s"]), float(row["duration_s"]), int(row["gpus"])
            if SHORTEST_S <= run_s <= LONGEST_S and gpus <= MOST_GPUS:
                job = RunTimeQuery(account=row["user"], partition="all", gpus=gpus)
                sample = RunTimeSample(run_s=run_s, submit_s=submit_s)
                yield ReplayJob(submit_s=submit_s, end_s=submit_s + run_s, job=job, sample=sample)


def read_database(path: Path) -> list[ReplayJob]:
    """Return the stored run times of a database, of all clusters in it."""
    sql = """SELECT c.name AS cluster, r.submit_time, r.end_time, r.uid, r.key, r.variant, r.length, r.gpus,
        a.name AS account, p.name AS partition, r.run_s, r.complete FROM run_times r JOIN names c ON c.id = r.cluster
        JOIN names a ON a.id = r.account JOIN names p ON p.id = r.partition ORDER BY r.submit_time"""
    from slurmwrap.store.run_time_rows import job_from_row

    with Database.open(path, readonly=True) as store:
        rows = store.each(sql, (), lambda row: row)
        return [
            ReplayJob(
                submit_s=float(row["submit_time"]),
                end_s=float(row["end_time"]),
                job=job_from_row(row)[0],
                sample=RunTimeSample(
                    run_s=float(row["run_s"]), complete=bool(row["complete"]), submit_s=float(row["submit_time"])
                ),
            )
            for row in rows
        ]


def invent_jobs(sigma: float, seed: int = 1) -> Iterator[ReplayJob]:
    """Yield jobs of users with several keys each. Within a key log(run time) has a standard deviation of `sigma`.

    A third of the jobs trains for another number of epochs than usual, in proportion to which its run time changes.
    """
    chance = random.Random(f"{seed} {sigma}")
    medians = {
        (user, key): math.exp(chance.gauss(math.log(3600), KEY_SIGMA)) for user in range(USERS) for key in range(KEYS)
    }
    weights = [1 / (user + 1) for user in range(USERS)]
    at = 0.0
    for _ in range(JOBS):
        at += chance.expovariate(1 / 120)
        user = chance.choices(range(USERS), weights)[0]
        key = min(KEYS - 1, int(KEYS * chance.random() ** 2))
        epochs = 90 if chance.random() < 2 / 3 else chance.choice((30, 45, 180))
        best_s = max(1.0, medians[(user, key)] * epochs / 90)
        run_s = max(1.0, best_s * math.exp(chance.gauss(0, sigma)))
        job = RunTimeQuery(
            user=str(user), key=str(key), length=(("epochs", str(epochs)),), gpus=2 ** (key % 4), account=str(user % 9),
            partition="gpu",
        )  # fmt: skip
        sample = RunTimeSample(run_s=run_s, submit_s=at)
        yield ReplayJob(submit_s=at, end_s=at + run_s, job=job, sample=sample, best_s=best_s)


def measure_lookups(jobs: Sequence[ReplayJob], count: int = 20_000) -> str:
    """Return the cost of a stored run, and of the lookup for a pending job, as the reconciler does it."""
    with tempfile.TemporaryDirectory() as scratch, Database.open(Path(scratch) / "site.db") as store:
        began = time.perf_counter()
        with store.transaction():
            for number, one in enumerate(jobs[:count]):
                key = RunKey(cluster="c", job_id=number, submit_time=int(one.submit_s))
                job = one.job if one.job.user else RunTimeQuery(user="1", account=one.job.account, gpus=one.job.gpus)
                end, user = int(one.end_s), int(job.user)
                store.save_run_time(RunTimeRecord(attempt=key, uid=user, end_time=end, job=job, sample=one.sample))
        stored_ms = 1000 * (time.perf_counter() - began) / min(count, len(jobs))
        history = RunTimeHistory(read=lambda group: store.run_times("c", group))
        pending = list(dict.fromkeys(one.job for one in jobs[:count]))[:2000]
        first, again = (_time_lookups(history, pending) for _ in range(2))
    return f"  stored: {stored_ms:.3f} ms a run; looked up: {first:.3f} ms a pending job, {again:.4f} ms once more"


def _time_lookups(history: RunTimeHistory, pending: Sequence[RunTimeQuery]) -> float:
    began = time.perf_counter()
    for job in pending:
        history.estimate(job)
    return 1000 * (time.perf_counter() - began) / len(pending)


def print_replay(title: str, jobs: Sequence[ReplayJob]) -> list[Figures]:
    figures, ms = replay(jobs)
    print(f"{title}: {len(jobs):,} runs; {ms:.2f} ms a prediction", HEAD, *(one.line() for one in figures), sep="\n")
    return figures


def draw(philly: Sequence[Figures], keyed: Figures, path: Path) -> None:
    """Plot the ratios of predicted to true run times, and how many jobs end within each predicted bound."""
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.6), layout="constrained")
    errors, bounds = figure.subplots(1, 2)
    names = (
        *(("Philly: here", philly[0], "#264653"), ("Philly: mean of the last two", philly[-1], "#e9c46a")),
        ("runs of a job differ by 0.6 (log)", keyed, "#e76f51"),
    )
    steps = [math.exp(math.log(100) * step / 50) for step in range(-50, 51)]
    for name, one, colour in names:
        ratios = sorted(predicted / true for predicted, true in one.pairs)
        errors.plot(steps, [100 * bisect_right(ratios, step) / len(ratios) for step in steps], color=colour, label=name)
    errors.axvspan(0.5, 2, color="#888888", alpha=0.15, linewidth=0)
    errors.set(
        xscale="log", xlabel="predicted / true run time", ylabel="jobs below, %", title="Error (grey: a factor of 2)"
    )
    bounds.plot([0, 100], [0, 100], color="#888888", linewidth=0.8)
    for name, one, colour in (names[0], names[2]):
        placed = sorted(one.placed)
        within = [100 * bisect_right(placed, level) / len(placed) for level in QUANTILE_LEVELS]
        bounds.plot([100 * level for level in QUANTILE_LEVELS], within, "o-", color=colour, markersize=4, label=name)
    bounds.set(xlabel="predicted: jobs that end within the bound, %", ylabel="true, %", title="Bounds")
    for axes in (errors, bounds):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--db", type=Path, help="evaluate this database only")
    parser.add_argument("--keys", action="store_true", help="evaluate invented jobs with keys only")
    parser.add_argument("--check", action="store_true", help="exit code 1 if Philly's figures are not better")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw this file only")
    given = parser.parse_args()
    if given.plot is not None:
        draw(replay(read_trace(given.trace))[0], replay(invent_jobs(0.6))[0][0], given.plot)
        return 0
    if given.db is not None:
        print_replay(str(given.db), read_database(given.db))
        return 0
    if given.keys:
        for sigma in SPREADS:
            within = 2 * NormalDist().cdf(math.log(2) / sigma) - 1
            jobs = list(invent_jobs(sigma))
            print_replay(f"invented jobs, sigma within a key {sigma} (at best {100 * within:.1f} % within 2x)", jobs)
        print(measure_lookups(jobs))
        return 0
    jobs = list(read_trace(given.trace))
    ours = print_replay(f"{given.trace.name}, by virtual cluster and GPUs", jobs)[0]
    print(measure_lookups(jobs))
    from synthetic_year import fill

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "site.db"
        fill(path, days=SYNTHETIC_DAYS, jobs_per_day=SYNTHETIC_JOBS)
        print_replay(f"synthetic year, {SYNTHETIC_DAYS} days", read_database(path))
    better = ours.share > TARGETS[0] and ours.sigma < TARGETS[1] and ours.spearman > TARGETS[2]
    return int(given.check and not better)


if __name__ == "__main__":
    sys.exit(main())
