"""Whether a program may train, determined from its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.prerun.static.training_expected import Expectation, is_evaluating

TORCH_EVALUATION = """
import torch
from torch.utils.data import DataLoader
from net import Net
model = Net()  # the optimizer's state is not loaded
model.load_state_dict(torch.load("best.pt"))
model.eval()
with torch.no_grad():
    for x in DataLoader(list(range(100))):
        print(model(x))
"""
TRAINING = "import torch\nfrom net import Net\nopt = torch.optim.SGD(Net().parameters(), lr=1)\n"
NET = "import torch\nclass Net(torch.nn.Module):\n    pass\n"


def check_may_train(directory: Path, body: str = "python main.py", **files: str) -> bool:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    return Expectation(f"#!/bin/bash\n{body}\n", str(directory), (), {}).may_train


@pytest.mark.parametrize(
    ("main", "may_train"),
    [
        (TRAINING, True),
        (TORCH_EVALUATION, False),
        ("import torch\nwith torch.inference_mode():\n    print(torch.nn.GRU(3, 3))\n", False),
        ("from transformers import Trainer\nTrainer().evaluate()\n", True),  # it could also train
        ("import keras\nmodel.fit(x)\n", True),
        ("import jax, optax\n", True),
        ("import numpy as np\nfor g in range(9):\n    w = w + 0.1 * np.random.randn(9)\n", False),
        ("from sklearn.svm import SVC\nSVC().fit(x, y)\n", False),  # no framework whose steps are counted
        ("import http.server\nhttp.server.test()\n", False),
        ("from ourlab.runner import main\nmain()\n", True),  # an installed module is not read
        ("import subprocess, sys\nsubprocess.run([sys.executable, 'worker.py'])\n", True),
        ("from slurmwrap_step import step\n", True),
    ],
)
def test_the_code_decides_whether_a_program_may_train(tmp_path: Path, main: str, may_train: bool) -> None:
    assert check_may_train(tmp_path, main=main, net=NET) is may_train


def test_imported_modules_of_a_program_are_read(tmp_path: Path) -> None:
    assert check_may_train(tmp_path, main="from engine import run\nrun()\n", engine=TRAINING, net=NET)


@pytest.mark.parametrize(
    ("body", "may_train"),
    [
        ("python missing.py", True),  # an earlier command may create it
        ('python "$PROGRAM_DIR/main.py"', True),
        ("$PYTHON train.py", True),
        ("python -m http.server", False),
        ("python -m axolotl.cli.train config.yml", True),
        ("torchrun --nproc-per-node=2 -m ourlab.main config.yml", True),  # an installed module is not read
        ("python -m ourlab.evaluate", False),
        ("python -m vllm.entrypoints.api_server", False),
        ("python cli.py fit --config c.yml", True),
        ("python cli.py validate --config c.yml", False),
        ("llamafactory-cli train config.yml", False),  # its Python is visible only when it runs
        ("lm_eval --model hf", False),
        ("./md -i in.dat", False),
        ("./train_cpp", True),
        ("python -c 'import torch; torch.optim.SGD'", True),
    ],
)
def test_the_command_decides_whether_a_program_may_train(tmp_path: Path, body: str, may_train: bool) -> None:
    assert (
        check_may_train(tmp_path, body, cli="from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n")
        is may_train
    )


@pytest.mark.parametrize(
    ("cmdline", "may_train"),
    [
        (("/venv/bin/python3", "main.py"), True),
        (("/venv/bin/python3", "/venv/bin/llamafactory-cli", "train", "c.yml"), True),
        (("/venv/bin/python3", "/venv/bin/lm_eval", "--model", "hf"), False),
        (("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"), False),
        (("bash", "train.sh"), False),
    ],
)
def test_a_running_python_process_is_read_even_if_the_script_does_not_name_it(
    tmp_path: Path, cmdline: tuple[str, ...], may_train: bool
) -> None:
    (tmp_path / "main.py").write_text(TRAINING)
    expectation = Expectation("#!/bin/bash\nmake all\n", str(tmp_path), (), {})
    expectation.see(cmdline, str(tmp_path))
    assert expectation.may_train is may_train


@pytest.mark.parametrize(
    ("path", "argv", "expected"),
    [
        ("evaluate.py", (), True),
        ("run_eval.py", ("--model", "m"), True),
        ("main.py", ("--eval",), True),
        ("main.py", ("--mode=test",), False),
        ("main.py", ("--mode", "eval"), True),
        ("main.py", ("evaluate", "--ckpt", "x"), True),
        ("run_glue.py", ("--do_eval",), True),
        ("run_glue.py", ("--do_eval", "--do_train"), False),
        ("main.py", ("--eval_steps", "100", "--eval_batch_size", "8"), False),
        ("train_evaluate.py", (), False),
        ("test.py", (), False),
        ("retrieval.py", (), False),
    ],
)
def test_a_command_line_that_only_evaluates_is_recognized(path: str, argv: tuple[str, ...], expected: bool) -> None:
    assert is_evaluating(path, argv) is expected


def test_a_batch_script_in_python_may_train(tmp_path: Path) -> None:
    assert Expectation("#!/usr/bin/env python3\nprint(1)\n", str(tmp_path), (), {}).may_train
