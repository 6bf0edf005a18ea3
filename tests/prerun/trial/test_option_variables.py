"""The variables of the real job in its trial, as sbatch 22.05.8 and later set them (measured on a lab)."""

from __future__ import annotations

import pytest

from slurmwrap.prerun.trial.trial_environment import build_trial_environment
from slurmwrap.prerun.trial.trial_spec import TrialSpec, count_trial_tasks, list_missing_variables, make_trial_options
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request

# Variables that Slurm sets in every pre-run's job, by the options of make_trial_options().
ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "a.sh.prerun",
    "SLURM_JOB_PARTITION": "prerun",
    "SLURMD_NODENAME": "n3",
    "SLURM_NTASKS": "1",
    "SLURM_NPROCS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_CPUS_PER_TASK": "4",
    "SLURM_MEM_PER_NODE": "16000",
}
ONLY_OF_TRIAL = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"))


def parse(options: str, **environ: str) -> JobRequest:
    return parse_request(
        [*options.split(), "a.sh"], environ=environ, cwd="/w", read_script=lambda _: b"#!/bin/sh\n",
        read_stdin=lambda: b"",
    )  # fmt: skip


def build(request: JobRequest, gpus: int = 1, partition: str = "", **allocation: str) -> dict[str, str]:
    spec = TrialSpec(
        trial_dir="/t",
        script="/t/s",
        environment=list_missing_variables(request, gpus, partition),
        trial_gpus=gpus,
        trial_tasks=count_trial_tasks(request, gpus),
    )
    return build_trial_environment(spec, {**ALLOCATION, **allocation}, hostname="n3", python="/p/python")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"SLURM_JOB_NAME": "a.sh", "SLURM_MEM_PER_NODE": "16000", **ONLY_OF_TRIAL}),
        ("-n4", {"SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_NTASKS_PER_NODE": None}),
        ("--ntasks-per-node=2 -c8", {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "4"}),
        ("--array=7,3,11-13%1", {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5", "SLURM_ARRAY_JOB_ID": "7"}),
        ("--gpus=a100:4", {"SLURM_GPUS": "a100:1", "SLURM_GPUS_PER_NODE": None}),
        ("--gpus=a100", {"SLURM_GPUS": "a100"}),
        ("--gpus=4 --gpus-per-node=2 -N2", {"SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1"}),
        ("-n4 --gpus=4 --gpus-per-task=1", {"SLURM_GPUS": "1", "SLURM_GPUS_PER_TASK": "1"}),
        ("--mem=4G", {"SLURM_MEM_PER_NODE": "16000", "SLURM_MEM_PER_CPU": None}),
        ("--mem=0", {"SLURM_MEM_PER_NODE": None}),
        ("--mem-per-cpu=1G", {"SLURM_MEM_PER_CPU": "1024", "SLURM_MEM_PER_NODE": None}),
        ("--gpus=2 --mem-per-gpu=3G", {"SLURM_MEM_PER_GPU": "3072", "SLURM_MEM_PER_NODE": None}),
        ("--gpus=2 --cpus-per-gpu=3", {"SLURM_CPUS_PER_GPU": "3", "SLURM_CPUS_PER_TASK": None}),
        ("-m plane=2 -n4", {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}),
        ("-m *:block", {"SLURM_DISTRIBUTION": "block:block"}),
        ("-m block:*:*", {"SLURM_DISTRIBUTION": "block:cyclic:cyclic"}),
        ("-m block:cyclic:fcyclic,Pack", {"SLURM_DISTRIBUTION": "block:cyclic:fcyclic,pack"}),
        ("-m pack", {"SLURM_DISTRIBUTION": "pack"}),
        ("-m arbitrary -w n[0-1]", {"SLURM_ARBITRARY_NODELIST": "n3", "SLURM_TASKS_PER_NODE": None}),
        ("--cpu-freq=low-high:userspace", {"SLURM_CPU_FREQ_REQ": "Low-High:UserSpace"}),
        ("--cpu-freq=2400000", {"SLURM_CPU_FREQ_REQ": "2400000"}),
        ("--profile=task,energy", {"SLURM_PROFILE": "Energy,Task"}),
        ("--profile=All", {"SLURM_PROFILE": "Energy,Lustre,Network,Task"}),
        ("--profile=none", {"SLURM_PROFILE": "None"}),
        ("--mem-bind=quiet,rank", {"SLURM_MEM_BIND": "rank", "SLURM_MEM_BIND_VERBOSE": "quiet"}),
        ("--mem-bind=verbose,map_mem:0,1", {"SLURM_MEM_BIND": "verbose,map_mem:0,1"}),
        ("--hint=nomultithread", {"SLURM_HINT": "nomultithread", "SLURM_THREADS_PER_CORE": "1"}),
        ("--hint=compute_bound", {"SLURM_HINT": "compute_bound", "SLURM_THREADS_PER_CORE": "1"}),
        ("--hint=multithread", {"SLURM_NTASKS_PER_CORE": "65535", "SLURM_THREADS_PER_CORE": None}),
        ("--hint=nomultithread --threads-per-core=2", {"SLURM_HINT": None, "SLURM_THREADS_PER_CORE": "2"}),
        ("-B 2:2:1", {"SLURM_THREADS_PER_CORE": "1", "SLURM_NTASKS": "1"}),
        ("-d afterok:3", {"SLURM_JOB_DEPENDENCY": "afterok:3"}),
        ("--export=NONE", {"SLURM_EXPORT_ENV": "NONE"}),
        ("--export=A,B=1", {"SLURM_EXPORT_ENV": "A,B=1"}),
        ("--export=all", {"SLURM_EXPORT_ENV": None}),
        ("--open-mode=append", {"SLURM_OPEN_MODE": "a"}),
        ("-O -n4", {"SLURM_OVERCOMMIT": "1"}),
        ("--reservation=r", {"SLURM_JOB_RESERVATION": "r"}),
        ("--tres-per-task=cpu=3", {"SLURM_TRES_PER_TASK": "cpu=3", "SLURM_CPUS_PER_TASK": "4"}),
        ("--segment=4", {"SLURM_JOB_SEGMENT_SIZE": "4"}),
        ("--oom-kill-step", {"SLURM_OOM_KILL_STEP": "1"}),
        ("-p gpu", {"SLURM_JOB_PARTITION": "gpu"}),
        ("-p gpu,cpu", {"SLURM_JOB_PARTITION": "prerun"}),
        ("--comment=x --signal=USR1@60 --requeue -L m:1 --wckey=w", {"SLURM_JOB_COMMENT": None, "SLURM_WCKEY": None}),
        ("--network=x", {"SLURM_NETWORK": None}),
        ("--export-file=/dev/null -d afterok:3", {"SLURM_JOB_DEPENDENCY": None}),
        ("--export-file=/dev/null --hint=nomultithread", {"SLURM_HINT": None, "SLURM_THREADS_PER_CORE": "1"}),
    ],
)  # fmt: skip
def test_an_option_sets_the_variables_of_the_real_job(options: str, expected: dict[str, str | None]) -> None:
    found = build(parse(options))
    assert {name: found.get(name) for name in expected} == expected


