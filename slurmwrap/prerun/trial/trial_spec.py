"""The trial as a Slurm job: turn a JobRequest into the same job on one GPU. Pure.

gsub writes a `TrialSpec` to the trial's directory, and the pre-run's job reads it there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import asdict, dataclass, field, fields
from slurmwrap.sbatch.array_indices import parse_indices
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit
from slurmwrap.sbatch.option_table import HOSTFILE
from slurmwrap.sbatch.rewrite import spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node


# The SLURM_* variables that sbatch sets to the text of an option.
#
# The pre-run's job does not have these options, so Slurm does not set the variables in it (sbatch(1), "OUTPUT
# ENVIRONMENT VARIABLES"; names and spelling measured on 22.05.8, later ones from the sources of 23.11 to 26.05). A
# script that runs with `set -u` needs them all.
_OPTION_VARIABLES = {
    "acctg-freq": "SLURM_ACCTG_FREQ",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "dependency": "SLURM_JOB_DEPENDENCY",
    "gpu-bind": "SLURM_GPU_BIND",
    "gpu-freq": "SLURM_GPU_FREQ",
    "hint": "SLURM_HINT",
    "network": "SLURM_NETWORK",
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "ntasks-per-tres": "SLURM_NTASKS_PER_TRES",
    "reservation": "SLURM_JOB_RESERVATION",
    "segment": "SLURM_JOB_SEGMENT_SIZE",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
    "tres-per-task": "SLURM_TRES_PER_TASK",
}
_MEMORY = {MemUnit.PER_CPU: "SLURM_MEM_PER_CPU", MemUnit.PER_GPU: "SLURM_MEM_PER_GPU"}
_GPU_VARIABLES = {
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
}
# Variables that the controller sets, so that they are also there if --export-file replaces sbatch's environment.
_SET_BY_CONTROLLER = (
    *("SLURM_ARRAY_", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_RESERVATION", "SLURM_MEM_PER_CPU"),
    *("SLURM_HET_SIZE", "SLURM_THREADS_PER_CORE"),
)
# Options that exclude --hint: sbatch ignores it with any of them.
_WITHOUT_HINT = ("ntasks-per-core", "cores-per-socket", "sockets-per-node", "threads-per-core", "extra-node-info")
# Options that fix the number of tasks. Without any of them Slurm sets no SLURM_NTASKS.
_TASK_OPTIONS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-tres", "extra-node-info")
_TASKS_OF_LAYOUT = ("sockets-per-node", "cores-per-socket", "threads-per-core")
# Spelling of the words of --cpu-freq and --profile in the variables (cpu_freq_to_cmdline() and
# acct_gather_profile_to_string() of Slurm).
_CPU_FREQ_WORDS = {
    word.lower(): word
    for word in (
        *("Low", "Medium", "Highm1", "High", "Conservative", "Performance", "PowerSave", "UserSpace", "OnDemand"),
        "SchedUtil",
    )
}
_PROFILES = ("Energy", "Lustre", "Network", "Task")
_MEM_BIND_FLAGS = {"v": "verbose", "p": "prefer", "no": "none"}
# In the environment of a TrialSpec: names of variables that the pre-run's job has and its job does not have.
UNSET = "SLURMWRAP_UNSET"


def make_option_variables(request: JobRequest) -> dict[str, str]:
    """Return the variables of the job's options except GPU counts; for an array those of its first task."""
    found = {name: value for option, name in _OPTION_VARIABLES.items() if (value := request.value(option))}
    if request.shape.mem_unit in _MEMORY and request.shape.mem_mib:
        found[_MEMORY[request.shape.mem_unit]] = str(request.shape.mem_mib)
    if request.setting("overcommit") is not None:
        found["SLURM_OVERCOMMIT"] = "1"
    if mode := request.value("open-mode"):
        found["SLURM_OPEN_MODE"] = mode[0].lower()
    if request.setting("oom-kill-step") is not None:
        found["SLURM_OOM_KILL_STEP"] = request.value("oom-kill-step") or "1"
    if frequency := request.value("cpu-freq"):
        found["SLURM_CPU_FREQ_REQ"] = format_cpu_freq(frequency)
    if profile := request.value("profile"):
        found["SLURM_PROFILE"] = _format_profile(profile)
    found |= make_distribution_variables(request.value("distribution") or "")
    if found.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        # The value is replaced by the node of the trial.
        found["SLURM_ARBITRARY_NODELIST"] = request.value("nodelist") or ""
    found |= _make_hint_variables(request, found)
    found |= _make_mem_bind_variables(request)
    array = parse_indices(request.value("array") or "")
    return found | (array.environment() if array else {})


