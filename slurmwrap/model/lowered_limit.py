"""Time limits of jobs: what the user's request says about its own (TimeRequest), and what was lowered (LoweredLimit).

Times in seconds. Slurm keeps time limits in whole minutes.
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRequest:
    """What matters of a submission when its time limit may be changed while it waits."""

    # Why the limit must stay as it is ("--time-min", "its script calls squeue"); "" if it may be lowered.
    fixed: str = ""
    # How long before the end of the time limit the job gets a signal (--signal); 0: it gets none.
    warn_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredLimit:
    """One job whose time limit was lowered while it was pending. For an array, all of its tasks."""

    job_id: int  # as sbatch printed it
    uid: int
    submit_time: int  # Unix seconds
    at: float  # when it was lowered, Unix seconds
    user_s: int  # the limit of its user
    set_s: int  # the limit that slurmwrap set
    keep: bool = False  # when it runs, the limit is extended in steps; False: its user's limit returns at once
    warn_s: int = 0  # TimeRequest.warn_s
    # True: its limit was not lowered, `set_s` is the --time-min that slurmwrap set. Slurm may start it with any limit
    # from that one up to its user's, and keeps such a limit when it is requeued (measured, 22.05.8).
    time_min: bool = False
    restarts: int = 0  # with time_min: restarts of the job when it was known to have its user's limit
