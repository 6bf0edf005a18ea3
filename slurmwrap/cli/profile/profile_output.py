"""Format profiles: the table of `profile list`, the page of `profile show`, and its plot (adapter: matplotlib, pwd)."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cpu_sweep import GOOD, least_cpus
from slurmwrap.model.resource_profile import BY_FILES, BY_LOADER, ResourceProfile
from slurmwrap.placement.pack_size import describe_speeds
from slurmwrap.profiling.gpu_scaling import ScalingPoint, describe_scaling
from slurmwrap.profiling.memory_model import MemoryModel, compute_needed_storage, compute_speed, find_needed_mib
from slurmwrap.profiling.merge_profiles import adapt_profile
from slurmwrap.profiling.storage_model import (
    compute_full_read_mib_per_s,
    compute_storage_mib_per_s,
    compute_stream_mib_per_s,
    describe_staging,
)
from slurmwrap.report import text_format
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.store.database import ProfileUse

# File types of a plot, which matplotlib draws (optional extra `plot`).
KINDS = (".svg", ".png")


def draw_profile(profile: ResourceProfile, path: Path) -> None:
    """Draw the CPU curve into an SVG or PNG file.

    Raise UsageError if matplotlib is missing, the file has another ending, or the profile has no curve.
    """
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
    # Not pyplot, which may need a display.
    return figures.Figure(figsize=(6.4, 3.8), layout="constrained")


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


# Curves of speed over a resource are shown as bars of text: eight points fit a terminal, work in a pipe, and need no
# plotting library.
# A function from text and "bold" | "green" | "dim" to the text, in colour if that is wanted.
Style = Callable[[str, str], str]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
ENDS = {
    "allocation": "it ends at the number of allocated CPUs",
    "workers": "it ends at the loader's workers: more CPUs would need more workers",
    "pinned": "it ends early: the program pins itself to CPUs",
    "time": "it ends early: the time was used up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileBar:
    """One bar: a label such as "12" or "62 GiB", its value, how uncertain that is, and whether it is the chosen one."""

    label: str
    value: float
    spread: float = 0.0  # share of the value
    chosen: bool = False


def format_bars(
    points: Sequence[ProfileBar], *, head: tuple[str, str], columns: int, unicode: bool, style: Style | None = None
) -> list[str]:
    """Return one line per point; the longest bar is as long as `columns` allow. `head`: names of label and value."""
    if not points:
        return []
    paint = style or (lambda text, _: text)
    names = [point.label for point in points]
    values = [
        _format_number(point.value) + (f" ±{100 * point.spread:.0f} %" if point.spread else "") for point in points
    ]
    if not unicode:
        values = [value.replace("±", "+-") for value in values]
    left, right = max(map(len, [head[0], *names])), max(map(len, values))
    mark = (" ◀ chosen" if unicode else " <- chosen") if any(point.chosen for point in points) else ""
    bar_columns = max(8, columns - left - right - len(mark) - 6)
    top = max(point.value for point in points) or 1.0
    lines = [f"  {head[0]:>{left}}  {head[1]:>{right}}".rstrip()]
    for point, name, value in zip(points, names, values, strict=True):
        bar = _format_bar(point.value / top, bar_columns, unicode)
        drawn = paint(bar, "green") + mark if point.chosen else bar
        lines.append(f"  {name:>{left}}  {value:>{right}}  {drawn}".rstrip())
    return lines


def list_cpu_points(profile: ResourceProfile) -> list[ProfileBar]:
    """Return the bars of the CPU curve. The chosen one is the least number of CPUs within 5 % of the best speed."""
    least = least_cpus(profile.cpu_curve)
    return [
        ProfileBar(label=str(one.cpus), value=one.steps_per_s, spread=one.spread, chosen=one.cpus == least)
        for one in profile.cpu_curve
    ]


def _format_bar(share: float, columns: int, unicode: bool) -> str:
    share = min(1.0, max(0.0, share))
    if not share:
        return ""
    if not unicode:
        return "#" * max(1, round(share * columns))
    full, rest = divmod(max(1, round(share * columns * 8)), 8)
    return "█" * full + _EIGHTHS[rest].strip()


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_ORIGINS = {"import": "an imported file", "epilog": "runs that did not end well"}
# Width of the column of scripts.
_SCRIPT_COLUMNS = 24
HEAD = ("~profile", ">CPUs", ">MiB", ">steps/s", ">runs", ">sure", ">age", "from")


def format_profiles(
    profiles: Sequence[ResourceProfile],
    now: float,
    limit: int | None = None,
    *,
    uses: Mapping[str, ProfileUse] | None = None,
    site: bool = False,
    columns: int = text_format.WIDTH,
) -> tuple[str, int]:
    """Return the table of `profile list` with at most `limit` lines, and the number of profiles that are left out.

    CPUs and MiB are per GPU. Neighbours that differ only in the digest of their key share a line. If scripts are known
    (`uses`), they are in the first column.
    """
    if not profiles:
        return "No profile is known.", 0
    known = uses or {}
    rows = [[format_profile_name(one, site=site), *_list_cells(one, now, known.get(one.key))] for one in profiles]
    groups = [[list(row) for row in group] for _, group in groupby(rows, key=_make_fold_key)]
    shown = groups[:limit]
    lines = [_fold_rows(group) for group in shown]
    if any(row[-1] for row in lines):
        head = ("script", *HEAD[1:6], ">used", "~profile")
        text = text_format.table(head, ([row[-1], *row[1:7], row[0]] for row in lines), indent=0, columns=columns)
    else:
        text = text_format.table(HEAD, (row[:-1] for row in lines), indent=0, columns=columns)
    return text, sum(map(len, groups[len(shown) :]))


def _shorten_path(path: str) -> str:
    """Return the script's name, with its directory if that fits."""
    script = PurePath(path)
    whole = f"{script.parent.name}/{script.name}" if script.parent.name else script.name
    return text_format.fit_middle(
        whole if text_format.width(whole) <= _SCRIPT_COLUMNS else script.name, _SCRIPT_COLUMNS
    )


