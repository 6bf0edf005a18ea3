"""Turns a Study into charts: where each line, bar and tick lies. Pure; templates/whatif draws them.

Units are the drawing's own (one is a pixel at full size). Every line and bar carries the name of its arm, by which the
page gives it a colour and a dash or pattern, and every chart its meaning in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from math import log10

from slurmwrap.sim.failures.study_result import FailureStudy, Interval
from slurmwrap.sim.whatif.whatif_study import PLAIN, REAL, Delays, Study, StudyWorld

WIDTH, HEIGHT = 360.0, 216.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 20.0, 10.0, 30.0
WIDE = 760.0
_AXIS = (
    (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"), (86400, "1 d"),
    (7 * 86400, "7 d"), (30 * 86400, "30 d"),
)  # fmt: skip
# Or the labels of the axis touch.
_LABELS_APART = 34.0
_DAYS = (1, 2, 5, 7, 14, 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    arm: str
    path: str  # of SVG's attribute d
    # The same, closed down to the axis; "": not filled.
    area: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A chart of lines. The plot's corners are (left, top) and (right, bottom)."""

    title: str
    # For who does not see it.
    meaning: str
    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    # What is drawn later lies above.
    lines: tuple[ChartLine, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """A share of the full length, 0 to 1."""

    arm: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Of one class of jobs: one bar per arm."""

    label: str
    jobs: int
    bars: tuple[ChartBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What one part of slurmwrap saves, with its interval, on an axis from 0 to 1 that all ranges share."""

    name: str
    title: str
    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    zero: float  # where nothing is saved
    ranges: tuple[Range, ...]


def saving_ranges(failures: FailureStudy) -> Ranges:
    """Of every arm but the one that things are compared with."""
    arms = failures.arms[1:]
    ends = [_get_ends(arm.saved_gpu_hours) for arm in arms]
    least, most = min(0.0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends))
    width = max(1e-9, most - least)
    ranges = tuple(
        Range(
            name=arm.name,
            title=arm.title,
            low=(low - least) / width,
            mean=(arm.saved_gpu_hours.mean - least) / width,
            high=(high - least) / width,
        )
        for arm, (low, high) in zip(arms, ends, strict=True)
    )
    return Ranges(zero=-least / width, ranges=ranges)


def _get_ends(interval: Interval) -> tuple[float, float]:
    mean = interval.mean
    return mean if interval.low is None else interval.low, mean if interval.high is None else interval.high


def delay_charts(study: Study) -> tuple[Lines, ...]:
    """The distribution of the queueing delay, one chart per class of GPUs."""
    real = study.arms[0]
    return tuple(
        _plot_distribution(
            study, delays.label, delays.jobs, _class_curves(study, delays.label, _get_queueing), "waited"
        )
        for delays in real.classes
    )


def jct_chart(study: Study) -> Lines:
    """The distribution of the JCT of all measured jobs."""
    curves = [(arm.name, arm.all.jct_within) for arm in study.arms]
    return _plot_distribution(study, "all jobs", study.jobs, curves, "had ended after")


def busy_chart(study: Study, zone: tzinfo | None) -> Lines:
    """The share of the GPUs that was held, over the window."""
    left, right, top, bottom = LEFT, WIDE - RIGHT, TOP, HEIGHT - BOTTOM
    parts = len(study.arms[0].busy)
    step = (right - left) / parts
    paths = {
        arm.name: _draw_stairs(
            [(left + i * step, _compute_height(v, top, bottom)) for i, v in enumerate(arm.busy)], right
        )
        for arm in study.arms
    }
    filled = f"{paths[REAL]}V{bottom:.1f}H{left:.1f}Z"
    lines = _order_layers(
        ChartLine(arm=name, path=path, area=filled if name == REAL else "") for name, path in paths.items()
    )
    means = ", ".join(f"{arm.name} {arm.gpu_utilisation:.0%}" for arm in study.arms)
    return Lines(
        title="GPUs held over the window",
        meaning=f"Share of the GPUs that jobs held, over time; on average {means}.",
        width=WIDE,
        height=HEIGHT,
        left=left,
        top=top,
        right=right,
        bottom=bottom,
        xs=_make_date_ticks(study.window.since, study.window.until, left, right, zone),
        ys=_make_percent_ticks(top, bottom),
        lines=lines,
    )


def locality_bars(study: Study) -> tuple[Bars, ...]:
    """Per class: the share of the jobs that ran on as few nodes as hold their GPUs."""
    return tuple(
        Bars(
            label=real.label,
            jobs=real.jobs,
            bars=tuple(ChartBar(arm=arm.name, share=_compute_fewest_share(arm, real.label)) for arm in study.arms),
        )
        for real in study.arms[0].locality
    )


def _compute_fewest_share(arm: StudyWorld, label: str) -> float:
    found = next(one for one in arm.locality if one.label == label)
    return found.fewest / found.jobs


