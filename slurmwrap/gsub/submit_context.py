"""What a submission is handed, and the records that pass from step to step. Records only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.protocols import Published

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.finding import Finding
    from slurmwrap.model.limits import Quotas
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.protocols import Clock, Memory, SbatchCall, SbatchResult, Slurm
    from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange
    from slurmwrap.store.prerun_registry import PrerunRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunChecks:
    """What the pre-run stage gives to a submission; the caller wires the real functions."""

    check: Callable[[JobRequest], tuple[Finding, ...]]
    named_files: Callable[[JobRequest], tuple[str, ...]]
    digest: Callable[[str], str | None]  # None: cannot be read
    entry_files: Callable[[JobRequest], Mapping[str, bytes]]  # path -> content of the programs the script starts
    holder: Callable[[JobRequest], str] = lambda request: ""  # the known server or tool that is all the script starts
    changed_at: Callable[[str], float | None] = lambda path: None  # mtime or ctime, the newer; None: it is not there
    files_in: Callable[[str], Iterable[str]] = lambda folder: ()  # names


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitContext:
    """The edges and the caller's identity."""

    slurm: Slurm
    clock: Clock
    memory: Memory
    config: Config
    trials: PrerunChecks
    uid: int
    user: str
    environ: Mapping[str, str]
    published: Published = field(default_factory=Published)
    say: Callable[[str], None] = lambda line: None
    # None: pre-runs know nothing of each other.
    flights: PrerunRegistry | None = None
    # Asks anew; None: no snapshot of this Slurm holds old ones.
    quotas: Callable[[], Quotas] | None = None

    @property
    def cluster(self) -> str:
        """ClusterName; after a snapshot it costs no further question."""
        return self.slurm.cluster_name()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A request with everything decided about it, before anything outside has changed."""

    request: JobRequest
    batch: BatchScript  # without the pre-run's gate
    plan: PlacementPlan
    snapshot: Snapshot
    added: tuple[OptionChange, ...]
    profile: ResourceProfile | None
    profile_key: str
    fingerprint: str
    inputs: tuple[str, ...]
    warnings: tuple[Finding, ...]
    # "auto" | "wait" | "gate" | "off" | "only" | "profile": what will be done
    prerun: str
    prerun_reason: str
    retry: bool
    forced: tuple[str, ...] = ()  # refusals that --force overrode
    group: str = ""  # script, code, environment and options: jobs that may share one pre-run; "": this one shares none
    profile_s: float = 0.0  # seconds of the pre-run that are for the CPU curve
    job_environ: Mapping[str, str] = field(default_factory=dict)  # laid over the real job's environment alone
    step_dir: str = ""  # where the real job counts its steps; "" when it does not
    holdout_group: str = ""  # the draw of prerun.holdout that it took part in; "": none
    held_out: bool = False  # that draw left its pre-run out
    delay: str = ""  # why the job cannot start yet by its own request; "": nothing keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """The pre-run as a Slurm job, made by the caller for a given real job."""

    call: SbatchCall
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """What became of one submission. `result` is sbatch's own record on the real job."""

    result: SbatchResult
    batch: BatchScript
    trial: SbatchResult | None = None
    trial_dir: str = ""
    # The pre-run of an earlier submission that speaks for this job too; 0: no id yet.
    attached_to: int | None = None


def get_last_line(text: str) -> str:
    """What a command of Slurm said last: the word that decides."""
    return (text.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")


# (prepared, real job id, StartTime that releases it)
MakeTrial = Callable[[PreparedJob, int | None, str], TrialJob]
