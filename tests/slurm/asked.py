"""`slurmwrap ...` against a lab with a directory and variables of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from realslurm import Lab


def slurmwrap(
    lab: Lab, *words: str, user: str | None = None, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As Lab.slurmwrap; `user` None is root."""
    return lab.run([sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words], user, cwd, env=dict(env or {}))
