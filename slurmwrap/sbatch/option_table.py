"""Table of all options of sbatch and gsub: names, letters, arguments, variables and releases. Pure.

Names, letters, arguments and order are those of sbatch 22.05.8 (`sbatch --=x` lists all of them in order, which
tests/slurm compares with this table). Later options and the variables follow Slurm's sources and manual pages up to
26.05 (src/common/slurm_opt.c and src/sbatch/opt.c of every release between). The order matters for two reasons:
getopt_long lists the possibilities of an ambiguous prefix in this order, and if two variables set one option, sbatch
reads the later one last.
"""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass

# (22, 5) is Slurm 22.05.
Release = tuple[int, int]
BASE: Release = (22, 5)


class Argument(Enum):
    """Whether an option takes a value. An OPTIONAL value must be attached: `--nice=5`, `-koff`."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"


NONE, REQUIRED, OPTIONAL = Argument.NONE, Argument.REQUIRED, Argument.OPTIONAL


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """One option of sbatch. `since` is the first release that has it, `until` the first one that no longer has it."""

    name: str
    short: str
    argument: Argument
    # Variables (SBATCH_*, and two SLURM_*) that set it, in rising precedence.
    variables: tuple[str, ...] = ()
    since: Release = BASE
    until: Release | None = None
    # Releases after `since` that lack the option.
    missing: tuple[Release, ...] = ()
    # The release from which on the option takes another kind of argument, and that kind.
    changed: tuple[Release, Argument] | None = None
    # The first release that reads its variables, if they came later than the option.
    variables_since: Release | None = None

    @property
    def is_flag(self) -> bool:
        """Whether its variable is read as yes or no."""
        return self.argument is NONE

    def known_to(self, release: Release | None) -> bool:
        """Return whether sbatch of that release has the option. None: any release."""
        if release is None:
            return True
        return self.since <= release and (self.until is None or release < self.until) and release not in self.missing

    def argument_in(self, release: Release | None) -> Argument:
        """Return the kind of argument in that release. None: the most permissive kind of all releases."""
        if self.changed is None:
            return self.argument
        at, later = self.changed
        if release is None:
            return OPTIONAL if OPTIONAL in (self.argument, later) else later
        return self.argument if release < at else later


def _(
    name: str,
    short: str,
    argument: Argument,
    *variables: str,
    since: Release = BASE,
    until: Release | None = None,
    missing: tuple[Release, ...] = (),
    changed: tuple[Release, Argument] | None = None,
    variables_since: Release | None = None,
) -> SbatchOption:
    return SbatchOption(name, short, argument, variables, since, until, missing, changed, variables_since)


SBATCH: tuple[SbatchOption, ...] = (
    _("account", "A", REQUIRED, "SBATCH_ACCOUNT"),
    _("acctg-freq", "", REQUIRED, "SBATCH_ACCTG_FREQ"),
    _("array", "a", REQUIRED, "SBATCH_ARRAY_INX"),
    _("autocomplete", "", REQUIRED, since=(23, 2)),
    _("batch", "", REQUIRED, "SBATCH_BATCH"),
    _("begin", "b", REQUIRED),
    _("bb", "", REQUIRED, "SBATCH_BURST_BUFFER"),
    _("bbf", "", REQUIRED),
    _("cluster-constraint", "", REQUIRED, "SBATCH_CLUSTER_CONSTRAINT"),
    _("chdir", "D", REQUIRED),
    _("cluster", "", REQUIRED),
    _("clusters", "M", REQUIRED, "SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
    _("comment", "", REQUIRED),
    _("consolidate-segments", "", NONE, "SBATCH_CONSOLIDATE_SEGMENTS", since=(25, 11)),
    _("container", "", REQUIRED, "SBATCH_CONTAINER"),
    _("container-id", "", REQUIRED, "SBATCH_CONTAINER_ID", since=(23, 2)),
    _("container-type", "", REQUIRED, "SBATCH_CONTAINER_TYPE", since=(26, 5)),
    _("context", "", REQUIRED),
    _("contiguous", "", NONE),
    _("constraint", "C", REQUIRED, "SBATCH_CONSTRAINT"),
    _("core-spec", "S", REQUIRED, "SBATCH_CORE_SPEC"),
    _("cores-per-socket", "", REQUIRED),
    _("cpu-freq", "", REQUIRED, "SBATCH_CPU_FREQ_REQ"),
    _("cpus-per-gpu", "", REQUIRED, "SBATCH_CPUS_PER_GPU"),
    _("cpus-per-task", "c", REQUIRED),
    _("deadline", "", REQUIRED),
    _("delay-boot", "", REQUIRED, "SBATCH_DELAY_BOOT"),
    _("dependency", "d", REQUIRED),
    _("distribution", "m", REQUIRED, "SBATCH_DISTRIBUTION"),
    _("error", "e", REQUIRED, "SBATCH_ERROR"),
    _("exclude", "x", REQUIRED),
    _("exclusive", "", OPTIONAL, "SBATCH_EXCLUSIVE"),
    _("export", "", REQUIRED, "SBATCH_EXPORT"),
    _("export-file", "", REQUIRED, missing=((23, 11),)),
    _("external", "", NONE, since=(25, 5)),
    _("extra", "", REQUIRED, since=(23, 2)),
    _("extra-node-info", "B", REQUIRED),
    _("get-user-env", "", OPTIONAL, "SBATCH_GET_USER_ENV", changed=((25, 5), NONE)),
    _("gid", "", REQUIRED),
    _("gpu-bind", "", REQUIRED, "SBATCH_GPU_BIND"),
    _("gpu-freq", "", REQUIRED, "SBATCH_GPU_FREQ"),
    _("gpus", "G", REQUIRED, "SBATCH_GPUS"),
    _("gpus-per-node", "", REQUIRED, "SBATCH_GPUS_PER_NODE"),
    _("gpus-per-socket", "", REQUIRED, "SBATCH_GPUS_PER_SOCKET"),
    _("gpus-per-task", "", REQUIRED, "SBATCH_GPUS_PER_TASK"),
    _("gres", "", REQUIRED, "SBATCH_GRES"),
    _("gres-flags", "", REQUIRED, "SBATCH_GRES_FLAGS"),
    _("help", "h", NONE),
    _("hint", "", REQUIRED, "SLURM_HINT", "SBATCH_HINT"),
    _("hold", "H", NONE),
    _("ignore-pbs", "", NONE, "SBATCH_IGNORE_PBS"),
    _("input", "i", REQUIRED, "SBATCH_INPUT"),
    _("job-name", "J", REQUIRED, "SBATCH_JOB_NAME"),
    _("kill-on-invalid-dep", "", REQUIRED),
    _("licenses", "L", REQUIRED),
    _("mail-type", "", REQUIRED),
    _("mail-user", "", REQUIRED),
    _("mcs-label", "", REQUIRED),
    _("mem", "", REQUIRED, "SBATCH_MEM_PER_NODE"),
    _("mem-bind", "", REQUIRED, "SBATCH_MEM_BIND"),
    _("mem-per-cpu", "", REQUIRED, "SBATCH_MEM_PER_CPU"),
    _("mem-per-gpu", "", REQUIRED, "SBATCH_MEM_PER_GPU"),
    _("mem-update", "", REQUIRED, since=(26, 5)),
    _("mincpus", "", REQUIRED),
    _("network", "", REQUIRED, "SBATCH_NETWORK"),
    _("nice", "", OPTIONAL),
    _("no-kill", "k", OPTIONAL, "SBATCH_NO_KILL"),
    _("no-requeue", "", NONE, "SBATCH_NO_REQUEUE"),
    _("nodefile", "F", REQUIRED),
    _("nodelist", "w", REQUIRED),
    _("nodes", "N", REQUIRED),
    _("ntasks", "n", REQUIRED),
    _("ntasks-per-core", "", REQUIRED),
    _("ntasks-per-gpu", "", REQUIRED),
    _("ntasks-per-node", "", REQUIRED),
    _("ntasks-per-socket", "", REQUIRED),
    _("ntasks-per-tres", "", REQUIRED),
    _("oom-kill-step", "", OPTIONAL, since=(24, 11)),
    _("open-mode", "", REQUIRED, "SBATCH_OPEN_MODE"),
    _("output", "o", REQUIRED, "SBATCH_OUTPUT"),
    _("overcommit", "O", NONE, "SBATCH_OVERCOMMIT"),
    _("oversubscribe", "s", NONE),
    _("parsable", "", NONE),
    _("partition", "p", REQUIRED, "SBATCH_PARTITION"),
    _("power", "", REQUIRED, "SBATCH_POWER", until=(24, 5)),
    _("prefer", "", REQUIRED),
    _("priority", "", REQUIRED),
    _("profile", "", REQUIRED, "SBATCH_PROFILE"),
    _("propagate", "", OPTIONAL),
    _("qos", "q", REQUIRED, "SBATCH_QOS"),
    _("quiet", "Q", NONE),
    _("reboot", "", NONE),
    _("requeue", "", NONE, "SBATCH_REQUEUE", changed=((25, 11), OPTIONAL)),
    _("resources", "", REQUIRED, since=(25, 11)),
    _("reservation", "", REQUIRED, "SBATCH_RESERVATION"),
    _("resv-ports", "", OPTIONAL, since=(24, 5)),
    _("segment", "", REQUIRED, "SBATCH_SEGMENT_SIZE", since=(24, 5), variables_since=(25, 5)),
    _("signal", "", REQUIRED, "SBATCH_SIGNAL"),
    _("sockets-per-node", "", REQUIRED),
    _("spread-job", "", NONE, "SBATCH_SPREAD_JOB"),
    _("spread-segments", "", NONE, "SBATCH_SPREAD_SEGMENTS", since=(25, 11)),
    _("stepmgr", "", NONE, since=(24, 5)),
    _("switches", "", REQUIRED, "SBATCH_REQ_SWITCH"),
    _("tasks-per-node", "", REQUIRED),
    _("test-only", "", NONE),
    _("thread-spec", "", REQUIRED, "SBATCH_THREAD_SPEC"),
    _("threads-per-core", "", REQUIRED, "SBATCH_THREADS_PER_CORE"),
    _("time", "t", REQUIRED, "SBATCH_TIMELIMIT"),
    _("time-min", "", REQUIRED),
    _("tmp", "", REQUIRED),
    _("tres-bind", "", REQUIRED, "SBATCH_TRES_BIND", since=(23, 11)),
    _("tres-per-task", "", REQUIRED, "SBATCH_TRES_PER_TASK", since=(23, 2)),
    _("uid", "", REQUIRED),
    _("use-min-nodes", "", NONE, "SBATCH_USE_MIN_NODES"),
    _("verbose", "v", NONE, "SBATCH_DEBUG"),
    _("version", "V", NONE),
    _("usage", "", NONE),
    _("wait", "W", NONE, "SBATCH_WAIT"),
    _("wait-all-nodes", "", REQUIRED, "SBATCH_WAIT_ALL_NODES"),
    _("wckey", "", REQUIRED, "SBATCH_WCKEY"),
    _("wrap", "", REQUIRED),
)

# Read from the environment only: how long to wait for SBATCH_REQ_SWITCH (or for --switches without @time).
WAIT4SWITCH = SbatchOption("wait4switch", "", REQUIRED, ("SBATCH_WAIT4SWITCH",))

# Variable that names a file with the job's nodes. It applies if neither --nodelist nor --nodefile is given, and is
# read as --nodelist=./FILE with --distribution=arbitrary (sbatch(1); src/sbatch/opt.c in 22.05,
# src/common/slurm_opt.c from 23.11 on).
HOSTFILE = "SLURM_HOSTFILE"

# Second names of options (sbatch 22.05.8: --tasks-per-node sets ntasks-per-node, --cluster sets clusters).
ALIASES: dict[str, str] = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}

# sbatch reads these in its first pass over the command line. In a script they are accepted without effect
# (measured on 22.05.8: `#SBATCH --help`, `#SBATCH --wrap=x`).
COMMAND_LINE_ONLY: frozenset[str] = frozenset({"help", "usage", "version", "verbose", "quiet", "wrap", "autocomplete"})

# sbatch answers these and exits before it looks for a script.
ANSWERED_AT_ONCE: frozenset[str] = frozenset({"help", "usage", "version", "autocomplete"})

# Options that sbatch or slurmctld refuses together. The rewrite never adds one of them when another one is set.
# Memory: "fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive"; CPUs: "error: --cpus-per-gpu is
# mutually exclusive with --cpus-per-task" (both 22.05.8).
EXCLUSIVE_GROUPS: tuple[frozenset[str], ...] = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
    frozenset({"core-spec", "thread-spec"}),
)

# Pairs of options that set the same field: the one that is read last applies.
OPPOSITES: dict[str, str] = {
    "requeue": "no-requeue",
    "no-requeue": "requeue",
    "exclusive": "oversubscribe",
    "oversubscribe": "exclusive",
}


@dataclass(frozen=True, slots=True)
class GsubOption:
    """One of gsub's own options. A flag sets `field` of GsubOptions to `flag`, any other one sets it to its value."""

    name: str
    field: str
    # GSUB_* variable, "" if there is none. Its value is that of the field: GSUB_TUNE=no means --no-tune.
    variable: str
    argument: Argument = NONE
    flag: bool = True
    choices: tuple[str, ...] = ()
    # The value is a whole number from 1 to `most`.
    number: bool = False
    most: int = (1 << 31) - 1


