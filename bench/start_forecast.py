"""Compare the start forecast with Slurm's own, by replay of windows of the Philly trace in the simulator's slurm mode.

    bench/start_forecast.py                       ten windows, loads 1.0 and 1.3 (about ten minutes)
    bench/start_forecast.py --windows 2 --loads 1.3

Each window has 480 jobs on 15 servers of 4 GPUs. Users request 1.2 to 10 times the run time of their job, rounded up
to a usual limit, 24 h at most. At each submission of a job that has to wait, three forecasts of its start are made:
Slurm's backfill plan, in which every job uses its whole time limit; and production's (placement/start_forecast.py) with
two sets of run time estimates: "history" (production's predictor, from earlier jobs of the same virtual cluster with as
many GPUs, of which it knows only what had ended by then) and "keys" (a predictor whose error has a standard deviation
of log(run time) of 0.5, as with earlier runs of the same job).

Printed: the median absolute error of each forecast, the ratio of both to Slurm's in the same run, the share of jobs
that started by the 90 % bound, and the milliseconds of production's forecast per pending job. Exit code 1 if a ratio
with "history" is above --most-ratio (1.0).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from statistics import NormalDist, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate, RunTimeSample
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob, forecast_starts
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery
from slurmwrap.sim.engines.backfill_engine import BackfillSimulator, SchedulerParams
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

TRACE = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces" / "philly.csv.gz"
COUNT, SERVERS, GPUS = 480, 15, 4
SHORTEST_S, LONGEST_S, MOST_GPUS = 120, 86_400, 32
HABIT = (1.2, 10.0)
# Usual time limits, in seconds.
LIMITS = tuple(60 * minutes for minutes in (10, 30, 60, 120, 240, 480, 720, 1440))
KEYS_SIGMA = 0.5
NORMAL = tuple(NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of the trace. Seconds from its first submission."""

    submit_s: float
    run_s: float
    gpus: int
    account: str


@dataclass(slots=True, kw_only=True)
class Errors:
    """Absolute errors in seconds of the forecasts of one window at one load, for jobs of which Slurm has a plan."""

    slurm: list[float] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    keys: list[float] = field(default_factory=list)
    by_history: list[bool] = field(default_factory=list)  # it started by the 90 % bound
    by_keys: list[bool] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    per_job_ms: list[float] = field(default_factory=list)
    unplanned: int = 0  # jobs for which Slurm has no plan


def read_jobs() -> list[TraceJob]:
    """Return the jobs of the trace that the windows are cut from."""
    with gzip.open(TRACE, "rt", newline="") as lines:
        rows = [
            TraceJob(
                submit_s=float(row["submit_s"]), run_s=float(row["duration_s"]), gpus=int(row["gpus"]),
                account=row["user"],
            )
            for row in csv.DictReader(lines)
        ]  # fmt: skip
    kept = [job for job in rows if job.gpus <= MOST_GPUS and SHORTEST_S <= job.run_s <= LONGEST_S]
    return sorted(kept, key=lambda job: (job.submit_s, job.account, job.gpus, job.run_s))


def make_window(jobs: Sequence[TraceJob], first: int, load: float, seed: int) -> list[SimJob]:
    """Return jobs of the trace from `first` on, with arrivals stretched to the offered load, and users' time limits."""
    window = jobs[first : first + COUNT]
    work = sum(job.run_s * job.gpus for job in window)
    span = window[-1].submit_s - window[0].submit_s
    stretch = work / (load * SERVERS * GPUS) / span
    chance = random.Random(seed)
    found = []
    for number, job in enumerate(window):
        wanted = job.run_s * math.exp(chance.uniform(*map(math.log, HABIT)))
        limit = LIMITS[min(bisect_left(LIMITS, wanted), len(LIMITS) - 1)]
        found.append(
            SimJob(
                number=number,
                job=str(number),
                submit_s=(job.submit_s - window[0].submit_s) * stretch,
                work_s=job.run_s,
                gpus=job.gpus,
                user=job.account,
                limit_s=float(max(limit, job.run_s + 60)),
            )
        )
    return found


