"""The speed of the simulator: the measurements of bench/simulator.py in the evaluation's own run, without a peer."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulation.child import ROOT

from evaluation.tables import block, number, table

COMMAND = "python bench/simulator.py --plot docs/evaluation/speed.svg"


def report(plot: Path, *, quick: bool) -> dict[str, Any]:
    """Return its JSON. It exits with 1 when a budget does not hold, which the report shows too."""
    less = ["--sizes", "500", "1000", "--kinds", "rounds fifo", "slurm fifo"] if quick else []
    argv = [sys.executable, "bench/simulator.py", "--json", "--plot", str(plot), *less]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def page(measured: dict[str, Any]) -> str:
    most = max(row["jobs"] for row in measured["rows"])
    rows = [
        [
            row["kind"],
            f"{row['jobs']:,}",
            number(row["wall_s"], 1),
            number(row["us_per_job"], 0),
            number(row["peak_mib"], 0),
            f"jobs^{measured['growth'][row['kind']]:.2f}" if row["kind"] in measured["growth"] else "-",
        ]
        for row in measured["rows"]
        if row["jobs"] == most
    ]
    peer = measured["peer"]
    head = ["mode and policy", ">jobs", ">wall s", ">µs per job", ">peak MiB", ">cost per job grows as"]
    return "\n".join(
        [
            table(head, rows),
            "",
            f"Measured on the machine of this run: {_machine()}. The {peer['jobs']:,} jobs in rounds of 300 s, FIFO: "
            f"{peer['ours_s']:.1f} s from the file to the JSON; {peer['peer']}, which can do nothing else, "
            f"{peer['theirs_s']:.1f} s, with {'the same' if peer['same'] else 'another'} mean JCT. The budgets (60 s, "
            f"2 GiB, near constant): {measured['verdict']}. On 64 servers the queue "
            "grows for weeks, and each look at it costs; that is for information.",
            "",
            block(COMMAND),
        ]
    )


def _machine() -> str:

    return f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
