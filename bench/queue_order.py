"""Measure what predicted run times are worth in Slurm's queue: order and time limits on windows of Philly's trace.

Each window has 480 consecutive jobs of 1 to 32 GPUs and 120 s to 24 h (58,859 of the trace's 82,247), on 15 servers of
4 GPUs. Their arrivals are stretched so that they ask for 1.0 or 1.3 times the GPUs. The windows follow from the seed.
The model is `slurmwrap simulate --mode slurm`: backfill, no preemption, one partition, no fair share. The predictor is
production's. It knows virtual cluster and GPUs of a job, nothing else, and the runs that ended before: those of the
trace before the window, then those of the window at their simulated ends.

A window is contended if its jobs wait at least as long as they run, on average, first come, first served. For these:
mean of the windows' ratios of mean JCT, ratio of the mean JCT of all their jobs together, and the 99th percentile of
the wait, over first come, first served. Index, classes and waiting time were chosen on windows of seeds 2 to 5 that
share no job with those of seed 1 (--development). Windows differ much, in most of them even exact run times gain
little; --all plays all 122 windows that the trace can be cut into, with fewer variants.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np

from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.trace.read_trace import read_load

TRACE = Path(__file__).parents[1] / "tests" / "data" / "traces" / "philly.csv.gz"
JOBS, WINDOWS, SEED, DEVELOPMENT = 480, 10, 1, (2, 3, 4, 5)
LOADS = (1.0, 1.3)
SERVERS = make_equal_servers(15, gpus=4, cpus=24, mem_gb=500)
# (order, limits); the first is what the others are compared with.
FIFO = ("", "")
VARIANTS = (
    FIFO,
    ("shortest", ""),
    ("gittins", ""),
    ("exact", ""),
    ("fewest-gpus", ""),
    ("", "user"),
    ("", "predicted"),
    ("shortest", "user"),
    ("shortest", "predicted"),
)
FEWER_VARIANTS = (FIFO, ("shortest", ""), ("exact", ""), ("shortest", "predicted"))
# Targets of mean JCT of FIFO over `shortest` on contended windows, by load; of their p99 wait; of each window.
TARGETS, MOST_P99, LEAST = {1.0: 1.35, 1.3: 1.65}, 1.10, 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """One window under one variant. Seconds; `ratio`: mean JCT of FIFO over this one."""

    start: int  # index of its first job
    load: float
    order: str
    limits: str
    contended: bool
    mean_run_s: float
    mean_jct_s: float
    mean_wait_s: float
    p99_wait_s: float
    ratio: float = 1.0
    p99_ratio: float = 1.0


def read_jobs() -> tuple[SimJob, ...]:
    """Return the jobs of the trace from which windows are cut."""
    jobs = read_load(TRACE).jobs
    return tuple(job for job in jobs if job.gpus <= 32 and 120 <= job.work_s <= 86_400)


def choose_windows(jobs: Sequence[SimJob], seed: int) -> list[int]:
    """Return the first jobs of ten windows; those of other seeds share no job with those of SEED."""
    drawn = random.Random(f"philly windows {seed}").sample(range(len(jobs) - JOBS), WINDOWS)
    if seed == SEED:
        return drawn
    return [start for start in drawn if all(abs(start - kept) >= JOBS for kept in choose_windows(jobs, SEED))]


def list_all_windows(jobs: Sequence[SimJob]) -> list[int]:
    """Return the first jobs of all windows that share no job."""
    return list(range(0, len(jobs) - JOBS + 1, JOBS))


def cut_window(jobs: Sequence[SimJob], start: int, load: float) -> tuple[SimJob, ...]:
    """Return the jobs of a window, with arrivals stretched to the offered load."""
    part = jobs[start : start + JOBS]
    first = part[0].submit_s
    gpu_s = sum(job.gpus * job.work_s for job in part)
    stretch = gpu_s / (sum(server.gpus for server in SERVERS) * load) / max(1.0, part[-1].submit_s - first)
    return tuple(
        replace(job, number=number, submit_s=(job.submit_s - first) * stretch) for number, job in enumerate(part)
    )


def list_ended_before(jobs: Sequence[SimJob], start: int) -> tuple[SimJob, ...]:
    """Return the jobs that had ended when the window begins, in the order of their ends."""
    begin = jobs[start].submit_s
    ended = [job for job in jobs[:start] if job.submit_s + job.work_s <= begin]
    return tuple(sorted(ended, key=lambda job: job.submit_s + job.work_s)[-6000:])


def play_windows(
    jobs: Sequence[SimJob], starts: Iterable[int], variants: Sequence[tuple[str, str]]
) -> list[WindowResult]:
    """Return the results of all windows, loads and variants. FIFO comes first."""
    found = []
    for start in starts:
        history = list_ended_before(jobs, start)
        for load in LOADS:
            part = cut_window(jobs, start, load)
            results = [play_window(part, start, load, variant, history) for variant in dict.fromkeys((FIFO, *variants))]
            fifo = results[0]
            for one in results:
                found.append(
                    replace(
                        one,
                        contended=fifo.mean_wait_s >= fifo.mean_run_s,
                        ratio=fifo.mean_jct_s / one.mean_jct_s,
                        p99_ratio=one.p99_wait_s / max(1.0, fifo.p99_wait_s),
                    )
                )
        print(f"window {start}", file=sys.stderr)
    return found


def play_window(
    part: tuple[SimJob, ...], start: int, load: float, variant: tuple[str, str], history: tuple[SimJob, ...]
) -> WindowResult:
    order, limits = variant
    asked = Simulation(jobs=part, servers=SERVERS, mode="slurm", order=order, limits=limits, history=history)
    outcome, summary = run_simulation(asked)
    waits = [began - job.submit_s for job, began in zip(part, outcome.began_s, strict=True) if began is not None]
    return WindowResult(
        start=start, load=load, order=order, limits=limits, contended=False,
        mean_run_s=fmean(job.work_s for job in part), mean_jct_s=summary.mean_jct_s, mean_wait_s=fmean(waits),
        p99_wait_s=float(np.percentile(waits, 99)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """All windows of one variant and load. Ratios as in WindowResult; `together`: mean JCT of all jobs."""

    order: str
    limits: str
    load: float
    contended: int  # windows
    mean: float
    together: float
    p99: float  # mean of the windows' ratios
    most_p99: float
    all_windows: float
    least: float  # of all windows


def summarize(results: Sequence[WindowResult]) -> list[VariantSummary]:
    """Return one summary per variant and load, variants in the order of their first result."""
    found = []
    for order, limits in dict.fromkeys((one.order, one.limits) for one in results):
        for load in LOADS:
            group = [one for one in results if (one.order, one.limits, one.load) == (order, limits, load)]
            hard = [one for one in group if one.contended]
            if not hard:
                continue
            found.append(
                VariantSummary(
                    order=order,
                    limits=limits,
                    load=load,
                    contended=len(hard),
                    mean=fmean(one.ratio for one in hard),
                    together=sum(one.ratio * one.mean_jct_s for one in hard) / sum(one.mean_jct_s for one in hard),
                    p99=fmean(one.p99_ratio for one in hard),
                    most_p99=max(one.p99_ratio for one in hard),
                    all_windows=fmean(one.ratio for one in group),
                    least=min(one.ratio for one in group),
                )
            )
    return found


# Windows by mean wait over mean run time, first come, first served: upper ends of all groups but the last.
WAIT_GROUPS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGroup:
    """The windows whose jobs wait about so long, at one load: mean ratios of `shortest` and of exact run times."""

    name: str
    load: float
    windows: int
    shortest: float
    exact: float
    p99: float  # of `shortest`
    least: float  # of `shortest`
    below: int  # windows in which `shortest` is below LEAST


def group_by_wait(results: Sequence[WindowResult]) -> list[WaitGroup]:
    """Return the windows by how long their jobs wait first come, first served, without changed time limits."""
    found = []
    waits = {(r.start, r.load): r.mean_wait_s / r.mean_run_s for r in results if (r.order, r.limits) == FIFO}
    for load in LOADS:
        for low, high in pairwise((0.0, *WAIT_GROUPS, inf)):
            group = [r for r in results if r.load == load and not r.limits and low <= waits[r.start, load] < high]
            ours, exact = ([r for r in group if r.order == order] for order in ("shortest", "exact"))
            if ours:
                found.append(
                    WaitGroup(
                        name=f"{low:g} to {high:g}" if high < inf else f"{low:g} and more",
                        load=load,
                        windows=len(ours),
                        shortest=fmean(r.ratio for r in ours),
                        exact=fmean(r.ratio for r in exact),
                        p99=fmean(r.p99_ratio for r in ours),
                        least=min(r.ratio for r in ours),
                        below=sum(r.ratio < LEAST for r in ours),
                    )
                )
    return found


def format_wait_groups(groups: Sequence[WaitGroup]) -> str:
    """Return the groups as text."""
    lines = [f"{'wait / run':12} load windows shortest   exact   p99   least  < {LEAST}"]
    for one in groups:
        lines.append(
            f"{one.name:12} {one.load:4} {one.windows:7} {one.shortest:8.3f} {one.exact:7.3f} {one.p99:5.2f} "
            f"{one.least:7.3f} {one.below:7}"
        )
    return "\n".join(lines)


def format_table(summaries: Sequence[VariantSummary]) -> str:
    """Return the summaries as text."""
    lines = [f"{'order':12} {'limits':10} load contended   mean together  p99 (most)     all  least"]
    for one in summaries:
        lines.append(
            f"{one.order or 'fifo':12} {one.limits or '24 h':10} {one.load:4} {one.contended:9} {one.mean:6.3f} "
            f"{one.together:8.3f} {one.p99:5.2f} ({one.most_p99:.2f}) {one.all_windows:7.3f} {one.least:6.3f}"
        )
    return "\n".join(lines)


def find_missed(summaries: Sequence[VariantSummary]) -> list[str]:
    """Return a sentence for each target that is not reached."""
    missed = []
    for one in summaries:
        name = f"{one.order}, limits {one.limits or '24 h'}, load {one.load}"
        if (one.order, one.limits) == ("shortest", ""):
            target = TARGETS[one.load]
            for what, value in (("mean of the windows", one.mean), ("all jobs together", one.together)):
                if value < target:
                    missed.append(f"{name}: {what} {value:.3f}, wanted {target}")
            if one.p99 > MOST_P99:
                missed.append(f"{name}: p99 wait {one.p99:.2f} times FIFO's, wanted {MOST_P99}")
        if one.order == "shortest" and one.least < LEAST:
            missed.append(f"{name}: {one.least:.3f} on a window, wanted {LEAST}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true", help="the windows on which the variants were chosen")
    parser.add_argument("--all", action="store_true", help="all windows of the trace, fewer variants")
    parser.add_argument("--json", type=Path, metavar="FILE", help="each window")
    options = parser.parse_args()
    jobs = read_jobs()
    if options.all:
        results = play_windows(jobs, list_all_windows(jobs), FEWER_VARIANTS)
    else:
        seeds = DEVELOPMENT if options.development else (SEED,)
        results = play_windows(jobs, [start for seed in seeds for start in choose_windows(jobs, seed)], VARIANTS)
    summaries = summarize(results)
    print(format_table(summaries))
    print(format_wait_groups(group_by_wait(results)))
    for load in LOADS:
        hard = [
            str(one.start) for one in results if (one.order, one.limits, one.load) == (*FIFO, load) and one.contended
        ]
        print(f"contended at load {load}: the windows that begin with job {', '.join(hard)}")
    missed = find_missed(summaries)
    print("\n".join(missed) if missed else "all targets reached")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
