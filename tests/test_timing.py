"""What the benchmark is told of a process: stages in order, and only where somebody asks."""

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


def test_each_stage_is_told_with_its_time_by_the_clock_that_all_processes_share(tmp_path: Path) -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    run({"SLURMWRAP_STAGES": str(tmp_path / "told")})
    after = time.clock_gettime(time.CLOCK_MONOTONIC)
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [name for name, _ in told] == ["a", "b"]
    times = [before, *(at for _, at in told), after]
    assert times == sorted(times)


def test_nothing_is_left_where_nobody_asks(tmp_path: Path) -> None:
    run({"SLURMWRAP_STAGES": "", "HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
