"""Data of the reconciler: its adapters (Services, Scope), its state (ReconcilerState), one pass (ReconcilePass)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmUnreachable, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, Preemption, Snapshot
from slurmwrap.model.decision import InputRead
from slurmwrap.model.evidence import Diagnosis, Evidence, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, JobRun, QueueDelay
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.queue_priority import PriorityScheme, PublishedOrder
from slurmwrap.model.resource_profile import Measurement, RunSpeed
from slurmwrap.model.running_job import CountedLosses, LossCurve
from slurmwrap.model.running_read import RunningNews, RunningRead
from slurmwrap.model.submission import Submission
from slurmwrap.placement.token_bucket import Bucket
from slurmwrap.policy.early_findings import RunningSeries
from slurmwrap.policy.incident import Incident, Mounts, get_first_component
from slurmwrap.policy.moved_run import RunMove
from slurmwrap.profiling.gpu_scaling import merge_speeds
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.profiling.merge_profiles import merge
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery
from slurmwrap.protocols import Accounting, Clock, LimitStore, Logs, Publisher, Slurm, Spool, Store
from slurmwrap.reconcile.messenger import Messenger
from slurmwrap.sbatch.move_options import Preemptible

T = TypeVar("T")
# How long no change is requested in a user's name after Slurm could not be reached in it.
_MUTE_S = 600.0


class Unpack(Protocol):
    """Signature of store.deserialize.record_from_json: JSON to record; ValueError for anything that is not one."""

    def __call__(self, cls: type[T], plain: Mapping[str, Any]) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The jobs that a reconciler is responsible for.

    The site's reconciler trusts hooks. A user's own sees only that user's jobs and changes no node.
    """

    user: str | None = None  # None: the site's reconciler
    uid: int = -1  # uid of `user`
    trusted: frozenset[int] = frozenset({0, -1})  # uids whose hooks are trusted; -1: files in a private directory
    patience_s: float = 10.0  # how long an ended job waits for the Epilogs of nodes whose Prolog was seen


class NoAccounting:
    """Accounting of a cluster without slurmdbd."""

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """Return no records."""
        return ()


