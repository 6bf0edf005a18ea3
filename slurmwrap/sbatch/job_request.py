"""JobRequest: everything that was asked for, after sbatch's precedence. Records only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.sbatch.option_table import Argument


class Origin(Enum):
    """Where a value was set; later members win (sbatch(1), "command line > environment > script")."""

    SCRIPT = "script"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchSetting:
    """One sbatch option as the user gave it."""

    # Canonical long name without dashes, e.g. "mem-per-gpu".
    option: str
    # None for a flag, or an optional argument left out.
    value: str | None
    origin: Origin
    where: str  # "train.sbatch:3", "SBATCH_PARTITION", "command line"
    line: int | None = None  # 1-based, for Origin.SCRIPT
    span: tuple[int, int] | None = None  # for Origin.SCRIPT: bytes of the script's argument that holds the value,
    prefix: str = ""  # and what stands before the value in that word: "--gres=", "-N" or nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The batch script, byte for byte. `path` is None for stdin and --wrap."""

    path: str | None
    name: str  # what sbatch would make the job's name: base name, "sbatch" (stdin) or "wrap"
    content: bytes  # b"" where it was not read: --help and the like, and heterogeneous jobs with `:`
    from_stdin: bool = False  # standard input was read to its end: anyone who calls sbatch must hand `content` on
    word: str | None = None  # what the command line calls it; sbatch makes Command= of that by its own rules


@dataclass(frozen=True, slots=True, kw_only=True)
class GsubOptions:
    """gsub's own options, after `#GSUB` lines < GSUB_* variables < flags."""

    prerun: str | None = None  # auto | wait | gate | off | only | profile; None: not said, the configuration decides
    prerun_gpus: int | None = None  # GPUs of the pre-run, for jobs that cannot shrink to one
    prerun_steps: int | None = None  # optimizer steps that count as a pass; None: as configured (prerun.steps)
    prerun_command: str = ""  # shell command that the pre-run runs in the script's place
    count_steps: bool = False  # the step counter also runs in the real job
    resource_profile: str | None = None
    retry: bool | None = None  # None: the site's default
    tune: bool = True
    place: bool = True
    dry_run: bool = False
    explain: bool = False
    force: bool = False
    json: bool = False
    # launch_templates.py makes the script of it; the request of that script has none
    template: str | None = None
    values: str | None = None  # of the template array


class GpuUnit(Enum):
    """How the user asked for GPUs."""

    NONE = "none"
    GRES = "gres"  # per node
    GPUS = "gpus"  # per job
    PER_NODE = "gpus-per-node"
    PER_TASK = "gpus-per-task"
    PER_SOCKET = "gpus-per-socket"


class CpuUnit(Enum):
    """How the user asked for CPUs."""

    NONE = "none"
    PER_TASK = "cpus-per-task"
    PER_GPU = "cpus-per-gpu"


class MemUnit(Enum):
    """How the user asked for memory. Mixing units is fatal to later sruns (facts/slurm.md 3, design 4)."""

    NONE = "none"
    PER_NODE = "mem"
    PER_CPU = "mem-per-cpu"
    PER_GPU = "mem-per-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceShape:
    """The request in numbers. None: not said, Slurm's default holds. Memory in MiB, in the unit `mem_unit`."""

    nodes: int | None = None  # minimum
    max_nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    # Whole job; 0 for a job without GPU.
    gpus: int = 0
    # When the request fixes it.
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_unit: GpuUnit = GpuUnit.NONE
    cpus: int | None = None  # in cpu_unit
    cpu_unit: CpuUnit = CpuUnit.NONE
    # In mem_unit; 0 = all of the node, as in sbatch.
    mem_mib: int | None = None
    mem_unit: MemUnit = MemUnit.NONE
    time_limit_s: int | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What one call of gsub asks for. `settings` in rising precedence: of two for one option the later wins."""

    script: Script
    args: tuple[str, ...] = ()
    settings: tuple[SbatchSetting, ...] = ()
    own: GsubOptions = field(default_factory=GsubOptions)
    shape: ResourceShape = field(default_factory=ResourceShape)
    chdir: str = "/"  # absolute: --chdir, else where gsub was called
    environ: Mapping[str, str] = field(default_factory=dict)  # SBATCH_*, SLURM_CONF and the like that sbatch will see
    hetjob: bool = False  # everything above is about the first component
    components: tuple[str, ...] = ()  # `: OPTIONS` of the other ones, where the command line names them
    words: tuple[str, ...] | None = None  # the command line's options (of sbatch) as they were typed; None: not known
    plugin_options: Mapping[str, Argument] = field(default_factory=dict)  # of site plugins; none unless one is used

    def setting(self, option: str) -> SbatchSetting | None:
        """The setting in force for `option` (canonical long name), or None."""
        return next((s for s in reversed(self.settings) if s.option == option), None)

    def value(self, option: str) -> str | None:
        """Its value, or None when unset or a flag."""
        found = self.setting(option)
        return found.value if found else None

    @property
    def job_name(self) -> str:
        """As sbatch would name the job."""
        return self.value("job-name") or self.script.name

    @property
    def prerun_name(self) -> str:
        """The name of its pre-run's job."""
        return f"{self.job_name}.prerun"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """One option that a later stage wants set, and why. `value` None: leave it as asked; the reason says why.

    A flag (`requeue`, `hold`) is wished with the value "".
    """

    # Canonical long name: "mem", "cpus-per-task", "exclude", "switches", ...
    option: str
    value: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChange:
    """One thing the rewrite does to the request, with its reason in one sentence. `old` == `new`: left as asked."""

    option: str
    old: str | None  # None: was not set
    new: str | None  # None: removed
    where: str  # Setting.where of what is changed, or "added"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """The rewritten job as it is shown: `sbatch *options SCRIPT *args` with `environ` laid over the environment.

    What is really called is render.submitted_options: the user's own words, script and environment, with `changes` on
    the command line.
    """

    # The script: the user's own but for directive lines.
    content: bytes
    # The user's command line, changed in place, then what we add; spelled --name=value.
    options: tuple[str, ...]
    args: tuple[str, ...]
    # SBATCH_* variables that must change.
    environ: Mapping[str, str]
    changes: tuple[RequestChange, ...]
