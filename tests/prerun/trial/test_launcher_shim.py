"""The shims of srun and mpirun inside a trial, run as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A directory with an srun and an mpirun in place of the real ones; they print their arguments."""
    (tmp_path / "real").mkdir()
    for name in ("srun", "mpirun"):
        program = tmp_path / "real" / name
        program.write_text('#!/bin/sh\necho real "$@"\n')
        program.chmod(0o755)
    return tmp_path / "real"


def run_shim(real: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "slurmwrap.prerun.trial.launcher_shim", words[0], "/shims", *words[1:]],
        env={
            "PATH": f"/shims:{real}:/usr/bin:/bin",
            "SLURMWRAP_TRIAL_DIR": "/t",
            "SLURMWRAP_INJECT": "/inj",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


def test_one_task_runs_directly_with_the_variables_of_srun(real: Path) -> None:
    script = 'echo "$SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_NODELIST $A $PYTHONPATH $PWD"'
    line = ["srun", "-N4", "-n32", "--export=ALL,A=b", "-D", "/usr", "sh", "-c", script]
    assert run_shim(real, *line, SLURMD_NODENAME="n3", PYTHONPATH="/x") == (0, "0 1 n3 b /inj:/x /usr\n", "")


def test_the_exit_code_of_the_task_is_returned(real: Path) -> None:
    assert run_shim(real, "srun", "-n8", "sh", "-c", "exit 9")[0] == 9


def test_a_missing_program_fails_as_under_slurm(real: Path) -> None:
    assert run_shim(real, "srun", "-n8", "no-such-program", "x") == (
        2,
        "",
        "slurmstepd: error: execve(): no-such-program: No such file or directory\n",
    )


def test_a_container_is_started_by_the_real_srun(real: Path) -> None:
    code, output, errors = run_shim(real, "srun", "-N4", "-n32", "--container-image=I", "python", "a.py", "-n", "2")
    start, _, passed = output.partition(" --container-env=")
    names, _, rest = passed.partition(" ")
    assert (code, errors, start) == (0, "", "real --nodes=1 --ntasks=1 --container-image=I")
    assert {"SLURMWRAP_TRIAL_DIR", "SLURMWRAP_INJECT", "SLURMWRAP_SHIMS"} <= set(names.split(","))
    assert rest == "--container-mounts=/t:/t -- /bin/sh /t/inside/enter python a.py -n 2\n"


@pytest.mark.parametrize("question", ["--version", "--help", "-V"])
def test_help_and_version_options_go_to_the_real_srun(real: Path, question: str) -> None:
    assert run_shim(real, "srun", question) == (0, f"real {question}\n", "")


def test_a_multi_prog_file_runs_task_0(real: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("1-3 false\n0 echo task %t\n")
    assert run_shim(real, "srun", "-n4", "--multi-prog", str(tmp_path / "conf")) == (0, "task 0\n", "")


def test_mpirun_starts_one_rank(real: Path) -> None:
    script = 'echo "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $B"'
    assert run_shim(real, "mpirun", "-np", "16", "-x", "B=c", "sh", "-c", script) == (0, "0 1 c\n", "")
    assert run_shim(real, "mpirun", "--version") == (0, "real --version\n", "")


def test_a_launcher_that_is_not_installed_gives_command_not_found(tmp_path: Path) -> None:
    code, _, output = run_shim(tmp_path, "mpiexec", "--version")
    assert (code, output) == (127, "mpiexec: command not found\n")


def test_shims_have_valid_shell_syntax() -> None:
    folder = Path(os.path.dirname(__file__)).parent.parent.parent / "slurmwrap" / "prerun" / "trial" / "shims"  # noqa: PTH120
    for shim_file in folder.iterdir():
        shell = "bash" if shim_file.suffix == ".sh" else "dash"
        assert subprocess.run([shell, "-n", str(shim_file)], capture_output=True).stderr == b""


TWO_GPUS = {"SLURMWRAP_TRIAL_GPUS": "2", "SLURMWRAP_TRIAL_TASKS": "2", "SLURMWRAP_JOB_NODES": "2"}


def test_on_two_gpus_two_tasks_run(real: Path) -> None:
    script = (
        'echo "$SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_GTIDS $CUDA_VISIBLE_DEVICES $SLURMWRAP_TRIAL_GPUS"'
    )
    code, output, _ = run_shim(real, "srun", "-N4", "-n32", "sh", "-c", script, CUDA_VISIBLE_DEVICES="2,5", **TWO_GPUS)
    assert (code, sorted(output.splitlines())) == (0, ["0/2 0 0,1 2,5 1", "1/2 1 0,1 2,5 1"])


def test_tasks_see_only_their_own_gpu_if_srun_would_bind_it(real: Path) -> None:
    line = ["srun", "-N2", "-n16", "--gpus-per-task=1", "sh", "-c", 'echo "$SLURM_PROCID $CUDA_VISIBLE_DEVICES"']
    output = run_shim(real, *line, CUDA_VISIBLE_DEVICES="2,5", **TWO_GPUS)[1]
    assert sorted(output.splitlines()) == ["0 2", "1 5"]
    line[-1] = 'echo "$SLURM_PROCID $SLURM_STEP_GPUS"'
    output = run_shim(real, *line, CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="4,7", **TWO_GPUS)[1]
    assert sorted(output.splitlines()) == ["0 4", "1 7"]


def test_one_task_per_node_stays_one_task_with_all_gpus(real: Path) -> None:
    line = ["srun", "--ntasks-per-node=1", "sh", "-c", 'echo "$SLURM_NTASKS $SLURMWRAP_TRIAL_GPUS"']
    assert run_shim(real, *line, **TWO_GPUS)[1] == "1 2\n"


def test_the_exit_code_of_a_failed_task_is_returned(real: Path) -> None:
    script = "if [ $SLURM_PROCID = 0 ]; then exit 7; else exit 0; fi"
    assert run_shim(real, "srun", "-n4", "sh", "-c", script, **TWO_GPUS)[0] == 7


def test_the_step_id_is_unset_because_the_step_has_no_pmi(real: Path) -> None:
    # measured with Open MPI 4.1.4: with SLURM_STEP_ID MPI_Init fails ("direct launched"), without it the process starts
    # alone; it does not read SLURM_STEPID
    line = ["srun", "-n8", "sh", "-c", 'echo "${SLURM_STEP_ID-unset} ${SLURM_STEPID-unset} $SLURM_STEP_NUM_TASKS"']
    assert run_shim(real, *line, SLURM_STEP_ID="4", SLURM_STEPID="4")[1] == "unset 0 1\n"


JOB = {"SLURM_JOB_NAME": "train", "SLURM_JOB_GPUS": "3", "SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "4"}
THREADS = {"SLURM_CPU_BIND": "quiet,threads", "SLURM_CPU_BIND_TYPE": "threads", "SLURM_CPU_BIND_LIST": ""}


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ("", {}, {"SLURM_STEP_GPUS": "3", "SLURM_DISTRIBUTION": "cyclic", "SRUN_DEBUG": "3"}),
        ("", {}, {"SLURM_JOB_NAME": "train", "SLURM_STEP_NUM_TASKS": "1"}),
        ("", {}, {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": "4"}),
        ("", {}, {"SLURM_NTASKS_PER_NODE": None, "SLURM_CPU_BIND": None, "SLURM_MEM_BIND": None}),
        ("", {"SLURM_NTASKS_PER_NODE": "8"}, {"SLURM_NTASKS_PER_NODE": "1"}),
        ("--ntasks-per-node=8", {}, {"SLURM_NTASKS_PER_NODE": None}),
        ("", {"SLURM_DISTRIBUTION": "pack"}, {"SLURM_DISTRIBUTION": "cyclic,pack"}),
        ("-m block:*", {"SLURM_DISTRIBUTION": "cyclic"}, {"SLURM_DISTRIBUTION": "block:cyclic"}),
        ("-c 2", {"SLURM_CPUS_PER_TASK": "8"}, {"SLURM_CPUS_PER_TASK": "2"}),
        ("-c 32", {}, {"SLURM_CPUS_PER_TASK": "4"}),
        ("-J step", {}, {"SLURM_JOB_NAME": "step"}),
        ("-vv", {}, {"SRUN_DEBUG": "5"}),
        ("-O", {}, {"SLURM_OVERCOMMIT": "1"}),
        ("", {"SLURM_HINT": "nomultithread"}, THREADS),
        ("--threads-per-core=1", {}, {**THREADS, "SLURM_THREADS_PER_CORE": "1"}),
        ("--cpu-bind=verbose,none", {}, {"SLURM_CPU_BIND": "verbose,none", "SLURM_CPU_BIND_VERBOSE": "verbose"}),
        ("--cpu-bind=map_cpu:0,1", {}, {"SLURM_CPU_BIND": "quiet,map_cpu:0,1", "SLURM_CPU_BIND_LIST": "0,1"}),
        ("--ntasks-per-core=1", {}, {"SLURM_CPU_BIND": "quiet,cores", "SLURM_NTASKS_PER_CORE": "1"}),
        ("", {"SLURM_MEM_BIND": "prefer,local"}, {"SLURM_MEM_BIND": "quiet,prefer,local", "SLURM_MEM_BIND_LIST": ""}),
        ("--mem-bind=map_mem:0,1", {}, {"SLURM_MEM_BIND_TYPE": "map_mem:", "SLURM_MEM_BIND": "quiet,map_mem:0,1"}),
        ("--gpu-bind=closest", {}, {"SLURMD_TRES_BIND": "gpu:closest"}),
        ("", {"SLURM_NTASKS_PER_GPU": "2"}, {"SLURMD_TRES_BIND": "gpu:single:2", "SLURM_NTASKS_PER_TRES": "2"}),
        ("--cpu-freq=low", {}, {"SLURM_CPU_FREQ_REQ": "Low"}),
    ],
)  # fmt: skip
def test_tasks_have_the_variables_of_srun(
    real: Path, options: str, environ: dict[str, str], expected: dict[str, str | None]
) -> None:
    given = {**JOB, **environ, "SLURM_CONF": str(real / "none")}
    output = run_shim(real, "srun", *options.split(), "env", **given)[1]
    found = dict(row.split("=", 1) for row in output.splitlines())
    assert {name: found.get(name) for name in expected} == expected


def test_with_the_affinity_plugin_tasks_get_a_mask(real: Path) -> None:
    (real / "slurm.conf").write_text("ClusterName=c\nTaskPlugin=task/cgroup,task/affinity\n")
    output = run_shim(real, "srun", "sh", "-c", 'echo "$SLURM_CPU_BIND"', SLURM_CONF=str(real / "slurm.conf"))[1]
    mask = sum(1 << cpu for cpu in os.sched_getaffinity(0))
    assert output == f"quiet,mask_cpu:0x{mask:X}\n"


def test_the_real_srun_gets_the_variables_of_the_allocation(real: Path) -> None:
    (real / "srun").write_text(
        '#!/bin/sh\necho "${SLURM_MEM_PER_GPU-unset} ${SLURM_MEM_PER_NODE-unset} $SLURM_JOB_NAME"\n'
    )
    known = json.dumps({"SLURM_MEM_PER_GPU": None, "SLURM_MEM_PER_NODE": "16000"})
    environ = {"SLURMWRAP_ALLOCATION": known, "SLURM_MEM_PER_GPU": "3072", "SLURM_JOB_NAME": "train"}
    assert run_shim(real, "srun", "--container-image=I", "true", **environ)[1] == "unset 16000 train\n"


def test_only_the_first_of_several_programs_runs(real: Path) -> None:
    line = ["srun", "--het-group=0", "-n1", "echo", "first", ":", "--het-group=1", "-n8", "echo", "second"]
    assert run_shim(real, *line)[1] == "first\n"
    assert run_shim(real, "mpirun", "-n", "1", "echo", "first", ":", "-n", "3", "echo", "second")[1] == "first\n"


def test_mpirun_on_two_gpus_calls_the_real_mpirun_with_two_ranks(real: Path) -> None:
    line = [
        "mpirun",
        "-np",
        "16",
        "--hostfile",
        "h",
        "--map-by",
        "ppr:8:node",
        "-x",
        "A=b",
        "python",
        "a.py",
        "-np",
        "3",
    ]
    assert run_shim(real, *line, **TWO_GPUS)[1] == "real -np 2 python a.py -np 3\n"


@pytest.mark.parametrize("name", ["mpiexec.hydra", "orterun", "prterun", "horovodrun", "mpirun.openmpi"])
def test_other_names_of_mpirun_start_one_rank(real: Path, name: str) -> None:
    assert run_shim(real, name, "-np", "8", "-H", "n1:4,n2:4", "sh", "-c", "echo $PMI_RANK/$PMI_SIZE") == (
        0,
        "0/1\n",
        "",
    )


def test_the_shims_are_on_path_again_after_path_was_reset(real: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "SLURMWRAP_SHIMS": "/shims"}
    output = run_shim(real, "srun", "-n8", "sh", "-c", 'echo "$PATH"', **environ)[1]
    assert output.startswith("/shims:")
