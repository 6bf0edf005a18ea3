"""SimJob: one job of a trace. Record only."""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.placement.demand import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """As submitted. Seconds are the trace's own, from its first submission.

    `work_s` is the run time that the trace has, queueing excluded. It holds at `cpus` and `mem_mib` where the trace
    says them, else at the GPU-proportional share.
    """

    # From 0, in the order of submission.
    number: int
    # As the trace calls it.
    job: str
    submit_s: float
    work_s: float
    gpus: int
    nodes: int | None = None  # as asked; None: as few as hold its GPUs
    cpus: int | None = None  # of the whole job, as asked; None: the proportional share
    mem_mib: int | None = None  # of the whole job, as asked; None: the proportional share
    limit_s: float | None = None  # its time limit; None: unknown
    user: str = ""
    # As the trace says: COMPLETED, FAILED, …; "": unknown.
    status: str = ""
    # Names its profile; "": unknown.
    model: str = ""
    partition: str = ""
    # Of the file, for errors.
    line: int = 0


# The cluster of a simulation: equal servers.
# What the papers call GB.
MIB_PER_GB = 1024
# Of any of the four: more is a slip of the finger.
_MOST = 1_000_000


def servers_of(count: int, *, gpus: int, cpus: int, mem_gb: float) -> tuple[Server, ...]:
    """`count` empty servers with so many GPUs, CPUs and GB each. ValueError where one of them is no such number."""
    for name, value in (("servers", count), ("gpus", gpus), ("cpus", cpus), ("mem_gb", mem_gb)):
        if not value >= 1:  # nan is not, either
            raise ValueError(f"{name} must be at least 1, not {value}")
        if value > _MOST:
            raise ValueError(f"{name} must be at most {_MOST:,}, not {value}")
    memory = int(mem_gb * MIB_PER_GB)
    return tuple(
        Server(
            name=f"n{number:0{len(str(count - 1))}d}",
            gpus=gpus,
            cpus=cpus,
            mem_mib=memory,
            gpus_free=gpus,
            cpus_free=cpus,
            mem_free_mib=memory,
        )
        for number in range(count)
    )