def make_distribution_variables(text: str) -> dict[str, str]:
    """Return the variables of --distribution in Slurm's spelling; no level is left as `*`."""
    levels, *flags = text.lower().split(",")
    if not levels:
        return {}
    if plane := re.fullmatch(r"plane(?:[=:](\d+))?", levels):
        return {"SLURM_DISTRIBUTION": "plane", **({"SLURM_DIST_PLANESIZE": plane[1]} if plane[1] else {})}
    parts = levels.replace("hostfile", "arbitrary").split(":")
    for place, part in enumerate(parts):
        if part == "*":
            parts[place] = ("block", "cyclic", parts[1] if len(parts) > 1 else "")[min(place, 2)]
    # A flag may be given alone: --distribution=pack.
    kept = [flag for flag in flags if flag in ("pack", "nopack")]
    return {"SLURM_DISTRIBUTION": ",".join((":".join(parts), *kept))}


def split_mem_bind(text: str) -> tuple[list[str], str, str]:
    """Split a value of --mem-bind into its flags (without quiet and sort), its type and the list of map_ or mask_."""
    listed = re.search(r"(map_mem|mask_mem)[:=](.*)$", text, re.IGNORECASE)
    words = (text[: listed.start()] if listed else text).lower().split(",")
    names = [_MEM_BIND_FLAGS.get(word, word) for word in words]
    flags: list[str] = [flag for flag in ("verbose", "prefer") if flag in names]
    kind = next((name for name in names if name in ("none", "rank", "local")), "")
    return (flags, listed[1].lower(), listed[2]) if listed else (flags, kind, "")


def _make_mem_bind_variables(request: JobRequest) -> dict[str, str]:
    text = request.value("mem-bind")
    if not text:
        return {}
    flags, kind, listed = split_mem_bind(text)
    found = {"SLURM_MEM_BIND_VERBOSE": "verbose" if "verbose" in flags else "quiet"}
    if "SBATCH_MEM_BIND" not in request.environ:
        bind = ",".join((*flags, *((kind,) if kind else ())))
        found["SLURM_MEM_BIND"] = f"{bind}:{listed}" if listed else bind
    return found


def _make_hint_variables(request: JobRequest, found: dict[str, str]) -> dict[str, str]:
    """Return the variables of --hint and -B; take SLURM_HINT out of `found` if sbatch ignores the hint."""
    threads = re.fullmatch(r"[^:]*:[^:]*:(\d+).*", request.value("extra-node-info") or "")
    given = {"SLURM_THREADS_PER_CORE": threads[1]} if threads else {}
    if any(request.setting(option) is not None for option in _WITHOUT_HINT):
        found.pop("SLURM_HINT", None)
        return given
    hints = found.get("SLURM_HINT", "").lower().split(",")
    if {"nomultithread", "compute_bound", "memory_bound"} & set(hints):
        given["SLURM_THREADS_PER_CORE"] = "1"
    # sbatch sets Slurm's number for "no limit".
    return {**given, **({"SLURM_NTASKS_PER_CORE": "65535"} if "multithread" in hints else {})}


def format_cpu_freq(text: str) -> str:
    """Return a value of --cpu-freq in Slurm's spelling: `Low-High:UserSpace`."""
    return re.sub(r"\w+", lambda word: _CPU_FREQ_WORDS.get(word[0].lower(), word[0]), text)


def _format_profile(text: str) -> str:
    words = [word.strip().lower() for word in text.split(",")]
    if "none" in words:
        return "None"
    return ",".join(name for name in _PROFILES if "all" in words or name.lower() in words)


# Minimum CPUs of a trial: one process with its loader workers. Never more than the user asked for per node.
CPU_FLOOR = 4
# Minimum memory of a trial: one process loads the whole model even if eight share the memory of a node.
MEM_FLOOR_MIB = 16 * 1024

