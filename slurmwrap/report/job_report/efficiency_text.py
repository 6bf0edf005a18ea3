"""Format what a job used of what it asked for as the text of `slurmwrap job`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from slurmwrap.diagnosis.node_facts import describe_held_clocks
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.hostlist import fold
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.profiling.gpu_use import GpuUseSummary, summarize_gpu_use
from slurmwrap.report.job_report.job_efficiency import (
    JobEfficiency,
    RequestAdvice,
    RunEfficiency,
    format_energy,
    format_mib,
)
from slurmwrap.report.text_format import (
    TextStyle,
    bar,
    count,
    draw_series,
    duration,
    fit,
    format_state,
    in_order,
    table,
)

# GPUs that are shown one by one; of more, the ones with the least and the most use.
MOST_GPUS = 8
_BAR, _LABEL = 20, 9
# Nodes whose CPUs and memory are shown.
MOST_NODES = 4
# Shares from which on a bar is coloured as good, and below which as bad.
_GOOD, _BAD = 0.7, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRow:
    """One resource of a run: how much of it was used. `share` is None if there is nothing to compare with."""

    label: str
    share: float | None
    text: str
    # Whether little use is a waste. A small part of the time limit or of the GPU's memory is none by itself.
    wanted: bool = False


def format_job_efficiency(
    job: JobEfficiency, uses: Mapping[RunKey, Sequence[GpuUse]], style: TextStyle, *, unicode: bool = True
) -> str:
    """Return the whole text: one run, or a summary of an array's tasks."""
    sections = [_format_head(job, style)]
    if len(job.runs) > 1:
        sections += [_format_spread(job.runs, style), _format_tasks(job.runs, style) if style.verbose else iter(())]
    for one in job.runs if len(job.runs) == 1 else ():
        sections += [
            _format_rows(list_use_rows(one), style, unicode),
            _format_gpus(one, uses.get(one.run.attempt, ()), style, unicode),
        ]
    sections += [_format_advice(job, style), _format_sources(job.runs, style)]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _format_head(job: JobEfficiency, style: TextStyle) -> Iterator[str]:
    first = job.runs[0].run
    name = f" {fit(first.name, style.columns // 2)}" if first.name else ""
    if len(job.runs) == 1:
        state = format_state(first.state) if first.state else "running"
        yield style.paint(style.wrapped(f"Job {job.address}{name}, {state}", "", "  "), "bold")
        yield style.wrapped(describe_run(job.runs[0], style))
        return
    states = [format_state(one.run.state) if one.run.state else "running" for one in job.runs]
    counts = ", ".join(f"{states.count(state):,} {state}" for state in dict.fromkeys(states))
    yield style.paint(style.wrapped(f"Array {job.address}{name}, {len(states):,} tasks: {counts}", "", "  "), "bold")
    nodes = in_order(node for one in job.runs for node in one.run.nodes)
    each = f"each {count(first.cpus, 'CPU')}" + (f", {count(first.gpus, 'GPU')}" if first.gpus else "")
    yield style.wrapped(f"{f'of {first.user}, ' if first.user else ''}{each}, on {fold(nodes)}")


def describe_run(one: RunEfficiency, style: TextStyle) -> str:
    """Describe whose run it is, when it ran, and where: "of ada, 2026-11-20 06:00 to 07:10, 8 CPUs, 4 GPUs on n1"."""
    run = one.run
    parts = [f"of {run.user}"] if run.user else []
    if run.start_time is None:
        return ", ".join([*parts, "it did not start"])
    began = style.moment(run.start_time)
    end = f"to {style.moment(run.end_time)}" if run.end_time is not None else "until now"
    parts.append(f"{began} {end.replace(began[:11], '')}")
    parts.append(count(run.cpus, "CPU"))
    parts += [count(run.gpus, "GPU")] if run.gpus else []
    return ", ".join(parts) + (f" on {fold(run.nodes)}" if run.nodes else "")


