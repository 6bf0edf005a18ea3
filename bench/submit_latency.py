"""What gsub costs over sbatch: both submit the same held job in turn, on a lab of 8 nodes. As root; make bench runs it.

Prints medians and the ratio of one run; machines are noisy, so only figures of one run may be compared. The budget is
gsub without a pre-run within 100 ms of sbatch.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
JOB = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --mem=64000
#SBATCH --hold
srun hostname
"""


def timed(argv: list[str], environ: dict[str, str], cwd: str) -> tuple[float, int]:
    """(milliseconds, job id)."""
    began = time.perf_counter()
    done = subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, check=True)
    return 1000 * (time.perf_counter() - began), int(re.findall(r"\d+", done.stdout)[-1])


def lab_environ(directory: str) -> dict[str, str]:
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    shown = subprocess.run(
        ["slurmwrap", "lab", "env", "--dir", directory], env=environ, capture_output=True, text=True, check=True
    ).stdout
    for name, value in re.findall(r"^export (SLURM_CONF|SLURMWRAP_CONFIG)=(.*)$", shown, re.MULTILINE):
        environ[name] = shlex.split(value)[0]
    return environ


def measure(environ: dict[str, str], cwd: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each command, taken in turn so that both see the same machine."""
    commands = {
        "sbatch": ["sbatch", "job.sbatch"],
        "gsub": ["gsub", "--prerun=off", "job.sbatch"],
        "python -c pass": [sys.executable, "-I", "-c", "print('0')"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(rounds + 2):
        for name, argv in commands.items():
            milliseconds, job = timed(argv, environ, cwd)
            if job:
                subprocess.run(["scancel", str(job)], env=environ, check=True)
            if round_number >= 2:  # the first two warm the page cache
                taken[name].append(milliseconds)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--dir", help="a lab that is up already; default: one is made for the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-", dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o755)  # the lab serves several users
        directory = options.dir or f"{scratch}/lab"
        slurmwrap = [str(BIN / "slurmwrap"), "lab"]
        if not options.dir:
            quiet = subprocess.DEVNULL
            up = [*slurmwrap, "up", "--dir", directory, "--base-port", "23800", "--no-reconcile"]
            subprocess.run(up, check=True, stdout=quiet, stderr=None if sys.stderr.isatty() else quiet)
        try:
            Path(scratch, "job.sbatch").write_text(JOB)
            environ = {**lab_environ(directory), "HOME": scratch, "XDG_STATE_HOME": f"{scratch}/state"}
            taken = measure(environ, scratch, options.rounds)
        finally:
            if not options.dir:
                subprocess.run([*slurmwrap, "down", "--dir", directory], check=True, stdout=subprocess.DEVNULL)
    for name, values in taken.items():
        print(f"{name:15} median {statistics.median(values):7.1f} ms   min {min(values):7.1f}   max {max(values):7.1f}")
    over = statistics.median(taken["gsub"]) - statistics.median(taken["sbatch"])
    ratio = statistics.median(taken["gsub"]) / statistics.median(taken["sbatch"])
    print(f"gsub − sbatch: {over:.1f} ms, gsub / sbatch: {ratio:.1f} (budget: 100 ms), n = {options.rounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