# Options of the job that the trial keeps. All others make no sense on one GPU (array, nodelist, switches, gpu-bind),
# belong to the real job (dependency, begin, mail, output) or are set to new values.
_KEPT_OPTIONS = (
    *("account", "clusters", "qos", "constraint", "prefer", "reservation", "exclude", "licenses", "tmp", "wckey"),
    *("input", "propagate", "get-user-env", "ignore-pbs"),
)
_WRAPPER_VARIABLES = (
    *("SLURMWRAP_PYTHON", "SLURMWRAP_TRIAL_DIR", "SLURMWRAP_REAL_JOB", "SLURMWRAP_RELEASE_AT", "SLURMWRAP_CONFIG"),
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial. Paths are absolute; memory in MiB, times in seconds."""

    trial_dir: str  # owned by the user, mode 0700: script, spec, step files, output
    script: str  # the copy that is run, inside trial_dir
    script_name: str = ""  # the script's name for the user, used in findings and reasons
    args: tuple[str, ...] = ()
    chdir: str = "/"
    # Optimizer steps that count as a pass.
    steps: int = 3
    time_limit_s: float = 900.0
    # Added to the environment of the pre-run's job; see list_missing_variables().
    environment: Mapping[str, str] = field(default_factory=dict)
    # Id of the waiting job; None for --prerun=wait|only.
    real_job: str | None = None
    cluster: str = ""
    mode: str = "auto"
    fingerprint: str = ""
    profile_key: str = ""
    gpus: int = 0  # of the real job
    nodes: int = 1  # of the real job
    gpu_type: str = ""
    cpus: int | None = None  # of the trial
    mem_mib: int | None = None  # of the trial
    mem_shrunk: bool = False  # the trial has less memory than a node of the real job
    largest_mem_mib: int = 0  # memory of the cluster's largest node; 0 if unknown
    inputs: tuple[str, ...] = ()  # files that the job names, absolute paths
    trial_gpus: int = 1  # GPUs of the trial, --prerun-gpus
    trial_tasks: int = 1  # tasks that a launcher may start in the trial: those of one node, at most one per GPU
    command: str = ""  # --prerun-command: runs instead of the script
    profile_s: float = 0.0  # seconds for the CPU curve, after the steps that count as a pass; 0: none
    delay: str = ""  # why the job cannot start yet; files missing now may exist when it starts (sbatch/eligibility.py)
    rehearse_s: float = (
        0.0  # seconds for the shortened rest of the program, after the steps that count as a pass; 0: none
    )
    resumes: bool = False  # after the rehearsal the script is started once more, as Slurm does after a requeue
    resume_args: tuple[str, ...] = ()  # added to the script's arguments then
    no_training_s: float = 40.0  # seconds to wait for an error if nothing in the program trains
    no_activity_s: float = 90.0  # seconds after which a trial that stands still is ended
    overlay: str = "auto"  # "auto": a private overlay over the user's directories if the kernel permits it; "off"
    # srun's options for the container of the whole script, if the job has one; () if it runs on the node itself.
    container: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()  # prerun.caches: what the trial writes to these is kept
    # gsub --pack=auto: up to `pack_most` of the members with these indices run side by side after a pass, each number
    # of them for `pack_s` seconds, all for `pack_limit_s`; 0: none. `pack_start_s`: what the single trial took.
    pack_most: int = 0
    pack_indices: tuple[int, ...] = ()
    pack_s: float = 0.0
    pack_limit_s: float = 0.0
    pack_start_s: float = 0.0
    pack_dir: str = ""  # the files of the packed job that waits; "": it is not to be folded
    dcgmi: str = ""  # site.dcgmi

    @property
    def step_dir(self) -> str:
        """Directory in which the step counter writes; visible in containers that mount the user's home directory."""
        return f"{self.trial_dir}/steps"

    @property
    def output(self) -> str:
        """File with standard output and standard error of the user's script."""
        return f"{self.trial_dir}/output"


def spec_to_json(spec: TrialSpec) -> dict[str, Any]:
    """Return a dict of JSON types, which `spec_from_json` converts back to an equal TrialSpec."""
    return asdict(spec)


def spec_from_json(plain: Mapping[str, Any]) -> TrialSpec:
    """Return the TrialSpec. Ignore unknown keys (of a newer gsub). Raise TypeError if a required key is missing."""
    known = {f.name for f in fields(TrialSpec)}
    kept: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in plain.items() if key in known
    }
    return TrialSpec(**kept)


