"""Draws a profile into an SVG or PNG file, by matplotlib: the optional extra `plot`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.model.cpu_curve import GOOD, least_cpus
from slurmwrap.model.resource_profile import ResourceProfile

KINDS = (".svg", ".png")


def draw_profile(profile: ResourceProfile, path: Path) -> None:
    """Writes the file. UsageError where matplotlib is missing, the ending is another, or there is nothing to draw."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {path}: a file ending in .svg or .png is wanted", exit_code=1)
    if not profile.cpu_curve:
        raise UsageError(
            f"'{profile.key}' has no CPU curve to draw", hint="slurmwrap profile measure SCRIPT", exit_code=1
        )
    figure = _make_figure()
    axes = figure.subplots()
    _plot_curve(axes, profile)
    figure.suptitle(profile.key, fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", exit_code=1) from error


def _make_figure() -> Any:
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed", hint="pip install 'slurmwrap[plot]'", exit_code=1
        ) from error
    return figures.Figure(figsize=(6.4, 3.8), layout="constrained")  # no pyplot: nothing asks for a display


def _plot_curve(axes: Any, profile: ResourceProfile) -> None:
    cpus = [point.cpus for point in profile.cpu_curve]
    rates = [point.steps_per_s for point in profile.cpu_curve]
    spreads = [point.spread * point.steps_per_s for point in profile.cpu_curve]
    least = least_cpus(profile.cpu_curve)
    best = max(rates)
    axes.axhspan(GOOD * best, best, color="#2a9d8f", alpha=0.15, linewidth=0, label="within 5 % of the best")
    axes.errorbar(cpus, rates, yerr=spreads, marker="o", color="#264653", capsize=3, label="measured")
    if least is not None:
        axes.plot(
            [least], [rates[cpus.index(least)]], "o", color="#e76f51", markersize=10, label=f"{least} CPUs suffice"
        )
    axes.set_xlabel("CPUs per GPU")
    axes.set_ylabel("steps/s" if profile.steps_per_s is not None or profile.source != "import" else "relative speed")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
