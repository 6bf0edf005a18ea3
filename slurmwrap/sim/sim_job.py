"""SimJob: one job of a trace. Record only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """As submitted. Seconds are the trace's own, from its first submission.

    `work_s` is the run time that the trace tells, queueing excluded. It holds at `cpus` and `mem_mib` where the trace
    says them, else at the GPU-proportional share.
    """

    number: int  # from 0, in the order of submission
    job: str  # as the trace calls it
    submit_s: float
    work_s: float
    gpus: int
    nodes: int | None = None  # as asked; None: as few as hold its GPUs
    cpus: int | None = None  # of the whole job, as asked; None: the proportional share
    mem_mib: int | None = None  # of the whole job, as asked; None: the proportional share
    limit_s: float | None = None  # its time limit; None: unknown
    user: str = ""
    status: str = ""  # as the trace says: COMPLETED, FAILED, …; "": unknown
    model: str = ""  # names its profile; "": unknown
    partition: str = ""
    line: int = 0  # of the file, for errors