class ForecastingSimulator(BackfillSimulator):
    """The simulator, which forecasts the start of each job that cannot start when it is submitted."""

    def prepare(self, before: Sequence[TraceJob], seed: int) -> None:
        """Set what is known at the start of the window: the earlier jobs of the trace."""
        self.history = RunTimeHistory()
        self.known: list[tuple[float, int]] = []
        self.keys: dict[int, RunTimeEstimate] = {}
        self.found: list[tuple[int, float, float | None, float, float, float, float]] = []
        self.per_job_ms: list[float] = []
        self.watched: set[int] = set()
        for job in sorted(before, key=lambda one: one.submit_s + one.run_s):
            self.history.add(make_query(job.account, job.gpus), RunTimeSample(run_s=job.run_s))
        chance = random.Random(seed)
        for place, one in enumerate(self.jobs):
            middle = one.work_s * math.exp(chance.gauss(0, KEYS_SIGMA))
            times = tuple(max(1.0, middle * math.exp(KEYS_SIGMA * z)) for z in NORMAL)
            self.keys[place] = RunTimeEstimate(quantiles_s=times, source=FROM_RUNS, n=5)

    def _submit(self, index: int, reconciler: None) -> bool:
        accepted = super()._submit(index, reconciler)
        if accepted:
            self.watched.add(index)
        return accepted

    def _schedule(self) -> None:
        super()._schedule()
        waiting, self.watched = [index for index in self.watched if index in self.pending], set()
        if waiting:
            self._forecast(waiting)

    def _start_job(self, waiting, assignment) -> None:
        super()._start_job(waiting, assignment)
        heappush(self.known, (self.ended[waiting.place], waiting.place))

    def _forecast(self, wanted: Sequence[int]) -> None:
        while self.known and self.known[0][0] <= self.now:
            job = self.jobs[heappop(self.known)[1]]
            self.history.add(make_query(job.user, job.gpus), RunTimeSample(run_s=job.work_s))
        plan = self._plan_by_limits()
        known: dict[RunTimeQuery, RunTimeEstimate | None] = {}

        def from_history(place: int) -> RunTimeEstimate | None:
            query = make_query(self.jobs[place].user, self.jobs[place].gpus)
            if query not in known:
                known[query] = self.history.estimate(query)
            return known[query]

        queue = self.list_pending(len(self.pending))
        for place in range(len(self.jobs)):
            if place in self.pending or place in self.running:
                from_history(place)
        began = time.perf_counter()
        by_history = self._forecast_with(from_history, queue)
        self.per_job_ms.append((time.perf_counter() - began) * 1000 / len(queue))
        by_keys = self._forecast_with(self.keys.get, queue)
        for place in wanted:
            ours, keys = by_history[str(place)], by_keys[str(place)]
            self.found.append((place, self.now, plan.get(place), ours.p50_s, ours.p90_s, keys.p50_s, keys.p90_s))

    def _forecast_with(self, estimate, queue: Sequence[PendingSimJob]):
        nodes = [
            NodeGpus(node=str(number), partitions=(), free=int(free)) for number, free in enumerate(self.free.gpus)
        ]
        running = [
            RunningJob(
                gpus=tuple(
                    (str(server), units * one.ask.gpus)
                    for server, units in zip(one.seats.servers, one.seats.units, strict=True)
                ),
                elapsed_s=self.now - one.began, limit_s=one.length_s, estimate=estimate(place),
            )
            for place, one in self.running.items()
        ]  # fmt: skip
        pending = [
            QueuedJob(
                job=str(one.place),
                gpus=one.job.gpus,
                nodes=one.nodes,
                limit_s=one.length_s,
                estimate=estimate(one.place),
            )
            for one in queue
        ]
        return forecast_starts(nodes, running, pending)

    def _plan_by_limits(self) -> dict[int, float]:
        """Return when Slurm's backfill would start each pending job if no other job came and all used their limit."""
        shadow, world = self.shadow, self.world
        shadow.open(self.now, self.now + 1.0, world.group_s)
        starts = {}
        for waiting in self.list_pending(world.max_job_test):
            found = shadow.plan(waiting.ask, waiting.length_s, waiting.allowed, self.now + world.window_s)
            if found is not None:
                starts[waiting.place] = found[0] - self.now
                shadow.keep(found[1], self._rounded(found[0]), self._rounded(found[0] + waiting.length_s))
        return starts


