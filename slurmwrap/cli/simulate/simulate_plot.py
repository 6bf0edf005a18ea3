"""Draws runs of the simulator into one SVG or PNG: JCT, queueing delay, GPUs wanted. By matplotlib (extra `sim`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from slurmwrap.cli.simulate.simulate_output import Ran
from slurmwrap.errors import UsageError

KINDS = (".svg", ".png")
_HOUR = 3600.0
_POINTS = 400  # of a line at most: the eye sees no more, and an SVG stays small
_COLOURS = ("#264653", "#e76f51", "#2a9d8f", "#e9c46a", "#8e5ea2", "#f4a261", "#577590", "#888888")
_STYLES = ("-", "--", ":", "-.")


def check_plot_file(path: Path) -> None:
    """UsageError where this file could not be written, before anything is simulated."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {path}: a file ending in .svg or .png is wanted", exit_code=1)
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no directory {path.parent}", exit_code=1)
    if path.is_dir():
        raise UsageError(f"--plot {path}: that is a directory", exit_code=1)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--plot {path}: the directory {path.parent} is not writable", exit_code=1)
    _matplotlib("figure")


def draw_simulations(runs: Sequence[Ran], path: Path) -> None:
    """Writes the file aside and renames it: whole or not at all. UsageError says why it cannot be written."""
    _matplotlib("rcParams").update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = _matplotlib("figure").Figure(figsize=(9.6, 6.4), layout="constrained")  # no pyplot: no display
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1))
    jct, queued = upper.subplots(1, 2, sharey=True)
    load = lower.subplots()
    for at, (name, group) in enumerate(_name_runs(runs).items()):
        style = _STYLES[at // len(_COLOURS) % len(_STYLES)]
        look = {"color": _COLOURS[at % len(_COLOURS)], "linestyle": style, "linewidth": 1.3}
        _plot_ecdf(jct, [value for ran in group for value in _list_jcts(ran)], label=name, **look)
        _plot_ecdf(queued, [value for ran in group for value in _list_waits(ran)], label=name, **look)
        _wanted(load, group[0], **look)
    _dress(jct, queued, load, runs)
    figure.suptitle(_format_title(runs), fontsize=10)
    _save(figure, path)


def _name_runs(runs: Sequence[Ran]) -> dict[str, list[Ran]]:
    """By what the runs differ in; seeds together."""
    differ = [key for key in runs[0].kind if len({ran.kind[key] for ran in runs}) > 1] or ["policy", "mechanism"]
    named: dict[str, list[Ran]] = {}
    for ran in runs:
        named.setdefault(", ".join(ran.kind[key] for key in differ), []).append(ran)
    return named


def _format_title(runs: Sequence[Ran]) -> str:
    worlds = dict.fromkeys(
        "slurm (nothing is taken back)"
        if ran.simulation.mode == "slurm"
        else f"rounds of {ran.simulation.round_s:g} s (leases end)"
        if ran.simulation.round_s
        else "rounds of no length (leases end at any event)"
        for ran in runs
    )
    asked = runs[0].simulation
    gpus = sum(server.gpus for server in asked.servers)
    return f"{Path(runs[0].trace).name}: {len(asked.jobs):,} jobs on {gpus:,} GPUs. World: {'; '.join(worlds)}"


def _list_jcts(ran: Ran) -> list[float]:
    window = ran.simulation.window
    return [
        (end - job.submit_s) / _HOUR
        for job, end in zip(ran.simulation.jobs, ran.outcome.ended_s, strict=True)
        if end is not None and (window is None or job.number in window)
    ]


def _list_waits(ran: Ran) -> list[float]:
    window = ran.simulation.window
    return [
        max(0.0, end - job.submit_s - held) / _HOUR
        for job, end, held in zip(ran.simulation.jobs, ran.outcome.ended_s, ran.outcome.held_s, strict=True)
        if end is not None and (window is None or job.number in window)
    ]


def _plot_ecdf(axes: Any, values: Sequence[float], **look: Any) -> None:
    ordered = sorted(values)
    ranks = range(len(ordered)) if len(ordered) <= _POINTS else [len(ordered) * at // _POINTS for at in range(_POINTS)]
    steps = [*ranks, len(ordered) - 1]
    axes.step([ordered[at] for at in steps], [(at + 1) / len(ordered) for at in steps], where="post", **look)


def _wanted(axes: Any, ran: Ran, **look: Any) -> None:
    times, gpus = wanted(ran)
    axes.step([time / _HOUR for time in times], gpus, where="post", **look)


def wanted(ran: Ran, points: int = _POINTS) -> tuple[list[float], list[float]]:
    """(seconds, GPUs that jobs want from then on), averaged over at most `points` equal pieces of the run.

    Of the jobs that were submitted and have not ended, running or not: what is above the cluster's GPUs waits.
    """
    changes = [
        change
        for job, end in zip(ran.simulation.jobs, ran.outcome.ended_s, strict=True)
        if end is not None and end > job.submit_s
        for change in ((job.submit_s, float(job.gpus)), (end, -float(job.gpus)))
    ]
    return _averaged(sorted(changes), points) if changes else ([], [])


def _averaged(changes: Sequence[tuple[float, float]], points: int) -> tuple[list[float], list[float]]:
    first, last = changes[0][0], changes[-1][0]
    width = (last - first) / points
    sums = [0.0] * points
    level, since = 0.0, first
    for time, change in changes:
        _pour(sums, (since - first) / width, (time - first) / width, level)
        level, since = level + change, time
    return [first + at * width for at in range(points + 1)], [*(max(0.0, one) for one in sums), 0.0]


def _pour(sums: list[float], start: float, end: float, level: float) -> None:
    """Adds `level` to each piece by the part of it that lies between `start` and `end` (in pieces)."""
    at = int(start)
    while at < len(sums) and at < end:
        sums[at] += level * (min(end, at + 1) - max(start, at))
        at += 1


def _dress(jct: Any, queued: Any, load: Any, runs: Sequence[Ran]) -> None:
    if any(value > 0 for ran in runs for value in _list_jcts(ran)):
        jct.set_xscale("log")
    queued.set_xscale("symlog", linthresh=0.1)
    jct.set_xlabel("JCT, h")
    queued.set_xlabel("queueing delay, h")
    jct.set_ylabel("share of the jobs")
    queued.set_xlim(left=0)
    load.set_xlabel("h since the first submission")
    load.set_ylabel("GPUs wanted, running or waiting")
    load.axhline(
        sum(server.gpus for server in runs[0].simulation.servers),
        color="#888888",
        linewidth=0.8,
        label="GPUs of the cluster",
    )
    load.legend(frameon=False, fontsize=8)
    load.set_xlim(left=0)
    for axes in (jct, queued):
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter("{x:g}")
    load.set_ylim(bottom=0)
    for axes in (jct, queued, load):
        axes.grid(alpha=0.3)
    if len(_name_runs(runs)) > 1:
        jct.legend(frameon=False, fontsize=8)


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix.lower().lstrip(".")
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(aside, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        aside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", exit_code=1) from error
    finally:
        aside.unlink(missing_ok=True)


def _matplotlib(part: str) -> Any:
    try:
        return getattr(import_module("matplotlib"), part) if part == "rcParams" else import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed", hint="pip install 'slurmwrap[sim]'", exit_code=1
        ) from error
