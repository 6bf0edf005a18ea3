"""Build the environment of the user's script in a trial: that of the pre-run's job, for one node, loggers off. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from slurmwrap.prerun.static.entry_points import SUBMIT_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.trial.trial_spec import TrialSpec
    from slurmwrap.sbatch.job_request import JobRequest

# Settings that keep experiment trackers from recording a trial as a run: wandb, comet, transformers' mlflow and
# kubeflow, swanlab, neptune, clearml, dvclive (names from their sources). inject/slurmwrap_library_patches.py handles
# what a program requests by arguments.
_LOGGERS_OFF: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "SWANLAB_MODE": "disabled",
    "DISABLE_KUBEFLOW_INTEGRATION": "TRUE",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "DVCLIVE_TEST": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
}
# Output directories for trackers that variables cannot switch off: variable -> path below the trial's directory.
# aim joins its repository's name to a path; an absolute name replaces that path (aim/sdk/configs.py).
_LOGGERS_ELSEWHERE: Mapping[str, str] = {
    "MLFLOW_TRACKING_URI": "file:{}/mlruns",
    "TENSORBOARD_LOGGING_DIR": "{}/loggers/tensorboard",
    "TRACKIO_DIR": "{}/loggers/trackio",
    "__AIM_REPO_NAME__": "{}/loggers/aim",
    "CLEARML_CACHE_DIR": "{}/loggers/clearml",
    "WANDB_DIR": "{}/loggers",
    "WANDB_CACHE_DIR": "{}/loggers/wandb-cache",
    "COMET_OFFLINE_DIRECTORY": "{}/loggers/comet",
}
# Variables of the trial that programs inside containers get too, besides slurmwrap's own.
PASSED_INTO_CONTAINERS = frozenset(
    (
        *_LOGGERS_OFF,
        *_LOGGERS_ELSEWHERE,
        *("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE", "CUDA_CACHE_PATH", "GIT_OPTIONAL_LOCKS"),
        *("PET_NNODES", "PET_NPROC_PER_NODE"),
    )
)
# Name of a reservation that does not exist. If a program calls the real sbatch or salloc and not the shim (an absolute
# path in sh, a cleared PATH), Slurm itself refuses the call. Only an option overrides these variables, and hardly any
# script names a reservation (sbatch(1), salloc(1), INPUT ENVIRONMENT VARIABLES). scancel reads its filters in the same
# way except the reservation (measured on 22.05.8).
NOWHERE = "slurmwrap-prerun"
_SLURM_BLOCKERS: Mapping[str, str] = {
    **dict.fromkeys(("SBATCH_RESERVATION", "SALLOC_RESERVATION"), NOWHERE),
    **dict.fromkeys(("SCANCEL_WCKEY", "SCANCEL_NAME"), NOWHERE),
}
# Variables with the devices that Slurm gave the trial. Copies are kept for slurmwrap_launcher_options.keep_devices().
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


# Variables that a heterogeneous job has for each component, as SLURM_JOB_ID_HET_GROUP_0 (measured on 22.05.8).
_OF_COMPONENTS = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION"),
    *("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"),
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ACCOUNT"),
    *("SLURM_JOB_QOS", "SLURM_JOB_RESERVATION"),
)
# Variable with the variables of the pre-run's allocation that the script sees with other values, as JSON.
ALLOCATION = "SLURMWRAP_ALLOCATION"


# Variables that the login shell sets to nearly always the same values for a job without the caller's environment.
_LOGIN_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")


def select_passed_on(request: JobRequest, environ: Mapping[str, str], submit_dir: str) -> dict[str, str]:
    """Return the part of the caller's `environ` that the job will have (sbatch(1), --export), plus SUBMIT_DIR."""
    value = request.value("export")
    items = ["ALL"] if value is None else value.split(",")
    names = {item.partition("=")[0] for item in items}
    everything = "ALL" in map(str.upper, names) and not request.setting("export-file")
    kept = {k: v for k, v in environ.items() if everything or k in names or k in _LOGIN_VARIABLES}
    set_anew = dict(item.split("=", 1) for item in items if "=" in item)
    return {**kept, **set_anew, SUBMIT_DIR: submit_dir}


