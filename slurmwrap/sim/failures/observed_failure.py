"""What slurmwrap is told of a run that failed: a log may be misread, Slurm and the kernel are right. Pure."""

from __future__ import annotations

from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.draw_failures import FailingJob
from slurmwrap.sim.failures.job_state import SimJobState, SimRunEnding
from slurmwrap.sim.failures.named_random import Purpose
from slurmwrap.sim.failures.sim_judge import FailedRun
from slurmwrap.sim.failures.study_world import FailureWorld

# Slurm's or the kernel's word, not the log's: the classifier does not misread them, nor take others for them.
_NOT_FROM_LOGS = ("cpu_oom", "job_preempted", "node_failure", "gpu_hardware", "time_limit")


def failed_run(
    world: FailureWorld,
    life: SimJobState,
    ending: SimRunEnding,
    nodes: tuple[int, ...],
    began_s: float,
    progress_s: float,
    kept_s: float,
) -> FailedRun:
    """The run as production's records are made of it."""
    names, doom, told = world.hardware.names, life.doom, classify_observed(world, life, ending)
    right = told == ending.category == "incorrect_inputs"
    broken = right and world.chance(life.job, Purpose.OWN_READ) < world.settings.own_read
    return FailedRun(
        job=life.job,
        uid=doom.uid,
        run=life.run,
        began_s=began_s,
        ended_s=began_s + ending.ran_s,
        nodes=tuple(names[node] for node in nodes),
        told=told,
        node=names[ending.node] if ending.node >= 0 else "",
        conclusive=ending.gpu_fault,
        input_path=f"/{digest_of(doom)}" if right else "",
        digest=digest_of(doom) if right else "",
        fault="is broken" if broken else "",
        mem_mib=life.mem_mib,
        resumed=life.kept_s > 0,
        progress_s=progress_s,
        kept_s=kept_s,
    )


def classify_observed(world: FailureWorld, life: SimJobState, ending: SimRunEnding) -> str:
    """The category that the classifier gives. The same log is read the same way each time."""
    if ending.category in _NOT_FROM_LOGS or ending.node >= 0:
        return ending.category
    run = life.run if life.doom.curable else 0
    if world.chance(life.job, Purpose.MISREAD, run) >= world.settings.misread:
        return ending.category
    return mistaken_for(ending.category, world.chance(life.job, Purpose.MISTAKEN_FOR, run))


def mistaken_for(category: str, share: float) -> str:
    """Another category, the commoner the likelier (by table 7's trials)."""
    others = [c for c in published_rates.PHILLY if c.category != category and c.category not in _NOT_FROM_LOGS]
    left = share * sum(cause.trials for cause in others)
    for cause in others:
        left -= cause.trials
        if left < 0:
            return cause.category
    return others[-1].category


def digest_of(doom: FailingJob) -> str:
    """Stands for the digest of the broken input."""
    return f"input-{doom.fault}"
