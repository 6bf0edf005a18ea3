"""Format the replays' figures as tables, and as plain values for JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median

from replay.tuning import Arm

_COLUMNS = (  # heading, field of Figures, what it is multiplied with, format
    ("makespan s", "makespan_s", 1, ".1f"),
    ("mean JCT s", "mean_jct_s", 1, ".1f"),
    ("queued s", "mean_queue_s", 1, ".1f"),
    ("idle %", "gpu_idle_share", 100, ".1f"),
    ("CPUs/GPU", "mean_cpus", 1, ".2f"),
    ("speed", "mean_speed", 1, ".3f"),
    ("gap ms", "gap_median_s", 1000, ".0f"),
    ("gap90 ms", "gap_p90_s", 1000, ".0f"),
)
_MORE = ("updates", "before", "reaction s", "submit s")


def table(rows: Sequence[tuple[str, Arm]]) -> str:
    """Return one line per arm of a repetition."""
    heads = ["trace", "arm", *(heading for heading, *_ in _COLUMNS), *_MORE]
    body = [
        [
            name,
            one.arm,
            *(format(getattr(one.figures, field) * factor, style) for _, field, factor, style in _COLUMNS),
            str(one.updates),
            str(one.updates_before),
            f"{one.reaction_s:.1f}",
            f"{one.submitting_s:.1f}",
        ]
        for name, one in rows
    ]
    return _aligned([heads, *body])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def ratios(pairs: Sequence[Mapping[str, Arm]]) -> list[float]:
    """Return the makespan of sbatch divided by that of gsub for each repetition; above 1, gsub is faster."""
    return [pair["sbatch"].figures.makespan_s / pair["gsub"].figures.makespan_s for pair in pairs]


def median_ratio(pairs: Sequence[Mapping[str, Arm]]) -> float:
    """Return the median of the repetitions' ratios."""
    return median(ratios(pairs))


def verdict(by_trace: Mapping[str, Sequence[Mapping[str, Arm]]], bounds: Mapping[str, float]) -> str:
    """Return the median ratio and bound per trace, and the geometric mean and the worst of the generated ones."""
    rows = [["trace", "makespan ratio", "of the repetitions", "JCT ratio", "no-release bound"]]
    for name, pairs in by_trace.items():
        jct = median(pair["sbatch"].figures.mean_jct_s / pair["gsub"].figures.mean_jct_s for pair in pairs)
        each = " ".join(f"{ratio:.3f}" for ratio in ratios(pairs))
        bound = f"{bounds[name]:.3f}" if name in bounds else "-"
        rows.append([name, f"{median_ratio(pairs):.3f}", each, f"{jct:.3f}", bound])
    text = _aligned(rows)
    drawn = [median_ratio(pairs) for name, pairs in by_trace.items() if name.startswith("seed")]
    if drawn:
        text += (
            f"\ngenerated traces: geometric mean {geometric_mean(drawn):.3f}, worst {min(drawn):.3f}, n = {len(drawn)}"
        )
    return text
