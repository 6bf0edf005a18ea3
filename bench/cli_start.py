"""Measure the start of `slurmwrap` commands that read nothing, next to a Python that does nothing.

Each round runs every command once, so that all run under the same conditions. Prints medians and ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SLURMWRAP = Path(sys.executable).with_name("slurmwrap")
PEER = "python -c pass"
# Command → the limit as a multiple of its peer; None: no limit.
COMMANDS: dict[str, float | None] = {
    PEER: None,
    "slurmwrap --version": 8.0,
    "slurmwrap --help": None,
    "slurmwrap why": 20.0,
    "slurmwrap history": None,
    "slurmwrap report": None,
    "slurmwrap reconcile --user": None,
}


def time_command(command: str, environ: dict[str, str]) -> float:
    """Return milliseconds. The exit code is ignored: without a Slurm some commands end with an error."""
    program, *words = command.split()
    argv = [sys.executable if program == "python" else str(SLURMWRAP), *words]
    began = time.perf_counter()
    subprocess.run(argv, env=environ, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def run_rounds(rounds: int) -> dict[str, list[float]]:
    """Return command → milliseconds of each round but the first, in an empty home and without a Slurm."""
    with tempfile.TemporaryDirectory() as home:
        environ = {"PATH": os.environ["PATH"], "HOME": home, "SLURM_CONF": f"{home}/none", "LANG": "C.UTF-8"}
        taken = [{command: time_command(command, environ) for command in COMMANDS} for _ in range(rounds + 1)][1:]
    return {command: [one[command] for one in taken] for command in COMMANDS}


def render_table(taken: dict[str, list[float]]) -> str:
    """Return the figures as a Markdown table."""
    base = median(taken[PEER])
    rows = [f"| command, n = {len(taken[PEER])} | median ms | times `{PEER}` | limit |", "|---|---|---|---|"]
    for command, values in taken.items():
        ratio, limit = median(values) / base, COMMANDS[command]
        told = "" if limit is None else f"{limit:.0f}: {'kept' if ratio <= limit else 'MISSED'}"
        rows.append(f"| {command} | {median(values):.0f} | {ratio:.1f} | {told} |")
    return "\n".join(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    print(render_table(run_rounds(parser.parse_args().rounds)))
