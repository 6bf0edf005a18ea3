"""Render what a job used of what it asked for as one self-contained HTML page with charts (`slurmwrap job --html`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from functools import partial
from typing import Any

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.report import svg_charts
from slurmwrap.report.job_report.efficiency_text import MOST_NODES, describe_run, list_use_rows, select_gpus
from slurmwrap.report.job_report.job_efficiency import JobEfficiency, RunEfficiency, format_energy
from slurmwrap.report.report_html import make_environment
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, TableRow
from slurmwrap.report.svg_charts import COMPLETED, FAILED, Chart, add_legend, draw_charts, simplify_axes
from slurmwrap.report.text_format import TextStyle, count, format_state

# Charts that show `use_pct`, and what it is divided by; the others show memory.
_PERCENTAGES = {"use": 1.0, "host_cpu": 100.0}
_TITLES = {
    "host_cpu": "Busy CPUs on a node",
    "host_memory": "Memory on a node, GiB",
    "use": "Use of the GPUs, percent",
    "memory": "Memory of the GPUs, GiB",
    "tasks_cpu": "Tasks by use of their CPUs, percent",
    "tasks_memory": "Tasks by use of their memory, percent",
    "tasks_gpu": "Tasks by use of their GPUs, percent",
}


def render_job_page(
    job: JobEfficiency, uses: Mapping[RunKey, Sequence[GpuUse]], zone: tzinfo | None, *, made_by: str
) -> str:
    """Return the page. Without matplotlib it has no charts and says so."""
    first = job.runs[0]
    whole = len(job.runs) == 1
    charts = _make_run_charts(first, uses.get(first.run.attempt, ())) if whole else _make_array_charts(job.runs)
    table = _make_gpu_table(first) if whole else _make_task_table(job.runs)
    drawn = draw_charts(charts)
    environment = make_environment()
    environment.globals.update(zone=zone)
    return environment.get_template("job.html.j2").render(
        title=f"{'Job' if whole else 'Array'} {job.address}",
        name=first.run.name,
        state=_describe_states(job.runs),
        about=describe_run(first, TextStyle(zone=zone)) if whole else f"of {first.run.user}",
        rows=[(row, _round_share(row.share)) for row in list_use_rows(first)] if whole else (),
        tables_shown=[table] if table is not None else [],
        advice=job.advice,
        charts=[(_TITLES[key], svg) for key, svg in (drawn or {}).items()],
        notes=(svg_charts.NO_MATPLOTLIB,) if drawn is None and charts else (),
        sources=sorted({s for r in job.runs for s in (r.cpu_source, r.mem_source, r.gpu_source) if s}),
        address=job.address,
        made_by=made_by,
        css="page.css",
    )


def _round_share(share: float | None) -> int | None:
    return None if share is None else min(100, round(100 * share))


def _describe_states(runs: Sequence[RunEfficiency]) -> str:
    states = [format_state(one.run.state) if one.run.state else "running" for one in runs]
    if len(states) == 1:
        return states[0]
    return f"{count(len(states), 'task')}: " + ", ".join(f"{states.count(s):,} {s}" for s in dict.fromkeys(states))


def _make_gpu_table(one: RunEfficiency) -> ReportTable | None:
    if not one.gpus:
        return None
    return ReportTable(
        key="gpus",
        title="Each GPU",
        limit=16,
        columns=(
            Column(key="gpu", head="GPU", kind=ColumnKind.USER),
            Column(key="use", head="use", kind=ColumnKind.SHARE),
            Column(key="memory", head="memory, GiB", kind=ColumnKind.NUMBER),
            Column(key="idle", head="without a process", kind=ColumnKind.TIME),
            Column(key="energy", head="energy"),
        ),
        rows=tuple(
            TableRow(
                (
                    f"{gpu.node} {gpu.gpu}{f' {gpu.mig}' if gpu.mig else ''}",
                    None if gpu.use_pct is None else gpu.use_pct / 100,
                    None if gpu.mem_peak_mib is None else gpu.mem_peak_mib / 1024,
                    gpu.idle_s,
                    None if gpu.energy_j is None else format_energy(gpu.energy_j),
                )
            )
            for gpu in one.gpus
        ),
    )


def _make_task_table(runs: Sequence[RunEfficiency]) -> ReportTable:
    return ReportTable(
        key="tasks",
        title="Each task",
        limit=20,
        columns=(
            Column(key="task", head="task"),
            Column(key="state", head="state"),
            Column(key="time", head="time", kind=ColumnKind.TIME),
            Column(key="cpu", head="CPU", kind=ColumnKind.SHARE),
            Column(key="memory", head="memory, GiB", kind=ColumnKind.NUMBER),
            Column(key="memory_share", head="of its memory", kind=ColumnKind.SHARE),
            Column(key="gpu", head="GPU", kind=ColumnKind.SHARE),
        ),
        rows=tuple(
            TableRow(
                (
                    one.run.address,
                    format_state(one.run.state) if one.run.state else "running",
                    one.seconds,
                    one.cpu_share,
                    None if one.mem_mib is None else one.mem_mib / 1024,
                    one.mem_share,
                    one.gpu_share,
                )
            )
            for one in runs
        ),
    )


def _make_run_charts(one: RunEfficiency, uses: Sequence[GpuUse]) -> dict[str, Chart]:
    """Return the charts with data: CPUs and memory on a few nodes; of many GPUs the least and the most used ones."""
    shown, _ = select_gpus(one.gpus)
    wanted = {(gpu.node, gpu.gpu, gpu.mig) for gpu in shown}
    gpus = [use for use in uses if (use.node, use.gpu, use.mig) in wanted]
    hosts = [use for use in uses if use.gpu == HOST][:MOST_NODES]
    tops = {
        "use": (gpus, 100.0),
        "memory": (gpus, (one.gpu_mem_total_mib or 0) / 1024),
        "host_cpu": (hosts, one.run.cpus / max(1, len(one.run.nodes))),
        "host_memory": (hosts, (one.mem_asked_mib or 0) / one.mem_nodes / 1024),
    }
    return {
        key: Chart(title=_TITLES[key], plot=partial(_plot_series, one=one, uses=series, what=key, top=top))
        for key, (series, top) in tops.items()
        if series
    }


def _plot_series(axes: Any, *, one: RunEfficiency, uses: Sequence[GpuUse], what: str, top: float) -> str:
    """Draw a line for each GPU or node over the time since the start of the run. `top`: end of the axis; 0: unknown."""
    begin = float(one.run.start_time or uses[0].began)
    scale, unit = (3600.0, "hours") if one.seconds > 5400 else (60.0, "minutes")
    unused = {(gpu.node, gpu.gpu, gpu.mig) for gpu in one.gpus if gpu.never_used}
    for use in uses:
        key = (use.node, use.gpu, use.mig)
        part = _PERCENTAGES.get(what)
        values = [mib / 1024 for mib in use.mem_mib] if part is None else [value / part for value in use.use_pct]
        known = [value if value >= 0 else float("nan") for value in values]
        edges = [(use.began + use.interval_s * i - begin) / scale for i in range(len(known))]
        edges.append((use.ends_at - begin) / scale)
        colour = FAILED if key in unused else COMPLETED
        axes.stairs(known, edges, color=colour, linewidth=1.4, baseline=None, alpha=0.85)
    if unused & {(use.node, use.gpu, use.mig) for use in uses}:
        axes.plot([], [], color=COMPLETED, label="used")
        axes.plot([], [], color=FAILED, label="never used")
        add_legend(axes, 2)
    axes.set_xlim(0, max((one.seconds / scale, *((use.ends_at - begin) / scale for use in uses))))
    axes.set_ylim(0, top * 1.02 if top else None)
    axes.set_xlabel(f"{unit} since the start")
    simplify_axes(axes, "y")
    return f"{_TITLES[what]}: {count(len(uses), 'line')} over time."


def _make_array_charts(runs: Sequence[RunEfficiency]) -> dict[str, Chart]:
    figures = {
        "tasks_cpu": [one.cpu_share for one in runs],
        "tasks_memory": [one.mem_share for one in runs],
        "tasks_gpu": [one.gpu_share for one in runs],
    }
    known = {key: [100 * share for share in shares if share is not None] for key, shares in figures.items()}
    return {
        key: Chart(title=_TITLES[key], plot=lambda axes, values=values, key=key: _plot_shares(axes, values, key))  # type: ignore[misc]
        for key, values in known.items()
        if len(values) > 1
    }


def _plot_shares(axes: Any, values: Sequence[float], key: str) -> str:
    axes.hist(values, bins=[*range(0, 101, 10)], color=COMPLETED, rwidth=0.9)
    axes.set_xlim(0, 100)
    axes.set_ylabel("tasks")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("percent")
    simplify_axes(axes, "y")
    return f"{_TITLES[key]}: from {min(values):.0f} to {max(values):.0f} %."
