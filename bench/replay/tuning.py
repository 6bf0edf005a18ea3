"""First replay: one-GPU jobs whose speed depends on CPUs and memory; proportional requests by sbatch, and gsub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from replay import arms, jobscript, known
from replay.labs import Lab, Wanted
from replay.measures import Figures, figures
from replay.tracefile import MATRICES, STATIC100, read_trace, speed_table
from slurmwrap.sim.sim_job import SimJob

NODES, GPUS, CPUS, MEM_MIB = 4, 8, 24, 512_000  # Synergy's four servers
PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The figures of one arm of one repetition."""

    arm: str
    figures: Figures
    submitting_s: float
    updates_before: int  # of waiting jobs, before the partition came up
    updates: int  # and after
    reaction_s: float  # median, from a job's end to the first update of waiting jobs; 0 where there was none
    odd: tuple[str, ...]
    spans: tuple[tuple[float, float, int, str], ...]  # of each run, in order: start, end (after UP), CPUs, model


def wanted(directory: Path, base_port: int, settings: Mapping[str, object]) -> Wanted:
    """Return a lab like Synergy's cluster."""
    return Wanted(
        directory=directory, base_port=base_port, nodes=NODES, gpus=GPUS, cpus=CPUS, mem_mib=MEM_MIB, settings=settings
    )


def prepare(lab: Lab) -> None:
    """Write the job script and import the models' profiles."""
    jobscript.lay_out(lab.work, jobscript.TUNED, arms.owner(), speed_table(MATRICES))
    known.teach(lab, MATRICES)


def run_arm(lab: Lab, arm: str, jobs: Sequence[SimJob], scale: float) -> Arm:
    """Run one arm to its end. `scale`: seconds of the trace per second."""
    done = arms.all_at_once(lab, arm, jobs, scale, PATIENCE_S)
    return Arm(
        arm=arm,
        figures=figures(done.runs, done.given, dict.fromkeys(done.jobs, done.up), up=done.up, gpus=NODES * GPUS),
        submitting_s=done.submitting_s,
        updates_before=sum(at < done.up for at in done.updates),
        updates=sum(at >= done.up for at in done.updates),
        reaction_s=reaction(done),
        odd=done.odd,
        spans=tuple(
            (run.start - done.up, run.end - done.up, done.given[run.job_id].cpus, done.jobs[run.job_id].model)
            for run in done.runs
        ),
    )


def reaction(done: arms.Outcome) -> float:
    """Return the median seconds from a job's end to the next update of waiting jobs, if no job ends between them."""
    ends = sorted(run.end for run in done.runs)
    found = []
    for end, following in zip(ends, [*ends[1:], ends[-1] + 60], strict=True):
        after = [at - end for at in done.updates if end < at < following]
        found += [min(after)] if after else []
    return median(found) if found else 0.0


def shipped() -> tuple[SimJob, ...]:
    """Return Synergy's own static trace: 100 jobs, submitted at once."""
    return read_trace(STATIC100)


def bounds(traces: Mapping[str, Sequence[SimJob]]) -> dict[str, float]:
    """Return the highest possible gain without release: replay.bound, relative to proportional in replay.model."""
    from replay.bound import least_makespan
    from replay.model import STATIC, cluster, makespan, play, points, profiles

    speeds, known, servers = points(MATRICES), profiles(MATRICES), cluster(NODES, GPUS, CPUS, MEM_MIB)
    plain = {name: makespan(play(jobs, known, servers, STATIC, None), STATIC) for name, jobs in traces.items()}
    return {name: plain[name] / least_makespan(jobs, speeds, servers) for name, jobs in traces.items()}
