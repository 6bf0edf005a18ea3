"""PackMember: how one member of a packed array task ran, as the wrapper in the user's own job wrote it."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackMember:
    """The newest run of one member. It is a claim of the user about their own job, and evidence about nothing else."""

    index: int
    state: str  # "running", "completed", "failed", "stopped" (it ended after a signal to the task) or "cancelled"
    task: str = ""  # array task in which it ran: "77_4"
    job_id: str = ""  # raw job id of the task
    node: str = ""
    restart: int = 0  # restart count of the task
    runs: int = 1  # how often it was started
    alone: bool = False  # it ran without the others, since the GPU's memory was full before
    begin: float | None = None  # Unix seconds
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # why the wrapper ended it; "": it did not
    paused: bool = False  # it waits for the others, which are no faster next to it
    paused_s: float = 0.0  # how long it waited so
    gpu_oom: bool = False  # its output says that the GPU's memory was full, and it may run again alone
    output: str = ""
    error: str = ""  # "": the same file as the output
    cpus: tuple[int, ...] = ()  # CPUs to which it was bound; () if it was not
