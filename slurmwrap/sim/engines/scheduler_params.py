"""World: Slurm's habits and slurmwrap's, as far as the model knows them. Record only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmwrap.config import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParams:
    """Seconds. Slurm's defaults are those of slurm.conf(5), 22.05 to 24.11; slurmwrap's are its configuration's.

    A job's time limit is its own where the trace tells it; a job that runs longer is killed there. Where no one tells
    it, backfill believes `limit_factor` times the job's run time at its share, or `limit_s`; no one is killed then.
    """

    sched_interval_s: float = 60.0  # sched_interval: how often the main scheduler looks at the whole queue
    queue_depth: int = 100  # default_queue_depth: jobs that it looks at when a job came or ended
    backfill_s: float = 30.0  # bf_interval; 0: no backfill
    window_s: float = 86_400.0  # bf_window: no node is kept for a job that would start later than that
    max_job_test: int = 500  # bf_max_job_test: jobs that one cycle looks at
    resolution_s: float = 60.0  # bf_resolution: begin and end of what is kept are rounded down to it
    group_s: float = 30.0  # ends of running jobs so close are looked at together, later ones twice so close, …; 0: each
    limit_s: float = 86_400.0
    limit_factor: float | None = None
    opens_s: float = 0.0  # on the trace's clock: no job starts before, as while its partition is down
    react_s: float = 0.0  # from a job's end until its GPUs can be given away: Epilog, COMPLETING
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # partition → servers; others: all of them
    servers_per_leaf: int | None = None  # that many servers under each leaf switch; None: no network
    max_switch_wait_s: int = 300  # SchedulerParameters=max_switch_wait
    spread_slowdown: Mapping[str, float] = field(default_factory=dict)  # model → run time × this where it lies apart
    tick_s: float = 15.0  # slurmwrap reconcile --poll
    updates_per_s: float = Placement().relax_updates_per_s
    head: int = Placement().relax_jobs  # waiting jobs that a pass may change
    lag_s: float = 0.0  # what gsub takes longer than sbatch; only where slurmwrap is played
    jitter_s: float = 0.0  # every run takes up to so much longer
    seed: int = 0  # of the jitter
