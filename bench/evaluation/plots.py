"""Draw the evaluation's own plots; plots of single loads are drawn by `slurmwrap simulate --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from evaluation.synergy import Seed


def spread(found: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Plot per load and seed how many times shorter tune is than proportional, and graded and opt than tune."""
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.8), layout="constrained")
    for axes, (name, seeds) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        _panel(axes, name, seeds)
    figure.suptitle("Generated loads, seed by seed: times shorter. World: rounds of 300 s (leases end)", fontsize=10)
    figure.savefig(path, metadata={"Date": None})


def _panel(axes: Any, name: str, seeds: Sequence[Seed]) -> None:
    at = [one.seed for one in seeds]
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.plot(at, [one.tune for one in seeds], "o", color="#264653", label="proportional / tune", zorder=3)
    axes.vlines(at, 1, [one.opt for one in seeds], color="#e9c46a", linewidth=6, alpha=0.6, label="tune / opt")
    axes.plot(at, [one.graded for one in seeds], "D", color="#e76f51", markersize=5, label="tune / graded", zorder=4)
    axes.set_title(name, fontsize=9)
    axes.set_xlabel("seed")
    axes.set_ylabel("times shorter")
    axes.set_xticks(at)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
