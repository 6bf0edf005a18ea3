"""Data classes of a submission: its context (adapters and user) and the results passed from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.protocols import Published

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.finding import Finding
    from slurmwrap.model.limits import Quotas
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.model.run_time import RunTimeEstimate
    from slurmwrap.placement.expected_start import ExpectedStart
    from slurmwrap.prerun.expected_saving import SavingEstimate
    from slurmwrap.profiling.colocation import GpuDemand
    from slurmwrap.protocols import Clock, Memory, SbatchCall, SbatchResult, Slurm
    from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange
    from slurmwrap.sbatch.pack_option import PackPlan
    from slurmwrap.slurm.squeue_parser import WatchedJob
    from slurmwrap.store.prerun_registry import PrerunRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunChecks:
    """Functions of the pre-run stage that a submission needs; the caller supplies the implementations."""

    check: Callable[[JobRequest], tuple[Finding, ...]]
    named_files: Callable[[JobRequest], tuple[str, ...]]
    digest: Callable[[str], str | None]  # of a file's content; None: it cannot be read
    entry_files: Callable[[JobRequest], Mapping[str, bytes]]  # path -> content of the programs the script starts
    # Log files of its programs, with what they hold already (job_logs.find_log_ends).
    log_files: Callable[[JobRequest], Mapping[str, Any]] = lambda request: {}
    # The known server or tool, if the script starts nothing else; else "".
    holder: Callable[[JobRequest], str] = lambda request: ""
    # The newer of mtime and ctime, Unix seconds; None: the file does not exist.
    changed_at: Callable[[str], float | None] = lambda path: None
    files_in: Callable[[str], Iterable[str]] = lambda folder: ()  # file names in a directory


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitContext:
    """The adapters of one gsub call or pre-run job, its configuration, and the identity of its user."""

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
    # The pre-runs in flight; None: pre-runs are not shared between jobs.
    flights: PrerunRegistry | None = None
    # Asks Slurm for current quotas; None: snapshots of this Slurm never contain cached quotas.
    quotas: Callable[[], Quotas] | None = None
    # Asks Slurm for the jobs of all users that run or wait; None: start times are not forecast.
    queue: Callable[[], Sequence[WatchedJob]] | None = None

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName. After a snapshot this needs no further call to Slurm."""
        return self.slurm.cluster_name()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlan:
    """What must be known of a job to put it together with others. `demand` None: too little, it has its GPU alone."""

    changes: tuple[OptionChange, ...] = ()
    room: tuple[OptionChange, ...] = ()  # CPUs and memory for a second job; left out if Slurm refuses them
    place: tuple[str, ...] = ()  # only jobs with the same one suit; (): not compared
    # Slurm itself puts it on a GPU with other jobs: the shards that it asks for. None: the program on the node does.
    shards: OptionChange | None = None
    demand: GpuDemand | None = None
    cpus: float = 1.0
    mem_mib: int | None = None  # None: not known
    card_mib: int | None = None  # memory of the smallest GPU on which it may run
    time_s: float | None = None  # run time that it hardly exceeds when it is alone; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A request and all decisions about it. Nothing outside the process has changed yet."""

    request: JobRequest
    batch: BatchScript  # without the --begin that makes the job wait for its pre-run
    plan: PlacementPlan
    snapshot: Snapshot
    added: tuple[OptionChange, ...]
    profile: ResourceProfile | None
    profile_key: str
    fingerprint: str
    inputs: tuple[str, ...]
    warnings: tuple[Finding, ...]
    # The pre-run mode that will be used: "auto" | "wait" | "gate" | "off" | "only" | "profile"
    prerun: str
    prerun_reason: str
    retry: bool
    profile_variant: str = ""  # by job_key.derive_variant()
    length: tuple[tuple[str, str], ...] = ()  # by job_key.derive_length()
    forced: tuple[str, ...] = ()  # refusals that --force overrode
    # Digest of script, code, environment and options. Jobs with the same one may share a pre-run; "": no sharing.
    group: str = ""
    logs: Mapping[str, Any] = field(default_factory=dict)  # as in Submission
    profile_s: float = 0.0  # seconds of the pre-run that are spent on the CPU curve
    job_environ: Mapping[str, str] = field(default_factory=dict)  # added to the environment of the real job only
    step_dir: str = ""  # directory in which the real job counts its steps; "" when it does not
    holdout_group: str = ""  # id of the draw of prerun.holdout that included the job; "": none
    held_out: bool = False  # whether that draw selected the job to run without a pre-run
    delay: str = ""  # why the job's own request delays its start; "": it may start at once
    estimate: SavingEstimate | None = None  # why it has a pre-run or none; None: another reason decided
    run_time: RunTimeEstimate | None = None  # by earlier runs; None: none is known
    fits_s: int | None = None  # with --explain: a clearly lower time limit that would fit; None: there is none
    start: ExpectedStart | None = None  # only found for --explain; None: it may start now, or it is not known
    pack: PackPlan | None = None  # --pack: how its array is folded; None: it is not
    pack_dir: str = ""  # directory with the files of the packed job; "" before they are written, and without --pack
    share: SharePlan | None = None  # --share: what is known of it for sharing its GPU; None: it does not
    share_dir: str = ""  # as pack_dir, with --share
    pack_script: str = ""  # its batch script, for a later part of a split array; "": pack.sh
    # Too few GPUs are free for it now, so it is not held for its pre-run and keeps its place in the queue.
    keeps_place: bool = False

    @property
    def measuring_s(self) -> float:
        """Seconds that the pre-run may go on after its steps, to measure."""
        return self.profile_s + (self.pack.measure_limit_s if self.pack else 0.0)

    @property
    def planned_request(self) -> JobRequest:
        """The request for which nodes are planned. For a packed job it is that of a task with several members."""
        if self.share is not None:
            return make_untuned_request(self.request)
        return self.request if self.pack is None else make_folded_request(self.request, self.pack)

    @property
    def wrapper_script(self) -> str:
        """The batch script of gsub's that runs the user's script (--pack, --share); "" if there is none."""
        of_pack = self.pack_script or (self.pack_dir and f"{self.pack_dir}/pack.sh")
        return of_pack or (self.share_dir and f"{self.share_dir}/share.sh")

    @property
    def retry_on(self) -> tuple[str, ...]:
        """The endings of --retry-on; () if the user refused retries with --no-retry."""
        return () if self.request.own.retry is False else self.request.own.retry_on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """A pre-run that is ready for submission: the sbatch call, and the directory with its files."""

    call: SbatchCall
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """The outcome of one submission. `result` is sbatch's answer for the real job, `trial` that for its pre-run."""

    result: SbatchResult
    batch: BatchScript
    trial: SbatchResult | None = None
    trial_dir: str = ""
    jobs: tuple[int, ...] = ()  # of an array that is split: the ids of all parts that were submitted
    # Job id of the earlier submission's pre-run that this job waits for; 0: it has no id yet; None: not shared.
    attached_to: int | None = None


def make_folded_request(request: JobRequest, pack: PackPlan) -> JobRequest:
    """Return the request of an array task that runs several members.

    Its CPUs and memory are not tuned: the profile is that of one member.
    """
    return replace(make_untuned_request(request), shape=pack.shape) if pack.is_folded else request


def make_untuned_request(request: JobRequest) -> JobRequest:
    """Return the request of a job whose CPUs and memory stay as asked: other programs run in its allocation too."""
    return replace(request, own=replace(request.own, tune=False))


def get_last_line(text: str) -> str:
    """Return the last line of a Slurm command's output, which gives the reason of a failure."""
    return (text.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")


# (prepared, real job id, StartTime that releases it)
MakeTrial = Callable[[PreparedJob, int | None, str], TrialJob]
