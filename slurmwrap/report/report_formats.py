"""Render the night report as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from io import StringIO
from typing import TYPE_CHECKING, Any

from slurmwrap.escape import cell, markdown, markdown_block, markdown_code
from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.json_output import make_json_document
from slurmwrap.model.hostlist import fold
from slurmwrap.package_files import make_template_environment
from slurmwrap.report import text_format
from slurmwrap.report.headline import make_night_verdict
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import (
    NUMERIC,
    UNTRUSTED,
    Column,
    ColumnKind,
    Figure,
    Page,
    ReportTable,
    Section,
    TableRow,
    format_value,
)

if TYPE_CHECKING:
    from jinja2 import Environment


# CSV: one file per table, with unformatted values (seconds, shares of 1, ISO times).
#
# A spreadsheet reads a cell that begins with = + - @ as a formula. Text that a user chose gets an apostrophe in front
# of these (OWASP, "CSV Injection").
MAIN = "categories"


def render_files(page: Page) -> dict[str, str]:
    """Return file name -> text: "categories.csv", "nodes.csv", …, only for tables with rows; always "figures.csv"."""
    tables = {table.key: table for section in page.sections for table in section.tables}
    return {"figures.csv": render_headline(page)} | {f"{key}.csv": _render_file(table) for key, table in tables.items()}


def render_main_file(page: Page) -> str:
    """Return the table of failures by category, or only its head if no run failed."""
    return render_files(page).get(f"{MAIN}.csv", "category\r\n")


def render_headline(page: Page) -> str:
    """Return the headline figures as CSV."""
    rows = [[one.key, _format_number(one.number), _format_number(one.before), one.detail] for one in page.figures]
    return _write_csv(["figure", "value", "before", "detail"], rows)


def _render_file(table: ReportTable) -> str:
    every = table.unfolded or table.rows
    more = any(row.more for row in every)
    commands = any(row.command for row in every)
    heads = [column.key for column in table.columns] + ["more"] * more + ["command"] * commands
    rows = [
        [_format_csv_cell(value, column) for column, value in zip(table.columns, row.values, strict=True)]
        + ([cell(row.more)] if more else [])
        + ([cell(row.command)] if commands else [])
        for row in every
    ]
    return _write_csv(heads, rows)


def _format_csv_cell(value: object, column: Column) -> str:
    if value is None:
        return ""
    if column.kind is ColumnKind.MOMENT:
        return datetime.fromtimestamp(float(value), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # type: ignore[arg-type]
    if column.kind is ColumnKind.NODES:
        return cell(fold(value))  # type: ignore[arg-type]
    if column.kind is ColumnKind.NAMES:
        return cell(" ".join(value))  # type: ignore[arg-type]
    if isinstance(value, float):
        return _format_number(value)
    return cell(str(value)) if column.kind in UNTRUSTED else str(value)


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _write_csv(heads: list[str], rows: list[list[str]]) -> str:
    out = StringIO(newline="")
    # csv's default dialect follows RFC 4180: CRLF, and quotes where needed.
    writer = csv.writer(out)
    writer.writerow(heads)
    writer.writerows(rows)
    return out.getvalue()


# JSON for programs; docs/schemas/report.schema.json describes it.
#
# `schema` is incremented when a field changes its meaning or is removed; new fields may be added without that.
def make_document(report: NightReport, *, made_by: str) -> dict[str, Any]:
    """Return the report's fields, after those that identify the document for a program."""
    verdict = make_night_verdict(report)
    content = {
        "made_by": made_by,
        "verdict": {"word": verdict.word, "sentence": verdict.sentence},
        **_to_json_value(report),
    }
    return make_json_document("report", content)


def render_json(report: NightReport, *, made_by: str) -> str:
    """Return the document in ASCII only, so that every reader accepts it, whatever bytes a name contained."""
    return json.dumps(make_document(report, made_by=made_by), indent=2) + "\n"


def _to_json_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_to_json_value(one) for one in value]
    return value


# Markdown as GitHub and GitLab read it.
#
# Text that a user chose is put into code spans, in which no Markdown, HTML, link or mention is interpreted
# (CommonMark 6.1).
# Largest number of characters shown of such a text.
MARKDOWN_MORE = 400


def render_markdown(page: Page) -> str:
    """Return the page in Markdown; it ends with a line break."""
    return "\n\n".join(part for part in _format_parts(page) if part) + "\n"


def _format_parts(page: Page) -> Iterator[str]:
    yield f"# {markdown(page.title)}, {markdown_code(page.whose)}"
    yield markdown(page.period)
    yield f"**{markdown(page.verdict.sentence)}**"
    yield "\n".join(_format_markdown_figures(page))
    yield from _format_actions(page)
    for section in page.sections:
        yield from _format_section(section, page)
    yield from _format_ending(page)


def _format_markdown_figures(page: Page) -> Iterator[str]:
    for one in page.figures:
        rest = "; ".join(part for part in (one.detail, one.change) if part)
        yield f"- **{markdown(one.value)}** {markdown(one.label)}{f' ({markdown(rest)})' if rest else ''}"


