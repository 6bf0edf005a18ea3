"""The stages of a process for benchmarks: written in order, and only if SLURMWRAP_STAGES is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

CODE = "from slurmwrap import timing; timing.reached('a'); timing.reached('b'); timing.leave()"


def run(environ: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", CODE], env={**os.environ, **environ}, check=True)


def test_each_stage_is_written_with_its_time_on_the_shared_monotonic_clock(tmp_path: Path) -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    run({"SLURMWRAP_STAGES": str(tmp_path / "told")})
    after = time.clock_gettime(time.CLOCK_MONOTONIC)
    written = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [name for name, _ in written] == ["a", "b"]
    times = [before, *(at for _, at in written), after]
    assert times == sorted(times)


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    run({"SLURMWRAP_STAGES": "", "HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
