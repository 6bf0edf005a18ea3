"""The night report as a document: sections, tables and sentences, before any format. Every format shows this one. Pure.

Values stay values (numbers, names) with the kind of thing they are, so that a terminal, a page, Markdown and CSV each
write them their own way. Kind USER marks what people chose (names, paths, log lines): every format makes it harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from enum import Enum
from typing import Any

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.hostlist import fold
from slurmwrap.report import text_format


class ColumnKind(Enum):
    """What a column holds, and how its values are written."""

    TEXT = "text"  # our own words
    CATEGORY = "category"  # of taxonomy.py: its title, in CSV its id
    USER = "user"  # someone's words
    NAMES = "names"  # a tuple of someone's words
    NODES = "nodes"  # a tuple of node names, folded
    COUNT = "count"
    CHANGE = "change"  # a difference of counts
    HOURS = "hours"
    GAINED = "gained"  # hours with their sign
    TIME = "time"  # seconds
    SHARE = "share"  # 0..1
    NUMBER = "number"
    MOMENT = "moment"  # Unix seconds


NUMERIC = frozenset(
    {
        ColumnKind.COUNT,
        ColumnKind.CHANGE,
        ColumnKind.HOURS,
        ColumnKind.GAINED,
        ColumnKind.TIME,
        ColumnKind.SHARE,
        ColumnKind.NUMBER,
    }
)  # aligned to the right
UNTRUSTED = frozenset({ColumnKind.USER, ColumnKind.NAMES, ColumnKind.NODES})
NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` names it in CSV. `narrow`: also on a page of 80 columns and on a phone. `data`: in CSV alone.
    `none`: what stands where there is no value."""

    key: str
    head: str
    kind: ColumnKind = ColumnKind.TEXT
    narrow: bool = True
    data: bool = False
    none: str = "–"
    # A head above the heads of neighbours.
    group: str = ""
    # The head where none can stand above it: on a terminal, on a phone.
    alone: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table. `more` is someone's words below it, `command` to paste."""

    values: tuple[Any, ...]
    more: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """`key` names its CSV file. The first column is what a row is about. `lead`: our words, with names made visible."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    lead: str = ""
    limit: int = 10  # rows shown at once
    unfolded: tuple[TableRow, ...] = ()  # the same for CSV, where `rows` fold what is alike
    explained: bool = False  # what stands below a row is known to who reads it daily: not on a terminal

    @property
    def seen(self) -> ReportTable:
        """The same without what is for CSV alone."""
        kept = [place for place, column in enumerate(self.columns) if not column.data]
        rows = tuple(replace(row, values=tuple(row.values[place] for place in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page. Tables without rows and sections without anything are left out before a format sees them."""

    key: str
    title: str
    lead: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[str, ...] = ()  # keys of report/report_plots.py
    # The one line that stands where there is nothing to show; "": it is left out.
    empty: str = ""

    @property
    def has_something(self) -> bool:
        """More than its title."""
        return bool(self.tables or self.lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A headline figure; `number` and `before` are for programs. `tone` ("good" | "bad" | "") is the change's."""

    key: str
    label: str
    value: str
    detail: str = ""
    change: str = ""  # against the period before
    number: float | None = None
    before: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """The night in a sentence. `word`: "quiet" | "watch" | "act"."""

    word: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedCommand:
    """A command, and why; `reason` may hold what a user wrote."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryTerm:
    """A line of the glossary: a formula's id or a word, and what it means."""

    name: str
    meaning: str
    formula: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that a format shows."""

    title: str
    # "cluster lab", "ada on cluster lab"; someone's words
    whose: str
    since: float
    until: float
    # "2026-11-21 06:00 to 2026-11-22 06:00 UTC (24 h)"
    period: str
    # Of `until`, as files are named: "2026-11-22".
    day: str
    zone: tzinfo | None
    verdict: NightVerdict
    figures: tuple[Figure, ...]
    to_do: tuple[SuggestedCommand, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]  # someone's words
    glossary: tuple[GlossaryTerm, ...]


def format_value(value: Any, column: Column, zone: tzinfo | None) -> str:
    """A value as every format writes it; someone's words are printable then, but not yet escaped."""
    if value is None or value == ():
        return column.none
    return _WRITTEN[column.kind](value) if column.kind is not ColumnKind.MOMENT else text_format.moment(value, zone)


def _format_names(names: tuple[str, ...]) -> str:
    more = f", … ({len(names)})" if len(names) > NAMES_SHOWN else ""
    return text_format.visible(", ".join(names[:NAMES_SHOWN])) + more


def format_signed(number: float, text: str) -> str:
    """ "+4", "−2", "0": `text` is the size of `number`."""
    return f"+{text}" if number > 0 else f"−{text}" if number < 0 else text


def format_duration(seconds: float) -> str:
    """A duration for a table: "45 s", "12 min", "3.1 h", "2.2 d"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def format_hours(value: float) -> str:
    """GPU-hours; whole where they are many: no one compares the tenths of thousands."""
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if value >= 1000 else text_format.hours(value)


def format_number(value: float) -> str:
    """Three digits at most after what is whole: "1,234", "12.3", "0.31"."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


_WRITTEN: Mapping[ColumnKind, Callable[[Any], str]] = {
    ColumnKind.TEXT: str,
    ColumnKind.CATEGORY: get_title,
    ColumnKind.USER: text_format.visible,
    ColumnKind.NAMES: _format_names,
    ColumnKind.NODES: lambda nodes: text_format.visible(fold(nodes)),
    ColumnKind.COUNT: "{:,}".format,
    ColumnKind.CHANGE: lambda value: format_signed(value, f"{abs(value):,}"),
    ColumnKind.HOURS: lambda value: format_hours(value),
    ColumnKind.GAINED: lambda value: format_signed(value, format_hours(abs(value))),
    ColumnKind.TIME: format_duration,
    ColumnKind.SHARE: text_format.percent,
    ColumnKind.NUMBER: format_number,
}
