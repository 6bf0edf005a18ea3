"""SimJob, one job of a trace, and the equal servers of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.placement.demand import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job as it was submitted. Times are in seconds from the first submission of the trace.

    `work_s` is the run time in the trace, without queueing. It holds at `cpus` and `mem_mib` if the trace contains
    them, else at the GPU-proportional share.
    """

    # Counted from 0 in the order of submission.
    number: int
    # Name of the job in the trace.
    job: str
    submit_s: float
    work_s: float
    gpus: int
    nodes: int | None = None  # as requested; None: as few as hold its GPUs
    cpus: int | None = None  # of the whole job, as requested; None: the proportional share
    mem_mib: int | None = None  # of the whole job, as requested; None: the proportional share
    limit_s: float | None = None  # its time limit; None: unknown
    user: str = ""
    account: str = ""
    # State in the trace: COMPLETED, FAILED, …; "": unknown.
    status: str = ""
    # Key of its profile; "": unknown.
    model: str = ""
    partition: str = ""
    gpu_util: float | None = None  # which part of its GPUs it uses alone, 0 to 1; None: unknown
    # Line of the trace file, for error messages.
    line: int = 0


# The papers write GB for 1024 MiB.
MIB_PER_GB = 1024
# Upper limit of each of the four numbers below; a larger one is taken to be a typing error.
_MOST = 1_000_000


def make_equal_servers(count: int, *, gpus: int, cpus: int, mem_gb: float) -> tuple[Server, ...]:
    """Return `count` empty servers with so many GPUs, CPUs and GB each. ValueError if one of the numbers is out of
    range.
    """
    for name, value in (("servers", count), ("gpus", gpus), ("cpus", cpus), ("mem_gb", mem_gb)):
        if not value >= 1:  # also refuses nan
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
