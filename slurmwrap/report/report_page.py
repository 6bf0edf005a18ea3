"""The night report as a document of sections, tables and sentences, which every output format renders. Pure.

Values are kept as numbers and names together with their kind, so that a terminal, HTML, Markdown and CSV can each
format them. Kind USER marks text that people chose (names, paths, log lines): every format must escape it.
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
    """The kind of a column's values, which determines how they are formatted."""

    TEXT = "text"  # slurmwrap's own text
    CATEGORY = "category"  # a category of taxonomy.py: shown by its title, in CSV by its id
    USER = "user"  # text that a user chose
    NAMES = "names"  # a tuple of such texts
    NODES = "nodes"  # a tuple of node names, folded
    COUNT = "count"
    CHANGE = "change"  # a difference of counts
    HOURS = "hours"
    GAINED = "gained"  # hours with a sign
    TIME = "time"  # seconds
    SHARE = "share"  # 0..1
    NUMBER = "number"
    MOMENT = "moment"  # Unix seconds


# Kinds that are aligned to the right.
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
)
UNTRUSTED = frozenset({ColumnKind.USER, ColumnKind.NAMES, ColumnKind.NODES})
NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    `key` names it in CSV. `narrow`: shown also on a page of 80 columns and on a phone. `data`: only in CSV. `none`:
    what is shown if there is no value.
    """

    key: str
    head: str
    kind: ColumnKind = ColumnKind.TEXT
    narrow: bool = True
    data: bool = False
    none: str = "–"
    # A heading above the heads of neighbouring columns.
    group: str = ""
    # The head to use where `group` cannot be shown above it: on a terminal and on a phone.
    alone: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table. `more` is a user's text that is shown below it, `command` is to be pasted."""

    values: tuple[Any, ...]
    more: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table. `key` names its CSV file; the first column is what a row is about; `lead` is a sentence above it."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    lead: str = ""
    # Rows shown at once.
    limit: int = 10
    # The rows for CSV, if `rows` combines similar ones.
    unfolded: tuple[TableRow, ...] = ()
    # The text below rows only explains terms that daily readers know, so a terminal does not show it.
    explained: bool = False

    @property
    def seen(self) -> ReportTable:
        """Return the table without the columns that are only for CSV."""
        kept = [index for index, column in enumerate(self.columns) if not column.data]
        rows = tuple(replace(row, values=tuple(row.values[index] for index in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page. Tables without rows and sections without content are removed before formatting."""

    key: str
    title: str
    lead: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[str, ...] = ()  # keys of report/report_plots.py
    # The line that is shown if there is no content; "": the section is left out.
    empty: str = ""

    @property
    def has_something(self) -> bool:
        """Whether it has more than its title."""
        return bool(self.tables or self.lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A headline figure. `number` and `before` are for programs; `tone` ("good" | "bad" | "") is that of the change."""

    key: str
    label: str
    value: str
    detail: str = ""
    # Compared with the preceding period.
    change: str = ""
    number: float | None = None
    before: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """The verdict on the night. `word`: "quiet" | "watch" | "act"."""

    word: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedCommand:
    """A command and the reason for it; `reason` may contain text of a user."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryTerm:
    """A line of the glossary: the id of a formula or a word, and its meaning."""

    name: str
    meaning: str
    formula: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that an output format shows."""

    title: str
    # "cluster lab", "ada on cluster lab"; contains text that people chose.
    whose: str
    since: float
    until: float
    # "2026-11-21 06:00 to 2026-11-22 06:00 UTC (24 h)"
    period: str
    # The day of `until`, as in file names: "2026-11-22".
    day: str
    zone: tzinfo | None
    verdict: NightVerdict
    figures: tuple[Figure, ...]
    to_do: tuple[SuggestedCommand, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]  # may contain text of users
    glossary: tuple[GlossaryTerm, ...]


def format_value(value: Any, column: Column, zone: tzinfo | None) -> str:
    """Format a value as every output format shows it; user text is then printable but not yet escaped."""
    if value is None or value == ():
        return column.none
    return _FORMATTERS[column.kind](value) if column.kind is not ColumnKind.MOMENT else text_format.moment(value, zone)


def _format_names(names: tuple[str, ...]) -> str:
    more = f", … ({len(names)})" if len(names) > NAMES_SHOWN else ""
    return text_format.visible(", ".join(names[:NAMES_SHOWN])) + more


def format_signed(number: float, text: str) -> str:
    """Return "+4", "−2" or "0": `text` with the sign of `number`."""
    return f"+{text}" if number > 0 else f"−{text}" if number < 0 else text


def format_duration(seconds: float) -> str:
    """Format a duration for a table: "45 s", "12 min", "3.1 h", "2.2 d"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def format_hours(value: float) -> str:
    """Format GPU-hours, without decimals from 1,000 on."""
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if value >= 1000 else text_format.hours(value)


def format_number(value: float) -> str:
    """Format a number with up to two significant decimals: "1,234", "12.3", "0.31"."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


_FORMATTERS: Mapping[ColumnKind, Callable[[Any], str]] = {
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