def format_profile_name(profile: ResourceProfile, *, site: bool = False) -> str:
    """Return the profile's key; for the site's database with the user's name instead of the uid."""
    uid, colon, key = profile.key.partition(":")
    if not site or not colon or not uid.isdecimal():
        return profile.key
    try:
        return f"{pwd.getpwuid(int(uid)).pw_name}:{key}"
    except (KeyError, OverflowError):
        return profile.key


def _list_cells(profile: ResourceProfile, now: float, use: ProfileUse | None) -> list[str]:
    cpus = "" if profile.cpus_per_gpu is None else f"{profile.cpus_per_gpu:.3g}"
    return [
        f">={cpus}" if cpus and profile.cpu_bound else cpus,
        "" if profile.mem_mib_per_gpu is None else f"{profile.mem_mib_per_gpu:,}",
        "" if profile.steps_per_s is None else f"{profile.steps_per_s:.3g}",
        f"{profile.runs}+{profile.preruns}",
        f"{profile.confidence:.2f}",
        text_format.duration(max(0.0, now - (use.last_at if use else profile.measured_at))),
        profile.source,
        _shorten_path(use.script) if use else "",
    ]


def _make_fold_key(row: Sequence[str]) -> tuple[str, ...]:
    return (row[0].rpartition("-")[0] or row[0], *row[1:])


def _fold_rows(rows: list[list[str]]) -> list[str]:
    if len(rows) == 1:
        return rows[0]
    return [f"{rows[0][0].rpartition('-')[0]}-… ({len(rows)})", *rows[0][1:]]


def format_profile(
    profile: ResourceProfile,
    now: float,
    *,
    columns: int,
    unicode: bool,
    paint: Paint = plain,
    storage_mib_per_s: float | None = None,
    use: ProfileUse | None = None,
    scaling: Sequence[ScalingPoint] = (),
) -> str:
    """Return the page of `profile show`: facts, the CPU curve, the memory model.

    It is at most `columns` wide, and only ASCII without `unicode`. `storage_mib_per_s`: storage bandwidth for one GPU's
    share of the job; None shows the bandwidth that is needed for full speed.
    """
    lines = [paint(text_format.fit(profile.key, columns), "bold")]
    facts = [*_list_use(use, now), *_list_facts(profile, now)]
    facts += [("GPUs", describe_scaling(scaling))] if scaling else []
    left = max(len(name) for name, _ in facts)
    for name, text in facts:
        indent = f"  {name:<{left}}  "
        lines.append(text_format.wrapped(text, indent=indent, hanging=" " * len(indent), columns=columns))
    lines += _format_curve(profile, now, columns, unicode, paint)
    if advice := describe_staging(profile):
        lines += ["", text_format.wrapped(f"The job {advice}.", indent="", hanging="", columns=columns)]
    lines += _format_memory(profile, storage_mib_per_s, columns, unicode, paint)
    text = "\n".join(lines)
    return text if unicode else text.encode("ascii", "replace").decode("ascii")


