"""JobRequest: what one call of gsub asks for, after sbatch's rules of precedence. Records only, no logic."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.sbatch.option_table import Argument


class Origin(Enum):
    """Where a value was set. Later members take precedence (sbatch(1), "command line > environment > script")."""

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
    # For people: "train.sbatch:3", "SBATCH_PARTITION" or "command line".
    where: str
    # Line number, from 1. Only for Origin.SCRIPT.
    line: int | None = None
    # Start and stop, in bytes, of the word in the script that holds the value. Only for Origin.SCRIPT.
    span: tuple[int, int] | None = None
    # The part of that word before the value: "--gres=", "-N" or "".
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The batch script, byte for byte. `path` is None for a script from standard input and for --wrap."""

    path: str | None
    # The job name that sbatch derives from the script: the base name, "sbatch" (standard input) or "wrap".
    name: str
    # b"" where the script was not read: for --help and similar options, and for heterogeneous jobs with `:`.
    content: bytes
    # Standard input was read to its end, so whoever calls sbatch must pass `content` to it.
    from_stdin: bool = False
    # The script as typed on the command line. sbatch derives the job's Command= from it by its own rules.
    word: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GsubOptions:
    """gsub's own options, merged in rising precedence: `#GSUB` lines, GSUB_* variables, command line."""

    # auto | wait | gate | off | only | profile. None: not given, so the configuration decides.
    prerun: str | None = None
    # Number of GPUs of the pre-run, for jobs that cannot be reduced to one GPU.
    prerun_gpus: int | None = None
    # Number of optimizer steps after which the pre-run passes. None: the configured number (prerun.steps).
    prerun_steps: int | None = None
    # on | off | resume: whether the pre-run goes on with shortened epochs, and then starts the script again.
    rehearse: str = "on"
    # Arguments that are added to the script's own when the pre-run starts it again; they imply `rehearse` resume.
    resume_args: str = ""
    # Shell command that the pre-run runs instead of the script.
    prerun_command: str = ""
    # Also run the step counter in the job itself, not only in its pre-run.
    count_steps: bool = False
    # plateau[:GAIN%/SHARE%] | diverged: when the running job is stopped; "" for never (stop_option.py). Either implies
    # `count_steps`.
    stop_at: str = ""
    stop_when: str = ""
    # yes | SIGNAL@SECONDS: whether the running job may be taken from its GPUs, "" for never (move_options.py).
    preemptible: str = ""
    # Seconds after which the running job leaves its GPUs to a waiting one; 0: it has no lease.
    lease_s: int = 0
    # K | auto, and ",mps": how many tasks of the array share a GPU; None: none do (pack_option.py).
    pack: str | None = None
    # It may share its GPU with another job of its user (share_option.py).
    share: bool = False
    resource_profile: str | None = None
    # None: the site's default.
    retry: bool | None = None
    # Exit codes and signals after which the job is run again: ("93", "SIGUSR1").
    retry_on: tuple[str, ...] = ()
    tune: bool = True
    place: bool = True
    dry_run: bool = False
    explain: bool = False
    force: bool = False
    json: bool = False
    # Name of the launch template from which launch_templates.py makes the script. None in the request for that script.
    template: str | None = None
    # The value list of the template `array`.
    values: str | None = None
    # A file with a value, or the arguments, of a task on each line; "%N" at its end: N tasks at a time.
    values_file: str | None = None
    # Job whose call is repeated. None in the request for that call (gsub/resubmission.py).
    again: str | None = None


class GpuUnit(Enum):
    """The option by which the user asked for GPUs."""

    NONE = "none"
    GRES = "gres"  # per node
    GPUS = "gpus"  # per job
    PER_NODE = "gpus-per-node"
    PER_TASK = "gpus-per-task"
    PER_SOCKET = "gpus-per-socket"


class CpuUnit(Enum):
    """The option by which the user asked for CPUs."""

    NONE = "none"
    PER_TASK = "cpus-per-task"
    PER_GPU = "cpus-per-gpu"


