"""Protocols of the adapters: interfaces to Slurm, the clock, files and the database that the flows get as arguments.

Implementations: slurm/commands.py, host/system_clock.py, store/database.py, store/spool_reader.py. Tests replace them
by tests/fakes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field

# Published is read back from JSON by its annotations, so the types of its fields must be importable at run time.
from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, NodeHealth, NodeLoad, Snapshot
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.queue_priority import PublishedOrder
from slurmwrap.model.resource_profile import ResourceProfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    from slurmwrap.model.decision import PlannedAction, RetryDecision, SlurmAction, Strike
    from slurmwrap.model.evidence import LogTail, RunKey
    from slurmwrap.model.gate_permit import Gate
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.job_run import (
        ActionRecord,
        Incident,
        JobRun,
        LedgerReset,
        PrerunRecord,
        QueueDelay,
        StrikeRecord,
    )
    from slurmwrap.model.lowered_limit import LoweredLimit
    from slurmwrap.model.observation import Observation, RejectedEntry, SpoolEntry
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.queue_priority import PriorityScheme
    from slurmwrap.model.resource_profile import Measurement
    from slurmwrap.model.running_job import EarlyFinding, GpuUse, LossCurve
    from slurmwrap.model.submission import Submission
    from slurmwrap.policy.node_history import NodeCheck, NodeHistory, Removal, Repair
    from slurmwrap.prerun.expected_saving import ScriptOutcome
    from slurmwrap.profiling.contention import ComparedRun
    from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup, RunTimeQuery, RunTimeRecord
else:
    Protocol = object  # only type checkers look


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchCall:
    """One call of sbatch: `sbatch *options SCRIPT *args`."""

    options: tuple[str, ...]
    # None: the script is piped in as `stdin`, or --wrap is among the options.
    script_path: str | None
    args: tuple[str, ...] = ()
    stdin: bytes | None = None
    # The complete environment of the call.
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout_s: float | None = None  # None: the default of the adapter; math.inf for sbatch --wait
    # Called with the output of sbatch as soon as sbatch has printed the job id.
    accepted: Callable[[SbatchResult], None] | None = None
    # A short task that may run while sbatch is running.
    meanwhile: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchResult:
    """Output of sbatch, without the part that `accepted` got.

    `job_id` None: sbatch refused the job or, with `timed_out`, it is unknown whether the job was submitted.
    """

    exit_code: int
    stdout: str
    stderr: str
    job_id: int | None
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTest:
    """Slurm's answer about one job in one partition: why it is refused, or when it would start (Unix seconds).

    `start` None: it would be taken, but its start is not known.
    """

    start: int | None = None
    refusal: str = ""


class Slurm(Protocol):
    """All requests to Slurm. Methods raise SlurmUnreachable when Slurm does not answer, SlurmError when it refuses."""

    def cluster_name(self) -> str:
        """Return ClusterName of slurm.conf."""

    def snapshot(self) -> Snapshot:
        """Return nodes and topology, with at most two calls of Slurm."""

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submit once. The submission is never repeated after an ambiguous error."""

    def test_partitions(self, call: SbatchCall, names: Sequence[str]) -> Mapping[str, PartitionTest]:
        """Return Slurm's answer to `sbatch --test-only` of this call in each partition of which it says anything."""

    def job(self, address: str) -> JobRecord | None:
        """Return Slurm's record of one job or array task; None when Slurm has forgotten it (MinJobAge)."""

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """Return all jobs that Slurm still knows, of one user or of all users."""

    def priority_scheme(self) -> PriorityScheme:
        """Return how Slurm orders its queue at present."""

    def priority_terms(self, key: str, user: str | None = None) -> Mapping[int, int]:
        """Return `key` ("Nice" or "SiteFactor") of the pending jobs of one user or of all users, by raw job id.

        For SiteFactor jobs may be missing: Slurm does not show it while a job is held, not eligible or just changed.
        """

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carry out one action, with `owner` on behalf of that uid if allowed. SlurmError when Slurm refuses.

        `also`: further updates of the same job that go in the same call, so that it cannot start in between.
        """


class Accounting(Protocol):
    """Records of runs in slurmdbd. Raises SlurmError and SlurmUnreachable as Slurm does."""

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """Return all runs of these raw job ids, also those that ended by a requeue; () without slurmdbd."""


class LimitStore(Protocol):
    """The time limits that are lowered at present. Raises StoreError."""

    def read(self) -> tuple[LoweredLimit, ...]:
        """Return all of them."""

    def write(self, lowered: Sequence[LoweredLimit]) -> None:
        """Replace all of them; after a crash there are the old or the new ones."""


class Clock(Protocol):
    """The current time and sleeping, replaced in tests so that they need not wait."""

    def now(self) -> float:
        """Return the time in Unix seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""


