"""--pack: how an array is folded, and which jobs are not."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.pack_option import PackOption, PackPlan, find_packing_obstacle, make_pack_plan, parse_pack
from slurmwrap.sbatch.parse_request import parse_request

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\n"


def parse(*words: str, script: bytes = SCRIPT, environ: dict[str, str] | None = None) -> JobRequest:
    return parse_request(
        [*words, "sweep.sbatch"],
        environ=environ or {},
        cwd="/home/alice",
        read_script=lambda path: script,
        read_stdin=lambda: b"",
    )


def fold(members: int, *words: str, script: bytes = SCRIPT) -> tuple[PackPlan, dict[str, str | None]]:
    plan = make_pack_plan(parse(*words, script=script), members, "as asked")
    return plan, {change.option: change.value for change in plan.changes}


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("4", PackOption(members=4)),
        ("auto", PackOption(members=None)),
        ("8,mps", PackOption(members=8, mps=True)),
        ("auto,mps", PackOption(members=None, mps=True)),
    ],
)
def test_values_of_pack(text: str, option: PackOption) -> None:
    assert parse_pack(text) == option


@pytest.mark.parametrize("text", ["0", "33", "-1", "four", "4,", "4,cuda", "4 ", ""])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number of members"):
        parse_pack(text)


def test_the_option_is_read_from_command_line_script_and_variable() -> None:
    assert parse("--pack").own.pack == "auto"
    assert parse("--pack=4,mps").own.pack == "4,mps"
    assert parse(script=b"#!/bin/sh\n#GSUB --pack=2\ntrue\n").own.pack == "2"
    assert parse(environ={"GSUB_PACK": "3"}).own.pack == "3"
    assert parse().own.pack is None
    with pytest.raises(UsageError, match="Invalid --pack") as wrong:
        parse("--pack=many")
    assert "from 1 to 32" in wrong.value.hint


@pytest.mark.parametrize(
    ("array", "members", "folded"),
    [
        ("0-31", 4, "0-28:4"),
        ("0-31", 5, "0-30:5"),
        ("1-3", 2, "1,3"),
        ("0-5", 8, "0"),
        ("0-9:3", 2, "0,6"),
        ("1,2,3,7,9", 2, "1,3,9"),
        ("0-31%8", 4, "0-28:4%2"),
        ("0-31%9", 4, "0-28:4%2"),
        ("0-31%3", 4, "0-30:3%1"),
    ],
)
def test_the_array_has_one_task_for_each_group_of_members(array: str, members: int, folded: str) -> None:
    plan, changes = fold(members, f"--array={array}")
    assert changes["array"] == folded == plan.array
    # No member is lost, and each task has the index of its first member.
    tasks = expand_indices(folded)
    assert plan.indices == expand_indices(array)
    assert tasks == plan.indices[:: plan.members]
    assert plan.tasks == len(tasks)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"cpus-per-task": "4"}),
        (("-c", "3", "--mem=10G"), {"cpus-per-task": "12", "mem": "40960M"}),
        (("--cpus-per-gpu=2", "--mem-per-gpu=1000"), {"cpus-per-gpu": "8", "mem-per-gpu": "4000M"}),
        (("-c2", "--mem-per-cpu=2G"), {"cpus-per-task": "8"}),
        (("--mem=0",), {"cpus-per-task": "4"}),
    ],
)
def test_a_task_asks_for_the_cpus_and_memory_of_its_members(words: tuple[str, ...], expected: dict[str, str]) -> None:
    _, changes = fold(4, "--array=0-7", *words)
    assert {name: value for name, value in changes.items() if "cpu" in name or "mem" in name} == expected


def test_the_tasks_write_next_to_the_members_files() -> None:
    _, changes = fold(2, "--array=0-3", "--output=logs/%x/%a.out", "--error=%a.err")
    assert (changes["output"], changes["error"]) == ("logs/%x/slurm-%A_%a.pack.out", "logs/%x/slurm-%A_%a.pack.err")
    _, changes = fold(2, "--array=0-3")
    assert changes["output"] == "slurm-%A_%a.pack.out"
    assert "error" not in changes
    assert changes["job-name"] == "sweep.sbatch"
    _, changes = fold(2, "--array=0-3", "--output=/dev/null")
    assert changes["output"] == "slurm-%A_%a.pack.out"
    _, changes = fold(2, "--array=0-3", "-J", "mine")
    assert "job-name" not in changes


@pytest.mark.parametrize(
    ("words", "script", "why"),
    [
        ((), SCRIPT, "no --array"),
        (("--array=0-3", "--gres=gpu:2"), SCRIPT, "has 2 GPUs"),
        (("--array=0-3", "-N2"), SCRIPT, "several nodes"),
        (("--array=0-3", "-n4"), SCRIPT, "several processes"),
        (("--array=0-3", "--exclusive"), SCRIPT, "whole node"),
        (("--array=0-3", "--container=/img"), SCRIPT, "--container starts"),
        (("--array=0-3", "--stop-when=diverged"), SCRIPT, "do not distinguish"),
        (("--array=0-3",), SCRIPT + b"scontrol requeue $SLURM_JOB_ID\n", "its own job"),
    ],
)
def test_jobs_that_cannot_be_packed_are_refused_with_the_reason(
    words: tuple[str, ...], script: bytes, why: str
) -> None:
    assert why in find_packing_obstacle(parse(*words, script=script))


@pytest.mark.parametrize(
    "words", [("--dependency=afterok:5",), ("-G1",), ("--gpus-per-node=a100:1",), ("-N1", "-n1"), ("--mem=1G",)]
)
def test_an_array_with_one_gpu_for_each_task_can_be_packed(words: tuple[str, ...]) -> None:
    script = SCRIPT.replace(b"--gres=gpu:1", b"-J x") if words[0][:3] in ("-G1", "--g") else SCRIPT
    assert find_packing_obstacle(parse("--array=0-3", *words, script=script)) == ""


def test_what_members_share_is_said() -> None:
    plan, _ = fold(2, "--array=0-3", "-t", "60", script=SCRIPT + b"mkdir /tmp/$SLURM_JOB_ID\n")
    assert any("time limit" in remark for remark in plan.remarks)
    assert any("SLURM_JOB_ID" in remark for remark in plan.remarks)
    plan, _ = fold(2, "--array=0-3")
    assert plan.remarks == ()