def list_use_rows(one: RunEfficiency) -> tuple[UseRow, ...]:
    """Return the resources of a run of which the use, or at least the request, is known."""
    run, rows = one.run, []
    limit = f" of {duration(run.time_limit_s)}" if run.time_limit_s else ", no limit"
    rows.append(UseRow(label="time", share=one.time_share, text=f"{duration(one.seconds)}{limit}"))
    nodes = len(run.nodes)
    if one.cpu_s is not None:
        cpus = run.cpus / max(1, nodes) * one.cpu_nodes
        busy = one.cpu_s / one.seconds if one.seconds else 0.0
        where = " on the busiest node" if nodes > one.cpu_nodes else ""
        text = f"{busy:.1f} of {cpus:g} CPUs busy{where}, {duration(one.cpu_s)} of CPU time"
        rows.append(UseRow(label="CPU", share=one.cpu_share, text=text, wanted=True))
    if one.mem_mib is not None:
        where = " on the node with the most" if nodes > one.mem_nodes else " on all nodes" if nodes > 1 else ""
        asked = f" of {format_mib(one.mem_asked_mib)}" if one.mem_asked_mib else ""
        text = f"{format_mib(one.mem_mib)}{asked}{where}, peak"
        rows.append(UseRow(label="memory", share=one.mem_share, text=text))
    if one.gpu_share is not None:
        text = f"mean of {count(len(one.gpus) or run.gpus, 'GPU')}"
        text += f", {one.gpus_unused} never used" if one.gpus_unused else ""
        rows.append(UseRow(label="GPU", share=one.gpu_share, text=text, wanted=True))
    if one.gpu_mem_mib is not None:
        total = f" of {format_mib(one.gpu_mem_total_mib)}" if one.gpu_mem_total_mib else ""
        share = one.gpu_mem_mib / one.gpu_mem_total_mib if one.gpu_mem_total_mib else None
        rows.append(UseRow(label="GPU mem", share=share, text=f"{format_mib(one.gpu_mem_mib)}{total}, peak of one GPU"))
    energy = [f"{format_energy(one.gpu_energy_j)} by its GPUs"] if one.gpu_energy_j is not None else []
    energy += [f"{format_energy(one.node_energy_j)} by its nodes (Slurm)"] if one.node_energy_j else []
    if energy:
        rows.append(UseRow(label="energy", share=None, text=", ".join(energy)))
    return tuple(rows)


def _format_rows(rows: Sequence[UseRow], style: TextStyle, unicode: bool) -> Iterator[str]:
    width = _BAR if style.columns >= 72 else _BAR // 2
    for row in rows:
        drawn = " " * width if row.share is None else bar(min(1.0, row.share), unicode, width)
        share = "" if row.share is None else f"{100 * row.share:.0f} %"
        if row.wanted and row.share is not None:
            drawn = style.paint(drawn, "green" if row.share >= _GOOD else "red" if row.share < _BAD else "yellow")
        lines = style.wrapped(row.text, " " * (4 + _LABEL + width + 8)).lstrip()
        yield f"  {row.label:{_LABEL}}{drawn} {share:>6}  {lines}".rstrip()


def _format_gpus(one: RunEfficiency, uses: Sequence[GpuUse], style: TextStyle, unicode: bool) -> Iterator[str]:
    series = {(use.node, use.gpu, use.mig): use for use in uses}
    shown, title = select_gpus(one.gpus, all_of_them=style.verbose)
    hosts = [use for use in uses if use.gpu == HOST]
    names = {gpu: f"{gpu.node} {gpu.gpu}{f' {gpu.mig[:12]}' if gpu.mig else ''}" for gpu in shown}
    left = max((*(len(f"{use.node} CPUs") for use in hosts[:MOST_NODES]), *map(len, names.values())), default=0)
    if hosts:
        yield style.paint("CPUS AND MEMORY OVER TIME", "bold") + style.paint(" (of what it asked for)", "dim")
        for use in hosts[:MOST_NODES]:
            yield from _format_host(one, use, left, style, unicode)
        if len(hosts) > MOST_NODES:
            yield style.paint(f"  and {count(len(hosts) - MOST_NODES, 'more node')}", "dim")
    if not shown:
        return
    if hosts:
        yield ""
    yield style.paint(f"{title} OVER TIME", "bold") + style.paint(" (0 to 100 %)", "dim")
    for gpu in shown:
        use = series[gpu.node, gpu.gpu, gpu.mig]
        share = "  ? %" if gpu.use_pct is None else f"{gpu.use_pct:3.0f} %"
        memory = "" if gpu.mem_peak_mib is None else format_mib(gpu.mem_peak_mib)
        drawn = draw_series(use.use_pct, unicode, max(10, style.columns - left - 24))
        line = f"  {names[gpu]:{left}}  {share}  {memory:>9}  {drawn}".rstrip()
        yield style.paint(line, "red") if gpu.never_used else line
    for use in uses:
        if text := describe_held_clocks(use.clocks):
            yield style.wrapped(f"  GPU {use.gpu} of {use.node} {text}", "", "    ")


def _format_host(one: RunEfficiency, use: GpuUse, left: int, style: TextStyle, unicode: bool) -> Iterator[str]:
    """Yield a line for the CPUs and one for the memory on one node."""
    width = max(10, style.columns - left - 24)
    (summary,) = summarize_gpu_use([use])
    nodes = max(1, len(one.run.nodes))
    if summary.use_pct is not None:
        drawn = draw_series(use.use_pct, unicode, width, most=100.0 * one.run.cpus / nodes)
        busy = f"{summary.use_pct / 100:.1f}"
        yield f"  {f'{use.node} CPUs':{left}}  {busy:>5}  {'busy':>9}  {drawn}".rstrip()
    peak = max(use.mem_mib, default=0)
    most = (one.mem_asked_mib or 0) / one.mem_nodes or max(1, peak)
    drawn = draw_series(use.mem_mib, unicode, width, most=most)
    yield f"  {'':{left}}  {'':5}  {format_mib(max(0, peak)):>9}  {drawn}".rstrip()


