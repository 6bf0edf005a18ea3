"""Shared by the tests of callers: a user's site with sbatch replaced, and the states of the user's jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import Lab
from waiting import wait_for

# The callers may be installed in a separate environment, as at a site.
PYTHON = os.environ.get("CALLERS_PYTHON", sys.executable)
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}


@dataclass(frozen=True, slots=True)
class Job:
    """One job or array task as squeue shows it."""

    id: str
    name: str
    state: str

    @property
    def is_prerun(self) -> bool:
        return self.name.endswith(".prerun")


@dataclass(frozen=True, slots=True)
class Site:
    lab: Lab
    user: str
    work: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user; it is executable if it begins with #!."""
        path = self.work / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
        return path

    def run(
        self, *argv: str, timeout: float = 120.0, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user, in the user's directory."""
        path = f"{self.work}/bin:{Path(PYTHON).parent}:/usr/bin:/bin:/usr/sbin"
        return self.lab.run(argv, self.user, self.work, timeout, {"PATH": path, **(env or {})}, stdin)

    def python(self, program: str, timeout: float = 120.0, env: dict[str, str] | None = None) -> str:
        """Run a Python program as the user and return its output; it must succeed."""
        done = self.run(PYTHON, "-u", str(self.write("program.py", program)), timeout=timeout, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def jobs(self) -> list[Job]:
        """The user's jobs since the test began, including pre-runs, ordered by id."""
        said = self.lab.run(["squeue", "-h", "-r", "-t", "all", "-u", self.user, "-o", "%i|%j|%T|%Z"]).stdout
        rows = [line.split("|") for line in said.splitlines()]
        mine = [Job(*row[:3]) for row in rows if row[3].startswith(str(self.work))]
        return sorted(mine, key=lambda job: [int(part) for part in job.id.split("_")])

    def ended(self, timeout: float = 60.0) -> list[Job]:
        """The user's jobs once all have ended."""
        jobs = wait_for(self.jobs, lambda now: bool(now) and {job.state for job in now} <= ENDED, timeout)
        if not {job.state for job in jobs} <= ENDED:
            pytest.fail(f"still there: {jobs}")
        return jobs

    def split(self) -> tuple[list[str], int]:
        """(state of each job that the caller submitted, number of pre-runs), once all have ended."""
        jobs = self.ended()
        return [job.state for job in jobs if not job.is_prerun], sum(job.is_prerun for job in jobs)