def make_trial_options(
    request: JobRequest,
    *,
    partition: str | None,
    time_limit_s: float,
    cpus: int | None,
    mem_mib: int | None,
    output: str,
    gpus: int = 1,
    tasks: int = 1,
    dependency: str = "",
    leave_out: Collection[str] = (),
) -> tuple[str, ...]:
    """Return sbatch's options for the trial's job, spelled --name=value.

    `partition` None or "": that of the job. `cpus`, `mem_mib` None: Slurm's default. `dependency`: the value of
    --dependency; the trial is cancelled if it can never be met, even if the real job is not. `leave_out`: options of
    the job that the trial does not keep. Submit with `make_trial_environ()`, because SBATCH_* variables of the user
    would add the omitted options again.
    """
    options = [f"--job-name={request.prerun_name}", f"--chdir={request.chdir}"]
    options += ["--nodes=1", f"--ntasks={tasks}", f"--ntasks-per-node={tasks}", f"--gres={_format_gres(request, gpus)}"]
    options += [f"--cpus-per-task={math.ceil(cpus / tasks)}"] if cpus else []
    options += [f"--mem={mem_mib}M"] if mem_mib else []
    options += [f"--time={_format_clock(time_limit_s)}", f"--output={output}", "--no-requeue"]
    options += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"] if dependency else []
    wanted = partition or request.value("partition")
    options += [f"--partition={wanted}"] if wanted else []
    return (*options, *_list_kept_options(request, leave_out), *_export(request))


