"""The trial as a Slurm job: turns a JobRequest into the same job on ONE GPU. Pure.

`TrialSpec` is what gsub writes into the trial's directory and the pre-run job reads there.
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
    from slurmwrap.sbatch.job_request import JobRequest


# The SLURM_* variables that sbatch makes of a job's own options, as its script finds them.
#
# The pre-run's allocation does not set them, since it does not ask for these things (sbatch(1), "OUTPUT ENVIRONMENT
# VARIABLES"; names and spelling measured on 22.05.8). A script that runs with `set -u` needs them all.
_AS_WRITTEN = {
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
# What the allocation says in the place of another variable; srun refuses both together.
REPLACED = {
    "SLURM_MEM_PER_CPU": "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_MEM_PER_NODE",
    "SLURM_CPUS_PER_GPU": "SLURM_CPUS_PER_TASK",
}


def make_option_variables(request: JobRequest) -> dict[str, str]:
    """The variables of the job's options, but for GPU counts; of an array those of its first task."""
    found = {name: value for option, name in _AS_WRITTEN.items() if (value := request.value(option))}
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


# One process with its loader workers; never more than the user asked for on a node.
CPU_FLOOR = 4
# A process loads the whole model even where eight would share the node's memory.
MEM_FLOOR_MIB = 16 * 1024