def make_query(account: str, gpus: int) -> RunTimeQuery:
    """Return what production knows about a job of the trace: its virtual cluster and its GPUs."""
    return RunTimeQuery(user=account, gpus=gpus, account=account, partition="gpu")


def run_window(jobs: Sequence[TraceJob], first: int, load: float) -> Errors:
    """Replay one window and return the errors."""
    simulator = ForecastingSimulator(
        jobs=make_window(jobs, first, load, first), servers=make_equal_servers(SERVERS, gpus=GPUS, cpus=32, mem_gb=500),
        world=SchedulerParams(), policy=None, profiles={}, by_node=False, lag_s=0.0,
    )  # fmt: skip
    simulator.prepare([job for job in jobs[max(0, first - 5000) : first] if job_ended(job, jobs[first])], first)
    outcome = simulator.run(None, None)
    errors = Errors(per_job_ms=simulator.per_job_ms)
    for place, at, plan, p50, p90, keys_p50, keys_p90 in simulator.found:
        wait = outcome.began_s[place] - at
        if plan is None:
            errors.unplanned += 1
            continue
        errors.waits.append(wait)
        errors.slurm.append(abs(plan - wait))
        errors.history.append(abs(min(p50, plan) - wait))
        errors.keys.append(abs(min(keys_p50, plan) - wait))
        errors.by_history.append(wait <= min(p90, plan) + 60)
        errors.by_keys.append(wait <= min(keys_p90, plan) + 60)
    return errors


def job_ended(job: TraceJob, first: TraceJob) -> bool:
    """Return whether the job had ended in the trace when the window began."""
    return job.submit_s + job.run_s <= first.submit_s


def main() -> int:
    """Replay the windows; return exit code 1 if the forecast is worse than Slurm's."""
    options = parse_options()
    jobs = read_jobs()
    chance = random.Random(options.seed)
    firsts = sorted(chance.randrange(5000, len(jobs) - COUNT) for _ in range(options.windows))
    rows, failed = [], False
    head = (
        "load",
        "jobs",
        "wait min",
        "Slurm min",
        "history min",
        "keys min",
        "ratio h",
        "ratio k",
        "p90 h",
        "p90 k",
        "ms",
    )
    print("".join(f"{name:>12}" for name in head))
    for load in options.loads:
        all_errors = [run_window(jobs, first, load) for first in firsts]
        merged = {
            name: [one for errors in all_errors for one in getattr(errors, name)]
            for name in ("slurm", "history", "keys", "by_history", "by_keys", "waits", "per_job_ms")
        }
        middle = {name: median(values) / 60 for name, values in merged.items() if name in ("slurm", "history", "keys")}
        row = {
            "load": load,
            "jobs": len(merged["slurm"]),
            "wait_min": median(merged["waits"]) / 60,
            "slurm_min": middle["slurm"],
            "history_min": middle["history"],
            "keys_min": middle["keys"],
            "history_ratio": middle["history"] / middle["slurm"],
            "keys_ratio": middle["keys"] / middle["slurm"],
            "history_by_p90": sum(merged["by_history"]) / len(merged["by_history"]),
            "keys_by_p90": sum(merged["by_keys"]) / len(merged["by_keys"]),
            "ms_per_job": median(merged["per_job_ms"]),
        }
        rows.append(row)
        failed |= row["history_ratio"] > options.most_ratio
        print("".join(f"{value:>12.3g}" for value in row.values()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0, 1.3])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-ratio", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