OWN: tuple[GsubOption, ...] = (
    GsubOption("prerun", "prerun", "GSUB_PRERUN", REQUIRED, choices=("auto", "wait", "gate", "off", "only", "profile")),
    GsubOption("prerun-gpus", "prerun_gpus", "GSUB_PRERUN_GPUS", REQUIRED, number=True),
    GsubOption("prerun-steps", "prerun_steps", "GSUB_PRERUN_STEPS", REQUIRED, number=True, most=1_000_000),
    GsubOption("rehearse", "rehearse", "GSUB_REHEARSE", REQUIRED, choices=("on", "off", "resume")),
    GsubOption("resume-args", "resume_args", "GSUB_RESUME_ARGS", REQUIRED),
    GsubOption("prerun-command", "prerun_command", "GSUB_PRERUN_COMMAND", REQUIRED),
    GsubOption("count-steps", "count_steps", "GSUB_COUNT_STEPS"),
    GsubOption("stop-at", "stop_at", "GSUB_STOP_AT", REQUIRED),
    GsubOption("stop-when", "stop_when", "GSUB_STOP_WHEN", REQUIRED, choices=("diverged",)),
    GsubOption("preemptible", "preemptible", "GSUB_PREEMPTIBLE", OPTIONAL),
    GsubOption("lease", "lease_s", "GSUB_LEASE", REQUIRED),
    GsubOption("pack", "pack", "GSUB_PACK", OPTIONAL),
    GsubOption("share", "share", "GSUB_SHARE"),
    GsubOption("resource-profile", "resource_profile", "GSUB_RESOURCE_PROFILE", REQUIRED),
    GsubOption("retry", "retry", "GSUB_RETRY"),
    GsubOption("no-retry", "retry", "GSUB_RETRY", flag=False),
    GsubOption("retry-on", "retry_on", "GSUB_RETRY_ON", REQUIRED),
    GsubOption("no-tune", "tune", "GSUB_TUNE", flag=False),
    GsubOption("no-place", "place", "GSUB_PLACE", flag=False),
    GsubOption("dry-run", "dry_run", "GSUB_DRY_RUN"),
    GsubOption("explain", "explain", "GSUB_EXPLAIN"),
    GsubOption("force", "force", "GSUB_FORCE"),
    GsubOption("json", "json", ""),
    GsubOption("template", "template", "", REQUIRED),
    GsubOption("values", "values", "", REQUIRED),
    GsubOption("values-file", "values_file", "", REQUIRED),
    GsubOption("again", "again", "", REQUIRED),
)

# Options from which the script is generated.
MAKING: frozenset[str] = frozenset({"template", "values", "values-file"})
# Options that a script cannot contain.
NOT_IN_SCRIPTS: frozenset[str] = MAKING | {"again"}

# The value of --partition that leaves the choice to gsub, unless the cluster has a partition of this name.
AUTO_PARTITION = "auto"

BY_NAME: dict[str, SbatchOption] = {option.name: option for option in SBATCH}
BY_LETTER: dict[str, SbatchOption] = {option.short: option for option in SBATCH if option.short}
OWN_BY_NAME: dict[str, GsubOption] = {option.name: option for option in OWN}


def canonicalize_option(name: str) -> str:
    """Return the canonical long name of an option, under which its settings are kept."""
    return ALIASES.get(name, name)
