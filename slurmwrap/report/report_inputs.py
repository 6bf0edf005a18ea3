"""Input of the night report: sums and rows of few columns, as store/report_reader.py reads them. Records only.

A year has millions of runs. Runs that are only counted are therefore read as sums (`RunGroup`), and only failed runs
one by one. Times are in Unix seconds.
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

# Bins of run time in seconds: up to a minute, then each twice as long as the one before; the last has no upper end.
BIN_EDGES_S = (0, *(60 * 2**power for power in range(14)))

# Identifies a run: cluster, raw job id, SubmitTime.
Key = tuple[str, int, int]


class RunGroup(NamedTuple):
    """Runs that ended in a period and agree in everything but their duration."""

    user: str
    account: str
    # "" for runs without a diagnosis.
    category: str
    # Whether an incident that is on the page struck them.
    struck: bool
    # Index into night_report.DEMAND, by the number of GPUs.
    demand: int
    # Index into BIN_EDGES_S.
    bin: int
    runs: int
    gpu_s: float

    @property
    def outcome(self) -> str:
        """Return "completed", "completed_with_error", "cancelled", "failed"; "" for runs without a diagnosis."""
        return _OUTCOMES.get(self.category, "failed")


_OUTCOMES = {
    "": "",
    "success": "completed",
    "cancelled": "cancelled",
    "completed_with_error": "completed_with_error",
}


class Often(NamedTuple):
    """A failure that occurred more than once under one user's job name. `newest`: its runs, the newest last."""

    user: str
    name: str
    category: str
    runs: int
    gpu_s: float
    newest: tuple[Key, ...]


class Detail(NamedTuple):
    """Details of one run that are read only for the runs that are shown."""

    address: str
    advice: str


class Caught(NamedTuple):
    """One pre-run that failed. `job_id`: the job that it stopped, or None."""

    category: str
    job_id: int | None
    gpus: int  # of the real job
    uid: int
    at: float
    reason: str


class Delayed(NamedTuple):
    """Pre-runs that did not fail, their jobs that started within a minute of the release, and how long these jobs had
    waited since their submission."""

    tried: int
    started: int
    gpu_s: float
    wait_s: float = 0.0


class RetriedRun(NamedTuple):
    """A run that followed a requeue by slurmwrap.

    `category` is "" for a run without a diagnosis; `gpu_s`: GPU-seconds that it held; `before`: category of the run
    that had failed.
    """

    category: str
    before: str
    gpu_s: float


class TunedRun(NamedTuple):
    """A run that got other CPUs per GPU than its user asked for, of a job whose CPU curve is known."""

    gpu_s: float
    asked: float
    got: float
    curve: tuple[CurvePoint, ...]


class StepCountedRun(NamedTuple):
    """A gsub run on several GPUs whose steps were counted. Runs with equal `work` can be compared."""

    # uid, digest of the script, variant, GPUs.
    work: tuple[int, str, str, int]
    nodes: tuple[str, ...]
    gpu_s: float
    steps_per_s: float
    ended: float
    # Whether it ended in the period and gsub asked for its nodes or switches.
    placed: bool


class Drawn(NamedTuple):
    """A submission that took part in a draw of prerun.holdout and whose job has ended."""

    holdout_group: str
    held_out: bool
    # GPU-seconds of its failed runs.
    waste_gpu_s: float
    # Its share of its pre-run.
    prerun_gpu_s: float


class Passed(NamedTuple):
    """A pre-run that passed, and the first run of its job, which has ended."""

    prerun_s: float
    category: str
    run_s: float


class Idle(NamedTuple):
    """A run that held GPUs without using them. `use`: mean over its GPUs, 0..1; None: only unused GPUs are known."""

    key: Key
    user: str
    name: str
    gpus: int
    # Number of GPUs on which no process was ever seen.
    unused: int
    use: float | None
    run_s: int


class RequestedAndUsed(NamedTuple):
    """What the measured runs under one user's job name asked for and used."""

    user: str
    name: str
    runs: int
    cpus_asked: float
    cpus_used: float | None
    mem_mib_asked: float | None
    mem_mib_peak: float | None
    cpu_hours_unused: float
    gib_hours_unused: float


class TimeAskedFor(NamedTuple):
    """The completed runs with GPUs and a time limit under one user's job name and account."""

    user: str
    account: str
    name: str
    # (Time limit in seconds, run time in seconds, GPUs) of each run.
    runs: Sequence[tuple[int, int, int]]


class PredictedRun(NamedTuple):
    """A completed run of a gsub job whose run time was predicted at submission. Seconds."""

    source: str  # RunTimeEstimate.source
    p50_s: float
    p90_s: float
    run_s: float


class TrainedRuns(NamedTuple):
    """The runs with a known loss curve under one user's job name, as far as they passed or were cancelled."""

    user: str
    name: str
    # (GPU-seconds, share of its time until it came near its lowest loss, share of its epochs until that) of each run.
    runs: Sequence[tuple[float, float, float | None]]


class FoundRun(NamedTuple):
    """A finding of the rule `early`, and the end of its run. `state`: "" while it runs."""

    kind: str
    action: str
    at: float
    gone_at: float | None
    address: str
    user: str
    name: str
    gpus: int
    state: str
    category: str
    end_time: float | None
    evidence: str


