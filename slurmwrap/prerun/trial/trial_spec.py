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
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit
from slurmwrap.sbatch.option_table import HOSTFILE
from slurmwrap.sbatch.rewrite import spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node


# The SLURM_* variables that sbatch sets from a job's options.
#
# The pre-run's job does not have these options, so Slurm does not set the variables in it (sbatch(1), "OUTPUT
# ENVIRONMENT VARIABLES"; names and spelling measured on 22.05.8). A script that runs with `set -u` needs them all.
_OPTION_VARIABLES = {
    "acctg-freq": "SLURM_ACCTG_FREQ",
    "cpu-freq": "SLURM_CPU_FREQ_REQ",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "distribution": "SLURM_DISTRIBUTION",
    "gpu-bind": "SLURM_GPU_BIND",
    "gpu-freq": "SLURM_GPU_FREQ",
    "hint": "SLURM_HINT",
    "mem-bind": "SLURM_MEM_BIND",
    "network": "SLURM_NETWORK",
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "profile": "SLURM_PROFILE",
    "reservation": "SLURM_JOB_RESERVATION",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
}
_MEMORY = {"mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}
# Variable of the job -> variable that the pre-run's allocation has instead; srun refuses both together.
REPLACED = {
    "SLURM_MEM_PER_CPU": "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_MEM_PER_NODE",
    "SLURM_CPUS_PER_GPU": "SLURM_CPUS_PER_TASK",
}


def make_option_variables(request: JobRequest) -> dict[str, str]:
    """Return the variables of the job's options except GPU counts; for an array those of its first task."""
    found = {name: value for option, name in _OPTION_VARIABLES.items() if (value := request.value(option))}
    memory = request.shape.mem_unit.value
    if memory in _MEMORY and request.shape.mem_mib:
        found[_MEMORY[memory]] = str(request.shape.mem_mib)
    if request.setting("overcommit") is not None:
        found["SLURM_OVERCOMMIT"] = "1"
    if mode := request.value("open-mode"):
        found["SLURM_OPEN_MODE"] = mode[0].lower()
    if found.get("SLURM_HINT") == "nomultithread":
        found.setdefault("SLURM_THREADS_PER_CORE", "1")
    if "SLURM_MEM_BIND" in found:
        found["SLURM_MEM_BIND_VERBOSE"] = "quiet"
    array = parse_indices(request.value("array") or "")
    return found | (array.environment() if array else {})


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
    inputs: tuple[str, ...] = ()  # files that the job names, absolute paths
    trial_gpus: int = 1  # GPUs of the trial, --prerun-gpus
    trial_tasks: int = 1  # tasks that a launcher may start in the trial: those of one node, at most one per GPU
    command: str = ""  # --prerun-command: runs instead of the script
    profile_s: float = 0.0  # seconds for the CPU curve, after the steps that count as a pass; 0: none
    delay: str = ""  # why the job cannot start yet; files missing now may exist when it starts (sbatch/eligibility.py)
    no_training_s: float = 40.0  # seconds to wait for an error if nothing in the program trains
    no_activity_s: float = 90.0  # seconds after which a trial that stands still is ended
    overlay: str = "auto"  # "auto": a private overlay over the user's directories if the kernel permits it; "off"
    caches: tuple[str, ...] = ()  # prerun.caches: what the trial writes to these is kept

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


def list_missing_variables(request: JobRequest, gpus: int = 1) -> dict[str, str]:
    """Return the variables that Slurm sets for the job but not for its trial: name, options, array, GPU counts.

    A script with `--nproc_per_node $SLURM_GPUS_PER_NODE` needs the variable, whose value is the option's own text
    (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
    """
    names = {
        GpuUnit.GPUS: ("gpus", "SLURM_GPUS"),
        GpuUnit.PER_NODE: ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
        GpuUnit.PER_TASK: ("gpus-per-task", "SLURM_GPUS_PER_TASK"),
        GpuUnit.PER_SOCKET: ("gpus-per-socket", "SLURM_GPUS_PER_SOCKET"),
    }
    found = {"SLURM_JOB_NAME": request.job_name, **make_option_variables(request)}
    if request.shape.gpu_unit in names:
        option, variable = names[request.shape.gpu_unit]
        count = gpus // count_trial_tasks(request, gpus) if option == "gpus-per-task" else gpus
        found[variable] = re.sub(r"\d+$", str(count), request.value(option) or "1")
    return found


def _format_gres(request: JobRequest, gpus: int) -> str:
    others = [g for g in (request.value("gres") or "").split(",") if g and not re.match(r"(gres:)?gpu(:|$|/)", g)]
    kind = f"gpu:{request.shape.gpu_type}:{gpus}" if request.shape.gpu_type else f"gpu:{gpus}"
    return ",".join((kind, *(g for g in others if g.lower() != "none")))


def _list_kept_options(request: JobRequest, leave_out: Collection[str]) -> list[str]:
    names = {s.option for s in request.settings} - request.plugin_options.keys() - set(leave_out)
    chosen = [n for n in _KEPT_OPTIONS if n in names] + sorted(n for n in names if n.startswith("container"))
    options = []
    for name in chosen:
        value = request.value(name)
        if name in ("constraint", "prefer") and value and set("*[") & set(value):
            # Such a constraint ("[rack1|rack2]", "a*2") requests more than one node.
            continue
        options.append(spell(name, value))
    # Pass every occurrence of a plugin's option in sbatch's order: the plugin decides how to treat repeated options.
    return options + [spell(s.option, s.value) for s in request.settings if s.option in request.plugin_options]


def _export(request: JobRequest) -> list[str]:
    # The wrapper gets its parameters through the environment, so they must be part of --export unless it contains ALL
    # (sbatch(1), --export). With --export-file, --export=ALL means the file alone, as if --export were not given; but
    # without --export, Slurm 26.05 ignores the file.
    value = request.value("export") or ("ALL" if request.value("export-file") else None)
    if value is None or "ALL" in value.split(","):
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
