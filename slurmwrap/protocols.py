"""The edges as Protocols: what submit and reconcile are handed, and what tests swap whole.

Real ones: slurm/commands.py, host/system_clock.py, store/database.py, store/spool_reader.py. Fakes: tests/fakes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field

# Published is read back from JSON by its annotations: its fields' types must be here when the program runs.
from slurmwrap.model.cluster import NodeHealth, NodeLoad, Snapshot
from slurmwrap.model.decision import BlockedInput
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
    from slurmwrap.model.observation import Observation, RejectedEntry, SpoolEntry
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.resource_profile import Measurement
    from slurmwrap.model.submission import Submission
    from slurmwrap.policy.node_history import NodeHistory, Removal, Repair
else:
    Protocol = object  # only type checkers look


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchCall:
    """One call of sbatch: `sbatch *options SCRIPT *args`."""

    options: tuple[str, ...]
    # None: `stdin` is piped in, or --wrap is among the options.
    script_path: str | None
    args: tuple[str, ...] = ()
    stdin: bytes | None = None
    # The whole environment of the call.
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout_s: float | None = None  # None: the edge's own; math.inf for sbatch --wait
    accepted: Callable[[SbatchResult], None] | None = None  # gets at once what sbatch said until it named the job
    meanwhile: Callable[[], None] | None = None  # something short that may be done while sbatch is at work


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchResult:
    """What sbatch said, without what `accepted` got. `job_id` None: it refused or (`timed_out`) no one knows."""

    exit_code: int
    stdout: str
    stderr: str
    job_id: int | None
    timed_out: bool = False


class Slurm(Protocol):
    """Everything we ask of Slurm. Raises SlurmUnreachable when it does not answer, SlurmError when it refuses."""

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""

    def snapshot(self) -> Snapshot:
        """Nodes and topology; two Slurm calls at most."""

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submits once; never again after an ambiguous error."""

    def job(self, address: str) -> JobRecord | None:
        """Slurm's record on one job or array task; None when Slurm has forgotten it (MinJobAge)."""

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """All jobs that Slurm still knows, of one user or all."""

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carries out one action; with `owner` in the name of that uid, where we may. SlurmError when Slurm refuses.

        `also`: further updates of the same job that go in the same call, so that it cannot start in between.
        """


class Accounting(Protocol):
    """What slurmdbd remembers of runs. Raises SlurmError and SlurmUnreachable as Slurm does."""

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """All runs of these raw job ids, those that ended by a requeue too; () where there is no slurmdbd."""


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def now(self) -> float:
        """Unix seconds."""

    def sleep(self, seconds: float) -> None:
        """Waits."""


class Spool(Protocol):
    """Where observations arrive."""

    def collect(self, limit: int = 1000) -> Iterable[SpoolEntry]:
        """Files that are complete, oldest first; nothing is removed."""

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Removes files that are stored; RejectedEntry ones move to the rejected folder."""


class Logs(Protocol):
    """Reads the output of a job where we may read it (user mode, or root dropped to the user)."""

    def tails(self, run: JobRun) -> tuple[LogTail, ...]:
        """The ends of stdout and stderr; empty when they cannot be read."""


