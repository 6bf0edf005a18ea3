"""Draw replays as SVG without a library: CPUs of each GPU over time in both arms, and the ratios of the traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from replay.tuning import Arm

_W, _H, _LEFT, _TOP = 900, 190, 60, 34
_COLOURS = ("#d8e2dc", "#a8dadc", "#90be6d", "#43aa8b", "#577590", "#f9c74f", "#f8961e", "#f3722c", "#f94144")
_STEPS = (1, 2, 3, 4, 5, 6, 9, 12, 24)  # CPUs; the colour of a run is that of the highest step it reaches


def gantt(pair: Mapping[str, Arm], title: str, gpus: int) -> str:
    """Draw both arms on one time axis: a row per GPU slot, a bar per run, coloured by CPUs."""
    last = max(one.figures.makespan_s for one in pair.values())
    across = (_W - _LEFT - 20) / last
    parts = []
    for at, (name, one) in enumerate(pair.items()):
        top = _TOP + at * (_H + 34)
        parts.append(_text(_LEFT, top - 6, f"{name}: {one.figures.makespan_s:.1f} s", size=12))
        parts += _bars(one, top, across, _H / gpus, gpus)
        parts.append(_axis(top + _H, across, last))
    height = _TOP + len(pair) * (_H + 34) + 40
    return _svg(_W, height, title, [*parts, _legend(height - 14)])


def _bars(one: Arm, top: float, across: float, row: float, gpus: int) -> list[str]:
    """Assign each run to the first free slot; its real GPU does not matter here."""
    free = [0.0] * gpus
    bars = []
    for start, end, cpus, model in one.spans:
        slot = next((i for i, at in enumerate(free) if at <= start + 0.05), min(range(gpus), key=free.__getitem__))
        free[slot] = end
        colour = _COLOURS[max(i for i, step in enumerate(_STEPS) if cpus >= step)]
        width = max(0.4, (end - start) * across - 0.6)
        bars.append(
            f'<rect x="{_LEFT + start * across:.1f}" y="{top + slot * row:.1f}" width="{width:.1f}" '
            f'height="{row * 0.9:.1f}" fill="{colour}"><title>{escape(model)}, {cpus} CPUs</title></rect>'
        )
    return bars


def _axis(y: float, across: float, last: float) -> str:
    step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000) if last / s <= 12)
    marks = [_text(_LEFT + at * across, y + 12, str(at), size=10) for at in range(0, int(last) + 1, step)]
    return f'<line x1="{_LEFT}" y1="{y}" x2="{_W - 20}" y2="{y}" stroke="#333"/>' + "".join(marks)


def _legend(y: float) -> str:
    parts = [_text(_LEFT, y, "CPUs:", size=11)]
    for i, step in enumerate(_STEPS):
        x = _LEFT + 48 + i * 56
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{_COLOURS[i]}"/>')
        parts.append(_text(x + 16, y, str(step), size=11))
    return "".join(parts) + _text(_W - 150, y, "seconds of the replay", size=11)


def bars(values: Mapping[str, float], bounds: Mapping[str, float], title: str, axis: str) -> str:
    """Draw one bar per trace, up or down from 1, with a mark at the bound."""
    low = min(0.95, *values.values()) - 0.02
    high = max(1.05, *values.values(), *bounds.values()) + 0.03
    across = (_W - 160) / (high - low)
    parts = [f'<line x1="{120 + (1 - low) * across:.1f}" y1="{_TOP}" x2="{120 + (1 - low) * across:.1f}" '
             f'y2="{_TOP + 22 * len(values)}" stroke="#333"/>']  # fmt: skip
    for at, (name, value) in enumerate(values.items()):
        y = _TOP + 22 * at
        x, width = 120 + (min(1, value) - low) * across, abs(value - 1) * across
        parts.append(_text(8, y + 14, name, size=11))
        colour = "#43aa8b" if value >= 1 else "#f94144"
        parts.append(f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="15" fill="{colour}"/>')
        parts.append(_text(124 + (max(1, value) - low) * across, y + 15, f"{value:.3f}", size=11))
        if name in bounds:
            mark = 120 + (bounds[name] - low) * across
            parts.append(
                f'<line x1="{mark:.1f}" y1="{y + 1}" x2="{mark:.1f}" y2="{y + 20}" stroke="#f3722c" stroke-width="3"/>'
            )
    height = _TOP + 22 * len(values) + 30
    return _svg(_W, height, title, [*parts, _text(120, height - 8, axis, size=11)])


def lines(series: Mapping[str, Sequence[tuple[float, float]]], title: str, x_axis: str, y_axis: str) -> str:
    """Draw step lines in one coordinate system."""
    high_x = max(x for points in series.values() for x, _ in points) or 1.0
    high_y = max(y for points in series.values() for _, y in points) * 1.05 or 1.0
    parts = [_axis(_TOP + _H, (_W - _LEFT - 20) / high_x, high_x)]
    for at, (name, points) in enumerate(series.items()):
        colour = ("#577590", "#f3722c", "#43aa8b")[at % 3]
        spots = [(_LEFT + x / high_x * (_W - _LEFT - 20), _TOP + _H * (1 - y / high_y)) for x, y in points]
        path = f"M{spots[0][0]:.1f},{spots[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in spots[1:])
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<rect x="{_LEFT + 8 + at * 150}" y="{_TOP - 10}" width="12" height="6" fill="{colour}"/>')
        parts.append(_text(_LEFT + 24 + at * 150, _TOP - 4, name, size=11))
    parts += [_text(4, _TOP + 10, f"{high_y:.3g}", size=10), _text(4, _TOP + _H, "0", size=10)]
    return _svg(
        _W, _TOP + _H + 50, title, [*parts, _text(_LEFT, _TOP + _H + 32, f"{x_axis}; upwards: {y_axis}", size=11)]
    )


def _text(x: float, y: float, words: str, *, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, _text(8, 16, title, size=13), *parts, "</svg>\n"])
