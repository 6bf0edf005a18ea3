"""The environment of a trial."""

from __future__ import annotations

from slurmwrap.prerun.trial.trial_environment import build_trial_environment, read_shim_environment
from slurmwrap.prerun.trial.trial_spec import TrialSpec

SPEC = TrialSpec(trial_dir="/t", script="/t/script", chdir="/w", nodes=2, gpus=16)


def make_environment(spec: TrialSpec = SPEC, **environ: str) -> dict[str, str]:
    return build_trial_environment(spec, environ, hostname="n9", python="/p/python")


def test_missing_variables_describe_one_node_with_one_task() -> None:
    found = make_environment()
    names = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "PET_NPROC_PER_NODE")
    assert [found[name] for name in names] == ["1"] * 5
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_PROCID"], found["SLURMWRAP_JOB_NODES"]) == ("n9", "0", "2")


def test_launcher_variables_of_a_trial_on_several_gpus_give_gpus_and_tasks() -> None:
    found = make_environment(TrialSpec(trial_dir="/t", script="/t/s", trial_gpus=4, trial_tasks=2))
    names = (
        "SLURM_NTASKS",
        "SLURM_GPUS_ON_NODE",
        "PET_NPROC_PER_NODE",
        "SLURMWRAP_TRIAL_GPUS",
        "SLURMWRAP_TRIAL_TASKS",
    )
    assert [found[name] for name in names] == ["2", "4", "4", "4", "2"]


def test_variables_of_the_allocation_are_kept() -> None:
    found = make_environment(SLURM_NTASKS="3", SLURMD_NODENAME="n1", CUDA_VISIBLE_DEVICES="5")
    assert (found["SLURM_NTASKS"], found["SLURM_NODELIST"]) == ("3", "n1")
    assert found["SLURMWRAP_CUDA_VISIBLE_DEVICES"] == "5"  # a copy that the script does not change


def test_a_shim_without_an_environment_restores_the_trial_variables() -> None:
    kept = read_shim_environment(make_environment(PATH="/bin", HOME="/h"))
    assert {"SLURMWRAP_TRIAL_DIR", "SLURMWRAP_STEP_DIR", "SLURMWRAP_PYTHON", "BASH_ENV"} <= set(kept)
    assert not {"PATH", "HOME", "WANDB_MODE"} & set(kept)


def test_no_tracker_writes_below_the_shadow_tree_which_stands_for_the_root_directory() -> None:
    # A user may not create /tensorboard, which {trial}/outputs/tensorboard stands for.
    found = make_environment()
    places = {name: value for name, value in found.items() if SPEC.trial_dir in value and "/outputs" in value}
    assert found["TENSORBOARD_LOGGING_DIR"] == f"{SPEC.trial_dir}/loggers/tensorboard" and places == {}
