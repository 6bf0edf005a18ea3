"""Format values for the terminal: durations, numbers, aligned tables, and text without control characters. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from textwrap import wrap
from unicodedata import combining, east_asian_width

from slurmwrap.escape import harmless
from slurmwrap.escape import visible as visible
from slurmwrap.fast_dataclasses import dataclass

WIDTH = 80


def width(text: str) -> int:
    """Return the number of terminal columns that printable text needs."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, columns: int) -> str:
    """Return `visible(text)` cut to `columns` columns; "…" marks that something was left out."""
    text = visible(text)
    if width(text) <= columns:
        return text
    used, kept = 0, 0
    # The last column is for the "…".
    while used + width(text[kept]) < columns:
        used, kept = used + width(text[kept]), kept + 1
    return text[:kept] + "…"


def fit_middle(text: str, columns: int) -> str:
    """Return the beginning and end of `visible(text)`, for paths: files differ mostly at the end."""
    text = visible(text)
    if width(text) <= columns:
        return text
    head = fit(text, columns // 2)
    tail = text
    while tail and width(tail) > columns - width(head):
        tail = tail[1:]
    return head + tail


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Fill with spaces to `columns`; `right` aligns to the right."""
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 2, columns: int = WIDTH) -> str:
    """Return aligned lines. A head with ">" in front aligns its column to the right; with "~" it may be cut to fit."""
    right = [name.startswith(">") for name in head]
    cells = [[name.lstrip(">~") for name in head], *([visible(cell) for cell in row] for row in rows)]
    widths = [max(width(row[i]) for row in cells) for i in range(len(head))]
    _shrink_columns(
        widths, [i for i, name in enumerate(head) if name.startswith("~")], columns - indent - 2 * (len(widths) - 1)
    )
    lines = ["  ".join(_align_cell(row[i], widths[i], right[i]) for i in range(len(head))) for row in cells]
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def _align_cell(text: str, columns: int, right: bool) -> str:
    # Fast path for most cells, because a list may have millions.
    if text.isascii() and len(text) <= columns:
        return text.rjust(columns) if right else text.ljust(columns)
    return pad(fit(text, columns), columns, right=right)


def _shrink_columns(widths: list[int], flexible: list[int], available: int) -> None:
    """Reduce the widest flexible column by one until the table fits, or until each has 8 columns."""
    while flexible and sum(widths) > available:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= 8:
            return
        widths[widest] -= 1


def wrapped(text: str, *, indent: str = "", hanging: str = "", columns: int = WIDTH) -> str:
    """Wrap text at `columns`, with control characters made visible; a word that is longer than a line is not broken."""
    lines, line = [], indent
    for word in visible(text).split(" "):
        joined = line + word if line in (indent, hanging) else f"{line} {word}"
        if width(joined) > columns and line not in (indent, hanging):
            lines.append(line)
            joined = hanging + word
        line = joined
    return "\n".join([*lines, line]).rstrip()


def duration(seconds: float) -> str:
    """Format a duration: "45 s", "12 min", "3 h 05 min", "2 d 4 h"."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def hours(value: float) -> str:
    """Format GPU-hours with one decimal, or two below 10."""
    return f"{value:,.2f}" if 0 < abs(value) < 10 else f"{value:,.1f}"


def percent(share: float) -> str:
    """Format a share: 0.456 -> "45.6 %"."""
    return f"{100 * share:.1f} %"


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: "1 job", "2 jobs", "no jobs"."""
    word = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {word}" if number else f"no {word}"


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, sorted with numbers in them by value: n2 before n10."""
    return tuple(
        sorted(
            set(names),
            key=lambda name: [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in re.split(r"(\d+)", name)],
        )
    )


def moment(at: float, zone: tzinfo | None) -> str:
    """Format Unix seconds: "2026-11-20 06:00"."""
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M")


# A function that colours text: (text without control characters, "bold" | "red" | "green" | "yellow" | "dim") -> text.
Paint = Callable[[str, str], str]


def plain(text: str, style: str) -> str:
    """Return `text` unchanged: a Paint without colour."""
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """How a page of text looks. `columns` limits all lines except commands, which must stay whole to be pasted."""

    zone: tzinfo | None = UTC
    paint: Paint = plain
    columns: int = WIDTH
    verbose: bool = False

    def wrapped(self, text: str, indent: str = "  ", hanging: str | None = None) -> str:
        """Wrap text at `columns`, with control characters made visible."""
        return wrapped(text, indent=indent, hanging=indent if hanging is None else hanging, columns=self.columns)

    def moment(self, at: float) -> str:
        """Format Unix seconds: "2026-11-20 06:00"."""
        return moment(at, self.zone)


# Width of the name of a row, in columns.
_LABEL_COLUMNS = 9
_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*#@"


def sparkline(rates: tuple[float, ...], unicode: bool = True, width: int = 20, most: float | None = None) -> str:
    """Draw the last rates as bars from 0 to `most`, or to the greatest of them."""
    shown, bars = rates[-width:], _BARS if unicode else _ASCII
    most = max(shown, default=0.0) if most is None else most
    if len(shown) < 2 or most <= 0:
        return ""
    return "".join(bars[min(len(bars) - 1, int(rate / most * (len(bars) - 1) + 0.5))] for rate in shown)


def draw_series(values: Sequence[float], unicode: bool = True, width: int = 40, most: float = 100.0) -> str:
    """Draw a whole series in at most `width` bars from 0 to `most`, each the mean of its part; a blank is unknown."""
    parts = min(width, len(values))
    bars = _BARS if unicode else _ASCII
    drawn = []
    for part in range(parts):
        start, end = part * len(values) // parts, (part + 1) * len(values) // parts
        known = [value for value in values[start:end] if value >= 0]
        share = math.fsum(known) / len(known) / most if known and most > 0 else 0.0
        drawn.append(bars[max(0, min(len(bars) - 1, round(share * (len(bars) - 1))))] if known else " ")
    return "".join(drawn)


def bar(share: float, unicode: bool = True, width: int = 10) -> str:
    """Draw a share as "███░░░░░░░", or as "[###-------]" for a terminal that shows only ASCII."""
    full = max(0, min(width, int(width * share)))
    return f"{'█' * full}{'░' * (width - full)}" if unicode else f"[{'#' * full}{'-' * (width - full)}]"


_STATES = {
    "COMPLETING": "ending",
    "CONFIGURING": "starting",
    "TIMEOUT": "time limit reached",
    "DEADLINE": "deadline reached",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "boot failed",
}


def format_state(state: str) -> str:
    """Return Slurm's state in lower case and plain words."""
    return _STATES.get(state, state.lower().replace("_", " "))


def format_step_rate(per_s: float) -> str:
    """Format steps per second, or steps per minute if they are slow."""
    return f"{per_s:.3g}/s" if per_s >= 0.1 else f"{per_s * 60:.3g}/min"


def span(seconds: float) -> str:
    """Format a duration, in the unit that suits its size."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} d {minutes % 1440 // 60} h"
    )


def format_hms(seconds: float) -> str:
    """Format a duration as Slurm does: d-h:mm:ss."""
    whole = max(0, int(seconds))
    days = f"{whole // 86400}-" if whole >= 86400 else ""
    return f"{days}{whole // 3600 % 24}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def format_slurm_time(seconds: float) -> str:
    """Format a time limit for --time, rounded up to whole minutes: "05:00:00", "2-12:30:00"."""
    days, minutes = divmod(math.ceil(seconds / 60), 1440)
    rest = f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    return f"{days}-{rest}" if days else rest


def clock(at: float, now: float, zone: tzinfo | None, *, seconds: bool = False) -> str:
    """Format the time of day in `zone`, with the date if it is not today."""
    moment, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    form = "%H:%M:%S" if seconds else "%H:%M"
    return moment.strftime(form if moment.date() == today.date() else f"%m-%d {form}")


def flat(text: str) -> str:
    """Return user text on one line, with control characters made visible."""
    return harmless(" ".join(text.split()))


def row(label: str, text: str, columns: int) -> list[str]:
    """Return the lines of a row. Text that does not fit continues below, further to the left on a narrow terminal."""
    wide = columns >= 60
    first = f"{label:{_LABEL_COLUMNS}}" if wide or not label else f"{label} "
    indent = " " * _LABEL_COLUMNS if wide else "  "
    return wrap(
        text, max(20, columns), initial_indent=first if label else indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
