"""Format the runs of `slurmwrap simulate` as text or JSON, and draw them into a file (adapter: matplotlib)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.report import text_format
from slurmwrap.sim.engines.sim_moves import MOVES, SimMoveSettings
from slurmwrap.sim.run_simulation import Simulation
from slurmwrap.sim.sim_outcome import SimOutcome, TimeSummary, compute_fairness
from slurmwrap.store.atomic_write import write_output_file

_UNITS = {"h": "hours", "s": "seconds"}
# Properties in which the runs of one call may differ, in addition to the seed.
_KINDS = ("world", "placement", "policy", "mechanism", "order", "limits", "pack", "preempt")
# Values that are not worth a word if all runs have them.
_USUAL = {"order": "fifo", "limits": "trace", "pack": "0", "preempt": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """One run: its input and its result."""

    trace: str  # as named on the command line
    seed: int | None  # None unless the load is generated
    simulation: Simulation
    outcome: SimOutcome
    summary: TimeSummary

    @property
    def kind(self) -> Mapping[str, str]:
        asked = self.simulation
        return {
            "world": asked.mode,
            "placement": asked.placement,
            "policy": asked.policy,
            "mechanism": asked.mechanism,
            "order": asked.order or "fifo",
            "limits": asked.limits or "trace",
            "pack": f"{asked.pack.consent:g}",
            "preempt": name_occasions(asked.move),
        }


def name_occasions(move: SimMoveSettings) -> str:
    """Return the value of --preempt."""
    return next((name for name, occasions in MOVES.items() if occasions == move.occasions), "off")


def simulation_to_json_dict(ran: SimulationRun) -> dict[str, Any]:
    """Return the object of one run for --json: the measures, and the parameters that they belong to."""
    asked, server = ran.simulation, ran.simulation.servers[0]
    return {
        "trace": ran.trace,
        "seed": ran.seed,
        "mode": asked.mode,
        "policy": asked.policy,
        "mechanism": asked.mechanism,
        "placement": asked.placement,
        "order": asked.order or None,
        "limits": asked.limits or None,
        "pack": asked.pack.consent,
        "preempt": name_occasions(asked.move),
        "round_s": asked.round_s if asked.mode == "rounds" else None,
        "servers": len(asked.servers),
        "gpus_per_server": server.gpus,
        "cpus_per_server": server.cpus,
        "mem_mib_per_server": server.mem_mib,
        "trace_jobs": len(asked.jobs),
        **asdict(ran.summary),
        "servers_per_multi_gpu_job": servers_per_multi_gpu_job(ran),
        "packed": ran.outcome.packed,
        "finish_time_fairness": compute_fairness(asked.jobs, ran.outcome, asked.servers),
        "updates": ran.outcome.updates,
        "steps": ran.outcome.steps,
    }


def servers_per_multi_gpu_job(ran: SimulationRun) -> float | None:
    """Return the mean number of servers of jobs with several GPUs.

    None if there was no such job, or in rounds, which do not place jobs.
    """
    found = [
        servers
        for job, servers in zip(ran.simulation.jobs, ran.outcome.servers, strict=True)
        if job.gpus > 1 and servers
    ]
    return fmean(found) if found and ran.simulation.mode == "slurm" else None


def format_simulations(runs: Sequence[SimulationRun], columns: int) -> str:
    """Return one run as a list, several as a table that compares them with the first, with spreads over the seeds."""
    if len(runs) == 1:
        body = _format_list(runs[0])
    elif len({ran.seed for ran in runs}) == 1:
        body = _format_table(runs, columns)
    else:
        body = _format_spread(runs, columns)
    what = (text_format.wrapped(line, columns=columns) for line in (*_describe_runs(runs), *_describe_worlds(runs)))
    return "\n".join([*what, "", body])


def _describe_runs(runs: Sequence[SimulationRun]) -> tuple[str, str]:
    asked, server = runs[0].simulation, runs[0].simulation.servers[0]
    seeds = list(dict.fromkeys(ran.seed for ran in runs if ran.seed is not None))
    drawn = (
        f", seed {seeds[0]}" if len(seeds) == 1 else f", {len(seeds)} seeds ({_format_range(seeds)})" if seeds else ""
    )
    gpus = f"{server.gpus} GPUs, {server.cpus} CPUs, {server.mem_mib / 1024:g} GB"
    same = {name: next(iter(values)) for name, values in _group_values(runs).items() if len(values) == 1}
    fixed = [f"{name} {value}" for name, value in same.items() if name != "world" and value != _USUAL.get(name)]
    measured = f"; measured: {runs[0].summary.jobs} of them" if runs[0].summary.jobs != len(asked.jobs) else ""
    name = text_format.visible(runs[0].trace)
    load = text_format.count(len(asked.jobs), "job")
    return f"{name}: {load}{drawn}, on {len(asked.servers):,} x ({gpus}){measured}", "   ".join(fixed)


def _group_values(runs: Sequence[SimulationRun]) -> dict[str, dict[str, None]]:
    return {name: dict.fromkeys(ran.kind[name] for ran in runs) for name in _KINDS}


def _format_range(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _describe_worlds(runs: Sequence[SimulationRun]) -> list[str]:
    """Return a sentence about each world from which figures are shown."""
    found = []
    for ran in runs:
        asked = ran.simulation
        if asked.move.occasions:
            text = f"slurm: running jobs are moved at a checkpoint, every {asked.move.checkpoint_s:g} s; backfill"
        elif asked.mode == "slurm":
            text = "slurm: nothing is taken back from a running job; backfill"
        elif asked.round_s > 0:
            text = f"rounds: every {asked.round_s:g} s all leases end and jobs are placed anew"
        else:
            text = "rounds of no length: jobs are preempted at any event, at no cost"
        found.append(f"world {text}")
    return list(dict.fromkeys(found))


def _format_list(ran: SimulationRun) -> str:
    one = ran.summary
    unit = _select_unit([ran])
    rows = [
        ("makespan", _format_time(one.makespan_s, unit)),
        ("mean JCT", _format_time(one.mean_jct_s, unit)),
        ("median JCT", _format_time(one.median_jct_s, unit)),
        ("p95 JCT", _format_time(one.p95_jct_s, unit)),
        ("p99 JCT", _format_time(one.p99_jct_s, unit)),
        ("mean queueing", _format_time(one.mean_queueing_s, unit)),
        ("p99 queueing", _format_time(one.p99_queueing_s, unit)),
    ]
    lines = [f"  {name:14} {value:>12} {unit}" for name, value in rows]
    lines.append(f"  {'GPUs in use':14} {100 * one.gpu_utilisation:>12.1f} %")
    lines.append(f"  {'preemptions':14} {one.preemptions:>12,}")
    fairness = compute_fairness(ran.simulation.jobs, ran.outcome, ran.simulation.servers)
    if len(fairness) > 1:
        user, rho = next(iter(fairness.items()))
        lines.append(f"  {'worst user':14} {rho:>12.2f} x the JCT on an equal part: {text_format.visible(user)}")
    if ran.outcome.packed:
        lines.append(f"  {'joined another':14} {ran.outcome.packed:>12,}")
    return "\n".join(lines)


def _format_table(runs: Sequence[SimulationRun], columns: int) -> str:
    """Return one line per run with the measures that fit; x: how many times shorter than in the first run."""
    unit, differ = _select_unit(runs), _list_differing(runs)
    # Each run is compared with the first run of its own world: different worlds cannot be compared.
    first = {ran.simulation.mode: ran.summary for ran in reversed(runs)}
    measures: dict[str, list[str]] = {
        "makespan": [_format_time(ran.summary.makespan_s, unit) for ran in runs],
        "mean JCT": [_format_time(ran.summary.mean_jct_s, unit) for ran in runs],
        "p99": [_format_time(ran.summary.p99_jct_s, unit) for ran in runs],
        "queued": [_format_time(ran.summary.mean_queueing_s, unit) for ran in runs],
        "GPU%": [f"{100 * ran.summary.gpu_utilisation:.1f}" for ran in runs],
        "x span": [_format_ratio(first[ran.simulation.mode].makespan_s, ran.summary.makespan_s) for ran in runs],
        "x JCT": [_format_ratio(first[ran.simulation.mode].mean_jct_s, ran.summary.mean_jct_s) for ran in runs],
    }
    labels = {name: [ran.kind[name] for ran in runs] for name in differ}
    for spare in ("p99", "queued", "GPU%"):
        if _count_needed_columns([*labels.items(), *measures.items()]) > columns:
            del measures[spare]
    head = [*differ, *(f">{name}" for name in measures)]
    text = text_format.table(head, zip(*labels.values(), *measures.values(), strict=True), columns=columns)
    than = "the first of its world" if len(_group_values(runs)["world"]) > 1 else "the first"
    note = f"Times in {_UNITS[unit]}. JCT: submission to end; queued: mean without GPUs; x: times shorter than {than}."
    return f"{text}\n\n{text_format.wrapped(note, columns=columns)}"


# A column of a table: its heading and its cells.
_Column = tuple[str, Sequence[str]]


def _count_needed_columns(table: Sequence[_Column]) -> int:
    """Return the number of terminal columns that the table needs."""
    return sum(2 + max(len(name.lstrip(">")), *map(len, cells)) for name, cells in table)


def _format_spread(runs: Sequence[SimulationRun], columns: int) -> str:
    """Return one line per kind of run with means over the seeds; on a narrow terminal one table per measure."""
    groups: dict[tuple[str, ...], list[SimulationRun]] = {}
    for ran in runs:
        groups.setdefault(tuple(ran.kind.values()), []).append(ran)
    labels = [(name, [group[0].kind[name] for group in groups.values()]) for name in _list_differing(runs)]
    unit = _select_unit(runs)
    spans = _compare_over_seeds(list(groups.values()), "makespan_s", f">makespan {unit}", unit)
    jcts = _compare_over_seeds(list(groups.values()), "mean_jct_s", f">mean JCT {unit}", unit)
    whole = [*labels, *spans, *jcts]
    tables = [whole] if _count_needed_columns(whole) <= columns else [[*labels, *spans], [*labels, *jcts]]
    text = "\n\n".join(
        text_format.table([head for head, _ in one], zip(*(cells for _, cells in one), strict=True), columns=columns)
        for one in tables
    )
    than = "the first of its world" if len(_group_values(runs)["world"]) > 1 else "the first"
    note = f"Means over the seeds. JCT: submission to end; x: times shorter than {than}, seed by seed."
    return f"{text}\n\n{text_format.wrapped(note, columns=columns)}"


def _compare_over_seeds(groups: Sequence[Sequence[SimulationRun]], measure: str, head: str, unit: str) -> list[_Column]:
    """Return the columns of a measure: its mean, and how many times shorter it is than the first kind's.

    The latter is the mean over the seeds (least-most). Kinds are only compared within one world.
    """
    first = {group[0].simulation.mode: group for group in reversed(groups)}
    means, spreads = [], []
    for group in groups:
        values = [getattr(ran.summary, measure) for ran in group]
        base = [getattr(ran.summary, measure) for ran in first[group[0].simulation.mode]]
        ratios = [a / b if b else 1.0 for a, b in zip(base, values, strict=True)]
        means.append(_format_time(fmean(values), unit))
        spreads.append(f"{fmean(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})")
    return [(head, means), (">x (least-most)", spreads)]


def _list_differing(runs: Sequence[SimulationRun]) -> list[str]:
    found = [name for name, values in _group_values(runs).items() if len(values) > 1]
    return found or ["policy"]


def _select_unit(runs: Sequence[SimulationRun]) -> str:
    return "h" if max(ran.summary.makespan_s for ran in runs) >= 7200 else "s"


def _format_time(seconds: float, unit: str) -> str:
    return f"{seconds / 3600:,.3f}" if unit == "h" else f"{seconds:,.1f}"


def _format_ratio(first: float, this: float) -> str:
    return f"{first / this:.3f}" if this else "-"


# The plot: JCT, queueing delay and requested GPUs in one SVG or PNG file, drawn by matplotlib (extra `sim`).
KINDS = (".svg", ".png")
_HOUR = 3600.0
# Largest number of points of a line: more are not visible, and the SVG stays small.
_MOST_POINTS = 400
_COLOURS = ("#264653", "#e76f51", "#2a9d8f", "#e9c46a", "#8e5ea2", "#f4a261", "#577590", "#888888")
_STYLES = ("-", "--", ":", "-.")


def check_plot_file(path: Path) -> None:
    """Raise UsageError if this file could not be written. Called before the simulation."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {path}: a file ending in .svg or .png is wanted", exit_code=1)
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no directory {path.parent}", exit_code=1)
    if path.is_dir():
        raise UsageError(f"--plot {path}: that is a directory", exit_code=1)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--plot {path}: the directory {path.parent} is not writable", exit_code=1)
    _import_matplotlib("figure")


