"""Marks of a trial's Python processes: they started, imported torch, created an optimizer or generated text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_step
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import step_detection

Counted = Callable[..., tuple[str, StepReading]]
OPTIMIZER = """
def register_optimizer_step_post_hook(hook): pass
class Optimizer:
    def __init__(self): self._patch_step_function()
    def _patch_step_function(self): print('patched')
"""
TORCH_1_OPTIMIZER = "class Optimizer:\n    def __init__(self): print('patched')\n    def step(self): pass\n"  # torch 1
GENERATION = {
    "transformers/__init__.py": "",
    "transformers/generation/__init__.py": "",
    "transformers/generation/utils.py": "class GenerationMixin:\n    def generate(self, n):\n        return 'x' * n\n",
}


def read_marks(directory: Path) -> set[str]:
    return {
        name for name in ("torch", "optimizer", "generate") if step_detection.is_marked(str(directory / "steps"), name)
    }


@pytest.mark.parametrize("optimizer", [OPTIMIZER, TORCH_1_OPTIMIZER])
def test_creating_an_optimizer_leaves_a_mark_only_in_a_trial(
    run_counted: Counted, tmp_path: Path, optimizer: str
) -> None:
    code = "import torch.optim.optimizer as o\nprint('imported')\n"
    assert run_counted(code, optimizer=optimizer, SLURMWRAP_PRERUN="1")[0] == "imported\n"
    assert read_marks(tmp_path) == {"torch"}
    assert run_counted(f"{code}o.Optimizer()", optimizer=optimizer)[0] == "imported\npatched\n"
    assert read_marks(tmp_path) == {"torch"}
    assert run_counted(f"{code}o.Optimizer()", optimizer=optimizer, SLURMWRAP_PRERUN="1")[0] == "imported\npatched\n"
    assert read_marks(tmp_path) == {"torch", "optimizer"}


def test_the_first_generated_text_leaves_a_mark_and_removes_the_hook(run_counted: Counted, tmp_path: Path) -> None:
    code = "from transformers.generation.utils import GenerationMixin as G\nplain = vars(G)['generate']\n"
    print_calls = "print(G().generate(3), vars(G)['generate'] is plain, G().generate(1), vars(G)['generate'] is plain)"
    output, _ = run_counted(f"{code}{print_calls}", modules=GENERATION, SLURMWRAP_PRERUN="1")
    assert output == "xxx False x False\n"  # the hook has restored the original method
    assert read_marks(tmp_path) == {"generate"}


def test_every_start_of_python_is_recorded_with_its_arguments(run_counted: Counted, tmp_path: Path) -> None:
    run_counted("", SLURMWRAP_PRERUN="1")
    environ = {
        "PYTHONPATH": str(Path(slurmwrap_step.__file__).parent),
        "SLURMWRAP_PRERUN": "1",
        "SLURMWRAP_STEP_DIR": str(tmp_path / "steps"),
    }
    (tmp_path / "my program.py").write_text("import os; print(os.getpid())")
    argv = [sys.executable, "-u", str(tmp_path / "my program.py"), "--lr", "/data/a\nb/\xe9"]
    pid = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout
    assert step_detection.list_starts(str(tmp_path / "steps"))[-1] == (int(pid), ("-u", "my_program.py", "--lr", "??"))
