"""Draw a report of bench/simulator.py: cost per job and memory over the number of jobs, by matplotlib."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

COLOURS = ("#264653", "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51", "#8e5ea2", "#577590")


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the chart to `path` (.svg or .png)."""
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.8), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    for number, kind in enumerate(report["growth"]):
        rows = [row for row in report["rows"] if row["kind"] == kind]
        jobs = [row["jobs"] / 1000 for row in rows]
        look = {"color": COLOURS[number % len(COLOURS)], "label": kind}
        style = "s--" if kind.startswith("slurm") else "o-"
        cost.plot(jobs, [row["us_per_job"] for row in rows], style, markersize=4, **look)
        memory.plot(jobs, [row["peak_mib"] for row in rows], style, markersize=4, **look)
    cost.set_ylabel("µs per job, without starting")
    memory.set_ylabel("peak MiB, whole process")
    for axes in (cost, memory):
        axes.set_xlabel("thousand jobs, from the beginning of Philly's trace")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    memory.legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle("Cost of a simulated job, on 96 servers of 8 GPUs; mode and policy", fontsize=10)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
