"""The environment that the user's script gets in its trial: the pre-run job's own, on one GPU, loggers off. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.job.request import JobRequest
from slurmwrap.prerun.entry import SUBMIT_DIR
from slurmwrap.prerun.trial import TrialSpec

# Trackers that would record a trial as a run. Names: wandb, comet, mlflow, swanlab, transformers, neptune, clearml.
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
}
# World size 1 as Slurm says it; filled in where the allocation does not say it.
_ONE_TASK: Mapping[str, str] = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS"), "1"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_GPUS_ON_NODE"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
}
# Defaults of torchrun's own options, for launchers that read them from the environment.
_TORCHRUN_DEFAULTS: Mapping[str, str] = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"}


# What a login shell sets again for a job that is not given the caller's environment, as good as always alike.
_OF_EVERY_LOGIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")


def passed_on(request: JobRequest, environ: Mapping[str, str], submit_dir: str) -> dict[str, str]:
    """What the job will know of the caller's `environ` (sbatch(1), --export), and where sbatch was called."""
    value = request.value("export")
    items = ["ALL"] if value is None else value.split(",")
    names = {item.partition("=")[0] for item in items}
    everything = "ALL" in map(str.upper, names) and not request.setting("export-file")
    kept = {k: v for k, v in environ.items() if everything or k in names or k in _OF_EVERY_LOGIN}
    set_anew = dict(item.split("=", 1) for item in items if "=" in item)
    return {**kept, **set_anew, SUBMIT_DIR: submit_dir}


def trial_environment_of(spec: TrialSpec, environ: Mapping[str, str], *, hostname: str, python: str) -> dict[str, str]:
    """`environ` is the pre-run job's; `python` the interpreter that slurmwrap runs in.

    RANK and WORLD_SIZE are not set: many scripts take their presence for torchrun and want MASTER_ADDR as well.
    """
    shims, inject = f"{spec.trial_dir}/shims", f"{spec.trial_dir}/inject"
    node = environ.get("SLURMD_NODENAME") or hostname
    found = {**_ONE_TASK, "SLURM_JOB_NODELIST": node, "SLURM_NODELIST": node, "SLURM_SUBMIT_DIR": spec.chdir}
    found |= environ
    found |= {**_LOGGERS_OFF, **_TORCHRUN_DEFAULTS, **spec.environment}
    found |= {
        "MLFLOW_TRACKING_URI": f"file:{spec.trial_dir}/mlruns",
        "TENSORBOARD_LOGGING_DIR": f"{spec.trial_dir}/tensorboard",
        "PYTHONUNBUFFERED": "1",  # a killed program has printed what it said
        "PYTHONFAULTHANDLER": "1",  # a crash in C shows the Python line
        "SLURMWRAP_PRERUN": "1",
        "SLURMWRAP_PYTHON": python,
        "SLURMWRAP_TRIAL_DIR": spec.trial_dir,
        "SLURMWRAP_STEP_DIR": spec.step_dir,
        "SLURMWRAP_PARK_AFTER": str(spec.steps),
        "SLURMWRAP_SHIMS": shims,
        "SLURMWRAP_INJECT": inject,
        "PATH": f"{shims}:{environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
        "PYTHONPATH": f"{inject}:{environ['PYTHONPATH']}" if environ.get("PYTHONPATH") else inject,
        "SLURMWRAP_BASH_ENV": environ.get("BASH_ENV", ""),
        "BASH_ENV": f"{shims}/bash_env.sh",
        "APPTAINER_BIND": _with(environ.get("APPTAINER_BIND"), spec.trial_dir),
        "SINGULARITY_BIND": _with(environ.get("SINGULARITY_BIND"), spec.trial_dir),
    }
    return found


def _with(binds: str | None, path: str) -> str:
    return f"{binds},{path}" if binds else path