def _list_use(use: ProfileUse | None, now: float) -> Iterator[tuple[str, str]]:
    if use is not None:
        ago = text_format.duration(max(0.0, now - use.last_at))
        yield "script", use.script
        yield "used", f"{text_format.count(use.times, 'submission')}, the last {ago} ago"


def _list_facts(profile: ResourceProfile, now: float) -> Iterator[tuple[str, str]]:
    age = text_format.duration(max(0.0, now - profile.measured_at))
    if profile.runs or profile.preruns:
        basis = f"{text_format.count(profile.runs, 'complete run')}, {text_format.count(profile.preruns, 'pre-run')}"
        yield "based on", f"{basis}; the newest {age} ago" + (f" ({profile.source})" if profile.source else "")
    else:
        yield "based on", f"{_ORIGINS.get(profile.source, profile.source or 'nothing')}, {age} ago"
    sure, then = f"{adapt_profile(profile, now).confidence:.2f}", f"{profile.confidence:.2f}"
    yield "confidence", f"{sure} now" + ("" if sure == then else f"; {then} when it was measured")
    if profile.cpus_per_gpu is not None:
        bound = "at least " if profile.cpu_bound else ""
        yield "CPUs", f"{bound}{profile.cpus_per_gpu:.3g} per GPU, {_describe_cpu_basis(profile)}"
    if profile.mem_mib_per_gpu is not None:
        basis = "from the file" if profile.source == "import" else "peak"
        yield "memory", f"{profile.mem_mib_per_gpu:,} MiB per GPU ({basis})"
    if profile.steps_per_s is not None:
        yield "speed", f"{profile.steps_per_s:.3g} steps/s"
    if gpu := _format_gpu(profile):
        yield "GPU", gpu
    if profile.pack_end:
        yield "on one GPU", describe_speeds(profile.pack_speeds, profile.pack_end)
    if profile.model_mib is not None:
        skew = "" if profile.skew is None else f"; skew {profile.skew:.2f} (largest tensor / model)"
        yield "model", f"{_format_amount(profile.model_mib)} MiB{skew}"
    if loader := _format_loader(profile):
        yield "loader", loader
    if profile.sensitivity:
        slower = (f"{name} {factor:.2f}" for name, factor in sorted(profile.sensitivity.items()))
        yield "slow-down", f"{', '.join(slower)} times as long while a stressor runs"


def _describe_cpu_basis(profile: ResourceProfile) -> str:
    if profile.cpu_curve and profile.cpus_per_gpu == least_cpus(profile.cpu_curve):
        return "the least within 5 % of the best speed"
    if profile.cpu_curve:
        return "from the CPU time used: the curve is in doubt, old, or of another batch size"
    return "it kept all its CPUs busy" if profile.cpu_bound else "the mean in use and 25 % more"


def _format_gpu(profile: ResourceProfile) -> str:
    measured = f", measured with {profile.gpus_per_node} per node" if profile.gpus_per_node else ""
    parts = [f"{profile.gpu_type or 'any GPU'}{measured}"] if profile.gpu_type or profile.gpus_per_node else []
    parts += [f"{profile.gpu_mem_mib:,} MiB of its memory used"] if profile.gpu_mem_mib is not None else []
    parts += [f"busy {100 * profile.gpu_util:.0f} % of the time"] if profile.gpu_util is not None else []
    parts += [f"its memory {100 * profile.gpu_mem_util:.0f} %"] if profile.gpu_mem_util is not None else []
    shares = ((title, getattr(profile, f"gpu_{name}")) for name, title in _SHARE_TITLES.items())
    parts += [f"{title} {100 * share:.0f} %" for title, share in shares if share is not None]
    return ", ".join(parts)


