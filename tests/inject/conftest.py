"""Runs Python programs under the injected counter, with stand-ins for the frameworks that they import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_step
from slurmwrap.prerun import steps
from slurmwrap.prerun.result import StepReading

INJECT = Path(slurmwrap_step.__file__).parent
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self, closure=None):
        'Steps.'
        for hook in hooks:
            hook(self, (), {})
        return 'loss'
"""

Counted = Callable[..., tuple[str, StepReading]]


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """Runs Python code under the counter; returns what it printed and what was counted.

    `modules`: sources by path below a folder on PYTHONPATH. `before`: folders that stand before ours on it.
    """

    def run(
        code: str,
        *,
        python: str = sys.executable,
        optimizer: str = OPTIMIZER,
        modules: Mapping[str, str] | None = None,
        before: str = "",
        flags: tuple[str, ...] = (),
        **environ: str,
    ) -> tuple[str, StepReading]:
        library = tmp_path / "lib"
        torch = {
            "torch/__init__.py": "",
            "torch/optim/__init__.py": "from .optimizer import Optimizer\n",
            "torch/optim/optimizer.py": optimizer,
        }
        for name, source in {**torch, **(modules or {})}.items():
            (library / name).parent.mkdir(parents=True, exist_ok=True)
            (library / name).write_text(textwrap.dedent(source))
        folder = tmp_path / "steps"
        folder.mkdir(exist_ok=True)
        path = ":".join(part for part in (before, str(INJECT), str(library)) if part)
        own = {"PYTHONPATH": path, "SLURMWRAP_STEP_DIR": str(folder)}
        said = subprocess.run(
            [python, *flags, "-c", textwrap.dedent(code)],
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **own, **environ},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        return said.stdout + said.stderr, steps.read_steps(str(folder))

    return run


@pytest.fixture
def parked(tmp_path: Path, counted: Counted) -> Callable[..., tuple[str, StepReading, bool]]:
    """Runs code until it has parked or ended; returns what it printed, the reading, and whether it was still there."""

    def run(
        code: str, *, park_after: int = 3, modules: Mapping[str, str] | None = None
    ) -> tuple[str, StepReading, bool]:
        counted("", modules=modules)  # lays out the stand-ins
        environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "SLURMWRAP_PARK_AFTER": str(park_after)}
        environ |= {"PYTHONPATH": f"{INJECT}:{tmp_path / 'lib'}", "SLURMWRAP_STEP_DIR": str(tmp_path / "steps")}
        argv = [sys.executable, "-u", "-c", textwrap.dedent(code)]
        with (tmp_path / "said").open("w+b") as said:
            process = subprocess.Popen(argv, env=environ, stdout=said, stderr=said, cwd=tmp_path)
            try:
                deadline = time.monotonic() + 60
                while process.poll() is None and time.monotonic() < deadline:
                    if steps.read_steps(str(tmp_path / "steps")).parked:
                        break
                    time.sleep(0.02)
                alive = process.poll() is None
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            return said.read().decode(), steps.read_steps(str(tmp_path / "steps")), alive

    return run