def draw_simulations(runs: Sequence[SimulationRun], path: Path) -> None:
    """Draw the runs into a file, atomically by a rename. Raise UsageError if it cannot be written."""
    _import_matplotlib("rcParams").update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    # Not pyplot, which may need a display.
    figure = _import_matplotlib("figure").Figure(figsize=(9.6, 6.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1))
    jct, queued = upper.subplots(1, 2, sharey=True)
    load = lower.subplots()
    for at, (name, group) in enumerate(_name_runs(runs).items()):
        style = _STYLES[at // len(_COLOURS) % len(_STYLES)]
        look = {"color": _COLOURS[at % len(_COLOURS)], "linestyle": style, "linewidth": 1.3}
        _plot_ecdf(jct, [value for ran in group for value in _list_jcts(ran)], label=name, **look)
        _plot_ecdf(queued, [value for ran in group for value in _list_waits(ran)], label=name, **look)
        _plot_wanted_gpus(load, group[0], **look)
    _format_axes(jct, queued, load, runs)
    figure.suptitle(_format_title(runs), fontsize=10)
    _save_figure(figure, path)


def _name_runs(runs: Sequence[SimulationRun]) -> dict[str, list[SimulationRun]]:
    """Group the runs under names made of the properties in which they differ; all seeds are one group."""
    differ = [key for key in runs[0].kind if len({ran.kind[key] for ran in runs}) > 1] or ["policy", "mechanism"]
    named: dict[str, list[SimulationRun]] = {}
    for ran in runs:
        named.setdefault(", ".join(ran.kind[key] for key in differ), []).append(ran)
    return named


def _format_title(runs: Sequence[SimulationRun]) -> str:
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


def _list_jcts(ran: SimulationRun) -> list[float]:
    window = ran.simulation.window
    return [
        (end - job.submit_s) / _HOUR
        for job, end in zip(ran.simulation.jobs, ran.outcome.ended_s, strict=True)
        if end is not None and (window is None or job.number in window)
    ]


def _list_waits(ran: SimulationRun) -> list[float]:
    window = ran.simulation.window
    return [
        max(0.0, end - job.submit_s - held) / _HOUR
        for job, end, held in zip(ran.simulation.jobs, ran.outcome.ended_s, ran.outcome.held_s, strict=True)
        if end is not None and (window is None or job.number in window)
    ]


def _plot_ecdf(axes: Any, values: Sequence[float], **look: Any) -> None:
    ordered = sorted(values)
    ranks = (
        range(len(ordered))
        if len(ordered) <= _MOST_POINTS
        else [len(ordered) * at // _MOST_POINTS for at in range(_MOST_POINTS)]
    )
    steps = [*ranks, len(ordered) - 1]
    axes.step([ordered[at] for at in steps], [(at + 1) / len(ordered) for at in steps], where="post", **look)


def _plot_wanted_gpus(axes: Any, ran: SimulationRun, **look: Any) -> None:
    times, gpus = compute_wanted_gpus(ran)
    axes.step([time / _HOUR for time in times], gpus, where="post", **look)


def compute_wanted_gpus(ran: SimulationRun, points: int = _MOST_POINTS) -> tuple[list[float], list[float]]:
    """Return times in seconds, and the GPUs that jobs request from each time on.

    The values are means over `points` equal pieces of the run. They count all jobs that were submitted and have not
    ended, whether they run or not: what exceeds the cluster's GPUs waits.
    """
    changes = [
        change
        for job, end in zip(ran.simulation.jobs, ran.outcome.ended_s, strict=True)
        if end is not None and end > job.submit_s
        for change in ((job.submit_s, float(job.gpus)), (end, -float(job.gpus)))
    ]
    return _average_over_pieces(sorted(changes), points) if changes else ([], [])


def _average_over_pieces(changes: Sequence[tuple[float, float]], points: int) -> tuple[list[float], list[float]]:
    first, last = changes[0][0], changes[-1][0]
    width = (last - first) / points
    sums = [0.0] * points
    level, since = 0.0, first
    for time, change in changes:
        _add_to_pieces(sums, (since - first) / width, (time - first) / width, level)
        level, since = level + change, time
    return [first + at * width for at in range(points + 1)], [*(max(0.0, one) for one in sums), 0.0]


def _add_to_pieces(sums: list[float], start: float, end: float, level: float) -> None:
    """Add `level` to each piece, times the share of the piece between `start` and `end` (both in pieces)."""
    at = int(start)
    while at < len(sums) and at < end:
        sums[at] += level * (min(end, at + 1) - max(start, at))
        at += 1


def _format_axes(jct: Any, queued: Any, load: Any, runs: Sequence[SimulationRun]) -> None:
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


def _save_figure(figure: Any, path: Path) -> None:
    kind = path.suffix.lower().lstrip(".")
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    try:
        write_output_file(path, drawn.getvalue())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", exit_code=1) from error


def _import_matplotlib(part: str) -> Any:
    try:
        return getattr(import_module("matplotlib"), part) if part == "rcParams" else import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed", hint="pip install 'slurmwrap[sim]'", exit_code=1
        ) from error
