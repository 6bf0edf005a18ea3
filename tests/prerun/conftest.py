"""Fixtures that run trials without Slurm: a script, a directory, and a fake torch that imports quickly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec

# The part of torch.optim.optimizer that the step hook uses.
FAKE_TORCH = {
    "torch/__init__.py": "",
    "torch/optim/__init__.py": "from .optimizer import Optimizer\nclass SGD(Optimizer):\n    pass\n",
    "torch/optim/optimizer.py": """
_post_hooks = []
def register_optimizer_step_post_hook(hook):
    _post_hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in _post_hooks:
            hook(self, (), {})
""",
}
TRAIN = """
import torch.optim, sys
optimizer = torch.optim.SGD()
for step in range(int(sys.argv[1])):
    print('before step', step + 1)
    optimizer.step()
    print('after step', step + 1)
open('checkpoint.pt', 'w').close()
"""

Trial = Callable[..., TrialResult]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The user's directory, with train.py and a fake torch."""
    folder = tmp_path / "job"
    for name, text in FAKE_TORCH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def make_spec(tmp_path: Path, job: Path) -> Callable[..., TrialSpec]:
    """Makes the TrialSpec of a script's text, with the files where gsub puts them."""

    def make(text: str, *args: str, **fields: object) -> TrialSpec:
        directory = tmp_path / "trial"
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "slurm_script").write_text(text)
        spec_fields = {
            "chdir": str(job),
            "time_limit_s": allow(20.0),
            "script_name": "train.sbatch",
            "args": args,
            **fields,
        }
        return TrialSpec(trial_dir=str(directory), script=str(directory / "slurm_script"), **spec_fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def trial(make_spec: Callable[..., TrialSpec]) -> Trial:
    """Runs a script's text as a trial."""

    def run(text: str, *args: str, environ: dict[str, str] | None = None, **fields: object) -> TrialResult:
        base_environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C",
        }
        return run_trial(make_spec(text, *args, **fields), environ={**base_environ, **(environ or {})})

    return run
