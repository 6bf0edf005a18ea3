"""What the reconciler is handed, and what it keeps during a pass: Edges, Scope, Words, Summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmUnreachable, StoreError
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.decision import InputRead
from slurmwrap.model.evidence import Diagnosis, Evidence, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, JobRun, QueueDelay
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.placement.token_bucket import Bucket
from slurmwrap.policy.incident import Incident, Mounts, get_first_component
from slurmwrap.profiling.job_key import profile_key_of
from slurmwrap.profiling.merge_profiles import merge
from slurmwrap.protocols import Accounting, Clock, Logs, Publisher, Slurm, Spool, Store

T = TypeVar("T")
_MUTE_S = 600.0


class Unpack(Protocol):
    """store.plain.from_plain: JSON -> record; ValueError for anything that is not one."""

    def __call__(self, cls: type[T], plain: Mapping[str, Any]) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose reconciler this is. The site's believes hooks; a user's own sees only their jobs and touches no node."""

    user: str | None = None  # None: the site's
    uid: int = -1  # of `user`
    trusted: frozenset[int] = frozenset({0, -1})  # whose hooks are believed; -1: a private directory is the seal
    patience_s: float = 10.0  # how long an ended job waits for the Epilogs of nodes whose Prolog was heard


class NoAccounting:
    """A cluster without slurmdbd."""

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the reconciler is handed."""

    slurm: Slurm
    store: Store
    # The nodes' before the controller's: a Prolog says when a run began.
    spools: tuple[Spool, ...]
    logs: Logs
    clock: Clock
    publisher: Publisher | None
    unpack: Unpack
    classify: Callable[[Evidence], Diagnosis]
    # (uid, absolute paths), read as that user
    read_inputs: Callable[[int, Sequence[str]], tuple[InputRead, ...]]
    config: Config
    scope: Scope = field(default_factory=Scope)
    accounting: Accounting = field(default_factory=NoAccounting)
    mounts: Mounts = get_first_component
    steps: Callable[[JobRun, str], Mapping[str, Any]] = lambda record, directory: {}  # host.stepfiles.StepFiles
    # Nodes, CPUs and memory of others' waiting jobs.
    may_resize: Callable[[], bool] = lambda: True
    say: Callable[[str], None] = lambda line: None


@dataclass(slots=True)
class SlurmJobs:
    """Slurm's records in one pass. `first` was asked before the spools were read: an Epilog writes its observation
    before
    its job is final, so of the jobs that are final in `first` everything is in the spool."""

    ask: Callable[[], Sequence[JobRecord]]
    first: dict[int, JobRecord] = field(default_factory=dict)
    latest: dict[int, JobRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = {job.job_id: job for job in self.ask()}
        self.latest = self.first

    def know(self, ids: Iterable[int]) -> None:
        """Asks again if one of `ids` is new: then Slurm knows all of them, or has forgotten them."""
        if any(self.owner(job_id) is None for job_id in ids):
            self.latest = {job.job_id: job for job in self.ask()}

    def owner(self, job_id: int) -> int | None:
        """The uid of a job or array; None when Slurm knows none of that id."""
        if job_id in self.latest:
            return self.latest[job_id].uid
        return next((job.uid for job in self.latest.values() if job.array_job_id == job_id), None)


@dataclass(slots=True)
class IngestReport:
    """What came in: new observations, those known before, refused ones, and the profiles they changed."""

    kept: int = 0
    known: int = 0
    refused: int = 0
    profiles: int = 0
    blocked: int = 0
    # Ids of the jobs whose submissions these were.
    submitted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class PassSummary:
    """What one pass did. `waiting`: runs that are ending, so that the next pass should come soon."""

    ingested: IngestReport = field(default_factory=IngestReport)
    judged: list[JobRun] = field(default_factory=list)
    applied: list[ActionRecord] = field(default_factory=list)
    given_up: list[ActionRecord] = field(default_factory=list)
    waiting: int = 0
    # Changes of waiting jobs that must wait for their turn: the next pass should come soon too.
    held_back: int = 0
    errors: list[str] = field(default_factory=list)
    published: bool = False
    took_s: float = 0.0


@dataclass(slots=True)
class ReconcilerState:
    """What is kept between passes of one process, to save reads. Everything in it can be found again."""

    cluster: str = ""
    # Reconciled runs that Slurm still shows.
    settled: set[RunKey] = field(default_factory=set)
    published_at: float = 0.0
    recalled_at: float = 0.0  # when runs that ended unseen were looked for
    gate_until: float = 0.0  # the end of the Prolog gate's permit
    failures: dict[RunKey, JobRun] | None = None  # that incidents are made of; None: not read yet
    incidents: tuple[Incident, ...] | None = None  # as the last whole pass left them; None: not read yet
    starts: list[float] | None = None  # when retries of slurmwrap's may start, Unix seconds; None: not read yet
    bucket: Bucket | None = None  # of changes of waiting jobs; None: full
    submitted: dict[RunKey, Submission] = field(default_factory=dict)  # of the jobs that wait
    strangers: set[RunKey] = field(default_factory=set)  # waiting jobs of which no submission is known
    muted: dict[int, float] = field(default_factory=dict)  # uid → until when nothing is asked in its name
    profile_keys: dict[RunKey, str] = field(default_factory=dict)  # of running jobs; "": none is known
    delays: dict[RunKey, QueueDelay] | None = None  # of the jobs that wait; None: not read yet
    startable: dict[str, float] = field(default_factory=dict)  # since when waiting jobs could start at their share


@dataclass(slots=True)
class ReconcilePass:
    """One pass: its edges, Slurm's record, and reads that are made at most once."""

    edges: Services
    book: ReconcilerState
    words: SlurmJobs
    summary: PassSummary
    now: float
    _snapshot: Snapshot | None = None
    to_do: tuple[JobRun, ...] = ()  # runs that this pass attends to
    # slurmdbd's record of those that Slurm shows no longer; None: not asked yet
    past: tuple[JobRecord, ...] | None = None
    ours: tuple[JobRecord, ...] | None = None  # that wait and were submitted by gsub; None: not looked for yet
    head: tuple[Any, ...] | None = None  # pending.Waiting; None: not looked for yet
    unheard: bool = False  # in someone's name Slurm was not reached: one time-out is enough for a pass
    dirty: bool = False
    telling: bool = True
    incidents: tuple[Incident, ...] = ()  # that are open, or were when these runs failed
    grown: set[str] = field(default_factory=set)  # ids of those that changed since they were stored
    unseen: Counter[str] = field(default_factory=Counter)  # failures by category since incidents were looked for
    looked: dict[str, tuple[int, float]] = field(default_factory=dict)  # at how many failures, and near which end
    excused: dict[RunKey, str] = field(default_factory=dict)  # runs found only now to belong to an incident: its id

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self.edges.slurm.snapshot()
        return self._snapshot

    def forget_snapshot(self) -> None:
        self._snapshot = None


def run_for_each_job(job: JobRecord, this_pass: ReconcilePass, work: Callable[[], T], otherwise: T) -> T:
    """`work` for one job. What goes wrong with it, on its user's claim maybe, must not keep all others waiting."""
    try:
        return work()
    except (SlurmUnreachable, StoreError):
        raise
    except Exception as error:
        this_pass.summary.errors.append(f"job {job.address}: {type(error).__name__}: {error}")
        return otherwise


def mute_user(uid: int, this_pass: ReconcilePass) -> None:
    """Leave `uid` alone for a while: Slurm was not reached in its name, and the user may have stopped scontrol."""
    this_pass.book.muted[uid] = this_pass.now + _MUTE_S


def is_muted(uid: int, this_pass: ReconcilePass) -> bool:
    """Whether nothing is asked in its name now. A clock that was put back does not make it longer."""
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
    """Merges one measurement into its profile. In the site's database a key belongs to the user who named it.

    `variant`, `gpu_type`: of the job that was measured, "" where no one knows.
    """
    own = key if services.scope.user is not None else profile_key_of(uid, key)
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
