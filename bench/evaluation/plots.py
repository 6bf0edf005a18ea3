"""Draw the evaluation's own plots; plots of single loads are drawn by `slurmwrap simulate --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from queue_order import LOADS, WindowResult

from evaluation.synergy import Seed

# Least wait over run time that is distinguished in a plot.
_LEAST_WAIT = 0.01


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


def _figure(columns: int, title: str) -> tuple[Any, Any]:
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def orders(results: Sequence[WindowResult], path: Path) -> None:
    """Plot how many times shorter the mean JCT is than in the order of submission, by how long jobs wait there."""
    looks = {"exact": ("o", "#cccccc", "exact run times"), "shortest": ("o", "#264653", "predicted run times")}
    waits = {(one.start, one.load): one.mean_wait_s / one.mean_run_s for one in results if not one.order}
    figure, axes = _figure(
        len(LOADS), "Mean JCT in the order of submission over mean JCT by run times; a dot is a window"
    )
    for panel, load in zip(axes, LOADS, strict=True):
        for order, (marker, colour, label) in looks.items():
            group = [one for one in results if (one.order, one.limits, one.load) == (order, "", load)]
            at = [max(_LEAST_WAIT, waits[one.start, load]) for one in group]
            panel.plot(at, [one.ratio for one in group], marker, color=colour, markersize=4, label=label)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        _finish_windows(panel, f"offered load {load}", "mean wait / mean run time, in the order of submission")
    figure.savefig(path, metadata={"Date": None})


def limits(results: Sequence[WindowResult], path: Path) -> None:
    """Plot the same for time limits, alone and with the order."""
    looks = {
        ("", "user"): ("x", "#e9c46a", "limits of the users"),
        ("", "predicted"): ("s", "#e76f51", "predicted limits"),
        ("shortest", "predicted"): ("o", "#264653", "predicted limits and order"),
    }
    figure, axes = _figure(len(LOADS), "Mean JCT with limits of 24 h, in the order of submission, over mean JCT")
    for one, load in zip(axes, LOADS, strict=True):
        for (order, kind), (marker, colour, label) in looks.items():
            _plot_windows(
                one, [r for r in results if (r.order, r.limits, r.load) == (order, kind, load)], marker, colour, label
            )
        _finish_windows(one, f"offered load {load}", "window (shaded: contended)")
    figure.savefig(path, metadata={"Date": None})


def _plot_windows(axes: Any, results: Sequence[WindowResult], marker: str, colour: str, label: str) -> None:
    at = range(1, len(results) + 1)
    axes.plot(at, [one.ratio for one in results], marker, color=colour, markersize=5, label=label)
    for place, one in zip(at, results, strict=True):
        if one.contended:
            axes.axvspan(place - 0.5, place + 0.5, color="#888888", alpha=0.03, linewidth=0)


def _finish_windows(axes: Any, title: str, below: str) -> None:
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.set_title(title, fontsize=9)
    axes.set(xlabel=below, ylabel="times shorter")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
