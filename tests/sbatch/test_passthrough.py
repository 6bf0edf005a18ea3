"""Calls that pass through to sbatch unchanged, and the reason given for each."""

from __future__ import annotations

import pytest

from slurmwrap.config.load_config import Submit
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.passthrough import (
    count_array_tasks,
    find_passthrough_reason,
    find_prerun_reason,
    find_site_reason,
    find_switch_off_reason,
    remove_outer_job,
)


def ask(*argv: str, script: bytes = b"#!/bin/sh\n", environ: dict[str, str] | None = None) -> JobRequest:
    return parse_request(
        (*argv, "a.sh"), environ=environ or {}, cwd="/", read_script=lambda _: script, read_stdin=lambda: b""
    )


@pytest.mark.parametrize(
    ("value", "off"),
    [("", False), ("0", False), ("no", False), ("FALSE", False), ("1", True), ("yes", True), ("whatever", True)],
)
def test_gsub_pass_switches_gsub_off(value: str, off: bool) -> None:
    assert find_switch_off_reason({"GSUB_PASS": value}) == ("GSUB_PASS is set." if off else None)
    assert find_switch_off_reason({}) is None


@pytest.mark.parametrize(
    ("argv", "more", "said"),
    [
        (["-G1"], {}, None),
        (["-N1"], {}, "no GPU"),
        (["--help"], {}, "--help"),
        (["-V"], {}, "--version"),
        (["-G1", "--test-only"], {}, "--test-only"),
        (["-G1", ":", "-G1"], {}, None),
        (["-N1", ":", "-G1"], {}, "Heterogeneous"),
        (["-G1", "--prerun=off", ":", "-G1"], {}, "Heterogeneous"),
        (["-G1", "--dry-run"], {"script": b"#!/bin/sh\n#SBATCH hetjob\n"}, "Heterogeneous"),
        (["-G1"], {"script": b"#!/bin/sh\n#PBS -N x\n"}, "#PBS"),
        (["-G1", "--ignore-pbs"], {"script": b"#!/bin/sh\n#PBS -N x\n"}, None),
        (["-G1"], {"environ": {"SLURM_JOB_ID": "77"}}, "inside job 77"),
        (["-G1", "-Mother"], {}, "--clusters"),
        (["-G1", "--uid=1000"], {}, "another user"),
        (["-G1", "--prerun=off", "--no-tune", "--no-place", "--no-retry"], {}, "nothing to do"),
        (["-G1", "--prerun=off", "--no-tune", "--no-place"], {}, None),
        (["-G1", "--external"], {}, "external"),
        (["-G1", "--export-file=3"], {}, "open file"),
        (["-G1"], {"environ": {"SBATCH_CLUSTERS": "other"}}, "--clusters"),
    ],
)
def test_calls_that_gsub_does_not_handle_are_passed_through_with_a_reason(argv, more, said: str | None) -> None:
    reason = find_passthrough_reason(ask(*argv, **more))
    assert reason is None if said is None else said in (reason or "")


def test_inside_a_job_gsub_works_at_a_terminal_and_not_in_a_batch_script() -> None:
    request = ask("-G1", environ={"SLURM_JOB_ID": "77"})
    assert find_passthrough_reason(request, at_terminal=True) is None
    assert "inside job 77" in (find_passthrough_reason(request, at_terminal=False) or "")


def test_inside_a_pre_run_nothing_is_submitted() -> None:
    assert find_prerun_reason({"SLURMWRAP_PRERUN": "1"}) is not None
    assert find_prerun_reason({"SLURMWRAP_PRERUN": ""}) is None


