"""Compare the start forecast with Slurm's own, by replay of windows of the Philly trace in the simulator's slurm mode.

    bench/start_forecast.py                       ten windows, loads 1.0 and 1.3 (about ten minutes)
    bench/start_forecast.py --windows 2 --loads 1.3

Each window has 480 jobs on 15 servers of 4 GPUs. Users request 1.2 to 10 times the run time of their job, rounded up
to a usual limit, 24 h at most. At each submission of a job that has to wait, three forecasts of its start are made:
Slurm's backfill plan, in which every job uses its whole time limit; and production's (placement/start_forecast.py) with
two sets of run time estimates: "history" (production's predictor, from earlier jobs of the same virtual cluster with as
many GPUs, of which it knows only what had ended by then) and "keys" (a predictor whose error has a standard deviation
of log(run time) of 0.5, as with earlier runs of the same job).

Printed for jobs of one GPU and of several: the median and the mean of the absolute error in minutes, the ratio of both
medians to Slurm's in the same run, the share of jobs that started by the 90 % bound, and the CPU milliseconds of
production's forecast per pending job. Exit code 1 if a ratio with "history" is above --most-ratio (1.0).
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
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from statistics import NormalDist, fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate, RunTimeSample
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob, StartForecast, forecast_starts
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
ON_TIME_S = 60.0  # a start that is later by less is on time: Slurm looks at the queue every 30 to 60 s
NORMAL = tuple(NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of the trace. Seconds from its first submission."""

    submit_s: float
    run_s: float
    gpus: int
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecasts of one job's start and the wait that followed, in seconds from its submission."""

    gpus: int
    wait_s: float
    slurm_s: float | None  # None: Slurm has no plan for it
    history: StartForecast
    keys: StartForecast


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
        self.found: list[tuple[int, float, float | None, StartForecast, StartForecast]] = []
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
        began = time.process_time()
        by_history = self._forecast_with(from_history, queue)
        self.per_job_ms.append((time.process_time() - began) * 1000 / len(queue))
        by_keys = self._forecast_with(self.keys.get, queue)
        for place in wanted:
            ours, keys = by_history[str(place)], by_keys[str(place)]
            self.found.append((place, self.now, plan.get(place), ours, keys))

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


def run_window(jobs: Sequence[TraceJob], first: int, load: float) -> tuple[list[Forecast], list[float]]:
    """Replay one window. Return the forecasts, and the CPU milliseconds per pending job of each call of production."""
    simulator = ForecastingSimulator(
        jobs=make_window(jobs, first, load, first),
        servers=make_equal_servers(SERVERS, gpus=GPUS, cpus=32, mem_gb=500),
        world=SchedulerParams(),
        policy=None,
        profiles={},
        by_node=False,
        lag_s=0.0,
    )
    simulator.prepare([job for job in jobs[max(0, first - 5000) : first] if job_ended(job, jobs[first])], first)
    outcome = simulator.run(None, None)
    found = [
        Forecast(
            gpus=simulator.jobs[place].gpus,
            wait_s=outcome.began_s[place] - at,
            slurm_s=plan,
            history=history,
            keys=keys,
        )
        for place, at, plan, history, keys in simulator.found
    ]
    return found, simulator.per_job_ms


def job_ended(job: TraceJob, first: TraceJob) -> bool:
    """Return whether the job had ended in the trace when the window began."""
    return job.submit_s + job.run_s <= first.submit_s


def summarize(load: float, group: str, forecasts: Sequence[Forecast], per_job_ms: float) -> dict[str, float | str]:
    """Return the row of one load and group of jobs: errors in minutes, shares, milliseconds."""
    errors: dict[str, list[float]] = {"slurm": [], "history": [], "keys": []}
    by_p90: dict[str, list[bool]] = {"history": [], "keys": []}
    for one in forecasts:
        assert one.slurm_s is not None
        errors["slurm"].append(abs(one.slurm_s - one.wait_s))
        for name, found in (("history", one.history), ("keys", one.keys)):
            errors[name].append(abs(min(found.p50_s, one.slurm_s) - one.wait_s))
            by_p90[name].append(one.wait_s <= min(found.p90_s, one.slurm_s) + ON_TIME_S)
    medians = {name: median(values) / 60 for name, values in errors.items()}
    return {
        "load": load,
        "gpus": group,
        "jobs": len(forecasts),
        "wait_min": median(one.wait_s for one in forecasts) / 60,
        **{f"{name}_min": value for name, value in medians.items()},
        **{f"{name}_mean": fmean(values) / 60 for name, values in errors.items()},
        "ratio_history": medians["history"] / medians["slurm"],
        "ratio_keys": medians["keys"] / medians["slurm"],
        **{f"p90_{name}": fmean(values) for name, values in by_p90.items()},
        "ms": per_job_ms,
    }


def main() -> int:
    """Replay the windows; return exit code 1 if the forecast is worse than Slurm's."""
    options = parse_options()
    jobs = read_jobs()
    chance = random.Random(options.seed)
    firsts = sorted(chance.randrange(5000, len(jobs) - COUNT) for _ in range(options.windows))
    rows = []
    for load in options.loads:
        windows = [run_window(jobs, first, load) for first in firsts]
        planned = [one for found, _ in windows for one in found if one.slurm_s is not None]
        per_job_ms = median(ms for _, all_ms in windows for ms in all_ms)
        groups = {"1": [one for one in planned if one.gpus == 1], "2+": [one for one in planned if one.gpus > 1]}
        for name, group in groups.items():
            if group:
                rows.append(summarize(load, name, group, per_job_ms))
                if len(rows) == 1:
                    print("".join(f"{head:>14}" for head in rows[0]))
                print("".join(f"{v:>14}" if isinstance(v, str | int) else f"{v:>14.3g}" for v in rows[-1].values()))
                sys.stdout.flush()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(float(row["ratio_history"]) > options.most_ratio for row in rows) else 0


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
