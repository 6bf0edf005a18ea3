"""JobRun and related records: what the database stores about each run of a job.

Times in Unix seconds. The key of a run is (cluster, raw job id, SubmitTime): SubmitTime changes with each requeue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.decision import PlannedAction
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.verdict import Verdict

# Rules that change a pending or running job. Their actions are void when it starts or ends.
STOP_RULE = "stop"  # stops a running job at what its user named; it has no mode (reconcile/stop_running.py)
MOVE_RULE = "move"
WAITING_RULES = ("relax", "tune", "order", "limit", STOP_RULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job: Slurm's record, what was measured, the diagnosis and the decision."""

    attempt: RunKey
    address: str = ""  # job id or array task as scontrol takes it: "81" or "77_2"
    restarts: int = 0
    name: str = ""
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    state: str = ""  # final state; "" while it runs
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
    # Memory as requested, in the job's own unit.
    mem_mib_per_node: int | None = None
    mem_mib_per_cpu: int | None = None
    std_out: str = ""
    std_err: str = ""
    measurement: Measurement | None = None
    diagnosis: Diagnosis | None = None  # None: not judged yet
    decision: str = ""  # after retry budget and consent were applied; "" while undecided
    decision_reason: str = ""
    # Actions that were decided with the diagnosis and are not all recorded as intended yet.
    planned: tuple[PlannedAction, ...] = ()
    retry_at: float | None = None  # Unix seconds at which slurmwrap's retry may start; None if there is none
    longest_s: int | None = None  # for a run that reached its time limit: the longest limit that its partition allows
    incident: str = ""  # Incident.incident_id of the incident that this failure belongs to
    # Jobs not submitted with gsub that it passed when it started, although their priority was higher without the rule
    # `order`. None: it was not raised.
    passed: int | None = None
    resize_refused: bool = False  # Slurm refused the larger request for the next run
    # For a run that resumed: seconds from its start until a further checkpoint was seen in its output; None: none was.
    saved_after_s: float | None = None
    waited: QueueDelay | None = None  # only for a job that was submitted with gsub
    reconciled: bool = False  # every intended action is done or given up
    # Where this run's output begins and ends: file -> [bytes, digest of the bytes before]. A later run of the same job
    # may append to the same file.
    output_begins: Mapping[str, Any] = field(default_factory=dict)
    output_ends: Mapping[str, Any] = field(default_factory=dict)
    # For a member of a packed array: its part of its GPU's time in seconds; None: the run had its GPUs alone.
    gpu_s: float | None = None

    @property
    def run_s(self) -> float:
        """Return how long it ran in seconds; 0 if it never started or still runs."""
        if self.start_time is None or self.end_time is None:
            return 0.0
        return float(max(0, self.end_time - self.start_time))

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours that it held."""
        return (self.gpus * self.run_s if self.gpu_s is None else self.gpu_s) / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunRecord:
    """One pre-run that ended, as its user reports it."""

    cluster: str
    job_id: int | None  # job id of the real job; None for --prerun=wait|only
    prerun_job_id: int
    uid: int
    at: float
    verdict: Verdict
    fingerprint: str = ""
    profile_key: str = ""
    profile_variant: str = ""  # profiling.key.derive_variant()
    gpus: int = 0  # GPUs of the real job
    plan: Mapping[str, Any] = field(default_factory=dict)  # the second plan, made with what the pre-run measured
    changes: tuple[Mapping[str, Any], ...] = ()  # changes that were applied to the waiting job
    released: bool = False  # Slurm accepted StartTime=now
    user: str = ""
    name: str = ""  # name of the real job
    script_path: str = ""
    work_dir: str = ""
    # File to which the script wrote during the pre-run.
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One intended change of Slurm, and its result."""

    action_id: int
    attempt: RunKey | None
    rule: str
    mode: str  # "observe", "advise" or "act".
    verb: str
    target: str
    key: str
    value: str
    reason: str
    intended_at: float
    done_at: float | None = None
    error: str = ""  # "" if it succeeded or is not done yet
    own: str = ""  # what the key had before slurmwrap first changed it; "" if it is not recorded
    figures: tuple[tuple[str, float], ...] = ()  # SlurmAction.figures


