"""Command lines of srun and mpirun, reduced to one task."""

from __future__ import annotations

import shlex

import pytest

from slurmwrap.prerun.static.launcher_args import (
    count_srun_tasks_of_trial,
    make_one_task_arguments,
    parse_export,
    parse_mpirun,
    parse_srun,
    read_first_of_multi_prog,
)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-N 4 -n32 --ntasks-per-node=8 --gpus-per-task 1",
        "-lu -K1 --kill-on-bad-exit --cpu-bind=none",
        "-lN4 -c=8 --mem 0 -o out.%t --exclusive",
        "--mpi pmix_v4 -w node1,node2 --export ALL,A=b -J name -t 1:00",
        "--container-image I --container-mounts /a:/b --no-container-mount-home",
        "--label --unbuffered --overlap --",
    ],
)
def test_the_command_begins_after_all_srun_options(options: str) -> None:
    call = parse_srun(shlex.split(f"{options} python train.py -N 2 --nodes 3"))
    assert call.command == ("python", "train.py", "-N", "2", "--nodes", "3")


def test_the_last_value_of_an_option_is_used() -> None:
    call = parse_srun(["--chdir=/a", "-D", "/b", "-D/c", "true"])
    assert (call.value("chdir"), call.given("label"), call.in_container) == ("/c", False, False)


def test_in_a_container_srun_runs_one_task_with_the_trial_directory_mounted() -> None:
    line = (
        "-N4 -n32 --ntasks-per-node=8 --container-image=I --container-mounts /a:/b --export=ALL,X=1 -o o.txt prog -n 3"
    )
    call = parse_srun(line.split())
    assert call.in_container
    assert make_one_task_arguments(call, mount="/t") == (
        *("--nodes=1", "--ntasks=1", "--container-image=I", "--export=ALL,X=1", "--container-mounts=/a:/b,/t:/t"),
        *("--", "prog", "-n", "3"),
    )


def test_assignments_in_the_export_option_are_parsed() -> None:
    assert parse_export("ALL,A=b,C=d=e,2=x,D") == {"A": "b", "C": "d=e"}
    assert parse_export(None) == {}


def test_task_0_of_a_multi_prog_file_is_found() -> None:
    text = "# comment\n4-6 hostname\n0,2-3 echo task:%t \\\n offset:%o\n"
    assert read_first_of_multi_prog(text) == "echo task:0   offset:0"
    assert read_first_of_multi_prog("* true") == "true"
    assert read_first_of_multi_prog("1 true") is None


@pytest.mark.parametrize(
    "line",
    [
        "-np 16 python a.py -n 2",
        "-n 4 --map-by ppr:4:node -mca btl tcp,self --bind-to none python a.py -n 2",
        "--hostfile h -x A=b -x PATH --allow-run-as-root python a.py -n 2",
        "-ppn 8 -genv A b -hosts n1,n2 python a.py -n 2 : -n 1 other",
        "--some-new-option value python a.py -n 2",
    ],
)
def test_the_command_begins_after_all_mpirun_options(line: str) -> None:
    call = parse_mpirun(line.split(), lambda word: word == "python")
    assert call.command == ("python", "a.py", "-n", "2")
    assert call.environment in ((), (("A", "b"),))


def test_environment_and_directory_options_of_mpirun_are_kept() -> None:
    call = parse_mpirun(["-x", "A=b", "-genv", "C", "d", "-wdir", "/w", "true"], lambda word: True)
    assert (call.environment, call.chdir, call.command) == ((("A", "b"), ("C", "d")), "/w", ("true",))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", 1),  # the task count of the trial: one launcher per node
        ("-N4 -n32", 2),
        ("-n 2 -N 2", 1),
        ("--ntasks-per-node=8", 2),
        ("--ntasks=16", 2),
        ("--nodes=1-2 -n1", 1),
        ("-n bogus", 1),
    ],
)
def test_a_trial_on_two_gpus_starts_the_tasks_of_one_node_and_at_most_one_per_gpu(options: str, expected: int) -> None:
    assert count_srun_tasks_of_trial(parse_srun([*options.split(), "true"]), per_node=1, nodes=2, gpus=2) == expected
    assert count_srun_tasks_of_trial(parse_srun([*options.split(), "true"]), per_node=1, nodes=2, gpus=1) == 1
