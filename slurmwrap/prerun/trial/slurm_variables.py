"""The SLURM_* variables that sbatch makes of a job's own options, as its script finds them. Pure.

The pre-run's allocation does not set them, since it does not ask for these things (sbatch(1), "OUTPUT ENVIRONMENT
VARIABLES"; names and spelling measured on 22.05.8). A script that runs with `set -u` needs them all.
"""

from __future__ import annotations

from slurmwrap.sbatch.array_indices import parse_indices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.request import JobRequest

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