def _format_actions(page: Page) -> Iterator[str]:
    if page.to_do:
        yield "## What to do"
    for one in page.to_do:
        yield markdown_code(text_format.fit(one.reason, MARKDOWN_MORE))
        yield markdown_block(one.command, "sh")


def _format_section(section: Section, page: Page) -> Iterator[str]:
    yield f"## {markdown(section.title)}"
    if not section.has_something:
        yield markdown(section.empty)
    for line in section.lead:
        yield markdown(line)
    for table in section.tables:
        if table.title != section.title:
            yield f"### {markdown(table.title)}"
        yield markdown(table.lead)
        yield "\n".join(_format_table(table.seen, page))


def _format_table(table: ReportTable, page: Page) -> Iterator[str]:
    more = any(row.more or row.command for row in table.rows)
    heads = [markdown(column.alone or column.head) for column in table.columns] + ["more"] * more
    rules = ["--:" if column.kind in NUMERIC else ":--" for column in table.columns] + [":--"] * more
    yield _format_line(heads)
    yield _format_line(rules)
    for row in table.rows[: table.limit]:
        cells = [_format_cell(value, column, page) for column, value in zip(table.columns, row.values, strict=True)]
        notes = [markdown_code(text_format.fit(part, MARKDOWN_MORE)) for part in (row.more, row.command) if part]
        yield _format_line([*cells, *([" ".join(notes)] if more else [])])
    if len(table.rows) > table.limit:
        yield f"\nand {len(table.rows) - table.limit:,} more"


def _format_cell(value: object, column: Column, page: Page) -> str:
    text = format_value(value, column, page.zone)
    is_user_text = column.kind in UNTRUSTED and value not in (None, ())
    return markdown_code(text_format.fit(text, MARKDOWN_MORE)) if is_user_text else markdown(text)


def _format_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_ending(page: Page) -> Iterator[str]:
    if page.notes:
        yield "## Notes"
        yield "\n".join(f"- {markdown_code(text_format.fit(note, MARKDOWN_MORE))}" for note in page.notes)
    if page.glossary:
        yield "## Words and formulas"
        yield "\n".join(f"- **{markdown(term.name)}**: {markdown(term.meaning)}" for term in page.glossary)


# Text for a terminal, 80 columns wide, by templates/report/night.txt.j2.
#
# Only commands to paste may be longer than a line, because a cut command is useless.
# Largest number of characters of a user's text below a row.
MORE = 230
_TONES = {"good": "green", "bad": "red"}


def render_text(page: Page, paint: Paint = plain) -> str:
    """Return the page as text, in colour where `paint` adds it."""
    environment = _make_environment()
    environment.globals.update(paint=paint, zone=page.zone)
    text = environment.get_template("night.txt.j2").render(
        page=page, figures=list(_format_figures(page.figures, paint))
    )
    return text.rstrip() + "\n"


def _format_figures(figures: Iterable[Figure], paint: Paint) -> Iterator[str]:
    """Yield value, label and the preceding value of each figure, in columns."""
    known = list(figures)
    values = max((text_format.width(one.value) for one in known), default=0)
    for one in known:
        rest = "; ".join(part for part in (one.detail, one.change) if part)
        line = text_format.wrapped(f"{one.label}{f' ({rest})' if rest else ''}", indent="", hanging=" " * (values + 4),
                             columns=text_format.WIDTH - values - 4)  # fmt: skip
        value = text_format.pad(one.value, values, right=True)
        yield f"  {paint(value, _TONES[one.tone]) if one.tone else value}  {line}"


def format_table(table: ReportTable, zone: tzinfo | None) -> Iterator[str]:
    """Yield the lines of a table; below a row its note and its command."""
    indices = [index for index, column in enumerate(table.columns) if column.narrow and not column.data]
    columns = [table.columns[index] for index in indices]
    rows = table.rows[: table.limit]
    cells = [[format_value(row.values[index], table.columns[index], zone) for index in indices] for row in rows]
    head, *lines = text_format.table([_format_head(column) for column in columns], cells).split("\n")
    yield head
    for line, row in zip(lines, rows, strict=True):
        yield line
        yield from () if table.explained else _format_row_notes(row)
    if len(table.rows) > len(rows):
        yield f"  and {len(table.rows) - len(rows):,} more"


def _format_head(column: Column) -> str:
    """Return the head for text_format.table: numbers are aligned to the right; text may be cut."""
    mark = ">" if column.kind in NUMERIC else "" if column.kind is ColumnKind.MOMENT else "~"
    return mark + (column.alone or column.head)


def _format_row_notes(row: TableRow) -> Iterator[str]:
    if row.more:
        yield text_format.wrapped(text_format.fit(row.more, MORE), indent="    ", hanging="    ")
    if row.command:
        yield f"    {text_format.visible(row.command)}"


def _make_environment() -> Environment:
    # The filter `visible` makes control characters visible in the .txt template.
    environment = make_template_environment("report", keep_trailing_newline=False)
    environment.filters.update(visible=text_format.visible, fit=text_format.fit)
    environment.globals.update(wrapped=text_format.wrapped, laid_out=format_table)
    return environment