# The job's own options that the trial keeps as they are. Everything else either makes no sense on one GPU
# (array, nodelist, switches, gpu-bind), belongs to the real job (dependency, begin, mail, output) or is set anew.
_KEPT = (
    *("account", "clusters", "qos", "constraint", "prefer", "reservation", "exclude", "licenses", "tmp", "wckey"),
    *("input", "propagate", "get-user-env", "ignore-pbs"),
)
_OURS = (
    *("SLURMWRAP_PYTHON", "SLURMWRAP_TRIAL_DIR", "SLURMWRAP_REAL_JOB", "SLURMWRAP_RELEASE_AT", "SLURMWRAP_CONFIG"),
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial. Paths are absolute; memory in MiB, times in seconds."""

    trial_dir: str  # the user's own, 0700: script, spec, step files, output
    script: str  # the copy that is run, inside trial_dir
    script_name: str = ""  # what the user calls it: findings and reasons name this
    args: tuple[str, ...] = ()
    chdir: str = "/"
    # Optimizer steps that count as a pass.
    steps: int = 3
    time_limit_s: float = 900.0
    # Laid over the pre-run job's; see list_missing_variables().
    environment: Mapping[str, str] = field(default_factory=dict)
    # Address of the job that waits; None for --prerun=wait|only.
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
    inputs: tuple[str, ...] = ()  # files the job names, absolute
    trial_gpus: int = 1  # GPUs of the trial, --prerun-gpus
    trial_tasks: int = 1  # tasks that a launcher may start in the trial: those of one node, at most one per GPU
    command: str = ""  # --prerun-command: runs in the script's place
    profile_s: float = 0.0  # after the steps that count as a pass, so long for the CPU curve; 0: none
    delay: str = ""  # why the job cannot start yet: what its trial misses may be there then (sbatch/eligibility.py)
    no_training_s: float = 40.0  # so long an error is waited for where nothing trains
    overlay: str = "auto"  # "auto": the user's directories under a private overlay where the kernel allows; "off"
    caches: tuple[str, ...] = ()  # prerun.caches: what is written there stays

    @property
    def step_dir(self) -> str:
        """Where the injected counter writes; visible in containers that mount the user's home."""
        return f"{self.trial_dir}/steps"

    @property
    def output(self) -> str:
        """Standard output and error of the user's script."""
        return f"{self.trial_dir}/output"


def spec_to_json(spec: TrialSpec) -> dict[str, Any]:
    """A dict of JSON types; `spec_from_json` gives the same TrialSpec back."""
    return asdict(spec)


def spec_from_json(plain: Mapping[str, Any]) -> TrialSpec:
    """Unknown keys (a newer gsub) are left out. Raises TypeError when a needed one is missing."""
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
    """sbatch's options for the trial job, spelled --name=value.

    `partition` None or "": the job's own. `cpus`, `mem_mib` None: Slurm's default. `dependency`: what it waits for; it
    is cancelled when that can never be met, which the real job need not be. `leave_out`: options that it does not
    share with the job. Submit with `make_trial_environ()`,
    since SBATCH_* variables of the user would bring back what is left out here.
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
    """The environment for submitting the trial: the user's without SBATCH_*, which options already hold, and without
    the file of the real job's nodes, which would make the trial as large."""
    return {name: value for name, value in environ.items() if not name.startswith("SBATCH_") and name != HOSTFILE}


def make_export_file(content: bytes, environ: Mapping[str, str]) -> bytes:
    """The user's --export-file (NUL-terminated NAME=value) with the wrapper's parameters behind: nothing else of the
    caller's environment reaches such a job (sbatch(1), --export-file)."""
    ours = (f"{name}={environ[name]}\0" for name in (*_OURS, "HOME") if name in environ)
    ended = content if not content or content.endswith(b"\0") else content + b"\0"
    return ended + "".join(ours).encode(errors="surrogateescape")


def count_trial_gpus(request: JobRequest, node: Node | None = None) -> int:
    """GPUs of the trial: 1, or what --prerun-gpus says; never more than the job itself has.

    Raises UsageError for more than a node of the job can give: a trial is one node. `node`: the largest that could run
    the job, None when none is known.
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
    """Tasks of the trial: those of one node of the job, at most one per GPU (a task without a GPU shows nothing)."""
    shape = request.shape
    per_node = shape.tasks_per_node or math.ceil((shape.tasks or 1) / max(1, shape.nodes or 1))
    return max(1, min(gpus, per_node))


def compute_trial_shape(request: JobRequest, node: Node | None = None, gpus: int = 1) -> tuple[int | None, int | None]:
    """(CPUs, memory in MiB) for `gpus` GPUs: the share of what the user asked per node, but at least a sane floor.

    Where the user said nothing (or --mem=0) the GPUs' share of `node`, one that could run the job; without it None.
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
    """True when the trial gets less memory than the job may use on one node, so that running out proves nothing."""
    gpus = count_gpus_per_node(request)
    asked = _compute_mem_per_node(request, gpus, _count_cpus_per_node(request, gpus))
    if asked is None:
        return gpus > 1 or mem_mib is not None
    return mem_mib is None or mem_mib < asked


def count_gpus_per_node(request: JobRequest) -> int:
    """GPUs that the request holds on one node, at least 1."""
    shape = request.shape
    return max(1, shape.gpus_per_node or shape.gpus // max(1, shape.nodes or 1))


def list_missing_variables(request: JobRequest, gpus: int = 1) -> dict[str, str]:
    """What Slurm would give the job and does not give its trial: name, options, array, GPU counts.

    A script that says `--nproc_per_node $SLURM_GPUS_PER_NODE` needs the variable to be there (sbatch(1), "OUTPUT
    ENVIRONMENT VARIABLES": the option's own text).
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
    chosen = [n for n in _KEPT if n in names] + sorted(n for n in names if n.startswith("container"))
    options = []
    for name in chosen:
        value = request.value(name)
        if name in ("constraint", "prefer") and value and set("*[") & set(value):
            # Node counts ("[rack1|rack2]", "a*2") ask for more than one node.
            continue
        options.append(spell(name, value))
    # a plugin gets each one, in sbatch's order: what it makes of two of a name is its own business
    return options + [spell(s.option, s.value) for s in request.settings if s.option in request.plugin_options]


def _export(request: JobRequest) -> list[str]:
    # The wrapper's parameters travel in the environment, and only ALL takes them along (sbatch(1), --export).
    # With a file it means that file alone, as if nothing were said; but where nothing is said 26.05 forgets the file.
    value = request.value("export") or ("ALL" if request.value("export-file") else None)
    if value is None or "ALL" in value.split(","):
        return [] if value is None else [f"--export={value}"]
    ours = ",".join(_OURS)
    if value.upper() == "NIL":
        return [f"--export={ours}"]
    # Slurm then loads the user's login environment, which a list does not.
    if value.upper() == "NONE":
        return [f"--export={ours}", *([] if request.setting("get-user-env") else ["--get-user-env"])]
    return [f"--export={value},{ours}"]


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