class MultiNodeRun(NamedTuple):
    """A run on several nodes."""

    nodes: tuple[str, ...]
    gpu_s: float
    failed: bool


class GpuRun(NamedTuple):
    """A run with GPUs, of any job. `nodes`: with the cluster in front, "lab/n1".

    `use`: mean over its GPUs, 0..1; None if it is not known or the run is not of the period, so that it is only a
    neighbour of others.
    """

    nodes: tuple[str, ...]
    gpus: int
    partition: str
    start: float
    end: float
    use: float | None


class StayingRun(NamedTuple):
    """A run with GPUs that ended, runs or waits. Unix seconds; `ended`: until when it was there, as far as known."""

    cluster: str
    job_id: int
    submitted: int
    ended: float
    run_s: float  # that it held its GPUs; 0: it never started
    gpus: int
    user: str
    over: bool
    # Whether it ended well, or how is not known.
    completed: bool
    # Whether it is not the job's first run.
    again: bool


class BlamedInput(NamedTuple):
    """Failed runs of one user and category whose diagnoses name the same file as the cause."""

    path: str
    user: str
    category: str
    runs: int
    gpu_s: float


class ActionSteps(NamedTuple):
    """Number of `targets` of one rule that had changes of this kind.

    `refused`: Slurm refused one of the changes; `done`: all of them are done.
    """

    rule: str
    mode: str
    refused: bool
    done: bool
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All input of one report. "The period" is [since, until)."""

    since: float
    until: float
    # Restrict the report to this user; "": all users.
    user: str = ""
    account: str = ""
    clusters: tuple[str, ...] = ()
    cells: Sequence[RunGroup] = ()
    # The same for the preceding period of the same length; None: nothing is known about it.
    cells_before: Sequence[RunGroup] | None = None
    # Number of runs whose job had ended another run earlier in the same period, by (user, account). Runs minus these
    # are jobs.
    repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)
    repeats_before: int = 0
    gsub_jobs: int = 0
    moments: Sequence[Moment] = ()
    # Seconds to failure by category, sorted, for the period; without runs that an incident struck.
    lasted: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # The same for all failures of at least 28 days.
    runtimes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # As `repeats`, but by (user, category), for failures that no incident struck.
    failed_repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)
    often: Sequence[Often] = ()
    incidents: Sequence[Incident] = ()
    incident_gpu_s: Mapping[str, float] = field(default_factory=dict)
    blamed: Sequence[BlamedInput] = ()
    details: Callable[[Sequence[Key]], Mapping[Key, Detail]] = lambda keys: {}
    # Number of pre-runs by outcome.
    outcomes: Mapping[str, int] = field(default_factory=dict)
    prerun_gpu_s: float = 0.0
    # User -> (number of pre-runs, number of jobs that they stopped).
    tried: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    caught: Sequence[Caught] = ()
    delayed: Delayed = field(default_factory=lambda: Delayed(0, 0, 0.0))
    again: Sequence[RetriedRun] = ()
    tuned: Sequence[TunedRun] = ()
    # Runs submitted in the newest week before `until`.
    paced: Sequence[StepCountedRun] = ()
    drawn: Sequence[Drawn] = ()
    # prerun.holdout as configured now.
    holdout: float = 0.0
    passed: Sequence[Passed] = ()
    refused: int = 0
    refused_falsely: int = 0
    steps: Sequence[ActionSteps] = ()
    # Drains decided in the period.
    drains: Sequence[ActionRecord] = ()
    # Moves of running jobs that were begun or advised in the period.
    moves: Sequence[ActionRecord] = ()
    # Nodes that are out of service now.
    removals: Sequence[Removal] = ()
    strikes: Sequence[StrikeRecord] = ()
    # None if this report does not judge nodes.
    history: NodeHistory | None = None
    # For the section on agreement: diagnosed runs, actions of the rules, and later submissions.
    judged: Sequence[JobRun] = ()
    spoken: Sequence[ActionRecord] = ()
    submitted: Sequence[Submission] = ()
    delays: Sequence[QueueDelay] = ()
    # Runs that passed jobs of others by the rule `order` alone, and how often they did.
    overtaken: tuple[int, int] = (0, 0)
    blocked: Sequence[BlockedInput] = ()
    # uid -> user name, of users with blocked inputs.
    names: Mapping[int, str] = field(default_factory=dict)
    # Runs of jobs that count their steps.
    counting: Sequence[JobRun] = ()
    # All runs of the largest jobs.
    large: Sequence[JobRun] = ()
    idle: Sequence[Idle] = ()
    # Number of runs whose GPU use is known.
    gpu_measured: int = 0
    asked: Sequence[RequestedAndUsed] = ()
    limits: Sequence[TimeAskedFor] = ()
    predicted: Sequence[PredictedRun] = ()
    trained: Sequence[TrainedRuns] = ()
    found_early: Sequence[FoundRun] = ()
    spread: Sequence[MultiNodeRun] = ()
    gpu_runs: Sequence[GpuRun] = ()
    # Runs with GPUs of the newest days and of the week before them, and the cluster's GPUs (None: not known).
    staying: Sequence[StayingRun] = ()
    staying_since: float = 0.0
    total_gpus: int | None = None
    # Node -> leaf switch or block; empty if the network is not known.
    switch_of: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
