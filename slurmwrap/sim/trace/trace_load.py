"""Load: the jobs of a trace or a dump, and what is known next to them. Records only."""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """What really became of one job of a dump. Seconds as in SimJob."""

    submit_s: float  # as submitted; SimJob.submit_s is when it became eligible
    start_s: float
    end_s: float | None  # None: it was still running
    nodes: int | None  # how many it was given
    node_list: str = ""  # Slurm's host list, "n[1-3]"; "": the dump does not say
    exit_code: str = ""  # Slurm's "1:0", code and signal; "": the dump does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run of the simulator begins with.

    `jobs` are in order of submission, and each one's number is its position. `cpu_jobs`, of dumps only, are those that
    held CPUs and memory and no GPU, numbered by themselves, on the same clock.
    """

    jobs: tuple[SimJob, ...]
    actual: tuple[Actual, ...] = ()  # one per job, in the same order; (): a trace, where no one knows
    cpu_jobs: tuple[SimJob, ...] = ()
    cpu_actual: tuple[Actual, ...] = ()
    epoch: float | None = None  # Unix seconds of the clock's 0; of local times without a zone: as if they were UTC
    remarks: tuple[str, ...] = ()  # what was left out or fixed, and how often; for people
