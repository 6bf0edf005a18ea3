"""Fixtures for the static stage: a job's directory, and a Python environment with empty packages."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmwrap.errors import ScriptError
from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Finding
from slurmwrap.prerun.static import static_stage
from slurmwrap.prerun.static.word_tables import split_word_table
from slurmwrap.sbatch.job_request import JobRequest, Script
from slurmwrap.sbatch.parse_request import parse_request

PACKAGES = split_word_table(
    """torch torchvision numpy transformers datasets accelerate deepspeed lightning pytorch_lightning hydra
omegaconf rootutils click typer absl ml_collections fire yamlish horovod ray tyro sacred megatron detectron2 idr_torch
wandb pip pytest"""
)


@pytest.fixture(scope="session")
def environment() -> Iterator[Path]:
    """bin/python, bin/torchrun and the like, with PACKAGES in its site-packages; laid out as venv does."""
    home = Path(tempfile.mkdtemp(prefix="slurmwrap-env-", dir="/tmp"))
    base = Path(sys.executable).resolve()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for package in PACKAGES:
        (home / "lib" / version / "site-packages" / package).mkdir(parents=True)
        (home / "lib" / version / "site-packages" / package / "__init__.py").touch()
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(base)
    (home / "bin" / "python3").symlink_to(base)
    (home / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for tool in ("torchrun", "accelerate", "deepspeed"):
        (home / "bin" / tool).write_text(f"#!{home}/bin/python\n")
        (home / "bin" / tool).chmod(0o755)
    (home / "bin" / "activate").touch()
    yield home
    shutil.rmtree(home)


@pytest.fixture
def findings(environment: Path, open_dir: Path) -> Callable[..., tuple[Finding, ...]]:
    """Runs the static stage on the job in `directory`, which counts as shared although it is below /tmp."""

    def inner(*args: str, directory: Path = open_dir, **options: object) -> tuple[Finding, ...]:
        content = (directory / "job.sbatch").read_bytes().replace(b"ENV/", f"{environment}/".encode())
        (directory / "job.sbatch").write_bytes(content)
        environ = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
        request = parse_job_request(directory, args, environ)
        return static_stage.check(request, run=run, environ=environ, node_local=("/dev/",), **options)  # type: ignore[arg-type]

    return inner


def parse_job_request(directory: Path, args: tuple[str, ...], environ: dict[str, str]) -> JobRequest:
    """The request as gsub reads it; a script that sbatch refuses is passed on unparsed."""
    try:
        return parse_request(
            ["job.sbatch", *args],
            environ=environ,
            cwd=str(directory),
            read_script=lambda path: Path(directory, path).read_bytes(),
            read_stdin=lambda: b"",
        )
    except ScriptError:
        content = (directory / "job.sbatch").read_bytes()
        script = Script(path="job.sbatch", name="job.sbatch", content=content)
        return JobRequest(script=script, args=args, chdir=str(directory))
