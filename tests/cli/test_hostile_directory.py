"""A command that root starts in a directory of a user, with a user's variables, runs nothing of that user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("sitecustomize", "usercustomize", "json", "os", "encodings", "typer", "slurmwrap", "sqlite3", "site")
PROGRAMS = ("scontrol", "squeue", "sinfo", "munge", "sh", "python", "python3", "less", "pager")
FILES = ("slurmwrap.toml", "config.toml", ".env", "pyproject.toml", "pyvenv.cfg", "slurm.conf", "off.json")


@pytest.mark.parametrize(
    ("words", "search"),
    [
        (("config", "show"), "/nonexistent"),
        (("queue",), "/nonexistent"),
        (("queue",), ""),
        (("queue",), "/nonexistent:"),
        (("why", "1"), ".:/nonexistent"),
    ],
)
def test_nothing_in_the_working_directory_is_imported_or_started(
    tmp_path: Path, words: tuple[str, ...], search: str
) -> None:
    command = Path(sys.executable).with_name("slurmwrap")
    if not command.exists():
        pytest.skip("slurmwrap is not installed in this environment")
    mark, users = tmp_path / "pwned", tmp_path / "users"
    users.mkdir()
    for name in MODULES:
        (users / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    for name in PROGRAMS:
        (users / name).write_text(f"#!/bin/sh\n: >{mark}\n")
        (users / name).chmod(0o755)
    for name in FILES:
        (users / name).write_text('[site]\npublished = "/users"\n')
    if os.geteuid() == 0:
        for path in (users, *users.iterdir()):
            os.chown(path, 65534, 65534)
    environ = {
        "PATH": search,
        "HOME": str(tmp_path),
        "SLURMWRAP_CONFIG": "/nonexistent",
        **{f"SPANK_{name}": str(users) for name in ("PYTHONPATH", "LD_PRELOAD", "PATH", "SLURMWRAP_CONFIG")},
        **{f"SLURM_{name}": f"$(: >{mark})" for name in ("JOB_NAME", "JOB_ID", "CLUSTER_NAME", "NODELIST")},
    }
    done = subprocess.run([command, *words], cwd=users, env=environ, capture_output=True, text=True)
    assert not mark.exists()
    assert "/users" not in done.stdout and "Traceback" not in done.stderr
    assert done.returncode == 0 or done.stderr.startswith("slurmwrap: ")
