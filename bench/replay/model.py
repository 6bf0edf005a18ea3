"""Compare proportional requests with a policy over many queues in the simulator's slurm mode. Needs no Slurm.

The model of Slurm is slurmwrap/sim/engines (bench/slurm_model.py measures how similar it is to a real one). The queues
are those of the replays on labs (lab_replay.py), including their start: the partition is down until all jobs have been
submitted and the reconciler has seen them.

    python bench/replay/model.py --policy graded --seeds 101-140
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.tracefile import MATRICES, STATIC100, read_trace
from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server, SpeedPoint
from slurmwrap.sim import engines
from slurmwrap.sim.engines import SchedulerParams
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.sim_job import MIB_PER_GB, SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome
from slurmwrap.sim.trace import synergy_loads

OPENS_S = 300.0  # when the partition comes up; all jobs of a static trace have been tuned by then
STATIC = SchedulerParams(opens_s=OPENS_S)
Speeds = Mapping[str, tuple[SpeedPoint, ...]]
Profiles = Mapping[str, ResourceProfile]


def cluster(count: int = 4, gpus: int = 8, cpus: int = 24, mem_mib: int = 512_000) -> tuple[Server, ...]:
    """Return Synergy's cluster: 4 servers of 8 GPUs, 24 CPUs, 500 GB."""
    return make_equal_servers(count, gpus=gpus, cpus=cpus, mem_gb=mem_mib / MIB_PER_GB)


def profiles(path: Path) -> Profiles:
    """Return the profiles of Synergy's matrices, by model."""
    with path.open(newline="") as lines:
        return {profile.key: profile for profile in parse_profiles(lines, at=0.0)}


def points(path: Path) -> Speeds:
    """Return model → speed points of Synergy's matrices."""
    return {model: profile.surface for model, profile in profiles(path).items()}


def play(
    jobs: Sequence[SimJob],
    known: Profiles,
    servers: Sequence[Server],
    world: SchedulerParams,
    mechanism: Mechanism | None,
) -> SimOutcome:
    """Simulate `jobs` until all have ended. `mechanism` None: plain Slurm, every job with its proportional share."""
    return engines.play_backfill(as_sim(jobs), servers, world=world, mechanism=mechanism, profiles=known)


def as_sim(jobs: Sequence[SimJob]) -> list[SimJob]:
    """Places in the queue are their names, in claims too."""
    return [
        SimJob(number=n, job=str(n), submit_s=job.submit_s, work_s=job.work_s, gpus=job.gpus, model=job.model)
        for n, job in enumerate(jobs)
    ]


def by_allocate(
    name: str = "graded", settings: GradedSettings | None = None, runs_s: Sequence[float] = ()
) -> Mechanism:
    """Return production's allocate() as a mechanism. `runs_s`: known run times at the share, by position; (): none."""
    divide: Mechanism = partial(allocate, policy=name, settings=settings or GradedSettings())

    def knowing(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        return divide([replace(claim, run_s=runs_s[int(claim.job)]) for claim in claims], servers)

    return knowing if runs_s else divide


def makespan(outcome: SimOutcome, world: SchedulerParams) -> float:
    """Return the makespan in seconds, from the time at which jobs may start."""
    return max(ended or 0.0 for ended in outcome.ended_s) - world.opens_s


def main() -> None:
    """Print a line for each queue, and a summary of the generated ones."""
    options = _options()
    known, servers = profiles(MATRICES), cluster()
    world = SchedulerParams(opens_s=OPENS_S if options.per_hour is None else 0.0, limit_factor=options.limit_factor)
    settings = GradedSettings(drain=options.drain, reserve=options.reserve, memory_weight=options.memory_weight)
    generated: list[tuple[float, float]] = []
    for name, jobs in _queues(options):
        plain = play(jobs, known, servers, world, None)
        mechanism = by_allocate(options.policy, settings, [job.work_s for job in jobs] if options.known else [])
        tuned = play(jobs, known, servers, replace(world, jitter_s=options.jitter), mechanism)
        ratios = _told(name, jobs, plain, tuned, world)
        if name.startswith("seed"):
            generated.append(ratios)
    spans, jcts = zip(*generated, strict=True)
    print(f"generated: makespan {geometric_mean(spans):.3f}, least {min(spans):.3f}; JCT {geometric_mean(jcts):.3f}")


def _queues(options: argparse.Namespace) -> Iterator[tuple[str, Sequence[SimJob]]]:
    """Return the published static trace, whose jobs are all submitted at once, and the generated ones."""
    static = options.per_hour is None
    if static:
        yield "static100", read_trace(STATIC100)
    first, last = (int(part) for part in options.seeds.split("-"))
    for seed in range(first, last + 1):
        yield (
            f"seed {seed}",
            synergy_loads.generate_load(
                synergy_loads.STATIC if static else synergy_loads.DYNAMIC,
                seed=seed,
                jobs_per_hour=options.per_hour,
                split=synergy_loads.SPLITS[synergy_loads.STATIC],
                gpu_demand=synergy_loads.SYNTHETIC if options.multi else synergy_loads.SINGLE,
            ),
        )


def _told(
    name: str, jobs: Sequence[SimJob], plain: SimOutcome, tuned: SimOutcome, world: SchedulerParams
) -> tuple[float, float]:
    """Print one queue; return how many times shorter its makespan and its mean JCT are."""
    spans = makespan(plain, world), makespan(tuned, world)
    ratios = spans[0] / spans[1], _mean_jct(jobs, plain, world) / _mean_jct(jobs, tuned, world)
    ends = zip(plain.ended_s, tuned.ended_s, strict=True)
    later = [(now or 0.0) - (then or 0.0) for then, now in ends if (now or 0.0) > (then or 0.0) + _LATER_S]
    print(
        f"{name:10} {spans[0] / 3600:6.2f} h / {spans[1] / 3600:6.2f} h = {ratios[0]:5.3f}"
        f"   mean JCT {ratios[1]:5.3f}   updates {tuned.updates}"
        f"   later {len(later)}, by {fmean(later or [0.0]):.0f} s",
        flush=True,
    )
    return ratios


_LATER_S = 300.0  # jobs that end this much later than under plain Slurm are listed


def _mean_jct(jobs: Sequence[SimJob], outcome: SimOutcome, world: SchedulerParams) -> float:
    pairs = zip(outcome.ended_s, jobs, strict=True)
    return fmean((end or 0.0) - max(job.submit_s, world.opens_s) for end, job in pairs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="proportional against a policy, in the model")
    parser.add_argument("--policy", default="graded")
    parser.add_argument("--seeds", default="1-10", help="of the generated queues, as first-last")
    parser.add_argument("--per-hour", type=float, help="jobs arrive one by one, so many in an hour")
    parser.add_argument("--multi", action="store_true", help="three in ten jobs have 2, 4 or 8 GPUs")
    parser.add_argument("--jitter", type=float, default=0.0, help="every tuned run takes up to so much longer")
    parser.add_argument("--limit-factor", type=float, help="time limits as parts of run times; else a day for all")
    parser.add_argument("--drain", type=float, default=GradedSettings().drain)
    parser.add_argument("--reserve", type=float, default=GradedSettings().reserve)
    parser.add_argument("--memory-weight", type=float, default=GradedSettings().memory_weight)
    parser.add_argument("--known", action="store_true", help="the policy knows every run time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