def test_the_default_partition_is_that_of_the_job() -> None:
    assert build(parse(""), partition="gpu")["SLURM_JOB_PARTITION"] == "gpu"
    assert build(parse("-p big"), partition="gpu")["SLURM_JOB_PARTITION"] == "big"


def test_variables_that_only_later_releases_set_depend_on_the_trial() -> None:
    assert build(parse("--network=x"), SLURM_OOM_KILL_STEP="0")["SLURM_NETWORK"] == "x"
    assert "SLURM_TRES_PER_TASK" not in build(parse(""), SLURM_TRES_PER_TASK="cpu=4")
    assert build(parse("-c2"), SLURM_TRES_PER_TASK="cpu=4")["SLURM_TRES_PER_TASK"] == "cpu=4"


def test_each_component_of_a_heterogeneous_job_has_its_variables() -> None:
    found = build(parse("--gres=gpu:2 : --gres=gpu:1"))
    assert (found["SLURM_HET_SIZE"], found["SLURM_JOB_ID_HET_GROUP_1"], found["SLURM_PACK_SIZE"]) == ("2", "7", "2")
    assert "SLURM_JOB_ID_HET_GROUP_2" not in found


def test_input_variables_of_sbatch_are_passed_on_except_those_that_block_submissions() -> None:
    found = build(parse("", SBATCH_TIMELIMIT="5", SBATCH_RESERVATION="mine"))
    assert (found["SBATCH_TIMELIMIT"], found["SBATCH_RESERVATION"]) == ("5", "slurmwrap-prerun")
    assert "SBATCH_TIMELIMIT" not in build(parse("--export=NONE", SBATCH_TIMELIMIT="5"))


def test_export_all_in_small_letters_is_passed_on_as_it_is() -> None:
    options = make_trial_options(
        parse("--export=all"), partition=None, time_limit_s=60, cpus=None, mem_mib=None, output="/o"
    )
    assert options[-1] == "--export=all"
