"""SharedRun: how a job ran on the GPU of another job of its user, as the program in that one wrote it."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """The newest such run. It is a claim of the user about their own job, and evidence about nothing else."""

    by: str  # job id of the job with the GPU
    # "running", "completed" or "failed". It did not end by itself: "stopped" (with that job), "alone" (no room,
    # and it runs by itself next) or "cancelled".
    state: str
    runs: int = 1  # how often it was started next to another job
    node: str = ""
    begin: float | None = None  # Unix seconds
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""
    error: str = ""  # "": the same file as the output
    passed_on: int | None = None  # restart count of its own start that ended with this exit code; None: not yet
