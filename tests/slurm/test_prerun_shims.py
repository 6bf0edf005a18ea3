"""Pre-runs on a real Slurm: several GPUs, a command instead of the script, shims instead of Slurm's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab, run_as

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE = USERS[0]
WORK = """\
import os, slurmwrap_step
print("rank", os.environ["SLURM_PROCID"], "of", os.environ["SLURM_NTASKS"], flush=True)
for step in range(9):
    slurmwrap_step.step()
"""
HEAD = "#!/bin/sh\n#SBATCH -N 2 --ntasks-per-node=4 --gres=gpu:4 -c 1 --mem=200\n"


def run_prerun(lab: Lab, script: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    work = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip()) / "shims"
    run_as(ALICE, ["mkdir", "-p", work])
    run_as(ALICE, ["tee", work / "work.py"], stdin=WORK)
    run_as(ALICE, ["tee", work / "job.sh"], stdin=HEAD + script)
    words = ("--prerun=only", "--rehearse=off", "--json", *options, "job.sh")
    done = lab.run([sys.executable, "-m", "slurmwrap.gsub.gsub_main", *words], ALICE, work)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}


def list_jobs(lab: Lab) -> list[str]:
    return lab.run(["squeue", "--noheader", "--user", ALICE, "--format", "%i %j %r"], ALICE).stdout.split("\n")


def test_a_pre_run_on_two_gpus_runs_two_tasks_on_one_node(lab: Lab) -> None:
    done, verdict = run_prerun(lab, f"/usr/bin/srun {sys.executable} work.py\n", "--prerun-gpus=2")
    assert done.returncode == 0, done.stderr
    assert verdict["reason"] == "3 steps ran on 2 GPUs (counted by step())"


def test_a_pre_run_on_more_gpus_than_a_node_has_is_refused(lab: Lab) -> None:
    done, _ = run_prerun(lab, "true\n", "--prerun-gpus=99")
    assert done.returncode == 255
    assert "no node that can run this job has more than" in done.stderr


@pytest.mark.slow
def test_prerun_command_runs_instead_of_the_script(lab: Lab) -> None:
    done, verdict = run_prerun(lab, "exit 3\n", f"--prerun-command={sys.executable} work.py")
    assert (done.returncode, verdict["reason"]) == (
        0,
        "3 steps ran on one GPU by --prerun-command (counted by step())",
    ), done.stderr


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("sbatch", marks=pytest.mark.slow),
        "/usr/bin/sbatch",
        pytest.param("env -i SLURM_CONF=$SLURM_CONF /usr/bin/sbatch", id="env-i"),
    ],
)
def test_a_script_that_submits_itself_again_submits_nothing_in_its_pre_run(lab: Lab, call: str) -> None:
    if call.startswith("env") and run_as(ALICE, ["unshare", "-Urm", "true"]).returncode:
        pytest.skip("this kernel gives users no namespace")
    script = f"{call} --job-name=next --gres=gpu:1 --mem=200 --hold job.sh\n/usr/bin/srun {sys.executable} work.py\n"
    done, verdict = run_prerun(lab, script)
    assert (done.returncode, verdict["verdict"], verdict["steps"]) == (0, "pass", 3), done.stderr
    assert not [row for row in list_jobs(lab) if " next " in row]


def test_failed_commands_of_the_script_are_named_although_the_pre_run_passed(lab: Lab) -> None:
    lines = "module load cuda\nconda activate train\nsrun true\n"
    done, verdict = run_prerun(lab, f"{lines}{sys.executable} work.py\n")
    assert (done.returncode, verdict["verdict"]) == (0, "pass"), done.stderr
    assert [(one["line"], one["text"]) for one in verdict["failed_commands"]] == [
        (3, "module: not found"),
        (4, "conda: command not found"),
    ]
    sentence = (
        "passed, but 2 commands of the script failed: line 3: module: not found; line 4: conda: command not found"
    )
    expected = (sentence, "its environment was not activated (line 3: module: not found)")
    shown = lab.run([sys.executable, "-m", "slurmwrap.cli.slurmwrap", "prerun", "show", "last"], ALICE).stdout
    number = shown.split()[1]
    explained = lab.run([sys.executable, "-m", "slurmwrap.cli.slurmwrap", "why", number], ALICE).stdout
    for text in (done.stderr, shown, explained):
        assert all(part in " ".join(text.split()) for part in expected), text


def test_exported_shell_functions_exist_in_a_pre_run(lab: Lab) -> None:
    """The wrapper of the pre-run may run in dash, which drops exported functions, such as `module` of Lmod."""
    home = run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip()
    script = HEAD.replace("/bin/sh", "/bin/bash") + "module load cuda\nsrun bash -c 'module load more'\n"
    run_as(ALICE, ["tee", f"{home}/job.sh"], stdin=script)
    gsub = f"exec {sys.executable} -m slurmwrap.gsub.gsub_main --prerun=only --json {home}/job.sh"
    exported = f"module() {{ echo loaded $2; }}; export -f module; {gsub}"
    done = lab.run(["bash", "-c", exported], ALICE, Path(home))
    assert json.loads(done.stdout)["failed_commands"] == [], done.stderr


def test_an_mpi_type_that_srun_does_not_have_is_reported_with_the_available_types(lab: Lab) -> None:
    home = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip())
    run_as(ALICE, ["tee", home / "mpi.sh"], stdin=HEAD + "srun --mpi=pmix_v99 ./solver\n")
    done = lab.run([sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--dry-run", "mpi.sh"], ALICE, home)
    assert "mpi.sh:3: srun --mpi=pmix_v99: the srun of this machine has" in done.stderr
    assert "pmi2" in done.stderr
