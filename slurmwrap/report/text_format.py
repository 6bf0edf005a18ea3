"""Turns values into the few words of a terminal page: durations, numbers, aligned tables, harmless text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from unicodedata import combining, east_asian_width

from slurmwrap.escape import visible as visible
from slurmwrap.fast_dataclasses import dataclass

WIDTH = 80


def width(text: str) -> int:
    """Columns a terminal needs for printable text."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, columns: int) -> str:
    """`visible(text)` in at most `columns` columns; "…" shows that something was left out."""
    text = visible(text)
    if width(text) <= columns:
        return text
    used, kept = 0, 0
    # The last column is for the mark.
    while used + width(text[kept]) < columns:
        used, kept = used + width(text[kept]), kept + 1
    return text[:kept] + "…"


def fit_middle(text: str, columns: int) -> str:
    """Beginning and end of `visible(text)`, for paths: what distinguishes files is at the end."""
    text = visible(text)
    if width(text) <= columns:
        return text
    head = fit(text, columns // 2)
    tail = text
    while tail and width(tail) > columns - width(head):
        tail = tail[1:]
    return head + tail


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Filled with spaces to `columns`; `right` aligns to the right."""
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 2, columns: int = WIDTH) -> str:
    """Aligned lines. A head that begins with ">" aligns its column to the right; with "~", it may be cut to fit."""
    right = [name.startswith(">") for name in head]
    cells = [[name.lstrip(">~") for name in head], *([visible(cell) for cell in row] for row in rows)]
    widths = [max(width(row[i]) for row in cells) for i in range(len(head))]
    _narrow(
        widths, [i for i, name in enumerate(head) if name.startswith("~")], columns - indent - 2 * (len(widths) - 1)
    )
    lines = ["  ".join(_aligned(row[i], widths[i], right[i]) for i in range(len(head))) for row in cells]
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def _aligned(text: str, columns: int, right: bool) -> str:
    # Most cells: a list may have millions.
    if text.isascii() and len(text) <= columns:
        return text.rjust(columns) if right else text.ljust(columns)
    return pad(fit(text, columns), columns, right=right)


def _narrow(widths: list[int], flexible: list[int], available: int) -> None:
    """Takes from the widest of the flexible ones, one by one, down to 8 each."""
    while flexible and sum(widths) > available:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= 8:
            return
        widths[widest] -= 1


def wrapped(text: str, *, indent: str = "", hanging: str = "", columns: int = WIDTH) -> str:
    """Words of harmless text on lines of at most `columns`; a word longer than a line is left whole."""
    lines, line = [], indent
    for word in visible(text).split(" "):
        joined = line + word if line in (indent, hanging) else f"{line} {word}"
        if width(joined) > columns and line not in (indent, hanging):
            lines.append(line)
            joined = hanging + word
        line = joined
    return "\n".join([*lines, line]).rstrip()


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3 h 05 min", "2 d 4 h"."""
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
    """GPU-hours: one decimal, two where they are few."""
    return f"{value:,.2f}" if 0 < abs(value) < 10 else f"{value:,.1f}"


def percent(share: float) -> str:
    """0..1 -> "45.6 %"."""
    return f"{100 * share:.1f} %"


def count(number: int, noun: str, plural: str = "") -> str:
    """ "1 job", "2 jobs", "no jobs"."""
    word = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {word}" if number else f"no {word}"


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, numbers in them by value: n2 before n10."""
    return tuple(
        sorted(
            set(names),
            key=lambda name: [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in re.split(r"(\d+)", name)],
        )
    )


def moment(at: float, zone: tzinfo | None) -> str:
    """Unix seconds -> "2026-11-20 06:00"."""
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M")


# How a page of text looks: the reader's clock, colour, width, and whether they want all of it.
# (harmless text, "bold" | "red" | "green" | "yellow" | "dim") -> the same, in colour
Paint = Callable[[str, str], str]


def plain(text: str, style: str) -> str:
    """A Paint without colour."""
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """`columns` bind all but commands, which must stay whole to be pasted."""

    zone: tzinfo | None = UTC
    paint: Paint = plain
    columns: int = WIDTH
    verbose: bool = False

    def wrapped(self, text: str, indent: str = "  ", hanging: str | None = None) -> str:
        """Words of harmless text on lines of at most `columns`."""
        return wrapped(text, indent=indent, hanging=indent if hanging is None else hanging, columns=self.columns)

    def moment(self, at: float) -> str:
        """Unix seconds -> "2026-11-20 06:00"."""
        return moment(at, self.zone)
