"""Command lines of launchers such as torchrun, rewritten so that they start one process per GPU of the trial."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_launcher_options as launch

INJECT = Path(launch.__file__).parent


def rewrite(line: str, module: str | None = None, gpus: int = 1, visible: str = "") -> str:
    argv = shlex.split(line)
    found = launch.launcher(argv, module)
    if found is None:
        return line
    kind, first = found
    return shlex.join([*argv[:first], *launch.on_one_gpu(kind, argv[first:], gpus, 29, visible)])


ACCELERATE = (
    "--num_processes=1 --num_machines=1 --machine_rank=0 --gpu_ids=all --rdzv_backend=static --main_process_port=29"
)


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
            f"accelerate launch {ACCELERATE} --config_file c.yaml --mixed_precision bf16 a.py",
        ),
        (
            "accelerate-launch --use_fsdp --num_processes=8 a.py --num_processes 9",
            f"accelerate-launch {ACCELERATE} --use_fsdp a.py --num_processes 9",
        ),
        (
            "deepspeed --hostfile h --include n0@n1 --num_gpus=8 --master_port 9 a.py --deepspeed ds.json",
            "deepspeed --hostfile=/dev/null --master_port=29 --num_gpus=1 a.py --deepspeed ds.json",
        ),
        (
            "composer -n 8 --world_size 16 --node_rank 1 --stdout o_{rank} a.py -n 3",
            "composer --nproc=1 --world_size=1 --node_rank=0 --base_rank=0 --master_addr=127.0.0.1 --master_port=29 "
            "a.py -n 3",
        ),
        (
            "fabric run --strategy ddp --devices=8 --num-nodes 2 --main-address n1 a.py --devices 4 --lr 1",
            "fabric run --devices=1 --num_nodes=1 --main_port=29 --strategy ddp a.py --lr 1",
        ),
        (
            "colossalai run --nproc_per_node 8 --hostfile h a.py --plugin gemini",
            "colossalai run --nproc_per_node=1 --master_port=29 a.py --plugin gemini",
        ),
        ("accelerate config", "accelerate config"),
        ("train.py --nnodes 2", "train.py --nnodes 2"),
    ],
)
def test_a_launcher_starts_one_process_and_the_script_keeps_its_arguments(asked: str, given: str) -> None:
    assert rewrite(asked) == given


def test_a_launcher_started_with_python_m_is_recognised() -> None:
    assert (
        rewrite("-m --nnodes 2 a.py", "torch.distributed.run") == "-m --standalone --nnodes=1 --nproc_per_node=1 a.py"
    )
    assert rewrite("-m launch --num_processes 2 a.py", "accelerate.commands.accelerate_cli") == (
        f"-m launch {ACCELERATE} a.py"
    )
    assert rewrite("-m --nnodes 2", "my.torch.distributed.run") == "-m --nnodes 2"


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
def test_the_module_name_is_found_after_the_interpreters_options(cmdline: str, module: str | None) -> None:
    assert launch.module_of(shlex.split(cmdline)) == module


@pytest.mark.parametrize("how", [["-m", "torch.distributed.run"], ["torchrun"]])
def test_the_launcher_receives_the_rewritten_command_line(tmp_path: Path, how: list[str]) -> None:
    run = tmp_path / "torch" / "distributed" / "run.py"
    run.parent.mkdir(parents=True)
    (run.parent / "__init__.py").touch()
    (run.parent.parent / "__init__.py").touch()
    run.write_text("import sys\nprint(*sys.argv[1:])\n")
    (tmp_path / "torchrun").write_text(run.read_text())
    environ = {"PYTHONPATH": f"{INJECT}:{tmp_path}", "SLURMWRAP_PRERUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, *how, "--nnodes", "4", "a.py", "--nnodes", "4"]
    result = subprocess.run(
        argv, env={**os.environ, **environ}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout == "--standalone --nnodes=1 --nproc_per_node=1 a.py --nnodes 4\n"
    without = {**os.environ, **environ, "SLURMWRAP_PRERUN": "0"}
    result = subprocess.run(argv, env=without, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "--nnodes 4 a.py --nnodes 4\n"


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("torchrun --nnodes 4 --nproc_per_node 8 a.py", "torchrun --standalone --nnodes=1 --nproc_per_node=2 a.py"),
        ("torchrun --nproc_per_node=gpu a.py", "torchrun --standalone --nnodes=1 --nproc_per_node=2 a.py"),
        ("torchrun --nproc_per_node=1 a.py", "torchrun --standalone --nnodes=1 --nproc_per_node=1 a.py"),
        (
            "accelerate launch --multi_gpu --num_processes 16 a.py",
            f"accelerate launch {ACCELERATE.replace('processes=1', 'processes=2')} --multi_gpu a.py",
        ),
        ("deepspeed --num_gpus 8 a.py", "deepspeed --hostfile=/dev/null --master_port=29 --num_gpus=2 a.py"),
    ],
)
def test_a_trial_on_two_gpus_starts_at_most_two_processes(asked: str, given: str) -> None:
    assert rewrite(asked, gpus=2) == given


def test_deepspeed_uses_only_the_devices_that_slurm_made_visible() -> None:
    # With --num_gpus deepspeed ignores CUDA_VISIBLE_DEVICES and takes the node's first GPUs
    # (deepspeed/launcher/runner.py).
    assert rewrite("deepspeed --include localhost:0,1 a.py", visible="3") == (
        "deepspeed --hostfile=/dev/null --master_port=29 a.py"
    )


@pytest.mark.parametrize(
    ("given", "set_by_script", "kept"),
    [
        ("3", "0,1,2,3", "3"),
        ("0", "4,5", "0"),
        ("0,1", "1", "1"),
        ("0", "", ""),
        ("0", "-1", "-1"),
    ],
)
def test_a_script_cannot_make_more_gpus_visible_than_slurm_gave(
    given: str, set_by_script: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", set_by_script)
    launch.keep_devices()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == kept


@pytest.mark.frameworks
def test_the_flags_of_accelerate_match_its_own_parser() -> None:
    launch_command_parser = pytest.importorskip("accelerate.commands.launch").launch_command_parser
    actions = [
        (o.lstrip("-").replace("-", "_"), a.nargs) for a in launch_command_parser()._actions for o in a.option_strings
    ]
    assert {name for name, nargs in actions if nargs == 0} <= launch.FLAGS["accelerate"]
    assert not {name for name, nargs in actions if nargs != 0} & launch.FLAGS["accelerate"]
    parsed = launch_command_parser().parse_args([*ACCELERATE.split(), "a.py", "-x"])
    assert (parsed.num_processes, parsed.gpu_ids, parsed.training_script_args) == (1, "all", ["-x"])