class MemUnit(Enum):
    """The option by which the user asked for memory.

    A second unit next to the user's own makes later calls of srun fail (facts/slurm.md 3, design 4).
    """

    NONE = "none"
    PER_NODE = "mem"
    PER_CPU = "mem-per-cpu"
    PER_GPU = "mem-per-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceShape:
    """The request in numbers. None: not given, so Slurm's default applies. Memory is in MiB, per unit `mem_unit`."""

    # Minimum number of nodes.
    nodes: int | None = None
    max_nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    # For the whole job; 0 for a job without GPUs.
    gpus: int = 0
    # Set only if the request fixes it.
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_unit: GpuUnit = GpuUnit.NONE
    # Per `cpu_unit`.
    cpus: int | None = None
    cpu_unit: CpuUnit = CpuUnit.NONE
    # Per `mem_unit`. 0 means all memory of the node, as in sbatch.
    mem_mib: int | None = None
    mem_unit: MemUnit = MemUnit.NONE
    time_limit_s: int | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChange:
    """One change that the rewrite makes to the request, with its reason in one sentence. `old` == `new`: unchanged."""

    option: str
    # None: was not set.
    old: str | None
    # None: removed.
    new: str | None
    # SbatchSetting.where of the setting that changes, or "added".
    where: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What one call of gsub asks for. `settings` are in rising precedence: the last one for an option applies."""

    script: Script
    args: tuple[str, ...] = ()
    settings: tuple[SbatchSetting, ...] = ()
    own: GsubOptions = field(default_factory=GsubOptions)
    shape: ResourceShape = field(default_factory=ResourceShape)
    # Absolute working directory of the job: --chdir, or else the directory in which gsub was called.
    chdir: str = "/"
    # The variables that sbatch reads: SBATCH_*, SLURM_CONF and others.
    environ: Mapping[str, str] = field(default_factory=dict)
    # The job is heterogeneous; all other fields except `components` then describe its first component.
    hetjob: bool = False
    # `: OPTIONS` of the other components, if they are given on the command line.
    components: tuple[str, ...] = ()
    # sbatch's options on the command line as they were typed; None: not known.
    words: tuple[str, ...] | None = None
    # The command line after the program's name, and the directory in which gsub was called.
    argv: tuple[str, ...] = ()
    cwd: str = "/"
    # Options of site plugins (SPANK); empty unless the call uses one.
    plugin_options: Mapping[str, Argument] = field(default_factory=dict)
    # Values in `settings` that gsub chose before anything was planned, because the user left that to it.
    chosen: tuple[RequestChange, ...] = ()

    def setting(self, option: str) -> SbatchSetting | None:
        """Return the setting that applies for `option` (canonical long name), or None."""
        return next((s for s in reversed(self.settings) if s.option == option), None)

    def value(self, option: str) -> str | None:
        """Return the value that applies for `option`; None if it is not set or is a flag."""
        found = self.setting(option)
        return found.value if found else None

    @property
    def job_name(self) -> str:
        """The job name that sbatch would set."""
        return self.value("job-name") or self.script.name

    @property
    def prerun_name(self) -> str:
        """The name of the pre-run's job."""
        return f"{self.job_name}.prerun"

    @property
    def input_check_name(self) -> str:
        """The name of the job that reads the input files."""
        return f"{self.job_name}.inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """One option that a later stage wants to set, with the reason.

    `value` None: leave the option as the user set it; the reason says why. For a flag (`requeue`, `hold`) it is "".
    """

    # Canonical long name: "mem", "cpus-per-task", "exclude", "switches", ...
    option: str
    value: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """The rewritten job as it is shown: `sbatch *options SCRIPT *args` with `environ` laid over the environment.

    The call that is really made (rewrite.list_submitted_options) uses the user's own words, script and environment,
    with `changes` on the command line.
    """

    # The user's script; only directive lines differ.
    content: bytes
    # The user's command line with values changed in place, then the added options, written as --name=value.
    options: tuple[str, ...]
    args: tuple[str, ...]
    # SBATCH_* variables that must change.
    environ: Mapping[str, str]
    changes: tuple[RequestChange, ...]
