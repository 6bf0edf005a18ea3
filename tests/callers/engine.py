"""What the tests of callers share: a user's site with sbatch replaced, and what became of his jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import Lab
from waiting import wait_for

# The callers may live in an environment of their own, as they do at a site.
PYTHON = os.environ.get("CALLERS_PYTHON", sys.executable)
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}


@dataclass(frozen=True, slots=True)
class Job:
    """One job or array task as squeue tells it."""

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
        """A file of the user's; one that begins with #! can be executed."""
        path = self.work / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
        return path

    def run(
        self, *argv: str, timeout: float = 120.0, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """A command of the user's, in his directory."""
        path = f"{self.work}/bin:{Path(PYTHON).parent}:/usr/bin:/bin:/usr/sbin"
        return self.lab.run(argv, self.user, self.work, timeout, {"PATH": path, **(env or {})}, stdin)

    def python(self, program: str, timeout: float = 120.0, env: dict[str, str] | None = None) -> str:
        """What a Python program of the user's printed; it must end well."""
        done = self.run(PYTHON, "-u", str(self.write("program.py", program)), timeout=timeout, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def jobs(self) -> list[Job]:
        """All of the user's since the test began, pre-runs too, by number."""
        said = self.lab.run(["squeue", "-h", "-r", "-t", "all", "-u", self.user, "-o", "%i|%j|%T|%Z"]).stdout
        rows = [line.split("|") for line in said.splitlines()]
        mine = [Job(*row[:3]) for row in rows if row[3].startswith(str(self.work))]
        return sorted(mine, key=lambda job: [int(part) for part in job.id.split("_")])

    def ended(self, timeout: float = 60.0) -> list[Job]:
        """The same when all have come to an end."""
        jobs = wait_for(self.jobs, lambda now: bool(now) and {job.state for job in now} <= ENDED, timeout)
        if not {job.state for job in jobs} <= ENDED:
            pytest.fail(f"still there: {jobs}")
        return jobs

    def split(self) -> tuple[list[str], int]:
        """(the state of each job that the caller submitted, how many pre-runs there were), when all have ended."""
        jobs = self.ended()
        return [job.state for job in jobs if not job.is_prerun], sum(job.is_prerun for job in jobs)