def _get_queueing(delays: Delays) -> Sequence[float]:
    return delays.queueing_within


Curves = Sequence[tuple[str, Sequence[float]]]


def _class_curves(study: Study, label: str, pick: Callable[[Delays], Sequence[float]]) -> Curves:
    return [(arm.name, pick(next(one for one in arm.classes if one.label == label))) for arm in study.arms]


def _plot_distribution(study: Study, title: str, jobs: int, curves: Curves, verb: str) -> Lines:
    """Shares over a logarithmic axis of time that ends where every curve has arrived."""
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    most = _find_reach(study.grid_s, [shares for _, shares in curves])
    x_of = _log_axis(most, left, right)
    points = {
        name: [
            (x_of(at), _compute_height(s, top, bottom))
            for at, s in zip(study.grid_s, shares, strict=True)
            if at <= most
        ]
        for name, shares in curves
    }
    lines = _order_layers(ChartLine(arm=name, path=_draw_stairs(along, right)) for name, along in points.items())
    ticks = [Tick(at=x_of(s), label=word) for s, word in _AXIS if s <= most]
    return Lines(
        title=title,
        meaning=f"Of {jobs:,} jobs, the share that {verb} at most so long: " + _in_words(study.grid_s, curves),
        width=WIDTH,
        height=HEIGHT,
        left=left,
        top=top,
        right=right,
        bottom=bottom,
        xs=_space_labels(ticks),
        ys=_make_percent_ticks(top, bottom),
        lines=lines,
        note=f"{jobs:,} job" + ("s" if jobs != 1 else ""),
    )


def _order_layers(lines: Iterable[ChartLine]) -> tuple[ChartLine, ...]:
    """The dashed line last: where two lines are one, both are seen."""
    return tuple(sorted(lines, key=lambda line: line.arm == PLAIN))


def _in_words(grid: Sequence[float], curves: Curves) -> str:
    """The curves at three moments."""
    told = []
    for moment, word in ((60, "1 minute"), (3600, "1 hour"), (86400, "1 day")):
        place = next(i for i, at in enumerate(grid) if at >= moment * 0.999)
        told.append(f"{word}: " + ", ".join(f"{name} {shares[place]:.0%}" for name, shares in curves))
    return "; ".join(told) + "."


def _find_reach(grid: Sequence[float], curves: Iterable[Sequence[float]]) -> float:
    """The first mark of the axis by which all curves are complete, at least one minute."""
    last = max(grid[next((i for i, s in enumerate(shares) if s >= 1.0), len(grid) - 1)] for shares in curves)
    return float(next((s for s, _ in _AXIS if s >= max(60.0, last * 0.999)), grid[-1]))


def _log_axis(most: float, left: float, right: float) -> Callable[[float], float]:
    least = float(_AXIS[0][0])
    return lambda at: left + (right - left) * log10(max(least, at) / least) / log10(most / least)


def _draw_stairs(points: Sequence[tuple[float, float]], right: float) -> str:
    """Steps from point to point, on to the right edge: nothing is drawn that was not counted."""
    (x, y), *rest = points
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest) + f"H{right:.1f}"


def _compute_height(share: float, top: float, bottom: float) -> float:
    return bottom - (bottom - top) * share


def _make_percent_ticks(top: float, bottom: float) -> tuple[Tick, ...]:
    return tuple(Tick(at=_compute_height(part / 4, top, bottom), label=f"{25 * part} %") for part in range(5))


def _space_labels(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """All ticks, but no label that would touch the one before."""
    shown: list[Tick] = []
    last = -_LABELS_APART
    for tick in ticks:
        near = tick.at - last < _LABELS_APART
        shown.append(Tick(at=tick.at, label="" if near else tick.label))
        last = last if near else tick.at
    return tuple(shown)


def _make_date_ticks(since: float, until: float, left: float, right: float, zone: tzinfo | None) -> tuple[Tick, ...]:
    """Midnights, at most about eight of them; hours where the window is shorter than two days."""
    days = (until - since) / 86400
    if days < 2:
        step = timedelta(hours=6) if days > 0.5 else timedelta(hours=1) if days > 1 / 12 else timedelta(minutes=10)
        form = "%H:%M"
    else:
        step = timedelta(days=next((d for d in _DAYS if days / d <= 8), 28))
        form = "%d %b"
    moment = datetime.fromtimestamp(since, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = []
    while moment.timestamp() <= until:
        if moment.timestamp() >= since:
            at = left + (right - left) * (moment.timestamp() - since) / max(1e-9, until - since)
            ticks.append(
                Tick(at=at, label=moment.strftime(form).lstrip("0") if form != "%H:%M" else moment.strftime(form))
            )
        moment += step
    return _space_labels(ticks[:60])