class Spool(Protocol):
    """Directory in which observations arrive."""

    def collect(self, limit: int = 1000) -> Iterable[SpoolEntry]:
        """Return the complete files, oldest first, without removing any."""

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Remove files that are stored; move those of RejectedEntry to the folder of rejected files."""


class Logs(Protocol):
    """Reader of a job's output, where slurmwrap may read it (user mode, or root that became the user)."""

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        """Return the ends of stdout, stderr and, of `named` (Submission.logs), those that this run wrote.

        Empty when they cannot be read.
        """


class Store(Protocol):
    """The database of the site or of one user, with the same schema. Raises StoreError when it cannot be used."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in which either all writes happen or none."""

    def ingest(self, observation: Observation) -> bool:
        """Store an observation; return False, and change nothing, when its nonce is already stored."""

    def save_rejected_entry(self, item: RejectedEntry, at: float) -> None:
        """Count a rejected spool file."""

    def observations(self, cluster: str, job_id: int) -> tuple[Observation, ...]:
        """Return all observations of one raw job id, oldest first."""

    def count_observations(self, cluster: str, job_id: int, uid: int) -> int:
        """Return how many observations of one raw job id this user wrote."""

    def save_attempt(self, run: JobRun) -> None:
        """Insert a run, or replace the one with the same key."""

    def attempt(self, attempt: RunKey) -> JobRun | None:
        """Return one run; None when it is unknown."""

    def attempts(
        self,
        *,
        cluster: str | None = None,
        job_id: int | None = None,
        user: str | None = None,
        since: float | None = None,
        unreconciled: bool = False,
    ) -> tuple[JobRun, ...]:
        """Return runs ordered by submit_time, oldest first. `since`: those not ended, or ended at or after it."""

    def failures(self, categories: Collection[str], *, since: float, limit: int) -> tuple[JobRun, ...]:
        """Return diagnosed runs of these categories that ended at or after `since`: newest `limit`, oldest first."""

    def save_judged(self, run: JobRun, decision: RetryDecision, at: float) -> None:
        """Store a run with its diagnosis, and the decision's strikes and blocked inputs, in one transaction."""

    def settle(self, run: JobRun) -> None:
        """Mark a stored run as reconciled. Of its other fields only those without a column of their own are written."""

    def save_run_time(self, record: RunTimeRecord) -> bool:
        """Store the run time of one run. Return False if it is stored already, or if the run was a pre-run."""

    def run_times(self, cluster: str, group: RunTimeGroup) -> GroupRuns:
        """Return the newest KEPT_RUNS runs of a group, oldest first."""

    def run_time_jobs(self, cluster: str, limit: int) -> Iterable[tuple[RunTimeQuery, int]]:
        """Return the `limit` different jobs of which a run ended last, each with that end in Unix seconds."""

    def save_early_finding(self, finding: EarlyFinding) -> None:
        """Insert or replace by run and kind."""

    def early_findings(self, attempt: RunKey | None = None, *, since: float | None = None) -> tuple[EarlyFinding, ...]:
        """Return the findings about one run, or about all runs, oldest first. `since`: Unix seconds."""

    def save_gpu_use(self, use: GpuUse) -> None:
        """Insert or replace by run, node and GPU."""

    def gpu_use(self, attempt: RunKey, node: str | None = None) -> tuple[GpuUse, ...]:
        """Return the samples of the GPUs of one run, ordered by node and GPU. `node`: only those of one node."""

    def host_use(self, attempt: RunKey, node: str | None = None) -> tuple[GpuUse, ...]:
        """Return the samples of CPUs and memory of one run, ordered by node (model.running_job.HOST)."""

    def save_loss_curve(self, curve: LossCurve) -> None:
        """Insert or replace by run."""

    def loss_curve(self, attempt: RunKey) -> LossCurve | None:
        """Return the loss curve of one run; None if none is stored."""

    def loss_curves(self, since: float, *, points: bool = True) -> tuple[LossCurve, ...]:
        """Return the curves of the runs that ended since then, in the order of their ends. `since`: Unix seconds."""

    def gpu_seconds(self, cluster: str, since: float) -> tuple[float, ...]:
        """Return GPUs times run time of the runs with GPUs that completed or were cut off since then."""

    def intend(self, attempt: RunKey | None, ruled: PlannedAction, mode: str, at: float, *, again: bool = False) -> int:
        """Store an action as intended and return its id.

        The same (run, rule, action) gives the same id; `again` marks that action as to be done once more.
        """

    def done(self, action_id: int, at: float, error: str = "") -> None:
        """Mark an action as done."""

    def actions(self, attempt: RunKey | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        """Return actions in the order in which they were intended."""

    def resets(self, job_id: int) -> tuple[LedgerReset, ...]:
        """Return the resets of the retry budget of one raw job id, oldest first."""

    def strikes(self, *, since: float, node: str | None = None) -> tuple[StrikeRecord, ...]:
        """Return strikes that were not cleared, oldest first."""

    def add_strike(self, strike: Strike, at: float, job_id: int, uid: int) -> None:
        """Add a strike that is not part of a decision (save_judged adds those)."""

    def save_incident(self, incident: Incident, members: Sequence[RunKey] = ()) -> None:
        """Insert or replace by id; mark `members` and their inconclusive strikes as part of the incident."""

    def incidents(self, *, since: float | None = None, open_only: bool = False) -> tuple[Incident, ...]:
        """Return incidents, oldest first. `since`: those that are open, or ended at or after it."""

    def clear_strikes(self, node: str, who: str, at: float) -> int:
        """Mark the strikes of a node up to `at` as void and return their number. Nothing is deleted."""

    def add_repair(self, repair: Repair) -> None:
        """Add a repair mark of a node; adding the same mark twice has no further effect."""

    def repairs(self, *, since: float) -> tuple[Repair, ...]:
        """Return the repair marks of nodes, oldest first."""

    def node_checks(self, *, since: float) -> tuple[NodeCheck, ...]:
        """Return the checks of nodes before their return to service, oldest first."""

    def save_removal(self, removal: Removal) -> None:
        """Insert or replace by (node, began)."""

    def removals(self) -> tuple[Removal, ...]:
        """Return the removals that have not ended."""

    def node_history(self, since: float) -> NodeHistory:
        """Return all records about nodes since then, including cleared strikes."""

    def block_input(self, blocked: BlockedInput) -> None:
        """Block an input."""

    def blocked_inputs(self, uid: int | None = None) -> tuple[BlockedInput, ...]:
        """Return the inputs blocked for `uid` (the user's own and the site's), or all."""

    def clear_input(self, digest: str) -> bool:
        """Unblock an input; return False when it was not blocked."""

    def save_submission(self, submission: Submission) -> None:
        """Insert or replace by (cluster, job_id, at)."""

    def submission(self, cluster: str, job_id: int) -> Submission | None:
        """Return the newest submission of this job id; None when there is none."""

    def submissions(self, *, since: float | None = None, user: str | None = None) -> tuple[Submission, ...]:
        """Return submissions, oldest first."""

    def unseen(self, cluster: str, since: float) -> tuple[int, ...]:
        """Return the ids of jobs that were submitted at or after `since` and have no stored run; oldest first."""

    def save_delay(self, delay: QueueDelay) -> None:
        """Insert or replace by run."""

    def delays(
        self, *, job_id: int | None = None, since: float | None = None, open_only: bool = False
    ) -> tuple[QueueDelay, ...]:
        """Return queue delays by seen_at, oldest first. `since`: those examined at or after it."""

    def save_prerun(self, record: PrerunRecord) -> None:
        """Insert or replace by (cluster, prerun_job_id, at)."""

    def preruns(
        self, *, job_id: int | None = None, fingerprint: str | None = None, since: float | None = None
    ) -> tuple[PrerunRecord, ...]:
        """Return pre-runs, oldest first."""

    def profile(self, key: str) -> ResourceProfile | None:
        """Return the resource profile under `key`; None when there is none."""

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """Return all resource profiles."""

    def save_profile(self, profile: ResourceProfile) -> None:
        """Insert or replace a resource profile."""

    def script_outcomes(self, limit: int) -> tuple[ScriptOutcome, ...]:
        """Return what became of the newest submissions of all users, oldest first; keys begin with the uid."""

    def shared_runs(self, since: float) -> tuple[ComparedRun, ...]:
        """Return the runs with counted steps that ended since then and all runs next to them; () without such steps."""

    def save_measurement(self, key: str, measurement: Measurement, at: float, source: str) -> None:
        """Store a raw measurement next to the profile that it contributed to."""


class Memory(Protocol):
    """The user's own state for gsub and pre-runs: cheap reads, and one file for each thing to remember."""

    def profile(self, key: str) -> ResourceProfile | None:
        """Return the resource profile under `key`; None when there is none."""

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        """Return the inputs that are blocked for this user."""

    def passed(self, fingerprint: str) -> bool:
        """Return whether a pre-run with this fingerprint (same script, code and environment) passed before."""

    def measured(self, fingerprint: str) -> Measurement | None:
        """Return what the newest pre-run with this fingerprint measured if it passed; else None."""

    def undecided(self, fingerprint: str) -> str:
        """Return why the newest pre-run with this fingerprint was inconclusive if another would be too; else ""."""

    def completed(self, script_sha256: str, fingerprint: str) -> bool:
        """Return whether a run of the same program is known to have completed."""

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        """Return (job id, submit time) of the newest submissions of the same program to `cluster` with unknown end."""

    def remember_completed(self, fingerprint: str, at: float) -> None:
        """Remember that a run with this fingerprint completed."""

    def outcomes(self) -> tuple[ScriptOutcome, ...]:
        """Return what became of the user's newest submissions, oldest first."""

    def has_runs(self) -> bool:
        """Return whether the user's own database exists, so that open_run_times() may give runs."""

    def open_run_times(self, cluster: str) -> AbstractContextManager[Callable[[RunTimeGroup], GroupRuns]]:
        """Return a function that returns the newest runs of a group in the user's own database, oldest first."""

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[PastFailure, ...]:
        """Return deterministic failures of the same script, code and arguments since its last success, newest first."""

    def site_listens(self) -> bool:
        """Return whether submissions can be sent to the site's reconciler from this machine."""

    def picked_at(self) -> float:
        """Return when a node list was last requested for a job of this user, in Unix seconds; 0 means never."""

    def remember_submission(self, submission: Submission) -> None:
        """Store a submission, and report it to the site if there is a site installation."""

    def remember_prerun(self, record: PrerunRecord) -> None:
        """Store a pre-run, and report it to the site if there is a site installation."""

    def trial_dir(self) -> str:
        """Create a private directory for the files of one pre-run and return its path. Raises OSError."""

    def retry_job_output(self) -> str:
        """Return the pattern of the output files of retry jobs, after creating their directory."""

    def pack_dir(self) -> str:
        """Create and return the path of a directory for the files of a packed job. OSError if that fails."""

    def share_dir(self) -> str:
        """Create and return the path of a directory for the files of a job that shares its GPU. Raises OSError."""

    def step_dir(self) -> str:
        """Create a private directory in which the runs of one job count their steps. Raises OSError."""

    def keep_counter(self) -> str:
        """Return the directory, one per version, that holds the step counter for real jobs. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident:
    """The part of an open incident that every user may see: no job and no text of any user.

    `scope`: "cluster", "switch leaf0", "path /scratch" (a mount point that the controller knows), "path" (any other
    path) or "host" (a host outside the cluster).
    """

    category: str
    scope: str
    since: float
    jobs: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """State that the site publishes for all users. It is trusted only if root or SlurmUser owns the file."""

    at: float = 0.0
    health: tuple[NodeHealth, ...] = ()
    blocked: tuple[BlockedInput, ...] = ()
    profiles: tuple[ResourceProfile, ...] = ()
    incidents: tuple[OpenIncident, ...] = ()
    loads: tuple[NodeLoad, ...] = ()
    contention: ContentionWeights = NO_EVIDENCE
    # (Failed, known) versions of the newest scripts of all users: first versions, and changed ones. A version failed if
    # a pre-run stopped it or would have stopped it (store/script_outcomes.py).
    new_scripts: tuple[int, int] = (0, 0)
    changed_scripts: tuple[int, int] = (0, 0)
    # Expected run times of groups of jobs, one line each (profiling/published_run_times.py). As text, since gsub reads
    # one line of thousands.
    run_times: str = ""
    # Mount point -> MiB/s for one process that reads from it (profiling/storage_model.summarize_mounts).
    mounts: Mapping[str, float] = field(default_factory=dict)
    order: PublishedOrder | None = None  # None: the queue is not ordered
    # Whether the site's reconciler relaxes the constraints of waiting jobs; gsub may then ask for stricter ones.
    relaxing: bool = False

    def fresh(self, now: float) -> bool:
        """Return whether the publishing reconciler still runs. It publishes every five minutes."""
        return 0 <= now - self.at < 600


class Publisher(Protocol):
    """Writer of what the site returns to its users."""

    def publish(self, published: Published) -> None:
        """Replace the world-readable state in one step."""

    def tell_gate(self, gate: Gate) -> None:
        """Replace the file that the Prolog gate on the nodes reads."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord], gpu_use: Sequence[GpuUse] = ()) -> None:
        """Seal one diagnosed run, with the use of its GPUs, for its owner's uid (`munge -u`): only they can open it."""

    def end_pass(self) -> None:
        """End a pass: send what was collected for the owners."""
