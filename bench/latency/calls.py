"""Time one submission by each program from outside, read gsub's own stages, and count the controller's messages."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GPU_JOB = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --mem=64000
#SBATCH --hold
srun hostname
"""
PLAIN_JOB = GPU_JOB.replace("#SBATCH --gres=gpu:8\n", "")
SIMPLE_SLURM = """\
from simple_slurm import Slurm
slurm = Slurm(nodes=2, ntasks_per_node=1, gres="gpu:8", cpus_per_task=8, mem=64000, hold="")
slurm.sbatch("srun hostname")
"""
SUBMITIT = """\
import submitit
executor = submitit.SlurmExecutor(folder="submitit")
job = {"nodes": 2, "ntasks_per_node": 1, "gres": "gpu:8", "cpus_per_task": 8, "mem": "64000M"}
executor.update_parameters(**job, additional_parameters={"hold": True})
print(executor.submit(print, "hello").job_id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One program that submits. `before` prepares its state; `why_not`: the reason why it is omitted."""

    name: str
    argv: tuple[str, ...]
    why_not: str = ""
    before: Callable[[], None] = lambda: None


def calls(place: Path) -> list[Call]:
    """Return all programs, which run in turn in one round."""
    for name, text in {"gpu.sbatch": GPU_JOB, "plain.sbatch": PLAIN_JOB}.items():
        (place / name).write_text(text)
    for name, text in {"simple.py": SIMPLE_SLURM, "submitit_.py": SUBMITIT}.items():
        (place / name).write_text(text)

    def forget() -> None:
        shutil.rmtree(place / "run" / "slurmwrap", ignore_errors=True)

    return [
        Call(name="python -c pass", argv=(sys.executable, "-c", "pass")),
        Call(name="sbatch", argv=("sbatch", "gpu.sbatch")),
        Call(name="gsub, a plan", argv=("gsub", "--prerun=off", "gpu.sbatch"), before=forget),
        Call(name="gsub, a plan, again", argv=("gsub", "--prerun=off", "gpu.sbatch")),
        Call(name="gsub, no GPU", argv=("gsub", "plain.sbatch")),
        Call(name="simple_slurm", argv=(sys.executable, "simple.py"), why_not=_missing("simple_slurm")),
        Call(name="submitit", argv=(sys.executable, "submitit_.py"), why_not=_missing("submitit")),
    ]


def _missing(module: str) -> str:
    return "" if importlib.util.find_spec(module) else "not installed (pip install 'slurmwrap[bench]')"


def timed(call: Call, environ: dict[str, str], place: Path) -> tuple[float, list[tuple[str, float]]]:
    """Submit once and cancel the job; return (milliseconds, milliseconds of gsub's own stages)."""
    told = place / "stages"
    told.unlink(missing_ok=True)
    call.before()
    began, at = time.perf_counter(), time.clock_gettime(time.CLOCK_MONOTONIC)
    done = subprocess.run(
        call.argv, env={**environ, "SLURMWRAP_STAGES": str(told)}, cwd=place, capture_output=True, text=True, check=True
    )
    taken = 1000 * (time.perf_counter() - began)
    jobs = re.findall(r"\d+", done.stdout)
    if jobs:
        subprocess.run(["scancel", jobs[-1]], env=environ, check=True)
    return taken, _stages(told, at) if told.exists() else []


def _stages(told: Path, began: float) -> list[tuple[str, float]]:
    found, before = [], began
    for line in told.read_text().splitlines():
        name, at = json.loads(line)
        found.append((name, 1000 * (at - before)))
        before = at
    return found


def counted(environ: dict[str, str]) -> dict[str, int]:
    """Return the messages that the controller received since the last reset, without the query itself."""
    said = subprocess.run(["sdiag"], env=environ, capture_output=True, text=True, check=True).stdout
    table = said.partition("by message type")[2].partition("by user")[0]
    rows = re.findall(r"^\s*(\w+)\s+\(\s*\d+\)\s+count:(\d+)", table, re.MULTILINE)
    return {name: int(count) for name, count in rows if name.startswith("REQUEST_") and name != "REQUEST_STATS_INFO"}


def loop(argv: tuple[str, ...], times: int, environ: dict[str, str], place: Path) -> tuple[float, dict[str, int]]:
    """Return (seconds, messages by type) of this many submissions, one after another."""
    shutil.rmtree(place / "run" / "slurmwrap", ignore_errors=True)
    subprocess.run(["sdiag", "--reset"], env=environ, check=True, stdout=subprocess.DEVNULL)
    began, jobs = time.perf_counter(), []
    for _ in range(times):
        done = subprocess.run(argv, env=environ, cwd=place, capture_output=True, text=True, check=True)
        jobs += re.findall(r"job (\d+)", done.stdout)
    taken, messages = time.perf_counter() - began, counted(environ)
    for first in range(0, len(jobs), 50):
        subprocess.run(["scancel", *jobs[first : first + 50]], env=environ, check=True)
    return taken, messages
