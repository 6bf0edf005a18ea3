"""What the night report is made of: sums and narrow rows, as store/report_reader.py reads them. Records only.

A year holds millions of runs: what is only counted comes as sums (`Cell`), and only what failed comes one by one. Times
in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.job_run import ActionRecord, JobRun, QueueDelay, StrikeRecord
from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.model.submission import Submission
from slurmwrap.policy.incident import Incident
from slurmwrap.policy.node_history import NodeHistory, Removal
from slurmwrap.report.night_report import Moment

# Runs by how long they lasted: up to a minute, and twice as long each; the last has no end.
BIN_EDGES_S = (0, *(60 * 2**power for power in range(14)))

# Of an attempt: cluster, raw job id, SubmitTime.
Key = tuple[str, int, int]


class RunGroup(NamedTuple):
    """Runs that ended in a period and agree in all but their length."""

    user: str
    account: str
    category: str  # "" where not judged
    struck: bool  # by an incident of the page
    demand: int  # class of GPUs, of record.DEMAND
    bin: int  # of BIN_EDGES_S
    runs: int
    gpu_s: float

    @property
    def outcome(self) -> str:
        """ "completed", "completed_with_error", "cancelled", "failed", "" where not judged."""
        return _OUTCOMES.get(self.category, "failed")


_OUTCOMES = {
    "": "",
    "success": "completed",
    "cancelled": "cancelled",
    "completed_with_error": "completed_with_error",
}


class Often(NamedTuple):
    """A failure that one user's job name met more than once. `newest`: attempts, the newest last."""

    user: str
    name: str
    category: str
    runs: int
    gpu_s: float
    newest: tuple[Key, ...]


class Detail(NamedTuple):
    """What is shown of one run and read only for those that are."""

    address: str
    advice: str


class Caught(NamedTuple):
    """One pre-run that failed. `job_id` None: it spoke for no job. `seconds`: how long it ran."""

    category: str
    job_id: int | None
    gpus: int  # of the real job
    uid: int
    at: float
    reason: str


class Delayed(NamedTuple):
    """Pre-runs that did not fail, their jobs that started within a minute of the release, and how long these had waited
    since their submission."""

    tried: int
    started: int
    gpu_s: float
    wait_s: float = 0.0


class RetriedRun(NamedTuple):
    """A run that followed slurmwrap's requeue. `category` "": not judged; `gpu_s` what it held; `before`: of the run
    that had failed."""

    category: str
    before: str
    gpu_s: float


class TunedRun(NamedTuple):
    """A run that had other CPUs per GPU than its user asked for, of a job whose CPU curve is known."""

    gpu_s: float
    asked: float
    got: float
    curve: tuple[CurvePoint, ...]


class Paced(NamedTuple):
    """A run of gsub's on several GPUs whose steps were counted. `work`: what it has in common with runs to compare."""

    # uid, digest of the script, variant, GPUs
    work: tuple[int, str, str, int]
    nodes: tuple[str, ...]
    gpu_s: float
    steps_per_s: float
    ended: float
    # Ended in the period, and where it should run was asked for by us.
    placed: bool


class Drawn(NamedTuple):
    """A submission that took part in a draw of prerun.holdout and whose job has ended."""

    holdout_group: str
    held_out: bool
    waste_gpu_s: float  # of its failed runs
    # Its share of its pre-run.
    prerun_gpu_s: float


class Passed(NamedTuple):
    """A pre-run that passed, and the first run of its job, which has ended."""

    prerun_s: float
    category: str
    run_s: float


class Idle(NamedTuple):
    """A run that held GPUs without using them. `use`: 0..1 over all its GPUs; None: only that some were unused."""

    key: Key
    user: str
    name: str
    gpus: int
    # GPUs on which no process was ever seen.
    unused: int
    use: float | None
    run_s: int


