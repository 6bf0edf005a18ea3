"""The sbatch options of a trial: the same job on one GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.model.cluster import Node
from slurmwrap.prerun.trial import trial_spec
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.sbatch.job_request import (
    CpuUnit,
    GpuUnit,
    GsubOptions,
    JobRequest,
    MemUnit,
    Origin,
    ResourceShape,
    SbatchSetting,
    Script,
)
from slurmwrap.sbatch.option_table import OPTIONAL, REQUIRED, SbatchOption
from slurmwrap.sbatch.parse_request import parse_request

SHAPE = ResourceShape(
    nodes=2,
    tasks_per_node=1,
    gpus=16,
    gpus_per_node=8,
    gpu_unit=GpuUnit.GRES,
    cpus=64,
    cpu_unit=CpuUnit.PER_TASK,
    mem_mib=512_000,
    mem_unit=MemUnit.PER_NODE,
)
NODE = Node(name="n0", state="IDLE", cpus=128, mem_mib=1_000_000, gpus=8)


def make_request(shape: ResourceShape = SHAPE, **settings: str | None) -> JobRequest:
    given = tuple(
        SbatchSetting(option=name.replace("_", "-"), value=value, origin=Origin.COMMAND_LINE, where="command line")
        for name, value in settings.items()
    )
    script = Script(path="train.sbatch", name="train.sbatch", content=b"#!/bin/sh\n")
    return JobRequest(script=script, settings=given, shape=shape, chdir="/w")


def make_options(job_request: JobRequest, partition: str | None = None) -> tuple[str, ...]:
    return trial_spec.make_trial_options(
        job_request, partition=partition, time_limit_s=901, cpus=8, mem_mib=64_000, output="/t/slurm.out"
    )


BASE = (
    "--job-name=train.sbatch.prerun",
    "--chdir=/w",
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--gres=gpu:1",
    "--cpus-per-task=8",
    "--mem=64000M",
    "--time=0:16:00",
    "--output=/t/slurm.out",
    "--no-requeue",
)


def test_sizes_and_options_of_the_real_job_only_are_left_out() -> None:
    job_request = make_request(
        array="0-9",
        dependency="afterok:3",
        begin="now+1hour",
        switches="1@10:00",
        signal="B:USR1@60",
        mail_type="ALL",
        requeue=None,
        output="x-%j.out",
        nodelist="n1,n2",
        exclusive=None,
        hold=None,
        nodes="2",
        mem_per_gpu="1G",
    )
    assert make_options(job_request) == BASE


def test_account_and_partition_are_kept_and_the_container_is_that_of_the_script() -> None:
    job_request = make_request(
        job_name="bert",
        account="a",
        qos="q",
        constraint="a100&ib",
        reservation="r",
        partition="gpu",
        exclude="n7",
        container_image="docker://x",
        container_mounts="/a:/b",
    )
    assert make_options(job_request) == (
        "--job-name=bert.prerun",
        *BASE[1:],
        "--partition=gpu",
        *("--account=a", "--qos=q", "--constraint=a100&ib", "--reservation=r", "--exclude=n7"),
    )
    assert trial_spec.list_container_options(job_request) == (
        "--container-image=docker://x",
        "--container-mounts=/a:/b",
    )
    assert trial_spec.list_container_options(make_request(container_mounts="/a:/b")) == ()


def test_options_of_a_site_plugin_are_kept_in_order() -> None:
    job_request = parse_request(
        ["--bind=/a", "--trace", "--bind", "/b c", "--gres=gpu:1", "a.sh"], environ={}, cwd="/home/a",
        read_script=lambda _: b"#!/bin/sh\n#SBATCH --bind=/first --exclusive\n", read_stdin=lambda: b"",
        extra=[SbatchOption("bind", "", REQUIRED), SbatchOption("trace", "", OPTIONAL)],
    )  # fmt: skip
    assert make_options(job_request)[-4:] == ("--bind=/first", "--bind=/a", "--trace", "--bind=/b c")


def test_the_partition_of_the_site_replaces_that_of_the_job() -> None:
    assert "--partition=prerun" in make_options(make_request(partition="gpu"), "prerun")
    assert "--partition=gpu" in make_options(make_request(partition="gpu"), "")


@pytest.mark.parametrize("constraint", ["[rack1|rack2]", "a100*2&ib*1"])
def test_constraints_that_count_nodes_are_left_out(constraint: str) -> None:
    assert make_options(make_request(constraint=constraint)) == BASE


@pytest.mark.parametrize(
    ("gres", "kind", "expected"),
    [
        ("gpu:8", None, "--gres=gpu:1"),
        ("gpu:a100:8,lscratch:100,shard:2", "a100", "--gres=gpu:a100:1,lscratch:100,shard:2"),
        ("none", None, "--gres=gpu:1"),
    ],
)
def test_one_gpu_of_the_same_type_is_requested(gres: str, kind: str | None, expected: str) -> None:
    assert expected in make_options(make_request(replace(SHAPE, gpu_type=kind), gres=gres))


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("ALL,A=b", ["--export=ALL,A=b"]),
        ("NIL", ["--export=" + ",".join(trial_spec._WRAPPER_VARIABLES)]),
        ("NONE", ["--export=" + ",".join(trial_spec._WRAPPER_VARIABLES), "--get-user-env"]),
        ("A,B=c", ["--export=A,B=c," + ",".join(trial_spec._WRAPPER_VARIABLES)]),
    ],
)
def test_the_parameters_of_the_wrapper_are_exported(export: str, expected: list[str]) -> None:
    assert list(make_options(make_request(export=export))[len(BASE) :]) == expected


def test_export_all_is_added_if_the_job_has_an_export_file() -> None:
    export_options = [word for word in make_options(make_request(export_file="env0")) if word.startswith("--export")]
    # a newer sbatch ignores the file without --export=ALL; the code that writes the file adds --export-file
    assert export_options == ["--export=ALL"]


def test_input_variables_of_sbatch_are_removed_from_the_environment() -> None:
    environ = {"SBATCH_ARRAY_INX": "0-9", "SLURM_CONF": "/c", "HOME": "/h"}
    assert trial_spec.make_trial_environ(environ) == {"SLURM_CONF": "/c", "HOME": "/h"}


@pytest.mark.parametrize(
    ("shape", "node", "expected"),
    [
        (SHAPE, None, (8, 64_000)),
        (replace(SHAPE, cpus=8, mem_mib=24_576), None, (4, 16_384)),
        (replace(SHAPE, gpus=1, gpus_per_node=1, nodes=1, cpus=2, mem_mib=8000), None, (2, 8000)),
        (replace(SHAPE, cpus=6, cpu_unit=CpuUnit.PER_GPU, mem_mib=30_000, mem_unit=MemUnit.PER_GPU), None, (6, 30_000)),
        (replace(SHAPE, mem_mib=4000, mem_unit=MemUnit.PER_CPU), None, (8, 32_000)),
        (replace(SHAPE, mem_mib=0), NODE, (8, 125_000)),
        (replace(SHAPE, mem_mib=0), None, (8, None)),
        (ResourceShape(gpus=4, nodes=1), NODE, (16, 125_000)),
        (ResourceShape(gpus=4, nodes=1), None, (None, None)),
        (replace(SHAPE, tasks_per_node=None, tasks=16, cpus=8), None, (8, 64_000)),
    ],
)
def test_cpus_and_memory_are_the_share_of_one_gpu_with_a_minimum(
    shape: ResourceShape, node: Node | None, expected: tuple[int | None, int | None]
) -> None:
    assert trial_spec.compute_trial_shape(make_request(shape), node) == expected


def test_a_trial_with_less_memory_than_a_node_of_the_job_is_recognized() -> None:
    assert trial_spec.is_memory_shrunk(make_request(), 64_000)
    assert not trial_spec.is_memory_shrunk(make_request(replace(SHAPE, gpus=1, gpus_per_node=1, nodes=1)), 512_000)
    assert trial_spec.is_memory_shrunk(make_request(replace(SHAPE, mem_mib=None, mem_unit=MemUnit.NONE)), 64_000)


def test_variables_that_the_real_allocation_would_set_are_listed() -> None:
    job_request = make_request(
        replace(SHAPE, gpu_unit=GpuUnit.PER_NODE), gpus_per_node="a100:8", job_name="bert", array="3-9%2"
    )
    found = trial_spec.list_missing_variables(job_request)
    assert found["SLURM_JOB_NAME"] == "bert"
    assert found["SLURM_GPUS_PER_NODE"] == "a100:1"
    assert (found["SLURM_ARRAY_TASK_ID"], found["SLURM_ARRAY_TASK_COUNT"]) == ("3", "7")


def make_request_with_gpus(gpus: int | None, shape: ResourceShape = SHAPE) -> JobRequest:
    return replace(make_request(shape), own=GsubOptions(prerun_gpus=gpus))


def test_a_trial_has_one_gpu_or_the_requested_number_up_to_that_of_the_job() -> None:
    assert trial_spec.count_trial_gpus(make_request_with_gpus(None), NODE) == 1
    assert trial_spec.count_trial_gpus(make_request_with_gpus(4), NODE) == 4
    assert trial_spec.count_trial_gpus(make_request_with_gpus(64), None) == 16


def test_more_gpus_than_a_node_has_is_an_error_with_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        trial_spec.count_trial_gpus(make_request_with_gpus(9), NODE)
    assert "no node that can run this job has more than 8 GPUs" in str(caught.value)
    assert caught.value.hint == "ask for at most --prerun-gpus=8"
    with pytest.raises(UsageError):
        trial_spec.count_trial_gpus(make_request_with_gpus(0), NODE)


@pytest.mark.parametrize(("per_node", "gpus", "expected"), [(1, 4, 1), (8, 4, 4), (8, 1, 1), (2, 4, 2)])
def test_a_trial_has_the_tasks_of_one_node_and_at_most_one_per_gpu(per_node: int, gpus: int, expected: int) -> None:
    assert trial_spec.count_trial_tasks(make_request(replace(SHAPE, tasks_per_node=per_node)), gpus) == expected


def test_two_gpus_get_twice_the_share_and_two_tasks_share_the_cpus() -> None:
    job_request = make_request(replace(SHAPE, tasks_per_node=8, cpus=8, gpu_unit=GpuUnit.PER_TASK), gpus_per_task="1")
    assert trial_spec.compute_trial_shape(job_request, None, 2) == (16, 128_000)
    assert trial_spec.compute_trial_shape(job_request, None, 8) == (64, 512_000)
    found = trial_spec.make_trial_options(
        job_request, partition=None, time_limit_s=60, cpus=16, mem_mib=None, output="/o", gpus=2, tasks=2
    )
    assert {"--ntasks=2", "--ntasks-per-node=2", "--gres=gpu:2", "--cpus-per-task=8"} <= set(found)
    assert trial_spec.list_missing_variables(job_request, 2)["SLURM_GPUS_PER_TASK"] == "1"


def test_a_spec_is_unchanged_after_a_json_round_trip() -> None:
    spec = TrialSpec(trial_dir="/t", script="/t/s", args=("a", "b"), environment={"A": "b"}, inputs=("/x",), mem_mib=3)
    plain = json.loads(json.dumps(trial_spec.spec_to_json(spec)))
    assert trial_spec.spec_from_json(plain) == spec
    assert trial_spec.spec_from_json({**plain, "from_a_newer_gsub": 1}) == spec
    assert (spec.step_dir, spec.output) == ("/t/steps", "/t/output")
