"""Scripts that start nothing but known servers and tools: they have nothing to show in a pre-run."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.prerun.static.training_expected import find_known_program_of_script


def holder(body: str, *, first: str = "#!/bin/bash", more: tuple[str, ...] = (), chdir: str = "/nonexistent") -> str:
    return find_known_program_of_script(f"{first}\n#SBATCH --gres=gpu:2\n{body}\n", chdir, (), {}, more)


@pytest.mark.parametrize(
    ("body", "found"),
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
        # something else may run
        ("sleep 300\nhostname", ""),  # it waits for something
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
def test_what_a_script_consists_of(body: str, found: str) -> None:
    assert holder(body) == found


def test_a_site_adds_its_own() -> None:
    assert holder("my-md -i in.dat", more=("my-md",)) == "my-md"
    assert holder("python -m ourserver.main", more=("python -m ourserver.*",)) == "python -m ourserver.main"


def test_scripts_that_it_starts_are_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec sleep infinity\n")
    assert holder("bash run.sh", chdir=str(tmp_path)) == "sleep infinity"
    (tmp_path / "run.sh").write_text("#!/bin/sh\npython train.py\nsleep infinity\n")
    assert holder("bash run.sh", chdir=str(tmp_path)) == ""


def test_only_a_shells_script_is_read() -> None:
    assert holder("sleep infinity", first="#!/usr/bin/env python3") == ""