_SHARE_TITLES = {
    "sm_active": "multiprocessors active",
    "dram": "memory bandwidth",
    "pcie": "PCIe",
    "nvlink": "NVLink",
}


def _format_loader(profile: ResourceProfile) -> str:
    parts = (
        [f"{text_format.count(profile.loader_workers, 'worker')} per GPU"] if profile.loader_workers is not None else []
    )
    parts += (
        [f"reads {_format_amount(profile.read_mib_per_s)} MiB/s per GPU"] if profile.read_mib_per_s is not None else []
    )
    basis = _DATASET_BASES.get(profile.dataset_source, "")
    parts += [f"{_format_amount(profile.dataset_mib)} MiB per epoch{basis}"] if profile.dataset_mib is not None else []
    loading = profile.loading
    if loading is not None and loading.fetch_s:
        share = 100 * loading.stall_s / loading.fetch_s
        parts.append(f"a batch takes {1000 * loading.fetch_s:.3g} ms to fetch, {share:.0f} % of it waiting")
    if (stream := compute_stream_mib_per_s(loading)) is not None and loading is not None:
        parts.append(f"{loading.mount or 'its storage'} gives {_format_amount(stream)} MiB/s per reading process")
    return ", ".join(parts)


_DATASET_BASES = {BY_LOADER: " (length of its loader)", BY_FILES: " (sizes of its files)"}


def _format_amount(mib: float) -> str:
    return f"{mib:,.0f}" if mib >= 10 else f"{abs(mib):.2g}"


def _format_curve(profile: ResourceProfile, now: float, columns: int, unicode: bool, paint: Paint) -> list[str]:
    if not profile.cpu_curve:
        return []
    measured = f", measured {text_format.duration(max(0.0, now - profile.curve_at))} ago" if profile.curve_at else ""
    unit = "speed" if profile.source == "import" and profile.steps_per_s is None else "steps/s"
    lines = ["", paint(f"CPU curve{measured}", "bold")]
    lines += format_bars(list_cpu_points(profile), head=("CPUs", unit), columns=columns, unicode=unicode, style=paint)
    if profile.curve_doubts:
        lines.append("  a later measurement contradicts it: one more decides")
    if profile.cpu_curve_end in ENDS:
        lines.append(f"  {ENDS[profile.cpu_curve_end]}")
    return lines


def _format_memory(
    profile: ResourceProfile, storage: float | None, columns: int, unicode: bool, paint: Paint
) -> list[str]:
    """Return bars of speed over the memory of one GPU's share, or of the storage bandwidth that full speed needs."""
    if profile.mem_mib_per_gpu is None or profile.source == "import":
        return []
    loading, read = profile.loading, profile.read_mib_per_s
    if loading is not None and loading.batch_mib:
        storage, read = storage or compute_storage_mib_per_s(loading), compute_full_read_mib_per_s(loading)
    model = MemoryModel(
        peak_mib=float(profile.mem_mib_per_gpu),
        read_mib_per_s=read,
        dataset_mib=profile.dataset_mib,
        storage_mib_per_s=storage,
    )
    head = f"at least {model.floor_mib:,} MiB per GPU: the peak with a margin"
    lines = ["", paint("Memory model", "bold"), f"  {head}"]
    if not read or not profile.dataset_mib:
        unknown = "What caching its files would save is not known: how much one epoch reads was not measured."
        return [*lines, text_format.wrapped(unknown, indent="  ", hanging="  ", columns=columns)]
    least = find_needed_mib(model)
    sizes = [round(model.floor_mib + share * profile.dataset_mib) for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)]
    sizes = sorted({*sizes, *([least] if least is not None else [])})
    points = [
        ProfileBar(label=f"{size:,}", value=_compute_model_speed(model, size), chosen=size == least) for size in sizes
    ]
    unit = "needs of storage, MiB/s" if storage is None else f"speed at {storage:,.0f} MiB/s of storage"
    return [
        *lines,
        *format_bars(points, head=("MiB", unit), columns=columns, unicode=unicode, style=paint),
    ]


def _compute_model_speed(model: MemoryModel, size: float) -> float:
    if model.storage_mib_per_s is None:
        return compute_needed_storage(model, size) or 0.0
    return compute_speed(model, size) or 0.0