def select_gpus(gpus: Sequence[GpuUseSummary], *, all_of_them: bool = False) -> tuple[tuple[GpuUseSummary, ...], str]:
    """Return the GPUs to show one by one, in their order, and a title that says which they are."""
    if len(gpus) <= MOST_GPUS or all_of_them:
        return tuple(gpus), count(len(gpus), "GPU", "GPUS") if gpus else ""
    ranked = sorted(gpus, key=lambda gpu: -1.0 if gpu.use_pct is None else gpu.use_pct)
    half = MOST_GPUS // 2
    chosen = {*ranked[:half], *ranked[-half:]}
    return tuple(gpu for gpu in gpus if gpu in chosen), f"{half} LEAST AND {half} MOST USED OF {len(gpus)} GPUS"


def _format_advice(job: JobEfficiency, style: TextStyle) -> Iterator[str]:
    failed = [one.run for one in job.runs if one.run.state not in ("", "COMPLETED")]
    running = [one.run for one in job.runs if not one.run.state]
    if job.advice:
        yield style.paint("NEXT TIME", "bold")
        width = max(len(one.option) for one in job.advice)
        for one in job.advice:
            yield _format_advice_line(one, width, style)
    elif not failed and not running:
        yield style.wrapped("What it asked for fits what it used.")
    if failed:
        address = failed[0].address or str(failed[0].attempt.job_id)
        yield style.wrapped(f"It did not complete: slurmwrap why {address} says why, and what to change.", "  ", "    ")
    if running:
        yield style.wrapped("It still runs: the figures are those so far.", "  ", "    ")


def _format_advice_line(one: RequestAdvice, width: int, style: TextStyle) -> str:
    indent = " " * (width + 4) if width else "  "
    return f"  {one.option:{width}}  ".rstrip().ljust(len(indent)) + style.wrapped(one.reason, indent).lstrip()


def _format_sources(runs: Sequence[RunEfficiency], style: TextStyle) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for name, get in _SOURCES.items():
        for source in dict.fromkeys(get(one) for one in runs):
            if source:
                found.setdefault(source, []).append(name)
    wanted = [name for name in _SOURCES if name != "GPU" or runs[0].run.gpus]
    missing = [name for name in wanted if not any(map(_SOURCES[name], runs))]
    parts = [f"{' and '.join(names)} by {source}" for source, names in found.items()]
    if parts:
        yield style.paint(style.wrapped(f"Measured: {'; '.join(parts)}."), "dim")
    running = [one.run for one in runs if not one.run.state]
    if "GPU" in missing and running:
        missing.remove("GPU")
        address = running[0].address or str(running[0].attempt.job_id)
        yield style.wrapped(f"Its GPUs while it runs: slurmwrap watch {address} --gpus", "  ", "    ")
    if missing and any(one.run.start_time is not None for one in runs):
        yield style.paint(style.wrapped(f"Not measured: {', '.join(missing)}. {_WHY_MISSING}", "  "), "dim")


_SOURCES: dict[str, Callable[[RunEfficiency], str]] = {
    "CPU": lambda one: one.cpu_source,
    "memory": lambda one: one.mem_source,
    "GPU": lambda one: one.gpu_source,
}
_WHY_MISSING = "The hooks on the nodes (docs/hooks.md) or Slurm's accounting measure it."


def _format_spread(runs: Sequence[RunEfficiency], style: TextStyle) -> Iterator[str]:
    """Yield a table: least, median and most of each figure over the tasks of an array."""
    shown: list[list[str]] = []
    for label, get, form in _FIGURES:
        values = sorted(value for one in runs if (value := get(one)) is not None)
        if values:
            shown.append([label, *(form(value) for value in (values[0], median(values), values[-1])), str(len(values))])
    yield table(("each task", ">least", ">median", ">most", ">tasks"), shown, columns=style.columns)


def _format_tasks(runs: Sequence[RunEfficiency], style: TextStyle) -> Iterator[str]:
    rows = [
        [
            one.run.address,
            format_state(one.run.state) if one.run.state else "running",
            *(form(value) if (value := get(one)) is not None else "" for _, get, form in _FIGURES),
        ]
        for one in runs
    ]
    used = [i for i in range(len(_FIGURES)) if any(row[i + 2] for row in rows)]
    head = ["task", "~state", *(f">{_FIGURES[i][0]}" for i in used)]
    yield table(head, [[*row[:2], *(row[i + 2] for i in used)] for row in rows], columns=style.columns)


def _format_share(share: float) -> str:
    return f"{100 * share:.0f} %"


_FIGURES: tuple[tuple[str, Callable[[RunEfficiency], float | None], Callable[[float], str]], ...] = (
    ("time", lambda one: one.seconds if one.run.start_time is not None else None, duration),
    ("of its limit", lambda one: one.time_share, _format_share),
    ("CPU", lambda one: one.cpu_share, _format_share),
    ("memory", lambda one: None if one.mem_mib is None else float(one.mem_mib), format_mib),
    ("of its memory", lambda one: one.mem_share, _format_share),
    ("GPU", lambda one: one.gpu_share, _format_share),
    ("GPU mem", lambda one: None if one.gpu_mem_mib is None else float(one.gpu_mem_mib), format_mib),
    ("GPU energy", lambda one: one.gpu_energy_j, format_energy),
)
