"""Compare two rules for how long a job waits for close nodes with plain Slurm, in the simulator's slurm mode.

    bench/locality_wait.py                     Tiresias's trace, the Philly window of bench/replay, ten windows
    bench/locality_wait.py --development       windows that share no job with these ten

Jobs name no number of nodes. Spread over more nodes than they need, models with a skew above 0.3 take 1.84 times as
long, the others 1.01 times (bench/replay/locality.py names the measurements). Arms: `sbatch` is plain Slurm; `skew`
waits by the skew alone, for a time that is fixed at submission; `forecast` knows the slow-down and run times of earlier
runs, with an error of 0.5 in the logarithm, and waits while P(close start within t) x time lost > t.

Tiresias's 60 jobs run on 4 servers of 4 GPUs, the last 100 jobs of the Philly window on 8 of 8 GPUs, as in
bench/replay. A window has 480 consecutive jobs of Philly's trace with 1 to 32 GPUs on 15 servers of 4 GPUs, at
load 1.0; it names no models, so one of Tiresias's nine is drawn for each job. Time limits of windows are those of
bench/start_forecast.py. Printed: mean JCT of `sbatch` over that of each rule, above 1 is better, and the share of
models with a high skew that were spread without need. Exit code 1 if `forecast` is below 0.98 somewhere.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean, geometric_mean

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import queue_order
from replay.locality import SLOWER, SLOWER_SKEWED
from start_forecast import HABIT, LIMITS

from slurmwrap.config.load_config import Placement
from slurmwrap.model.resource_profile import ResourceProfile, RunSpeed
from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.placement.demand import Server
from slurmwrap.sim.engines.backfill_engine import SchedulerParams, play_backfill
from slurmwrap.sim.model_skew import SKEW
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome
from slurmwrap.sim.trace.read_trace import read_load

TRACES = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces"
ARMS = ("sbatch", "skew", "forecast")
LEAST = 0.98
LAG_S = 0.3  # by how much gsub takes longer than sbatch
NORMAL = tuple(NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    name: str
    jobs: tuple[SimJob, ...]
    servers: tuple[Server, ...]


def list_worlds(development: bool, seeds: Sequence[int]) -> Iterator[World]:
    if not development:
        tiresias = read_load(TRACES / "tiresias_60.csv").jobs
        yield World(name="Tiresias", jobs=tiresias, servers=make_equal_servers(4, gpus=4, cpus=64, mem_gb=500))
    else:
        for seed in range(8):
            yield World(
                name=f"drawn {seed}",
                jobs=draw_short_jobs(seed),
                servers=make_equal_servers(4, gpus=4, cpus=64, mem_gb=500),
            )
    philly = read_load(TRACES / "philly480_window.csv").jobs
    for start in (0, 100, 200, 280) if development else (380,):
        part, first = philly[start : start + 100], philly[start].submit_s
        servers = make_equal_servers(8, gpus=8, cpus=64, mem_gb=500)
        as_traced = (part[-1].submit_s - first) * 64 / sum(job.gpus * job.work_s for job in part)
        for load in (0.7, 1.0, 1.4) if development else (0.0,):
            stretch = 1.0 if not load else 1 / (as_traced * load)
            jobs = tuple(
                replace(job, number=at, submit_s=(job.submit_s - first) * stretch) for at, job in enumerate(part)
            )
            name = f"Philly {start}-{start + 99}" + (f" {load}" if load else "")
            yield World(name=name, jobs=jobs, servers=servers)
    if not seeds:
        return
    jobs = queue_order.read_jobs()
    for seed in seeds:
        for start in queue_order.choose_windows(jobs, seed):
            window = queue_order.cut_window(jobs, start, 1.0)
            yield World(name=f"window {start}", jobs=draw_jobs(window, start), servers=queue_order.SERVERS)


def draw_short_jobs(seed: int) -> tuple[SimJob, ...]:
    """Return 60 drawn jobs of minutes, many of them with several GPUs, that ask for more than there is at times."""
    chance = random.Random(f"short jobs {seed}")
    found, now = [], 0.0
    for number in range(60):
        work = math.exp(chance.uniform(*map(math.log, (60, 300) if chance.random() < 0.85 else (300, 3000))))
        found.append(
            SimJob(
                number=number, job=str(number), submit_s=now, work_s=work, gpus=chance.choice((1, 1, 2, 2, 4, 4, 8)),
                model=chance.choice(sorted(SKEW)),
            )
        )  # fmt: skip
        now += chance.expovariate(1 / 45)
    return tuple(found)


def draw_jobs(window: Sequence[SimJob], seed: int) -> tuple[SimJob, ...]:
    """Return the jobs with a drawn model and the time limits of users."""
    chance = random.Random(seed)
    found = []
    for job in window:
        wanted = job.work_s * math.exp(chance.uniform(*map(math.log, HABIT)))
        limit = LIMITS[min(bisect_left(LIMITS, wanted), len(LIMITS) - 1)]
        # Long enough for the slower run too: no arm may gain by a job that is killed.
        longest = max(float(limit), SLOWER_SKEWED * job.work_s + 60)
        found.append(replace(job, model=chance.choice(sorted(SKEW)), limit_s=longest))
    return tuple(found)


def is_skewed(model: str) -> bool:
    return SKEW.get(model, 0.0) > Placement().skew_limit


def find_slowdown(model: str) -> float:
    return SLOWER_SKEWED if is_skewed(model) else SLOWER


def make_profiles(jobs: Sequence[SimJob], arm: str) -> dict[str, ResourceProfile]:
    """Return what is known of each model: its skew, or the steps of runs on one node and on two."""
    models = {job.model for job in jobs if job.model}
    if arm == "skew":
        return {model: ResourceProfile(key=model, skew=SKEW.get(model)) for model in models}
    return {
        model: ResourceProfile(
            key=model,
            skew=SKEW.get(model),
            speeds=tuple(
                RunSpeed(work="w", gpus=16, nodes=nodes, steps_per_s=find_slowdown(model) ** (nearest - nodes))
                for nearest in (1,)
                for nodes in (1, 2)
            ),
        )
        for model in models
    }


def draw_run_times(jobs: Sequence[SimJob], sigma: float, seed: int) -> dict[int, RunTimeEstimate]:
    """Return estimates whose error has this standard deviation of log(run time)."""
    chance = random.Random(f"run times {seed}")
    found = {}
    for place, job in enumerate(jobs):
        middle = job.work_s * math.exp(chance.gauss(0, sigma))
        times = tuple(max(1.0, middle * math.exp(sigma * z)) for z in NORMAL)
        found[place] = RunTimeEstimate(quantiles_s=times, source=FROM_RUNS, n=5)
    return found


def play(world: World, arm: str, sigma: float) -> SimOutcome:
    slower = {job.model: find_slowdown(job.model) for job in world.jobs}
    params = SchedulerParams(spread_slowdown=slower, lag_s=LAG_S)
    return play_backfill(
        world.jobs,
        world.servers,
        world=params,
        profiles={} if arm == "sbatch" else make_profiles(world.jobs, arm),
        placement="any" if arm == "sbatch" else "skew",
        run_times=draw_run_times(world.jobs, sigma, 1) if arm == "forecast" else None,
    )


def compute_mean_jct(world: World, outcome: SimOutcome) -> float:
    return fmean(end - job.submit_s for job, end in zip(world.jobs, outcome.ended_s, strict=True) if end is not None)


def compute_spread_share(world: World, outcome: SimOutcome) -> float:
    per_server = world.servers[0].gpus
    spread = [
        servers > -(-job.gpus // per_server)
        for job, servers in zip(world.jobs, outcome.servers, strict=True)
        if job.gpus > 1 and is_skewed(job.model) and servers
    ]
    return fmean(spread) if spread else 0.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--development", action="store_true", help="windows of seeds 2 to 5")
    options.add_argument("--seeds", default="", help="of the windows; default: 1; 0: no windows")
    options.add_argument("--sigma", type=float, default=0.5, help="error of the expected run times")
    options.add_argument("--most", type=int, default=1000, help="worlds")
    asked = options.parse_args()
    seeds = [int(one) for one in (asked.seeds or ("2,3,4,5" if asked.development else "1")).split(",") if int(one)]
    ratios: dict[str, list[float]] = {arm: [] for arm in ARMS[1:]}
    print(f"{'':20}{'skew':>8}{'forecast':>10}   skewed jobs that were spread: {', '.join(ARMS)}")
    for number, world in enumerate(list_worlds(asked.development, seeds)):
        if number >= asked.most:
            break
        outcomes = {arm: play(world, arm, asked.sigma) for arm in ARMS}
        jct = {arm: compute_mean_jct(world, outcome) for arm, outcome in outcomes.items()}
        for arm in ratios:
            ratios[arm].append(jct["sbatch"] / jct[arm])
        shares = "  ".join(f"{100 * compute_spread_share(world, outcome):.0f} %" for outcome in outcomes.values())
        print(f"{world.name:20}{ratios['skew'][-1]:8.3f}{ratios['forecast'][-1]:10.3f}   {shares}", flush=True)
    for arm, found in ratios.items():
        print(f"{arm}: geometric mean {geometric_mean(found):.3f}, least {min(found):.3f}")
    return int(min(ratios["forecast"]) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
