"""Draw a report of bench/planning.py: times and memory over nodes, with their budgets, by matplotlib."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the chart to `path` (.svg or .png). Raise SystemExit when matplotlib is missing."""
    try:
        figures = import_module("matplotlib.figure")
        import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install 'slurmwrap[plot]'") from None
    figure = figures.Figure(figsize=(9.6, 3.6), layout="constrained")  # without pyplot, no display is needed
    times, memory = figure.subplots(1, 2, width_ratios=(2, 1))
    rows = report["rows"]
    nodes = [row["nodes"] for row in rows]
    for kind, colour in zip(rows[0]["plans"], ("#264653", "#2a9d8f", "#e9c46a", "#f4a261"), strict=False):
        times.plot(nodes, [row["plans"][kind] for row in rows], "o-", color=colour, label=f"plan, {kind}")
    times.plot(nodes, [row["parse ms"] for row in rows], "s-", color="#e76f51", label="parse")
    times.plot(
        nodes, [row["json.loads ms"] for row in rows], ":", color="#888888", label="json.loads of the same facts"
    )
    times.axhline(100, color="#264653", alpha=0.35, linewidth=1)
    times.axhline(250, color="#e76f51", alpha=0.35, linewidth=1)
    times.set_ylabel("ms")
    times.legend(frameon=False, fontsize=8)
    memory.plot(nodes, [row["peak MiB"] for row in rows], "o-", color="#264653", label="whole process")
    memory.axhline(300, color="#264653", alpha=0.35, linewidth=1)
    memory.set_ylabel("peak MiB")
    for axes in (times, memory):
        axes.set_xlabel("nodes of 8 GPUs, a running job for two")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle("Reading and planning, caches cold; lines: budgets at 10,000 nodes", fontsize=10)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
