"""Bounds for any policy on a cluster that takes nothing back from a running job: one proven, one found by search.

`least_makespan`: proven. It holds for any scheduler that runs the jobs in any order, each with one constant grant. A
job with grant o runs for t(o) = work / speed(o) and uses t(o) GPU-seconds, cpus(o) t(o) CPU-seconds and mem(o) t(o)
MiB-seconds. For any prices a, b, c >= 0 of the three, the sum over jobs of the least t(o) (a + b cpus(o) + c mem(o)) is
at most T (a GPUs + b CPUs + c MiB); and no job is faster than at its best. The greatest of these over a grid of prices
is a lower bound of the makespan T, so proportional / bound is an upper bound of the ratio. The bound treats all servers
as one pool and ignores the order of the queue, so it can probably not be reached.

`best_found`: a search, no proof. All run times are known, requests are fixed beforehand, and Slurm's order and backfill
are those of the simulator. From a few starting points, single requests are changed repeatedly; a change that is not
worse is kept.

    python bench/replay/bound.py --seeds 1-10     # half a minute for each queue
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.model import STATIC, Speeds, cluster, makespan, play, points, profiles
from replay.tracefile import MATRICES, STATIC100, read_trace
from slurmwrap.placement.demand import Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed
from slurmwrap.sim import engines
from slurmwrap.sim.engines import SchedulerParams
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace import synergy_loads

Request = tuple[float, int]
GRID = 40  # steps of each price


def least_makespan(jobs: Sequence[SimJob], speeds: Speeds, servers: Sequence[Server]) -> float:
    """Return a makespan in seconds that no schedule without release can beat, for one-GPU jobs submitted at once."""
    gpus, cpus = sum(s.gpus for s in servers), sum(s.cpus for s in servers)
    memory = sum(s.mem_mib for s in servers)
    longest = max(job.work_s / max(p.speed for p in speeds[job.model]) for job in jobs)
    work: dict[str, float] = {}
    for job in jobs:
        work[job.model] = work.get(job.model, 0.0) + job.work_s
    options = {model: [p for p in speeds[model] if p.speed > 0] for model in work}
    best = longest
    for b, c in product(range(GRID + 1), repeat=2):
        if b + c > GRID:
            continue
        # a GPUs + b CPUs + c MiB = 1, in fortieths
        price = ((GRID - b - c) / GRID / gpus, b / GRID / cpus, c / GRID / memory)
        total = sum(
            work[model] * min((price[0] + price[1] * p.cpus + price[2] * p.mem_mib) / p.speed for p in options[model])
            for model in work
        )
        best = max(best, total)
    return best


def best_found(
    jobs: Sequence[SimJob],
    speeds: Speeds,
    servers: Sequence[Server],
    world: SchedulerParams,
    *,
    seed: int = 0,
    tries: int = 600,
) -> tuple[float, dict[int, Request]]:
    """Return the shortest makespan found and its requests; no request is slower than the proportional share."""
    draw = random.Random(seed)
    choices = {model: _choices(points) for model, points in speeds.items()}
    best: tuple[float, dict[int, Request]] | None = None
    for level in (0, 1, 2, 3):
        found = {place: choices[job.model][min(level, len(choices[job.model]) - 1)] for place, job in enumerate(jobs)}
        span, ended = _span(jobs, speeds, servers, world, found)
        for _ in range(tries):
            other = _changed(jobs, choices, found, ended, draw)
            new_span, new_ended = _span(jobs, speeds, servers, world, other)
            if new_span <= span:
                found, span, ended = other, new_span, new_ended
        if best is None or span < best[0]:
            best = span, found
    assert best is not None
    return best


def _choices(points: Sequence[SpeedPoint]) -> list[Request]:
    """Return the options that are at least as fast as the share and that no smaller option matches; slowest first."""
    good = [p for p in points if p.speed >= 1.0]
    kept = [
        p
        for p in good
        if not any(q != p and q.cpus <= p.cpus and q.mem_mib <= p.mem_mib and q.speed >= p.speed for q in good)
    ]
    return [(float(p.cpus), p.mem_mib) for p in sorted(kept, key=lambda p: (p.speed, p.cpus, p.mem_mib))]


def _changed(
    jobs: Sequence[SimJob],
    choices: Mapping[str, Sequence[Request]],
    found: Mapping[int, Request],
    ended: Sequence[float],
    draw: random.Random,
) -> dict[int, Request]:
    """Return `found` with one to three requests changed, half of the time of jobs that end last."""
    last = sorted(range(len(jobs)), key=lambda n: -ended[n])[:5]
    other = dict(found)
    for _ in range(draw.randint(1, 3)):
        place = draw.choice(last) if draw.random() < 0.5 else draw.randrange(len(jobs))
        other[place] = draw.choice(choices[jobs[place].model])
    return other


def _span(
    jobs: Sequence[SimJob],
    speeds: Speeds,
    servers: Sequence[Server],
    world: SchedulerParams,
    requests: Mapping[int, Request],
) -> tuple[float, Sequence[float]]:
    asking = [_asking(place, job, speeds[job.model], *requests[place]) for place, job in enumerate(jobs)]
    outcome = engines.play_backfill(asking, servers, world=world, profiles={})
    return makespan(outcome, world), [ended or 0.0 for ended in outcome.ended_s]


def _asking(place: int, job: SimJob, points: Sequence[SpeedPoint], cpus: float, mem_mib: int) -> SimJob:
    """Return the job with this request per GPU and the resulting run time."""
    return SimJob(
        number=place,
        job=str(place),
        submit_s=job.submit_s,
        work_s=job.work_s / find_speed(points, cpus, mem_mib),
        gpus=job.gpus,
        cpus=round(cpus * job.gpus),
        mem_mib=mem_mib * job.gpus,
    )


def main() -> None:
    """Print a line for each queue."""
    parser = argparse.ArgumentParser(description="the proven bound and the best that a search finds")
    parser.add_argument("--seeds", default="1-10", help="of the generated queues, as first-last")
    parser.add_argument("--tries", type=int, default=500, help="changes from each of four starts")
    options = parser.parse_args()
    first, last = (int(part) for part in options.seeds.split("-"))
    speeds, known, servers = points(MATRICES), profiles(MATRICES), cluster()
    queues: dict[str, Sequence[SimJob]] = {"static100": read_trace(STATIC100)}
    queues |= {
        f"seed {seed}": synergy_loads.generate_load(synergy_loads.STATIC, seed=seed) for seed in range(first, last + 1)
    }
    for name, jobs in queues.items():
        plain = makespan(play(jobs, known, servers, STATIC, None), STATIC)
        bound = plain / least_makespan(jobs, speeds, servers)
        found = plain / best_found(jobs, speeds, servers, STATIC, tries=options.tries)[0]
        print(f"{name:10} best found {found:.3f}   proven bound {bound:.3f}", flush=True)


if __name__ == "__main__":
    main()