def test_variables_of_the_outer_job_are_not_passed_to_a_new_job() -> None:
    outer = ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_MEM_PER_CPU", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_NNODES"]
    outer += ["SLURM_STEP_NODELIST", "SLURM_SRUN_COMM_PORT", "SLURM_PTY_PORT", "SLURMD_NODENAME", "SLURM_NODELIST"]
    kept = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_HINT", "SLURM_TIME_FORMAT", "SLURMWRAP_CONFIG", "HOME", "SBATCH_QOS"]
    assert list(remove_outer_job(dict.fromkeys([*outer, *kept], "x"))) == kept
    alone = {"SLURM_MEM_PER_CPU": "100"}
    assert remove_outer_job(alone) == alone  # no outer job: the variable is the user's own


# Task counts of sbatch 22.05.8 for the same values: `sbatch --hold --array=... ; squeue -r`.
@pytest.mark.parametrize(
    ("indices", "tasks"),
    [
        ("0-3%2", 4),
        ("[1-5]", 5),
        ("1,3,5-7", 5),
        ("0-10:5", 3),
        ("0-9:5", 2),
        (" 1", 1),
        ("5", 1),
        ("", 0),
        ("0x7", 0),
        ("1-", 0),
        ("9-1", 0),
        ("0-999999999999", 1_000_000_000_000),
    ],
)
def test_the_tasks_of_an_array_are_counted(indices: str, tasks: int) -> None:
    assert count_array_tasks(indices) == tasks


RULES = Submit(
    array_threshold=100,
    pass_partitions=("interactive*", "jupyter"),
    pass_accounts=("teaching",),
    pass_qos=("debug",),
    pass_users=("robot-?",),
)


@pytest.mark.parametrize(
    ("argv", "user", "said"),
    [
        ((), "ada", None),
        (("--array=0-99%4",), "ada", None),
        (("--array=0-100%4",), "ada", "The array has 101 tasks, more than 100 (submit.array_threshold)."),
        (("-pinteractive-a100",), "ada", "Jobs for partition interactive-a100 are passed on (submit.pass_partitions)."),
        (("-pgpu,jupyter",), "ada", "Jobs for partition jupyter are passed on (submit.pass_partitions)."),
        (("-pgpu", "-Ateach"), "ada", None),
        (("-pgpu", "-Ateaching"), "ada", "Jobs for account teaching are passed on (submit.pass_accounts)."),
        (("-qdebug",), "ada", "Jobs for QOS debug are passed on (submit.pass_qos)."),
        ((), "robot-1", "Jobs of user robot-1 are passed on (submit.pass_users)."),
        ((), "robot-10", None),
    ],
)
def test_a_call_that_matches_a_site_rule_is_passed_through(argv: tuple[str, ...], user: str, said: str | None) -> None:
    assert find_site_reason(ask("-G1", *argv), RULES, user) == said


def test_site_rules_apply_to_options_in_the_script_and_in_variables() -> None:
    in_script = ask("-G1", script=b"#!/bin/sh\n#SBATCH --partition=jupyter\n")
    in_variable = ask("-G1", environ={"SBATCH_PARTITION": "jupyter", "SBATCH_ARRAY_INX": "0-100"})
    partition = "Jobs for partition jupyter are passed on (submit.pass_partitions)."
    assert find_site_reason(in_script, RULES, "ada") == partition
    assert find_site_reason(in_variable, RULES, "ada") == (
        "The array has 101 tasks, more than 100 (submit.array_threshold)."
    )
    elsewhere = ask("-G1", "-pgpu", script=b"#!/bin/sh\n#SBATCH --partition=jupyter\n")
    assert find_site_reason(elsewhere, RULES, "ada") is None


def test_by_default_only_very_large_arrays_are_passed_through() -> None:
    jobs = [ask("-G1", *more) for more in ((), ("--array=0-999",), ("--array=0-1000",))]
    assert [find_site_reason(job, Submit(), "ada") is None for job in jobs] == [True, True, False]
    assert find_site_reason(jobs[2], Submit(array_threshold=0), "ada") is None
    assert find_site_reason(jobs[0], Submit(enabled=False), "ada") == "gsub is switched off (submit.enabled)."