class NoLimits:
    """LimitStore of a reconciler that lowers no limits."""

    def read(self) -> tuple[LoweredLimit, ...]:
        """Return none."""
        return ()

    def write(self, lowered: Sequence[LoweredLimit]) -> None:
        """Refuse: a limit that is not remembered could not be restored."""
        raise StoreError("lowered time limits are remembered only by the site's reconciler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The adapters and settings with which the reconciler works."""

    slurm: Slurm
    store: Store
    # The nodes' spools come before the controller's, because a Prolog records when a run began.
    spools: tuple[Spool, ...]
    logs: Logs
    clock: Clock
    publisher: Publisher | None
    unpack: Unpack
    classify: Callable[[Evidence], Diagnosis]
    # Arguments: uid, absolute paths. The files are read as that user.
    read_inputs: Callable[[int, Sequence[str]], tuple[InputRead, ...]]
    config: Config
    scope: Scope = field(default_factory=Scope)
    accounting: Accounting = field(default_factory=NoAccounting)
    mounts: Mounts = get_first_component
    # Steps that host.read_user_file.StepFiles reads from a run's step directory.
    steps: Callable[[JobRun, str], Mapping[str, Any]] = lambda record, directory: {}
    # Loss curve that host.read_loss_curve.LossCurveFiles reads from a run's output.
    curves: Callable[[JobRun], LossCurve | None] = lambda run: None
    # Losses that StepFiles.losses reads from a run's step directory; None: none were recorded.
    losses: Callable[[JobRun, str], CountedLosses | None] = lambda record, directory: None
    # When the newest checkpoint was written in a run's working directory, by StepFiles.saved_at; None: none was found.
    saved_at: Callable[[JobRun, str], float | None] = lambda run, directory: None
    # How Slurm itself preempts jobs.
    preemption: Callable[[], Preemption] = Preemption
    # host.read_running_jobs.RunningJobReader: the news of jobs of one user; None for each that was not read in time.
    read_running: Callable[[int, Sequence[RunningRead]], Sequence[RunningNews | None]] = lambda uid, reads: (
        [None] * len(reads)
    )
    # Argument: address of a running job. CPU seconds that its steps have used, by Slurm; None: not known.
    step_cpu_s: Callable[[str], float | None] = lambda address: None
    # CPU seconds that this process and its children have used.
    own_cpu_s: Callable[[], float] = lambda: 0.0
    # Whether this process may change nodes, CPUs and memory of other users' pending jobs.
    may_resize: Callable[[], bool] = lambda: True
    limits: LimitStore = field(default_factory=NoLimits)
    # Whether this process may raise the time limit of other users' running jobs.
    may_extend: Callable[[], bool] = lambda: False
    # Argument: Unix seconds. Whether limits would be restored if this process ended now.
    is_watched: Callable[[float], bool] = lambda now: False
    say: Callable[[str], None] = lambda line: None
    # Who switched slurmwrap off for the site (`slurmwrap off`), for people; None: it is on.
    switched_off: Callable[[], str | None] = lambda: None
    messenger: Messenger | None = None  # None: no messages are sent
    boot_times: Callable[[], Mapping[str, float]] = dict  # of all nodes, Unix seconds
    # Starts a check of a node that returns it to service if it passes (`slurmwrap nodes repaired NODE --resume`), and
    # returns a function that returns its exit code, None while it runs. None: this process starts none.
    start_node_check: Callable[[str], Callable[[], int | None]] | None = None
    # Whether this process makes one pass after the other, so that it undoes in time what it changes for a while.
    lasting: bool = True


@dataclass(slots=True)
class SlurmJobs:
    """Slurm's records in one pass.

    `first` was read before the spools. An Epilog writes its observation before its job is final, so everything about
    the jobs that are final in `first` is in the spools.
    """

    ask: Callable[[], Sequence[JobRecord]]
    first: dict[int, JobRecord] = field(default_factory=dict)
    latest: dict[int, JobRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = {job.job_id: job for job in self.ask()}
        self.latest = self.first

    def know(self, observations: Iterable[Observation]) -> None:
        """Read the records again if one of the observed jobs is unknown, or was observed to be further on.

        After that Slurm either knows all of the jobs, or has forgotten them.
        """
        if any(self.owner(one.job_id) is None or self._is_older_than(one) for one in observations):
            self.latest = {job.job_id: job for job in self.ask()}

    def _is_older_than(self, observation: Observation) -> bool:
        """Return True if the record was read before the Prolog's run started. Slurm starts the run, then the Prolog."""
        job, restarts = self.latest.get(observation.job_id), observation.facts.get("restarts")
        if observation.context is not Context.PROLOG or job is None or not isinstance(restarts, int):
            return False
        return restarts > job.restarts or (restarts == job.restarts and job.pending)

    def owner(self, job_id: int) -> int | None:
        """Return the uid of a job or array; None if Slurm knows no job with that id."""
        if job_id in self.latest:
            return self.latest[job_id].uid
        return next((job.uid for job in self.latest.values() if job.array_job_id == job_id), None)


@dataclass(slots=True)
class IngestReport:
    """Counts of one ingestion: new observations, known ones, rejected ones, and the profiles they changed."""

    kept: int = 0
    known: int = 0
    refused: int = 0
    profiles: int = 0
    blocked: int = 0
    # Ids of the jobs whose submissions arrived.
    submitted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class PassSummary:
    """What one pass did. `waiting`: number of runs that are ending, so that the next pass should come soon."""

    ingested: IngestReport = field(default_factory=IngestReport)
    judged: list[JobRun] = field(default_factory=list)
    applied: list[ActionRecord] = field(default_factory=list)
    given_up: list[ActionRecord] = field(default_factory=list)
    waiting: int = 0
    # Number of changes of pending jobs that the rate limit held back: the next pass should come soon too.
    held_back: int = 0
    errors: list[str] = field(default_factory=list)
    published: bool = False
    took_s: float = 0.0


@dataclass(slots=True)
class CheckpointWatch:
    """The checkpoints of one running job, as its output shows them (reconcile/limit_running.py)."""

    named: tuple[str, ...] | None  # further logs of its programs; None: the job is left alone
    extended: bool = False  # its limit was extended once already
    saved: bool = False  # it has written a checkpoint, and how long that took is stored
    looked_at: float = 0.0
    step: int = -1  # of the newest checkpoint; -1: none was seen
    saves: list[float] = field(default_factory=list)  # when further ones were first seen, Unix seconds


@dataclass(slots=True)
class StopWatch:
    """A running job that is to be stopped some time (reconcile/stop_running.py)."""

    submission: Submission | None  # None: the job is left alone
    looked_at: float = 0.0
    step: int | None = None  # newest checkpoint when its condition was first met, -1: none was seen; None: not met


@dataclass(slots=True)
class MoveWatch:
    """A running job that may be moved, or has a lease (reconcile/move_running.py). Times in Unix seconds."""

    submission: Submission | None  # None: the job is left alone
    how: Preemptible = field(default_factory=Preemptible)
    agreed: bool = False  # it may be moved for others' sake; else it only has a lease
    begins: dict[str, Any] = field(default_factory=dict)  # how far its output belongs to earlier runs
    attained_s: float = 0.0  # seconds that its earlier runs held its GPUs
    lost_s: float = 0.0  # seconds of work that it lost because it began again after moves
    moved_before_s: float = float("inf")  # time between its last move and `since`
    since: float = 0.0
    looked_at: float = 0.0
    step: int = -1  # of its newest checkpoint, by its output; -1: none was seen
    saved_at: float | None = None  # when its newest checkpoint was written or seen; None: none was seen
    reached: int | None = None  # furthest step
    first_step: int | None = None
    first_at: float | None = None  # when a step was first seen
    left_s: float | None = None  # seconds that are left by its own progress
    slowdown: float = 1.0
    last: RunMove | None = None  # that ended the run before; None: nothing did, or it was compared with this run
    move: RunMove | None = None  # that goes on


@dataclass(slots=True)
class RunningWatch:
    """One running job that the rule `early` looks at (reconcile/check_running.py)."""

    submission: Submission | None  # None: it was not submitted with gsub
    series: RunningSeries | None = None
    looked_at: float = 0.0
    begins: dict[str, Any] = field(default_factory=dict)  # how far its output was read, as in JobRun.output_begins
    found: set[str] = field(default_factory=set)  # kinds of findings whose evidence holds
    kept: set[str] = field(default_factory=set)  # of these, those of an earlier process
    began_at: float = 0.0  # when this process first looked at it
    comment: str = ""  # that slurmwrap set about them


@dataclass(slots=True)
class EarlyState:
    """State of the rule `early` between passes."""

    watches: dict[RunKey, RunningWatch] = field(default_factory=dict)
    spare_s: float = 1.0  # CPU time that the looks may still take
    spare_at: float | None = None


@dataclass(slots=True)
class OrderState:
    """State of the rule `order` between passes."""

    scheme: PriorityScheme | None = None  # None: not read yet
    scheme_at: float = 0.0
    thresholds: tuple[float, ...] = ()
    thresholds_at: float = 0.0
    published: PublishedOrder | None = None  # as it was published last
    known: dict[RunKey, tuple[ActionRecord, ...]] = field(default_factory=dict)  # of the pending jobs
    classes: dict[RunKey, int] = field(default_factory=dict)  # of the pending jobs in the last pass
    counted: set[RunKey] = field(default_factory=set)  # running jobs of which it is known whom they passed
    # Job -> the newest run of its key, and whether that took longer than expected.
    overran: dict[RunTimeQuery, tuple[object, bool]] = field(default_factory=dict)
    refused: bool = False  # this process may not change priorities


@dataclass(slots=True)
class ReconcilerState:
    """State that one process keeps between passes to save reads. All of it can be derived again."""

    cluster: str = ""
    # Reconciled runs that Slurm still shows.
    settled: set[RunKey] = field(default_factory=set)
    published_at: float = 0.0
    recalled_at: float = 0.0  # when runs that ended unseen were last searched for
    gate_until: float = 0.0  # the end of the Prolog gate's permit
    failures: dict[RunKey, JobRun] | None = None  # failures from which incidents are formed; None: not read yet
    incidents: tuple[Incident, ...] | None = None  # as the last complete pass left them; None: not read yet
    starts: list[float] | None = None  # planned starts of slurmwrap's retries, Unix seconds; None: not read yet
    bucket: Bucket | None = None  # rate limit for changes of pending jobs; None: full
    submitted: dict[RunKey, Submission] = field(default_factory=dict)  # submissions of the pending jobs
    strangers: set[RunKey] = field(default_factory=set)  # pending jobs without a known submission
    # uid -> time until which nothing is requested in that user's name
    muted: dict[int, float] = field(default_factory=dict)
    profile_keys: dict[RunKey, str] = field(default_factory=dict)  # of running jobs; "": none is known
    delays: dict[RunKey, QueueDelay] | None = None  # of the pending jobs; None: not read yet
    run_times: RunTimeHistory | None = None  # reads from the store what is asked; None: not asked yet
    run_time_queries: dict[RunKey, RunTimeQuery] = field(default_factory=dict)  # of pending and running jobs
    run_time_news: dict[RunTimeQuery, int] | None = None  # jobs whose lines are to be made -> end of their last run
    run_time_lines: dict[str, tuple[int, str]] = field(default_factory=dict)  # digest -> end of last run, line
    contention: ContentionWeights = NO_EVIDENCE
    contention_at: float = 0.0  # when it was last fitted; 0: not yet
    order: OrderState = field(default_factory=OrderState)
    startable: dict[str, float] = field(default_factory=dict)  # since when pending jobs could start with their share
    # Pending jobs that insist on few nodes -> since when they could start on more.
    startable_apart: dict[RunKey, float] = field(default_factory=dict)
    checkpoints: dict[RunKey, CheckpointWatch] = field(default_factory=dict)  # of running jobs that ran before
    stops: dict[RunKey, StopWatch] = field(default_factory=dict)  # of running jobs, and of requeued ones
    moves: dict[RunKey, MoveWatch] = field(default_factory=dict)  # of running jobs
    preemption: Preemption | None = None  # None: not read yet
    preemption_at: float = 0.0
    early: EarlyState = field(default_factory=EarlyState)
    fitted: set[RunKey] = field(default_factory=set)  # pending jobs with advice about their time limit
    unread_curves: list[JobRun] = field(default_factory=list)  # ended runs whose loss curve is still to be read
    off: bool = False  # slurmwrap was switched off in the last pass
    node_check: tuple[int, Callable[[], int | None]] | None = None  # the running check: id of its action, exit code
    limits_compared: bool = False  # the file of lowered limits was compared with the recorded changes


@dataclass(slots=True)
class ReconcilePass:
    """One pass: its adapters, Slurm's records, and reads that are made at most once."""

    services: Services
    book: ReconcilerState
    words: SlurmJobs
    summary: PassSummary
    now: float
    _snapshot: Snapshot | None = None
    to_do: tuple[JobRun, ...] = ()  # runs that this pass processes
    # slurmdbd's records of the runs that Slurm no longer shows; None: not asked yet.
    past: tuple[JobRecord, ...] | None = None
    ours: tuple[JobRecord, ...] | None = None  # pending jobs that were submitted with gsub; None: not read yet
    head: tuple[Any, ...] | None = None  # head of the queue as PendingGsubJob; None: not read yet
    # Slurm could not be reached in some user's name. One time-out is enough for a pass.
    unheard: bool = False
    dirty: bool = False
    telling: bool = True
    off: bool = False  # slurmwrap is switched off: whatever it changed for a while is put back, and nothing is begun
    incidents: tuple[Incident, ...] = ()  # incidents that are open, or were open when these runs failed
    grown: set[str] = field(default_factory=set)  # ids of incidents that changed since they were stored
    unseen: Counter[str] = field(default_factory=Counter)  # failures by category since incidents were last searched for
    # Category -> number of failures in the last search, and the end time around which it searched.
    looked: dict[str, tuple[int, float]] = field(default_factory=dict)
    # Runs assigned to an incident after they were judged -> its id.
    excused: dict[RunKey, str] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self.services.slurm.snapshot()
        return self._snapshot

    def forget_snapshot(self) -> None:
        self._snapshot = None


def select_unwatched_jobs(
    running: Mapping[RunKey, JobRecord],
    watches: dict[RunKey, MoveWatch] | dict[RunKey, RunningWatch],
    this_pass: ReconcilePass,
) -> list[tuple[RunKey, JobRecord]]:
    """Drop the watches of jobs that run no more. Return the running jobs of which no submission was searched yet.

    gsub may report a submission after its job has started.
    """
    for gone in watches.keys() - running.keys():
        del watches[gone]
    new = this_pass.summary.ingested.submitted
    return [
        (key, job)
        for key, job in running.items()
        if key not in watches or (watches[key].submission is None and job.submitted_id in new)
    ]


def run_for_each_job(job: JobRecord, this_pass: ReconcilePass, work: Callable[[], T], otherwise: T) -> T:
    """Return `work()` for one job, or `otherwise` on an error, so that one job's bad data does not stop all others."""
    try:
        return work()
    except (SlurmUnreachable, StoreError):
        raise
    except Exception as error:
        this_pass.summary.errors.append(f"job {job.address}: {type(error).__name__}: {error}")
        return otherwise


def mute_user(uid: int, this_pass: ReconcilePass) -> None:
    """Request nothing in the name of `uid` for a while, because Slurm could not be reached in it.

    The user may have stopped scontrol.
    """
    this_pass.book.muted[uid] = this_pass.now + _MUTE_S


def is_muted(uid: int, this_pass: ReconcilePass) -> bool:
    """Return True if nothing is requested in the user's name now. A clock that was set back does not prolong it."""
    return 0 < this_pass.book.muted.get(uid, 0.0) - this_pass.now <= _MUTE_S


def learn(
    services: Services,
    key: str,
    uid: int,
    measurement: Measurement,
    *,
    at: float,
    source: str,
    complete: bool,
    variant: str = "",
    gpu_type: str = "",
) -> None:
    """Merge one measurement into its profile. In the site's database a key belongs to the user who named it.

    `variant` and `gpu_type` are those of the measured job, "" if unknown.
    """
    own = key if services.scope.user is not None else derive_site_key(uid, key)
    old = services.store.profile(own)
    merged = merge(
        old,
        measurement,
        key=own,
        source=source,
        at=at,
        gpu_type=gpu_type,
        gpus_per_node=measurement.gpus,
        complete=complete,
        variant=variant,
    )
    services.store.save_profile(merged)
    services.store.save_measurement(own, measurement, at, source)


def learn_speed(services: Services, key: str, uid: int, speed: RunSpeed | None) -> None:
    """Add the speed of a complete run to its profile, if there is one. `speed` None: the run says nothing."""
    own = key if services.scope.user is not None else derive_site_key(uid, key)
    old = services.store.profile(own)
    if speed is not None and old is not None:
        services.store.save_profile(replace(old, speeds=merge_speeds(old.speeds, speed)))
