"""Turns a Page into text for a terminal, 80 columns wide, by templates/report/night.txt.j2.

Commands to paste are the only lines that may be longer: a cut command is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING

from slurmwrap.report import text_format
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.report_page import NUMERIC, Column, ColumnKind, Figure, Page, ReportTable, TableRow, format_value
from slurmwrap.resources import shipped

if TYPE_CHECKING:
    from jinja2 import Environment

MORE = 230  # characters of someone's words below a row
_TONES = {"good": "green", "bad": "red"}


def render_text(page: Page, paint: Paint = plain) -> str:
    """The page, in colour where `paint` gives it one."""
    environment = _make_environment()
    environment.globals.update(paint=paint, zone=page.zone)
    text = environment.get_template("night.txt.j2").render(
        page=page, figures=list(_format_figures(page.figures, paint))
    )
    return text.rstrip() + "\n"


def _format_figures(figures: Iterable[Figure], paint: Paint) -> Iterator[str]:
    """Value, label and what it was before, in columns."""
    known = list(figures)
    values = max((text_format.width(one.value) for one in known), default=0)
    for one in known:
        rest = "; ".join(part for part in (one.detail, one.change) if part)
        line = text_format.wrapped(f"{one.label}{f' ({rest})' if rest else ''}", indent="", hanging=" " * (values + 4),
                             columns=text_format.WIDTH - values - 4)  # fmt: skip
        value = text_format.pad(one.value, values, right=True)
        yield f"  {paint(value, _TONES[one.tone]) if one.tone else value}  {line}"


def format_table(table: ReportTable, zone: tzinfo | None) -> Iterator[str]:
    """Lines of a table; under a row what was said about it, and its command."""
    places = [place for place, column in enumerate(table.columns) if column.narrow and not column.data]
    columns = [table.columns[place] for place in places]
    rows = table.rows[: table.limit]
    cells = [[format_value(row.values[place], table.columns[place], zone) for place in places] for row in rows]
    head, *lines = text_format.table([_format_head(column) for column in columns], cells).split("\n")
    yield head
    for line, row in zip(lines, rows, strict=True):
        yield line
        yield from () if table.explained else _format_row_notes(row)
    if len(table.rows) > len(rows):
        yield f"  and {len(table.rows) - len(rows):,} more"


def _format_head(column: Column) -> str:
    """Numbers to the right; words may be cut."""
    mark = ">" if column.kind in NUMERIC else "" if column.kind is ColumnKind.MOMENT else "~"
    return mark + (column.alone or column.head)


def _format_row_notes(row: TableRow) -> Iterator[str]:
    if row.more:
        yield text_format.wrapped(text_format.fit(row.more, MORE), indent="    ", hanging="    ")
    if row.command:
        yield f"    {text_format.visible(row.command)}"


def _make_environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(shipped("templates") / "report"),
        undefined=StrictUndefined,
        autoescape=select_autoescape(),  # for HTML templates; a .txt is made harmless by words.visible
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(visible=text_format.visible, fit=text_format.fit)
    environment.globals.update(wrapped=text_format.wrapped, laid_out=format_table)
    return environment
