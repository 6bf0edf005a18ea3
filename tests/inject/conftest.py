"""Runs Python programs under the injected step counter, or as in a trial: with the guard, the counter and the marks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from waiting import allow, wait_for

from slurmwrap.inject import slurmwrap_step
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import step_detection

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
Parked = Callable[..., tuple[str, StepReading, bool]]
Guarded = Callable[..., str]
Run = Callable[..., subprocess.CompletedProcess[str]]
Entry = tuple[str, int, int, int, int, bytes]


def write_library(directory: Path, optimizer: str, modules: Mapping[str, str]) -> Path:
    """Writes a library with a stand-in for torch and `modules` (sources by path)."""
    torch = {
        "torch/__init__.py": "",
        "torch/optim/__init__.py": "from .optimizer import Optimizer\n",
        "torch/optim/optimizer.py": optimizer,
    }
    for name, source in {**torch, **modules}.items():
        (directory / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "lib" / name).write_text(textwrap.dedent(source))
    return directory / "lib"


@pytest.fixture
def run_counted(tmp_path: Path) -> Counted:
    """Runs Python code under the counter; returns what it printed and what was counted.

    `modules`: sources by path below a folder on PYTHONPATH. `before`: folders that precede slurmwrap's folder there.
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
        library = write_library(tmp_path, optimizer, modules or {})
        folder = tmp_path / "steps"
        folder.mkdir(exist_ok=True)
        path = ":".join(part for part in (before, str(INJECT), str(library)) if part)
        own = {"PYTHONPATH": path, "SLURMWRAP_STEP_DIR": str(folder)}
        output = subprocess.run(
            [python, *flags, "-c", textwrap.dedent(code)],
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **own, **environ},
            capture_output=True,
            text=True,
            timeout=allow(60),
            cwd=tmp_path,
        )
        return output.stdout + output.stderr, step_detection.read_steps(str(folder))

    return run


@pytest.fixture
def run_until_parked(tmp_path: Path) -> Parked:
    """Runs code until it has parked (or until `until` is true) or has ended.

    Returns what it printed, the step reading, and whether the process was still alive.
    """
    folder = tmp_path / "steps"

    def run(
        code: str,
        *,
        park_after: int = 3,
        modules: Mapping[str, str] | None = None,
        step_dir: str = str(folder),
        until: Callable[[int], object] = lambda _: step_detection.read_steps(str(folder)).parked,
    ) -> tuple[str, StepReading, bool]:
        library = write_library(tmp_path, OPTIMIZER, modules or {})
        folder.mkdir(exist_ok=True)
        environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "SLURMWRAP_PARK_AFTER": str(park_after)}
        environ |= {"PYTHONPATH": f"{INJECT}:{library}", "SLURMWRAP_STEP_DIR": step_dir}
        argv = [sys.executable, "-u", "-c", textwrap.dedent(code)]
        with (tmp_path / "said").open("w+b") as output:
            process = subprocess.Popen(argv, env=environ, stdout=output, stderr=output, cwd=tmp_path)
            try:
                wait_for(lambda: process.poll() is not None or until(process.pid), bool, timeout=30, pause=0.02)
                alive = process.poll() is None
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            return output.read().decode(), step_detection.read_steps(str(folder)), alive

    return run


@pytest.fixture
def run_rehearsed(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a program file with the stand-in for torch as in a pre-run that rehearses after three steps.

    Returns the lines that it printed; it must end with 0 and print no error.
    """

    def run(code: str, python: str = sys.executable) -> list[str]:
        library = write_library(tmp_path, OPTIMIZER, {})
        (tmp_path / "steps").mkdir(exist_ok=True)
        shutil.rmtree(tmp_path / "steps")
        (tmp_path / "steps").mkdir()
        (tmp_path / "train.py").write_text(code)
        environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{INJECT}:{library}"}
        environ |= {"SLURMWRAP_PRERUN": "1", "SLURMWRAP_PARK_AFTER": "3", "SLURMWRAP_REHEARSE": "1"}
        environ |= {"SLURMWRAP_STEP_DIR": str(tmp_path / "steps")}
        done = subprocess.run(
            [python, "train.py"], env=environ, capture_output=True, text=True, timeout=allow(60), cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def snapshot(directory: Path) -> list[Entry]:
    found = []
    for path in sorted(directory.rglob("*")):
        at = path.lstat()
        content = path.read_bytes() if path.is_file() and at.st_size < 1 << 20 else b""
        found.append((str(path), at.st_mtime_ns, at.st_mode, at.st_ino, at.st_size, content))
    return found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The user's directory with a few files."""
    folder = tmp_path / "work"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "config.yaml").write_text("lr: 1\n")
    (folder / "data" / "a.txt").write_text("a")
    (folder / "data" / "deep" / "b.txt").write_text("b")
    return folder


@pytest.fixture
def run_guarded(tmp_path: Path, work: Path) -> Run:
    """Runs code in the user's directory as a trial does, and checks that the directory did not change."""

    def run(code: str, *, python: Path | str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
        trial = tmp_path / "trial"
        (trial / "steps").mkdir(parents=True, exist_ok=True)
        before = snapshot(work)
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(INJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SLURMWRAP_PRERUN": "1",
            "SLURMWRAP_TRIAL_DIR": str(trial),
            "SLURMWRAP_STEP_DIR": str(trial / "steps"),
            "SLURMWRAP_FREE": f"/tmp:/dev:{trial}",
            "SLURMWRAP_HELD": str(work),
            "OMP_NUM_THREADS": "1",
        }
        output = subprocess.run(
            [str(python), "-c", textwrap.dedent(code)],
            cwd=work,
            env={**own, **environ},
            capture_output=True,
            text=True,
            timeout=allow(120),
        )
        assert snapshot(work) == before, "the user's files changed"
        return output

    return run


@pytest.fixture
def run_guarded_ok(run_guarded: Run) -> Guarded:
    """Like `run_guarded`, for a program that must exit 0; returns what it printed."""

    def run(code: str, **more: str) -> str:
        output = run_guarded(code, **more)
        assert output.returncode == 0, output.stderr
        return output.stdout

    return run
