"""Run a program in a child process and return its output, its seconds and its peak memory (adapter)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SLURMWRAP = (sys.executable, "-m", "slurmwrap.cli.slurmwrap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a child. `wall_s`: wall time; `cpu_s`: of all threads; `peak_mib`: peak resident memory."""

    answer: Any  # what it printed, as JSON
    wall_s: float
    cpu_s: float
    peak_mib: float


def ran(argv: Sequence[str]) -> Ran:
    """Run the program in the repository's root. Raise SystemExit with its message when it fails."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said.seek(0)
        if child.returncode:
            raise SystemExit(f"{' '.join(argv)}\n{said.read().decode()}exit code {child.returncode}")
        return Ran(
            answer=json.load(output),
            wall_s=wall_s,
            cpu_s=used.ru_utime + used.ru_stime,
            peak_mib=used.ru_maxrss / 1024,
        )


def simulated(words: Sequence[str]) -> Ran:
    """Run `slurmwrap simulate WORDS --json`."""
    return ran([*SLURMWRAP, "simulate", *words, "--json"])