def build_trial_environment(
    spec: TrialSpec, environ: Mapping[str, str], *, hostname: str, python: str
) -> dict[str, str]:
    """Return the script's environment. `environ`: that of the pre-run's job. `python`: slurmwrap's interpreter.

    RANK and WORLD_SIZE are not set: many scripts take them as a sign of torchrun and then need MASTER_ADDR as well.
    """
    shims, inject = f"{spec.trial_dir}/shims", f"{spec.trial_dir}/inject"
    node = environ.get("SLURMD_NODENAME") or hostname
    found = {
        **_make_one_node_variables(spec),
        "SLURM_JOB_NODELIST": node,
        "SLURM_NODELIST": node,
        "SLURM_SUBMIT_DIR": spec.chdir,
    }
    found |= environ
    known = _set_job_variables(spec, found, environ, node)
    found |= {**_LOGGERS_OFF, **_SLURM_BLOCKERS}
    if "SLURM_ARRAY_TASK_ID" in spec.environment:
        found["SLURM_ARRAY_JOB_ID"] = spec.real_job or environ.get("SLURM_JOB_ID", "")
    # torchrun reads its options from these variables.
    found |= {"PET_NNODES": "1", "PET_NPROC_PER_NODE": str(spec.trial_gpus)}
    found |= {f"SLURMWRAP_{name}": environ[name] for name in _VISIBLE if name in environ}
    found |= {
        **{name: place.format(spec.trial_dir) for name, place in _LOGGERS_ELSEWHERE.items()},
        # Unbuffered, so that the output of a killed program is complete.
        "PYTHONUNBUFFERED": "1",
        # A crash in C code prints the Python traceback.
        "PYTHONFAULTHANDLER": "1",
        "SLURMWRAP_PRERUN": "1",
        "SLURMWRAP_PYTHON": python,
        "SLURMWRAP_TRIAL_DIR": spec.trial_dir,
        "SLURMWRAP_STEP_DIR": spec.step_dir,
        # Unset what a job with --count-steps passed on when it submitted this one.
        "SLURMWRAP_STEP_NAMED": "",
        # 0 means never: a profile needs the program to go on after the steps.
        "SLURMWRAP_PARK_AFTER": "0" if spec.profile_s else str(spec.steps),
        # protection.py switches it off if the user's files are not covered.
        "SLURMWRAP_REHEARSE": ("on_request" if spec.profile_s else "1") if spec.rehearse_s else "",
        "SLURMWRAP_TRIAL_GPUS": str(spec.trial_gpus),
        "SLURMWRAP_TRIAL_TASKS": str(spec.trial_tasks),
        "SLURMWRAP_JOB_NODES": str(spec.nodes),
        # For the real srun and mpirun (launcher_shim.py): what the pre-run's own allocation has.
        ALLOCATION: json.dumps(known),
        "SLURMWRAP_SHIMS": shims,
        "SLURMWRAP_INJECT": inject,
        "PATH": f"{shims}:{environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
        "PYTHONPATH": f"{inject}:{environ['PYTHONPATH']}" if environ.get("PYTHONPATH") else inject,
        "SLURMWRAP_BASH_ENV": environ.get("BASH_ENV", ""),
        "BASH_ENV": f"{shims}/bash_env.sh",
        "APPTAINER_BIND": _add_bind(environ.get("APPTAINER_BIND"), spec.trial_dir),
        "SINGULARITY_BIND": _add_bind(environ.get("SINGULARITY_BIND"), spec.trial_dir),
    }
    return found


def _set_job_variables(
    spec: TrialSpec, found: dict[str, str], environ: Mapping[str, str], node: str
) -> dict[str, str | None]:
    """Change `found` to the variables of the job, and return the values before; None for those that were not set."""
    # gsub itself imports this module but does not need trial_spec.
    from slurmwrap.prerun.trial.trial_spec import UNSET

    wanted = {name: value for name, value in spec.environment.items() if name != UNSET}
    if "SLURM_OOM_KILL_STEP" not in environ:
        # Releases before 24.11 set it on no cluster but Cray's.
        wanted.pop("SLURM_NETWORK", None)
    if "SLURM_JOB_ID" in environ and "SLURM_JOB_NAME" not in environ:
        # With --export-file, releases before 24.11 set no name.
        wanted.pop("SLURM_JOB_NAME", None)
    if "SLURM_ARBITRARY_NODELIST" in wanted:
        wanted["SLURM_ARBITRARY_NODELIST"] = node
    unset = spec.environment.get(UNSET, "").split()
    for name in unset:
        found.pop(name, None)
    found |= wanted
    if "SLURM_HET_SIZE" in wanted:
        wanted |= _make_component_variables(found)
        found |= wanted
    return {name: environ.get(name) for name in (*unset, *wanted)}


def _make_component_variables(found: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets for each component of a heterogeneous job: here one node for all."""
    groups = range(int(found["SLURM_HET_SIZE"]))
    suffixes = [f"{kind}_GROUP_{group}" for kind in ("HET", "PACK") for group in groups]
    named = {f"{name}_{suffix}": found[name] for name in _OF_COMPONENTS if name in found for suffix in suffixes}
    return {**named, "SLURM_PACK_SIZE": found["SLURM_HET_SIZE"]}


def read_shim_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a shim restores when it is called with a cleared environment (`env -i srun ...`)."""
    return {k: v for k, v in environ.items() if k.startswith("SLURMWRAP_") or k == "BASH_ENV"}


def _make_one_node_variables(spec: TrialSpec) -> dict[str, str]:
    """Return Slurm's variables for the size of the trial, used where the allocation does not set them."""
    tasks = str(spec.trial_tasks)
    return {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
        "SLURM_GPUS_ON_NODE": str(spec.trial_gpus),
    }


def _add_bind(binds: str | None, path: str) -> str:
    return f"{binds},{path}" if binds else path
