"""The example role for Ansible: its syntax, and what ansible-lint reports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ansible"
COMMANDS = (["ansible-playbook", "-i", "inventory.ini", "site.yml", "--syntax-check"], ["ansible-lint", "--offline"])

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_role_has_no_fault(command: list[str], tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    if not shutil.which(command[0], path=str(folder)):
        pytest.skip(f"{command[0]} is part of the extra `packages`")
    shutil.copytree(EXAMPLE, tmp_path / "ansible")
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=tmp_path / "ansible", env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
