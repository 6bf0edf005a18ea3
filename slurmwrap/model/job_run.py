"""JobRun and others: what is remembered of each run. Records only.

Times in Unix seconds. The key of an attempt is (cluster, raw job id, SubmitTime): SubmitTime changes on requeue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.decision import PlannedAction
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.verdict import Verdict

# What they do is about a job that waits, and over when it starts.
WAITING_RULES = ("relax", "tune")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job: Slurm's record, what was measured, the diagnosis and what was decided."""

    attempt: RunKey
    # What scontrol is given: "81" or "77_2".
    address: str = ""
    restarts: int = 0
    name: str = ""
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    # Final state; "" while it runs.
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cpus: int = 0
    eligible_time: int | None = None
    start_time: int | None = None
    end_time: int | None = None
    time_limit_s: int | None = None
    # As asked for, in the job's own unit.
    mem_mib_per_node: int | None = None
    mem_mib_per_cpu: int | None = None
    std_out: str = ""
    std_err: str = ""
    measurement: Measurement | None = None
    diagnosis: Diagnosis | None = None  # None: not judged yet
    # After ledger and consent; "" while undecided.
    decision: str = ""
    decision_reason: str = ""
    planned: tuple[
        PlannedAction, ...
    ] = ()  # what was decided with the diagnosis and is not all written as intended yet
    retry_at: float | None = None  # Unix seconds when the next run may start, for a retry of slurmwrap's
    longest_s: int | None = None  # of a run that its time limit ended: the longest that its partition allows
    incident: str = ""  # Incident.incident_id of the incident that this failure belongs to
    resize_refused: bool = False  # Slurm refused what the next run should have had more of
    waited: QueueDelay | None = None  # before it started, for a job of gsub's
    reconciled: bool = False  # every intended action is done or given up
    # Where this run's output begins, and where it ends: file -> [bytes, digest of what stands before]; a job that is
    # run again may add to the same file.
    output_begins: Mapping[str, Any] = field(default_factory=dict)
    output_ends: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run_s(self) -> float:
        """Seconds it ran; 0 when it never started or still runs."""
        if self.start_time is None or self.end_time is None:
            return 0.0
        return float(max(0, self.end_time - self.start_time))

    @property
    def gpu_hours(self) -> float:
        """GPU-hours held."""
        return self.gpus * self.run_s / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunRecord:
    """One ended pre-run, as its user reports it."""

    cluster: str
    # The real job; None for --prerun=wait|only.
    job_id: int | None
    prerun_job_id: int
    uid: int
    at: float
    verdict: Verdict
    fingerprint: str = ""
    profile_key: str = ""
    profile_variant: str = ""  # profiling.key.derive_variant()
    gpus: int = 0  # of the real job
    plan: Mapping[str, Any] = field(default_factory=dict)  # the second plan, on what was measured
    changes: tuple[Mapping[str, Any], ...] = ()  # what was applied to the waiting job
    released: bool = False  # StartTime=now was accepted
    user: str = ""
    name: str = ""  # of the real job
    script_path: str = ""
    work_dir: str = ""
    # The file that the script wrote to in the pre-run.
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One intended change of Slurm and what became of it."""

    action_id: int
    attempt: RunKey | None
    rule: str
    # Observe | advise | act.
    mode: str
    verb: str
    target: str
    key: str
    value: str
    reason: str
    intended_at: float
    done_at: float | None = None
    error: str = ""  # "" when it worked


def intended(attempt: RunKey | None, ruled: PlannedAction, mode: str, at: float, *, action_id: int = 0) -> ActionRecord:
    """The record of an action that is not done yet; `at` in Unix seconds."""
    action = ruled.action
    return ActionRecord(
        action_id=action_id,
        attempt=attempt,
        rule=ruled.rule,
        mode=mode,
        verb=action.verb.value,
        target=action.target,
        key=action.key,
        value=action.value,
        reason=action.reason,
        intended_at=at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDelay:
    """How long one run waited after it became eligible, and for what (Philly's split, ATC 2019). Seconds."""

    attempt: RunKey
    address: str = ""
    user: str = ""
    gpus: int = 0
    eligible_at: float = 0.0
    seen_at: float = 0.0  # all up to here is counted
    fair_share_s: float = 0.0  # priority, limits, or not enough free GPUs at all
    fragmentation_s: float = 0.0  # enough free GPUs, but not in the shape or the place it insists on
    unknown_s: float = 0.0  # no one looked
    waits_for: str = ""  # "fair share" | "fragmentation" at the last look
    over: bool = False  # it started, or is gone

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.fair_share_s + self.fragmentation_s + self.unknown_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StrikeRecord:
    """One strike against a node."""

    node: str
    cause: str
    conclusive: bool
    text: str
    at: float
    job_id: int = 0
    uid: int = -1
    incident: str = ""  # Incident.incident_id: the failure was no node's, the strike counts no more
    cleared_at: float | None = None  # a person said that it is void, and
    cleared_by: str = ""  # who they were


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReset:
    """A person's decision that what a job failed of up to `at` counts no more against its retries."""

    cluster: str
    job_id: int  # raw job id
    at: float
    who: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """`scope` is what its failures share: "path /scratch", "switch leaf0", "host hub.example", or "cluster"."""

    # Of category, scope and beginning: the same incident always has the same.
    incident_id: str
    # Of taxonomy.py, domain IF or nccl_error.
    category: str
    scope: str
    began: float  # Unix seconds, end of the first failed run
    last: float  # end of the newest one that kernel, NVML or Slurm speak of, or a second user
    over_at: float | None = None  # None: still open
    jobs: tuple[int, ...] = ()  # ids as sbatch printed them: an array is one job
    uids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()  # nodes below the switch of `scope`
    quiet_s: float = 600.0  # it is over when no run failed of it for so long
    spread_s: float = 900.0  # then its retries start within so long
    max_s: float = 21600.0  # it is over so long after it began, whatever still fails
    closed_by: str = ""  # a person said that it is over, and
    note: str = ""  # why

    @property
    def users(self) -> int:
        """How many users' jobs failed of it."""
        return len(self.uids)

    @property
    def ends(self) -> float:
        """When it is over if no more runs fail of it, Unix seconds; when a person closed it, that."""
        if self.closed_by and self.over_at is not None:
            return self.over_at
        return min(self.last + self.quiet_s, self.began + self.max_s)
