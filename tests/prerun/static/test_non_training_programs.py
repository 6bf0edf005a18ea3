"""Scripts that start only known servers and tools: a pre-run can show nothing about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.prerun.static.training_expected import find_known_program_of_script


def find_program(
    body: str,
    *,
    interpreter_line: str = "#!/bin/bash",
    site_programs: tuple[str, ...] = (),
    chdir: str = "/nonexistent",
) -> str:
    return find_known_program_of_script(
        f"{interpreter_line}\n#SBATCH --gres=gpu:2\n{body}\n", chdir, (), {}, site_programs
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sleep infinity", "sleep infinity"),
        ("sleep 8h", "sleep 8h"),
        ("while true; do\n  sleep 1h\ndone", "sleep 1h"),
        ("echo $(hostname) > node.txt\ntail -f /dev/null", "tail -f"),
        ("module load cuda\nsource venv/bin/activate\nexport A=/x\nvllm serve meta/model", "vllm serve"),
        ("[ -d logs ] || mkdir logs\nsrun -N2 --overlap ray start --head --block &\nwait", "ray start"),
        ("python3.11 -u -m vllm.entrypoints.api_server -p 80", "python -m vllm.entrypoints.api_server"),
        ("apptainer exec --nv llm.sif ollama serve", "ollama"),
        ("/usr/sbin/sshd -D -p 2222 -f ~/sshd_config", "sshd"),
        ("mpirun -np 4 gmx_mpi mdrun -deffnm md", "gmx_mpi"),
        ("bash -c 'sleep infinity'", "sleep infinity"),
        # another program may run
        ("sleep 300\nhostname", ""),  # a command follows the wait
        ("sleep ${SECONDS_TO_WAIT}", ""),
        ("python train.py\nsleep infinity", ""),
        ("ray start --head\npython train.py", ""),
        ("vllm bench throughput", ""),
        ("./my_md_code input", ""),
        ("$LAUNCH sleep infinity", ""),
        ("bash start.sh\nsleep infinity", ""),  # start.sh cannot be read
        ("tail -n 3 log.txt", ""),
        ("nvidia-smi", ""),
    ],
)  # fmt: skip
def test_a_script_that_runs_only_a_known_program_is_recognized(body: str, expected: str) -> None:
    assert find_program(body) == expected


def test_a_site_can_add_known_programs() -> None:
    assert find_program("my-md -i in.dat", site_programs=("my-md",)) == "my-md"
    assert (
        find_program("python -m ourserver.main", site_programs=("python -m ourserver.*",)) == "python -m ourserver.main"
    )


def test_scripts_that_the_script_starts_are_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec sleep infinity\n")
    assert find_program("bash run.sh", chdir=str(tmp_path)) == "sleep infinity"
    (tmp_path / "run.sh").write_text("#!/bin/sh\npython train.py\nsleep infinity\n")
    assert find_program("bash run.sh", chdir=str(tmp_path)) == ""


def test_only_shell_scripts_are_read() -> None:
    assert find_program("sleep infinity", interpreter_line="#!/usr/bin/env python3") == ""
