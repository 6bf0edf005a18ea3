"""srun and mpirun inside a trial, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A directory with a real srun that prints its arguments."""
    (tmp_path / "real").mkdir()
    for name in ("srun", "mpirun"):
        program = tmp_path / "real" / name
        program.write_text('#!/bin/sh\necho real "$@"\n')
        program.chmod(0o755)
    return tmp_path / "real"


def shim(real: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "slurmwrap.prerun.shim", words[0], "/shims", *words[1:]],
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


def test_one_task_runs_in_place_with_sruns_variables(real: Path) -> None:
    script = 'echo "$SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_NODELIST $A $PYTHONPATH $PWD"'
    line = ["srun", "-N4", "-n32", "--export=ALL,A=b", "-D", "/usr", "sh", "-c", script]
    assert shim(real, *line, SLURMD_NODENAME="n3", PYTHONPATH="/x") == (0, "0 1 n3 b /inj:/x /usr\n", "")


def test_an_exit_code_passes(real: Path) -> None:
    assert shim(real, "srun", "-n8", "sh", "-c", "exit 9")[0] == 9


def test_a_missing_program_fails_as_under_slurm(real: Path) -> None:
    assert shim(real, "srun", "-n8", "no-such-program", "x") == (
        2,
        "",
        "slurmstepd: error: execve(): no-such-program: No such file or directory\n",
    )


def test_a_container_is_started_by_the_real_srun(real: Path) -> None:
    said = shim(real, "srun", "-N4", "-n32", "--container-image=I", "python", "a.py", "-n", "2")
    assert said == (
        0,
        "real --nodes=1 --ntasks=1 --container-image=I --container-mounts=/t:/t -- python a.py -n 2\n",
        "",
    )


@pytest.mark.parametrize("question", ["--version", "--help", "-V"])
def test_questions_go_to_the_real_srun(real: Path, question: str) -> None:
    assert shim(real, "srun", question) == (0, f"real {question}\n", "")


def test_a_multi_prog_file_runs_task_0(real: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("1-3 false\n0 echo task %t\n")
    assert shim(real, "srun", "-n4", "--multi-prog", str(tmp_path / "conf")) == (0, "task 0\n", "")


def test_mpirun_starts_one_rank(real: Path) -> None:
    script = 'echo "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $B"'
    assert shim(real, "mpirun", "-np", "16", "-x", "B=c", "sh", "-c", script) == (0, "0 1 c\n", "")
    assert shim(real, "mpirun", "--version") == (0, "real --version\n", "")


def test_a_launcher_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    code, _, said = shim(tmp_path, "mpiexec", "--version")
    assert (code, said) == (127, "mpiexec: command not found\n")


def test_shims_are_valid_posix_shell() -> None:
    folder = Path(os.path.dirname(__file__)).parent.parent / "slurmwrap" / "prerun" / "shims"  # noqa: PTH120
    for shim_file in folder.iterdir():
        shell = "bash" if shim_file.suffix == ".sh" else "dash"
        assert subprocess.run([shell, "-n", str(shim_file)], capture_output=True).stderr == b""