class Store(Protocol):
    """The database: the site's or the user's own, one schema. StoreError when it cannot be used."""

    def transaction(self) -> AbstractContextManager[None]:
        """All writes within happen together or not at all."""

    def ingest(self, observation: Observation) -> bool:
        """Keeps it; False when its nonce is known (then nothing changed)."""

    def save_rejected_entry(self, item: RejectedEntry, at: float) -> None:
        """Counts a refused spool file."""

    def observations(self, cluster: str, job_id: int) -> tuple[Observation, ...]:
        """All of one raw job id, oldest first."""

    def save_attempt(self, run: JobRun) -> None:
        """Inserts or replaces by key."""

    def attempt(self, attempt: RunKey) -> JobRun | None:
        """One attempt."""

    def attempts(
        self,
        *,
        cluster: str | None = None,
        job_id: int | None = None,
        user: str | None = None,
        since: float | None = None,
        unreconciled: bool = False,
    ) -> tuple[JobRun, ...]:
        """By submit_time, oldest first. `since`: ended (or not ended yet) at or after."""

    def failures(self, categories: Collection[str], *, since: float, limit: int) -> tuple[JobRun, ...]:
        """Judged runs of these categories that ended at or after `since`, the newest `limit` of them; oldest first."""

    def save_judged(self, run: JobRun, decision: RetryDecision, at: float) -> None:
        """Stores a run with its diagnosis, and the strikes and blocked inputs of the decision, in one transaction."""

    def settle(self, run: JobRun) -> None:
        """Takes a stored run off the to-do list; of the rest of it only fields without a column are written."""

    def intend(self, attempt: RunKey | None, ruled: PlannedAction, mode: str, at: float, *, again: bool = False) -> int:
        """Writes an action as intended; returns its id. The same (attempt, rule, action) gives the same id; with
        `again` it is then to be done once more."""

    def done(self, action_id: int, at: float, error: str = "") -> None:
        """Ticks an action off."""

    def actions(self, attempt: RunKey | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        """In the order they were intended."""

    def resets(self, job_id: int) -> tuple[LedgerReset, ...]:
        """Of one raw job id, oldest first."""

    def strikes(self, *, since: float, node: str | None = None) -> tuple[StrikeRecord, ...]:
        """Strikes that were not cleared, oldest first."""

    def add_strike(self, strike: Strike, at: float, job_id: int, uid: int) -> None:
        """One more (save_judged does it for a decision's own)."""

    def save_incident(self, incident: Incident, members: Sequence[RunKey] = ()) -> None:
        """Inserts or replaces by id; `members` and their inconclusive strikes are marked as its own."""

    def incidents(self, *, since: float | None = None, open_only: bool = False) -> tuple[Incident, ...]:
        """Oldest first. `since`: open, or over at or after."""

    def clear_strikes(self, node: str, who: str, at: float) -> int:
        """Marks the strikes of a node up to `at` as void; returns how many there were. Nothing is deleted."""

    def add_repair(self, repair: Repair) -> None:
        """A mark on a node; the same one twice is one."""

    def repairs(self, *, since: float) -> tuple[Repair, ...]:
        """Marks on nodes, oldest first."""

    def save_removal(self, removal: Removal) -> None:
        """Inserts or replaces by (node, began)."""

    def removals(self) -> tuple[Removal, ...]:
        """Those that have not ended."""

    def node_history(self, since: float) -> NodeHistory:
        """All that speaks about nodes since then, cleared strikes too."""

    def block_input(self, blocked: BlockedInput) -> None:
        """Blocks an input."""

    def blocked_inputs(self, uid: int | None = None) -> tuple[BlockedInput, ...]:
        """Inputs in force for `uid` (its own and the site's), or all."""

    def clear_input(self, digest: str) -> bool:
        """Frees an input; False when it was not blocked."""

    def save_submission(self, submission: Submission) -> None:
        """Inserts or replaces by (cluster, job_id, at)."""

    def submission(self, cluster: str, job_id: int) -> Submission | None:
        """The newest of this job id."""

    def submissions(self, *, since: float | None = None, user: str | None = None) -> tuple[Submission, ...]:
        """Oldest first."""

    def unseen(self, cluster: str, since: float) -> tuple[int, ...]:
        """Ids of the jobs submitted at or after `since` of which no run is known; oldest first."""

    def save_delay(self, delay: QueueDelay) -> None:
        """Inserts or replaces by attempt."""

    def delays(
        self, *, job_id: int | None = None, since: float | None = None, open_only: bool = False
    ) -> tuple[QueueDelay, ...]:
        """By seen_at, oldest first. `since`: looked at at or after."""

    def save_prerun(self, record: PrerunRecord) -> None:
        """Inserts or replaces by (cluster, prerun_job_id, at)."""

    def preruns(
        self, *, job_id: int | None = None, fingerprint: str | None = None, since: float | None = None
    ) -> tuple[PrerunRecord, ...]:
        """Oldest first."""

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """All of them."""

    def save_profile(self, profile: ResourceProfile) -> None:
        """Inserts or replaces."""

    def save_measurement(self, key: str, measurement: Measurement, at: float, source: str) -> None:
        """Keeps a raw measurement next to the profile it went into."""


class Memory(Protocol):
    """The user's own state, as gsub and a pre-run see it: light reads, and one file per thing to remember."""

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        """Inputs blocked for this user."""

    def passed(self, fingerprint: str) -> bool:
        """This very script, code and environment passed its pre-run before."""

    def undecided(self, fingerprint: str) -> str:
        """Why the newest pre-run of the very same could not say, where another one would not either; "" else."""

    def completed(self, script_sha256: str, fingerprint: str) -> bool:
        """A run of the very same is known to have completed."""

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        """(job id, when submitted) of the newest submissions of the very same to `cluster` whose end is not known."""

    def remember_completed(self, fingerprint: str, at: float) -> None:
        """Keeps that a run of the very same completed."""

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[PastFailure, ...]:
        """Deterministic failures of this very script, code and arguments since its last success, newest first."""

    def site_listens(self) -> bool:
        """The site's reconciler can be sent a submission from here."""

    def picked_at(self) -> float:
        """When a list of nodes was last asked for a job of this user's, Unix seconds; 0: never."""

    def remember_submission(self, submission: Submission) -> None:
        """Keeps it, and reports it to the site where there is one."""

    def remember_prerun(self, record: PrerunRecord) -> None:
        """Keeps it, and reports it to the site where there is one."""

    def trial_dir(self) -> str:
        """A fresh private directory for one pre-run's files. OSError when it cannot."""

    def step_dir(self) -> str:
        """A fresh private directory where the runs of one job count their steps. OSError when it cannot."""

    def keep_counter(self) -> str:
        """The directory, one per version, that holds the step counter for real jobs. OSError when it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident:
    """What everyone may know of an open incident: no one's job, no text of a user's.

    `scope`: "cluster", "switch leaf0", "path /scratch" (a mount point that the controller knows), "path" (another one)
    or "host" (some host outside).
    """

    category: str
    scope: str
    since: float
    jobs: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the site publishes for everyone: believed only if root or SlurmUser owns it."""

    at: float = 0.0
    health: tuple[NodeHealth, ...] = ()
    blocked: tuple[BlockedInput, ...] = ()
    profiles: tuple[ResourceProfile, ...] = ()
    incidents: tuple[OpenIncident, ...] = ()
    loads: tuple[NodeLoad, ...] = ()
    # The site's reconciler loosens waiting jobs: what is asked for may be firmer.
    relaxing: bool = False

    def fresh(self, now: float) -> bool:
        """Whether who published it still runs: it is published every five minutes."""
        return 0 <= now - self.at < 600


class Publisher(Protocol):
    """What users get back from the site."""

    def publish(self, published: Published) -> None:
        """Replaces the world-readable state in one step."""

    def tell_gate(self, gate: Gate) -> None:
        """Replaces what the nodes' Prolog gate reads."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord]) -> None:
        """Seals one judged attempt for its owner's uid (`munge -u`); only they can open it."""

    def end_pass(self) -> None:
        """A pass is over: what was collected for the owners is sent."""
