"""Turns a profile's numbers into bars of text: the CPU curve and any other curve of speed over a resource. Pure.

Plain bars and no plotting library: eight points fit a terminal, survive a pipe, and need no dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cpu_curve import least_cpus
from slurmwrap.model.resource_profile import ResourceProfile

Style = Callable[[str, str], str]  # (text, "bold" | "green" | "dim") -> text, in colour where that is wanted

_EIGHTHS = " ▏▎▍▌▋▊▉█"
ENDS = {
    "allocation": "it ends where the CPUs at hand ended",
    "workers": "it ends where the loader's workers ended: beyond, more CPUs need more workers",
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
    """One line per point, the longest bar as long as `columns` allow. `head`: names of label and value."""
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
    room = max(8, columns - left - right - len(mark) - 6)
    top = max(point.value for point in points) or 1.0
    lines = [f"  {head[0]:>{left}}  {head[1]:>{right}}".rstrip()]
    for point, name, value in zip(points, names, values, strict=True):
        bar = _format_bar(point.value / top, room, unicode)
        drawn = paint(bar, "green") + mark if point.chosen else bar
        lines.append(f"  {name:>{left}}  {value:>{right}}  {drawn}".rstrip())
    return lines


def list_cpu_points(profile: ResourceProfile) -> list[ProfileBar]:
    """The CPU curve; the least CPUs within 5 % of the best are the chosen ones."""
    least = least_cpus(profile.cpu_curve)
    return [
        ProfileBar(label=str(one.cpus), value=one.steps_per_s, spread=one.spread, chosen=one.cpus == least)
        for one in profile.cpu_curve
    ]


def _format_bar(share: float, room: int, unicode: bool) -> str:
    share = min(1.0, max(0.0, share))
    if not share:
        return ""
    if not unicode:
        return "#" * max(1, round(share * room))
    full, rest = divmod(max(1, round(share * room * 8)), 8)
    return "█" * full + _EIGHTHS[rest].strip()


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