def make_trial_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for submitting the trial: the user's without SBATCH_* and without the hostfile variable.

    The options already contain the values of SBATCH_*. The hostfile would make the trial as large as the real job.
    """
    return {name: value for name, value in environ.items() if not name.startswith("SBATCH_") and name != HOSTFILE}


def make_export_file(content: bytes, environ: Mapping[str, str]) -> bytes:
    """Return the user's --export-file (NUL-terminated NAME=value) with the wrapper's parameters appended.

    Nothing else of the caller's environment reaches a job with an export file (sbatch(1), --export-file).
    """
    added = (f"{name}={environ[name]}\0" for name in (*_WRAPPER_VARIABLES, "HOME") if name in environ)
    ended = content if not content or content.endswith(b"\0") else content + b"\0"
    return ended + "".join(added).encode(errors="surrogateescape")


def count_trial_gpus(request: JobRequest, node: Node | None = None) -> int:
    """Return the number of GPUs of the trial: 1 or --prerun-gpus, and never more than the job itself has.

    Raise UsageError for more GPUs than one node has, because a trial runs on one node. `node`: the largest node that
    could run the job; None if none is known.
    """
    asked = request.own.prerun_gpus
    wanted = 1 if asked is None else min(asked, max(1, request.shape.gpus))
    if wanted < 1:
        raise UsageError(f"--prerun-gpus={asked}: a pre-run needs a GPU", hint="without a pre-run: --prerun=off")
    if asked is not None and node is not None and node.gpus and asked > node.gpus:
        raise UsageError(
            f"--prerun-gpus={asked}: a pre-run is one node, and no node that can run this job has more than "
            f"{node.gpus} GPUs",
            hint=f"ask for at most --prerun-gpus={node.gpus}",
        )
    return wanted


def count_trial_tasks(request: JobRequest, gpus: int = 1) -> int:
    """Return the number of tasks of the trial: those of one node of the job, at most one per GPU.

    A task without a GPU would show nothing.
    """
    shape = request.shape
    per_node = shape.tasks_per_node or math.ceil((shape.tasks or 1) / max(1, shape.nodes or 1))
    return max(1, min(gpus, per_node))


def compute_trial_shape(request: JobRequest, node: Node | None = None, gpus: int = 1) -> tuple[int | None, int | None]:
    """Return (CPUs, memory in MiB) for `gpus` GPUs: their share of the user's request per node, with a minimum.

    If the user requested nothing (or --mem=0), return the GPUs' share of `node`, which could run the job; without a
    `node` return None.
    """
    wanted = gpus
    gpus = count_gpus_per_node(request)
    cpus = _count_cpus_per_node(request, gpus)
    mem = _compute_mem_per_node(request, gpus, cpus)
    share_of = node if node is not None and node.gpus else None
    return (
        _scale_to_gpus(cpus, wanted, gpus, CPU_FLOOR)
        or (max(1, share_of.cpus * wanted // share_of.gpus) if share_of else None),
        _scale_to_gpus(mem, wanted, gpus, MEM_FLOOR_MIB)
        or (share_of.mem_mib * wanted // share_of.gpus or None if share_of else None),
    )


def is_memory_shrunk(request: JobRequest, mem_mib: int | None) -> bool:
    """Return whether the trial gets less memory than the job may use on one node.

    If so, running out of memory in the trial proves nothing about the job.
    """
    gpus = count_gpus_per_node(request)
    asked = _compute_mem_per_node(request, gpus, _count_cpus_per_node(request, gpus))
    if asked is None:
        return gpus > 1 or mem_mib is not None
    return mem_mib is None or mem_mib < asked


def count_gpus_per_node(request: JobRequest) -> int:
    """Return the number of GPUs that the job has on one node, at least 1."""
    shape = request.shape
    return max(1, shape.gpus_per_node or shape.gpus // max(1, shape.nodes or 1))


def list_missing_variables(request: JobRequest, gpus: int = 1, partition: str = "") -> dict[str, str]:
    """Return the variables that Slurm sets for the job but not for its trial: name, options, array, GPU counts.

    A script with `--nproc_per_node $SLURM_GPUS_PER_NODE` needs the variable, whose value is the option's own text
    (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"). `partition`: the default partition; "" if it is not known. UNSET names
    the variables that only the trial's own options set: a script that reads them fails in the job.
    """
    named = request.value("partition") or partition
    found = {"SLURM_JOB_NAME": request.job_name, **make_option_variables(request)}
    if named and "," not in named:
        found["SLURM_JOB_PARTITION"] = named
    for option, variable in _GPU_VARIABLES.items():
        if value := request.value(option):
            count = gpus // count_trial_tasks(request, gpus) if option == "gpus-per-task" else gpus
            found[variable] = re.sub(r"(^|:)\d+$", rf"\g<1>{count}", value)
    if request.hetjob:
        # build_trial_environment() adds the variables of each component.
        found["SLURM_HET_SIZE"] = str(_count_components(request))
    found |= _list_exported_variables(request)
    if request.setting("export-file") is not None:
        found = {name: value for name, value in found.items() if name.startswith(_SET_BY_CONTROLLER)}
    found[UNSET] = " ".join(name for name in _list_unset_variables(request) if name not in found)
    return found


def _count_components(request: JobRequest) -> int:
    lines = re.findall(rb"^#SBATCH\s+(?:het|pack)job\s*$", request.script.content, re.MULTILINE)
    return 1 + (request.components.count(":") or len(lines) or 1)


def _list_exported_variables(request: JobRequest) -> dict[str, str]:
    """Return SLURM_EXPORT_ENV, and the variables that sbatch reads and passes on, which the trial's sbatch must not."""
    value = request.value("export")
    names = (value or "ALL").split(",")
    everything = any(name.upper() == "ALL" for name in names)
    passed = {
        name: text
        for name, text in request.environ.items()
        if (everything or name in names) and (name.startswith("SBATCH_") or name == HOSTFILE)
    }
    return passed if value is None or value.upper() == "ALL" else {**passed, "SLURM_EXPORT_ENV": value}


def _list_unset_variables(request: JobRequest) -> list[str]:
    """Return the variables that the trial's options set although the job's options do not (measured on 22.05.8)."""
    given = {setting.option for setting in request.settings}
    tasks = given & set(_TASK_OPTIONS) or ("nodes" in given and given & set(_TASKS_OF_LAYOUT))
    arbitrary = (request.value("distribution") or "").lower().startswith(("arbitrary", "hostfile"))
    unset = ["SLURM_TASKS_PER_NODE"] if arbitrary else [] if tasks else ["SLURM_NTASKS", "SLURM_NPROCS"]
    unset += [] if "ntasks-per-node" in given else ["SLURM_NTASKS_PER_NODE"]
    per_task = request.value("tres-per-task") or ""
    if "cpus-per-task" not in given and not re.search(r"(?:^|,)cpu[:=]", per_task):
        unset += ["SLURM_CPUS_PER_TASK", *([] if per_task or "gpus-per-task" in given else ["SLURM_TRES_PER_TASK"])]
    # Without a memory option, Slurm's defaults for the partition select the unit, which is not known here.
    per_node = request.shape.mem_unit is MemUnit.PER_NODE and request.shape.mem_mib
    unset += [] if per_node or request.shape.mem_unit is MemUnit.NONE else ["SLURM_MEM_PER_NODE"]
    return [*unset, "SLURM_EXPORT_ENV", *([] if request.value("dependency") else ["SLURM_JOB_DEPENDENCY"])]


def _format_gres(request: JobRequest, gpus: int) -> str:
    others = [g for g in (request.value("gres") or "").split(",") if g and not re.match(r"(gres:)?gpu(:|$|/)", g)]
    kind = f"gpu:{request.shape.gpu_type}:{gpus}" if request.shape.gpu_type else f"gpu:{gpus}"
    return ",".join((kind, *(g for g in others if g.lower() != "none")))


def _list_kept_options(request: JobRequest, leave_out: Collection[str]) -> list[str]:
    names = {s.option for s in request.settings} - request.plugin_options.keys() - set(leave_out)
    chosen = [n for n in _KEPT_OPTIONS if n in names]
    options = []
    for name in chosen:
        value = request.value(name)
        if name in ("constraint", "prefer") and value and set("*[") & set(value):
            # Such a constraint ("[rack1|rack2]", "a*2") requests more than one node.
            continue
        options.append(spell(name, value))
    # Pass every occurrence of a plugin's option in sbatch's order: the plugin decides how to treat repeated options.
    plugins = (s for s in request.settings if s.option in request.plugin_options and not _is_of_container(s.option))
    return options + [spell(s.option, s.value) for s in plugins]


def list_container_options(request: JobRequest) -> tuple[str, ...]:
    """Return srun's options for the container in which the job's script runs; () if there is none.

    They are Slurm's own (--container) or pyxis's. The pre-run's job runs on the node itself, where slurmwrap is, and
    starts the script in the container.
    """
    found = [spell(s.option, s.value) for s in request.settings if _is_of_container(s.option)]
    starts = any(request.setting(option) for option in ("container", "container-image", "container-name"))
    return tuple(dict.fromkeys(found)) if starts else ()


def _is_of_container(option: str) -> bool:
    return option.startswith(("container", "no-container"))


def _export(request: JobRequest) -> list[str]:
    # The wrapper gets its parameters through the environment, so they must be part of --export unless it contains ALL
    # (sbatch(1), --export). With --export-file, --export=ALL means the file alone, as if --export were not given; but
    # without --export, Slurm 26.05 ignores the file.
    value = request.value("export") or ("ALL" if request.value("export-file") else None)
    if value is None or "ALL" in value.upper().split(","):
        return [] if value is None else [f"--export={value}"]
    parameters = ",".join(_WRAPPER_VARIABLES)
    if value.upper() == "NIL":
        return [f"--export={parameters}"]
    # For NONE, Slurm loads the user's login environment; for a list of names it does so only with --get-user-env.
    if value.upper() == "NONE":
        return [f"--export={parameters}", *([] if request.setting("get-user-env") else ["--get-user-env"])]
    return [f"--export={value},{parameters}"]


def _format_clock(seconds: float) -> str:
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def _scale_to_gpus(per_node: int | None, wanted: int, gpus: int, floor: int) -> int | None:
    return None if not per_node else min(per_node, max(math.ceil(per_node * wanted / gpus), floor))


def _count_cpus_per_node(request: JobRequest, gpus: int) -> int | None:
    shape = request.shape
    if shape.cpus is None or shape.cpu_unit is CpuUnit.NONE:
        return None
    if shape.cpu_unit is CpuUnit.PER_GPU:
        return shape.cpus * gpus
    tasks = shape.tasks_per_node or math.ceil((shape.tasks or 1) / max(1, shape.nodes or 1))
    return shape.cpus * max(1, tasks)


def _compute_mem_per_node(request: JobRequest, gpus: int, cpus: int | None) -> int | None:
    shape = request.shape
    unit = {MemUnit.PER_NODE: 1, MemUnit.PER_GPU: gpus, MemUnit.PER_CPU: cpus or 1}.get(shape.mem_unit)
    return None if unit is None or not shape.mem_mib else shape.mem_mib * unit
