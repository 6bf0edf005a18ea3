"""Launchers' command lines turned into one process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_launch as launch

INJECT = Path(launch.__file__).parent


def rewritten(line: str, module: str | None = None) -> str:
    argv = shlex.split(line)
    launch.rewrite(argv, module)
    return shlex.join(argv)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (
            "/v/bin/torchrun --nnodes=4 --nproc_per_node 8 --rdzv_backend=c10d --rdzv_id=7 a.py --lr 3",
            "/v/bin/torchrun --standalone --nnodes=1 --nproc_per_node=1 a.py --lr 3",
        ),
        (
            "torchrun --nproc-per-node=gpu --role trainer --no-python bash -c 'echo --nnodes 3'",
            "torchrun --standalone --nnodes=1 --nproc_per_node=1 --role trainer --no-python bash -c 'echo --nnodes 3'",
        ),
        (
            "torchrun --nproc 8 -m pkg.train -r 3",
            "torchrun --standalone --nnodes=1 --nproc_per_node=1 -m pkg.train -r 3",
        ),
        ("torchrun --nproc_per_node= a.py", "torchrun --standalone --nnodes=1 --nproc_per_node=1 a.py"),
        ("torchrun --nproc_per_node a.py", "torchrun --standalone --nnodes=1 --nproc_per_node=1 a.py"),
        (
            "torchrun --standalone -- a.py --standalone",
            "torchrun --standalone --nnodes=1 --nproc_per_node=1 a.py --standalone",
        ),
        (
            "accelerate launch --config_file c.yaml --multi_gpu --num_processes 16 --num_machines 2 "
            "--mixed_precision bf16 a.py",
            "accelerate launch --num_processes=1 --num_machines=1 --machine_rank=0 --config_file c.yaml "
            "--mixed_precision bf16 a.py",
        ),
        (
            "accelerate-launch --use_fsdp --num_processes=8 a.py --num_processes 9",
            "accelerate-launch --num_processes=1 --num_machines=1 --machine_rank=0 --use_fsdp a.py --num_processes 9",
        ),
        (
            "deepspeed --hostfile h --include n0@n1 --num_gpus=8 --master_port 9 a.py --deepspeed ds.json",
            "deepspeed --hostfile=/dev/null --num_nodes=1 --num_gpus=1 a.py --deepspeed ds.json",
        ),
        ("accelerate config", "accelerate config"),
        ("train.py --nnodes 2", "train.py --nnodes 2"),
    ],
)
def test_a_launcher_starts_one_process_and_the_script_keeps_its_arguments(asked: str, given: str) -> None:
    assert rewritten(asked) == given


def test_python_m_is_a_launcher_too() -> None:
    assert (
        rewritten("-m --nnodes 2 a.py", "torch.distributed.run") == "-m --standalone --nnodes=1 --nproc_per_node=1 a.py"
    )
    assert rewritten("-m launch --num_processes 2 a.py", "accelerate.commands.accelerate_cli") == (
        "-m launch --num_processes=1 --num_machines=1 --machine_rank=0 a.py"
    )
    assert rewritten("-m --nnodes 2", "my.torch.distributed.run") == "-m --nnodes 2"


@pytest.mark.parametrize(
    ("cmdline", "module"),
    [
        ("python -m torch.distributed.run -m x", "torch.distributed.run"),
        ("python -u -W ignore -X dev -m pkg a", "pkg"),
        ("python -Wignore -um pkg", "pkg"),
        ("python -mpkg", "pkg"),
        ("python train.py -m pkg", None),
        ("python -c 'import x' -m pkg", None),
        ("python --check-hash-based-pycs never -m pkg", "pkg"),
        ("python - -m pkg", None),
        ("python -m", None),
        ("python", None),
    ],
)
def test_the_module_is_found_behind_pythons_own_options(cmdline: str, module: str | None) -> None:
    assert launch.module_of(shlex.split(cmdline)) == module


@pytest.mark.parametrize("how", [["-m", "torch.distributed.run"], ["torchrun"]])
def test_the_launcher_reads_the_changed_command_line(tmp_path: Path, how: list[str]) -> None:
    run = tmp_path / "torch" / "distributed" / "run.py"
    run.parent.mkdir(parents=True)
    (run.parent / "__init__.py").touch()
    (run.parent.parent / "__init__.py").touch()
    run.write_text("import sys\nprint(*sys.argv[1:])\n")
    (tmp_path / "torchrun").write_text(run.read_text())
    environ = {"PYTHONPATH": f"{INJECT}:{tmp_path}", "SLURMWRAP_PRERUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, *how, "--nnodes", "4", "a.py", "--nnodes", "4"]
    said = subprocess.run(argv, env={**os.environ, **environ}, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "--standalone --nnodes=1 --nproc_per_node=1 a.py --nnodes 4\n"
    without = {**os.environ, **environ, "SLURMWRAP_PRERUN": "0"}
    said = subprocess.run(argv, env=without, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "--nnodes 4 a.py --nnodes 4\n"


@pytest.mark.torch
def test_the_table_agrees_with_torchs_own_parser() -> None:
    from torch.distributed.run import get_args_parser

    actions = [a for a in get_args_parser()._actions if a.option_strings]
    names = {name.lstrip("-").replace("-", "_"): action for action in actions for name in action.option_strings}
    wrong = {n for n, a in names.items() if (a.nargs == 0) != (n in launch.FLAGS["torchrun"])}
    assert wrong == set()
    assert launch.DROPPED["torchrun"] <= set(names)
    assert set(names) - launch.DROPPED["torchrun"] - launch.FLAGS["torchrun"] <= launch.KEPT | {
        "duplicate_stdout_filters",
        "duplicate_stderr_filters",
        "shutdown_timeout",
    }
