"""The environment of a trial."""

from __future__ import annotations

from slurmwrap.prerun.trial.trial_environment import build_trial_environment, read_shim_environment
from slurmwrap.prerun.trial.trial_spec import TrialSpec

SPEC = TrialSpec(trial_dir="/t", script="/t/script", chdir="/w", nodes=2, gpus=16)


def environment(spec: TrialSpec = SPEC, **environ: str) -> dict[str, str]:
    return build_trial_environment(spec, environ, hostname="n9", python="/p/python")


def test_one_node_of_one_task_is_said_where_the_allocation_does_not() -> None:
    found = environment()
    names = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "PET_NPROC_PER_NODE")
    assert [found[name] for name in names] == ["1"] * 5
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_PROCID"], found["SLURMWRAP_JOB_NODES"]) == ("n9", "0", "2")


def test_a_trial_on_more_gpus_says_so_to_launchers() -> None:
    found = environment(TrialSpec(trial_dir="/t", script="/t/s", trial_gpus=4, trial_tasks=2))
    names = (
        "SLURM_NTASKS",
        "SLURM_GPUS_ON_NODE",
        "PET_NPROC_PER_NODE",
        "SLURMWRAP_TRIAL_GPUS",
        "SLURMWRAP_TRIAL_TASKS",
    )
    assert [found[name] for name in names] == ["2", "4", "4", "4", "2"]


def test_what_the_allocation_says_stands() -> None:
    found = environment(SLURM_NTASKS="3", SLURMD_NODENAME="n1", CUDA_VISIBLE_DEVICES="5")
    assert (found["SLURM_NTASKS"], found["SLURM_NODELIST"]) == ("3", "n1")
    assert found["SLURMWRAP_CUDA_VISIBLE_DEVICES"] == "5"  # kept aside from what the script makes of it


def test_a_shim_that_was_called_with_nothing_knows_the_trial_again() -> None:
    kept = read_shim_environment(environment(PATH="/bin", HOME="/h"))
    assert {"SLURMWRAP_TRIAL_DIR", "SLURMWRAP_STEP_DIR", "SLURMWRAP_PYTHON", "BASH_ENV"} <= set(kept)
    assert not {"PATH", "HOME", "WANDB_MODE"} & set(kept)