class RequestedAndUsed(NamedTuple):
    """What the measured runs of one user's job name asked for and used."""

    user: str
    name: str
    runs: int
    cpus_asked: float
    cpus_used: float | None
    mem_mib_asked: float | None
    mem_mib_peak: float | None
    cpu_hours_unused: float
    gib_hours_unused: float


class MultiNodeRun(NamedTuple):
    """A run of several nodes."""

    nodes: tuple[str, ...]
    gpu_s: float
    failed: bool


class BlamedInput(NamedTuple):
    """Failed runs of one user and category that their diagnoses blame a file for."""

    path: str
    user: str
    category: str
    runs: int
    gpu_s: float


class ActionSteps(NamedTuple):
    """How many `targets` of one rule had changes of this kind. `refused`: of one of them; `done`: all of them."""

    rule: str
    mode: str
    refused: bool
    done: bool
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that one report is made of. "The period" is [since, until)."""

    since: float
    until: float
    user: str = ""  # whose alone; "": everybody's
    account: str = ""
    clusters: tuple[str, ...] = ()
    cells: Sequence[RunGroup] = ()
    cells_before: Sequence[RunGroup] | None = None  # of the period before, equally long; None: nothing is known of it
    # Runs whose job had ended another run earlier in the same period, by (user, account): runs less these are jobs.
    repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)
    repeats_before: int = 0
    gsub_jobs: int = 0
    moments: Sequence[Moment] = ()
    # Seconds to failure by category, sorted; of the period, without what incidents struck.
    lasted: Mapping[str, Sequence[int]] = field(default_factory=dict)
    runtimes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # the same of all failures of 28 days at least
    # As repeats, by (user, category), of failures that no incident struck.
    failed_repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)
    often: Sequence[Often] = ()
    incidents: Sequence[Incident] = ()
    incident_gpu_s: Mapping[str, float] = field(default_factory=dict)
    blamed: Sequence[BlamedInput] = ()
    details: Callable[[Sequence[Key]], Mapping[Key, Detail]] = lambda keys: {}
    outcomes: Mapping[str, int] = field(default_factory=dict)  # of pre-runs
    prerun_gpu_s: float = 0.0
    # User -> (pre-runs, jobs they stopped).
    tried: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    caught: Sequence[Caught] = ()
    delayed: Delayed = field(default_factory=lambda: Delayed(0, 0, 0.0))
    again: Sequence[RetriedRun] = ()
    tuned: Sequence[TunedRun] = ()
    # Submitted in the newest week up to `until`.
    paced: Sequence[Paced] = ()
    drawn: Sequence[Drawn] = ()
    holdout: float = 0.0  # as configured now
    passed: Sequence[Passed] = ()
    refused: int = 0
    refused_falsely: int = 0
    steps: Sequence[ActionSteps] = ()
    drains: Sequence[ActionRecord] = ()  # decided in the period
    # Nodes that are out of service now.
    removals: Sequence[Removal] = ()
    strikes: Sequence[StrikeRecord] = ()
    # None: nodes are not judged here.
    history: NodeHistory | None = None
    # For the agreement: what rules spoke of, and what came next.
    judged: Sequence[JobRun] = ()
    spoken: Sequence[ActionRecord] = ()
    submitted: Sequence[Submission] = ()
    delays: Sequence[QueueDelay] = ()
    blocked: Sequence[BlockedInput] = ()
    names: Mapping[int, str] = field(default_factory=dict)  # uid -> user, of who has blocked inputs
    counting: Sequence[JobRun] = ()  # runs of jobs that count their steps
    large: Sequence[JobRun] = ()  # all runs of the largest jobs
    idle: Sequence[Idle] = ()
    # Runs whose GPU use is known.
    gpu_measured: int = 0
    asked: Sequence[RequestedAndUsed] = ()
    spread: Sequence[MultiNodeRun] = ()
    # Node -> leaf switch or block; {}: not known.
    switch_of: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
