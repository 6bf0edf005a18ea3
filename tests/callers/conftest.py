"""The lab of tests/slurm with gsub in place of sbatch, for programs that submit jobs (make callers)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine import Site


@pytest.fixture
def site(lab, lab_users: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An ordinary user's directory with gsub as `sbatch` on PATH. Remaining jobs are cancelled at the end."""
    home = Path("/var/tmp") / lab_users[0]
    work = home / tmp_path_factory.mktemp("callers").name
    work.mkdir()
    shutil.chown(work, lab_users[0], lab_users[0])
    (work / "bin").mkdir()
    programs = {
        "sbatch": f'exec {Path(sys.executable).parent}/gsub "$@"',
        # Snakemake's jobs remove every SLURM_* variable, also SLURM_CONF; slurm.conf of the lab is not in /etc.
        "srun": f'SLURM_CONF={lab.env["SLURM_CONF"]} exec /usr/bin/srun "$@"',
    }
    for name, line in programs.items():
        (work / "bin" / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (work / "bin" / name).chmod(0o755)
    yield Site(lab=lab, user=lab_users[0], work=work)
    lab.run(["scancel", "--user", lab_users[0]])
    shutil.rmtree(work, ignore_errors=True)


@pytest.fixture
def needs() -> Callable[..., None]:
    """Skip the test if a package of the extra `callers` is missing."""

    def check(*modules: str) -> None:
        python = os.environ.get("CALLERS_PYTHON", sys.executable)
        for module in modules:
            if subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=60).returncode:
                pytest.skip(f"{module} is not installed (pip install 'slurmwrap[callers]')")

    return check