def intended(attempt: RunKey | None, ruled: PlannedAction, mode: str, at: float, *, action_id: int = 0) -> ActionRecord:
    """Return the record of an action that is not done yet. `at` is in Unix seconds."""
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
        own=action.own,
        figures=action.figures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDelay:
    """How long one run waited after it became eligible, and for what, in seconds (the split of Philly, ATC 2019)."""

    attempt: RunKey
    address: str = ""
    user: str = ""
    gpus: int = 0
    eligible_at: float = 0.0
    seen_at: float = 0.0  # time up to which the waiting time is counted
    fair_share_s: float = 0.0  # waited for priority, limits, or because too few GPUs were free at all
    fragmentation_s: float = 0.0  # enough GPUs were free, but not in the shape or on the nodes that it requires
    unknown_s: float = 0.0  # time during which the reconciler did not look
    waits_for: str = ""  # "fair share" or "fragmentation", at the last look
    over: bool = False  # it started, or left the queue

    @property
    def total_s(self) -> float:
        """Return the whole waiting time."""
        return self.fair_share_s + self.fragmentation_s + self.unknown_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StrikeRecord:
    """One strike against a node, as it is stored."""

    node: str
    cause: str
    conclusive: bool
    text: str
    at: float
    job_id: int = 0
    uid: int = -1
    # Incident.incident_id if the failure belongs to an incident: then no node caused it, and the strike does not count.
    incident: str = ""
    cleared_at: float | None = None  # when a person declared the strike void
    cleared_by: str = ""  # and who


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReset:
    """A person's decision that the failures of a job up to `at` no longer count against its retry budget."""

    cluster: str
    job_id: int  # raw job id
    at: float
    who: str
    note: str = ""


PROVING_NODES = 2  # trusted evidence on fewer nodes may be the fault of that node


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One infrastructure cause that made several jobs fail within minutes.

    `scope` is what its failures share: "path /scratch", "switch leaf0", "host hub.example", or "cluster".
    """

    # Derived from category, scope and begin, so that the same incident always has the same id.
    incident_id: str
    # Category of taxonomy.py: one of domain IF, or nccl_error.
    category: str
    scope: str
    began: float  # Unix seconds, end of the first failed run
    # End of the newest failed run that counts: one with trusted evidence or, while it is unconfirmed, one that a second
    # user had.
    last: float
    over_at: float | None = None  # None: still open
    jobs: tuple[int, ...] = ()  # ids as sbatch printed them: an array counts as one job
    uids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()  # nodes below the switch of `scope`
    quiet_s: float = 600.0  # the incident is over when no run failed of it for this long
    spread_s: float = 900.0  # its delayed retries then start within this time
    max_s: float = 21600.0  # the incident is over this long after it began, even if runs still fail
    closed_by: str = ""  # a person who declared it over
    note: str = ""  # and why
    # Nodes on which kernel, NVML, Slurm or a hook reported its failure, when that confirmed it. Empty: only logs show
    # it, or an older version stored it.
    proof: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Return whether it concerns the whole site; else only users whose own jobs show it (docs/incidents.md)."""
        return len(self.proof) >= PROVING_NODES

    @property
    def doubt(self) -> str:
        """Return why it concerns only some users, in words; "" if it is confirmed."""
        users = f"{self.users} user{'s' * (self.users != 1)}"
        return "" if self.confirmed else f"unconfirmed, by log text of {users} alone"

    @property
    def users(self) -> int:
        """Return the number of users whose jobs failed of it."""
        return len(self.uids)

    @property
    def ends(self) -> float:
        """Return when it is over if no more runs fail of it, in Unix seconds; if a person closed it, when they did."""
        if self.closed_by and self.over_at is not None:
            return self.over_at
        return min(self.last + self.quiet_s, self.began + self.max_s)
